//! Elections: who hears a leader, when a member stands, when a leader steps down.
//!
//! In an electing set every member may lead. A member that has heard no leader for its election
//! timeout stands: it gathers positions (the *pre-vote*: only a majority of which nobody hears a
//! live leader, and whose logs are not ahead of its own, lets it go on), then opens an epoch as
//! every leader does, the promise being the vote. A leader keeps its epoch while a majority,
//! itself counted, has answered a heartbeat sent within the shortest timeout: its *lease*. Whoever
//! hears of a leader of a higher epoch follows it. Timeouts are drawn anew each time, from a seed,
//! so that a run is a function of its inputs. Safety rests on promises alone (`promises.rs`), never
//! on anything here: what is heard decides only who tries when. Read `opening.rs` first.

use super::leader::Leader;
use super::opening::Phase;
use super::output::Output;
use super::progress::Cause;
use super::state::State;
use super::view::LogView;
use super::{Config, Replica};
use crate::faults::{Fault, active};
use crate::limits::MAX_NODES;
use crate::types::{BlockNo, ConnectionId, Epoch, LogId, NodeId, Time};
use crate::wire::body::{Body, CreditLimits, ReplicaMemory, Where};
use crate::wire::code::Code;
use crate::wire::message::Message;

/// A leader, or a candidate that a vote was given to, that was heard.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    pub(super) node: NodeId,
    pub(super) epoch: Epoch,
    pub(super) at: Time,
}

/// What is new about a log that was recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum New {
    Nothing,
    /// No epoch of it was ever promised here.
    Log,
    /// Its disk is blank, and an operator says that this member never held anything.
    Member,
}

/// Shortest timeouts for which a new member with a blank disk lets others stand before it.
const NEW_MEMBER_TIMEOUTS: u64 = 4;

/// The election timer of one log, and the chance that its timeouts are drawn with.
#[derive(Debug)]
pub struct Election {
    chance: u64,
    /// Shortest timeout, microseconds; the longest is twice that.
    shortest_us: u64,
    /// When this node stands if it hears nobody.
    due: Time,
    pub(super) heard: Option<Heard>,
}

impl Election {
    pub fn new(config: &Config) -> Election {
        let LogId { origin, shard } = config.log;
        let log = u64::from(origin.0) << 16 ^ u64::from(shard.0);
        Election {
            chance: config.seed ^ log.rotate_left(24) ^ u64::from(config.node.0).rotate_right(8),
            shortest_us: config.election_timeout_us,
            due: Time(0),
            heard: None,
        }
    }

    /// A timeout between the shortest and twice that (splitmix64 over the seed).
    pub(super) fn draw(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.chance;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.shortest_us + (word ^ (word >> 31)) % self.shortest_us.max(1)
    }

    /// The timer starts anew.
    pub(super) fn wait(&mut self, now: Time) {
        self.due = now.plus_us(self.draw());
    }

    /// The timer ends soon: somebody has to lead, and this node just did.
    pub(super) fn wait_shortly(&mut self, now: Time) {
        self.due = now.plus_us(self.draw() / 4);
    }

    /// The log is recovered. A log of which no epoch was ever promised is left to the preferred
    /// member for one timeout more; the preferred one goes first, unless an operator called its
    /// blank disk a new one: then everybody who may hold blocks has some timeouts to stand before.
    pub(super) fn started(&mut self, now: Time, preferred: bool, new: New) {
        match preferred && new != New::Member {
            true => self.due = now,
            false => self.wait(now),
        }
        let timeouts = match new {
            New::Member => NEW_MEMBER_TIMEOUTS,
            New::Log if !preferred => 1,
            New::Log | New::Nothing => 0,
        };
        self.due = self.due.plus_us(timeouts * self.shortest_us);
    }
}

impl State {
    /// `node` leads `epoch`, or was given this node's vote for it.
    pub(super) fn hear(&mut self, node: NodeId, epoch: Epoch) {
        let at = self.clock;
        self.election.heard = Some(Heard { node, epoch, at });
        self.election.wait(at);
    }

    /// The leader that this node hears, if it is not silent for a timeout.
    pub(super) fn heard(&self) -> Option<Heard> {
        let lately = |heard: &Heard| self.clock.since_us(heard.at) < self.election.shortest_us;
        self.election.heard.filter(lately)
    }

    /// Whether a leader is heard that is another node than `asker`: who led last and asks now does
    /// not lead any more.
    pub(super) fn hears_other_than(&self, asker: NodeId) -> bool {
        self.config.electing && self.heard().is_some_and(|heard| heard.node != asker)
    }
}

impl Leader {
    /// Whether a majority has given its promises to this node.
    pub(super) fn has_won(&self) -> bool {
        !matches!(
            self.phase,
            Phase::Waiting | Phase::Gather { .. } | Phase::Saving { .. } | Phase::Promising { .. }
        )
    }

    /// This member asks the others whether it may lead; `forced` by the leader that hands over.
    pub(super) fn stand(&mut self, now: Time, forced: bool, state: &mut State) {
        self.forced = forced;
        for link in &mut self.links {
            link.retry_at = Some(now);
        }
        self.ask_again_at = now.plus_us(state.election.draw() / 4);
        self.gather(now, now, state.promise.epoch);
    }

    /// Positions are asked for again: who hears a leader changes.
    pub(super) fn ask_again(&mut self, now: Time, state: &mut State) {
        if !state.config.electing || now < self.ask_again_at {
            return;
        }
        self.ask_again_at = now.plus_us(state.election.draw() / 4);
        for link in &mut self.links {
            link.asks_again();
        }
    }

    /// Ends a candidacy or a leadership: every link, and what waited for it.
    pub(super) fn step_down(&mut self, now: Time, state: &mut State, why: &str) {
        let log = state.config.log;
        if self.is_open() || self.phase == Phase::Appending {
            let epoch = self.epoch;
            state.out.push_back(Output::Fenced { epoch });
            state.notice(
                Message::EpochLost,
                format!("{log}: epoch {epoch} is over: {why}"),
            );
        }
        for link in &mut self.links {
            if let Some(connection) = link.data {
                state.close(connection, Code::NotLeader);
            }
            let dialing = link.dialing;
            link.down(now, Cause::Refused(Code::NotLeader, [0; 2]));
            link.dialing = dialing;
            link.matched = BlockNo(0);
            link.operator_pause = false;
            link.stopped = None;
        }
        self.phase = Phase::Waiting;
        self.forced = false;
        self.handing = None;
        self.caught_up_since = None;
        self.sealed.clear();
        if state
            .heard()
            .is_some_and(|heard| heard.node == state.config.node)
        {
            state.election.heard = None;
        }
        state.election.wait(now);
    }

    /// A dial that was under way when the candidacy ended.
    pub(super) fn no_longer_wanted(&mut self, peer: NodeId) {
        if let Some(link) = self.links.iter_mut().find(|link| link.peer == peer) {
            link.dialing = false;
        }
    }

    /// A vote was refused: for another candidate's sake, or because this log is behind.
    pub(super) fn vote_refused(&mut self, now: Time, index: usize, state: &mut State) {
        let link = &mut self.links[index];
        link.refused = self.epoch;
        link.waiting_since = None;
        let refused = self.links.iter().filter(|link| link.refused == self.epoch);
        if self.links.len() + 1 - refused.count() < state.majority() {
            self.step_down(now, state, "a majority refused it");
        }
    }

    /// When the lease of a leader of an electing set ends.
    pub(super) fn lease_until(&self, state: &State) -> Option<Time> {
        if !state.config.electing || !self.has_won() {
            return None;
        }
        // Asked for at every input: no allocation, and only those that are there are sorted.
        let mut times = [Time(0); MAX_NODES];
        let mut count = 0;
        for link in self.links.iter().filter(|link| link.counts(self.epoch)) {
            times[count] = link.confirmed_at;
            count += 1;
        }
        times[..count].sort_unstable_by(|a, b| b.cmp(a));
        let others = state.majority() - 1;
        let oldest = times[others - 1];
        Some(oldest.max(self.won_at).plus_us(state.election.shortest_us))
    }

    /// When a candidacy has failed.
    fn candidacy_ends(&self, state: &State) -> Option<Time> {
        match self.phase {
            Phase::Promising { since, .. } => Some(since.plus_us(state.election.shortest_us)),
            Phase::Gather { since, .. } if self.forced => {
                Some(since.plus_us(state.election.shortest_us))
            }
            _ => None,
        }
    }
}

impl Replica {
    /// Whether this node leads the log: by an election it won, or by its place.
    pub(super) fn leads(&self) -> bool {
        let electing = self.state.config.electing;
        let leader = self.leader.as_ref();
        leader.is_some_and(|leader| !electing || leader.has_won())
    }

    /// Looks at the clock before anything else is believed: a leader whose lease is over, because
    /// nobody answers or because this process got no time, leads no more.
    pub fn look(&mut self, now: Time) {
        self.state.clock = self.state.clock.max(now);
        let Some(leader) = &mut self.leader else {
            return;
        };
        let state = &mut self.state;
        let over = leader.lease_until(state).is_some_and(|until| until <= now);
        if over && !active(Fault::NoStepDown) {
            let text = format!(
                "{}: no majority answers the leader of epoch {}",
                state.config.log, leader.epoch
            );
            state.notice(Message::MajorityLost, text);
            leader.step_down(now, state, "no majority answers");
        }
    }

    /// After an input: a candidate that hears a leader follows it.
    pub(super) fn mind_others(&mut self, now: Time) {
        let (Some(leader), state) = (&mut self.leader, &mut self.state) else {
            return;
        };
        let Some(heard) = state
            .heard()
            .filter(|heard| heard.node != state.config.node)
        else {
            return;
        };
        let over = match leader.phase {
            Phase::Waiting => false,
            Phase::Gather { .. } => !leader.forced,
            _ => heard.epoch > leader.epoch || heard.epoch == leader.epoch && !leader.has_won(),
        };
        if state.config.electing && over {
            let why = format!("node {} leads epoch {}", heard.node, heard.epoch);
            leader.step_down(now, state, &why);
        }
    }

    /// Stands if it is time to, and gives a candidacy up that has failed.
    pub(super) fn look_for_leader(&mut self, now: Time, view: &dyn LogView) {
        let (Some(leader), state) = (&mut self.leader, &mut self.state) else {
            return;
        };
        if !state.config.electing || !state.started || state.failed {
            return;
        }
        if leader.candidacy_ends(state).is_some_and(|at| at <= now) {
            leader.step_down(now, state, "no majority voted for it");
        }
        let new = state.promise.memory == ReplicaMemory::Blank && view.log_end() == BlockNo(0);
        let may = state.is_whole() || new;
        if leader.phase == Phase::Waiting && state.election.due <= now {
            state.election.wait(now);
            if may && !state.hears_other_than(state.config.node) {
                let log = state.config.log;
                let text = format!("{log}: no leader is heard: asks for votes");
                state.notice(Message::ElectionBegins, text);
                leader.stand(now, false, state);
            }
        }
    }

    /// When an election wants to look at the clock.
    pub(super) fn election_due(&self) -> Option<Time> {
        let leader = self.leader.as_ref()?;
        let state = &self.state;
        if !state.config.electing || !state.started || state.failed {
            return None;
        }
        let stand = (leader.phase == Phase::Waiting).then_some(state.election.due);
        let lease = leader
            .lease_until(state)
            .filter(|_| !active(Fault::NoStepDown));
        let times = [
            stand,
            lease,
            leader.candidacy_ends(state),
            leader.handing.map(|handing| handing.until),
        ];
        times.into_iter().flatten().min()
    }

    /// Somebody asks for a promise of an epoch above the own one: this leadership or candidacy is
    /// over, whoever gets the vote. False if it claims to have won what was won here.
    pub(super) fn give_way(&mut self, now: Time, connection: ConnectionId, body: &Where) -> bool {
        let (Some(leader), state) = (&mut self.leader, &mut self.state) else {
            return true;
        };
        let opening = !matches!(leader.phase, Phase::Waiting | Phase::Gather { .. });
        let peer = self.follower.peer_of(connection);
        let Some(peer) = peer.filter(|_| state.config.electing && opening) else {
            return true;
        };
        let claims = body.won != 0 && body.epoch == leader.epoch;
        if body.epoch > leader.epoch || claims && !leader.has_won() {
            let handed = leader.handing.is_some_and(|handing| handing.to == peer);
            let why = format!("node {peer} opens epoch {}", body.epoch);
            leader.step_down(now, state, &why);
            if handed {
                state.hear(peer, body.epoch);
            }
            return true;
        }
        !claims
    }

    /// The leader hands over to this node.
    pub(super) fn take_over(
        &mut self,
        now: Time,
        connection: ConnectionId,
        body: &Body,
        view: &dyn LogView,
    ) -> bool {
        let (Some(leader), Body::TakeOver(said)) = (&mut self.leader, body) else {
            return false;
        };
        let state = &mut self.state;
        let follows = self.follower.following == Some(connection);
        let current = said.epoch == state.promise.epoch && said.epoch == self.follower.epoch;
        if !state.config.electing || !follows {
            return false;
        }
        if view.is_full() {
            let (end, nothing) = (view.log_end(), CreditLimits::default());
            let nack = state.nack(Code::NoSpace, end, end, nothing);
            state.send(connection, nack);
        } else if current && state.is_whole() && !state.failed && leader.phase == Phase::Waiting {
            let text = format!("{}: takes over", state.config.log);
            state.notice(Message::HandOver, text);
            leader.stand(now, true, state);
        }
        true
    }
}
