//! Where shards are asked for, as nodes say and as they say otherwise.

use super::*;
use crate::types::Epoch;
use crate::wire::body::{NodeAddress, PROTOCOL};

fn address(node: u32, port: u16, cores: u16) -> NodeAddress {
    NodeAddress {
        node: NodeId(node),
        address: format!("host:{port}"),
        cores,
    }
}

fn known(by: u32, cores: [u16; 2]) -> MetadataOk {
    MetadataOk {
        protocol: PROTOCOL,
        node: NodeId(by),
        cluster: OriginId(9),
        default_level: 3,
        max_batch_bytes: 1 << 20,
        max_batch_records: 1 << 18,
        nodes: vec![address(1, 100, cores[0]), address(2, 200, cores[1])],
        leaders: vec![NodeId(1), NodeId(2), NodeId(1)],
        epochs: vec![Epoch(1); 3],
        origin: OriginId(9),
        origins: vec![OriginId(9)],
        default_read_level: 1,
    }
}

fn routes() -> Routes {
    let mut routes = Routes::default();
    assert!(routes.learn(&known(1, [2, 0])));
    routes
}

fn at(routes: &Routes, shard: u16) -> Option<String> {
    routes.route(ShardId(shard)).map(|route| route.address)
}

fn error(code: Code, detail: u64) -> Error {
    Error {
        code: code.number(),
        detail,
        detail_two: 0,
    }
}

#[test]
fn a_shard_is_where_its_leader_and_its_core_are() {
    let mut routes = routes();
    assert_eq!(at(&routes, 0).as_deref(), Some("host:100"));
    // Node 2 has not said how many cores it has: it is to be asked first.
    assert_eq!(at(&routes, 1), None);
    assert_eq!(routes.base_of(NodeId(2)), Some("host:200"));
    assert_eq!(at(&routes, 2).as_deref(), Some("host:100"));
    assert_eq!(at(&routes, 3), None);
    // What node 2 says of itself counts, and what node 1 said of itself stays.
    assert!(routes.learn(&known(2, [0, 3])));
    assert_eq!(at(&routes, 1).as_deref(), Some("host:201"));
    assert_eq!(
        routes.route_to(NodeId(1), ShardId(1)).unwrap().address,
        "host:101"
    );
    routes.forget_ports(NodeId(2));
    assert_eq!(at(&routes, 1), None);
}

#[test]
fn another_leader_and_another_port_are_remembered() {
    let mut routes = routes();
    assert!(routes.learn(&known(2, [0, 1])));
    let refusal = routes.heed(Some(NodeId(1)), ShardId(0), &error(Code::NotLeader, 2));
    assert_eq!(refusal.retry, Retry::Elsewhere);
    assert_eq!(at(&routes, 0).as_deref(), Some("host:200"));
    routes.heed(Some(NodeId(2)), ShardId(0), &error(Code::WrongCore, 207));
    assert_eq!(at(&routes, 0).as_deref(), Some("host:207"));
    // The port is of one node and one shard.
    assert_eq!(at(&routes, 1).as_deref(), Some("host:200"));
}

#[test]
fn a_code_of_a_later_version_is_final() {
    let mut routes = routes();
    let unknown = Error {
        code: 60_000,
        detail: 1,
        detail_two: 2,
    };
    let refusal = routes.heed(None, ShardId(0), &unknown);
    assert_eq!((refusal.code, refusal.retry), (None, Retry::Final));
}

#[test]
fn another_cluster_is_not_learned() {
    let mut routes = routes();
    let mut other = known(1, [1, 1]);
    other.cluster = OriginId(8);
    assert!(!routes.learn(&other));
    assert_eq!(routes.log(ShardId(1)).origin, OriginId(9));
}

/// Another node of a mesh tells where its cores are, never where to append.
#[test]
fn a_mesh_is_seen_from_the_node_that_was_found_first() {
    let of = |node: u32, cores| MetadataOk {
        origin: OriginId(node),
        origins: vec![OriginId(1), OriginId(2)],
        leaders: vec![NodeId(node); 3],
        ..known(node, cores)
    };
    let mut routes = Routes::default();
    assert!(routes.learn(&of(2, [0, 2])));
    assert!(routes.learn(&of(1, [3, 0])));
    assert_eq!(routes.log(ShardId(1)).origin, OriginId(2));
    assert_eq!(at(&routes, 1).as_deref(), Some("host:201"));
    let other = routes.route_to(NodeId(1), ShardId(1)).unwrap();
    assert_eq!(other.address, "host:101");
}
