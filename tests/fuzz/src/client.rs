//! Sessions of a client among nodes of which nothing can be trusted.
//!
//! An input is a list of what a driver may tell: connections that come and go, time, frames of any
//! body, answers to what was asked with numbers of the input's. Whatever nodes say, every record
//! has one outcome and in time, nothing is sent where no connection is, and what a reader hands out
//! is whole and in order.

use super::input::Input;
use super::mend::{self, Place};
use bytes::Bytes;
use millrace::client::{
    Action, At, Codec, Event, NewRecord, Next, ProducerOptions, Producing, ReaderOptions, Reading,
    RecordBatch, Session, Start,
};
use millrace::limits::{BLOCK_HEADER, FRAME_HEADER};
use millrace::types::{ConnectionId, Epoch, NodeId, Offset, OriginId, ShardId, Time};
use millrace::wire::body::*;
use millrace::wire::frame;
use std::collections::{BTreeMap, BTreeSet};

/// Events of an input at most.
const EVENTS: usize = 400;
/// How long a session may take for what it was given, microseconds.
const TIMEOUT_US: u64 = 2_000_000;
/// Steps in which everything has ended by then.
const STEPS: u32 = 20_000;

/// A producer's life, or a reader's.
pub fn play(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.u8() {
        kind if kind.is_multiple_of(2) => produce(&mut input, kind),
        kind => read(&mut input, kind),
    }
}

fn seeds() -> Vec<String> {
    vec!["a:7000".to_owned(), "b:7000".to_owned()]
}

/// The driver's side: what it has seen of the session.
struct Driver {
    now: Time,
    /// Asked for and not there yet.
    opening: BTreeSet<ConnectionId>,
    open: BTreeSet<ConnectionId>,
    known: BTreeSet<ConnectionId>,
    /// Requests without an answer: on which connection, and of which type.
    asked: BTreeMap<u64, (ConnectionId, u8)>,
    /// Answers that say that a batch is in the log.
    acked: u64,
}

impl Driver {
    fn new() -> Driver {
        Driver {
            now: Time(1_000_000),
            opening: BTreeSet::new(),
            open: BTreeSet::new(),
            known: BTreeSet::new(),
            asked: BTreeMap::new(),
            acked: 0,
        }
    }

    fn carry_out(&mut self, session: &mut impl Session) {
        for _ in 0..STEPS {
            let Some(action) = session.poll_action() else {
                return;
            };
            match action {
                Action::Connect { connection, .. } => {
                    assert!(self.known.insert(connection), "{connection:?} again");
                    self.opening.insert(connection);
                }
                Action::Send {
                    connection,
                    head,
                    payload,
                } => self.sent(connection, &head, &payload),
                Action::Close(connection) => {
                    self.opening.remove(&connection);
                    self.open.remove(&connection);
                }
            }
        }
        panic!("actions without end");
    }

    fn sent(&mut self, connection: ConnectionId, head: &[u8], payload: &[u8]) {
        assert!(
            self.open.contains(&connection),
            "{connection:?} is not open"
        );
        let (header, body) = head.split_first_chunk::<FRAME_HEADER>().expect("a header");
        let read = frame::read_header(header).expect("a header of this version");
        assert_eq!(frame::check(&read, header, body), Ok(()));
        assert_eq!(read.payload_len, payload.len());
        let before = self.asked.insert(read.correlation, (connection, read.kind));
        assert!(before.is_none(), "{} is asked already", read.correlation);
    }

    fn tell(&mut self, session: &mut impl Session, event: Event) {
        session.handle(self.now, event);
        self.carry_out(session);
    }

    fn tick(&mut self, session: &mut impl Session, us: u64) {
        self.now = self.now.plus_us(us);
        self.tell(session, Event::Tick);
    }

    fn event(&mut self, session: &mut impl Session, input: &mut Input<'_>) {
        match input.u8() % 12 {
            0 | 1 => {
                if let Some(connection) = nth(&self.opening, input.u8()) {
                    self.opening.remove(&connection);
                    self.open.insert(connection);
                    self.tell(session, Event::Connected(connection));
                }
            }
            2 => {
                let all = self.opening.union(&self.open).copied().collect();
                if let Some(connection) = nth(&all, input.u8()) {
                    self.opening.remove(&connection);
                    self.open.remove(&connection);
                    self.asked.retain(|_, (on, _)| *on != connection);
                    self.tell(session, Event::Lost(connection, "reset".to_owned()));
                }
            }
            3 => self.tick(session, u64::from(input.u16())),
            4 => self.tick(session, 20 * u64::from(input.u16())),
            5 | 6 => self.any_frame(session, input),
            7 => {
                let body = metadata(input).into();
                if let Some(connection) = nth(&self.open, input.u8()) {
                    let correlation = input.u64();
                    self.frame(session, connection, correlation, (body, Bytes::new()));
                }
            }
            _ => self.answer(session, input),
        }
    }

    fn frame(
        &mut self,
        session: &mut impl Session,
        connection: ConnectionId,
        correlation: u64,
        (body, payload): (Body, Bytes),
    ) {
        self.asked.remove(&correlation);
        self.acked += u64::from(matches!(body, Body::AppendOk(_)));
        let event = Event::Frame {
            connection,
            correlation,
            body,
            payload,
        };
        self.tell(session, event);
    }

    fn any_frame(&mut self, session: &mut impl Session, input: &mut Input<'_>) {
        let connection = nth(&self.open, input.u8());
        let asked: BTreeSet<u64> = self.asked.keys().copied().collect();
        let correlation = nth(&asked, input.u8()).unwrap_or_default();
        let body = Body::decode(input.u8(), input.run());
        let payload = Bytes::copy_from_slice(input.run());
        if let (Some(connection), Some(Ok(body))) = (connection, body) {
            self.frame(session, connection, correlation, (body, payload));
        }
    }

    /// An answer of the right type to what was asked, or a refusal.
    fn answer(&mut self, session: &mut impl Session, input: &mut Input<'_>) {
        let asked: BTreeSet<u64> = self.asked.keys().copied().collect();
        let Some(correlation) = nth(&asked, input.u8()) else {
            return;
        };
        let (connection, kind) = self.asked[&correlation];
        if !self.open.contains(&connection) {
            return;
        }
        let refused = input.u8().is_multiple_of(4);
        let mut payload = Bytes::new();
        let body: Body = match TYPES.iter().find(|(number, _)| *number == kind) {
            _ if refused => Error {
                code: u16::from(input.u8() % 48),
                detail: u64::from(input.u8()),
                detail_two: u64::from(input.u8()),
            }
            .into(),
            Some((_, "Append")) => AppendOk {
                base_offset: Offset(u64::from(input.u16())),
                block: Default::default(),
                epoch: Epoch(u32::from(input.u8())),
            }
            .into(),
            Some((_, "Read")) => {
                let (body, bytes) = batches(input);
                payload = bytes;
                body.into()
            }
            Some((_, "Find")) => FindOk {
                offset: Offset(u64::from(input.u8())),
            }
            .into(),
            _ => metadata(input).into(),
        };
        self.frame(session, connection, correlation, (body, payload));
    }
}

fn nth<T: Copy + Ord>(set: &BTreeSet<T>, choice: u8) -> Option<T> {
    let len = set.len();
    (len > 0).then(|| {
        *set.iter()
            .nth(usize::from(choice) % len)
            .expect("below its length")
    })
}

/// Records in, outcomes out: each once, and in time.
fn produce(input: &mut Input<'_>, kind: u8) {
    let options = ProducerOptions {
        timeout_us: TIMEOUT_US,
        codec: if kind & 2 == 0 {
            Codec::None
        } else {
            Codec::Zstd
        },
        stop_at_failure: kind & 4 != 0,
        max_in_flight_batches: 1 + usize::from(kind >> 5),
        ..ProducerOptions::new(77)
    };
    let mut session: Producing<u32> = Producing::new(seeds(), options);
    let mut driver = Driver::new();
    let (mut given, mut ended) = (0, BTreeSet::new());
    driver.tick(&mut session, 0);
    for _ in 0..EVENTS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 4 {
            0 => {
                let record = NewRecord::new(input.run()).key(vec![input.u8() % 4; 2]);
                if session.cluster().is_some() && session.has_room(record.encoded_len()) {
                    given += u32::from(session.push(driver.now, &record, given).is_ok());
                }
                driver.carry_out(&mut session);
            }
            1 if input.u8() & 3 == 0 => {
                session.flush(driver.now);
                driver.carry_out(&mut session);
            }
            _ => driver.event(&mut session, input),
        }
        note_done(&mut session, &driver, &mut ended);
    }
    let flush = session.flush(driver.now);
    driver.carry_out(&mut session);
    let end = driver.now.plus_us(2 * TIMEOUT_US);
    while driver.now < end {
        driver.tick(&mut session, 50_000);
        note_done(&mut session, &driver, &mut ended);
    }
    assert_eq!(ended.len() as u32, given, "every record has an outcome");
    assert!(session.is_flushed(flush));
    assert_eq!(session.held_bytes(), 0);
}

fn note_done(session: &mut Producing<u32>, driver: &Driver, ended: &mut BTreeSet<u32>) {
    let mut good = 0;
    while let Some(done) = session.poll_done() {
        good += u64::from(done.outcome.is_ok());
        for token in done.tokens {
            assert!(ended.insert(token), "{token} ended twice");
        }
    }
    assert!(good <= driver.acked, "nobody acknowledged that");
}

/// Batches out: whole, and in order from where the reader began.
fn read(input: &mut Input<'_>, kind: u8) {
    let start = |choice: u8| match choice % 3 {
        0 => Start::First,
        1 => Start::Offset(Offset(u64::from(choice))),
        _ => Start::Time(u64::from(choice)),
    };
    let mut begin = start(kind >> 1);
    let mut session = Reading::new(
        seeds(),
        ReaderOptions {
            start: begin,
            at: [At::Leader, At::Seed, At::Node(NodeId(2))][usize::from(kind % 3)],
            follow: kind & 0x40 != 0,
            timeout_us: TIMEOUT_US,
            ..ReaderOptions::new(ShardId(0))
        },
    );
    let mut driver = Driver::new();
    let mut next = None;
    driver.tick(&mut session, 0);
    for _ in 0..EVENTS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 4 {
            0 => session.want(driver.now),
            1 if input.u8() == 0 => {
                begin = start(input.u8());
                session.seek(begin);
                next = None;
            }
            _ => driver.event(&mut session, input),
        }
        driver.carry_out(&mut session);
        if let Some(Next::Batch(batch)) = session.take(driver.now) {
            in_order(&batch, begin, &mut next);
        }
        driver.carry_out(&mut session);
    }
    session.want(driver.now);
    driver.carry_out(&mut session);
    // Whoever waits hears something within the time and what a question may wait.
    let end = driver.now.plus_us(2 * TIMEOUT_US);
    let mut heard = false;
    while driver.now < end {
        driver.tick(&mut session, 50_000);
        heard |= session.take(driver.now).is_some();
    }
    assert!(heard, "the application waits for ever");
}

fn in_order(batch: &RecordBatch, begin: Start, next: &mut Option<Offset>) {
    let (first, end) = (batch.first(), batch.end());
    let records: Vec<_> = batch.records().collect();
    assert_eq!(records.len() as u64, end.0 - first.0);
    assert!(
        records
            .iter()
            .map(|(offset, _)| offset.0)
            .eq(first.0..end.0)
    );
    match (*next, begin) {
        (Some(next), _) => assert_eq!(first, next, "records behind one another"),
        (None, Start::Offset(asked)) => assert_eq!(first, asked),
        (None, Start::Time(asked)) => {
            let late = records[0].1.timestamp >= asked;
            assert!(late, "the first record is from before {asked}");
        }
        (None, Start::First) => {}
    }
    *next = Some(end);
}

/// What a node says of its cluster: two nodes, a few shards, leaders of the input's.
fn metadata(input: &mut Input<'_>) -> MetadataOk {
    let choice = input.u8();
    let shards = 1 + choice % 3;
    let node = |node: u32, address: &str| NodeAddress {
        node: NodeId(node),
        address: address.to_owned(),
        cores: 1 + u16::from(choice >> 7),
    };
    MetadataOk {
        protocol: PROTOCOL,
        node: NodeId(1 + u32::from(choice >> 6 & 1)),
        cluster: OriginId(7 + u32::from(choice & 0x20 != 0 && input.u8() > 250)),
        default_level: input.u8() % 4,
        max_batch_bytes: 64 + u32::from(input.u16()),
        max_batch_records: u32::from(input.u8()),
        nodes: vec![node(1, "a:7000"), node(2, "b:7000")],
        leaders: (0..shards)
            .map(|_| NodeId(u32::from(input.u8() % 4)))
            .collect(),
        epochs: (0..shards)
            .map(|_| Epoch(u32::from(input.u8() % 4)))
            .collect(),
        origin: OriginId(7),
        origins: vec![OriginId(7)],
        default_read_level: input.u8() % 3,
    }
}

/// An answer to a read: whole batches, as far as the input lets them be.
fn batches(input: &mut Input<'_>) -> (ReadOk, Bytes) {
    let place = Place {
        log: millrace::types::LogId {
            origin: OriginId(7),
            shard: ShardId(0),
        },
        epoch: 1,
        block: 0,
        prev_crc: 0,
        base_offset: u64::from(input.u8()),
        last_tick: 1,
    };
    let choice = input.u8();
    let mut bytes = mend::sums(input.run(), &place).split_off(BLOCK_HEADER);
    if choice & 1 != 0 {
        bytes = records(input, place.base_offset);
    }
    if choice & 2 != 0 {
        let at = usize::from(input.u16()) % bytes.len();
        bytes[at] ^= input.u8();
    }
    if choice & 4 != 0 {
        bytes.truncate(usize::from(input.u8()));
    }
    let last_epoch = u32::from(input.u8());
    let body = ReadOk {
        next: Offset(place.base_offset + u64::from(input.u8())),
        high_watermark: Offset(u64::from(input.u8())),
        log_start: Offset(u64::from(input.u8())),
        last_epoch: Epoch(last_epoch),
    };
    (body, bytes.into())
}

/// One batch of records that are records.
fn records(input: &mut Input<'_>, base_offset: u64) -> Vec<u8> {
    use millrace::wire::batch::{self, Kind, LeaderHalf};
    use millrace::wire::record::{BatchBuilder, Record};
    let mut builder = BatchBuilder::new();
    for number in 0..1 + input.u8() % 4 {
        let value = [number; 3];
        builder.push(&Record::new(u64::from(input.u8()), &value).with_key(b"key"));
    }
    let codec = if input.u8() & 1 == 0 {
        Codec::None
    } else {
        Codec::Zstd
    };
    let mut bytes = millrace::client::codec::pack(builder.finish(), codec);
    let half = LeaderHalf {
        kind: Kind::Data,
        log: Default::default(),
        base_offset: Offset(base_offset),
        tick: Default::default(),
        txn_id: 0,
        origin_epoch: Epoch(1),
    };
    batch::write_leader_half(&mut bytes, &half);
    bytes
}
