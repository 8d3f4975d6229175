//! Links under an open epoch: pace, pauses, timeouts, refusals, what operators see.

use super::test_kit::{Net, credit};
use super::{LinkStatus, Role};
use crate::limits::{HEARTBEAT_MS, RETRY_BACKOFF_MS, RPC_TIMEOUT_MS};
use crate::types::{BlockNo, Epoch, NodeId};
use crate::wire::body::{Body, Channel, PauseReason, ReplicaMemory, ReplicateOk, Resume};
use crate::wire::code::Code;

const TIMEOUT_US: u64 = RPC_TIMEOUT_MS * 1000;
const BACKOFF_US: u64 = RETRY_BACKOFF_MS * 1000;

/// A founded net of two whose followers grant so much.
fn granting(members: u32, records: u64, bytes: u64) -> Net {
    let mut net = Net::new(members);
    for it in net.nodes.values_mut() {
        it.config.initial_credit = credit(records, bytes);
    }
    net.rebuild();
    net.start_all();
    net
}

fn told(net: &mut Net, word: &str) -> usize {
    let notices = net.node(1).notices.iter();
    notices.filter(|text| text.contains(word)).count()
}

/// The worked examples: offsets 1-10 and 11-20 of the source are 0-9 and 10-19 here.
///
/// S-72 S-74 S-75 S-104 S-105 S-100
#[test]
fn worked_examples_reproduce() {
    let mut net = granting(2, 100, 1 << 20);
    assert_eq!(net.link(2).credit_records, 100);
    for round in 1..=2 {
        net.node(2).hold_durable = true;
        net.append(1, &[10]);
        net.run();
        assert_eq!(net.link(2).credit_records, 90);
        let end = net.node(1).log.blocks.len() as u64;
        net.node(2).hold_durable = false;
        net.make_durable(2, end);
        net.run();
        assert_eq!(net.link(2).credit_records, 100);
        let last = net.node(2).log.blocks.last().expect("a block").end_offset;
        assert_eq!(last.0, round * 10);
        assert_eq!(net.link(2).matched, BlockNo(end));
    }
    assert_eq!(net.runs_to(2), [(0, 1), (1, 1), (2, 1)], "no overlap");
}

/// At its start a link reads as the source says, and a backlog goes at once, without an append.
///
/// S-66 S-68 S-69 S-70 S-106 S-65
#[test]
fn a_backlog_goes_at_once() {
    let mut net = granting(2, 100, 1 << 20);
    net.kill(2);
    for _ in 0..100 {
        net.append(1, &[10]);
    }
    net.run();
    net.restart(2);
    net.advance(2 * BACKOFF_US);
    assert_eq!(
        net.node(2).log.blocks.len(),
        101,
        "1000 records with credit for 100"
    );
    let link = net.link(2);
    assert_eq!(
        (link.status, link.lag_records),
        (LinkStatus::Replicating, 0)
    );
    net.assert_converged();
}

/// With batches in flight the next one begins behind the last one sent, and nothing is sent twice.
///
/// S-78 S-79 S-81 S-96 S-97 D-S1
#[test]
fn nothing_is_sent_twice_while_in_flight() {
    let mut net = granting(2, 1000, 1 << 20);
    net.node(2).hold_durable = true;
    for _ in 0..5 {
        net.append(1, &[1]);
        net.run();
    }
    assert_eq!(
        net.runs_to(2),
        [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]
    );
    let link = net.link(2);
    assert_eq!((link.sent, link.matched), (BlockNo(6), BlockNo(1)));
    assert_eq!(link.lag_records, 5);
}

/// The size of a run is the least of what credit, bounds and the log allow; none of them fits:
/// none.
///
/// S-80 S-108 S-109 S-110 S-111
#[test]
fn a_run_is_the_least_of_three() {
    let largest = |records, bytes, run_bytes, blocks: &[u32]| {
        let mut net = Net::new(2);
        for it in net.nodes.values_mut() {
            it.config.initial_credit = credit(records, bytes);
            it.config.run_bytes = run_bytes;
        }
        net.rebuild();
        net.start_all();
        net.disconnect(2, None);
        net.append(1, blocks);
        net.node(2).hold_durable = true;
        net.advance(2 * BACKOFF_US);
        let runs = net.runs_to(2);
        runs.iter()
            .skip(1)
            .map(|(_, count)| *count)
            .collect::<Vec<u32>>()
    };
    let ten = [10; 6];
    assert_eq!(largest(30, 1 << 20, 1 << 20, &ten), [3], "records");
    assert_eq!(largest(1000, 8192, 1 << 20, &ten), [2], "bytes");
    assert_eq!(
        largest(1000, 1 << 20, 16_384, &ten),
        [4],
        "configured, then the probe's ack"
    );
    assert_eq!(largest(1000, 1 << 20, 1 << 20, &ten), [6], "the log");
    assert_eq!(
        largest(5, 1 << 20, 1 << 20, &ten),
        [1],
        "larger than the window: alone"
    );
    assert_eq!(largest(0, 1 << 20, 1 << 20, &ten), [0; 0], "no credit");
}

/// Waiting for credit is a state, told once, and ends with the ack that brings credit.
///
/// S-112 S-113 S-114 S-115 S-77 S-103
#[test]
fn credit_runs_out_and_comes_back() {
    let mut net = granting(2, 20, 1 << 20);
    net.node(2).hold_durable = true;
    for _ in 0..10 {
        net.append(1, &[10]);
        net.run();
    }
    let link = net.link(2);
    assert_eq!(
        (link.status, link.credit_records),
        (LinkStatus::WaitingForCredit, 0)
    );
    assert_eq!(link.cause, "credit exhausted");
    assert_eq!(net.runs_to(2).len(), 3);
    assert_eq!(
        told(
            &mut net,
            "link to node 2: replication paused: credit exhausted"
        ),
        1
    );
    net.node(2).hold_durable = false;
    net.make_durable(2, 3);
    net.run();
    assert_eq!(net.link(2).status, LinkStatus::Replicating);
    assert_eq!(net.node(2).log.blocks.len(), 11);
}

/// Pause stops the sending and nothing else; acks in flight count; Resume goes on from where the
/// follower says; both may come twice.
///
/// S-57 S-58 S-59 S-60 S-61 S-63
#[test]
fn pause_and_resume() {
    for (reason, word) in [
        (PauseReason::SlowDisk, "slow_disk"),
        (PauseReason::HighLoad, "high_load"),
        (PauseReason::Manual, "manual"),
    ] {
        let mut net = granting(2, 1000, 1 << 20);
        net.node(2).hold_durable = true;
        net.append(1, &[1, 1]);
        net.run();
        let now = net.now;
        net.node(2).replica.ask_pause(now, reason);
        net.run();
        let sent = net.runs_to(2).len();
        net.append(1, &[1, 1]);
        net.run();
        let link = net.link(2);
        assert_eq!(link.status, LinkStatus::Paused);
        assert!(link.cause.contains(word));
        assert_eq!(net.runs_to(2).len(), sent);
        assert_eq!(net.node(1).replica.role(), Role::Leader);
        net.node(2).hold_durable = false;
        net.make_durable(2, 3);
        net.run();
        assert_eq!(net.link(2).matched, BlockNo(3));
        assert_eq!(net.node(1).replica.high_watermark(), BlockNo(3));
        for _ in 0..2 {
            let it = net.node(2);
            it.replica.ask_resume(now, &it.log);
            net.run();
            assert_eq!(net.link(2).status, LinkStatus::Replicating);
        }
        assert_eq!(net.runs_to(2)[sent].0, 3, "exactly the block asked for");
        net.assert_converged();
    }
}

/// A pause outlives the connection: the new one begins without credit and with the reason.
#[test]
fn a_pause_outlives_its_connection() {
    let mut net = granting(2, 1000, 1 << 20);
    let now = net.now;
    net.node(2).replica.ask_pause(now, PauseReason::SlowDisk);
    net.run();
    net.disconnect(2, Some(Channel::Data));
    net.append(1, &[1]);
    net.advance(2 * BACKOFF_US);
    let link = net.link(2);
    assert_eq!((link.status, link.credit_records), (LinkStatus::Paused, 0));
    let it = net.node(2);
    it.replica.ask_resume(now, &it.log);
    net.run();
    net.assert_converged();
}

/// An operator at the leader's side.
///
/// S-23
#[test]
fn an_operator_pauses_a_link() {
    let mut net = granting(3, 1000, 1 << 20);
    let now = net.now;
    let it = net.node(1);
    it.replica.pause_link(now, NodeId(2), true, &it.log);
    net.append(1, &[1]);
    net.run();
    assert_eq!(net.link(2).status, LinkStatus::Paused);
    assert_eq!(
        (net.node(2).log.blocks.len(), net.node(3).log.blocks.len()),
        (1, 2)
    );
    let it = net.node(1);
    it.replica.pause_link(now, NodeId(2), false, &it.log);
    net.run();
    net.assert_converged();
}

/// A Resume from a position that cannot be gets a clear answer, and the link stays.
///
/// S-62
#[test]
fn resume_out_of_range_is_answered() {
    let mut net = granting(2, 1000, 1 << 20);
    net.append(1, &[1]);
    net.run();
    let (now, data) = (net.now, net.data_to(2));
    let it = net.node(1);
    let resume = Body::Resume(Resume { next: BlockNo(9) });
    it.replica.on_body(now, data, &resume, &it.log);
    net.run();
    let answered = net.sent.iter().any(|frame| {
        let range = Code::OutOfRange.number();
        matches!(&frame.body, Body::Error(error) if error.code == range && error.detail_two == 2)
    });
    assert!(answered);
    net.append(1, &[1]);
    net.run();
    net.assert_converged();
    assert_eq!(net.link(2).status, LinkStatus::Replicating);
}

/// No ack within the timeout: disconnected, nothing more is sent, the leader goes on, and the link
/// comes back by itself behind what was acked.
///
/// S-116 S-117 S-118 S-119 S-120 S-123
#[test]
fn silence_disconnects_and_reconnects() {
    let mut net = granting(2, 1000, 1 << 20);
    net.append(1, &[1]);
    net.run();
    net.cut.insert((NodeId(2), NodeId(1)));
    net.append(1, &[1]);
    net.run();
    let sent = net.runs_to(2).len();
    net.advance(TIMEOUT_US - 200_000);
    assert_eq!(net.link(2).status, LinkStatus::Replicating);
    net.advance(400_000);
    let link = net.link(2);
    assert_eq!(link.status, LinkStatus::Disconnected);
    assert_eq!(link.cause, "no answer within rpc_timeout");
    assert!(link.since_us <= 400_000);
    net.append(1, &[1]);
    net.advance(3 * BACKOFF_US);
    assert_eq!(net.runs_to(2).len(), sent);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    net.cut.clear();
    net.advance(TIMEOUT_US + 2 * BACKOFF_US);
    assert_eq!(
        net.runs_to(2)[sent].0,
        3,
        "block 2 had arrived: only its ack was lost"
    );
    net.assert_converged();
}

/// The follower notices too, and waits.
///
/// S-128 S-129 S-130
#[test]
fn a_follower_notices_silence() {
    let mut net = Net::founded(2);
    net.kill(1);
    net.connect(NodeId(1), NodeId(2), Channel::Data);
    net.advance(TIMEOUT_US + 100_000);
    assert!(
        net.node(2)
            .notices
            .iter()
            .any(|text| text.contains("nothing heard of leader 1"))
    );
    assert_eq!(net.node(2).replica.role(), Role::Follower);
    net.restart(1);
    net.advance(2 * BACKOFF_US);
    net.assert_converged();
}

/// A hundred reconnects, some with frames under way, leave the whole window.
///
/// S-122 D-S8 Q-22
#[test]
fn reconnects_do_not_leak_credit() {
    let mut net = granting(2, 20, 16_384);
    for round in 0..100 {
        net.hold_wire = round % 3 == 0;
        net.append(1, &[5]);
        net.deliver_some(round % 5);
        net.disconnect(2, Some(Channel::Data));
        net.hold_wire = false;
        net.advance(BACKOFF_US + 50_000);
    }
    net.advance(2 * BACKOFF_US);
    let link = net.link(2);
    assert_eq!((link.credit_records, link.credit_bytes), (20, 16_384));
    net.assert_converged();
}

/// A follower that crashed comes back with what was durable and gets exactly what it lacks.
///
/// S-124 S-125 S-126 S-127 S-93 S-67
#[test]
fn a_follower_resumes_from_its_disk() {
    let mut net = granting(2, 1000, 1 << 20);
    net.append(1, &[1, 1]);
    net.run();
    net.node(2).hold_durable = true;
    net.append(1, &[1, 1]);
    net.run();
    net.make_durable(2, 4);
    net.hold_wire = true;
    net.kill(2);
    net.hold_wire = false;
    net.node(2).hold_durable = false;
    let sent = net.runs_to(2).len();
    net.restart(2);
    net.advance(2 * BACKOFF_US);
    assert_eq!(net.runs_to(2)[sent..], [(4, 1)]);
    net.assert_converged();
}

/// Late and doubled acks move nothing back; an ack of another node or epoch moves nothing.
///
/// S-55 S-56 S-94 D-S6 D-S7 S-32
#[test]
fn old_acks_change_nothing() {
    let mut net = granting(3, 100, 1 << 20);
    net.append(1, &[1, 1, 1]);
    net.run();
    let before = (net.link(2), net.link(3));
    let (now, data) = (net.now, net.data_to(2));
    for (epoch, end) in [(1, 2), (1, 0), (1, 4), (0, 9), (1, 4)] {
        let ack = Body::ReplicateOk(ReplicateOk {
            epoch: Epoch(epoch),
            durable_end: BlockNo(end),
            durable_offset: Default::default(),
            memory: ReplicaMemory::Whole,
            limits: credit(1, 1),
        });
        let it = net.node(1);
        it.replica.on_body(now, data, &ack, &it.log);
        it.replica
            .on_body(now, crate::types::ConnectionId(777), &ack, &it.log);
    }
    net.run();
    assert_eq!((net.link(2), net.link(3)), before);
}

/// An ack of blocks that do not exist is no ack.
#[test]
fn an_ack_past_the_log_closes_the_link() {
    let mut net = granting(2, 100, 1 << 20);
    let (now, data) = (net.now, net.data_to(2));
    let it = net.node(1);
    let ack = Body::ReplicateOk(ReplicateOk {
        epoch: Epoch(1),
        durable_end: BlockNo(50),
        durable_offset: Default::default(),
        memory: ReplicaMemory::Whole,
        limits: credit(100, 1 << 20),
    });
    it.replica.on_body(now, data, &ack, &it.log);
    net.run();
    assert!(net.closed.contains(&(NodeId(1), Code::BadFrame)));
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(1));
}

/// A frame that fails its CRC is refused, the copy is suspect, the same blocks come again; the
/// other follower makes the quorum meanwhile.
///
/// H-54 H-55 S-134 S-135 S-82 D-S2
#[test]
fn a_bad_crc_is_sent_again() {
    let mut net = granting(3, 1000, 1 << 20);
    net.node(2).damage_next = true;
    net.append(1, &[1]);
    net.run();
    assert_eq!(net.nacks_of(2), [Code::BadCrc]);
    assert_eq!(net.node(1).suspects, [BlockNo(1)]);
    assert_eq!(net.runs_to(2), [(0, 1), (1, 1), (1, 1)]);
    net.assert_converged();
}

/// The leader acts on the first refusal, keeps one frame in flight until it is acked, and ignores
/// the refusals of frames sent before.
///
/// H-60 D-H1 H-12
#[test]
fn one_frame_in_flight_after_a_refusal() {
    let mut net = granting(2, 1000, 1 << 20);
    net.hold_wire = true;
    for _ in 0..4 {
        net.append(1, &[1]);
        net.run();
    }
    let lost = net
        .wire
        .iter()
        .position(|frame| matches!(frame.body, Body::Replicate(_)));
    net.wire.remove(lost.expect("a frame under way"));
    let before = net.runs_to(2).len();
    net.hold_wire = false;
    net.run();
    let nacks = net.nacks_of(2);
    assert_eq!(nacks, [Code::OutOfSync; 3]);
    let resent = net.runs_to(2)[before..].to_vec();
    assert_eq!(resent, [(1, 4)], "one answer to three refusals");
    net.assert_converged();
}

/// A follower whose committed log is another one: its link stops with a cause of its own, nothing
/// is deleted, the others go on. An operator may let it try again.
///
/// S-141 S-142 S-140 H-55
#[test]
fn divergence_stops_one_link() {
    let mut net = Net::new(3);
    net.holds(1, &[1, 1, 1], 3);
    net.holds(2, &[1, 2, 2], 2);
    net.holds(3, &[1, 1, 1], 1);
    net.node(1).log = super::test_kit::TestLog::of(&[1, 1, 3]);
    net.node(3).log = net.node(1).log.clone();
    net.start(1, 0);
    net.start(2, 3);
    net.start(3, 0);
    net.advance(2_000_000);
    let link = net.link(2);
    assert_eq!(link.status, LinkStatus::Paused);
    assert_eq!(link.cause, "diverged: the logs differ at block 1");
    assert_eq!(net.node(2).log.list(), [1, 2, 2]);
    net.append(1, &[1]);
    net.run();
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(5));
    let sent = net.sent.len();
    net.run();
    assert_eq!(net.sent.len(), sent, "it is not tried again and again");
    let now = net.now;
    let it = net.node(1);
    it.replica.pause_link(now, NodeId(2), false, &it.log);
    net.run();
    assert_eq!(net.link(2).cause, "diverged: the logs differ at block 1");
}

/// Less than was acked before is told as lost state.
///
///
#[test]
fn lost_state_is_reported() {
    let mut net = Net::founded(3);
    net.append(1, &[1, 1, 1]);
    net.run();
    net.node(2).log.cut(BlockNo(2));
    net.restart(2);
    net.advance(2 * BACKOFF_US);
    assert_eq!(told(&mut net, "lost state"), 1);
    net.assert_converged();
}

/// A refusal that the link cannot mend closes it; it is tried again after the backoff.
#[test]
fn a_failed_follower_is_tried_again_later() {
    let mut net = Net::founded(3);
    let now = net.now;
    net.node(2).replica.latched(now);
    net.append(1, &[1]);
    net.run();
    assert_eq!(net.nacks_of(2)[0], Code::LogFailed);
    let link = net.link(2);
    assert_eq!(link.status, LinkStatus::Disconnected);
    assert!(
        link.cause.starts_with("refused: LogFailed: "),
        "{}",
        link.cause
    );
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(2));
    net.advance(2 * HEARTBEAT_MS * 1000);
    net.restart(2);
    net.advance(2 * BACKOFF_US);
    net.assert_converged();
}

/// What was handed to a connection and has not left it is bounded; another link does not notice.
///
/// S-83 S-99 H-56 Q-16
#[test]
fn a_stuck_socket_costs_one_bounded_queue() {
    let mut net = Net::new(3);
    for it in net.nodes.values_mut() {
        it.config.initial_credit = credit(1 << 30, 1 << 30);
    }
    net.rebuild();
    net.start_all();
    net.stuck.insert(NodeId(2));
    let block = 1 << 20;
    for _ in 0..40 {
        net.append(1, &[block]);
        net.run();
    }
    let queued: u64 = net
        .runs_to(2)
        .iter()
        .skip(1)
        .map(|(_, count)| u64::from(*count))
        .sum();
    assert!((7..=8).contains(&queued), "{queued} blocks of 1 MiB");
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(41));
    net.stuck.clear();
    let data = net.data_to(2);
    net.node(1).replica.payload_left(data, 64 << 20);
    net.run();
    net.assert_converged();
}

/// Lag is measured from a block's tick to the ack that covers it.
///
///
#[test]
fn lag_is_measured_per_block() {
    let mut net = Net::founded(2);
    net.node(2).hold_durable = true;
    net.append(1, &[3]);
    net.run();
    net.advance(250_000);
    let link = net.link(2);
    assert_eq!((link.lag_records, link.lag_us), (3, Some(250_000)));
    assert_eq!(link.lag_bytes, Some(4096));
    net.make_durable(2, 2);
    net.run();
    let link = net.link(2);
    let lag = (link.lag_records, link.lag_us, link.lag_bytes);
    assert_eq!(lag, (0, Some(0), Some(0)));
    assert!((250_000..=270_000).contains(&link.lag_percentiles_us[2]));
    assert_eq!((link.lag_blocks, link.connections), (2, 1));
}
