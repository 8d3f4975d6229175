//! Helpers of the format tests: golden bytes, layout tables and damage.
//!
//! Golden bytes lie as hex under `tests/data/wire`, one field a line with its offset, size and
//! name; `00*14` stands for fourteen zeros. They were not made by the code that they test. The same
//! lines are compared with the layout in the module doc of the format, so the doc is held to the
//! bytes.
//!
//! A format changes only together with its golden bytes and its version.

use super::bytes::{crc_with_zeroed, put};
use core::fmt::Debug;
use core::ops::Range;

/// One field of a layout.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) offset: usize,
    pub(super) size: usize,
    pub(super) field: String,
    pub(super) bytes: Vec<u8>,
}

/// Lines of `text` that are no comment, as words.
pub(super) fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
}

/// The bytes that words of hex stand for.
pub(super) fn unhex(words: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in words {
        let (digits, times) = word.split_once('*').unwrap_or((word, "1"));
        let one: Vec<u8> = (0..digits.len() / 2)
            .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("hex"))
            .collect();
        bytes.extend(one.repeat(times.parse().expect("a count")));
    }
    bytes
}

/// The fields of a golden file.
pub(super) fn rows(text: &str) -> Vec<Row> {
    lines(text)
        .map(|words| Row {
            offset: words[0].parse().expect("an offset"),
            size: words[1].parse().expect("a size"),
            field: words[2].to_owned(),
            bytes: unhex(&words[3..]),
        })
        .collect()
}

/// The bytes of a golden file.
pub(super) fn bytes(text: &str) -> Vec<u8> {
    rows(text).into_iter().flat_map(|row| row.bytes).collect()
}

/// The layout in the module doc of `source` has the fields of the golden file, at the same
/// positions, with the same sizes, without a gap.
pub(super) fn assert_layout(source: &str, golden: &str) {
    let documented: Vec<(usize, usize, &str)> = source
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("//!")?.split_whitespace();
            let offset = words.next()?.parse().ok()?;
            Some((offset, words.next()?.parse().ok()?, words.next()?))
        })
        .collect();
    let golden = rows(golden);
    let mut end = 0;
    for row in &golden {
        assert_eq!((row.offset, row.bytes.len()), (end, row.size), "{row:?}");
        end += row.size;
    }
    let golden: Vec<(usize, usize, &str)> = golden
        .iter()
        .map(|row| (row.offset, row.size, row.field.as_str()))
        .collect();
    assert_eq!(documented, golden);
}

/// Calls `try_out` with `sound` once per bit, that bit flipped.
pub(super) fn each_flip(sound: &[u8], mut try_out: impl FnMut(usize, &[u8])) {
    let mut damaged = sound.to_vec();
    for at in 0..sound.len() {
        for bit in 0..8 {
            damaged[at] ^= 1 << bit;
            try_out(at, &damaged);
            damaged[at] ^= 1 << bit;
        }
    }
}

/// Golden bytes with any bit flipped are no longer read as `value`.
pub(super) fn assert_flips_show<T: PartialEq + Debug>(
    golden: &[u8],
    value: &T,
    read: impl Fn(&[u8]) -> Option<T>,
) {
    assert_eq!(read(golden).as_ref(), Some(value));
    each_flip(golden, |at, damaged| {
        assert_ne!(read(damaged).as_ref(), Some(value), "byte {at}");
    });
}

/// `accepts` takes `sound`, and neither a shorter piece of it nor it with any bit flipped.
pub(super) fn assert_damage_is_refused(sound: &[u8], accepts: impl Fn(&[u8]) -> bool) {
    assert!(accepts(sound), "the undamaged bytes");
    for len in 0..sound.len() {
        assert!(!accepts(&sound[..len]), "cut to {len} bytes");
    }
    each_flip(sound, |at, damaged| assert!(!accepts(damaged), "byte {at}"));
}

/// Makes a header's CRC fit whatever it holds: what a peer gone wrong could send.
pub(super) fn reseal(header: &mut [u8], field: usize) {
    let crc = crc_with_zeroed(header, field);
    put(header, field, &crc.to_le_bytes());
}

/// `sound` with other bytes at `range`.
pub(super) fn patched(sound: &[u8], range: Range<usize>, with: &[u8]) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    bytes[range].copy_from_slice(with);
    bytes
}
