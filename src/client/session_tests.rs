//! What a session makes of answers: routes, retries, unknown outcomes.

use super::*;
use crate::types::{BlockNo, Epoch};
use crate::wire::body::{AppendOk, NodeAddress};

fn address(node: u32, port: u16, cores: u16) -> NodeAddress {
    NodeAddress {
        node: NodeId(node),
        address: format!("host:{port}"),
        cores,
    }
}

fn session() -> Session {
    let mut session = Session::new();
    let question = session.metadata();
    let known = MetadataOk {
        protocol: PROTOCOL,
        node: NodeId(1),
        cluster: OriginId(9),
        default_level: 3,
        max_batch_bytes: 1 << 20,
        max_batch_records: 1 << 18,
        nodes: vec![address(1, 100, 2), address(2, 200, 0)],
        leaders: vec![NodeId(1), NodeId(2), NodeId(1)],
        epochs: vec![Epoch(1); 3],
        origin: OriginId(9),
        origins: vec![OriginId(9)],
        default_read_level: 1,
    };
    session.answer(question.correlation, known.into());
    session
}

fn append(session: &mut Session, shard: u16) -> u64 {
    let body = Append {
        level: 3,
        timeout_ms: 1,
    };
    session.append(ShardId(shard), body, 10).correlation
}

fn error(code: Code, detail: u64) -> Body {
    Error {
        code: code.number(),
        detail,
        detail_two: 0,
    }
    .into()
}

#[test]
fn a_shard_is_where_its_leader_and_its_core_are() {
    let session = session();
    let at = |shard| session.route(ShardId(shard)).map(|route| route.address);
    assert_eq!(at(0).as_deref(), Some("host:100"));
    assert_eq!(at(1).as_deref(), Some("host:200"));
    // Node 1 has two cores: shard 2 is on core 0.
    assert_eq!(at(2).as_deref(), Some("host:100"));
    assert_eq!(at(3), None);
}

#[test]
fn another_leader_and_another_port_are_remembered() {
    let mut session = session();
    let number = append(&mut session, 0);
    let outcome = session.answer(number, error(Code::NotLeader, 2));
    assert_eq!(outcome, Outcome::Elsewhere(Code::NotLeader));
    let number = append(&mut session, 0);
    let outcome = session.answer(number, error(Code::WrongCore, 207));
    assert_eq!(outcome, Outcome::Elsewhere(Code::WrongCore));
    let route = session.route(ShardId(0)).unwrap();
    assert_eq!(
        (route.node, route.address.as_str()),
        (NodeId(2), "host:207")
    );
}

#[test]
fn answers_say_whether_to_ask_again() {
    let mut session = session();
    let ok = AppendOk {
        base_offset: Offset(5),
        block: BlockNo(2),
        epoch: Epoch(1),
    };
    for (body, outcome) in [
        (ok.clone().into(), Outcome::Done(ok.into())),
        (error(Code::NotReady, 0), Outcome::Later(Code::NotReady)),
        (error(Code::Unknown, 0), Outcome::Unknown(Code::Unknown)),
        (
            error(Code::TooLarge, 7),
            Outcome::Refused(Code::TooLarge, [7, 0]),
        ),
    ] {
        let number = append(&mut session, 0);
        assert_eq!(session.answer(number, body.clone()), outcome);
        assert_eq!(session.answer(number, body), Outcome::Stray);
    }
}

#[test]
fn a_lost_connection_leaves_its_requests_unknown() {
    let mut session = session();
    let (one, two) = (append(&mut session, 0), append(&mut session, 1));
    assert_eq!(session.disconnected(Some(NodeId(1))), vec![one]);
    assert_eq!(session.in_flight(), 1);
    assert_eq!(session.disconnected(None), vec![two]);
}
