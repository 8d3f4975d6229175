//! Opening an epoch: the one way in which a node becomes leader, elected or placed.
//!
//! ```text
//! Gather    every member says what it promised and holds; after a while a majority is enough
//! Saving    a number above all of these, in the own checkpoint
//! Promising a majority, this node included, promises it durably and says what it holds
//! Fetching  the suffix of the most up-to-date of these, if the own log is behind
//! Settling  all of it is durable here; a leader that had lost its memory now has one again
//! Appending the epoch's first block; once it is sealed the epoch is open
//! ```
//!
//! Replicas without a whole memory give no promise that counts. A log is new (*founding*) only if
//! every member answered and none holds a block. Losing the source of a fetch, or hearing a higher
//! promise, begins again at Gather. Read `leader.rs` for what follows.

use super::admit::{self, Hints};
use super::leader::Leader;
use super::output::{Output, Promise};
use super::progress::{Cause, Link, Stage};
use super::state::State;
use super::view::LogView;
use crate::limits::EPOCH_MAX;
use crate::types::{BlockNo, Epoch, NodeId, Time};
use crate::wire::body::ReplicaMemory;
use crate::wire::code::Code;
use crate::wire::message::Message;

/// How far the opening has come. `Leader::epoch` is the number from `Saving` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not started, or failed.
    Waiting,
    /// Positions are awaited.
    Gather {
        /// Since when.
        since: Time,
        /// Not to be left before.
        not_before: Time,
        /// An epoch heard of.
        above: Epoch,
        /// Operators were told what it waits for.
        told: bool,
    },
    /// The own promise is being saved.
    Saving {
        /// The log is new.
        founding: bool,
    },
    /// Promises are awaited.
    Promising {
        /// Since when.
        since: Time,
        /// The log is new.
        founding: bool,
    },
    /// The missing suffix is being copied.
    Fetching(Fetching),
    /// What was copied is becoming durable.
    Settling,
    /// The own memory is being saved as whole.
    Remembering,
    /// The epoch's first block is awaited.
    Appending,
    /// Appends may be taken.
    Open,
}

/// State of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetching {
    pub(super) peer: NodeId,
    /// First block to ask for.
    pub(super) first: BlockNo,
    /// The source's log start and end.
    pub(super) start: BlockNo,
    pub(super) end: BlockNo,
    /// An answer is awaited.
    pub(super) asked: bool,
    /// The run between `Verdict::Write` and `run_written` ends here.
    pub(super) writing: Option<BlockNo>,
}

/// In a mesh a leader may have opened epochs that nobody else heard of, and then lost its disk: it
/// goes on above as many of them as there may be, so that no number is used twice.
const UNHEARD_EPOCHS: u32 = 1 << 16;

impl Leader {
    /// Begins to open an epoch above `above`.
    pub(super) fn gather(&mut self, now: Time, not_before: Time, above: Epoch) {
        self.phase = Phase::Gather {
            since: now,
            not_before,
            above,
            told: false,
        };
    }

    pub(super) fn is_founding(&self) -> bool {
        matches!(
            self.phase,
            Phase::Saving { founding: true } | Phase::Promising { founding: true, .. }
        )
    }

    /// Whether a promise may be asked of a link whose position is known.
    pub(super) fn may_promise(&self, index: usize, state: &State) -> bool {
        let link = &self.links[index];
        // Nobody else ever leads a log of a mesh: no promise can be one that was given away.
        let whole = link.memory == ReplicaMemory::Whole || state.config.mesh;
        match self.phase {
            Phase::Waiting | Phase::Gather { .. } | Phase::Saving { .. } => false,
            Phase::Promising { .. } if link.refused == self.epoch => false,
            Phase::Promising { founding, .. } => whole || founding,
            Phase::Open => whole || self.is_confirmed(index, state),
            _ => whole,
        }
    }

    /// Whether the rest of the set has confirmed this leadership after the link's replica, which
    /// lost its memory, said so. Without this a leader that is one no more could bring it up.
    fn is_confirmed(&self, index: usize, state: &State) -> bool {
        let asked_at = self.links[index].known_at;
        let confirms = |(other, link): &(usize, &Link)| {
            *other != index && link.counts(self.epoch) && link.confirmed_at >= asked_at
        };
        let others = self.links.iter().enumerate().filter(confirms).count();
        1 + others >= state.majority_of_others()
    }

    /// Somebody promised `epoch`: if it is above the own one, this leadership is over.
    pub(super) fn heard_epoch(&mut self, now: Time, epoch: Epoch, state: &mut State) {
        match &mut self.phase {
            Phase::Waiting => {}
            Phase::Gather { above, .. } => *above = (*above).max(epoch),
            _ if epoch > self.epoch && state.config.electing => {
                let why = format!("epoch {epoch} was promised elsewhere");
                self.step_down(now, state, &why);
                state.election.wait_shortly(now);
            }
            _ if epoch > self.epoch => {
                let why = format!("epoch {epoch} was promised elsewhere");
                self.reopen(now, epoch, state, &why);
            }
            _ => {}
        }
    }

    /// Somebody refused this epoch as stale, having promised `promised`, perhaps to another node.
    pub(super) fn heard_refusal(&mut self, now: Time, promised: Epoch, state: &mut State) {
        match self.phase {
            Phase::Waiting | Phase::Gather { .. } => self.heard_epoch(now, promised, state),
            _ if promised >= self.epoch && !state.config.electing => {
                let why = format!("epoch {promised} was promised elsewhere");
                self.reopen(now, promised, state, &why);
            }
            _ => {}
        }
    }

    /// Gives up this epoch for one above `above`.
    pub(super) fn reopen(&mut self, now: Time, above: Epoch, state: &mut State, why: &str) {
        let log = state.config.log;
        if self.is_open() || self.phase == Phase::Appending {
            let epoch = self.epoch;
            state.out.push_back(Output::Fenced { epoch });
            let text = format!("{log}: epoch {epoch} is over: {why}");
            state.notice(Message::EpochLost, text);
        }
        // Flow control belongs to one connection and one epoch (Q-19).
        for link in &mut self.links {
            if let Some(connection) = link.data {
                state.close(connection, Code::StaleEpoch);
                link.down(now, Cause::Refused(Code::StaleEpoch, [0; 2]));
            }
            link.matched = BlockNo(0);
        }
        self.gather(now, now, above);
    }

    /// The connection of `peer` is gone: a fetch from it begins anew.
    pub(super) fn lost_source(&mut self, now: Time, peer: NodeId, state: &State) {
        if matches!(self.phase, Phase::Fetching(fetching) if fetching.peer == peer) {
            self.start_over(now, state);
        }
    }

    pub(super) fn start_over(&mut self, now: Time, state: &State) {
        for link in &mut self.links {
            if link.stage > Stage::Known {
                link.stage = Stage::Known;
                link.waiting_since = None;
            }
        }
        let not_before = now.plus_us(self.backoff.failed(state.config.retry_backoff_us));
        self.gather(now, not_before, self.epoch);
    }

    /// Goes as far towards an open epoch as is possible now.
    pub(super) fn open(&mut self, now: Time, state: &mut State, view: &dyn LogView) {
        match self.phase {
            Phase::Gather { .. } => {
                self.ask_again(now, state);
                self.choose(now, state, view);
            }
            Phase::Promising { since, founding } => {
                self.count_promises(now, since, founding, state, view);
            }
            Phase::Fetching(fetching) => self.fetch(now, fetching, state, view),
            Phase::Settling => self.settle(state, view),
            _ => {}
        }
    }

    fn choose(&mut self, now: Time, state: &mut State, view: &dyn LogView) {
        let Phase::Gather {
            since,
            not_before,
            above,
            told,
        } = self.phase
        else {
            return;
        };
        if state.saving.is_some() || now < not_before {
            return;
        }
        let known = |link: &&Link| link.stage == Stage::Known;
        let (mesh, electing) = (state.config.mesh, state.config.electing);
        let free = |link: &&Link| !electing || self.has_pre_vote(link, view);
        let whole = |link: &&Link| link.memory == ReplicaMemory::Whole || mesh;
        let answered = self.links.iter().filter(known).count();
        let all = answered == self.links.len();
        let founding = all && self.is_new(state, view);
        let others = self.links.iter().filter(known).filter(free).filter(whole);
        let others = others.count();
        let waited = now >= since.plus_us(state.config.gather_us);
        let enough = match electing {
            // Votes are refused to a log that is behind: nobody need be waited for.
            true => state.is_whole() && self.enough(others, state),
            false => self.enough(others, state) && (all || waited),
        };
        if !founding && !enough {
            if (all || waited) && !told {
                self.phase = Phase::Gather {
                    since,
                    not_before,
                    above,
                    told: true,
                };
                self.say_why(answered, others, state);
            }
            return;
        }
        let said = self.links.iter().filter_map(|link| link.position.as_ref());
        let highest = said
            .map(|position| position.promised.max(position.last_epoch))
            .chain([above, state.promise.epoch, view.last_epoch()])
            .max()
            .unwrap_or_default();
        let step = match mesh && !state.is_whole() && !founding {
            true => UNHEARD_EPOCHS,
            false => 1,
        };
        if highest.0 > EPOCH_MAX - step {
            return self.no_epoch_left(highest, state);
        }
        self.epoch = Epoch(highest.0 + step);
        self.phase = Phase::Saving { founding };
        let memory = match state.promise.memory {
            ReplicaMemory::Whole => ReplicaMemory::Whole,
            _ if founding => ReplicaMemory::Whole,
            _ => ReplicaMemory::Lost,
        };
        state.save(Promise {
            epoch: self.epoch,
            leader: Some(state.config.node),
            memory,
        });
    }

    /// Tells operators what the opening waits for.
    fn say_why(&self, answered: usize, others: usize, state: &mut State) {
        if state.is_alone_and_lost() {
            let text = "cannot open an epoch: the checkpoint is lost and no other member knows \
                what was in the log; mend: restore the log's directory from a copy, or start this \
                node once with --new-member, which takes what the log holds for all there was";
            return state.told_to_wait(Message::CheckpointLost, text.to_owned());
        }
        let memory = state.promise.memory;
        let rule = match state.config.mesh {
            true => "all must answer: any of them may hold what was written here before; if \
                     nothing was, start this node with --new-member"
                .to_owned(),
            false if state.config.electing => {
                format!("{others} with a whole memory hear no leader and hold no more")
            }
            false => format!("{others} with a whole memory"),
        };
        let text = format!(
            "cannot open an epoch yet: {answered} of {} other members answered, {rule}; the memory \
             here is {memory:?}",
            self.links.len(),
        );
        state.told_to_wait(Message::EpochWaits, text);
    }

    /// Whether the member of a link would vote for this one: it hears no leader, and its log is not
    /// ahead.
    fn has_pre_vote(&self, link: &Link, view: &dyn LogView) -> bool {
        let own = (view.last_epoch(), view.log_end());
        link.position.as_ref().is_some_and(|said| {
            let free = said.hears_leader == 0 || self.forced;
            free && (said.last_epoch, said.next) <= own
        })
    }

    /// A member promised the last epoch that there is: nobody can lead. Operators are told, once.
    fn no_epoch_left(&mut self, highest: Epoch, state: &mut State) {
        let Phase::Gather { told, .. } = &mut self.phase else {
            return;
        };
        if !core::mem::replace(told, true) {
            let text = format!(
                "{}: cannot open an epoch: epoch {highest} was promised and none is above it; \
                 mend: replace the member that promised it by a blank one",
                state.config.log
            );
            state.notice(Message::CannotLead, text);
        }
    }

    /// Whether no member holds a block and none lost its memory, and at least one is blank.
    fn is_new(&self, state: &State, view: &dyn LogView) -> bool {
        let empty = |link: &Link| {
            let position = link.position.as_ref();
            position.is_some_and(|position| position.next == BlockNo(0))
        };
        let memories = || {
            let links = self.links.iter().map(|link| link.memory);
            links.chain([state.promise.memory])
        };
        view.log_end() == BlockNo(0)
            && self.links.iter().all(empty)
            && memories().all(|memory| memory != ReplicaMemory::Lost)
            && memories().any(|memory| memory == ReplicaMemory::Blank)
    }

    /// A save has ended.
    pub(super) fn saved(&mut self, now: Time, state: &State) {
        match self.phase {
            Phase::Saving { founding } if state.promise.epoch == self.epoch => {
                self.phase = Phase::Promising {
                    since: now,
                    founding,
                };
            }
            Phase::Remembering if state.is_whole() => self.phase = Phase::Settling,
            _ => {}
        }
    }

    fn count_promises(
        &mut self,
        now: Time,
        since: Time,
        founding: bool,
        state: &mut State,
        view: &dyn LogView,
    ) {
        let epoch = self.epoch;
        let mesh = state.config.mesh;
        let promised = |link: &&Link| link.stage == Stage::Promised && (mesh || link.counts(epoch));
        let promises = self.links.iter().filter(promised).count();
        let awaited = |link: &&Link| match link.stage {
            _ if link.refused == epoch => false,
            Stage::Promising => !state.config.electing || founding,
            Stage::Known if state.config.electing && !founding => false,
            Stage::Known => founding || mesh || link.memory == ReplicaMemory::Whole,
            _ => false,
        };
        let none_awaited = self.links.iter().find(awaited).is_none();
        let waited = now >= since.plus_us(state.config.gather_us);
        if !self.enough(promises, state) || !(none_awaited || waited) {
            return;
        }
        self.won_at = since;
        self.ping_at = now;
        let held = |link: &Link| {
            let position = link
                .position
                .as_ref()
                .expect("a promise comes with a position");
            (position.last_epoch, position.next)
        };
        let may = |link: &&Link| promised(link) && link.stopped.is_none();
        let best = self.links.iter().filter(may).max_by_key(|link| {
            let start = link.position.as_ref().map(|position| position.log_start);
            (held(link), core::cmp::Reverse(start))
        });
        let own = (view.last_epoch(), view.log_end());
        self.phase = match best {
            Some(link) if held(link) > own => {
                let (last_epoch, end) = held(link);
                let hints = Hints {
                    next: end,
                    epoch: last_epoch,
                    first: BlockNo(u64::MAX),
                };
                let text = format!(
                    "{}: copies blocks up to {end} from node {}",
                    state.config.log, link.peer
                );
                // At least its last block is asked for: where the logs part shows in the answer.
                let first = admit::step_back(view, hints);
                let last = end.previous().expect("more up to date than any empty log");
                let position = link.position.as_ref();
                let fetching = Fetching {
                    peer: link.peer,
                    first: first.min(last),
                    start: position.map_or(BlockNo(0), |position| position.log_start),
                    end,
                    asked: false,
                    writing: None,
                };
                state.notice(Message::BlocksCopied, text);
                Phase::Fetching(fetching)
            }
            _ => Phase::Settling,
        };
        self.open(now, state, view);
    }

    pub(super) fn settle(&mut self, state: &mut State, view: &dyn LogView) {
        if let Some(from) = view.damaged_from() {
            if self.was_never_committed(from, state) {
                state.out.push_back(Output::CutTail { from });
            }
            return;
        }
        if view.durable_end() < view.log_end() || state.saving.is_some() {
            return;
        }
        if state.is_whole() {
            self.phase = Phase::Appending;
            state
                .out
                .push_back(Output::AppendEpoch { epoch: self.epoch });
            return;
        }
        self.phase = Phase::Remembering;
        state.save(Promise {
            memory: ReplicaMemory::Whole,
            ..state.promise
        });
    }

    /// Whether a block of the own log cannot have been committed, and never will be: with this
    /// node, those who may hold it are too few. Who promised this epoch with a whole memory and a
    /// log that ends before it, and was not given it since, never held it, or said so to nobody.
    fn was_never_committed(&self, block: BlockNo, state: &State) -> bool {
        let lacks = |link: &&Link| {
            let ends = link.position.as_ref().map(|position| position.next);
            let ends = ends.map(|end| end.max(link.matched));
            let promised = link.stage >= Stage::Promised && link.counts(self.epoch);
            promised && ends.is_some_and(|end| end <= block)
        };
        let lacking = self.links.iter().filter(lacks).count();
        !state.config.mesh && self.links.len() - lacking + 1 < state.majority()
    }

    /// The own block, which nobody who was asked can give, is damaged. A leader that has not
    /// committed it commits nothing any more. If enough others lack it, it opens another epoch,
    /// before which the damaged end is given up; else, if all others were asked, one of them may
    /// lead.
    pub(super) fn lead_anew(
        &mut self,
        now: Time,
        damaged: BlockNo,
        asked: usize,
        state: &mut State,
    ) {
        let settles = self.phase == Phase::Settling;
        if damaged < state.high_watermark || !self.is_open() && !settles {
            return;
        }
        let why = format!("its block {damaged} is damaged, and nobody who was asked has it");
        match (
            self.was_never_committed(damaged, state),
            state.config.electing,
        ) {
            (true, _) if settles => {}
            (true, true) => {
                self.step_down(now, state, &why);
                state.election.wait_shortly(now);
            }
            (true, false) => self.reopen(now, self.epoch, state, &why),
            (false, true) if asked == self.links.len() => self.step_down(now, state, &why),
            (false, _) => {}
        }
    }

    /// Whether so many other members make, with this one, enough to open an epoch: in a set a
    /// majority with whole memories. In a mesh nobody else ever leads this log, so its own memory
    /// is enough (S-1, S-138); without one, every member may hold what was lost here.
    fn enough(&self, others: usize, state: &State) -> bool {
        match (state.config.mesh, state.is_whole()) {
            (true, true) => true,
            (true, false) => others == self.links.len(),
            (false, true) => others + 1 >= state.majority(),
            (false, false) => others >= state.majority_of_others(),
        }
    }

    /// When the opening wants to look at the clock.
    pub(super) fn opening_due(&self, state: &State) -> Option<Time> {
        let due = match self.phase {
            Phase::Gather { .. } if state.config.electing => self.ask_again_at,
            Phase::Gather {
                since, not_before, ..
            } if self.clock >= not_before => since.plus_us(state.config.gather_us),
            Phase::Gather { not_before, .. } => not_before,
            Phase::Promising { since, .. } => since.plus_us(state.config.gather_us),
            _ => return None,
        };
        Some(due).filter(|due| *due > self.clock)
    }
}
