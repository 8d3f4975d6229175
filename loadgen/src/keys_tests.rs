//! Tests of the keys: names, shards, and how often each is drawn.

use super::*;

#[test]
fn a_key_reads_back_from_its_name() {
    for key in [0, 7, 10, 12_345_678, 99_999_999] {
        assert_eq!(number(&name(key)), Some(key));
    }
    assert_eq!(&name(42), b"00000042");
    for other in [&b""[..], b"42", b"0000004x", b"000000042", b"+0000042"] {
        assert_eq!(number(other), None, "{other:?}");
    }
}

#[test]
fn every_key_lies_on_one_shard() {
    let of = |shard| Keys::new(1_000, KeyChoice::Uniform, ShardId(shard), 3);
    let mut all: Vec<u32> = (0..3).flat_map(|shard| of(shard).keys.to_vec()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..1_000).collect::<Vec<_>>());
    assert!((0..3).all(|shard| of(shard).keys.len() > 250));
    // IEEE CRC-32 of eight zeros, by any other program: 0xc0088d03.
    assert_eq!(shard_of(b"00000000", 1 << 16), ShardId(0x8d03));
}

fn counts(choice: KeyChoice, draws: usize) -> Vec<usize> {
    let keys = Keys::new(100, choice, ShardId(0), 1);
    let mut random = Random::new(5);
    let mut counts = vec![0; 100];
    for _ in 0..draws {
        counts[keys.draw(&mut random) as usize] += 1;
    }
    counts
}

#[test]
fn uniform_draws_every_key_alike() {
    let counts = counts(KeyChoice::Uniform, 100_000);
    assert!(counts.iter().all(|count| (800..1_200).contains(count)));
}

#[test]
fn zipf_draws_by_rank() {
    let counts = counts(KeyChoice::Zipf, 100_000);
    // The weights of 100 keys sum up to 5.29: the first is 18.9 percent, the tenth 1.94.
    assert!((18_400..19_400).contains(&counts[0]), "{counts:?}");
    assert!((1_750..2_130).contains(&counts[9]), "{counts:?}");
    assert!(counts[99] > 100, "{counts:?}");
}
