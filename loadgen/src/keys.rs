//! Keys: numbers below a bound, as eight decimal digits, each on the shard that its CRC names.
//!
//! Which shard a key belongs to is the clients' rule, `crc32(key) % shards`: order per key rests on
//! it, so the verifier holds every record against it. A connection sends to one shard, hence it
//! draws from the keys of that shard: evenly, or the low numbers far more often (Zipf). Nothing
//! here knows a payload. Read `ledger.rs` next.

use std::sync::Arc;

use clap::ValueEnum;
use millrace::types::ShardId;

use crate::random::Random;

/// Bytes of a key.
pub const KEY_BYTES: usize = 8;

/// Most keys of a run: their tables take 12 bytes a key.
pub const KEYS_MAX: u32 = 10_000_000;

/// How uneven [`KeyChoice::Zipf`] is: key `k` has the weight `1 / (k + 1)^0.99`, as in YCSB.
const ZIPF_EXPONENT: f64 = 0.99;

/// Which of a shard's keys a record gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KeyChoice {
    /// Each as often as any other
    #[default]
    Uniform,
    /// Key k as often as 1 / (k + 1)^0.99
    Zipf,
}

/// A key as it stands in a record.
pub fn name(key: u32) -> [u8; KEY_BYTES] {
    let mut digits = [b'0'; KEY_BYTES];
    let mut rest = key;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    digits
}

/// The number of a key; none if these bytes are no key.
pub fn number(key: &[u8]) -> Option<u32> {
    let digits = key.len() == KEY_BYTES && key.iter().all(u8::is_ascii_digit);
    let fold = |number, digit: &u8| number * 10 + u32::from(digit - b'0');
    digits.then(|| key.iter().fold(0, fold))
}

/// The shard of a key among `shards`.
pub fn shard_of(key: &[u8], shards: u32) -> ShardId {
    ShardId((crc32fast::hash(key) % shards.max(1)) as u16)
}

/// The keys of one shard, shared by its connections.
#[derive(Clone, Debug)]
pub struct Keys {
    keys: Arc<[u32]>,
    /// Sum of the weights up to and with each key; empty if all weigh the same.
    sums: Arc<[f64]>,
}

impl Keys {
    /// Of the keys `0..count`, those that lie on `shard` of `shards`.
    pub fn new(count: u32, choice: KeyChoice, shard: ShardId, shards: u32) -> Keys {
        let on_shard = |key: &u32| shard_of(&name(*key), shards) == shard;
        let keys: Arc<[u32]> = (0..count).filter(on_shard).collect();
        let mut sum = 0.0;
        let mut add = |key: &u32| {
            sum += (f64::from(*key) + 1.0).powf(-ZIPF_EXPONENT);
            sum
        };
        let sums = match choice {
            KeyChoice::Uniform => Arc::default(),
            KeyChoice::Zipf => keys.iter().map(&mut add).collect(),
        };
        Keys { keys, sums }
    }

    /// Whether the shard has none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// One of them; there is one.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let index = match self.sums.last() {
            None => random.below(self.keys.len() as u64) as usize,
            Some(whole) => {
                // 53 bits are all that a float holds.
                let at = random.below(1 << 53) as f64 / (1_u64 << 53) as f64 * whole;
                self.sums.partition_point(|sum| *sum <= at)
            }
        };
        self.keys[index.min(self.keys.len() - 1)]
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
