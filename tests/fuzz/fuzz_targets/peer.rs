//! Feeds `src/peer.rs`, which says what holds for any input.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| millrace_fuzz::peer::play(bytes));
