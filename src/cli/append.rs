//! `millrace append`: lines of standard input to records, in order, in batches.
//!
//! A batch closes when it is full or when no further line has come for the linger time. The first
//! batch goes alone and waits for a leader; from then on several are in flight on one connection,
//! and the order of lines is the order of offsets. Nothing is sent twice: what fails or is unknown
//! is counted, and the command then ends with 1.

use super::{Failure, node_address};
use clap::Args;
use millrace::client::driver::blocking::{Client, ClientError, Connection};
use millrace::client::{Outcome, Session};
use millrace::limits::BATCH_HEADER;
use millrace::types::{Level, ShardId};
use millrace::wire::body::{Append, Body};
use millrace::wire::record::{BatchBuilder, HEADER, Record};
use std::collections::BTreeMap;
use std::io::{self, BufRead, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, channel, sync_channel,
};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Lines that wait for a batch.
const LINES: usize = 4096;
/// What an answer may take beyond the time that the node was given.
const SLACK: Duration = Duration::from_secs(2);

/// Arguments of `append`.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Any node of the cluster.
    #[arg(long, value_name = "HOST:PORT", value_parser = node_address)]
    node: String,
    /// The shard.
    #[arg(long, default_value_t = 0)]
    shard: u16,
    /// When a batch counts as done: local, leader or quorum; default: as the node says.
    #[arg(long)]
    level: Option<String>,
    /// How long one batch may take, milliseconds.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    timeout_ms: u32,
    /// Records of a batch at most.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    batch_records: u32,
    /// How long a batch waits for further lines, milliseconds.
    #[arg(long, default_value_t = 1)]
    linger_ms: u64,
    /// Batches in flight at most.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    in_flight: u32,
}

/// What came of all batches.
#[derive(Debug, Default)]
struct Counts {
    records: u64,
    failed: u64,
    unknown: u64,
    why: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let client = Client::connect(&arguments.node)?;
    let cluster = client.session().cluster().expect("connected").clone();
    let level = match &arguments.level {
        Some(name) => Level::from_name(name),
        None => Level::from_number(cluster.default_level),
    };
    let Some(level) = level else {
        let name = arguments.level.as_deref().unwrap_or("?");
        let text = format!("--level {name}: must be local, leader or quorum; mend: name one");
        return Err(Failure::Input(text));
    };
    if usize::from(arguments.shard) >= cluster.leaders.len() {
        let (shard, count) = (arguments.shard, cluster.leaders.len());
        let text = format!("--shard {shard}: must be below {count}; mend: choose another one");
        return Err(Failure::Input(text));
    }
    let most_bytes = cluster.max_batch_bytes as usize;
    let mut lines = Lines::start(arguments, most_bytes);
    let mut counts = Counts::default();
    let sent = send_all(arguments, client, level, &mut lines, &mut counts);
    if let Err(error) = sent {
        counts.why.get_or_insert(error.to_string());
    }
    counts.failed += lines.count_rest();
    if let Some(problem) = lines.problem {
        counts.why.get_or_insert(problem);
    }
    // Also if every batch was appended: a line was left out, or an offset could not be said.
    if counts.failed + counts.unknown > 0 || counts.why.is_some() {
        let Counts {
            records,
            failed,
            unknown,
            ref why,
        } = counts;
        let why = why.as_deref().unwrap_or("see above");
        let text = format!("{records} records appended, {failed} failed, {unknown} unknown: {why}");
        return Err(Failure::Failed(text));
    }
    Ok(ExitCode::SUCCESS)
}

fn send_all(
    arguments: &Arguments,
    mut client: Client,
    level: Level,
    lines: &mut Lines,
    counts: &mut Counts,
) -> Result<(), ClientError> {
    let shard = ShardId(arguments.shard);
    let timeout = Duration::from_millis(arguments.timeout_ms.into());
    let Some((batch, records)) = lines.batch(None).ready() else {
        return Ok(());
    };
    match client.append(shard, level, timeout, &batch) {
        Ok(ok) => {
            counts.records += records;
            print_offset(arguments.shard, ok.base_offset.0, counts);
        }
        Err(error @ ClientError::Io(..)) if was_never_sent(&error) => {
            counts.failed += records;
            return Err(error);
        }
        Err(error @ (ClientError::Unknown(_) | ClientError::Io(..))) => {
            counts.unknown += records;
            return Err(error);
        }
        Err(error) => {
            counts.failed += records;
            return Err(error);
        }
    }
    let session = client.session().clone();
    drop(client);
    Pipe::open(arguments, session, level)?.run(lines, counts)
}

/// Nobody took the connection, so no byte of the batch went out.
fn was_never_sent(error: &ClientError) -> bool {
    matches!(error, ClientError::Io(_, error) if error.kind() == ErrorKind::ConnectionRefused)
}

fn print_offset(shard: u16, offset: u64, counts: &mut Counts) {
    match writeln!(io::stdout(), "{shard} {offset}") {
        Ok(()) => {}
        // A reader that has gone away wants no more offsets; the records still count.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            counts
                .why
                .get_or_insert(format!("standard output: {error}"));
        }
    }
}

type Answer = Result<(u64, Body, Vec<u8>), ClientError>;

/// Many batches in flight on one connection.
struct Pipe<'a> {
    arguments: &'a Arguments,
    session: Session,
    level: Level,
    connection: Connection,
    answers: Receiver<Answer>,
    /// Records of each batch in flight.
    in_flight: BTreeMap<u64, u64>,
}

impl<'a> Pipe<'a> {
    fn open(
        arguments: &'a Arguments,
        session: Session,
        level: Level,
    ) -> Result<Pipe<'a>, ClientError> {
        let route = session.route(ShardId(arguments.shard));
        let route = route.ok_or(ClientError::Protocol("a shard without a leader"))?;
        let connection = Connection::open(&route.address)?;
        let mut receiving = connection.second()?;
        let (sender, answers) = channel();
        thread::spawn(move || {
            loop {
                let answer = receiving.receive(None);
                let over = answer.is_err();
                if sender.send(answer).is_err() || over {
                    return;
                }
            }
        });
        Ok(Pipe {
            arguments,
            session,
            level,
            connection,
            answers,
            in_flight: BTreeMap::new(),
        })
    }

    fn run(mut self, lines: &mut Lines, counts: &mut Counts) -> Result<(), ClientError> {
        let done = self.send_and_receive(lines, counts);
        // What was sent and never answered may be in the log.
        counts.unknown += self.in_flight.values().sum::<u64>();
        done
    }

    fn send_and_receive(
        &mut self,
        lines: &mut Lines,
        counts: &mut Counts,
    ) -> Result<(), ClientError> {
        let timeout = Duration::from_millis(self.arguments.timeout_ms.into()) + SLACK;
        let mut over = false;
        loop {
            let full = self.in_flight.len() >= self.arguments.in_flight as usize;
            if over && self.in_flight.is_empty() {
                return Ok(());
            }
            if over || full {
                match self.answers.recv_timeout(timeout) {
                    Ok(answer) => self.take(answer?, counts),
                    Err(_) => return Err(self.late()),
                }
            } else {
                let patience = (!self.in_flight.is_empty()).then_some(Duration::from_millis(1));
                match lines.batch(patience) {
                    Next::Batch(batch, records) => self.send(&batch, records)?,
                    Next::End => over = true,
                    Next::NothingYet => {}
                }
            }
            loop {
                match self.answers.try_recv() {
                    Ok(answer) => self.take(answer?, counts),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Err(self.late()),
                }
            }
            if counts.why.is_some() {
                // Later lines must not stand where earlier ones are missing.
                over = true;
            }
        }
    }

    fn late(&self) -> ClientError {
        let timed_out = io::Error::from(ErrorKind::TimedOut);
        ClientError::Io(self.arguments.node.clone(), timed_out)
    }

    fn send(&mut self, batch: &[u8], records: u64) -> Result<(), ClientError> {
        let body = Append {
            level: self.level.number(),
            timeout_ms: self.arguments.timeout_ms,
        };
        let shard = ShardId(self.arguments.shard);
        let request = self.session.append(shard, body, batch.len());
        self.in_flight.insert(request.correlation, records);
        self.connection.send(&request, batch)
    }

    fn take(&mut self, (correlation, body, _): (u64, Body, Vec<u8>), counts: &mut Counts) {
        let Some(records) = self.in_flight.remove(&correlation) else {
            return;
        };
        match self.session.answer(correlation, body) {
            Outcome::Done(Body::AppendOk(ok)) => {
                counts.records += records;
                print_offset(self.arguments.shard, ok.base_offset.0, counts);
            }
            Outcome::Unknown(code) => {
                counts.unknown += records;
                counts
                    .why
                    .get_or_insert(ClientError::Unknown(code).to_string());
            }
            Outcome::Refused(code, details) => {
                counts.failed += records;
                let why = ClientError::Refused(code, details).to_string();
                counts.why.get_or_insert(why);
            }
            Outcome::Elsewhere(code) | Outcome::Later(code) => {
                counts.failed += records;
                let why = ClientError::Refused(code, [0, 0]).to_string();
                counts.why.get_or_insert(why);
            }
            Outcome::Done(_) | Outcome::Stray => {
                counts.unknown += records;
                counts
                    .why
                    .get_or_insert("an answer that is none".to_owned());
            }
        }
    }
}

/// Lines of standard input, read by a thread, made into batches.
struct Lines {
    lines: Receiver<io::Result<Vec<u8>>>,
    /// A line that did not fit the batch before.
    held: Option<Vec<u8>>,
    /// Lines taken so far.
    taken: u64,
    /// A line that no batch can hold: it was left out, and nothing behind it is sent.
    left_out: u64,
    /// Why no further line is taken.
    problem: Option<String>,
    most_records: u32,
    most_bytes: usize,
    linger: Duration,
}

enum Next {
    Batch(Vec<u8>, u64),
    NothingYet,
    End,
}

impl Next {
    fn ready(self) -> Option<(Vec<u8>, u64)> {
        match self {
            Next::Batch(batch, records) => Some((batch, records)),
            Next::NothingYet | Next::End => None,
        }
    }
}

impl Lines {
    fn start(arguments: &Arguments, most_bytes: usize) -> Lines {
        let (sender, lines) = sync_channel(LINES);
        thread::spawn(move || read_lines(&sender));
        Lines {
            lines,
            held: None,
            taken: 0,
            left_out: 0,
            problem: None,
            most_records: arguments.batch_records,
            most_bytes,
            linger: Duration::from_millis(arguments.linger_ms),
        }
    }

    /// The next batch; waits for its first line for `patience`, or for ever.
    fn batch(&mut self, patience: Option<Duration>) -> Next {
        let first = match self.held.take() {
            Some(line) => line,
            None => match self.line(patience) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Next::NothingYet,
                Err(RecvTimeoutError::Disconnected) => return Next::End,
            },
        };
        let mut builder = BatchBuilder::new();
        builder.push(&Record::new(now_us(), &first));
        let until = Instant::now() + self.linger;
        while builder.record_count() < self.most_records {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = self.line(Some(left)) else {
                break;
            };
            if builder.len() + HEADER + line.len() > self.most_bytes {
                self.held = Some(line);
                break;
            }
            builder.push(&Record::new(now_us(), &line));
        }
        let records = builder.record_count().into();
        Next::Batch(builder.finish(), records)
    }

    /// The next line that a batch can hold. After one that none can, or an error of the input,
    /// there is no further line: later ones must not stand where an earlier one is missing.
    fn line(&mut self, patience: Option<Duration>) -> Result<Vec<u8>, RecvTimeoutError> {
        if self.problem.is_some() {
            return Err(RecvTimeoutError::Disconnected);
        }
        let line = match patience {
            Some(patience) => self.lines.recv_timeout(patience)?,
            None => self
                .lines
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected)?,
        };
        self.taken += 1;
        let most = self.most_bytes.saturating_sub(BATCH_HEADER + HEADER);
        let problem = match line {
            Ok(line) if line.len() <= most => return Ok(line),
            Ok(line) => {
                self.left_out = 1;
                let (number, len) = (self.taken, line.len());
                format!(
                    "line {number} has {len} bytes, more than the {most} that a record may have \
                     here; mend: shorten it, or raise max_batch_bytes on all nodes"
                )
            }
            Err(error) => format!("standard input: {error}"),
        };
        self.problem = Some(problem);
        Err(RecvTimeoutError::Disconnected)
    }

    /// Lines that were read and never sent.
    fn count_rest(&mut self) -> u64 {
        let held = u64::from(self.held.take().is_some());
        let lines = std::iter::from_fn(|| self.lines.try_recv().ok());
        held + self.left_out + lines.filter(Result::is_ok).count() as u64
    }
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros() as u64)
}

fn read_lines(lines: &SyncSender<io::Result<Vec<u8>>>) {
    let mut input = io::stdin().lock();
    loop {
        let mut line = Vec::new();
        let read = match input.read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => Ok(line),
            Err(error) => Err(error),
        };
        let over = read.is_err();
        let without_end = |mut line: Vec<u8>| {
            line.pop_if(|last| *last == b'\n');
            line
        };
        if lines.send(read.map(without_end)).is_err() || over {
            return;
        }
    }
}
