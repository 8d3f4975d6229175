//! A raw connection: bytes go out as they are, frames come in checked.
//!
//! Whatever a node sends must be a sound frame, so anything else panics here. That the node closes
//! is an answer like another. A dropped connection is reset, so that thousands of them leave no
//! trace in the kernel's tables.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;

use millrace::limits::FRAME_HEADER;
use millrace::types::LogId;
use millrace::wire::body::{Body, Error, Metadata, PROTOCOL};
use millrace::wire::code::Code;
use millrace::wire::frame;

use crate::node::PATIENCE;

/// A frame from the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub correlation: u64,
    pub log: LogId,
    pub body: Body,
    pub payload: Vec<u8>,
}

impl Answer {
    /// The code of a refusal, with its two numbers.
    pub fn refusal(&self) -> Option<(Code, [u64; 2])> {
        let Body::Error(error) = &self.body else {
            return None;
        };
        let Error {
            code,
            detail,
            detail_two,
        } = error;
        let code = Code::from_number(*code).expect("nodes send known codes");
        Some((code, [*detail, *detail_two]))
    }

    /// The refusal's code, or the name of the frame.
    pub fn name(&self) -> &'static str {
        match self.refusal() {
            Some((code, _)) => code.name(),
            None => self.body.name(),
        }
    }
}

/// The number of the question that shows whether a connection goes on.
const STILL_THERE: u64 = u64::MAX - 1;

pub struct Wire {
    stream: TcpStream,
}

impl Wire {
    pub fn open(address: &str) -> Wire {
        Wire::over(TcpStream::connect(address).expect("a node's port is open"))
    }

    /// Takes over a connection that was accepted.
    pub fn over(stream: TcpStream) -> Wire {
        stream.set_nodelay(true).expect("an open socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("open");
        stream.set_write_timeout(Some(PATIENCE)).expect("open");
        let at_once = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        // SAFETY: the descriptor is open and the option's value is a `linger` of that size.
        unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const at_once).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            );
        }
        Wire { stream }
    }

    /// Sends bytes; false if the other side takes no more of them.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    pub fn send_body(&mut self, body: impl Into<Body>, correlation: u64, log: LogId) -> bool {
        self.send(&body.into().encode(correlation, log, 0))
    }

    /// Says that nothing more comes.
    pub fn end(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The next frame; none if the node has closed.
    pub fn next(&mut self) -> Option<Answer> {
        let mut head = [0; FRAME_HEADER];
        if !self.fill(&mut head) {
            return None;
        }
        let header = frame::read_header(&head).expect("nodes send sound headers");
        let mut body = vec![0; header.body_len];
        let mut payload = vec![0; header.payload_len];
        if !self.fill(&mut body) || !self.fill(&mut payload) {
            return None;
        }
        frame::check(&header, &head, &body).expect("nodes send sound frames");
        let body = Body::decode(header.kind, &body).expect("nodes send known frames");
        Some(Answer {
            correlation: header.correlation,
            log: header.log,
            body: body.expect("nodes send sound bodies"),
            payload,
        })
    }

    fn fill(&mut self, bytes: &mut [u8]) -> bool {
        match self.stream.read_exact(bytes) {
            Ok(()) => true,
            Err(error) => {
                let late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!late, "the node neither answers nor closes");
                false
            }
        }
    }

    /// Asks whether the connection goes on.
    pub fn ask_still_there(&mut self) -> bool {
        let question = Metadata { protocol: PROTOCOL };
        self.send_body(question, STILL_THERE, LogId::default())
    }

    /// What came before the answer to `ask_still_there`, and whether that came at all.
    pub fn until_still_there(&mut self) -> (Vec<Answer>, bool) {
        let mut before = Vec::new();
        while let Some(answer) = self.next() {
            if answer.correlation == STILL_THERE {
                return (before, true);
            }
            before.push(answer);
        }
        (before, false)
    }

    /// Takes whatever comes, for as long as the other side likes.
    pub fn hold(mut self) {
        self.stream.set_read_timeout(None).expect("an open socket");
        let mut dropped = [0; 4096];
        while matches!(self.stream.read(&mut dropped), Ok(count) if count > 0) {}
    }

    /// What still comes until the node closes.
    pub fn until_closed(&mut self) -> Vec<Answer> {
        let mut before = Vec::new();
        while let Some(answer) = self.next() {
            before.push(answer);
        }
        before
    }
}
