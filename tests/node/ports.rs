//! Ports for nodes under test that nobody else gets.
//!
//! They lie below those that the kernel gives to outgoing connections and to listeners that name no
//! port: one of those would otherwise take the port of a node that is about to start or is down,
//! and a test would talk to a stranger. A port is reserved among all tests of the machine by a UDP
//! socket of the same number, which nothing else uses and which ends with the process.

use std::net::{TcpListener, UdpSocket};
use std::sync::Mutex;

const FIRST: u16 = 10_000;
const LAST: u16 = 32_000;

/// Every port that this process holds, and where it looks next.
static RESERVED: Mutex<(Vec<UdpSocket>, Option<u16>)> = Mutex::new((Vec::new(), None));

/// The first of `count` ports in a row that are this process's until it ends.
pub fn reserve(count: u16) -> u16 {
    let mut reserved = RESERVED.lock().expect("nobody panics in here");
    // Processes that start at the same time begin at different places.
    let spread = std::process::id() * 64 % u32::from(LAST - FIRST);
    let mut first = reserved.1.unwrap_or(FIRST + spread as u16);
    for _ in FIRST..LAST {
        if first + count > LAST {
            first = FIRST;
        }
        let held: Option<Vec<UdpSocket>> = (first..first + count).map(hold).collect();
        if let Some(held) = held {
            reserved.0.extend(held);
            reserved.1 = Some(first + count);
            return first;
        }
        first += 1;
    }
    panic!("no {count} free ports in a row between {FIRST} and {LAST}");
}

/// Holds a port if neither a test has it nor anybody listens there.
fn hold(port: u16) -> Option<UdpSocket> {
    let token = UdpSocket::bind(("127.0.0.1", port)).ok()?;
    TcpListener::bind(("127.0.0.1", port)).ok()?;
    Some(token)
}
