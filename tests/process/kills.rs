//! `kill -9` of one node after the other under load, and what the client saw of it.
//!
//! Owns the scenario of `three_nodes_survive_kills_under_load` and of `scripts/kill`, which only
//! differ in numbers: one run of the load generator goes through all of it. Each node is down for
//! one to two seconds and is started again. Every other time the next one dies as soon as acks come
//! at their rate again, and so perhaps while the former one still catches up. Read `load.rs` for
//! how acks are measured.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::load::{Acks, BATCH, CONNECTIONS, IN_FLIGHT, Load, Run, now_ms, verify};

/// Within this time after the return of a node every shard must ack again.
pub const RESUME_LIMIT: Duration = Duration::from_secs(10);
/// So many records must be acked in the second before a kill.
pub const ACKS_BEFORE: u64 = 10_000;

/// What to do.
pub struct Plan {
    /// How often each node is killed.
    pub rounds: usize,
    /// Records a second.
    pub rate: u64,
    /// The shortest time that a node is down; the longest is twice this.
    pub down: Duration,
}

/// One kill.
struct Kill {
    node: usize,
    at_ms: u64,
    back_ms: u64,
}

/// What a shard did around a kill.
struct Gap {
    /// The longest time without an ack from the kill on.
    stalled_ms: u64,
    /// From the node's return to the first ack after it.
    resumed_ms: Option<u64>,
}

/// What came of it all.
pub struct Outcome {
    kills: Vec<Kill>,
    acks: Acks,
    run: Run,
}

/// Carries out the plan with three nodes and prints what came of it. Fails the test if a shard does
/// not come back or the files do not hold what was acked.
pub fn carry_out(plan: &Plan) -> Outcome {
    let start = Instant::now();
    let mut cluster = Cluster::start(3);
    let load = Load::start(&cluster, "load", plan.rate);
    let mut kills = Vec::new();
    for number in 0..plan.rounds * 3 {
        let node = number % 3 + 1;
        if number % 2 == 0 {
            std::thread::sleep(Duration::from_secs(1));
        }
        load.wait_until_acks(ACKS_BEFORE, Duration::from_secs(20));
        let at_ms = now_ms();
        cluster.kill(node);
        // Any times will do, if only they differ.
        let more = number as u32 * 7 % 10;
        std::thread::sleep(plan.down + plan.down * more / 10);
        cluster.start_node(node);
        let back_ms = now_ms();
        load.wait_until_resumed(back_ms, RESUME_LIMIT);
        kills.push(Kill {
            node,
            at_ms,
            back_ms,
        });
    }
    load.wait_until_acks(ACKS_BEFORE, Duration::from_secs(20));
    let acks = load.acks();
    let run = load.finish();
    cluster.wait_until_equal(Duration::from_secs(30));
    assert_nothing_encoded(&cluster);
    cluster.stop_all();
    let outcome = Outcome { kills, acks, run };
    // Before the verdict: whoever has to find out what went wrong wants to see the kills.
    println!("{}", outcome.table());
    let verdict = verify(&cluster, &outcome.run);
    print_verdict(&verdict, start.elapsed());
    outcome
}

/// Followers, and leaders too, hand on the bytes that the client made.
fn assert_nothing_encoded(cluster: &Cluster) {
    for node in cluster.ids() {
        let status = cluster.status(node).expect("the node answers");
        assert_eq!(status["counters"]["records_encoded"], 0, "node {node}");
        assert_eq!(status["counters"]["crc_failures"], 0, "node {node}");
    }
}

impl Outcome {
    fn gap(&self, kill: &Kill, shard: usize) -> Gap {
        let first_ms = self.acks.first_after(shard, kill.back_ms);
        let until_ms = first_ms.unwrap_or(u64::MAX);
        Gap {
            stalled_ms: self.acks.longest_stall_ms(shard, kill.at_ms, until_ms),
            resumed_ms: first_ms.map(|ms| ms - kill.back_ms),
        }
    }

    /// Holds the outcome against all that was promised.
    pub fn assert_holds(&self) {
        for (index, kill) in self.kills.iter().enumerate() {
            let before = self.acks.in_the_second_before(kill.at_ms);
            assert!(
                before >= ACKS_BEFORE,
                "kill {}: {before} acks before",
                index + 1
            );
            for shard in 0..3 {
                let resumed_ms = self.gap(kill, shard).resumed_ms.expect("acks resume");
                assert!(
                    u128::from(resumed_ms) <= RESUME_LIMIT.as_millis(),
                    "shard {shard}"
                );
            }
        }
        let [appended, acked, failed, unknown] = self.totals();
        assert_eq!(appended, acked + failed + unknown);
        assert!(acked * 10 >= appended * 9, "{acked} of {appended} acked");
        // A node that dies leaves open what its own connections had open: whoever sent to a dead
        // leader all the same, or kept knocking at one that was not ready, would show here.
        let most = self.kills.len() as u64 * CONNECTIONS * IN_FLIGHT * BATCH;
        assert!(unknown <= most, "{unknown} unknown, at most {most}");
        assert!(failed <= most, "{failed} refused, at most {most}");
    }

    fn totals(&self) -> [u64; 4] {
        ["appended", "acked", "failed", "unknown"].map(|outcome| self.run.records(outcome))
    }

    /// The table for people.
    fn table(&self) -> String {
        let mut out = String::from(
            "per shard: longest time without an ack from the kill on / from the node's return to \
             the next ack, ms\n\
             kill  node  acked in the second before  down ms          shard 0          shard 1  \
             shard 2\n",
        );
        for (index, kill) in self.kills.iter().enumerate() {
            let _ = write!(
                out,
                "{:>4}  {:>4}  {:>26}  {:>7}",
                index + 1,
                kill.node,
                self.acks.in_the_second_before(kill.at_ms),
                kill.back_ms - kill.at_ms
            );
            for shard in 0..3 {
                let gap = self.gap(kill, shard);
                let resumed = gap
                    .resumed_ms
                    .map_or("never".to_owned(), |ms| ms.to_string());
                let _ = write!(out, "  {:>15}", format!("{} / {resumed}", gap.stalled_ms));
            }
            out.push('\n');
        }
        let [appended, acked, failed, unknown] = self.totals();
        let share = acked as f64 * 100.0 / appended as f64;
        let _ = writeln!(
            out,
            "records: appended {appended}  acked {acked} ({share:.2} %)  refused {failed}  unknown \
             {unknown}"
        );
        for refusal in &self.run.refusals {
            let _ = writeln!(out, "refused: {refusal}");
        }
        out
    }
}

fn print_verdict(verdict: &Value, took: Duration) {
    println!(
        "verdict: checked {}  missing {}  duplicated {}  corrupt {}  unknown but there {}  \
         replicas identical {}  in {:.0} s",
        verdict["checked"],
        verdict["missing"],
        verdict["duplicated"],
        verdict["corrupt"],
        verdict["nodes"][0]["unknown_present"],
        verdict["replicas_identical"],
        took.as_secs_f64()
    );
}
