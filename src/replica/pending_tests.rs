//! Who waits is answered once, with the right word.

use super::Pending;
use crate::types::{BlockNo, ConnectionId, Level, Time};
use crate::wire::code::Code;

const A: ConnectionId = ConnectionId(1);
const B: ConnectionId = ConnectionId(2);

fn accept(pending: &mut Pending<u32>, token: u32, block: u64, level: Level) {
    pending.accept(token, A, BlockNo(block), level, Time(1000));
}

fn answers(pending: &mut Pending<u32>) -> Vec<(u32, Result<(), Code>)> {
    core::iter::from_fn(|| pending.poll()).collect()
}

/// S-15 S-16
#[test]
fn each_level_at_its_own_end() {
    let mut pending = Pending::new();
    accept(&mut pending, 1, 5, Level::Local);
    assert_eq!(answers(&mut pending), [(1, Ok(()))]);
    accept(&mut pending, 2, 5, Level::Quorum);
    accept(&mut pending, 3, 5, Level::Leader);
    pending.durable(BlockNo(5));
    assert_eq!(answers(&mut pending), []);
    pending.durable(BlockNo(6));
    assert_eq!(answers(&mut pending), [(3, Ok(()))]);
    pending.committed(BlockNo(6));
    assert_eq!(answers(&mut pending), [(2, Ok(()))]);
    assert!(pending.is_empty());
}

/// A retry waits for the block of the first copy at its own level, whatever came behind it.
#[test]
fn retry_waits_for_its_own_level() {
    let mut pending = Pending::new();
    accept(&mut pending, 1, 7, Level::Leader);
    accept(&mut pending, 2, 9, Level::Quorum);
    pending.durable(BlockNo(8));
    assert_eq!(answers(&mut pending), [(1, Ok(()))]);
    accept(&mut pending, 3, 7, Level::Quorum);
    accept(&mut pending, 4, 7, Level::Leader);
    assert_eq!(answers(&mut pending), [(4, Ok(()))]);
    pending.committed(BlockNo(8));
    assert_eq!(answers(&mut pending), [(3, Ok(()))]);
    assert_eq!(pending.len(), 1);
}

/// S-17
#[test]
fn deadlines_and_fences_are_unknown_outcomes() {
    let mut pending = Pending::new();
    accept(&mut pending, 1, 1, Level::Quorum);
    pending.accept(2, A, BlockNo(1), Level::Leader, Time(500));
    assert_eq!(pending.poll_timeout(), Some(Time(500)));
    pending.on_time(Time(499));
    assert_eq!(answers(&mut pending), []);
    pending.on_time(Time(500));
    assert_eq!(answers(&mut pending), [(2, Err(Code::Unknown))]);
    pending.end_all(Code::Unknown);
    assert_eq!(answers(&mut pending), [(1, Err(Code::Unknown))]);
    pending.committed(BlockNo(9));
    assert_eq!(answers(&mut pending), []);
    assert_eq!(pending.poll_timeout(), None);
}

#[test]
fn a_gone_connection_is_answered_no_more() {
    let mut pending = Pending::new();
    accept(&mut pending, 1, 1, Level::Quorum);
    pending.accept(2, B, BlockNo(1), Level::Quorum, Time(500));
    pending.drop_connection(A);
    pending.committed(BlockNo(2));
    assert_eq!(answers(&mut pending), [(2, Ok(()))]);
}
