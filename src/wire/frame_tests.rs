//! Tests of the frame header: golden bytes, damage, unknown types and lengths that lie.

use super::*;
use crate::wire::body::Body;
use crate::wire::golden;
use proptest::prelude::*;

const GOLDEN: &str = include_str!("../../tests/data/wire/frame.txt");
const FRAMES: &str = include_str!("../../tests/data/wire/frames.txt");

fn golden_log() -> LogId {
    LogId {
        origin: OriginId(0x6162_6364),
        shard: ShardId(0x7172),
    }
}

/// Header and body of the golden Replicate frame.
fn golden_frame() -> Vec<u8> {
    let line = golden::lines(FRAMES).find(|words| words[1] == "Replicate");
    golden::unhex(&line.expect("a Replicate")[2..])
}

/// What a connection does with what it has read of a frame: header first, then the typed body.
fn receive(bytes: &[u8]) -> Option<(FrameHeader, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<FRAME_HEADER>()?;
    let header = read_header(head).ok()?;
    let body = rest.get(..header.body_len)?;
    check(&header, head, body).ok()?;
    Some((header, body))
}

/// A header of arbitrary content with a CRC that fits it and `body`.
fn sealed(mut head: [u8; FRAME_HEADER], body: &[u8]) -> Vec<u8> {
    head[HEADER_CRC..HEADER_CRC + 4].fill(0);
    let mut bytes = [&head[..], body].concat();
    let crc = crc32fast::hash(&bytes);
    put(&mut bytes, HEADER_CRC, &crc.to_le_bytes());
    bytes
}

#[test]
fn golden_bytes_are_written_and_read() {
    golden::assert_layout(include_str!("frame.rs"), GOLDEN);
    let golden = golden_frame();
    assert_eq!(golden[..FRAME_HEADER], golden::bytes(GOLDEN));
    let mut written = golden.clone();
    written[..FRAME_HEADER].fill(0xee);
    write_header(
        &mut written,
        5,
        0x7172_7374_7576_7778,
        golden_log(),
        0xabc00,
    );
    assert_eq!(written, golden);

    let (header, body) = receive(&golden).expect("a frame");
    assert_eq!((header.kind, header.version), (5, 1));
    assert_eq!(header.correlation, 0x7172_7374_7576_7778);
    assert_eq!(header.log, golden_log());
    assert_eq!((header.body_len, header.payload_len), (48, 0xabc00));
    assert_eq!(body, &golden[FRAME_HEADER..]);
}

#[test]
fn damaged_frames_are_refused() {
    let golden = golden_frame();
    golden::assert_damage_is_refused(&golden, |bytes| receive(bytes).is_some());
    let value = receive(&golden).expect("a frame").0;
    golden::assert_flips_show(&golden, &value, |bytes| Some(receive(bytes)?.0));
}

/// A frame never becomes one of another kind, known or not.
#[test]
fn kind_flip_refused() {
    let golden = golden_frame();
    for kind in (0..=u8::MAX).filter(|kind| *kind != golden[4]) {
        let mut bytes = golden.clone();
        bytes[4] = kind;
        assert_eq!(receive(&bytes), None, "{kind}");
    }
}

#[test]
fn lengths_that_lie_are_refused() {
    for (what, len, body_len) in [
        ("a body longer than the frame", 9, 10),
        ("a body above its limit", 20_000, FRAME_BODY + 1),
        ("a payload above its limit", FRAME_PAYLOAD + 11, 10),
        ("the longest frame", u32::MAX as usize, 0),
    ] {
        let mut head = [0; FRAME_HEADER];
        put(&mut head, 0, &(len as u32).to_le_bytes());
        put(&mut head, 26, &(body_len as u16).to_le_bytes());
        assert_eq!(
            read_header(&head).err(),
            Some(FrameError::TooLong),
            "{what}"
        );
    }
    let mut head = [0; FRAME_HEADER];
    put(
        &mut head,
        0,
        &((FRAME_BODY + FRAME_PAYLOAD) as u32).to_le_bytes(),
    );
    put(&mut head, 26, &(FRAME_BODY as u16).to_le_bytes());
    let header = read_header(&head).expect("the longest frame there may be");
    assert_eq!(
        (header.body_len, header.payload_len),
        (FRAME_BODY, FRAME_PAYLOAD)
    );
}

/// S-43, H-33: frames of a type, version or flags that are not known here are skipped by their
/// length,
/// and what follows is read.
#[test]
fn unknown_frames_are_skipped_by_length() {
    let golden = golden_frame();
    let head: [u8; FRAME_HEADER] = *golden.first_chunk().expect("a header");
    for (what, at, with) in [
        ("type", 4, 0xee),
        ("version", 5, 2),
        ("flag", 6, 1),
        ("flag", 7, 0x80),
        ("reserved byte", 28, 1),
        ("reserved byte", 31, 1),
    ] {
        let mut head = head;
        head[at] = with;
        put(&mut head, 0, &53_u32.to_le_bytes());
        let unknown = sealed(head, &golden[FRAME_HEADER..]);
        let stream = [&unknown[..], b"bytes", &golden].concat();

        let (header, body) = receive(&stream).expect("a sound frame");
        assert_eq!(header.correlation, 0x7172_7374_7576_7778, "for the answer");
        assert!(Body::decode(header.kind, body).is_none(), "{what}");
        let next = &stream[FRAME_HEADER + header.body_len + header.payload_len..];
        let (header, body) = receive(next).expect("the frame behind it");
        let body = Body::decode(header.kind, body);
        assert!(matches!(body, Some(Ok(Body::Replicate(_)))), "{what}");
    }
}

/// zeros and ones are no frame.
#[test]
fn blank_bytes_are_no_frame() {
    let zeros = read_header(&[0; FRAME_HEADER]).expect("lengths of 0");
    assert_eq!(check(&zeros, &[0; FRAME_HEADER], &[]), Err(FrameError::Crc));
    assert_eq!(read_header(&[0xff; FRAME_HEADER]), Err(FrameError::TooLong));
}

#[test]
#[should_panic(expected = "payloads are bounded")]
fn a_frame_that_no_reader_takes_is_not_written() {
    write_header(
        &mut [0; FRAME_HEADER],
        5,
        0,
        golden_log(),
        FRAME_PAYLOAD + 1,
    );
}

proptest! {
    #[test]
    fn headers_round_trip(
        kind: u8,
        correlation: u64,
        log in any::<(u32, u16)>(),
        payload in 0..=FRAME_PAYLOAD,
        body in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let log = LogId { origin: OriginId(log.0), shard: ShardId(log.1) };
        let mut bytes = [&[0xee; FRAME_HEADER], &body[..]].concat();
        write_header(&mut bytes, kind, correlation, log, payload);
        let (header, found) = receive(&bytes).expect("a frame");
        prop_assert_eq!((header.kind, header.version), (kind, VERSION));
        prop_assert_eq!((header.correlation, header.log), (correlation, log));
        prop_assert_eq!(header.payload_len, payload);
        prop_assert_eq!(found, &body[..]);
    }

    #[test]
    fn arbitrary_bytes_are_no_frame(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(receive(&bytes).is_none());
    }

    /// Behind a good CRC any header has lengths within the limits or is refused.
    #[test]
    fn sealed_arbitrary_headers_do_no_harm(
        mut head: [u8; FRAME_HEADER],
        body in prop::collection::vec(any::<u8>(), 0..100),
        payload in 0..2 * FRAME_PAYLOAD,
    ) {
        put(&mut head, 0, &((body.len() + payload) as u32).to_le_bytes());
        put(&mut head, 26, &(body.len() as u16).to_le_bytes());
        let bytes = sealed(head, &body);
        let found = receive(&bytes);
        prop_assert_eq!(found.is_some(), payload <= FRAME_PAYLOAD);
        if let Some((header, body)) = found {
            let _ = Body::decode(header.kind, body);
        }
    }
}
