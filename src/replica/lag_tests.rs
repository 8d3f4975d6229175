//! Percentiles against a sorted list.

use super::Histogram;

#[test]
fn percentiles_are_within_a_sixteenth() {
    let mut histogram = Histogram::default();
    let mut values: Vec<u64> = (0..5000u64).map(|i| i * i * 37 % 1_000_003).collect();
    values.iter().for_each(|value| histogram.record(*value));
    values.sort_unstable();
    for percent in [1, 50, 95, 99, 100] {
        let exact = values[(values.len() * percent).div_ceil(100) - 1];
        let found = histogram.percentile(percent as u64);
        assert!(found >= exact, "{percent}: {found} < {exact}");
        assert!(found <= exact + exact / 16, "{percent}: {found} > {exact}");
    }
}

#[test]
fn extremes_have_buckets() {
    let mut histogram = Histogram::default();
    assert_eq!(histogram.percentile(50), 0);
    histogram.record(u64::MAX);
    histogram.record(0);
    assert_eq!(histogram.percentile(50), 0);
    assert_eq!(histogram.percentile(99), u64::MAX);
}
