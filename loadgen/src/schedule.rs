//! When the next batch is due.
//!
//! A closed loop sends whenever there is room in the window: it shows what the cluster can carry.
//! An open loop sends on a fixed timetable, whether or not earlier batches were answered, and
//! latency counts from the time on the timetable: a stall is charged to every batch that it delays
//! (wrk2). The timetable is computed from the batch's number, so that it never drifts. No clock
//! here. Read `driver/lane.rs` next.

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// As fast as the window allows.
    Max,
    /// So many records a second, over all connections.
    Records(f64),
}

impl std::str::FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        if text == "max" {
            return Ok(Rate::Max);
        }
        let rate = text
            .parse()
            .ok()
            .filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
        rate.map(Rate::Records)
            .ok_or_else(|| "neither max nor a number of records per second above 0".to_owned())
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Rate::Max => f.write_str("max"),
            Rate::Records(rate) => rate.fmt(f),
        }
    }
}

/// The timetable of one connection.
#[derive(Clone, Debug)]
pub struct Schedule {
    interval_ns: Option<f64>,
    first_ns: f64,
    sent: u64,
}

impl Schedule {
    /// The timetable of connection `index` of `connections`, which share `rate` evenly and take
    /// turns.
    pub fn new(rate: Rate, batch_records: u32, connections: u32, index: u32) -> Schedule {
        let interval_ns = match rate {
            Rate::Max => None,
            Rate::Records(rate) => {
                Some(1e9 * f64::from(batch_records) * f64::from(connections) / rate)
            }
        };
        let share = f64::from(index) / f64::from(connections);
        Schedule {
            interval_ns,
            first_ns: interval_ns.unwrap_or(0.0) * share,
            sent: 0,
        }
    }

    /// When the next batch is due, nanoseconds since the start of the run; none in a closed loop.
    pub fn due_ns(&self) -> Option<u64> {
        let interval = self.interval_ns?;
        Some((self.first_ns + interval * self.sent as f64) as u64)
    }

    /// The next batch was sent.
    pub fn advance(&mut self) {
        self.sent += 1;
    }

    /// Batches that were due before `end_ns` and not sent.
    pub fn unsent(&self, end_ns: u64) -> u64 {
        let Some(interval) = self.interval_ns else {
            return 0;
        };
        let due = ((end_ns as f64 - self.first_ns) / interval).ceil().max(0.0);
        (due as u64).saturating_sub(self.sent)
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
