//! What nodes refuse one another, told once per change: a refusal that comes again is no news.
//!
//! A peer whose configuration differs, or whose log is closed, refuses each attempt anew, up to
//! once a second and for as long as nobody acts. One line tells of it, and one more if it becomes
//! another refusal or comes back. Only peers that are configured and logs of this core are
//! remembered: what strangers claim is bounded by `Core::may_complain`.

use super::driver::Core;
use crate::shard::Event;
use crate::shard::status::Refused;
use crate::types::{LogId, NodeId};
use crate::wire::code::Code;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Where a refusal is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Met {
    /// This node dials and its Hello is refused.
    Dialing,
    /// This node refuses a Hello.
    Accepting,
    /// A peer says so on an open connection.
    Open,
}

/// Where, with whom and about which log.
type Whose = (Met, NodeId, Option<LogId>);

/// What was told and is not over.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    told: RefCell<BTreeMap<Whose, Code>>,
}

impl Refusals {
    /// That is over: the next refusal is news.
    pub(super) fn over(&self, met: Met, node: NodeId, log: Option<LogId>) {
        self.told.borrow_mut().remove(&(met, node, log));
    }

    fn is_news(&self, met: Met, node: NodeId, log: Option<LogId>, code: Code) -> bool {
        let before = self.told.borrow_mut().insert((met, node, log), code);
        before != Some(code)
    }
}

impl Core {
    /// Whether a refusal is worth a line. `log` is the one that a data connection is for.
    pub(super) fn is_refusal_news(
        &self,
        met: Met,
        node: NodeId,
        log: Option<LogId>,
        code: Code,
    ) -> bool {
        let known = self.node.config.cluster.address(node).is_some();
        let here = log.is_none_or(|log| self.local(log).is_some());
        let news = !known || !here || self.refusals.is_news(met, node, log, code);
        news && self.may_complain()
    }

    /// Tells the shards that this node and a peer refuse to talk.
    pub(super) fn tell_refused(&self, peer: NodeId, why: Refused) {
        for log in 0..self.logs().len() {
            self.deliver(log, Event::PeerRefused { peer, why });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_news_once() {
        let refusals = Refusals::default();
        let (node, log) = (NodeId(2), Some(LogId::default()));
        let news = |code| refusals.is_news(Met::Open, node, log, code);
        assert!(news(Code::LogFailed));
        assert!(!news(Code::LogFailed));
        assert!(news(Code::WrongMembers), "another one");
        assert!(news(Code::LogFailed), "and back");
        assert!(refusals.is_news(Met::Open, node, None, Code::LogFailed));
        refusals.over(Met::Open, node, log);
        assert!(news(Code::LogFailed), "it was over");
    }
}
