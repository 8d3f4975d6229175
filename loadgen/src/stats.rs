//! What a run counts: records by outcome, latencies, acknowledgements by log.
//!
//! Two counts run side by side. `total` holds the whole run, the warm-up included, and is what the
//! ledger proves; `measured` and the latencies hold what was due within the measured time. Latency
//! is in microseconds from the time a batch was due to its ack, once a batch; a refused batch has
//! none. No clock here: times are nanoseconds since the start of the run. Read `report.rs` next.

use hdrhistogram::Histogram;

use crate::ledger::State;

/// Longest latency told apart, microseconds; longer ones count as this long.
const LONGEST_US: u64 = 600_000_000;

/// Records by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent.
    pub appended: u64,
    /// Acknowledged at their level.
    pub acked: u64,
    /// Refused: in no log.
    pub failed: u64,
    /// Without a sure outcome.
    pub unknown: u64,
}

impl Counts {
    fn end(&mut self, state: State, records: u64) {
        match state {
            State::Acked(_) => self.acked += records,
            State::Failed(_) => self.failed += records,
            State::Unknown(_) => self.unknown += records,
        }
    }
}

/// All that a run counts.
#[derive(Debug)]
pub struct Stats {
    /// The whole run.
    pub total: Counts,
    /// What was due within the measured time.
    pub measured: Counts,
    /// Of what was measured, microseconds.
    pub latency_us: Histogram<u64>,
    /// Of the current second of progress, microseconds.
    pub second_us: Histogram<u64>,
    /// Time of the last ack of a measured batch.
    pub last_ack_ns: u64,
    /// Acked records of the whole run, by log, in the order of the plan.
    pub acked_by_log: Vec<u64>,
    /// The longest time between two acks of each log of which any was acknowledged.
    pub gap_ns_by_log: Vec<u64>,
    last_ack_by_log: Vec<Option<u64>>,
    /// When nothing more was sent.
    over_ns: u64,
    /// Records that were due and never sent.
    pub unsent: u64,
    /// Bytes of all batches before their codec, and as sent.
    pub batch_bytes: [u64; 2],
    from_ns: u64,
}

impl Stats {
    /// Nothing counted yet; what is due before `from_ns` is warm-up.
    pub fn new(from_ns: u64, logs: usize) -> Stats {
        let histogram = || Histogram::new_with_bounds(1, LONGEST_US, 3).expect("fixed bounds");
        Stats {
            total: Counts::default(),
            measured: Counts::default(),
            latency_us: histogram(),
            second_us: histogram(),
            last_ack_ns: from_ns,
            acked_by_log: vec![0; logs],
            gap_ns_by_log: vec![0; logs],
            last_ack_by_log: vec![None; logs],
            over_ns: 0,
            unsent: 0,
            batch_bytes: [0; 2],
            from_ns,
        }
    }

    /// A batch of `raw` bytes is sent as `stored` bytes.
    pub fn packed(&mut self, raw: usize, stored: usize) {
        self.batch_bytes[0] += raw as u64;
        self.batch_bytes[1] += stored as u64;
    }

    /// A batch that was due at `due_ns` is on its way.
    pub fn sent(&mut self, records: u32, due_ns: u64) {
        self.total.appended += u64::from(records);
        if due_ns >= self.from_ns {
            self.measured.appended += u64::from(records);
        }
    }

    /// A batch has come to its end.
    pub fn ended(&mut self, state: State, log: usize, records: u32, due_ns: u64, now_ns: u64) {
        let records = u64::from(records);
        self.total.end(state, records);
        let measured = due_ns >= self.from_ns;
        if measured {
            self.measured.end(state, records);
        }
        if let State::Acked(_) = state {
            self.acked_by_log[log] += records;
            self.gap(log, now_ns);
            self.last_ack_by_log[log] = Some(now_ns);
            let latency_us = now_ns.saturating_sub(due_ns) / 1000;
            self.second_us.saturating_record(latency_us);
            if measured {
                self.latency_us.saturating_record(latency_us);
                self.last_ack_ns = self.last_ack_ns.max(now_ns);
            }
        }
    }

    /// Nothing more was sent from `over_ns` on, and everything has its end: a log that had gone
    /// silent had a gap up to now.
    pub fn close(&mut self, over_ns: u64, now_ns: u64) {
        self.over_ns = over_ns;
        (0..self.gap_ns_by_log.len()).for_each(|log| self.gap(log, now_ns));
    }

    fn gap(&mut self, log: usize, now_ns: u64) {
        if let Some(last) = self.last_ack_by_log[log] {
            let gap = &mut self.gap_ns_by_log[log];
            *gap = (*gap).max(now_ns.saturating_sub(last));
        }
    }

    /// Seconds from the start until nothing more was sent.
    pub fn load_s(&self) -> f64 {
        self.over_ns as f64 / 1e9
    }

    /// Seconds from the start of the measured time to the last ack in it.
    pub fn measured_s(&self) -> f64 {
        (self.last_ack_ns - self.from_ns) as f64 / 1e9
    }
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
