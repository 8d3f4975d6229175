//! Directed runs in which the leadership changes again and again, under load.
//!
//! One change shows that somebody leads again; what a change leaves behind in links, credit and
//! tables of producers shows after many of them only. Each change is a hand-over, a death or a cut,
//! by chance. Read `scenarios_election.rs` first.

use super::node::node_id;
use super::report::Report;
use super::scenarios::{Traced, world};
use super::scenarios_election::electing;
use super::verdict::{Checked, Name, Verdict, ensure};
use super::world::World;
use millrace::shard::Event;

/// Changes of the leader in one run.
pub const CHANGES: u64 = 1000;
/// Time in which somebody else must lead, microseconds.
const LEADS_WITHIN_US: u64 = 3_000_000;
/// Time in which appends must be acknowledged again, microseconds.
const ACKED_WITHIN_US: u64 = 2_000_000;
/// Appends that must be acknowledged at `quorum` after each change.
const ACKED_AGAIN: u64 = 5;

impl World {
    /// Another node comes to lead: it is handed over to, or the leader dies or is cut off.
    fn change_leader(&mut self) -> Checked {
        let former = self.leader();
        let how = self.rng.below(10);
        match how {
            0 | 1 => self.crash_node(former, how == 0),
            2 => self.cut_off(former, true),
            _ => return self.hand_over_from(former),
        }
        self.wait_for_other(former, LEADS_WITHIN_US)?;
        match how {
            2 => self.cut_off(former, false),
            _ => self.start_node(former)?,
        }
        Ok(())
    }

    fn hand_over_from(&mut self, former: usize) -> Checked {
        let others = self.nodes.len() - 1;
        let until_us = self.now_us + LEADS_WITHIN_US;
        while self.now_us < until_us {
            // Asked again and again: one that lags is refused.
            let to = node_id((former + 1 + self.rng.index(others)) % self.nodes.len());
            self.deliver(former, Event::Promote { to })?;
            for _ in 0..20 {
                self.run_for(1_000)?;
                if self.leader() != former {
                    return Ok(());
                }
            }
        }
        ensure(false, Name::Stuck, || {
            format!("node {former} leads on after {LEADS_WITHIN_US} us of hand-overs")
        })
    }

    fn acked_again(&mut self, round: u64) -> Checked {
        let wanted = self.report.acked[2] + ACKED_AGAIN;
        let until_us = self.now_us + ACKED_WITHIN_US;
        while self.report.acked[2] < wanted {
            ensure(self.now_us < until_us, Name::Stuck, || {
                let acked = self.report.acked[2] + ACKED_AGAIN - wanted;
                format!("change {round}: {acked} appends acknowledged in {ACKED_WITHIN_US} us")
            })?;
            self.run_for(2_000)?;
        }
        Ok(())
    }
}

/// after each of a thousand changes appends are acknowledged again; at the end every lag is
/// 0, and every window is whole and the same in the books of both ends.
pub fn thousand_changes(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = electing(seed, 3);
    options.link.election_timeout_us = 200_000;
    options.link.retry_backoff_us = 5_000;
    options.retention.trim_bytes = Some(2 * options.disk.segment_bytes);
    let mut world = world(seed, options, trace)?;
    world.wait_for_leader()?;
    for round in 0..CHANGES {
        world.change_leader()?;
        world.acked_again(round)?;
    }
    world.give_back_and_rest()
}

/// producers send on, and again what has no answer, while leaders die, sleep and hand over
/// with their batches half way: each batch is in the log once.
pub fn retries_over_fail_overs(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = electing(seed, 3);
    options.link.election_timeout_us = 200_000;
    options.producers = 3;
    options.disk.latency_us = (200, 5_000);
    let mut world = world(seed, options, trace)?;
    world.wait_for_leader()?;
    for round in 0..10 {
        let moment = world.rng.between(20_000, 150_000);
        world.run_for(moment)?;
        let former = world.leader();
        if round % 3 == 2 {
            // It wakes with batches that another one may have taken in meanwhile.
            world.pause_for(former, 1_000_000);
            world.wait_for_other(former, LEADS_WITHIN_US)?;
            world.run_for(1_000_000)?;
        } else {
            world.change_leader()?;
        }
        world.acked_again(round)?;
    }
    world.give_back_and_rest()
}
