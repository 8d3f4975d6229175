//! What each fuzz target does with an input: any bytes at all, and nothing may break.
//!
//! A target takes foreign bytes as they are, and again with their lengths and CRCs mended
//! (`mend.rs`), so that what lies behind the checks is reached. It asserts more than that nothing
//! panics: what was taken says the same when it is written again, and what was promised is kept.
//! `cargo fuzz` drives these functions (`fuzz_targets`), and `tests/fuzz_seeds.rs` plays the
//! corpora through them on stable. Read `input.rs` next.

#![allow(dead_code)]

pub mod block;
pub mod client;
#[cfg(feature = "node")]
pub mod config;
pub mod files;
pub mod frame;
pub mod peer;

mod input;
mod logs;
mod mend;
mod peer_frames;
mod sim;
