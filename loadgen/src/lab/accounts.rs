//! The accounts of credit of a cluster at rest, as both ends of each link keep them.
//!
//! With nothing in flight the sender's and the receiver's books of a link must say the same, and
//! what may still be sent must be the whole window: a record or byte that was ever lost or counted
//! twice would stay in them. Who uses it: `reconnect.rs` and `chaos/mod.rs`.

use std::fmt::Write as _;

use millrace::limits::{INITIAL_CREDIT, INITIAL_CREDIT_BYTES};
use serde::Serialize;

use crate::Failure;
use crate::nodes::{Books, NodeStatus};
use crate::report::grouped;

/// One link at the end, as both of its ends see it.
#[derive(Clone, Debug, Serialize)]
pub struct Account {
    /// Its log.
    pub shard: u64,
    /// Who sends.
    pub leader: u64,
    /// Who receives.
    pub follower: u64,
    /// What the leader calls its state.
    pub status: String,
    /// Data connections since the start.
    pub connections: u64,
    /// What the leader has spent and may spend on this connection.
    pub sender: Option<Books>,
    /// What the follower saw arrive on it and granted.
    pub receiver: Option<Books>,
    /// Records and bytes that the follower has not disposed of.
    pub held: Option<[u64; 2]>,
}

/// The books of each link at both of its ends.
pub fn all(addresses: &[String]) -> Result<Vec<Account>, Failure> {
    let ask = |address: &String| NodeStatus::ask(address).map_err(Failure::failed);
    let statuses: Vec<NodeStatus> = addresses.iter().map(ask).collect::<Result<_, _>>()?;
    let mut accounts = Vec::new();
    for leader in &statuses {
        for link in leader.links() {
            let follower = statuses.iter().find(|status| status.node() == link.peer);
            let account = follower.and_then(|status| status.receiver(link.shard));
            accounts.push(Account {
                shard: link.shard,
                leader: leader.node(),
                follower: link.peer,
                status: link.status,
                connections: link.connections,
                sender: leader.sender(link.shard, link.peer),
                receiver: account.map(|(books, _)| books),
                held: account.map(|(_, held)| held),
            });
        }
    }
    Ok(accounts)
}

impl Account {
    /// What is wrong with it, or nothing.
    pub fn failure(&self) -> Option<String> {
        let link = format!(
            "shard {} of node {} to node {}",
            self.shard, self.leader, self.follower
        );
        let (Some(sender), Some(receiver), Some(held)) = (self.sender, self.receiver, self.held)
        else {
            return Some(format!("{link}: a node shows no books"));
        };
        let window = [INITIAL_CREDIT, INITIAL_CREDIT_BYTES];
        let room = [0, 1].map(|unit| sender.limit[unit].wrapping_sub(sender.used[unit]));
        if self.status != "replicating" {
            return Some(format!("{link}: {} at the end", self.status));
        }
        if sender != receiver {
            return Some(format!(
                "{link}: {sender:?} at the leader, {receiver:?} at the follower"
            ));
        }
        if room != window || held != [0, 0] {
            let text = format!("{room:?} of {window:?} may be sent, {held:?} are held");
            return Some(format!("{link}: with nothing in flight {text}"));
        }
        None
    }
}

/// All of them for people.
pub fn table(accounts: &[Account]) -> String {
    let mut out = format!(
        "{:<8} {:>7} {:>9} {:>12} {:>18} {:>20} {:>20}  {}\n",
        "shard",
        "leader",
        "follower",
        "connections",
        "spent records",
        "spent bytes",
        "room bytes",
        "books"
    );
    for account in accounts {
        let books = account.sender.unwrap_or_default();
        let _ = writeln!(
            out,
            "{:<8} {:>7} {:>9} {:>12} {:>18} {:>20} {:>20}  {}",
            account.shard,
            account.leader,
            account.follower,
            account.connections,
            grouped(books.used[0]),
            grouped(books.used[1]),
            grouped(books.limit[1].saturating_sub(books.used[1])),
            if account.failure().is_none() {
                "exact"
            } else {
                "DIFFER"
            }
        );
    }
    out
}
