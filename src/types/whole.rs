//! Whole numbers that people write: in range, or refused with the range.

use core::fmt::Display;
use core::str::FromStr;

/// A reader of whole numbers from `least` to `most`, for flags: a text that is none of them,
/// however large, is refused with both bounds.
pub fn whole<T>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: Copy + Display + FromStr + PartialOrd,
{
    move |text| {
        let number = text.parse::<T>().ok();
        let number = number.filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("must be a whole number from {least} to {most}"))
    }
}

#[cfg(test)]
#[path = "whole_tests.rs"]
mod tests;
