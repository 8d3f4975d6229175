//! The shell around each simulated node: events in, actions carried out, facts to the checkers.
//!
//! One event is given to the shard, then every action is taken and done, then the node's positions
//! go to the checkers. Answers are checked at the moment they are given, against the disks as they
//! are then. Read `world.rs` first, `world_client.rs` next.

use super::checker::{Marks, memory_held};
use super::facts::BlockFacts;
use super::framing;
use super::image::{Image, Written};
use super::network_parts::Outgoing;
use super::node::{Arrival, LOG, node_index};
use super::verdict::{Checked, Name, Verdict, ensure};
use super::world::{Task, World};
use millrace::buffers::Buffers as _;
use millrace::limits::FRAME_HEADER;
use millrace::shard::status::{LinkStatus, LinkView, Role, ShardStatus};
use millrace::shard::{Action, Event, Part};
use millrace::types::{BufferId, ConnectionId, Ticket};
use millrace::wal::op::{CHECKPOINT_FILE, DiskError, DiskOp, DiskResult, FileName};
use millrace::wire::body::{self, Body, ReplicateOk};
use millrace::wire::code::Code;

/// Actions after one event; more means that the shard never ends.
const ACTIONS_MAX: usize = 100_000;
/// Time after which somebody restarts a node whose log is closed.
const FAILED_RESTART_US: u64 = 150_000;

impl World {
    /// Gives an event to a node, now or when its pause is over.
    pub fn deliver(&mut self, node: usize, event: Event) -> Checked {
        let time = self.nodes[node].time(self.now_us);
        let Some(process) = &mut self.nodes[node].process else {
            return Ok(());
        };
        if process.paused_until_us.is_some() {
            process.inbox.push_back(Arrival::Event(event));
            return Ok(());
        }
        self.trace
            .borrow_mut()
            .note(self.now_us, format_args!("n{node} <- {event:?}"));
        process.shard.handle(time, event, &mut process.buffers);
        self.pump(node)
    }

    /// Carries out what the shard wants.
    pub fn pump(&mut self, node: usize) -> Checked {
        let time = self.nodes[node].time(self.now_us);
        for _ in 0..ACTIONS_MAX {
            let Some(process) = &mut self.nodes[node].process else {
                return Ok(());
            };
            let Some(action) = process.shard.poll_action(time, &mut process.buffers) else {
                return self.observe(node).map(|_| ());
            };
            self.trace
                .borrow_mut()
                .note(self.now_us, format_args!("n{node} -> {action:?}"));
            self.act(node, action)?;
        }
        ensure(false, Name::Stuck, || {
            format!("node {node} wants more than {ACTIONS_MAX} actions after one event")
        })
    }

    fn act(&mut self, node: usize, action: Action) -> Checked {
        match action {
            Action::Disk(op) => {
                self.disk_op(node, op);
                Ok(())
            }
            Action::Send {
                connection,
                body,
                parts,
            } => self.send(node, connection, &body, &parts),
            Action::Reply {
                request,
                body,
                part,
            } => {
                let payload = part.map_or(Vec::new(), |part| self.gather(node, &[part]));
                self.payload_leaves(node, request.connection, payload.len());
                self.reply(node, request, body, &payload)
            }
            Action::Dial { peer } => {
                let (to, channel) = (node_index(peer), body::Channel::Data);
                self.net.dial(self.now_us, node, to, channel);
                Ok(())
            }
            Action::Close { connection, code } => {
                self.process(node).connections.remove(&connection);
                self.close(connection, code);
                Ok(())
            }
            Action::Release(buffer) => {
                self.process(node).buffers.release(buffer);
                Ok(())
            }
            Action::Log(_) => Ok(()),
            Action::Stopped => {
                self.process(node).stopped = true;
                Ok(())
            }
        }
    }

    fn process(&mut self, node: usize) -> &mut super::node::Process {
        self.nodes[node]
            .process
            .as_mut()
            .expect("it acts, so it runs")
    }

    /// A client's socket takes an answer's payload a little later.
    fn payload_leaves(&mut self, node: usize, connection: ConnectionId, bytes: usize) {
        if bytes > 0 {
            let delay = self.rng.between(1, 2_000);
            let arrival = Arrival::Event(Event::Sent { connection, bytes });
            let run = self.nodes[node].run;
            self.after(delay, Task::Request { node, run, arrival });
        }
    }

    fn close(&mut self, connection: ConnectionId, code: Code) {
        let last = Body::from(body::Error {
            code: code.number(),
            detail: 0,
            detail_two: 0,
        });
        let last = framing::encode(&last, LOG, &[]);
        self.net.close(self.now_us, connection, Some(last));
    }

    fn gather(&mut self, node: usize, parts: &[Part]) -> Vec<u8> {
        let buffers = &self.process(node).buffers;
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len).sum());
        for part in parts {
            let whole = buffers.bytes(part.buffer);
            bytes.extend_from_slice(&whole[part.start..part.start + part.len]);
        }
        bytes
    }

    fn send(
        &mut self,
        node: usize,
        connection: ConnectionId,
        body: &Body,
        parts: &[Part],
    ) -> Checked {
        self.check_said(node, body)?;
        let payload = self.gather(node, parts);
        let bytes = framing::encode(body, LOG, &payload);
        let holds: Vec<BufferId> = parts.iter().map(|part| part.buffer).collect();
        let run = self.nodes[node].run;
        let process = self.process(node);
        holds.iter().for_each(|id| process.buffers.hold(*id));
        let outgoing = Outgoing {
            head_len: bytes.len() - payload.len(),
            bytes,
            parts_len: payload.len(),
            holds,
            node,
            run,
        };
        debug_assert!(outgoing.head_len >= FRAME_HEADER);
        self.net.send(self.now_us, connection, outgoing);
        Ok(())
    }

    /// What a replica says it holds, against its disk.
    fn check_said(&self, node: usize, body: &Body) -> Checked {
        let said = match body {
            Body::ReplicateOk(ok) => {
                self.checker.epoch_said(node, ok.epoch.0)?;
                self.check_acked(node, ok)?;
                ok.durable_end
            }
            Body::Pong(pong) => pong.durable_end,
            Body::Position(position) => position.durable_end,
            _ => return Ok(()),
        };
        let disk_end = self.nodes[node].image.end();
        self.checker.position_said(node, said.0, disk_end)
    }

    /// What a follower acknowledges is what the leader of that epoch has there.
    fn check_acked(&self, node: usize, ok: &ReplicateOk) -> Checked {
        let leader = match self.options.electing {
            true => self.checker.leader_of(ok.epoch.0),
            false => Some(self.options.leader),
        };
        let current = leader.filter(|leader| self.checker.epoch_of(*leader) == ok.epoch.0);
        let Some(leader) = current else {
            return Ok(());
        };
        let theirs = &self.nodes[leader].image;
        let end = ok.durable_end.0.min(theirs.end());
        let Some(last) = end.checked_sub(1).and_then(|last| theirs.chained(last)) else {
            return Ok(());
        };
        let holds = self.nodes[node].image.holds(last);
        self.checker.matched(node, last, holds)
    }

    /// A frame with parts has left, or was dropped.
    pub fn sent(
        &mut self,
        node: usize,
        run: u64,
        connection: ConnectionId,
        bytes: usize,
        holds: &[BufferId],
    ) -> Checked {
        if !self.runs(node, run) {
            return Ok(());
        }
        let process = self.process(node);
        holds.iter().for_each(|id| process.buffers.unhold(*id));
        self.deliver(node, Event::Sent { connection, bytes })
    }

    fn disk_op(&mut self, node: usize, op: DiskOp) {
        let at = &mut self.nodes[node];
        let process = at.process.as_mut().expect("it acts, so it runs");
        let latency = at.disk.submit(op, &mut process.buffers);
        process.operations.insert(op.ticket().0, op);
        let (run, ticket) = (at.run, op.ticket());
        self.after(latency, Task::DiskDone { node, run, ticket });
    }

    /// A disk operation ends, whether or not the process has time to hear of it.
    pub fn disk_done(&mut self, node: usize, run: u64, ticket: Ticket) -> Checked {
        if !self.runs(node, run) {
            return Ok(());
        }
        let at = &mut self.nodes[node];
        let process = at.process.as_mut().expect("it runs");
        let (_, result) = at.disk.complete(ticket, &mut process.buffers);
        let op = process.operations.remove(&ticket.0).expect("submitted");
        self.count_fault(&op, result);
        let whole = match (&op, result) {
            (DiskOp::Write { len, .. }, Ok(written)) => written == *len,
            (_, result) => result.is_ok(),
        };
        if whole {
            self.disk_changed(node, &op)?;
        } else {
            let at = &mut self.nodes[node];
            at.image = Image::scan(&at.disk, &at.rot);
        }
        self.deliver(node, Event::Disk { ticket, result })
    }

    fn count_fault(&mut self, op: &DiskOp, result: DiskResult) {
        match (op, result) {
            (DiskOp::Write { len, .. }, Ok(written)) if written < *len => {
                self.report.count("short_write", 1);
            }
            (_, Ok(_)) => {}
            (DiskOp::Provide { .. }, Err(DiskError::NoSpace)) => self.report.count("full_disk", 1),
            (_, Err(DiskError::NoSpace)) => self.report.count("no_space", 1),
            (_, Err(DiskError::Errno(_))) => self.report.count("write_error", 1),
        }
    }

    /// Takes what a completed operation made durable into the node's image.
    fn disk_changed(&mut self, node: usize, op: &DiskOp) -> Checked {
        let at = &mut self.nodes[node];
        let files = &mut at.process.as_mut().expect("it runs").files;
        match *op {
            DiskOp::Open { file, name, .. } => {
                files.insert(file, name);
            }
            DiskOp::Provide { file, .. } => {
                files.insert(file, FileName::Next);
            }
            DiskOp::Name { file, base, .. } => {
                let name = FileName::Segment(base);
                files.insert(file, name);
                let pages = at.rot.sound(&at.disk, name).expect("its name is durable");
                // What was written was checked then; what a crash left may lie behind it.
                at.image.take_in(base.0, &pages, 0, pages.len());
            }
            DiskOp::Free { file, .. } => {
                if let Some(FileName::Segment(base)) = files.remove(&file) {
                    at.gave_up |= at.rot.freed(FileName::Segment(base));
                    at.image.freed(base.0);
                }
            }
            DiskOp::Sync { .. } | DiskOp::SyncDirectory { .. } => {
                at.image = Image::scan(&at.disk, &at.rot);
            }
            DiskOp::Write { file, .. } if file == CHECKPOINT_FILE => at.image.read_start(&at.disk),
            DiskOp::Write {
                file,
                position,
                len,
                ..
            } => {
                let name = files[&file];
                at.rot.written(name, position, len);
                // Blocks come to it again only once its leader knows.
                at.gave_up = false;
                let Some(pages) = at.rot.sound(&at.disk, name) else {
                    return Ok(());
                };
                let end = position + len as u64;
                let found = match name {
                    FileName::Segment(base) => at.image.take_in(base.0, &pages, position, end),
                    // Its blocks count once it has its name.
                    _ => Image::default().take_in(0, &pages, position, end),
                };
                return self.written(node, found);
            }
            DiskOp::Read { .. } => {}
        }
        Ok(())
    }

    fn written(&mut self, node: usize, found: Vec<Written>) -> Checked {
        for written in found {
            match written {
                Written::Block(facts) => self.checker.block_written(node, &facts)?,
                Written::Foreign { position } => {
                    return ensure(false, Name::BytesDiffer, || {
                        format!("node {node} wrote bytes at {position} that are no block")
                    });
                }
            }
        }
        Ok(())
    }

    /// Nodes that hold this very block and all before it.
    pub fn holders(&self, facts: &BlockFacts) -> usize {
        let holding = self.nodes.iter().filter(|node| node.holds(facts));
        holding.count()
    }

    /// Tells the checkers what a node says of itself.
    pub fn observe(&mut self, node: usize) -> Result<ShardStatus, Verdict> {
        let time = self.nodes[node].time(self.now_us);
        let at = &self.nodes[node];
        let process = at
            .process
            .as_ref()
            .expect("only a running node is observed");
        let status = process.shard.status(time);
        let held = process.buffers.used_bytes();
        let bound = self.options.memory_bound();
        memory_held(node, held, bound, "in the middle of a run")?;
        match status.role {
            Role::Recovering => return Ok(status),
            Role::Failed => {
                // A closed log acknowledges nothing; what it says of itself binds nobody.
                self.restart_failed(node);
                return Ok(status);
            }
            Role::Opening | Role::Leader | Role::Follower => {}
        }
        let marks = Marks {
            run: self.nodes[node].run,
            epoch: status.epoch.0,
            high_watermark: status.high_watermark.0,
            durable_end: status.durable_end.0,
            log_end: status.log_end.0,
            blocks_cut: status.counters.blocks_cut,
        };
        if status.role == Role::Leader && self.options.electing {
            self.checker.leader_seen(node, status.epoch.0)?;
        }
        let disk_end = self.nodes[node].image.end();
        // A node vouches for less while it knows of damage, and for more again afterwards.
        // Recovery may leave out what is damaged.
        let at = &self.nodes[node];
        let known_end = match at.rot.is_empty() && !at.knows_damage() {
            true => disk_end,
            false => disk_end.min(marks.durable_end),
        };
        match status.damage.ranges.is_empty() {
            true => self.checker.marks_seen(node, marks, known_end)?,
            false => self.checker.marks_beside_damage(node, marks),
        }
        let told = self.process(node).told_committed;
        for block in told..marks.high_watermark {
            self.tell_committed(node, block)?;
        }
        let told = &mut self.process(node).told_committed;
        *told = marks.high_watermark.max(*told);
        self.check_matched(node, &status)?;
        Ok(status)
    }

    /// What a leader counts as held by its followers, against their disks.
    fn check_matched(&self, node: usize, status: &ShardStatus) -> Checked {
        if self.checker.is_overtaken(status.epoch.0) {
            // Followers of another leader may have cut what this one counts on.
            return Ok(());
        }
        let mine = &self.nodes[node].image;
        let live = |link: &&LinkView| link.status != LinkStatus::Disconnected;
        for link in status.links.iter().filter(live) {
            let end = link.matched.0.min(mine.end());
            let Some(last) = end.checked_sub(1).and_then(|last| mine.chained(last)) else {
                continue;
            };
            let peer = node_index(link.peer);
            let holds = self.nodes[peer].holds(last) || self.nodes[peer].gave_up;
            self.checker.matched(peer, last, holds)?;
        }
        Ok(())
    }

    fn tell_committed(&mut self, node: usize, block: u64) -> Checked {
        let image = &self.nodes[node].image;
        if block < image.start() {
            return Ok(());
        }
        let facts = image.chained(block).cloned();
        ensure(facts.is_some(), Name::AckedBeforeDurable, || {
            format!("node {node} counts block {block} as committed and does not hold it")
        })?;
        let facts = facts.expect("just ensured");
        let holders = self.holders(&facts);
        self.checker.committed_seen(node, &facts, holders)
    }

    /// A closed log is closed until somebody restarts the node.
    fn restart_failed(&mut self, node: usize) {
        if self.nodes[node].failed_since_us.is_none() {
            self.nodes[node].failed_since_us = Some(self.now_us);
            let step = super::chaos::Step::RestartFailed {
                node,
                run: self.nodes[node].run,
            };
            self.after(FAILED_RESTART_US, Task::Chaos(step));
        }
    }

    /// Something arrives at a node's sockets.
    pub fn arrive(&mut self, node: usize, arrival: Arrival) -> Checked {
        let Some(process) = &mut self.nodes[node].process else {
            return Ok(());
        };
        if process.paused_until_us.is_some() {
            process.inbox.push_back(arrival);
            return Ok(());
        }
        if !process.starved.is_empty() {
            process.starved.push_back(arrival);
            return Ok(());
        }
        if let Some(refused) = self.take_in(node, arrival)? {
            let run = self.nodes[node].run;
            self.process(node).starved.push_back(refused);
            self.after(1_000, Task::Starved { node, run });
        }
        Ok(())
    }

    /// What had no buffer tries again, in order.
    pub fn feed_starved(&mut self, node: usize) -> Checked {
        while let Some(arrival) = self.process(node).starved.pop_front() {
            if let Some(refused) = self.take_in(node, arrival)? {
                let run = self.nodes[node].run;
                self.process(node).starved.push_front(refused);
                self.after(1_000, Task::Starved { node, run });
                break;
            }
        }
        Ok(())
    }

    /// Gives an arrival to the shard; returns it if there is no buffer for it.
    fn take_in(&mut self, node: usize, arrival: Arrival) -> Result<Option<Arrival>, Verdict> {
        let (connection, bytes) = match arrival {
            Arrival::Event(event) => {
                self.deliver(node, event)?;
                return Ok(None);
            }
            Arrival::Request { .. } => return self.take_in_request(node, arrival),
            Arrival::Frame { connection, bytes } => (connection, bytes),
        };
        if !self.process(node).connections.contains(&connection) {
            return Ok(None);
        }
        let Some(decoded) = framing::decode(&bytes, LOG) else {
            self.note(format_args!("n{node} cannot read a frame on {connection}"));
            self.close(connection, Code::BadFrame);
            self.peer_down(node, connection)?;
            return Ok(None);
        };
        if let (Body::Position(_), Some((_, peer, _))) = (&decoded.body, self.net.end(connection)) {
            // The leader knows from now on; who only asks for votes counts nothing.
            if !self.options.electing || node == self.leader() {
                self.nodes[peer].before_loss = None;
            }
        }
        let mut payload = None;
        if let Some(laid_out) = decoded.payload {
            let Some(buffer) = self.process(node).buffers.put(&laid_out) else {
                let short = Event::MemoryShort {
                    bytes: laid_out.len(),
                };
                self.deliver(node, short)?;
                return Ok(Some(Arrival::Frame { connection, bytes }));
            };
            payload = Some((buffer, laid_out.len()));
        }
        self.deliver(
            node,
            Event::Frame {
                connection,
                body: decoded.body,
                payload,
            },
        )?;
        Ok(None)
    }

    /// A pause ends: what came meanwhile is taken in, in order.
    pub fn unpause(&mut self, node: usize, run: u64) -> Checked {
        if !self.runs(node, run) || self.process(node).paused_until_us.is_none() {
            return Ok(());
        }
        self.note(format_args!("n{node} goes on"));
        self.process(node).paused_until_us = None;
        self.net.set_paused(self.now_us, node, false);
        let came = std::mem::take(&mut self.process(node).inbox);
        for arrival in came {
            if self.runs(node, run) {
                self.arrive(node, arrival)?;
            }
        }
        Ok(())
    }
}
