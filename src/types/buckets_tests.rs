//! A duration falls into the one bucket whose bounds enclose it.

use super::*;

#[test]
fn every_duration_lies_below_its_bound_and_not_below_the_one_before() {
    let mut values = vec![0, 1, 63, 64, 65, u64::MAX];
    values.extend((0..64).flat_map(|power| {
        let power = 1_u64 << power;
        [power - 1, power, power + 1]
    }));
    for value in values {
        let mut buckets = Buckets::default();
        buckets.record(value);
        assert_eq!((buckets.count(), buckets.sum_us()), (1, value));
        let mut before = 0;
        for (bound, count) in buckets.each() {
            let inside = value >= before && bound.is_none_or(|bound| value < bound);
            assert_eq!(count, u64::from(inside), "{value} in {before}..{bound:?}");
            before = bound.unwrap_or(before);
        }
        assert_eq!(before, 1 << 26, "the highest bound");
    }
}
