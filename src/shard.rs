//! The composition of one log: its WAL, its part in replication, its clients.
//!
//! Production and the simulator run this very code up to the last system call. The shell calls
//! [`Shard::handle`] with what happened, then [`Shard::poll_action`] until it returns none, and
//! calls again with [`Event::Timer`] when [`Shard::poll_timeout`] is due. No callbacks, no clock,
//! no I/O: time is a parameter, payload bytes stay in the shell's buffers (see `buffers.rs`). Every
//! decision belongs to a leaf: how bytes become durable to `wal`, who may lead and what may be
//! admitted to `replica`. Here their outputs are carried to one another: read `Shard::pump`
//! first, then `shard/appends.rs`, `shard/reads.rs`, and `shard/links.rs` for runs of blocks.

mod answers;
mod appends;
mod clients;
pub mod config;
pub mod event;
mod links;
mod loading;
mod reads;
mod repair;
mod space;
pub mod status;
mod view;

use crate::buffers::Buffers;
use crate::replica::{self, LogView, Pending, Promise, Replica, SaveToken, SendRun, ServeFetch};
use crate::types::{BlockNo, Buckets, BufferId, ConnectionId, Epoch, NodeId, Offset, Time};
pub use crate::wal::config::Config as WalConfig;
pub use crate::wal::op::{CHECKPOINT_FILE, DiskError, DiskOp, DiskResult, FileEntry, FileName};
pub use crate::wal::retention::Retention;
use crate::wal::{Log, Output as LogOutput, RecoveredMemory, SaveId, State};
use crate::wire::block::BlockHeader;
use crate::wire::body::{Body, FindOk, ReplicaMemory};
use crate::wire::checkpoint::Memory;
use crate::wire::code::Code;
use crate::wire::message::Message;
use crate::wire::producers::Producer;
use answers::Answers;
use appends::PendingAppend;
use clients::Clients;
pub use config::{LinkConfig, ShardConfig};
pub use event::{Action, Event, Notice, Part, Request};
use loading::Loading;
use reads::{Read, WaitingRead};
use space::SpaceTold;
pub use status::{Counters, Following, LinkStatus, LinkView, Role, ShardStatus};
use std::collections::VecDeque;
use view::View;

/// A run of blocks in a buffer, with its headers.
type Run = (BufferId, Vec<BlockHeader>);
/// A frame with a run that came while a cut was under way.
type DelayedRun = (ConnectionId, Body, Option<(BufferId, usize)>);

/// One log on this node.
#[derive(Debug)]
pub struct Shard {
    config: ShardConfig,
    log: Log,
    replica: Replica,
    pending: Pending<PendingAppend>,
    clients: Clients,
    answers: Answers,
    /// A client took an answer, left, or got none after all.
    room_came: bool,
    actions: VecDeque<Action>,
    /// Loads from disk under way.
    loads: Loading,
    last_request: u64,
    /// Saves asked for by `replica`, with what the log calls them.
    saves: VecDeque<(SaveId, SaveToken)>,
    /// The run that waits for a cut, and those that came behind it.
    stash: Option<Run>,
    space_told: SpaceTold,
    /// Something damaged is being asked for.
    mends: bool,
    /// Where damage ends what this node vouches for, if it does.
    capped: Option<BlockNo>,
    delayed: VecDeque<DelayedRun>,
    /// An epoch whose first block the log could not take yet.
    opening: Option<Epoch>,
    committed_offset: Offset,
    /// Log end, high watermark and end of the open block that waiting reads were last held against.
    seen_ends: (BlockNo, BlockNo, Offset),
    stopping: bool,
    /// Why the log is closed, with the mend; empty if it is not.
    failed: String,
    counters: Counters,
    append_latency: Buckets,
}

/// What a load from disk is for.
#[derive(Debug)]
enum Purpose {
    Read(WaitingRead),
    Find(Request),
    Run(SendRun),
    Fetch(ServeFetch),
}

impl Shard {
    /// Starts recovery of a log whose directory holds `files`.
    pub fn new(mut config: ShardConfig, files: Vec<FileEntry>, now: Time) -> Shard {
        config.wal.repairs = config.wal.members.len() > 1;
        let log = Log::new(config.wal.clone(), &files, now);
        let replica = Replica::new(config.replica());
        Shard {
            config,
            log,
            replica,
            pending: Pending::new(),
            clients: Clients::default(),
            answers: Answers::default(),
            room_came: false,
            actions: VecDeque::new(),
            loads: Loading::default(),
            last_request: 0,
            saves: VecDeque::new(),
            stash: None,
            space_told: SpaceTold::default(),
            mends: false,
            capped: None,
            delayed: VecDeque::new(),
            opening: None,
            committed_offset: Offset(0),
            seen_ends: (BlockNo(0), BlockNo(0), Offset(0)),
            stopping: false,
            failed: String::new(),
            counters: Counters::default(),
            append_latency: Buckets::default(),
        }
    }

    /// Something happened.
    pub fn handle(&mut self, now: Time, event: Event, buffers: &mut dyn Buffers) {
        self.replica.look(now);
        let left = matches!(event, Event::Sent { .. } | Event::ClientGone { .. });
        self.room_came |= left;
        match event {
            Event::Append {
                request,
                level,
                timeout_ms,
                buffer,
                len,
            } => {
                self.on_append(now, (request, level, timeout_ms), (buffer, len), buffers);
            }
            Event::Read {
                request,
                offset,
                max_bytes,
                wait_ms,
                level,
                last_epoch,
            } => {
                let read = Read {
                    offset,
                    last_epoch,
                    max_bytes,
                    level,
                };
                self.on_read(now, request, wait_ms, read, buffers);
            }
            Event::Find { request, timestamp } => self.on_find(request, timestamp),
            Event::ClientGone { connection } => {
                self.pending.drop_connection(connection);
                self.forget_client(connection);
                self.answers.forget(connection);
            }
            Event::Disk { ticket, result } => self.log.on_disk(now, ticket, result, buffers),
            Event::PeerUp {
                peer,
                connection,
                channel,
                dialed,
                capabilities,
            } => {
                self.replica.peer_can(peer, capabilities);
                self.replica.peer_up(now, peer, connection, channel, dialed);
            }
            Event::PeerDown { connection } => {
                self.forget_delayed(connection);
                self.replica.peer_down(now, connection);
            }
            Event::DialFailed { peer, why } => self.replica.dial_failed(now, peer, why),
            Event::PeerRefused { peer, why } => self.replica.peer_refused(peer, why),
            Event::Frame {
                connection,
                body,
                payload,
            } => self.on_frame(now, connection, body, payload, buffers),
            Event::Sent { connection, bytes } => {
                self.answers.left(connection, bytes);
                self.replica.payload_left(connection, bytes);
            }
            Event::Timer => self.on_time(now, buffers),
            Event::PauseLink { .. }
            | Event::Promote { .. }
            | Event::CatchUp { .. }
            | Event::Scrub { .. } => self.on_operator(now, &event),
            Event::MemoryShort { bytes } => self.log.relieve(bytes),
            Event::Stop => self.on_stop(now, buffers),
        }
    }

    /// An operator wants something of the log.
    fn on_operator(&mut self, now: Time, event: &Event) {
        let view = View::new(&self.log, &self.stash);
        match *event {
            Event::PauseLink { peer, pause } => self.replica.pause_link(now, peer, pause, &view),
            Event::Promote { to } => {
                self.replica.promote(now, to, &view);
            }
            Event::Scrub { read } => self.on_scrub(now, read),
            Event::CatchUp { bytes_per_s } => self.replica.set_catch_up(bytes_per_s),
            _ => {}
        }
    }

    /// The next thing to do, until there is none.
    pub fn poll_action(&mut self, now: Time, buffers: &mut dyn Buffers) -> Option<Action> {
        loop {
            if self.actions.is_empty() {
                self.pump(now, buffers);
            }
            let action = self.actions.pop_front();
            let action = action.or_else(|| self.log.poll_op(buffers).map(Action::Disk));
            // Asking for an operation may end something without one.
            if action.is_some() || !self.log.has_output() {
                return action;
            }
        }
    }

    /// When the shard wants to look at the clock again.
    pub fn poll_timeout(&self) -> Option<Time> {
        let leads = self.role() == Role::Leader;
        let retention = leads.then(|| self.log.retention_timeout()).flatten();
        let leaves = [
            self.log.poll_timeout(),
            self.replica.poll_timeout(),
            retention,
            self.space_told.timeout(),
        ];
        let clients = [self.pending.poll_timeout(), self.clients_deadline()];
        leaves.into_iter().chain(clients).flatten().min()
    }

    /// What this node is for the log.
    pub fn role(&self) -> Role {
        match self.log.state() {
            State::Recovering => Role::Recovering,
            State::Refused | State::Failed => Role::Failed,
            State::Open | State::Stopping | State::Stopped => match self.replica.role() {
                replica::Role::Starting => Role::Recovering,
                replica::Role::Opening => Role::Opening,
                replica::Role::Leader => Role::Leader,
                replica::Role::Follower => Role::Follower,
                replica::Role::Failed => Role::Failed,
            },
        }
    }

    /// The producers that the log knows, ascending by id: those of sealed blocks.
    pub fn producers(&self) -> Vec<Producer> {
        self.log.producers().cloned().collect()
    }

    /// Who leads the log, as far as this node knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.replica.leader()
    }

    /// The epoch in which its leader takes appends, as far as this node knows.
    pub fn epoch_known_open(&self, now: Time) -> Option<Epoch> {
        let here = matches!(self.role(), Role::Leader | Role::Follower) && !self.stopping;
        self.replica.epoch_known_open(now).filter(|_| here)
    }

    /// Whether an operator has paused the link with `peer`; none if there is no such link.
    pub fn is_link_paused(&self, peer: NodeId) -> Option<bool> {
        self.replica.is_paused(peer)
    }

    /// Whether the leadership could be handed to `to` now; none if this node does not lead.
    pub fn can_promote(&self, to: NodeId) -> Option<bool> {
        let view = View::new(&self.log, &self.stash);
        self.replica.can_promote(to, &view)
    }

    /// What the shard says of itself.
    pub fn status(&self, now: Time) -> ShardStatus {
        let view = View::new(&self.log, &self.stash);
        let high_watermark = self.replica.high_watermark();
        // A log that was closed in the middle of a cut or a write vouches for nothing more.
        let durable_end = match self.failed.is_empty() {
            true => view.durable_end(),
            false => view.durable_end().min(high_watermark),
        };
        ShardStatus {
            log: self.config.wal.log,
            role: self.role(),
            leader: self.replica.leader(),
            epoch: self.replica.epoch(),
            open_epoch: self.epoch_known_open(now),
            log_start: self.log.log_start().block,
            log_start_offset: self.log.log_start().offset,
            high_watermark,
            durable_end,
            log_end: view.log_end(),
            durable_offset: view
                .end_offset_of(durable_end)
                .unwrap_or(self.log.durable_offset()),
            committed_offset: self.committed_offset,
            is_full: self.log.is_full(),
            waits_for: self.replica.waits_for().to_owned(),
            verified_end: self.replica.verified_end(),
            following: self.replica.following(now),
            append_latency: self.append_latency,
            failed: self.failed.clone(),
            damage: self.damage_view(now),
            catch_up_bytes_per_s: self.replica.catch_up_bytes_per_s(),
            catches_up: self.replica.catches_up(),
            counters: Counters {
                bytes_written: self.log.bytes_written(),
                ..self.counters
            },
            granted: self.replica.granted(),
            links: self.replica.links(now, &view),
        }
    }

    /// Carries the leaves' outputs to one another until none has anything more to say. Appends of
    /// one round of events meet in one open block, because sealing is decided here and not per
    /// append.
    fn pump(&mut self, now: Time, buffers: &mut dyn Buffers) {
        loop {
            let mut quiet = true;
            self.mend(now);
            self.open_epoch(now, buffers);
            self.retry_appends(now, buffers);
            self.log.seal_if_due(now, buffers);
            while let Some(output) = self.log.poll_output() {
                quiet = false;
                self.on_log_output(now, output, buffers);
            }
            while let Some(output) = self.poll_replica(now) {
                quiet = false;
                self.on_replica_output(now, output, buffers);
            }
            while let Some((client, result)) = self.pending.poll() {
                match result {
                    Ok(()) => self.answer_append(now, client),
                    Err(code) => self.reply_error(client.request, code, [0; 2]),
                }
            }
            if quiet {
                break;
            }
        }
        self.retain(now);
        let open_end = self.log.open_end_offset();
        let ends = (self.log.log_end(), self.replica.high_watermark(), open_end);
        let seen = std::mem::replace(&mut self.seen_ends, ends);
        let room = std::mem::take(&mut self.room_came) && self.answers.take_wanted();
        if seen != ends || room {
            let only_local = (seen.0, seen.1) == (ends.0, ends.1) && !room;
            self.retry_reads(only_local, buffers);
        }
    }

    /// Trims what need not be kept: as a leader by its own settings, as a follower what its leader
    /// has trimmed.
    fn retain(&mut self, now: Time) {
        let to = match self.role() {
            Role::Leader => self.log.retention_point(now),
            Role::Follower => Some(self.replica.leader_start()),
            Role::Recovering | Role::Opening | Role::Failed => None,
        };
        if let Some(to) = to.filter(|to| *to > self.log.log_start().block) {
            self.log.trim(to);
        }
    }

    fn poll_replica(&mut self, now: Time) -> Option<replica::Output> {
        self.replica.poll(now, &View::new(&self.log, &self.stash))
    }

    fn on_log_output(&mut self, now: Time, output: LogOutput, buffers: &mut dyn Buffers) {
        let view = View::new(&self.log, &self.stash);
        match output {
            LogOutput::Recovered(recovered) => {
                let promise = Promise {
                    epoch: recovered.promised,
                    leader: recovered.vote,
                    memory: match recovered.memory {
                        RecoveredMemory::Whole => ReplicaMemory::Whole,
                        RecoveredMemory::Lost => ReplicaMemory::Lost,
                        RecoveredMemory::Blank => ReplicaMemory::Blank,
                    },
                };
                self.replica
                    .started(now, promise, recovered.high_watermark, &view);
                self.on_damage_recovered(&recovered);
                self.note_committed(self.replica.high_watermark());
                self.pending.durable(self.log.durable_end());
                self.pending.committed(self.replica.high_watermark());
                if recovered.memory == RecoveredMemory::Lost && self.config.wal.members.len() > 1 {
                    let text = Message::MemoryLost.meaning().to_owned();
                    self.notice(Message::MemoryLost, text);
                }
                if let Some(torn) = recovered.torn {
                    self.counters.blocks_cut += torn.blocks;
                    let text = format!("cut a torn tail: {} from block {}", torn.blocks, torn.from);
                    self.notice(Message::TornTail, text);
                }
            }
            LogOutput::Refused(refusal) => self.close(now, refusal.to_string()),
            LogOutput::Failed(text) => self.close(now, text),
            LogOutput::Sealed(header, _) => {
                self.counters.blocks_sealed += 1;
                self.replica.sealed(now, &header, &view);
            }
            LogOutput::Durable { end, .. } => {
                self.replica.durable(now, &view);
                self.pending.durable(end);
            }
            LogOutput::Health(health) => self.on_health(now, health),
            LogOutput::Space { full } => self.on_space(now, full),
            LogOutput::Saved(id) => {
                while let Some((_, token)) = self.saves.pop_front_if(|(saved, _)| *saved <= id) {
                    let view = View::new(&self.log, &self.stash);
                    self.replica.saved(now, token, &view);
                }
            }
            LogOutput::CutDone(_) => {
                // The durable end fell: what comes in its place is not durable yet.
                self.pending.durable(self.log.durable_end());
                self.after_cut(now, buffers);
            }
            LogOutput::Loaded { request, result } => self.on_loaded(now, request, result, buffers),
            LogOutput::Found { request, result } => {
                if let Some(Purpose::Find(client)) = self.loads.end(request) {
                    match result {
                        Ok(found) => {
                            let offset = found.unwrap_or(self.committed_offset);
                            self.reply(client, FindOk { offset }.into(), None);
                        }
                        Err(error) => self.on_read_error(Some(client), error),
                    }
                }
            }
            LogOutput::Release(buffer) => self.release(buffer),
            LogOutput::Stopped => self.on_stopped(),
        }
    }

    fn on_replica_output(&mut self, now: Time, output: replica::Output, buffers: &mut dyn Buffers) {
        match output {
            replica::Output::Send { connection, body } => {
                self.actions.push_back(Action::Send {
                    connection,
                    body,
                    parts: Vec::new(),
                });
            }
            replica::Output::SendRun(run) => self.load_run(now, run, buffers),
            replica::Output::ServeFetch(fetch) => self.load_fetch(fetch),
            replica::Output::Save { token, promise } => self.save(token, promise),
            replica::Output::AppendEpoch { epoch } => {
                self.opening = Some(epoch);
                self.open_epoch(now, buffers);
            }
            replica::Output::CutTail { from } => self.cut_tail(now, from),
            replica::Output::Committed { end } => {
                self.note_committed(end);
                self.pending.committed(end);
            }
            replica::Output::Dial { peer } => self.actions.push_back(Action::Dial { peer }),
            replica::Output::Close { connection, code } => {
                self.actions.push_back(Action::Close { connection, code });
            }
            replica::Output::Fenced { epoch } => {
                self.opening = None;
                self.log.discard_open();
                self.pending.end_all(Code::Unknown);
                let text = format!("lost the leadership of epoch {epoch}");
                self.notice(Message::EpochLost, text);
            }
            replica::Output::Suspect { block } => self.log.forget_recent(block),
            replica::Output::Notice { message, text } => self.notice(message, text),
        }
    }

    /// Appends the block that opens an epoch as soon as the log can take it.
    fn open_epoch(&mut self, now: Time, buffers: &mut dyn Buffers) {
        if let Some(epoch) = self.opening
            && self.log.append_local(now, epoch, buffers).is_ok()
        {
            self.opening = None;
        }
    }

    fn save(&mut self, token: SaveToken, promise: Promise) {
        let memory = match promise.memory {
            ReplicaMemory::Whole => Memory::Whole,
            ReplicaMemory::Lost | ReplicaMemory::Blank => Memory::Lost,
        };
        if self.log.is_blank() {
            self.log.create(memory);
        }
        let id = self.log.save(|checkpoint| {
            checkpoint.promised = promise.epoch;
            checkpoint.vote = promise.leader;
            checkpoint.memory = memory;
        });
        self.saves.push_back((id, token));
    }

    fn note_committed(&mut self, end: BlockNo) {
        self.log.note_committed(end);
        self.committed_offset = self.log.end_offset_of(end).unwrap_or(self.committed_offset);
    }

    /// The log is closed until restart: everybody who waits is told.
    fn close(&mut self, now: Time, text: String) {
        let text = match text.contains("mend: ") {
            true => text,
            false => format!("{text}; mend: {}", Code::LogFailed.mend()),
        };
        let line = format!("log closed until restart: {text}");
        self.notice(Message::LogClosed, line);
        self.failed = text;
        self.replica.latched(now);
        // Their blocks may be with followers and come to be committed after a restart.
        self.pending.end_all(Code::Unknown);
        self.drop_delayed();
        if self.stopping {
            self.on_stopped();
        }
    }

    fn on_space(&mut self, now: Time, full: bool) {
        if self.space_told.note(now, full) {
            let text = "the disk is full: appends are refused until there is space for a segment";
            self.notice(Message::DiskFull, text.to_owned());
        }
        if !full {
            self.replica.has_space();
        }
    }

    /// A leaf may begin its text with the log; a line has it apart.
    fn notice(&mut self, message: Message, text: String) {
        let log = self.config.wal.log;
        let alone = text.strip_prefix(&format!("{log}: ")).map(str::to_owned);
        self.actions.push_back(Action::Log(Notice {
            message,
            log,
            text: alone.unwrap_or(text),
        }));
    }

    fn on_time(&mut self, now: Time, buffers: &mut dyn Buffers) {
        self.log.on_time(now, buffers);
        if self.space_told.is_calm(now) {
            self.notice(Message::DiskHasSpace, "the disk has space again".to_owned());
        }
        self.replica
            .on_time(now, &View::new(&self.log, &self.stash));
        self.pending.on_time(now);
        self.expire_clients(now);
    }

    fn on_stop(&mut self, now: Time, buffers: &mut dyn Buffers) {
        self.stopping = true;
        self.end_waiting_reads();
        match self.log.state() {
            State::Refused | State::Failed | State::Stopped => self.on_stopped(),
            State::Recovering | State::Open | State::Stopping => self.log.stop(now, buffers),
        }
    }

    fn on_stopped(&mut self) {
        self.pending.end_all(Code::Unknown);
        self.drop_delayed();
        self.actions.push_back(Action::Stopped);
    }

    fn next_request(&mut self) -> u64 {
        self.last_request += 1;
        self.last_request
    }
}
