//! Buffers lent to a connection until their payloads have left it.
//!
//! A payload on its way to a socket keeps the whole buffer that it lies in, however small it is.
//! So whoever bounds what waits for a socket counts buffers, not payloads: a few bytes of each of
//! many buffers would else pin them all. Nothing here knows which buffers they are; one that is
//! lent twice counts twice.

use std::collections::VecDeque;

/// What one connection was lent, in the order in which the payloads leave it.
#[derive(Clone, Debug, Default)]
pub struct Lent {
    loans: VecDeque<Loan>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Loan {
    /// Bytes of payload that have not left.
    left: usize,
    /// Bytes of the buffer that it holds.
    buffer: usize,
}

impl Lent {
    /// Bytes of all buffers that are out.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing is out.
    pub fn is_empty(&self) -> bool {
        self.loans.is_empty()
    }

    /// So many bytes of payload, in a buffer of `buffer` bytes, are on their way. Without payload
    /// nothing is held.
    pub fn lend(&mut self, payload: usize, buffer: usize) {
        if payload > 0 {
            self.bytes += buffer;
            self.loans.push_back(Loan {
                left: payload,
                buffer,
            });
        }
    }

    /// So many bytes of payload have left; those beyond what was lent are nobody's.
    pub fn left(&mut self, mut payload: usize) {
        while let Some(first) = self.loans.front_mut().filter(|_| payload > 0) {
            let step = payload.min(first.left);
            first.left -= step;
            payload -= step;
            if first.left == 0 {
                self.bytes -= first.buffer;
                self.loans.pop_front();
            }
        }
    }
}
