//! What operators are told of a full disk: that it is full, at once; that it has space again, once
//! it has had some for a while. On a disk at its limit space comes and goes with each file.

use crate::types::Time;

/// How long a disk must have had space before that is told.
const CALM_US: u64 = 5_000_000;

/// What was told last, and what is to be told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpaceTold {
    full: bool,
    calm_at: Option<Time>,
}

impl SpaceTold {
    /// The disk is full, or has space; whether it is news that it is full.
    pub(super) fn note(&mut self, now: Time, full: bool) -> bool {
        self.calm_at = (!full && self.full).then(|| now.plus_us(CALM_US));
        full && !core::mem::replace(&mut self.full, true)
    }

    /// When [`SpaceTold::is_calm`] wants to be asked.
    pub(super) fn timeout(&self) -> Option<Time> {
        self.calm_at
    }

    /// Whether it is to be told now that the disk has space again.
    pub(super) fn is_calm(&mut self, now: Time) -> bool {
        let calm = self.calm_at.is_some_and(|at| at <= now);
        if calm {
            *self = SpaceTold::default();
        }
        calm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_that_comes_and_goes_is_no_news() {
        let mut told = SpaceTold::default();
        assert!(!told.note(Time(0), false), "it never was full");
        assert_eq!(told.timeout(), None);
        assert!(told.note(Time(0), true));
        for round in 1..10 {
            let now = Time(round * CALM_US);
            assert!(!told.note(now, false));
            assert!(!told.is_calm(now.plus_us(CALM_US - 1)));
            assert!(!told.note(now.plus_us(CALM_US - 1), true), "told already");
            assert_eq!(told.timeout(), None);
        }
        told.note(Time(0), false);
        assert_eq!(told.timeout(), Some(Time(CALM_US)));
        assert!(told.is_calm(Time(CALM_US)));
        assert!(!told.is_calm(Time(2 * CALM_US)), "told once");
        assert!(told.note(Time(2 * CALM_US), true), "news again");
    }
}
