//! What the clients of a run do to have their batches in the log once, and to read what stays.
//!
//! Retries of producers, and readers that follow `local` reads. Read `producer.rs` and `reader.rs`
//! for what they remember, `world_client.rs` for requests.

use super::checker::done_in_time;
use super::client::{ClientRequest, Waiting};
use super::facts::BatchFacts;
use super::producer::ProducerSide;
use super::verdict::{Checked, Name, ensure};
use super::world::World;
use millrace::types::{Level, ReadLevel};
use millrace::wire::body::Body;
use millrace::wire::code::Code;

impl World {
    /// A producer sends again what has no answer coming, in order; whether it may make more.
    pub fn retry(&mut self, client: usize) -> bool {
        let at = &mut self.clients[client];
        let session = at.session.expect("connected");
        let Some(producer) = &mut at.producer else {
            return true;
        };
        let mut again = Vec::new();
        let restless = self.clients_active && at.rng.below(3) == 0;
        for one in producer.unacked.iter_mut().filter(|one| one.on.is_none()) {
            if restless {
                one.level = *at.rng.pick(&Level::ALL);
            }
            one.on = Some(session.connection);
            again.push((one.id, one.batch.clone(), one.level));
        }
        let owed: Vec<Level> = producer.owed.drain(..).collect();
        self.report.retries += again.len() as u64;
        for (id, batch, level) in again {
            self.send_append(client, id, batch, level, !self.clients_active);
        }
        for level in owed {
            self.append(client, level, !self.clients_active);
        }
        let producer = self.clients[client].producer.as_ref();
        producer.is_none_or(ProducerSide::has_room)
    }

    /// Reads on where the client's copy ends.
    pub fn read_on(&mut self, client: usize) {
        let at = &mut self.clients[client];
        let (offset, last_epoch) = (at.copy.end(), at.copy.last_epoch());
        let level = ReadLevel::Local;
        let wait_ms = *at.rng.pick(&[0, 5, 50]);
        let request = ClientRequest::Read {
            offset,
            max_bytes: 1 << 14,
            wait_ms,
            level,
            last_epoch,
        };
        let waiting = Waiting::Read {
            offset,
            level,
            last_epoch,
        };
        self.request(client, request, waiting, wait_ms);
    }

    /// A node answers a read that named the reader's last batch.
    pub fn followed(
        &mut self,
        (node, client): (usize, usize),
        (asked, last_epoch): (u64, u32),
        body: &Body,
        batches: &[BatchFacts],
    ) -> Checked {
        let copy = &mut self.clients[client].copy;
        match body {
            Body::ReadOk(_) if copy.goes_on(asked, last_epoch) => copy.take_in(batches),
            Body::Error(error)
                if error.code == Code::OutOfRange.number()
                    && copy.goes_on(asked, last_epoch)
                    && asked < error.detail =>
            {
                copy.begin_at(error.detail);
            }
            Body::Error(error) if error.code == Code::Timeout.number() => {
                copy.confirmed |= copy.goes_on(asked, last_epoch);
            }
            Body::Error(error) if error.code == Code::Truncated.number() => {
                ensure(error.detail < asked, Name::ReadWrong, || {
                    format!("node {node}: {error:?} to a reader at {asked}")
                })?;
                if copy.goes_on(asked, last_epoch) {
                    let last = copy.batches().last();
                    let there = last.is_some_and(|last| self.checker.is_committed(last));
                    ensure(!there, Name::ReadWrong, || {
                        format!("node {node}: {error:?}, and {last:?} is committed")
                    })?;
                    copy.truncate(error.detail);
                    self.report.truncated_reads += 1;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Every reader asks once more with its last batch; then its copy is the committed log.
    pub fn readers_at_end(&mut self) -> Checked {
        let leader = self.options.leader;
        for client in 0..self.clients.len() {
            self.hang_up(client)?;
            let connected = self.connect(client, leader);
            done_in_time(connected, || "the leader is not up".to_owned())?;
        }
        for client in &mut self.clients {
            client.copy.confirmed = false;
        }
        self.wait_for("the readers to read on", |world| {
            let mut all = true;
            for client in 0..world.clients.len() {
                let at = &world.clients[client];
                if !at.copy.confirmed {
                    all = false;
                    if at.waiting.is_empty() {
                        world.read_on(client);
                    }
                }
            }
            Ok(all)
        })?;
        self.wait_for("the last reads", |world| {
            Ok(world.clients.iter().all(|client| client.waiting.is_empty()))
        })?;
        for client in &self.clients {
            self.checker
                .copy_is_committed(client.id, client.copy.batches())?;
        }
        Ok(())
    }

    /// Every node knows of each producer what the committed log says, no less and no more.
    pub fn check_producers(&self) -> Checked {
        for node in &self.nodes {
            let process = node.process.as_ref().expect("all are up at rest");
            let said = process.shard.producers();
            self.checker.producers_known(node.index, &said)?;
        }
        Ok(())
    }
}
