//! The end of a run: everything is mended, and the set must come to rest in bounded time.
//!
//! Heal, restart, let the clients finish; then every lag must reach 0, new appends at every level
//! must be acknowledged, credit and memory must be back where they began, all copies must agree,
//! and a clean stop must give every buffer back. Read `log_checks.rs` for what is checked of the
//! logs.

use super::checker::{books_agree, credit_at_rest, done_in_time, memory_held};
use super::client::Client;
use super::log_checks::NodeLog;
use super::node::node_index;
use super::producer::ProducerSide;
use super::rng::Chance;
use super::verdict::{Checked, Verdict};
use super::world::World;
use millrace::shard::Event;
use millrace::shard::status::{LinkStatus, Role, ShardStatus};
use millrace::types::Level;

/// Virtual time in which the set must come to rest, microseconds.
pub const REST_WITHIN_US: u64 = 20_000_000;
/// Time between two looks, microseconds.
const LOOK_EVERY_US: u64 = 5_000;
/// Appends at each level that must succeed at the end.
const PROBES: usize = 3;

impl World {
    /// The liveness phase and the final checks.
    pub fn come_to_rest(&mut self) -> Checked {
        self.mend()?;
        self.wait_for("the clients to finish", |world| {
            let done = |client: &Client| {
                let producer = client.producer.as_ref();
                client.waiting.is_empty() && producer.is_none_or(ProducerSide::is_done)
            };
            Ok(world.clients.iter().all(done))
        })?;
        self.wait_for("all lags to reach 0", World::at_rest)?;
        self.check_producers()?;
        self.scrub_all()?;
        self.probe()?;
        self.wait_for("all lags to reach 0 again", World::at_rest)?;
        self.check_producers()?;
        self.readers_at_end()?;
        self.check_logs()?;
        self.check_credit()?;
        self.check_books()?;
        self.stop_all()
    }

    /// Ends every fault.
    pub fn mend(&mut self) -> Checked {
        self.note(format_args!("the faults end"));
        self.chaos.active = false;
        self.clients_active = false;
        self.options.network.spike = Chance::NEVER;
        self.options.disk.slow = Chance::NEVER;
        self.options.disk.latency_us = (20, 80);
        self.net.options = self.options.network.clone();
        self.net.heal(self.now_us);
        for node in 0..self.nodes.len() {
            *self.nodes[node].disk.options_mut() = self.options.disk.clone();
            self.nodes[node].disk.forget_injected();
            let run = self.nodes[node].run;
            self.unpause(node, run)?;
            self.start_node(node)?;
        }
        for node in 0..self.nodes.len() {
            for peer in (0..self.nodes.len()).filter(|peer| *peer != node) {
                self.pause_link(node, peer, false)?;
            }
        }
        Ok(())
    }

    /// Lets time pass until `done`, within the bound.
    pub fn wait_for(
        &mut self,
        what: &str,
        done: impl Fn(&mut World) -> Result<bool, Verdict>,
    ) -> Checked {
        let until_us = self.now_us + REST_WITHIN_US;
        while self.now_us < until_us {
            if done(self)? {
                return Ok(());
            }
            self.run_until(self.now_us + LOOK_EVERY_US)?;
        }
        let states: Vec<String> = (0..self.nodes.len()).map(|n| self.state_of(n)).collect();
        done_in_time(false, || {
            format!(
                "{what}: not within {REST_WITHIN_US} us; {}",
                states.join("; ")
            )
        })
    }

    fn state_of(&self, node: usize) -> String {
        let at = &self.nodes[node];
        let Some(process) = &at.process else {
            return format!("n{node} is down");
        };
        let status = process.shard.status(at.time(self.now_us));
        format!("n{node} {status:?}")
    }

    fn statuses(&mut self) -> Result<Option<Vec<ShardStatus>>, Verdict> {
        if self.nodes.iter().any(|node| !node.awake()) {
            return Ok(None);
        }
        let nodes = 0..self.nodes.len();
        nodes
            .map(|node| self.observe(node))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// Whether the placed leader leads (in an electing set the leadership comes back to it), and
    /// everybody has and knows everything.
    pub fn at_rest(&mut self) -> Result<bool, Verdict> {
        let Some(statuses) = self.statuses()? else {
            return Ok(false);
        };
        let leader = &statuses[self.options.leader];
        let links = leader.links.iter().all(|link| {
            link.status == LinkStatus::Replicating
                && link.lag_records == 0
                && link.matched == leader.log_end
                && link.sent == leader.log_end
        });
        let everywhere = statuses.iter().all(|status| {
            status.high_watermark == leader.log_end
                && status.durable_end == leader.log_end
                && status.log_end == leader.log_end
                && !status.is_full
        });
        let open = leader.role == Role::Leader && leader.links.len() + 1 == statuses.len();
        Ok(open && links && everywhere)
    }

    /// New appends at every level are acknowledged.
    pub fn probe(&mut self) -> Checked {
        let leader = self.options.leader;
        // It is given its shard back only a while after it declined for want of space.
        self.wait_for("the preferred member to lead", move |world| {
            Ok(!world.options.electing || world.leader() == leader)
        })?;
        for client in 0..self.clients.len() {
            self.hang_up(client)?;
            let connected = self.connect(client, leader);
            done_in_time(connected, || "the leader is not up".to_owned())?;
        }
        let before = self.report.acked;
        let mut sent = [0; 3];
        for level in Level::ALL {
            for client in 0..self.clients.len() {
                for _ in 0..PROBES {
                    self.append(client, level, true);
                    sent[usize::from(level.number()) - 1] += 1;
                }
            }
        }
        self.wait_for("new appends to be acknowledged", move |world| {
            let acked = world.report.acked;
            Ok((0..3).all(|level| acked[level] == before[level] + sent[level]))
        })
    }

    /// All copies of the log against each other and against what was acknowledged.
    pub fn check_logs(&mut self) -> Checked {
        let end = self.checker.committed_end();
        let logs: Vec<NodeLog> = self
            .nodes
            .iter()
            .map(|node| NodeLog {
                node: node.index,
                blocks: node.image.below(end),
                files: node.image.files_below(end, &node.disk),
            })
            .collect();
        self.report.outcome = self.checker.at_rest(&logs)?;
        Ok(())
    }

    /// Credit is what was granted, once nothing is in flight.
    pub fn check_credit(&mut self) -> Checked {
        let leader = self.options.leader;
        let granted = (
            self.options.link.initial_credit,
            self.options.link.initial_credit_bytes,
        );
        for link in self.observe(leader)?.links {
            credit_at_rest(
                &format!("link to {}", link.peer),
                (link.credit_records, granted.0),
                (link.credit_bytes, granted.1),
            )?;
        }
        Ok(())
    }

    /// What the leader says it sent and was granted on each link is what the follower says it got
    /// and granted, once nothing is in flight.
    pub fn check_books(&mut self) -> Checked {
        for link in self.observe(self.options.leader)?.links {
            let name = format!("link to {}", link.peer);
            let (here, there) = (link.account, self.observe(node_index(link.peer))?.granted);
            books_agree(&name, (here.used, here.limit), (there.used, there.limit))?;
        }
        Ok(())
    }

    /// A clean stop gives every buffer back.
    pub fn stop_all(&mut self) -> Checked {
        for node in 0..self.nodes.len() {
            let counters = self.observe(node)?.counters;
            self.report.blocks_cut += counters.blocks_cut;
            self.report.resets += counters.resets;
            self.deliver(node, Event::Stop)?;
        }
        self.wait_for("the nodes to stop", |world| {
            let mut processes = world.nodes.iter().filter_map(|node| node.process.as_ref());
            Ok(processes.all(|process| process.stopped))
        })?;
        self.run_until(self.now_us + 1_000_000)?;
        for node in &self.nodes {
            let held = node
                .process
                .as_ref()
                .map(|process| process.buffers.used_bytes());
            memory_held(node.index, held.unwrap_or(0), 0, "after a clean stop")?;
        }
        Ok(())
    }
}
