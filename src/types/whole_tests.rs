//! Tests of whole numbers as flags have them.

use super::*;

#[test]
fn what_is_not_in_range_is_refused_with_the_range() {
    let read = whole(1_u32, 64);
    assert_eq!((read("1"), read("64")), (Ok(1), Ok(64)));
    for text in ["0", "65", "-1", "99999999999999999999", "1.5", "", "one"] {
        let refused = read(text).expect_err(text);
        assert_eq!(refused, "must be a whole number from 1 to 64");
    }
    assert_eq!(whole(0, u64::MAX)("18446744073709551615"), Ok(u64::MAX));
}
