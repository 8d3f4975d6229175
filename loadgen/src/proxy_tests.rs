//! Tests of the proxy over real sockets: bytes come through, late if asked, links are told apart
//! and cut.

use millrace::types::{OriginId, ShardId};
use millrace::wire::body::{Metadata, PROTOCOL};

use super::*;

const LOG: LogId = LogId {
    origin: OriginId(7),
    shard: ShardId(2),
};

/// A node that sends back what it gets, and a proxy in front of it.
fn echo(trouble: Trouble) -> (Proxy, SocketAddr) {
    let node = TcpListener::bind("127.0.0.1:0").expect("a port");
    let target = node.local_addr().expect("bound");
    thread::spawn(move || {
        for mut stream in node.incoming().flatten() {
            thread::spawn(move || {
                let mut copy = stream.try_clone().expect("cloned");
                io::copy(&mut stream, &mut copy)
            });
        }
    });
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let listen = free.local_addr().expect("bound");
    drop(free);
    let proxy = Proxy::start(&[Route { listen, target }], trouble).expect("it listens");
    (proxy, listen)
}

fn hello(channel: Channel) -> Vec<u8> {
    let hello = Hello {
        protocol: PROTOCOL,
        cluster: OriginId(7),
        node: NodeId(1),
        target: NodeId(3),
        channel,
        cores: 1,
        core: 0,
        fingerprint: 5,
        capabilities: 0,
    };
    Body::Hello(hello).encode(0, LOG, 0)
}

fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(WAIT))?;
    stream.write_all(bytes)?;
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back)?;
    Ok(back)
}

#[test]
fn bytes_come_through_unchanged() {
    let (proxy, address) = echo(Trouble::default());
    let mut stream = TcpStream::connect(address).expect("connected");
    let ask = Body::Metadata(Metadata { protocol: PROTOCOL }).encode(1, LOG, 0);
    assert_eq!(exchange(&mut stream, &ask).expect("back"), ask);
    let many: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(exchange(&mut stream, &many).expect("back"), many);
    assert!(proxy.bytes() >= 400_000);
    assert_eq!(proxy.links(), [], "a client is no link");
}

#[test]
fn a_link_is_known_by_its_hello_and_can_be_cut() {
    let (proxy, address) = echo(Trouble::default());
    let mut streams = [Channel::Control, Channel::Data].map(|channel| {
        let mut stream = TcpStream::connect(address).expect("connected");
        let hello = hello(channel);
        assert_eq!(exchange(&mut stream, &hello).expect("back"), hello);
        stream
    });
    let links = proxy.links();
    assert_eq!(links.len(), 1, "{links:?}");
    let link = links[0];
    assert_eq!((link.from, link.to, link.log), (NodeId(1), NodeId(3), LOG));
    assert!(proxy.cut(link.id));
    assert!(exchange(&mut streams[1], b"gone").is_err());
    assert!(
        exchange(&mut streams[0], b"here").is_ok(),
        "the other goes on"
    );
    let until = Instant::now() + WAIT;
    while !proxy.links().is_empty() {
        assert!(Instant::now() < until, "it is forgotten");
        thread::sleep(LOOK);
    }
    assert!(!proxy.cut(link.id));
}

#[test]
fn nodes_are_delayed_and_clients_are_not() {
    let delay = Duration::from_millis(60);
    let (_proxy, address) = echo(Trouble {
        delay,
        ..Trouble::default()
    });
    let time = |first: &[u8]| {
        let mut stream = TcpStream::connect(address).expect("connected");
        exchange(&mut stream, first).expect("back");
        let start = Instant::now();
        exchange(&mut stream, b"there and back").expect("back");
        start.elapsed()
    };
    let ask = Body::Metadata(Metadata { protocol: PROTOCOL }).encode(1, LOG, 0);
    assert!(time(&hello(Channel::Data)) >= 2 * delay);
    // At most a scheduler's whim, never twice the delay of every exchange of ten.
    let fastest = (0..10).map(|_| time(&ask)).min().expect("ten");
    assert!(fastest < 2 * delay, "{fastest:?}");
}

#[test]
fn another_proxy_may_listen_where_one_was() {
    for _ in 0..20 {
        let (proxy, address) = echo(Trouble::default());
        TcpStream::connect(address).expect("it listens");
        drop(proxy);
        let route = Route {
            listen: address,
            target: address,
        };
        Proxy::start(&[route], Trouble::default()).expect("nobody listens there");
    }
}

#[test]
fn bytes_are_changed_if_that_is_asked_for() {
    let (proxy, address) = echo(Trouble {
        delay: Duration::ZERO,
        flip_every: 100,
    });
    let mut stream = TcpStream::connect(address).expect("connected");
    let sent = [hello(Channel::Data), vec![0; 5_000]].concat();
    let back = exchange(&mut stream, &sent).expect("an echo");
    let changed = sent.iter().zip(&back).filter(|(one, other)| one != other);
    assert!(changed.count() > 0 && proxy.flips() > 0);
}
