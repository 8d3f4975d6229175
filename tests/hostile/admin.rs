//! Attacks on the HTTP port: requests that break off, never end or are none, and thousands who
//! open a connection and wait. Whatever comes, an honest request is answered at once, and the node
//! keeps its descriptors for those who carry records.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::node::{Node, Place, millrace, ports};
use crate::tally::Tally;

/// Who waits at one time, and descriptors that the node may have open while they do.
const WAITING: usize = 2000;
const DESCRIPTORS: usize = 300;

/// A node by itself with an HTTP port.
pub struct Served {
    _place: Place,
    node: Node,
    address: String,
}

impl Served {
    pub fn start() -> Served {
        let place = Place::new();
        let address = format!("127.0.0.1:{}", ports::reserve(1));
        let mut command = millrace();
        command
            .args(["serve", "--config"])
            .arg(place.write_config(1, ""));
        command.env("MILLRACE_NODE_ADMIN", &address);
        let node = Node::spawn(command, &place.address());
        Served {
            _place: place,
            node,
            address,
        }
    }

    fn open(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("the port is open");
        stream
            .set_read_timeout(Some(crate::node::PATIENCE))
            .expect("an open socket");
        stream
    }

    /// Sends bytes, says that nothing follows if told so, and takes what comes until the node
    /// closes: the status, or what else happened.
    fn send(&self, bytes: &[u8], end: bool) -> String {
        let mut stream = self.open();
        // A node that has had enough closes before it has read everything.
        let _ = stream.write_all(bytes);
        if end {
            let _ = stream.shutdown(Shutdown::Write);
        }
        let mut said = Vec::new();
        if let Err(error) = stream.read_to_end(&mut said) {
            let late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            assert!(!late, "the node neither answers nor closes");
        }
        let said = String::from_utf8_lossy(&said).into_owned();
        match said.split(' ').nth(1) {
            Some(status) => status.to_owned(),
            None => "close".to_owned(),
        }
    }

    /// An honest request.
    fn works(&self) {
        let began = Instant::now();
        let request = b"GET /status HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n";
        assert_eq!(self.send(request, false), "200");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "an answer took {took:?}");
    }

    fn descriptors(&self) -> usize {
        let open = fs::read_dir(format!("/proc/{}/fd", self.node.pid()));
        open.expect("the node runs").count()
    }

    /// Requests that are none, each by itself.
    pub fn requests(&self, tally: &mut Tally) {
        let whole = b"POST /links/2/pause HTTP/1.1\r\nhost: n\r\ncontent-length: 5\r\n\r\nabcde";
        for len in 0..whole.len() {
            let outcome = self.send(&whole[..len], true);
            let allowed = ["close", "400", "403"];
            assert!(allowed.contains(&&outcome[..]), "{len} bytes: {outcome}");
            tally.count("HTTP", "cut off", &outcome);
        }
        self.works();
        let long = "a".repeat(1 << 20);
        let many = "x: y\r\n".repeat(10_000);
        let rows: [(&str, String); 6] = [
            ("long path", format!("GET /{long} HTTP/1.1\r\n\r\n")),
            (
                "long header",
                format!("GET /status HTTP/1.1\r\nx: {long}\r\n\r\n"),
            ),
            (
                "many headers",
                format!("GET /status HTTP/1.1\r\n{many}\r\n"),
            ),
            ("long method", format!("{long} / HTTP/1.1\r\n\r\n")),
            ("other version", "GET / HTTP/9.9\r\n\r\n".to_owned()),
            ("two lengths", {
                let lengths = "content-length: 1\r\ncontent-length: 2\r\n";
                format!("POST /links/2/pause HTTP/1.1\r\n{lengths}\r\n")
            }),
        ];
        for (name, bytes) in rows {
            let outcome = self.send(bytes.as_bytes(), true);
            let refused = outcome == "close" || outcome.starts_with('4');
            assert!(refused, "{name}: {outcome}");
            tally.count("HTTP", name, &outcome);
        }
        self.works();
        for seed in 0..200_u32 {
            let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
            let mut byte = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            let bytes: Vec<u8> = (0..1000).map(|_| byte()).collect();
            let outcome = self.send(&bytes, true);
            let refused = ["close", "400"].contains(&&outcome[..]);
            assert!(refused, "binary {seed}: {outcome}");
            tally.count("HTTP", "binary", &outcome);
        }
        self.works();
    }

    /// A request that is not allowed here is refused before its body is awaited.
    pub fn orders(&self, tally: &mut Tally) {
        let head = "POST /links/2/pause HTTP/1.1\r\nhost: n\r\ncontent-length: 99999999999\r\n\r\n";
        let began = Instant::now();
        let outcome = self.send(head.as_bytes(), false);
        assert_eq!(outcome, "403");
        assert!(
            began.elapsed() < crate::node::PATIENCE / 2,
            "it waits for a body"
        );
        tally.count("HTTP", "endless body", &outcome);
    }

    /// Thousands who begin a request and wait, and one who sends a byte now and then.
    pub fn waiters(&self, tally: &mut Tally) {
        let mut slow = self.open();
        let before = self.descriptors();
        let mut waiting = Vec::with_capacity(WAITING);
        for number in 0..WAITING {
            let mut stream = self.open();
            let _ = stream.write_all(b"GET /status HTTP/1.1\r\nx: ");
            waiting.push(stream);
            if number % 500 == 499 {
                self.works();
            }
        }
        self.works();
        let open = self.descriptors();
        assert!(
            open < before + DESCRIPTORS,
            "{open} descriptors, {before} before"
        );
        tally.count("HTTP", "waiting", "bounded");
        drop(waiting);
        let began = Instant::now();
        drop(slow);
        slow = self.open();
        slow.set_read_timeout(Some(Duration::from_millis(200)))
            .expect("an open socket");
        let _ = slow.write_all(b"GET /status HTTP/1.1\r\nx: ");
        loop {
            let ended = match slow.read(&mut [0; 4096]) {
                Ok(count) => count == 0,
                Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            };
            if ended || slow.write_all(b"y").is_err() {
                break;
            }
            assert!(
                began.elapsed() < crate::node::PATIENCE,
                "a slow request lives for ever"
            );
        }
        tally.count("HTTP", "byte by byte", "close");
        self.works();
    }

    pub fn stop(self) {
        assert!(self.node.stop().success());
    }
}
