//! What a chaos run says at its end: a table of what was done, the figures, the verdict.
//!
//! Only judges what `mod.rs` has gathered. Gaps are times between two acks of one shard, of
//! whatever producer. Read `checker.rs` for the judgement of the records.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use super::faults::{Event, Kind};
use super::history::{End, History};
use super::{ACKED_PERCENT, Seen};
use crate::Failure;
use crate::lab::accounts;
use crate::report::grouped;

/// How long after its end a disturbance may still cost time.
const AFTERMATH_US: u64 = 5_000_000;

/// When each shard had its acks, in order.
struct Acks(Vec<Vec<u64>>);

impl Acks {
    /// Beginning and end of the load stand among them: a shard that is never acked again has a gap
    /// up to the end.
    fn of(history: &History, shards: u16, lasted_us: u64) -> Acks {
        let mut shards = vec![vec![0, lasted_us]; usize::from(shards)];
        for append in history.appends() {
            if let End::Acked(_) = append.end {
                shards[usize::from(append.shard)].push(append.ended_us);
            }
        }
        shards.iter_mut().for_each(|acks| acks.sort_unstable());
        Acks(shards)
    }

    /// The longest time without an ack of a shard that touches this span, from its beginning on,
    /// milliseconds: what was missing before has another reason.
    fn longest_ms(&self, shard: u16, from_us: u64, to_us: u64) -> u64 {
        let acks = self
            .0
            .get(usize::from(shard))
            .map_or(&[][..], Vec::as_slice);
        let first = acks.partition_point(|at| *at < from_us).saturating_sub(1);
        let pairs = acks[first..].windows(2);
        let touching = pairs.take_while(|pair| pair[0] < to_us);
        let within = touching.map(|pair| pair[1].saturating_sub(pair[0].max(from_us)));
        within.max().unwrap_or(0) / 1000
    }

    /// The longest of any shard while this was done, and shortly after.
    fn worst_ms(&self, event: &Event) -> u64 {
        let shards = 0..self.0.len() as u16;
        let to_us = event.to_us + AFTERMATH_US;
        let gaps = shards.map(|shard| self.longest_ms(shard, event.from_us, to_us));
        gaps.max().unwrap_or(0)
    }

    /// The longest that the shards of a killed leader were without an ack.
    fn without_leader_ms(&self, event: &Event) -> u64 {
        let to_us = event.from_us + AFTERMATH_US;
        let shards = event.led.iter();
        let gaps = shards.map(|shard| self.longest_ms(*shard, event.from_us, to_us));
        gaps.max().unwrap_or(0)
    }
}

/// What does not hold, in sentences; empty if everything does.
pub fn failures(seen: &Seen) -> Vec<String> {
    let mut failures = seen.failures.clone();
    let acks = Acks::of(&seen.history, seen.shards, seen.lasted_us);
    if !seen.verdict.holds() {
        failures.push("the logs do not hold what clients were told, see above".to_owned());
    }
    for (what, is_found) in seen.red {
        if !is_found {
            failures.push(format!("the checker does not find {what}"));
        }
    }
    let [made, acked, ..] = seen.history.counts();
    if acked * 100 < made * ACKED_PERCENT {
        failures.push(format!(
            "{acked} of {made} appends were acked, below {ACKED_PERCENT} percent"
        ));
    }
    match seen.leader_changes {
        Some(asked) => changes(seen, &acks, asked, &mut failures),
        None => {
            kinds(seen, &mut failures);
            kills(seen, &acks, &mut failures);
        }
    }
    failures
}

/// Kinds of faults that came about too seldom, or that did nothing.
fn kinds(seen: &Seen, failures: &mut Vec<String>) {
    let done = |kind: Kind| {
        let events = seen.events.iter();
        events.filter(move |event| event.kind == kind && event.is_done)
    };
    let drawn = |kind: &Kind| seen.has_clocks || *kind != Kind::Clock;
    for kind in Kind::ALL.into_iter().filter(drawn) {
        let times = done(kind).count();
        if times < seen.least_of_a_kind {
            let (name, least) = (kind.name(), seen.least_of_a_kind);
            failures.push(format!("{name} came about {times} times, not {least}"));
        }
    }
    if done(Kind::Corruption).next().is_some() && seen.flips == 0 {
        failures.push("corruption changed no byte on its way".to_owned());
    }
}

/// What the kill of a leader must not cost while other things are done as well.
fn kills(seen: &Seen, acks: &Acks, failures: &mut Vec<String>) {
    for event in &seen.events {
        let gap_ms = acks.without_leader_ms(event);
        if gap_ms > seen.gap_ms {
            let at = event.from_us as f64 / 1e6;
            failures.push(format!(
                "{gap_ms} ms without an ack after the kill of a leader at {at:.1} s, {}",
                event.text
            ));
        }
    }
}

/// What changes of leader alone must not cost.
fn changes(seen: &Seen, acks: &Acks, asked: u32, failures: &mut Vec<String>) {
    let done = seen.events.iter().filter(|event| event.is_done).count();
    if done < asked as usize {
        failures.push(format!("{done} of {asked} changes of leader came about"));
    }
    let [_, acked, ..] = seen.history.counts();
    let rate = acked * 1_000_000 / seen.lasted_us.max(1);
    let least = seen.rate * 5 / 6;
    if rate < least {
        failures.push(format!("{rate} appends/s were acked, {least} are needed"));
    }
    for shard in 0..acks.0.len() as u16 {
        let gap_ms = acks.longest_ms(shard, 0, u64::MAX);
        if gap_ms > seen.gap_ms {
            failures.push(format!("shard {shard} was without an ack for {gap_ms} ms"));
        }
    }
}

/// Prints it.
pub fn show(seen: &Seen) -> Result<(), Failure> {
    let acks = Acks::of(&seen.history, seen.shards, seen.lasted_us);
    let mut out = done(seen, &acks);
    if seen.leader_changes.is_some() {
        out.push_str(&accounts::table(&seen.accounts));
        let shards = 0..acks.0.len() as u16;
        let gaps: Vec<u64> = shards
            .map(|shard| acks.longest_ms(shard, 0, u64::MAX))
            .collect();
        let _ = writeln!(out, "gaps        longest of each shard, ms: {gaps:?}");
    }
    out.push_str(&figures(seen));
    for (what, is_found) in seen.red {
        let found = if is_found { "found" } else { "NOT FOUND" };
        let _ = writeln!(out, "checker     {what}: {found}");
    }
    let _ = write!(out, "{}", seen.verdict);
    let failures = failures(seen);
    for failure in &failures {
        let _ = writeln!(out, "FAILED      {failure}");
    }
    let word = if failures.is_empty() { "ok" } else { "NOT OK" };
    let _ = writeln!(
        out,
        "{word:<11} {} acks, {} faults, {} wrong; seed {}",
        grouped(seen.history.counts()[1]),
        seen.events.len(),
        failures.len(),
        seen.seed
    );
    io::stdout()
        .write_all(out.as_bytes())
        .map_err(Failure::failed)
}

/// The table of what was done, and what the kills of leaders cost.
fn done(seen: &Seen, acks: &Acks) -> String {
    let mut out = format!(
        "{:<18} {:>5} {:>27}\n",
        "fault", "times", "longest write gap, ms"
    );
    let drawn = |kind: &Kind| {
        seen.leader_changes.is_none() || matches!(kind, Kind::LeaderKill | Kind::Promotion)
    };
    for kind in Kind::ALL.into_iter().filter(drawn) {
        let events = || seen.events.iter().filter(move |event| event.kind == kind);
        let gap_ms = events().map(|event| acks.worst_ms(event)).max();
        let _ = writeln!(
            out,
            "{:<18} {:>5} {:>27}",
            kind.name(),
            events().filter(|event| event.is_done).count(),
            gap_ms.map_or("-".to_owned(), |ms| ms.to_string())
        );
    }
    let killed = seen.events.iter().filter(|event| !event.led.is_empty());
    let mut kills: Vec<u64> = killed.map(|event| acks.without_leader_ms(event)).collect();
    kills.sort_unstable();
    let _ = writeln!(
        out,
        "gaps        after each kill of a leader, ms: {kills:?}"
    );
    out
}

/// What was appended, read and compared.
fn figures(seen: &Seen) -> String {
    let [made, acked, failed, unknown] = seen.history.counts();
    let verdict = &seen.verdict;
    let reads = seen.history.reads.iter();
    let reads: usize = reads.map(|reads| reads.records.len()).sum();
    format!(
        "appends     {} in {:.0} s: acked {} ({:.1} percent), refused {}, \
         unknown {} of which {} are there\n\
         logs        {} records, {} acks proven, {} acks at `leader` cut by a change of leader; {} \
         committed reads; {} bytes of segments compared; {} bytes changed on the way\n",
        grouped(made),
        seen.lasted_us as f64 / 1e6,
        grouped(acked),
        100.0 * acked as f64 / made.max(1) as f64,
        grouped(failed),
        grouped(unknown),
        grouped(verdict.unknown_there),
        grouped(verdict.records),
        grouped(verdict.proven),
        grouped(verdict.cut),
        grouped(reads as u64),
        grouped(seen.compared_bytes),
        grouped(seen.flips)
    )
}

#[cfg(test)]
mod tests {
    use super::super::history::{Append, Producer};
    use super::*;
    use millrace::types::Level;

    #[test]
    fn a_gap_counts_from_what_was_done_on() {
        let acks = Acks(vec![vec![1_000_000, 5_000_000, 5_100_000, 9_000_000]]);
        // The gap from 1 s to 5 s was there before; of it the last second counts.
        assert_eq!(acks.longest_ms(0, 4_000_000, 5_050_000), 1_000);
        assert_eq!(acks.longest_ms(0, 4_000_000, 6_000_000), 3_900);
        assert_eq!(acks.longest_ms(0, 0, u64::MAX), 4_000);
        assert_eq!(acks.longest_ms(7, 0, u64::MAX), 0);
    }

    #[test]
    fn a_shard_that_is_acked_no_more_has_a_gap_up_to_the_end() {
        let append = |ended_us| Append {
            shard: 0,
            sequence: 0,
            digest: 0,
            level: Level::Quorum,
            invoked_us: 0,
            ended_us,
            end: End::Acked(0),
        };
        let mut history = History::default();
        let mut producer = Producer::default();
        producer
            .appends
            .extend([append(1_000_000), append(2_000_000)]);
        history.producers.push(producer);
        let acks = Acks::of(&history, 2, 9_000_000);
        assert_eq!(acks.longest_ms(0, 2_500_000, 3_000_000), 6_500);
        assert_eq!(acks.longest_ms(1, 2_500_000, 3_000_000), 6_500);
    }
}
