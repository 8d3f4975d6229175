//! Tests of the ledger's file: it reads back whole, sorted, or not at all.

use super::*;

fn entry(producer: u32, first: u32, state: State) -> Entry {
    // A node of a mesh for each producer.
    let (origin, shard) = (OriginId(10 - producer), ShardId(2));
    Entry {
        producer,
        first,
        count: 10,
        log: LogId { origin, shard },
        state,
    }
}

fn ledger() -> Ledger {
    Ledger {
        run: 0xfeed,
        shards: 3,
        record_bytes: 100,
        payload: Payload::Random,
        key_count: 1_000,
        entries: vec![
            entry(1, 0, State::Acked(Offset(1 << 40))),
            entry(1, 10, State::Failed(17)),
            entry(2, 0, State::Unknown(0)),
        ],
    }
}

#[test]
fn it_reads_back_sorted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.ledger");
    let expected = ledger();
    let mut written = expected.clone();
    written.entries.reverse();
    written.write(&path).expect("written");
    assert_eq!(Ledger::read(&path).expect("read"), expected);
    assert_eq!(expected.find(1, 10), Some(1));
    assert_eq!(expected.find(1, 5), None);
    assert_eq!(
        expected.records(|state| matches!(state, State::Acked(_))),
        10
    );
}

#[test]
fn read_until_an_ack_it_knows_none_of_the_later_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.ledger");
    let mut written = ledger();
    written.entries.push(entry(2, 10, State::Acked(Offset(7))));
    written.write(&path).expect("written");
    let acked = |acked| {
        let read = Ledger::read_until(&path, acked).expect("read");
        let states: Vec<State> = read.entries.iter().map(|entry| entry.state).collect();
        states
    };
    let (first, last) = (Offset(1 << 40), Offset(7));
    let unknown = State::Unknown(0);
    assert_eq!(acked(0), [unknown; 4]);
    assert_eq!(acked(9), [unknown; 4], "a batch is acknowledged as a whole");
    let one = [State::Acked(first), unknown, unknown, unknown];
    assert_eq!(acked(10), one, "later refusals are not known either");
    let known = [State::Acked(first), State::Failed(17), unknown, unknown];
    assert_eq!(acked(19), known);
    assert_eq!(acked(20)[3], State::Acked(last));
    assert_eq!(acked(u64::MAX), acked(20));
}

#[test]
fn any_flipped_byte_and_any_cut_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.ledger");
    ledger().write(&path).expect("written");
    let bytes = fs::read(&path).expect("read");
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        fs::write(&path, flipped).expect("written");
        assert!(Ledger::read(&path).is_err(), "byte {at}");
        fs::write(&path, &bytes[..at]).expect("written");
        assert!(Ledger::read(&path).is_err(), "cut at {at}");
    }
}

#[test]
fn batches_that_overlap_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.ledger");
    let mut ledger = ledger();
    ledger.entries.push(entry(1, 5, State::Unknown(0)));
    ledger.write(&path).expect("written");
    assert!(Ledger::read(&path).is_err());
}

#[test]
fn a_code_counts_as_failed_only_if_it_says_that_the_batch_is_nowhere() {
    let state = |code: Code| State::of_code(code.number());
    assert!(matches!(state(Code::NotLeader), State::Failed(_)));
    assert!(matches!(state(Code::Overloaded), State::Failed(_)));
    assert!(matches!(state(Code::TooLarge), State::Failed(_)));
    assert!(matches!(state(Code::Unknown), State::Unknown(_)));
    assert!(matches!(state(Code::LogFailed), State::Unknown(_)));
    assert!(matches!(state(Code::Stopping), State::Unknown(_)));
    assert!(matches!(State::of_code(60_000), State::Unknown(_)));
}

/// What a run that was killed leaves: the place that it made sure of.
#[test]
fn a_ledger_of_a_run_that_did_not_end_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.ledger");
    fs::write(&path, b"").expect("written");
    let error = Ledger::read(&path).expect_err("no ledger").to_string();
    let words = ["its run did not end", "mend: run again", "SIGTERM"];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}
