//! One lane: one connection at a time to the leader of one log, and the batches it sends there.
//!
//! It connects, sends by its timetable, and connects again when the connection ends or the node
//! says that it is the wrong place. A node that just came back may not be ready yet: a lane then
//! knocks with one batch at a time, ever more rarely, until one is acknowledged. A batch is never
//! sent twice. A producer ends with its first batch that is not acknowledged: what follows comes
//! from a new one, whose count starts at 0 without a gap. Read `session.rs` next.

use std::io;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace::client::codec;
use millrace::limits::BATCH_HEADER;
use millrace::types::LogId;
use millrace::wire::body::{Append, Body};
use millrace::wire::record::{self, BatchBuilder, Record};

use super::Run;
use super::session::{Pending, Session, read_answers};
use crate::exchange;
use crate::keys::{self, KEY_BYTES, Keys};
use crate::ledger::{Entry, Ledger, State};
use crate::payload::PayloadMaker;
use crate::random::Random;
use crate::schedule::Schedule;

/// Bytes gathered for one write to the socket; a single batch may be larger.
const OUT_BYTES: usize = 256 << 10;

const BACKOFF_FIRST: Duration = Duration::from_millis(10);
const BACKOFF_LAST: Duration = Duration::from_secs(1);
/// After the first refusal that asks for patience; twice as long after each further one.
const LATER: Duration = Duration::from_millis(10);
const LATER_DOUBLINGS: u32 = 4;

pub(super) async fn run(run: Rc<Run>, index: u32) {
    let mut lane = Lane::new(run.clone(), index);
    let mut backoff = BACKOFF_FIRST;
    while !lane.over() {
        let worked = match lane.connect().await {
            Ok(stream) => lane.session(stream).await,
            Err(error) => {
                run.complaints.borrow_mut().connection(lane.log, &error);
                false
            }
        };
        backoff = if worked {
            BACKOFF_FIRST
        } else {
            BACKOFF_LAST.min(backoff * 2)
        };
        if !lane.over() {
            glommio::timer::sleep(backoff).await;
        }
    }
    let unsent = lane.schedule.unsent(run.end_ns.min(run.now_ns()));
    run.stats.borrow_mut().unsent += unsent * u64::from(run.plan.batch_records);
}

struct Lane {
    run: Rc<Run>,
    index: u32,
    log: LogId,
    schedule: Schedule,
    maker: PayloadMaker,
    /// The keys of its shard, if records get any, and what chooses among them.
    keys: Option<Keys>,
    random: Random,
    producer: u32,
    next: u32,
    out: Vec<u8>,
    /// The timetable ends within the run.
    finished: bool,
    /// Batches sent one at a time since the last ack; 0 while all is well.
    knocks: u32,
}

/// Why a round of gathering ended.
enum Gathered {
    /// Something is to be written, or nothing has room.
    Some,
    /// The next batch is due at this time.
    Until(u64),
    /// No further batch is due within the run.
    Over,
}

impl Lane {
    fn new(run: Rc<Run>, index: u32) -> Lane {
        let plan = &run.plan;
        let place = index as usize % plan.logs.len();
        let log = plan.logs[place];
        let schedule = Schedule::new(plan.rate, plan.batch_records, plan.connections, index);
        let seed = plan.seed ^ u64::from(index + 1) << 32;
        let texts = run.texts.clone();
        let maker = PayloadMaker::new(plan.payload, texts, seed, plan.run, plan.record_bytes);
        let keys = plan.keys.get(place).cloned();
        let mut lane = Lane {
            index,
            log,
            schedule,
            maker,
            keys,
            random: Random::new(!seed),
            producer: 0,
            next: 0,
            out: Vec::with_capacity(OUT_BYTES),
            finished: false,
            knocks: 0,
            run,
        };
        lane.new_producer();
        lane
    }

    fn over(&self) -> bool {
        self.finished || self.run.over()
    }

    fn new_producer(&mut self) {
        self.producer = self.run.new_producer();
        self.next = 0;
        self.maker.producer(self.producer);
    }

    async fn connect(&self) -> io::Result<std::net::TcpStream> {
        let (plan, log) = (&self.run.plan, self.log);
        let mut nodes = plan.nodes[self.index as usize % plan.logs.len()].clone();
        // Any node can say who leads: spread the asking.
        let from = self.index as usize % nodes.len();
        nodes.rotate_left(from);
        let connecting = move || {
            let result = std::panic::catch_unwind(|| exchange::to_leader(&nodes, log));
            result.unwrap_or_else(|_| Err(io::Error::other("connecting panicked")))
        };
        glommio::executor().spawn_blocking(connecting).await
    }

    /// Uses one connection until it ends or the run does; says whether anything was acknowledged.
    async fn session(&mut self, stream: std::net::TcpStream) -> bool {
        let session = Rc::new(Session::new(stream));
        let reader = read_answers(self.run.clone(), session.clone());
        let reader = glommio::spawn_local(reader).detach();
        let sessions = &self.run.sessions;
        sessions.borrow_mut().insert(self.index, session.clone());
        while session.usable() && !self.over() {
            if self.send_some(&session).await.is_err() {
                session.shut();
            }
        }
        // What is open gets its answer soon, or the watch ends the connection.
        session.settled().await;
        session.shut();
        reader.await.expect("a reader is never cancelled");
        session.close().await;
        self.run.sessions.borrow_mut().remove(&self.index);
        self.knocks = self.knocks.max(1);
        if session.take_gap() {
            self.new_producer();
        }
        session.worked()
    }

    /// Waits for room and for the timetable, then sends what is due.
    async fn send_some(&mut self, session: &Session) -> io::Result<()> {
        session.room(self.window()).await;
        if session.take_gap() {
            self.new_producer();
        }
        if session.take_acked() {
            self.knocks = 0;
        }
        if session.take_later() {
            let doublings = self.knocks.min(LATER_DOUBLINGS);
            glommio::timer::sleep(LATER * (1 << doublings)).await;
            self.knocks += 1;
        }
        if !session.usable() {
            return Ok(());
        }
        match self.gather(session) {
            Gathered::Some => {}
            Gathered::Over => self.finished = true,
            Gathered::Until(due_ns) if self.out.is_empty() => {
                let wait = due_ns.saturating_sub(self.run.now_ns());
                // In steps: a signal may end the run before a rare batch is due.
                let wait = Duration::from_nanos(wait).min(Duration::from_millis(100));
                glommio::timer::sleep(wait).await;
            }
            Gathered::Until(_) => {}
        }
        let written = session.write(&self.out).await;
        self.out.clear();
        glommio::yield_if_needed().await;
        written
    }

    /// Batches that may be unanswered now.
    fn window(&self) -> usize {
        if self.knocks == 0 {
            self.run.plan.in_flight
        } else {
            1
        }
    }

    /// Encodes the batches that are due and have room.
    fn gather(&mut self, session: &Session) -> Gathered {
        while session.open() < self.window() && self.out.len() < OUT_BYTES {
            let now_ns = self.run.now_ns();
            let due_ns = self.schedule.due_ns().unwrap_or(now_ns);
            if due_ns >= self.run.end_ns || self.run.over() {
                return Gathered::Over;
            }
            if due_ns > now_ns {
                return Gathered::Until(due_ns);
            }
            self.batch(session, due_ns, now_ns);
        }
        Gathered::Some
    }

    fn batch(&mut self, session: &Session, due_ns: u64, now_ns: u64) {
        let plan = &self.run.plan;
        let count = plan.batch_records;
        if self.next.checked_add(count).is_none() {
            self.new_producer();
        }
        let plan = &self.run.plan;
        let entry = Entry {
            producer: self.producer,
            first: self.next,
            count,
            log: self.log,
            state: State::Unknown(0),
        };
        let record = record::HEADER + KEY_BYTES + plan.record_bytes;
        let bytes = BATCH_HEADER + count as usize * record;
        let mut builder = BatchBuilder::with_capacity(bytes);
        let producer = Ledger::producer_id(plan.run, self.producer);
        builder.producer(producer, 0, self.next);
        let timestamp = wall_us();
        for sequence in self.next..self.next + count {
            let drawn = self.keys.as_ref().map(|keys| keys.draw(&mut self.random));
            let name = drawn.map(keys::name);
            let key = name.as_ref().map_or(&[][..], |name| &name[..]);
            builder.push(&Record::new(timestamp, self.maker.make(sequence, key)).with_key(key));
        }
        let raw = builder.len();
        let batch = codec::pack(builder.finish(), plan.codec);
        self.next += count;
        self.schedule.advance();
        let mut stats = self.run.stats.borrow_mut();
        stats.sent(count, due_ns);
        stats.packed(raw, batch.len());
        drop(stats);
        let correlation = session.push(Pending {
            entry,
            due_ns,
            sent_ns: now_ns,
        });
        let append = Body::Append(Append {
            level: plan.level.number(),
            timeout_ms: plan.timeout_ms,
        });
        let head = append.encode(correlation, self.log, batch.len());
        self.out.extend_from_slice(&head);
        self.out.extend_from_slice(&batch);
    }
}

fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}
