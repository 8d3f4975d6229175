//! The watch: progress for people once a second and for programs at every tick, an end to
//! connections that answer no more, and to a load that would fill the disk.
//!
//! A node that hangs answers nothing, not even `Unknown`. A batch unanswered for its own time-out
//! and some grace breaks its connection, which makes all that is open on it unknown. It only ever
//! shuts sockets down: the lane and the reader draw the conclusions. Read `session.rs` for those.

use std::fs::File;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Run, say};
use crate::lab::space::free_bytes;
use crate::stats::Counts;

const TICK: Duration = Duration::from_millis(100);
const TICKS_PER_LINE: u32 = 10;

/// What is left free on the nodes' disk: more than they can write between two looks and while they
/// end what is under way.
const DISK_RESERVE: u64 = 2 << 30;

/// How long past its time-out an answer may be late.
const GRACE_NS: u64 = 5_000_000_000;

pub(super) async fn run(run: Rc<Run>) {
    let mut line = Line::default();
    let mut acks = Acks::open(&run);
    for tick in 1.. {
        glommio::timer::sleep(TICK).await;
        // Once more at the end, so that the last line has everything.
        acks.enter(&run);
        if run.done.get() {
            return;
        }
        break_hung_sessions(&run);
        end_before_the_disk_is_full(&run);
        if tick % TICKS_PER_LINE == 0 {
            line.print(&run);
        }
    }
}

fn break_hung_sessions(run: &Run) {
    let late_ns = u64::from(run.plan.timeout_ms) * 1_000_000 + GRACE_NS;
    let now_ns = run.now_ns();
    for session in run.sessions.borrow().values() {
        if session
            .oldest_sent_ns()
            .is_some_and(|sent| now_ns >= sent + late_ns)
        {
            session.shut();
        }
    }
}

fn end_before_the_disk_is_full(run: &Run) {
    let Some(disk) = run.plan.disk.as_deref().filter(|_| !run.full.get()) else {
        return;
    };
    if free_bytes(disk).is_some_and(|free| free < DISK_RESERVE) {
        run.full.set(true);
        let (disk, gb) = (disk.display(), DISK_RESERVE as f64 / 1e9);
        say(&format!(
            "the load ends early: less than {gb:.1} GB are free at {disk}"
        ));
    }
}

/// The last line printed.
#[derive(Default)]
struct Line {
    at_ns: u64,
    acked: u64,
}

impl Line {
    fn print(&mut self, run: &Run) {
        let mut stats = run.stats.borrow_mut();
        let now_ns = run.now_ns();
        let Counts {
            acked,
            failed,
            unknown,
            ..
        } = stats.total;
        let seconds = (now_ns - self.at_ns) as f64 / 1e9;
        let rate = (acked - self.acked) as f64 / seconds;
        let mb = rate * run.plan.record_bytes as f64 / 1e6;
        let p99_ms = stats.second_us.value_at_quantile(0.99) as f64 / 1000.0;
        stats.second_us.reset();
        let phase = if now_ns < run.plan.warmup.as_nanos() as u64 {
            "warm-up "
        } else if now_ns >= run.end_ns {
            "ending  "
        } else {
            ""
        };
        say(&format!(
            "{:>5.0} s  {phase}{rate:>9.0} records/s  {mb:>7.1} MB/s  p99 {p99_ms:>8.2} ms  \
             acked {acked}  failed {failed}  unknown {unknown}",
            now_ns as f64 / 1e9
        ));
        *self = Line {
            at_ns: now_ns,
            acked,
        };
    }
}

/// The file of acks so far; none if it was not asked for or cannot be written.
struct Acks(Option<File>);

impl Acks {
    fn open(run: &Run) -> Acks {
        let path = run.plan.acks.as_ref();
        let mut acks = Acks(None);
        match path.map(|path| File::options().append(true).open(path)) {
            Some(Ok(file)) => acks.0 = Some(file),
            Some(Err(error)) => say(&format!("--acks: {error}")),
            None => {}
        }
        acks
    }

    fn enter(&mut self, run: &Run) {
        let Some(file) = &mut self.0 else { return };
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut line = since.unwrap_or_default().as_millis().to_string();
        for acked in &run.stats.borrow().acked_by_log {
            line.push_str(&format!(" {acked}"));
        }
        line.push('\n');
        // In one write, so that whoever reads along sees whole lines.
        if let Err(error) = file.write_all(line.as_bytes()) {
            say(&format!("--acks: {error}; no more of them"));
            self.0 = None;
        }
    }
}
