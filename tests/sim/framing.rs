//! Frames as bytes: what a shell does between a core's action and the other core's event.
//!
//! `encode` lays a frame out as it goes to the socket; `decode` reads it back from bytes that may
//! have been changed on the way, and lays a run of blocks out as `Event::Frame` promises: each at
//! a multiple of 4096, zeros behind it. Whatever does not parse ends the connection. Read
//! `network.rs` next.

use millrace::limits::FRAME_HEADER;
use millrace::types::{LogId, padded};
use millrace::wire::body::Body;
use millrace::wire::{block, frame};

/// A frame that arrived.
#[derive(Debug)]
pub struct Decoded {
    /// Its typed body.
    pub body: Body,
    /// Its payload, laid out if it is a run of blocks.
    pub payload: Option<Vec<u8>>,
}

/// The bytes of a frame on the wire.
pub fn encode(body: &Body, log: LogId, payload: &[u8]) -> Vec<u8> {
    let mut bytes = body.encode(0, log, payload.len());
    bytes.extend_from_slice(payload);
    bytes
}

/// Reads a frame; none if the connection must end.
pub fn decode(bytes: &[u8], log: LogId) -> Option<Decoded> {
    let (head, rest) = bytes.split_first_chunk::<FRAME_HEADER>()?;
    let header = frame::read_header(head).ok()?;
    if header.body_len + header.payload_len != rest.len() || header.log != log {
        return None;
    }
    let (body, payload) = rest.split_at(header.body_len);
    frame::check(&header, head, body).ok()?;
    let body = Body::decode(header.kind, body)?.ok()?;
    let payload = match &body {
        Body::Replicate(run) => lay_out(payload, run.count, run.padded_len),
        Body::FetchOk(run) => lay_out(payload, run.count, run.padded_len),
        _ => payload.to_vec(),
    };
    let payload = (!payload.is_empty()).then_some(payload);
    Some(Decoded { body, payload })
}

/// A run of `count` blocks as the core wants it: `room` bytes in all. A block that cannot be found,
/// because a header is broken or says more than there is, leaves zeros in its place and behind it:
/// whoever checks the run refuses it there.
fn lay_out(mut wire: &[u8], count: u32, room: u32) -> Vec<u8> {
    let mut laid_out = vec![0; room as usize];
    let mut at = 0;
    for _ in 0..count {
        let Ok(header) = block::read_header(wire) else {
            break;
        };
        let used = header.used_len as usize;
        if used > wire.len() || at + padded(used) > laid_out.len() {
            break;
        }
        let (block, rest) = wire.split_at(used);
        laid_out[at..at + used].copy_from_slice(block);
        at += padded(used);
        wire = rest;
    }
    laid_out
}
