//! Attacks of a client: every frame, cut off, flipped and lying, on one port of a node.

use millrace::client::driver::blocking::Client;
use millrace::limits::{BATCH_HEADER, CORE_CONNECTIONS, FRAME_BODY, FRAME_HEADER, FRAME_PAYLOAD};
use millrace::types::{Level, LogId, Offset, OriginId, ReadLevel, ShardId};
use millrace::wire::body::{Append, Body, Metadata, PROTOCOL, Status};
use millrace::wire::code::Code;
use millrace::wire::frame;

use crate::frames::{self, Fate, NUMBER, Owed, Sample, batch, fate, is_paid, owed, reseal};
use crate::nodes::{Nodes, Witness, log, read};
use crate::tally::Tally;
use crate::wire::{Answer, Wire};

/// An attack on one port, with another client that must go on.
pub struct Attack<'a> {
    pub address: String,
    pub log: LogId,
    /// Whether the node leads the log.
    pub led: bool,
    pub witness: &'a mut Witness,
    pub tally: Tally,
    /// Records whose append was answered with an offset, and with an unknown outcome.
    pub acked: u64,
    pub unknown: u64,
}

impl Attack<'_> {
    /// Everything a client may send, sound and not.
    pub fn run(&mut self) {
        for sample in frames::samples(self.log) {
            self.whole(&sample);
            self.cut_off(&sample);
            self.flipped(&sample);
            self.witness.works();
            self.lying(&sample);
            self.witness.works();
        }
    }

    /// Sends bytes on a connection of their own and nothing behind them.
    fn alone(&self, bytes: &[u8]) -> Vec<Answer> {
        let mut wire = Wire::open(&self.address);
        wire.send(bytes);
        wire.end();
        wire.until_closed()
    }

    fn note(&mut self, sample: &str, attack: &str, answers: &[Answer], records: u64, open: bool) {
        for answer in answers {
            match (&answer.body, answer.refusal()) {
                // A lie about the log may have been an append to another one.
                (Body::AppendOk(_), _) if answer.log == self.log => self.acked += records,
                (_, Some((Code::Unknown, _))) => self.unknown += records,
                _ => {}
            }
        }
        let answer = answers.first().map_or("nothing", Answer::name);
        let outcome = if open {
            answer.to_owned()
        } else {
            format!("{answer} + close")
        };
        self.tally.count(sample, attack, &outcome);
    }

    /// The frame as it is, first and once more behind another one.
    fn whole(&mut self, sample: &Sample) {
        for first in [true, false] {
            let mut wire = Wire::open(&self.address);
            if !first {
                wire.ask_still_there();
                assert!(wire.until_still_there().1);
            }
            let attack = if first {
                "sound, first"
            } else {
                "sound, later"
            };
            self.ask(&mut wire, sample.name, attack, &sample.bytes, first);
        }
    }

    /// Sends a whole frame and checks what it is owed. False if the connection has ended.
    fn ask(
        &mut self,
        wire: &mut Wire,
        name: &str,
        attack: &str,
        bytes: &[u8],
        first: bool,
    ) -> bool {
        let fate = fate(bytes);
        let what = owed(&fate, first).expect("a whole frame");
        let ends = matches!(what, Owed::End(_) | Owed::EndOfPeer);
        wire.send(bytes);
        let (answers, open) = if ends {
            (wire.until_closed(), false)
        } else if matches!(what, Owed::Answer(_) | Owed::Refusal(_)) {
            let answer: Vec<Answer> = wire.next().into_iter().collect();
            wire.ask_still_there();
            let (more, open) = wire.until_still_there();
            ([answer, more].concat(), open)
        } else {
            wire.ask_still_there();
            wire.until_still_there()
        };
        let paid = is_paid(what, &answers) && open != ends;
        assert!(
            paid,
            "{name}, {attack}: owed {what:?}, got {answers:?}, open: {open}: {fate:?}"
        );
        self.note(name, attack, &answers, 1, open);
        open
    }

    /// The frame ends early, and with it the connection.
    fn cut_off(&mut self, sample: &Sample) {
        for len in 0..sample.bytes.len() {
            let answers = self.alone(&sample.bytes[..len]);
            // Of a frame that is whole but for its payload the refusal may still come.
            let may = len >= sample.head && answers.len() == 1 && answers[0].refusal().is_some();
            assert!(
                answers.is_empty() || may,
                "{} cut to {len}: {answers:?}",
                sample.name
            );
            self.note(sample.name, "cut off", &answers, 0, false);
        }
    }

    /// Any one bit is another: the CRC shows it, and the payload's own CRC that of a payload.
    fn flipped(&mut self, sample: &Sample) {
        let mut bytes = sample.bytes.clone();
        for bit in 0..8 * sample.head {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let what = owed(&fate(&bytes), true);
            let answers = self.alone(&bytes);
            match what {
                // More is announced than comes.
                None => assert_eq!(answers, [], "{} bit {bit}", sample.name),
                Some(what) => {
                    assert_eq!(what, Owed::End(Code::BadFrame), "{} bit {bit}", sample.name);
                    assert!(
                        is_paid(what, &answers),
                        "{} bit {bit}: {answers:?}",
                        sample.name
                    );
                }
            }
            self.note(sample.name, "bit flipped", &answers, 0, false);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let mut wire = Wire::open(&self.address);
        for bit in 8 * sample.head..8 * sample.bytes.len() {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let open = self.ask(
                &mut wire,
                sample.name,
                "bit of payload flipped",
                &bytes,
                false,
            );
            assert!(open, "a bad batch ends no connection");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Any one bit is another and the CRC fits: the sender lies.
    fn lying(&mut self, sample: &Sample) {
        let mut wire = Wire::open(&self.address);
        let mut open = false;
        for bit in (0..8 * sample.head).filter(|bit| !(64..96).contains(bit)) {
            let mut bytes = sample.bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            reseal(&mut bytes, sample.head);
            // The CRC is over the body that the header names.
            let fate = fate(&bytes);
            if matches!(fate, Fate::Short | Fate::NoFrame) || self.leaves_rest(&bytes) {
                let answers = self.alone(&bytes);
                assert!(
                    answers.iter().all(|answer| answer.refusal().is_some()),
                    "{answers:?}"
                );
                self.note(sample.name, "bit flipped, CRC fits", &answers, 0, false);
                continue;
            }
            if !open {
                wire = Wire::open(&self.address);
                wire.ask_still_there();
                assert!(wire.until_still_there().1);
            }
            open = self.ask(
                &mut wire,
                sample.name,
                "bit flipped, CRC fits",
                &bytes,
                false,
            );
        }
    }

    /// Whether bytes are left behind the frame: they would be taken for the next one.
    fn leaves_rest(&self, bytes: &[u8]) -> bool {
        let head = bytes.first_chunk::<FRAME_HEADER>().expect("a header");
        let header = frame::read_header(head).expect("seen before");
        bytes.len() != FRAME_HEADER + header.body_len + header.payload_len
    }

    /// Appends the batch on a connection that is open, and stays so.
    fn append(&mut self, attack: &str, wire: &mut Wire, batch: &[u8], records: u64) -> Answer {
        let body = Append {
            level: Level::Leader.number(),
            timeout_ms: 20_000,
        };
        let mut bytes = Body::from(body).encode(NUMBER, self.log, batch.len());
        bytes.extend_from_slice(batch);
        wire.send(&bytes);
        let answer = wire.next().expect("an append is answered");
        wire.ask_still_there();
        assert!(
            wire.until_still_there().1,
            "{attack}: a refused batch ends no connection"
        );
        self.note(
            "Append",
            attack,
            std::slice::from_ref(&answer),
            records,
            true,
        );
        answer
    }

    /// The batch lies about itself: each bit of its header, as it is and with a CRC that fits. Its
    /// leader writes one half of the header and no reader here opens the body; so what is refused
    /// is what the leader can see to be wrong.
    pub fn batches(&mut self) {
        let mut wire = Wire::open(&self.address);
        let sound = batch(1);
        for bit in 0..8 * BATCH_HEADER {
            let (at, with) = (bit / 8, 1 << (bit % 8));
            let mut bytes = sound.clone();
            bytes[at] ^= with;
            let is_leaders_half = at < 64 && !(12..16).contains(&at);
            let answer = self.append("batch: bit flipped", &mut wire, &bytes, 1);
            match answer.refusal() {
                None => assert!(is_leaders_half, "bit {bit}: {answer:?}"),
                Some((Code::BadBatch, _)) => assert!((68..72).contains(&at), "bit {bit}"),
                Some((code, _)) => assert_eq!((code, is_leaders_half), (Code::BadCrc, false)),
            }
            if at < 64 {
                continue;
            }
            let crc = crc32fast::hash(&bytes[64..]);
            bytes[12..16].copy_from_slice(&crc.to_le_bytes());
            let records = u32::from_le_bytes(bytes[64..68].try_into().expect("four bytes"));
            let answer = self.append("batch: lie, CRC fits", &mut wire, &bytes, records.into());
            let expected: &[Code] = match at {
                64..68 if records == 0 => &[Code::EmptyBatch],
                64..68 if records > 262_144 => &[Code::TooLarge],
                68..72 | 108..128 => &[Code::BadBatch],
                _ => &[],
            };
            match answer.refusal() {
                Some((code, _)) if (92..108).contains(&at) => {
                    assert!(
                        crate::frames::is_about_a_request(code),
                        "bit {bit}: {code:?}"
                    );
                }
                Some((code, _)) => assert!(expected.contains(&code), "bit {bit}: {code:?}"),
                None => assert_eq!(expected, [], "bit {bit} is taken"),
            }
        }
        for (attack, bytes, code) in [
            ("batch: nothing", Vec::new(), Code::BadBatch),
            ("batch: half a header", vec![0; 64], Code::BadBatch),
            ("batch: zeros", vec![0; 500], Code::BadBatch),
            ("batch: ones", vec![0xff; 500], Code::BadBatch),
            ("batch: no records", batch(0), Code::EmptyBatch),
            ("batch: too large", vec![0; 3 << 20], Code::TooLarge),
            (
                "batch: largest payload",
                vec![0; FRAME_PAYLOAD],
                Code::TooLarge,
            ),
        ] {
            let answer = self.append(attack, &mut wire, &bytes, 0);
            assert_eq!(
                answer.refusal().map(|refusal| refusal.0),
                Some(code),
                "{attack}"
            );
        }
        self.witness.works();
    }

    /// Requests that are sound frames and cannot be met: each has its code, and the connection
    /// goes on.
    pub fn requests(&mut self) {
        let origin = LogId {
            origin: OriginId(8),
            ..self.log
        };
        let shard = LogId {
            shard: ShardId(999),
            ..self.log
        };
        let append = |level| {
            Body::from(Append {
                level,
                timeout_ms: 20_000,
            })
        };
        let at = |offset, level| {
            let mut body = read(Offset(offset), ReadLevel::Local);
            if let Body::Read(read) = &mut body {
                read.level = level;
            }
            body
        };
        let find = frames::golden("Find");
        // A port of another core hands over to the core that has the log.
        let to_whoever = (!self.led).then_some(Code::NotLeader);
        let version = Metadata {
            protocol: PROTOCOL + 1,
        };
        let cases = [
            ("level 0", append(0), self.log, Code::UnknownLevel),
            ("level 9", append(9), self.log, Code::UnknownLevel),
            ("level 9", at(0, 9), self.log, Code::UnknownLevel),
            ("unknown origin", append(3), origin, Code::UnknownLog),
            ("unknown shard", append(3), shard, Code::UnknownLog),
            ("unknown origin", at(0, 2), origin, Code::UnknownLog),
            ("unknown shard", at(0, 2), shard, Code::UnknownLog),
            ("unknown origin", find.clone(), origin, Code::UnknownLog),
            ("unknown shard", find, shard, Code::UnknownLog),
            ("past the end", at(1 << 50, 2), self.log, Code::OutOfRange),
            ("past the end", at(u64::MAX, 2), self.log, Code::OutOfRange),
            (
                "other version",
                version.into(),
                self.log,
                Code::WrongVersion,
            ),
        ];
        let elsewhere = to_whoever.map(|code| ("not the leader", append(3), self.log, code));
        let mut wire = Wire::open(&self.address);
        for (attack, body, log, code) in cases.into_iter().chain(elsewhere) {
            let sample = frames::frame_of(&body, log);
            wire.send(&sample.bytes);
            let answer = wire.next().expect("a request is answered");
            assert_eq!(
                answer.refusal().map(|refusal| refusal.0),
                Some(code),
                "{attack}"
            );
            assert_eq!(answer.correlation, NUMBER);
            wire.ask_still_there();
            assert!(
                wire.until_still_there().1,
                "{attack}: the connection goes on"
            );
            self.note(sample.name, attack, &[answer], 0, true);
        }
        self.witness.works();
    }

    /// Lengths at and past every bound of a frame, types that nobody knows, and noise.
    pub fn lengths(&mut self) {
        let head = |len: usize, body_len: usize| {
            let mut bytes = Body::from(Status {}).encode(NUMBER, self.log, 0);
            bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
            bytes[26..28].copy_from_slice(&(body_len as u16).to_le_bytes());
            reseal(&mut bytes, FRAME_HEADER);
            bytes
        };
        for (attack, bytes) in [
            ("longest length", head(u32::MAX as usize, 0)),
            ("payload too long", head(FRAME_PAYLOAD + 1, 0)),
            ("body too long", head(FRAME_BODY + 1, FRAME_BODY + 1)),
            ("body past the frame", head(1, 2)),
            (
                "noise",
                (0..4096_u32)
                    .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
                    .collect(),
            ),
            ("zeros", vec![0; 4096]),
            ("ones", vec![0xff; 4096]),
        ] {
            let answers = self.alone(&bytes);
            assert!(
                is_paid(Owed::End(Code::BadFrame), &answers),
                "{attack}: {answers:?}"
            );
            self.note("bytes", attack, &answers, 0, false);
        }
        let known: Vec<u8> = millrace::wire::body::TYPES
            .iter()
            .map(|(kind, _)| *kind)
            .collect();
        let mut wire = Wire::open(&self.address);
        for kind in (0..=u8::MAX).filter(|kind| !known.contains(kind)) {
            let mut bytes = vec![0; FRAME_HEADER + 5];
            frame::write_header(&mut bytes, kind, NUMBER, self.log, 300);
            bytes.extend([7; 300]);
            assert!(self.ask(
                &mut wire,
                "unknown type",
                "skipped by length",
                &bytes,
                false
            ));
        }
        self.witness.works();
    }

    /// One byte at a time, and two requests with one number.
    pub fn manners(&mut self) {
        let mut wire = Wire::open(&self.address);
        let body = Append {
            level: Level::Leader.number(),
            timeout_ms: 20_000,
        };
        let sample = frames::frame_of(&body.into(), self.log);
        for byte in &sample.bytes {
            assert!(wire.send(&[*byte]));
        }
        let answers: Vec<Answer> = wire.next().into_iter().collect();
        assert_eq!(answers.len(), 1);
        self.note("Append", "one byte at a time", &answers, 1, true);
        // The first one waits for what is not there yet; the second takes its number.
        let end = match &answers[0].body {
            Body::AppendOk(ok) => ok.base_offset.0,
            _ => return,
        };
        let waits = read(Offset(end + 1), ReadLevel::Local).encode(5, self.log, 0);
        wire.send(&waits);
        let mut twice = Body::from(by_leader()).encode(5, self.log, batch(200).len());
        twice.extend(batch(200));
        wire.send(&twice);
        let answers = wire.until_closed();
        let refused = answers.last().and_then(Answer::refusal);
        assert_eq!(refused, Some((Code::BadFrame, [5, 0])), "{answers:?}");
        self.note("Append", "number in use", &answers, 0, false);
        self.witness.works();
    }
}

/// Clients that keep memory from others: batches announced and never sent, reads that wait for
/// ever, answers that nobody takes. Whoever works with little goes on, at once or as soon as the
/// node has had enough.
pub fn hoard(nodes: &Nodes, witness: &mut Witness) {
    let address = nodes.leader(0).1;
    // More than the node sets aside for appends.
    let announced = 1_000_000;
    let head = Body::from(by_leader()).encode(NUMBER, log(0), announced);
    let mut stalled: Vec<Wire> = (0..80).map(|_| Wire::open(&address)).collect();
    for wire in &mut stalled {
        wire.send(&head);
        wire.send(&[7; 1000]);
    }
    witness.works();
    assert_eq!(stalled[0].until_closed(), [], "a batch that never comes");
    drop(stalled);

    let mut waits = read(Offset(1 << 40), ReadLevel::Local);
    let end = nodes.end_offset(0);
    if let Body::Read(read) = &mut waits {
        (read.offset, read.wait_ms) = (Offset(end), u32::MAX);
    }
    let mut waiting: Vec<Wire> = (0..40).map(|_| Wire::open(&address)).collect();
    for wire in &mut waiting {
        for number in 0..100 {
            wire.send(&waits.encode(number, log(0), 0));
        }
        // One connection may wait 64 times at a log; all others together leave it no more.
        let refused = |answer: &Answer| matches!(answer.refusal(), Some((Code::Overloaded, _)));
        for _ in 64..100 {
            assert!(wire.next().is_some_and(|answer| refused(&answer)));
        }
        wire.ask_still_there();
        let (answers, open) = wire.until_still_there();
        assert!(open && answers.iter().all(refused));
    }
    witness.works();

    let large = large_batch();
    let mut wire = Wire::open(&address);
    let mut first = None;
    for number in 0..40 {
        wire.send(&Body::from(by_leader()).encode(number, log(0), large.len()));
        wire.send(&large);
        let answer = wire.next().expect("an answer");
        let Body::AppendOk(ok) = answer.body else {
            panic!("a large batch: {answer:?}");
        };
        first.get_or_insert(ok.base_offset);
    }
    let first = first.expect("forty appends").0;
    let mut greedy: Vec<Wire> = (0..4).map(|_| Wire::open(&address)).collect();
    for wire in &mut greedy {
        for number in 0..400 {
            let at = Offset(first + number % 40);
            wire.send(&read(at, ReadLevel::Local).encode(number, log(0), 0));
        }
    }
    witness.works();
}

/// Clients until a core has enough of them, and 50 more, who are told so and sent away.
pub fn crowd(address: &str) -> Vec<Wire> {
    let mut crowd = Vec::new();
    let mut refused = 0;
    while refused < 50 {
        let mut wire = Wire::open(address);
        wire.ask_still_there();
        let answer = wire.next().expect("an answer");
        match answer.refusal() {
            None => crowd.push(wire),
            Some(refusal) => {
                let most = CORE_CONNECTIONS as u64;
                assert_eq!(refusal, (Code::TooManyConnections, [most, 0]));
                assert_eq!(wire.until_closed(), []);
                refused += 1;
            }
        }
        assert!(crowd.len() <= CORE_CONNECTIONS, "a core takes no more");
    }
    assert!(
        crowd.len() > CORE_CONNECTIONS / 2,
        "{} are let in",
        crowd.len()
    );
    let said = Client::connect(address).and_then(|mut client| client.status());
    let said = said.expect_err("it is one too many").to_string();
    let words = format!("(at most: {CORE_CONNECTIONS}); mend: share connections");
    assert!(
        said.contains("TooManyConnections") && said.contains(&words),
        "{said}"
    );
    crowd
}

fn by_leader() -> Append {
    Append {
        level: Level::Leader.number(),
        timeout_ms: 20_000,
    }
}

/// A batch of one record that fills a block.
fn large_batch() -> Vec<u8> {
    use millrace::wire::record::{BatchBuilder, Record};
    let mut builder = BatchBuilder::new();
    builder.push(&Record::new(1, &vec![7; 900_000]));
    builder.finish()
}
