//! A way to a node on which the node looks like one of an older version.
//!
//! A proxy that takes every frame apart: from what the node says of itself, in `Hello`, `HelloOk`
//! and its status, the capabilities are taken away, and what others send to it is counted by type.
//! All else passes as it is. So the node behind it is a real one, which follows, votes and leads,
//! and the others must treat it as an older one. Whether it is one can be changed at any time, for
//! connections from then on. On the way to it runs of blocks can be made to take as long as one
//! likes, each on its connection. Its threads end with the test's process.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use millrace::limits::FRAME_HEADER;
use millrace::wire::body::{Body, HelloOk};
use millrace::wire::frame;
use serde_json::{Value, json};

/// What the ways of one node share.
#[derive(Default)]
pub struct Older {
    is_older: AtomicBool,
    /// How long each run of blocks for the node is held back, milliseconds.
    hold_runs_ms: AtomicU64,
    /// Frames for the node, by number.
    sent: Mutex<BTreeMap<u8, u64>>,
}

/// Who says what passes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Node,
    Others,
}

impl Older {
    /// Whether the node looks older, from the next connection on.
    pub fn set(&self, is_older: bool) {
        self.is_older.store(is_older, Ordering::SeqCst);
    }

    /// From now on each run of blocks takes so long to the node, and what comes behind it on its
    /// connection waits.
    pub fn hold_runs(&self, time: Duration) {
        let ms = time.as_millis() as u64;
        self.hold_runs_ms.store(ms, Ordering::SeqCst);
    }

    /// Frames of this number that were sent to the node so far.
    pub fn sent(&self, number: u8) -> u64 {
        let sent = self.sent.lock().expect("sound");
        sent.get(&number).copied().unwrap_or(0)
    }

    /// The way by which others reach the node, `host:port`.
    pub fn way_to(self: &Arc<Older>, node: &str) -> String {
        self.open(node, Whose::Others)
    }

    /// The way by which the node reaches another one.
    pub fn way_from(self: &Arc<Older>, other: &str) -> String {
        self.open(other, Whose::Node)
    }

    fn open(self: &Arc<Older>, target: &str, dials: Whose) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address").to_string();
        let (older, target) = (self.clone(), target.to_owned());
        thread::spawn(move || {
            for from in listener.incoming().flatten() {
                if let Ok(to) = TcpStream::connect(&target) {
                    older.clone().join(from, to, dials);
                }
            }
        });
        address
    }

    fn join(self: Arc<Older>, from: TcpStream, to: TcpStream, dials: Whose) {
        let is_older = self.is_older.load(Ordering::SeqCst);
        let answers = match dials {
            Whose::Node => Whose::Others,
            Whose::Others => Whose::Node,
        };
        let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
        for stream in [&from, &to] {
            let _ = stream.set_nodelay(true);
        }
        for (from, to, whose) in [(copy(&from), copy(&to), dials), (to, from, answers)] {
            let older = self.clone();
            thread::spawn(move || {
                let mut ends = (from, to);
                while older.pass(&mut ends, whose, is_older).is_ok() {}
                let _ = ends.0.shutdown(Shutdown::Both);
                let _ = ends.1.shutdown(Shutdown::Both);
            });
        }
    }

    /// Passes one frame on.
    fn pass(
        &self,
        (from, to): &mut (TcpStream, TcpStream),
        whose: Whose,
        is_older: bool,
    ) -> io::Result<()> {
        let mut head = [0; FRAME_HEADER];
        from.read_exact(&mut head)?;
        let header = frame::read_header(&head).expect("nodes send sound headers");
        let mut head = head.to_vec();
        let mut rest = vec![0; header.body_len + header.payload_len];
        from.read_exact(&mut rest)?;
        if whose == Whose::Others {
            let mut sent = self.sent.lock().expect("sound");
            *sent.entry(header.kind).or_default() += 1;
        }
        if whose == Whose::Others && header.payload_len > 0 {
            let ms = self.hold_runs_ms.load(Ordering::SeqCst);
            thread::sleep(Duration::from_millis(ms));
        }
        let (body, payload) = rest.split_at(header.body_len);
        let body = Body::decode(header.kind, body).and_then(Result::ok);
        let changed = body.filter(|_| is_older && whose == Whose::Node);
        if let Some((body, payload)) = changed.and_then(|body| as_older(body, payload)) {
            head = body.encode(header.correlation, header.log, payload.len());
            rest = payload;
        }
        to.write_all(&head)?;
        to.write_all(&rest)
    }
}

/// What an older version would say instead; none if the same.
fn as_older(body: Body, payload: &[u8]) -> Option<(Body, Vec<u8>)> {
    match body {
        Body::Hello(mut hello) => {
            hello.capabilities = 0;
            Some((hello.into(), Vec::new()))
        }
        Body::HelloOk(ok) => {
            let capabilities = 0;
            Some((HelloOk { capabilities, ..ok }.into(), Vec::new()))
        }
        Body::StatusOk(_) => {
            let mut status: Value = serde_json::from_slice(payload).expect("the status is JSON");
            status["capabilities"] = json!([]);
            Some((body, status.to_string().into_bytes()))
        }
        _ => None,
    }
}
