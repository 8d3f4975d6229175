//! What a replica makes of a run of blocks, as a table: every state against every input.
//!
//! A catch-up comes in the frames of a push and is judged by the same code, so one table is of
//! both; what an opening leader copies is judged in `copying.rs` and has its own. Columns: the run
//! as it should be, with a damaged header, and with sound headers over a damaged batch.

use super::super::test_kit::{Frame, Net};
use super::{
    BlockNo, Body, Channel, Code, ConnectionId, DATA, Epoch, Lone, NOW, NodeId, TestLog, Verdict,
    frame, nack,
};
use crate::types::Tick;

/// What the replica holds.
const HELD: [u32; 2] = [1, 1];
/// Another member's connection.
const OTHER: ConnectionId = ConnectionId(9);

const STATES: [&str; 5] = ["follows", "latched", "stranger", "fenced", "unasked"];
const INPUTS: [&str; 6] = [
    "gap",
    "held",
    "next",
    "in part",
    "other epoch",
    "other bytes",
];
const COLUMNS: [&str; 3] = ["sound", "header", "batch"];

const TABLE: &str = "\
state    | input       | sound        | header       | batch
follows  | gap         | OutOfSync    | OutOfSync    | OutOfSync
follows  | held        | again        | BadCrc       | again
follows  | next        | write        | BadCrc       | BadCrc
follows  | in part     | OutOfSync    | BadCrc       | OutOfSync
follows  | other epoch | write from 1 | BadCrc       | BadCrc
follows  | other bytes | Diverged     | BadCrc       | Diverged
latched  | any         | LogFailed    | LogFailed    | LogFailed
stranger | any         | WrongNode    | WrongNode    | WrongNode
fenced   | any         | StaleEpoch   | StaleEpoch   | StaleEpoch
unasked  | any         | NotReady     | NotReady     | NotReady
";

/// A replica in this state, with the epoch and the connection of the frames that it gets.
fn in_state(state: &str) -> (Lone, u32, ConnectionId) {
    let mut lone = Lone::holding(&HELD);
    lone.adopt(2);
    lone.replica
        .peer_up(NOW, NodeId(3), OTHER, Channel::Data, false);
    match state {
        "follows" => (lone, 2, DATA),
        "latched" => {
            lone.replica.latched(NOW);
            (lone, 2, DATA)
        }
        "stranger" => (lone, 2, OTHER),
        "fenced" => (lone, 1, DATA),
        _ => (lone, 3, DATA),
    }
}

/// The sender's log, and the first block of the run and the one behind it.
fn run(input: &str) -> (TestLog, u64, u64) {
    let longer = TestLog::of(&[1, 1, 2, 2, 2]);
    match input {
        "gap" => (longer, 4, 5),
        "held" => (longer, 0, 2),
        "next" => (longer, 2, 4),
        "in part" => (longer, 1, 4),
        "other epoch" => (TestLog::of(&[1, 2, 2]), 1, 3),
        _ => {
            let mut other = TestLog::of(&[1]);
            other.seal(Epoch(1), 1, 1, Tick(0));
            (other, 1, 2)
        }
    }
}

/// What becomes of it; whatever is refused is said, and leaves the log as it was.
fn outcome(state: &str, input: &str, column: &str) -> String {
    let (mut lone, epoch, connection) = in_state(state);
    let (sender, first, end) = run(input);
    let headers = sender.range(first, end).to_vec();
    let body = Body::Replicate(frame(&sender, epoch, first, &headers));
    let headers = (column != "header").then_some(&headers[..]);
    lone.act();
    lone.sent.clear();
    let verdict = lone
        .replica
        .on_run(NOW, connection, &body, headers, &lone.log);
    let refused = match verdict {
        Verdict::Write { .. } if column == "batch" => {
            lone.replica.run_refused(NOW, Code::BadCrc, &lone.log);
            Code::BadCrc
        }
        Verdict::Refuse(code) => code,
        Verdict::Write { cut: None } => return "write".to_owned(),
        Verdict::Write { cut: Some(from) } => return format!("write from {from}"),
        Verdict::AckAgain => return "again".to_owned(),
        other => return format!("{other:?}"),
    };
    lone.act();
    assert_eq!(nack(&lone.sent).0, refused, "{state}, {input}, {column}");
    assert_eq!(lone.log.list(), HELD, "{state}, {input}, {column}");
    refused.name().to_owned()
}

/// H-27, H-51, H-89
#[test]
fn every_state_has_one_outcome_for_every_input() {
    let mut found = String::from("state    | input       | sound        | header       | batch\n");
    for state in STATES {
        let mut rows: Vec<(&str, [String; 3])> = INPUTS
            .map(|input| (input, COLUMNS.map(|column| outcome(state, input, column))))
            .to_vec();
        // What does not depend on the input is one row.
        if rows.iter().all(|(_, outcomes)| *outcomes == rows[0].1) {
            rows = vec![("any", rows.remove(0).1)];
        }
        for (input, [sound, header, batch]) in rows {
            let row = format!("{state:<8} | {input:<11} | {sound:<12} | {header:<12} | {batch}\n");
            found.push_str(&row);
        }
    }
    assert_eq!(found, TABLE, "\n{found}");
}

/// An opening leader that has asked for blocks, and the answer.
fn copying() -> (Net, Frame) {
    let mut net = Net::new(3);
    net.holds(1, &[1], 1);
    net.holds(2, &[1, 1, 1, 1], 1);
    net.holds(3, &[1, 1], 1);
    net.hold_wire = true;
    for node in 1..=3 {
        net.start(node, 0);
    }
    let is_answer = |frame: &Frame| matches!(frame.body, Body::FetchOk(_));
    loop {
        if let Some(at) = net.wire.iter().position(is_answer) {
            let frame = net.wire.remove(at).expect("just seen");
            return (net, frame);
        }
        net.deliver_some(1);
    }
}

/// The same for what an opening leader copies: only the answer to its question is taken, once, and
/// only if header and batch are sound.
///
/// H-51, H-89
#[test]
fn a_copy_is_checked_like_a_push() {
    let write = Some(Verdict::Write { cut: None });
    let (mut net, frame) = copying();
    assert_eq!(net.deliver(frame.clone()), write);
    let copied = net.node(1).log.list();
    assert!(copied.len() > 1);
    assert_eq!(net.deliver(frame), Some(Verdict::Ignore), "it comes twice");
    assert_eq!(net.node(1).log.list(), copied);

    let spoilt = |spoil: fn(&mut Net, &mut Frame)| {
        let (mut net, mut frame) = copying();
        spoil(&mut net, &mut frame);
        let verdict = net.deliver(frame).expect("a run is judged");
        assert_eq!(
            net.node(1).log.list(),
            [1],
            "{verdict:?}: nothing is written"
        );
        verdict
    };
    let header = spoilt(|_, frame| frame.damaged = true);
    assert_eq!(header, Verdict::Refuse(Code::BadCrc));
    // Admitted by its headers, then refused in the same call.
    let batch = spoilt(|net, _| net.node(1).damage_next = true);
    assert_eq!(Some(batch), write);
    let place = spoilt(|_, frame| {
        if let Body::FetchOk(body) = &mut frame.body {
            body.first = BlockNo(body.first.0 + 1);
        }
    });
    assert_eq!(place, Verdict::Ignore);
    let epoch = spoilt(|_, frame| {
        if let Body::FetchOk(body) = &mut frame.body {
            body.epoch = Epoch(body.epoch.0 + 1);
        }
    });
    assert_eq!(epoch, Verdict::Ignore);
}
