//! Scenarios of two and three replicas.

use super::test_kit::{Net, credit};
use super::{LogView, Role};
use crate::types::{BlockNo, Epoch, NodeId};
use crate::wire::body::ReplicaMemory;

#[test]
fn blank_members_found_a_log_and_replicate() {
    let mut net = Net::founded(3);
    assert_eq!(net.node(1).replica.epoch(), Epoch(1));
    net.append(1, &[1, 2, 3]);
    net.run();
    net.assert_converged();
    for node in 1..=3 {
        let promise = net.node(node).promise;
        assert_eq!(promise.memory, ReplicaMemory::Whole);
        assert_eq!((promise.epoch, promise.leader), (Epoch(1), Some(NodeId(1))));
    }
}

#[test]
fn a_single_node_commits_alone() {
    let mut net = Net::founded(1);
    net.append(1, &[1]);
    net.assert_converged();
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(2));
    let _ = (credit(0, 0), Role::Leader, net.node(1).log.log_end());
}
