//! A real node against frames that no client of this version sends: each is answered as the
//! protocol says.
//!
//! Raw sockets of std and the formats of `wire`. What may not end a connection must not; what ends
//! it is answered first.

mod node;

use millrace::types::{LogId, NodeId, OriginId, ShardId};
use millrace::wire::body::{Append, Body, Channel, Error, Hello, Metadata, PROTOCOL, Pong, Status};
use millrace::wire::code::Code;
use millrace::wire::frame;
use node::{Node, PATIENCE, Place};
use std::io::{Read, Write};
use std::net::TcpStream;

const LOG: LogId = LogId {
    origin: OriginId(7),
    shard: ShardId(0),
};

struct Wire(TcpStream);

impl Wire {
    fn open(node: &Node) -> Wire {
        let stream = TcpStream::connect(&node.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Wire(stream)
    }

    fn send(&mut self, body: impl Into<Body>, correlation: u64, payload: &[u8]) {
        let head = body.into().encode(correlation, LOG, payload.len());
        self.0.write_all(&[&head, payload].concat()).unwrap();
    }

    fn receive(&mut self) -> (u64, Body) {
        let mut head = [0; 32];
        self.0.read_exact(&mut head).unwrap();
        let header = frame::read_header(&head).unwrap();
        let mut body = vec![0; header.body_len];
        self.0.read_exact(&mut body).unwrap();
        frame::check(&header, &head, &body).unwrap();
        let mut payload = vec![0; header.payload_len];
        self.0.read_exact(&mut payload).unwrap();
        let body = Body::decode(header.kind, &body).unwrap().unwrap();
        (header.correlation, body)
    }

    fn refused(&mut self) -> (u64, Code, [u64; 2]) {
        match self.receive() {
            (
                correlation,
                Body::Error(Error {
                    code,
                    detail,
                    detail_two,
                }),
            ) => (
                correlation,
                Code::from_number(code).unwrap(),
                [detail, detail_two],
            ),
            (_, other) => panic!("not refused: {other:?}"),
        }
    }

    fn is_alive(&mut self) -> bool {
        self.send(Metadata { protocol: PROTOCOL }, 99, &[]);
        matches!(self.receive(), (99, Body::MetadataOk(_)))
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0))
    }
}

fn with_node(test: impl FnOnce(&Node)) {
    let place = Place::new();
    let node = Node::start(&place.write_config(1, ""), &place.address());
    test(&node);
    // Whatever was sent, the node is well.
    assert!(Wire::open(&node).is_alive());
    assert!(node.stop().success());
}

#[test]
fn bytes_that_are_no_frame_are_answered_and_end_the_connection() {
    with_node(|node| {
        let mut wire = Wire::open(node);
        let mut broken = Body::from(Status {}).encode(1, LOG, 0);
        broken[13] ^= 1;
        wire.0.write_all(&broken).unwrap();
        assert_eq!(wire.refused().1, Code::BadFrame);
        assert!(wire.is_closed());

        let mut wire = Wire::open(node);
        let mut long = Body::from(Status {}).encode(1, LOG, 0);
        long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        wire.0.write_all(&long).unwrap();
        wire.0.write_all(&[7; 100_000]).unwrap();
        assert_eq!(wire.refused().1, Code::BadFrame);
        assert!(wire.is_closed());
    });
}

/// S-43, H-33
#[test]
fn an_unknown_frame_is_skipped_and_the_connection_goes_on() {
    with_node(|node| {
        let mut wire = Wire::open(node);
        let mut head = vec![0; 32 + 5];
        frame::write_header(&mut head, 0x7e, 3, LOG, 100_000);
        wire.0.write_all(&head).unwrap();
        wire.0.write_all(&[1; 100_000]).unwrap();
        assert_eq!(wire.refused(), (3, Code::Unsupported, [0, 0]));
        assert!(wire.is_alive());
        let status = node.status();
        assert_eq!(status["counters"]["unknown_frames"], 1);
    });
}

/// S-42
#[test]
fn a_frame_of_the_other_direction_is_answered_and_ends_the_connection() {
    with_node(|node| {
        let mut wire = Wire::open(node);
        let pong = Pong {
            promised: millrace::types::Epoch(1),
            durable_end: millrace::types::BlockNo(1),
            sent_at_us: 0,
        };
        wire.send(pong, 5, &[]);
        assert_eq!(wire.refused(), (5, Code::WrongDirection, [0, 0]));
        assert!(wire.is_closed());
    });
}

/// S-18: an unknown level is refused before anything is appended.
#[test]
fn a_refused_append_leaves_the_connection_as_it_was() {
    with_node(|node| {
        let mut wire = Wire::open(node);
        let append = |level| Append {
            level,
            timeout_ms: 1000,
        };
        wire.send(append(9), 1, &[0; 500]);
        assert_eq!(wire.refused(), (1, Code::UnknownLevel, [9, 0]));
        wire.send(append(3), 2, &vec![0; 3 << 20]);
        let (number, code, [bytes, most]) = wire.refused();
        assert_eq!((number, code, bytes), (2, Code::TooLarge, 3 << 20));
        assert!(most < 3 << 20);
        wire.send(append(3), 3, &[0; 500]);
        assert_eq!(wire.refused().1, Code::BadBatch);
        let head = Body::from(append(3)).encode(
            4,
            LogId {
                shard: ShardId(9),
                ..LOG
            },
            1000,
        );
        wire.0.write_all(&head).unwrap();
        wire.0.write_all(&[0; 1000]).unwrap();
        assert_eq!(wire.refused().1, Code::UnknownLog);
        assert!(wire.is_alive());
    });
}

/// S-187
#[test]
fn another_version_of_the_protocol_is_refused_with_both_numbers() {
    with_node(|node| {
        let mut wire = Wire::open(node);
        wire.send(
            Metadata {
                protocol: PROTOCOL + 1,
            },
            1,
            &[],
        );
        let both = [u64::from(PROTOCOL), u64::from(PROTOCOL) + 1];
        assert_eq!(wire.refused(), (1, Code::WrongVersion, both));
    });
}

/// S-187 S-45
#[test]
fn a_hello_that_does_not_fit_is_refused_with_both_values() {
    let hello = Hello {
        protocol: PROTOCOL,
        cluster: OriginId(7),
        node: NodeId(2),
        target: NodeId(1),
        channel: Channel::Control,
        cores: 1,
        core: 0,
        fingerprint: 0,
        capabilities: 0,
    };
    let version = u64::from(PROTOCOL);
    let cases = [
        (
            Hello {
                protocol: PROTOCOL + 1,
                ..hello.clone()
            },
            (Code::WrongVersion, [version, version + 1]),
        ),
        (
            Hello {
                cluster: OriginId(8),
                ..hello.clone()
            },
            (Code::WrongCluster, [7, 8]),
        ),
        (
            Hello {
                target: NodeId(5),
                ..hello.clone()
            },
            (Code::WrongNode, [1, 5]),
        ),
        // Node 2 is none of this cluster's.
        (hello, (Code::WrongNode, [1, 1])),
    ];
    with_node(|node| {
        for (hello, (code, values)) in cases {
            let mut wire = Wire::open(node);
            wire.send(hello, 0, &[]);
            assert_eq!(wire.refused(), (0, code, values));
            assert!(wire.is_closed());
        }
        assert_eq!(node.status()["counters"]["refused_peers"], 4);
    });
}
