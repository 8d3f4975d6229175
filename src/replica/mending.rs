//! Blocks that are damaged here are fetched from another member, and given to one that asks.
//!
//! A follower asks its leader, a leader each follower in turn, with the frames by which an opening
//! leader copies. One question is out at a time. A member that cannot give the blocks (damaged or
//! trimmed there too) says `BlocksDamaged`, and the next one is asked; when all were, the blocks
//! wait and are asked for again a little later. Whether what comes is what was there, its owner
//! decides: it must chain to the sound blocks on both sides. This never moves a position: what is
//! repaired was counted all along. Read `copying.rs` for the other use of the frames.

use super::admit::{self, Run};
use super::leader::Leader;
use super::output::{Output, ServeFetch, Verdict};
use super::progress::Stage;
use super::state::State;
use super::view::LogView;
use super::{Replica, Role};
use crate::limits::{MAX_BUFFER_BYTES, REPAIR_RETRY_MS};
use crate::types::{BlockNo, ConnectionId, Epoch, NodeId, Time};
use crate::wire::block::BlockHeader;
use crate::wire::body::{Body, CreditLimits, Fetch, FetchOk};
use crate::wire::code::Code;
use crate::wire::message::Message;
use std::collections::BTreeMap;

/// Damaged blocks that are wanted from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// First block.
    pub first: BlockNo,
    /// Epoch of the block before it; 0 if there is none.
    pub prev_epoch: Epoch,
    /// Most bytes that they take, padded.
    pub max_bytes: u64,
}

/// What came of blocks that were fetched for a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mended {
    /// They are being written.
    Taken,
    /// They are not sound, or not wanted any more.
    Useless,
    /// They do not chain to the sound blocks beside the damage.
    Differ,
}

/// The question that is out.
#[derive(Clone, Copy, Debug)]
struct Asked {
    connection: ConnectionId,
    peer: NodeId,
    first: BlockNo,
    until: Time,
    /// Whoever was asked led this epoch, and had opened it.
    leads: bool,
}

/// Repairs under way.
#[derive(Debug, Default)]
pub struct Mending {
    asked: Option<Asked>,
    /// By first block: who was asked in vain since the last pause.
    tried: BTreeMap<BlockNo, Vec<NodeId>>,
    retry_at: Option<Time>,
    /// Operators were told that nobody has these blocks.
    told: Option<BlockNo>,
}

impl Mending {
    /// A connection is gone.
    pub(super) fn down(&mut self, connection: ConnectionId) {
        self.asked.take_if(|asked| asked.connection == connection);
    }

    /// When something is due.
    pub(super) fn due(&self) -> Option<Time> {
        let asked = self.asked.map(|asked| asked.until);
        asked.into_iter().chain(self.retry_at).min()
    }

    fn in_vain(&mut self, asked: Asked) {
        self.tried.entry(asked.first).or_default().push(asked.peer);
    }
}

impl Replica {
    /// Asks for damaged blocks, unless a question is out: for the first range that somebody was
    /// not asked for yet.
    pub fn mend(&mut self, now: Time, damaged: &[Damaged]) {
        self.look(now);
        if let Some(asked) = self.mending.asked.take_if(|asked| now >= asked.until) {
            self.mending.in_vain(asked);
        }
        if damaged.is_empty() {
            self.mending = Mending::default();
            return;
        }
        if self.mending.retry_at.is_some_and(|at| now >= at) {
            self.mending.retry_at = None;
            self.mending.tried.clear();
        }
        if self.mending.asked.is_some() || !self.state.started || self.state.failed {
            return;
        }
        let members = self.may_give();
        let untried = |one: &Damaged| {
            let tried = self.mending.tried.get(&one.first);
            let mut members = members.iter();
            members.find(|(peer, _)| tried.is_none_or(|tried| !tried.contains(peer)))
        };
        let found = damaged.iter().find_map(|one| Some((*one, *untried(one)?)));
        let Some((wanted, (peer, connection))) = found else {
            return self.nobody_has(now, damaged[0].first, members.len());
        };
        let most = wanted.max_bytes.min(MAX_BUFFER_BYTES as u64);
        let body = Fetch {
            epoch: self.epoch(),
            first: wanted.first,
            prev_epoch: wanted.prev_epoch,
            max_bytes: most as u32,
        };
        self.state.send(connection, body);
        self.mending.asked = Some(Asked {
            connection,
            peer,
            first: wanted.first,
            until: now.plus_us(self.state.config.rpc_timeout_us),
            leads: self.follower.is_led_by(connection),
        });
    }

    /// Members that may be asked now, with their connections.
    fn may_give(&self) -> Vec<(NodeId, ConnectionId)> {
        match &self.leader {
            Some(leader) if !leader.is_idle(&self.state) && !leader.is_copying() => {
                let links = leader.links.iter();
                let able = links.filter(|link| link.stage >= Stage::Promised);
                able.filter_map(|link| Some((link.peer, link.data?)))
                    .collect()
            }
            Some(leader) if !leader.is_idle(&self.state) => Vec::new(),
            _ => {
                let following = self.follower.following;
                let peer = |connection| Some((self.follower.peer_of(connection)?, connection));
                following.and_then(peer).into_iter().collect()
            }
        }
    }

    /// Everybody who can be reached was asked in vain: the blocks wait.
    fn nobody_has(&mut self, now: Time, first: BlockNo, asked: usize) {
        if self.mending.retry_at.is_some() {
            return;
        }
        self.mending.retry_at = Some(now.plus_us(REPAIR_RETRY_MS * 1000));
        if asked > 0 && self.mending.told != Some(first) {
            self.mending.told = Some(first);
            let text = format!(
                "{}: no node that can be asked gives block {first}; it is asked for again",
                self.state.config.log
            );
            self.state.notice(Message::DamageStays, text);
        }
        if let Some(leader) = &mut self.leader {
            leader.lead_anew(now, first, asked, &mut self.state);
        }
    }

    /// An operator wants the damaged blocks to be asked for again at once.
    pub fn mend_now(&mut self) {
        self.mending.retry_at = None;
        self.mending.tried.clear();
    }

    /// Whether blocks for a repair were asked for on this connection.
    pub fn is_mending_by(&self, connection: ConnectionId) -> bool {
        let asked = self.mending.asked;
        asked.is_some_and(|asked| asked.connection == connection)
    }

    /// What the damaged blocks wait for; empty if they are asked for.
    pub fn mends(&self) -> String {
        match (self.mending.asked, self.mending.retry_at) {
            (Some(asked), _) => format!("asks node {}", asked.peer),
            (None, Some(_)) if self.mending.told.is_some() => {
                "no node that can be asked has them; tried again every few seconds".to_owned()
            }
            (None, Some(_)) => "waits for a node that can be asked".to_owned(),
            (None, None) => String::new(),
        }
    }

    /// A run came that was asked for to repair blocks here. None: it was not.
    pub(super) fn run_for_repair(
        &mut self,
        connection: ConnectionId,
        body: &Body,
        headers: Option<&[BlockHeader]>,
    ) -> Option<Verdict> {
        let Body::FetchOk(_) = body else {
            return None;
        };
        let run = Run::of(body)?;
        self.mending
            .asked
            .filter(|asked| asked.connection == connection && asked.first == run.first)?;
        let sound = admit::agree(&run, headers, self.state.config.log);
        if run.count > 0 && sound.is_ok() {
            return Some(Verdict::Repair);
        }
        self.mended(Mended::Useless);
        Some(match sound {
            Ok(_) => Verdict::AckAgain,
            Err(code) => Verdict::Refuse(code),
        })
    }

    /// Whether the blocks of the last [`Verdict::Repair`] are of the log of the leader of this
    /// epoch, which it had opened when it was asked, and those that they were asked for are not
    /// committed.
    pub fn may_give_way(&self) -> bool {
        let of_leader = |asked: &Asked| {
            let follows = self.follower.is_led_by(asked.connection);
            follows && asked.leads && asked.first >= self.state.high_watermark
        };
        !self.state.config.mesh
            && !self.leads()
            && self.mending.asked.as_ref().is_some_and(of_leader)
    }

    /// What this follower holds from `end` on gives way to its leader's.
    pub fn gave_way(&mut self, end: BlockNo) {
        self.follower.gave_way(end);
    }

    /// What came of the run of the last [`Verdict::Repair`].
    pub fn mended(&mut self, what: Mended) {
        let Some(asked) = self.mending.asked.take() else {
            return;
        };
        match what {
            Mended::Taken => {
                self.mending.tried.remove(&asked.first);
                self.mending.told = None;
            }
            Mended::Useless => self.mending.in_vain(asked),
            Mended::Differ => {
                let text = format!(
                    "{}: node {} holds other blocks at block {}: they do not fit what is sound \
                     here; nothing is overwritten",
                    self.state.config.log, asked.peer, asked.first
                );
                self.state.notice(Message::LogsDiverged, text);
                self.mending.in_vain(asked);
            }
        }
    }

    /// Whether the frame says that the blocks asked for cannot be given.
    pub(super) fn cannot_mend(&mut self, connection: ConnectionId, body: &Body) -> bool {
        let Body::Nack(nack) = body else {
            return false;
        };
        let asked = self
            .mending
            .asked
            .filter(|asked| asked.connection == connection && asked.first == nack.first);
        let code = Code::from_number(nack.code);
        if asked.is_some() && code == Some(Code::BlocksDamaged) {
            self.mended(Mended::Useless);
            return true;
        }
        // An answer that comes too late; a leader's links know what to make of others.
        let leads = self
            .leader
            .as_ref()
            .is_some_and(|one| one.knows(connection));
        code == Some(Code::BlocksDamaged) && !leads
    }

    /// A run could not be sent: a block of it is damaged here. Its link waits for the repair.
    pub fn run_damaged(&mut self, now: Time, connection: ConnectionId) {
        self.run_sent(now, connection, (&[], 0));
        if let Some(leader) = &mut self.leader
            && let Some(link) = leader.links.iter_mut().find(|l| l.data == Some(connection))
        {
            link.damaged = true;
        }
    }

    /// Blocks were repaired: links that wait for them go on.
    pub fn repaired(&mut self) {
        if let Some(leader) = &mut self.leader {
            for link in &mut leader.links {
                link.damaged = false;
                link.blocked = false;
            }
        }
    }

    /// The own end was cut, as the opening of an epoch asked for.
    pub fn tail_cut(&mut self, now: Time, view: &dyn LogView) {
        self.look(now);
        if let Some(leader) = &mut self.leader {
            leader.open(now, &mut self.state, view);
        }
    }

    /// `durable_end` moved without a write, because damage before it is none any more: a follower
    /// acks what waits for it, a leader commits.
    pub fn sound(&mut self, now: Time, view: &dyn LogView) {
        self.look(now);
        self.follower.durable(&mut self.state, view);
        if let Some(leader) = &mut self.leader {
            leader.commit(&mut self.state, view);
        }
    }

    /// The copy here was read from end to end: every follower that has all of it is asked whether
    /// its own is the same, by the block before `end`.
    pub fn compare(&mut self, now: Time, end: BlockNo, view: &dyn LogView) {
        if self.role() == Role::Leader
            && let Some(leader) = &mut self.leader
        {
            leader.compare(now, end, &mut self.state, view);
        }
    }
}

impl Leader {
    /// A follower asks for blocks that are damaged in its log: it gets what is held here.
    pub(super) fn on_fetch(
        &mut self,
        index: usize,
        body: &Fetch,
        state: &mut State,
        view: &dyn LogView,
    ) {
        let Some(connection) = self.links[index].data else {
            return;
        };
        let here = body.first >= view.log_start() && body.first < view.log_end();
        if !here || state.failed {
            let nothing = CreditLimits::default();
            let nack = state.nack(Code::BlocksDamaged, body.first, body.first, nothing);
            return state.send(connection, nack);
        }
        state.out.push_back(Output::ServeFetch(ServeFetch {
            connection,
            from: body.first,
            end: view.log_end(),
            max_bytes: u64::from(body.max_bytes).min(MAX_BUFFER_BYTES as u64),
            head: FetchOk {
                epoch: body.epoch,
                first: body.first,
                prev_epoch: body.prev_epoch,
                committed_end: state.high_watermark,
                count: 0,
                padded_len: 0,
            },
        }));
    }

    fn compare(&mut self, now: Time, end: BlockNo, state: &mut State, view: &dyn LogView) {
        let head = self.head(end, state, view);
        for link in &mut self.links {
            let idle = link.stage == Stage::Streaming
                && link.in_flight() == 0
                && link.loading.is_none()
                && link.stopped.is_none()
                && link.matched >= end;
            if let Some(connection) = link.data.filter(|_| idle) {
                link.sent(now, (end, link.round()), (&[], 0));
                state.send(connection, head.clone());
            }
        }
    }
}
