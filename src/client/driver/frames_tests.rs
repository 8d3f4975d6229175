//! Frames out of bytes that come in pieces.

use super::*;
use crate::types::LogId;
use crate::wire::body::{Status, StatusOk};

fn two_frames() -> Vec<u8> {
    let mut bytes = Body::from(StatusOk {}).encode(7, LogId::default(), 5);
    bytes.extend_from_slice(b"hello");
    bytes.extend(Body::from(Status {}).encode(8, LogId::default(), 0));
    bytes
}

#[test]
fn frames_come_out_whatever_the_pieces() {
    let bytes = two_frames();
    for piece in 1..=bytes.len() {
        let (mut frames, mut found) = (Frames::default(), Vec::new());
        for part in bytes.chunks(piece) {
            frames.feed(part);
            while let Some(frame) = frames.next().unwrap() {
                found.push(frame);
            }
        }
        let first = (7, StatusOk {}.into(), Bytes::from_static(b"hello"));
        assert_eq!(found, [first, (8, Status {}.into(), Bytes::new())]);
    }
}

#[test]
fn a_flipped_bit_ends_the_connection() {
    // Header and body of the first frame, without its length and its payload.
    for at in 4..FRAME_HEADER {
        let mut bytes = two_frames();
        bytes[at] ^= 1;
        let mut frames = Frames::default();
        frames.feed(&bytes);
        assert!(frames.next().is_err(), "byte {at}");
    }
}
