//! Tests of the typed bodies: golden bytes of every frame, round trips, foreign bytes.

use super::*;
use crate::limits::{EPOCH_MAX, FRAME_BODY, MAX_NODES, MAX_SHARDS, POSITION_MAX};
use crate::types::ShardId;
use crate::wire::golden;
use proptest::prelude::*;
use std::collections::BTreeSet;

const GOLDEN: &str = include_str!("../../tests/data/wire/frames.txt");

const B1: BlockNo = BlockNo(0x2122_2324_2526_2728);
const B2: BlockNo = BlockNo(0x2a2b_2c2d_2e2f_2021);
const B3: BlockNo = BlockNo(0x3132_3334_3536_3738);
const B4: BlockNo = BlockNo(0x3a3b_3c3d_3e3f_3031);
const E1: Epoch = Epoch(0x5152_5354);
const E2: Epoch = Epoch(0x4142_4344);
const NODE: NodeId = NodeId(0xb1b2_b3b4);
const OFFSET: Offset = Offset(0xe1e2_e3e4_e5e6_e7e8);
const U64: u64 = 0xe1e2_e3e4_e5e6_e7e8;
const C: u32 = 0xc1c2_c3c4;
const D: u32 = 0xd1d2_d3d4;
const LIMITS: CreditLimits = CreditLimits {
    records: 0x8182_8384_8586_8788,
    bytes: 0x9192_9394_9596_9798,
};

/// The bodies of the golden frames, in their order.
fn golden_bodies() -> Vec<Body> {
    [
        node_bodies(),
        block_bodies(),
        heartbeat_bodies(),
        client_bodies(),
        later_peer_bodies(),
    ]
    .concat()
}

fn node_bodies() -> Vec<Body> {
    vec![
        Hello {
            protocol: 0x0102,
            cluster: OriginId(0x6162_6364),
            node: NODE,
            target: NodeId(C),
            channel: Channel::Control,
            cores: 0x0304,
            core: 0x0506,
            fingerprint: D,
            capabilities: U64,
        }
        .into(),
        HelloOk {
            protocol: 0x0102,
            node: NODE,
            cores: 0x0304,
            capabilities: U64,
        }
        .into(),
        Where {
            epoch: E1,
            log_end: B1,
            founding: 1,
            last_epoch: E2,
            won: 1,
        }
        .into(),
        Position {
            promised: E1,
            last_epoch: E2,
            last_crc: 0x0a0b_0c0d,
            next: B1,
            durable_end: B2,
            committed_end: B3,
            log_start: B4,
            memory: ReplicaMemory::Lost,
            hears_leader: 1,
            limits: LIMITS,
        }
        .into(),
    ]
}

fn later_peer_bodies() -> Vec<Body> {
    let bytes = |first: u8| std::array::from_fn(|index| first + index as u8);
    let (nonce, proof) = (bytes(0x40), bytes(0xa0));
    vec![
        Challenge { nonce }.into(),
        Proof { nonce, proof }.into(),
        ProofOk { proof }.into(),
        Trusted {}.into(),
        TakeOver { epoch: E1 }.into(),
    ]
}

fn block_bodies() -> Vec<Body> {
    vec![
        Replicate {
            epoch: E1,
            first: B1,
            prev_epoch: E2,
            prev_crc: 0x0a0b_0c0d,
            committed_end: B2,
            log_start: B3,
            count: C,
            records: 0xf5f6_f7f8,
            padded_len: D,
        }
        .into(),
        ReplicateOk {
            epoch: E1,
            durable_end: B1,
            durable_offset: OFFSET,
            memory: ReplicaMemory::Blank,
            limits: LIMITS,
        }
        .into(),
        Nack {
            code: 0x0102,
            first: B1,
            next: B2,
            promised: E1,
            hint_epoch: E2,
            hint_first: B3,
            limits: LIMITS,
        }
        .into(),
        Limits { limits: LIMITS }.into(),
        Pause {
            reason: PauseReason::HighLoad,
        }
        .into(),
        Resume { next: B1 }.into(),
        Fetch {
            epoch: E1,
            first: B1,
            prev_epoch: E2,
            max_bytes: C,
        }
        .into(),
        FetchOk {
            epoch: E1,
            first: B1,
            prev_epoch: E2,
            committed_end: B2,
            count: C,
            padded_len: D,
        }
        .into(),
    ]
}

fn heartbeat_bodies() -> Vec<Body> {
    vec![
        Ping {
            epoch: E1,
            committed_end: B1,
            log_start: B2,
            log_end: B3,
            sent_at_us: U64,
        }
        .into(),
        Pong {
            promised: E1,
            durable_end: B1,
            sent_at_us: U64,
        }
        .into(),
        Sealed {
            epoch: E1,
            bytes: U64,
        }
        .into(),
    ]
}

fn client_bodies() -> Vec<Body> {
    let address = |node, address: &str, cores| NodeAddress {
        node,
        address: address.to_owned(),
        cores,
    };
    vec![
        Metadata { protocol: 0x0102 }.into(),
        MetadataOk {
            protocol: 0x0102,
            node: NODE,
            cluster: OriginId(0x6162_6364),
            default_level: 3,
            max_batch_bytes: C,
            max_batch_records: C + 1,
            nodes: vec![
                address(NODE, "n1:7000", 0x0304),
                address(NodeId(NODE.0 + 1), "", 0),
            ],
            leaders: vec![NODE, NodeId(0), NodeId(NODE.0 + 1)],
            epochs: vec![E1, Epoch(0), E2],
            origin: OriginId(0x4142_4344),
            origins: vec![OriginId(0x4142_4344), OriginId(0x4142_4345)],
            default_read_level: 2,
        }
        .into(),
        Append {
            level: 2,
            timeout_ms: C,
        }
        .into(),
        AppendOk {
            base_offset: OFFSET,
            block: B1,
            epoch: E1,
        }
        .into(),
        Read {
            offset: OFFSET,
            max_bytes: C,
            wait_ms: D,
            level: 2,
            last_epoch: E1,
        }
        .into(),
        ReadOk {
            next: OFFSET,
            high_watermark: Offset(0xf1f2_f3f4_f5f6_f7f8),
            log_start: Offset(B1.0),
            last_epoch: E2,
        }
        .into(),
        Find { timestamp: U64 }.into(),
        FindOk { offset: OFFSET }.into(),
        Status {}.into(),
        StatusOk {}.into(),
        Error {
            code: 0x0102,
            detail: U64,
            detail_two: 0xf1f2_f3f4_f5f6_f7f8,
        }
        .into(),
    ]
}

/// Number, name and bytes (header and body) of each golden frame.
fn golden_frames() -> Vec<(u8, &'static str, Vec<u8>)> {
    golden::lines(GOLDEN)
        .map(|words| {
            let number = u8::from_str_radix(&words[0][2..], 16).expect("a number");
            (number, words[1], golden::unhex(&words[2..]))
        })
        .collect()
}

fn decode(kind: u8, bytes: &[u8]) -> Option<Body> {
    Body::decode(kind, bytes).expect("a known type").ok()
}

/// S-187: the first frames of either side, Hello and Metadata, begin with the protocol version.
///
/// H-5
#[test]
fn golden_bytes_are_written_and_read() {
    let bodies = golden_bodies();
    let frames = golden_frames();
    assert_eq!(bodies.len(), frames.len());
    for (body, (number, name, bytes)) in bodies.iter().zip(&frames) {
        assert_eq!((body.kind(), body.name()), (*number, *name));
        assert_eq!(decode(*number, &bytes[FRAME_HEADER..]).as_ref(), Some(body));
        let log = LogId {
            origin: OriginId(0x6162_6364),
            shard: ShardId(0x7172),
        };
        let head = bytes.first_chunk().expect("a header");
        let payload = frame::read_header(head).expect("a header").payload_len;
        let written = body.encode(0x7172_7374_7576_7778, log, payload);
        assert_eq!(&written, bytes, "{name}");
        if ["Hello", "HelloOk", "Metadata", "MetadataOk"].contains(name) {
            assert_eq!(bytes[FRAME_HEADER..][..2], 0x0102_u16.to_le_bytes());
        }
    }
    let all: Vec<(u8, &str)> = frames.iter().map(|frame| (frame.0, frame.1)).collect();
    assert_eq!(all, TYPES, "every frame is golden");
}

#[test]
fn a_flipped_golden_bit_shows() {
    for (number, _, bytes) in golden_frames() {
        let body = &bytes[FRAME_HEADER..];
        let value = decode(number, body).expect("a body");
        golden::assert_flips_show(body, &value, |bytes| decode(number, bytes));
    }
}

#[test]
fn cut_off_and_trailing_bytes_are_refused() {
    for (number, name, bytes) in golden_frames() {
        let body = &bytes[FRAME_HEADER..];
        for len in 0..body.len() {
            assert_eq!(decode(number, &body[..len]), None, "{name} of {len} bytes");
        }
        let longer = [body, &[0]].concat();
        assert_eq!(decode(number, &longer), None, "{name} and one byte");
    }
}

/// S-43: numbers of types are unique, and a number that no type has is nobody's body.
#[test]
fn unknown_types_are_told_from_bad_bodies() {
    let numbers: BTreeSet<u8> = TYPES.iter().map(|(number, _)| *number).collect();
    let names: BTreeSet<&str> = TYPES.iter().map(|(_, name)| *name).collect();
    assert_eq!((numbers.len(), names.len()), (TYPES.len(), TYPES.len()));
    assert!(!numbers.contains(&frame::UNKNOWN_KIND));
    for kind in 0..=u8::MAX {
        let known = Body::decode(kind, &[0; 3]).is_some();
        assert_eq!(known, numbers.contains(&kind), "{kind}");
    }
}

#[test]
fn the_table_lists_every_type() {
    let listed: Vec<(u8, &str)> = include_str!("body.rs")
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("//! | 0x")?.split(" | ");
            let number = u8::from_str_radix(cells.next()?, 16).ok()?;
            Some((number, cells.next()?))
        })
        .collect();
    assert_eq!(listed, TYPES);
}

#[test]
fn numbers_that_could_harm_their_reader_are_refused() {
    let resume = |next: u64| decode(0x0A, &next.to_le_bytes());
    assert!(resume(POSITION_MAX).is_some());
    assert_eq!(resume(POSITION_MAX + 1), None);
    let promised = |epoch: u32| decode(0x0E, &[&epoch.to_le_bytes()[..], &[0; 16]].concat());
    assert!(promised(EPOCH_MAX).is_some());
    assert_eq!(promised(EPOCH_MAX + 1), None);
    for reason in [0, 4, 0xff] {
        assert_eq!(decode(0x09, &[reason]), None, "no such reason");
    }
}

/// A body that claims 65,535 addresses, or ends inside a letter, is refused.
#[test]
fn lengths_and_texts_that_lie_are_refused() {
    let fixed = [0; 19];
    let claims = [&fixed[..], &[0xff; 2], &[0; 100]].concat();
    assert_eq!(decode(0x11, &claims), None);
    let text = |text: &[u8]| {
        let address = [&[1, 0, 7, 0, 0, 0, text.len() as u8, 0], text, &[0; 2]].concat();
        decode(0x11, &[&fixed[..], &address, &[0; 11]].concat())
    };
    assert!(text("n\u{e9}".as_bytes()).is_some());
    assert_eq!(text(&[b'n', 0xc3]), None);
}

/// The largest cluster there may be fits into one body.
#[test]
fn the_largest_metadata_fits() {
    let body = MetadataOk {
        protocol: PROTOCOL,
        node: NODE,
        cluster: OriginId(1),
        default_level: 3,
        max_batch_bytes: C,
        max_batch_records: C + 1,
        nodes: vec![
            NodeAddress {
                node: NODE,
                address: "x".repeat(253 + 6),
                cores: 1,
            };
            MAX_NODES
        ],
        leaders: vec![NODE; MAX_SHARDS],
        epochs: vec![Epoch(1); MAX_SHARDS],
        origin: OriginId(1),
        origins: vec![OriginId(1); MAX_NODES],
        default_read_level: 2,
    };
    let bytes = Body::from(body.clone()).encode(1, LogId::default(), 0);
    assert!(bytes.len() - FRAME_HEADER <= FRAME_BODY);
    assert_eq!(decode(0x11, &bytes[FRAME_HEADER..]), Some(body.into()));
}

#[test]
#[should_panic(expected = "bounded")]
fn a_text_that_does_not_fit_is_never_cut_short() {
    "x".repeat(1 << 16).put(&mut Vec::new());
}

/// Bytes of the body of each golden frame.
fn any_golden() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let bodies: Vec<_> = golden_frames()
        .into_iter()
        .map(|(number, _, bytes)| (number, bytes[FRAME_HEADER..].to_vec()))
        .collect();
    prop::sample::select(bodies)
}

fn addresses() -> impl Strategy<Value = Vec<NodeAddress>> {
    let one = (any::<u32>(), ".{0,20}", any::<u16>());
    let one = one.prop_map(|(node, address, cores)| NodeAddress {
        node: NodeId(node),
        address,
        cores,
    });
    prop::collection::vec(one, 0..MAX_NODES)
}

fn round_trip(body: &Body) -> Option<Body> {
    let bytes = body.encode(7, LogId::default(), 0);
    decode(body.kind(), &bytes[FRAME_HEADER..])
}

proptest! {
    /// Any bytes in the place of any fields: what is read writes the same bytes, and reads again.
    #[test]
    fn bodies_round_trip(
        (kind, golden) in any_golden(),
        noise in prop::collection::vec(any::<u8>(), 0..80),
        at in 0..60_usize,
    ) {
        let mut bytes = golden;
        for (byte, with) in bytes.iter_mut().skip(at).zip(noise) {
            *byte = with;
        }
        if let Some(body) = decode(kind, &bytes) {
            prop_assert_eq!(&body.encode(7, LogId::default(), 0)[FRAME_HEADER..], &bytes[..]);
            prop_assert_eq!(round_trip(&body), Some(body));
        }
    }

    #[test]
    fn metadata_round_trips(
        nodes in addresses(),
        leaders in prop::collection::vec(any::<u32>(), 0..MAX_SHARDS),
        numbers in any::<(u16, u32, u32, u8, u32)>(),
    ) {
        let body = Body::from(MetadataOk {
            protocol: numbers.0,
            node: NodeId(numbers.1),
            cluster: OriginId(numbers.2),
            default_level: numbers.3,
            max_batch_bytes: numbers.4,
            max_batch_records: numbers.4,
            nodes,
            epochs: leaders.iter().map(|number| Epoch(number >> 1)).collect(),
            origins: leaders.iter().copied().map(OriginId).collect(),
            leaders: leaders.into_iter().map(NodeId).collect(),
            origin: OriginId(numbers.4),
            default_read_level: numbers.3,
        });
        prop_assert_eq!(round_trip(&body), Some(body));
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(
        kind: u8,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Some(Ok(body)) = Body::decode(kind, &bytes) {
            prop_assert_eq!(&body.encode(7, LogId::default(), 0)[FRAME_HEADER..], &bytes[..]);
        }
    }
}
