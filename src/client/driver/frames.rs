//! Bytes of a connection, cut into frames.
//!
//! Nothing is set aside for what a header says before its CRC was tested over header and body.

use crate::client::Event;
use crate::limits::FRAME_HEADER;
use crate::types::ConnectionId;
use crate::wire::body::Body;
use crate::wire::frame;
use bytes::{Buf, Bytes, BytesMut};

/// Bytes asked of a socket at once.
pub(super) const READ_BYTES: usize = 64 << 10;

/// A whole frame: correlation, body, payload.
pub(super) type Frame = (u64, Body, Bytes);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: BytesMut,
    /// A frame whose header and body were tested and whose payload is not there yet.
    begun: Option<(u64, Body, usize)>,
}

impl Frames {
    /// More bytes came.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, if it is there. An error ends the connection.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, &'static str> {
        if self.begun.is_none() {
            self.begun = self.begin()?;
        }
        let Some((_, _, payload_len)) = self.begun else {
            return Ok(None);
        };
        if self.bytes.len() < payload_len {
            self.bytes.reserve(payload_len - self.bytes.len());
            return Ok(None);
        }
        let payload = self.bytes.split_to(payload_len).freeze();
        let begun = self.begun.take();
        Ok(begun.map(|(correlation, body, _)| (correlation, body, payload)))
    }

    /// Tells of every whole frame of a connection. An error ends the connection.
    pub(super) fn deliver(
        &mut self,
        connection: ConnectionId,
        mut tell: impl FnMut(Event),
    ) -> Result<(), &'static str> {
        while let Some((correlation, body, payload)) = self.next()? {
            tell(Event::Frame {
                connection,
                correlation,
                body,
                payload,
            });
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<Option<(u64, Body, usize)>, &'static str> {
        let Some(head) = self.bytes.first_chunk::<FRAME_HEADER>() else {
            return Ok(None);
        };
        if head.starts_with(b"HTTP/") {
            return Err(frame::IS_HTTP);
        }
        let header = frame::read_header(head).map_err(|_| "a frame that is too long")?;
        let Some(body) = self.bytes[FRAME_HEADER..].get(..header.body_len) else {
            return Ok(None);
        };
        let fits = frame::check(&header, head, body);
        fits.map_err(|_| "a frame whose CRC does not fit")?;
        let body = match Body::decode(header.kind, body) {
            Some(Ok(body)) => body,
            _ => return Err("a frame of an unknown type"),
        };
        self.bytes.advance(FRAME_HEADER + header.body_len);
        Ok(Some((header.correlation, body, header.payload_len)))
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
