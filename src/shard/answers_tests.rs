//! Tests of what a log lends to its readers: one hostile reader, and many.

use super::*;

const BLOCK: usize = 1 << 20;

fn out_to(answers: &mut Answers, connection: u64) -> usize {
    let connection = ConnectionId(connection);
    let mut count = 0;
    while answers.have_room(connection, BLOCK, (0, 0)) {
        answers.made(connection, 1000, BLOCK);
        count += 1;
    }
    count
}

///
#[test]
fn one_connection_gets_its_share_and_all_together_the_bound() {
    let mut answers = Answers::default();
    let share = READ_ANSWER_SHARE / BLOCK;
    assert_eq!(out_to(&mut answers, 1), share, "however small the payloads");
    assert_eq!(out_to(&mut answers, 2), share);
    let others: usize = (3..100).map(|other| out_to(&mut answers, other)).sum();
    assert_eq!((2 * share + others) * BLOCK, READ_ANSWER_BYTES);
    assert!(answers.take_wanted());
    answers.left(ConnectionId(1), 999);
    assert_eq!(
        out_to(&mut answers, 100),
        0,
        "an answer that has not left whole"
    );
    answers.left(ConnectionId(1), 1);
    assert_eq!(out_to(&mut answers, 100), 1);
    answers.forget(ConnectionId(2));
    assert_eq!(out_to(&mut answers, 101), share);
    (1..=101).for_each(|all| answers.forget(ConnectionId(all)));
    assert_eq!(answers.bytes, 0, "every byte is accounted for");
}

#[test]
fn an_answer_above_every_bound_goes_alone() {
    let mut answers = Answers::default();
    let (one, other) = (ConnectionId(1), ConnectionId(2));
    assert!(answers.have_room(one, 2 * READ_ANSWER_BYTES, (0, 0)));
    assert!(!answers.have_room(one, BLOCK, (READ_ANSWER_BYTES, 0)));
    assert!(!answers.have_room(one, BLOCK, (BLOCK, READ_ANSWER_SHARE)));
    answers.made(one, 10, 2 * READ_ANSWER_BYTES);
    assert!(!answers.have_room(other, 1, (0, 0)));
    // More than was ever sent, and of a connection that nobody knows.
    answers.left(one, 1000);
    answers.left(other, 1000);
    assert!(answers.have_room(other, 1, (0, 0)));
}
