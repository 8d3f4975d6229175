//! An opening leader copies what it lacks: the suffix of the most up-to-date member that answered.
//!
//! `Fetch` asks for runs of blocks from the first that may differ on; what comes is admitted by the
//! rule of `admit.rs` and cut, in a set, where the logs part. A conflict with what is committed
//! here (in a mesh, any conflict) deletes nothing: see `Leader::differs`. Losing the source begins
//! the opening again: read `opening.rs` first.

use super::admit::{self, Hints, Place, Run};
use super::leader::Leader;
use super::opening::{Fetching, Phase};
use super::output::Verdict;
use super::progress::Cause;
use super::state::State;
use super::view::LogView;
use crate::types::{BlockNo, ConnectionId, Time};
use crate::wire::block::BlockHeader;
use crate::wire::body::{Body, Fetch, Nack};
use crate::wire::code::Code;
use crate::wire::message::Message;

impl Leader {
    pub(super) fn fetch(
        &mut self,
        now: Time,
        mut fetching: Fetching,
        state: &mut State,
        view: &dyn LogView,
    ) {
        if fetching.asked || fetching.writing.is_some() {
            return;
        }
        if fetching.first >= fetching.end {
            self.phase = Phase::Settling;
            return self.settle(state, view);
        }
        let peer = fetching.peer;
        let found = self.links.iter_mut().find(|link| link.peer == peer);
        let connection = found.as_ref().and_then(|link| link.data);
        let (Some(link), Some(connection)) = (found, connection) else {
            return self.start_over(now, state);
        };
        // What the source has trimmed is committed: the own log begins where the source's does.
        let anew = fetching.first <= fetching.start && fetching.start > view.log_start();
        fetching.first = fetching.first.max(fetching.start);
        if fetching.first < view.log_start() {
            return self.differs(now, fetching.first, state);
        }
        let previous = fetching.first.previous();
        let epoch = previous.and_then(|block| view.epoch_of(block));
        let epoch = epoch.filter(|_| !anew);
        link.waiting_since = Some(now);
        let body = Fetch {
            epoch: self.epoch,
            first: fetching.first,
            prev_epoch: epoch.unwrap_or_default(),
            max_bytes: state.config.run_bytes.min(u64::from(u32::MAX)) as u32,
        };
        state.send(connection, body);
        self.phase = Phase::Fetching(Fetching {
            asked: true,
            ..fetching
        });
    }

    /// What is copied contradicts what is committed here: nothing is deleted, operators are told.
    fn differs(&mut self, now: Time, at: BlockNo, state: &mut State) {
        if state.config.mesh {
            return self.differs_in_mesh(now, at, state);
        }
        let text = format!(
            "{}: cannot lead: the most up-to-date member holds other blocks at block {at}",
            state.config.log
        );
        state.notice(Message::CannotLead, text);
        self.start_over(now, state);
    }

    /// In a mesh this node leads its log whatever others hold of it: the link stops as diverged,
    /// what it holds there stays with it, and the opening goes on without it.
    fn differs_in_mesh(&mut self, now: Time, at: BlockNo, state: &mut State) {
        if let Phase::Fetching(fetching) = self.phase
            && let Some(link) = self.links.iter_mut().find(|l| l.peer == fetching.peer)
        {
            link.stopped = Some(Cause::Diverged(at));
            let text = format!(
                "{}: node {} holds other blocks of this node's log at block {at}; it keeps them",
                state.config.log, link.peer
            );
            state.notice(Message::LogsDiverged, text);
            self.phase = Phase::Promising {
                since: now,
                founding: false,
            };
        }
    }

    /// A `FetchOk` came.
    pub(super) fn on_run(
        &mut self,
        now: Time,
        connection: ConnectionId,
        body: &Body,
        headers: Option<&[BlockHeader]>,
        state: &mut State,
        view: &dyn LogView,
    ) -> Verdict {
        let Phase::Fetching(mut fetching) = self.phase else {
            return Verdict::Ignore;
        };
        let link = self
            .links
            .iter_mut()
            .find(|link| link.peer == fetching.peer);
        let link = link.filter(|link| link.data == Some(connection));
        let (Some(link), Some(run), Body::FetchOk(_)) = (link, Run::of(body), body) else {
            return Verdict::Ignore;
        };
        if !fetching.asked || run.epoch != self.epoch || run.first != fetching.first {
            return Verdict::Ignore;
        }
        link.heard = now;
        link.data_heard = now;
        link.waiting_since = None;
        fetching.asked = false;
        self.phase = Phase::Fetching(fetching);
        if run.count == 0 {
            self.start_over(now, state);
            return Verdict::AckAgain;
        }
        let headers = admit::agree(&run, headers, state.config.log);
        let (hwm, may_truncate) = (state.high_watermark, !state.config.mesh);
        let place = admit::place_from(fetching.start, &run, headers, view, (hwm, may_truncate));
        let code = match place {
            Place::Next | Place::Cut(_) | Place::Anew(_) => {
                match admit::check_place(place, &run, headers, view) {
                    Ok(()) => {
                        fetching.writing = Some(run.end());
                        self.phase = Phase::Fetching(fetching);
                        return match place {
                            Place::Anew(start) => Verdict::Reset { start },
                            Place::Cut(from) => Verdict::Write { cut: Some(from) },
                            _ => Verdict::Write { cut: None },
                        };
                    }
                    Err(code) => code,
                }
            }
            Place::Held => {
                fetching.first = run.end();
                self.phase = Phase::Fetching(fetching);
                return Verdict::AckAgain;
            }
            Place::OutOfSync(hints) => {
                // The run is held in part: go on behind that part, or cut at the first that
                // differs.
                let part = hints.next == view.log_end() && hints.next > run.first;
                let equal = part && admit::same_up_to(view, headers, hints.next);
                fetching.first = if equal {
                    hints.next
                } else {
                    hints.next.previous().unwrap_or_default()
                };
                self.phase = Phase::Fetching(fetching);
                return Verdict::AckAgain;
            }
            Place::Diverged(_) => Code::Diverged,
            Place::Refuse(code) => code,
        };
        self.fetch_failed(now, code, run.first, state);
        Verdict::Refuse(code)
    }

    fn fetch_failed(&mut self, now: Time, code: Code, at: BlockNo, state: &mut State) {
        if code == Code::Diverged {
            return self.differs(now, at, state);
        }
        let Phase::Fetching(fetching) = self.phase else {
            return;
        };
        let found = self
            .links
            .iter()
            .position(|link| link.peer == fetching.peer);
        match found {
            Some(index) => self.drop_link(now, index, code, Cause::Refused(code, [0; 2]), state),
            None => self.start_over(now, state),
        }
    }

    /// Whether a run fetched waits for `run_written` or `run_refused`.
    pub(super) fn is_writing(&self) -> bool {
        matches!(self.phase, Phase::Fetching(fetching) if fetching.writing.is_some())
    }

    /// Whether a run fetched may still wait for its cut.
    pub(super) fn is_copying(&self) -> bool {
        matches!(self.phase, Phase::Fetching(_))
    }

    /// A run fetched that waited for its cut is not in the log: the block before it differs.
    pub(super) fn run_dropped(&mut self, now: Time, first: BlockNo, state: &mut State) {
        self.differs(now, first.previous().unwrap_or_default(), state);
    }

    /// The run fetched is in the log.
    pub(super) fn run_written(&mut self) {
        if let Phase::Fetching(fetching) = &mut self.phase
            && let Some(end) = fetching.writing.take()
        {
            fetching.first = end;
        }
    }

    /// The run fetched was not written, for this reason.
    pub(super) fn run_refused(&mut self, now: Time, code: Code, state: &mut State) {
        if let Phase::Fetching(fetching) = self.phase {
            self.fetch_failed(now, code, fetching.first, state);
        }
    }

    /// A `Nack` came; true if it refused the fetch that is out.
    pub(super) fn on_fetch_refused(
        &mut self,
        now: Time,
        index: usize,
        nack: &Nack,
        code: Code,
        state: &mut State,
        view: &dyn LogView,
    ) -> bool {
        let Phase::Fetching(mut fetching) = self.phase else {
            return false;
        };
        if fetching.peer != self.links[index].peer || !fetching.asked {
            return false;
        }
        self.links[index].waiting_since = None;
        let hints = Hints {
            next: nack.next,
            epoch: nack.hint_epoch,
            first: nack.hint_first,
        };
        let first = admit::step_back(view, hints);
        if code == Code::OutOfSync && first < fetching.first {
            fetching.first = first;
            fetching.asked = false;
            self.phase = Phase::Fetching(fetching);
        } else {
            self.drop_link(now, index, code, Cause::Refused(code, [0; 2]), state);
        }
        true
    }
}
