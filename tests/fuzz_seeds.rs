//! Every file of the fuzz targets' corpora, played through the targets' own functions on stable.
//!
//! `cargo fuzz` needs a nightly compiler and time; what it found interesting is kept in
//! `tests/fuzz/corpus` and played here in seconds, so that an input that once broke something stays
//! harmless. Read `fuzz/src/lib.rs` for what holds for any input, `scripts/fuzz` for how more of
//! them are found.

#[path = "fuzz/src/lib.rs"]
mod fuzz;

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that a file of a corpus may have, and files that a corpus may hold.
const FILE_BYTES: usize = 4096;
const FILES: usize = 400;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fuzz/corpus")
        .join(target)
}

/// Plays all files of a target, ascending by name; an input that fails is named by the panic.
fn play_all(target: &str, play: fn(&[u8])) {
    let folder = corpus(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("listed").path()).collect();
    files.sort();
    assert!((10..=FILES).contains(&files.len()), "{} files", files.len());
    for file in files {
        let bytes = fs::read(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        assert!(bytes.len() <= FILE_BYTES, "{file:?} is too long");
        let played = std::panic::catch_unwind(|| play(&bytes));
        assert!(played.is_ok(), "{target} does not stand {file:?}");
    }
}

#[test]
fn frames() {
    play_all("frame", fuzz::frame::play);
}

#[test]
fn blocks() {
    play_all("block", fuzz::block::play);
}

///
#[test]
fn files_that_somebody_changed() {
    play_all("files", fuzz::files::play);
}

#[cfg(feature = "node")]
#[test]
fn configurations() {
    play_all("config", fuzz::config::play);
}

#[test]
fn sessions_of_clients() {
    play_all("client", fuzz::client::play);
}

#[test]
fn peers_of_a_shard() {
    play_all("peer", fuzz::peer::play);
}
