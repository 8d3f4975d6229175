//! Tests of the judgement: each thing that does not hold is named.

use millrace::limits::{INITIAL_CREDIT, INITIAL_CREDIT_BYTES};

use super::*;
use crate::nodes::Books;

fn good() -> Seen {
    let books = Books {
        used: [500, 8192],
        limit: [500 + INITIAL_CREDIT, 8192 + INITIAL_CREDIT_BYTES],
    };
    let account = |follower| Account {
        shard: 0,
        leader: 1,
        follower,
        status: "replicating".to_owned(),
        connections: 6,
        sender: Some(books),
        receiver: Some(books),
        held: Some([0, 0]),
    };
    Seen {
        cuts: 10,
        asked: 10,
        accounts: vec![account(2), account(3)],
        rate: 5_990.0,
        gaps_ms: vec![120, 4_999],
        settled: true,
        proven: true,
    }
}

#[test]
fn exact_accounts_hold() {
    assert_eq!(failures(&good()), Vec::<String>::new());
}

#[test]
fn each_failure_is_named() {
    let fails = |change: fn(&mut Seen), words: &str| {
        let mut seen = good();
        change(&mut seen);
        let failures = failures(&seen);
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].contains(words), "{failures:?}");
    };
    // One record lost on the way: the sender has spent it, the receiver never saw it.
    let lost = |seen: &mut Seen| seen.accounts[1].receiver.as_mut().expect("books").used[0] -= 1;
    fails(lost, "to node 3: Books");
    // Both agree, and a page of the window is gone.
    let leaked = |seen: &mut Seen| {
        let account = &mut seen.accounts[0];
        for books in [&mut account.sender, &mut account.receiver] {
            books.as_mut().expect("books").limit[1] -= 4096;
        }
    };
    fails(leaked, "[262144, 33550336] of [262144, 33554432]");
    fails(
        |seen| seen.accounts[0].held = Some([1, 0]),
        "[1, 0] are held",
    );
    fails(|seen| seen.accounts[0].receiver = None, "shows no books");
    fails(
        |seen| seen.accounts[0].status = "paused".to_owned(),
        "paused at the end",
    );
    fails(
        |seen| seen.accounts[0].connections = 5,
        "11 connections of 2 links, 12 are needed",
    );
    fails(|seen| seen.asked = 11, "10 of 11 connections");
    fails(|seen| seen.rate = 4_999.0, "4999 appends/s");
    fails(
        |seen| seen.gaps_ms[1] = 5_000,
        "shard 1 was without an ack for 5000 ms",
    );
    fails(|seen| seen.settled = false, "lacked records");
    fails(|seen| seen.proven = false, "do not hold");
}
