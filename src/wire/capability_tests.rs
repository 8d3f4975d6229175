//! The registry as published, and what a set of capabilities holds.

use super::*;

/// The registry as published: a row may be added, never changed.
///
/// H-74
#[test]
fn published_bits_keep_their_names() {
    let rows: Vec<_> = Capability::ALL
        .iter()
        .map(|one| (one.bit(), one.name(), one.since()))
        .collect();
    let published = [(1, "take_over", "0.1.0"), (2, "sealed_bytes", "0.1.0")];
    assert_eq!(rows, published);
    assert_eq!(Capabilities::HERE.bits(), 0b110);
}

#[test]
fn bits_and_names_are_each_one_capabilitys() {
    for (at, one) in Capability::ALL.iter().enumerate() {
        assert!((1..64).contains(&one.bit()), "bit 0 is reserved: {one:?}");
        assert!(!one.allows().is_empty());
        for other in &Capability::ALL[at + 1..] {
            assert_ne!(one.bit(), other.bit());
            assert_ne!(one.name(), other.name());
        }
    }
}

#[test]
fn the_bit_of_the_secret_is_no_capability() {
    assert!(Capabilities::from_bits(1).is_empty());
    assert_eq!(Capabilities::from_bits(3), Capabilities::from_bits(2));
}

#[test]
fn a_set_holds_what_it_was_given() {
    let set = Capabilities::from_bits(0b10 | 1 << 40);
    assert!(set.has(Capability::TakeOver));
    assert!(!Capabilities::NONE.has(Capability::TakeOver));
    assert_eq!(set.names(), ["take_over", "bit 40"]);
    assert_eq!(set.without(Capabilities::HERE).names(), ["bit 40"]);
    assert_eq!(
        Capabilities::from_names(["take_over", "sealed_bytes"]),
        Ok(Capabilities::HERE)
    );
    assert_eq!(Capabilities::from_names(["take_over", "warp"]), Err("warp"));
}
