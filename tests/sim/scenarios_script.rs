//! A directed run in which the world itself plays the leader, frame by frame.
//!
//! A single placed leader asks every follower where it is before it says anything else, so some
//! refusals of a follower are out of reach for whole sets. Here node 0 has no process; the world
//! dials in its name and sends what it likes. Read `scenarios.rs` first.

use super::framing;
use super::network_parts::Outgoing;
use super::node::{LOG, node_id};
use super::report::Report;
use super::rng::Rng;
use super::scenarios::{FIRST, LEADER, SECOND, Traced, small_blocks};
use super::verdict::{Name, Verdict, ensure};
use super::world::World;
use millrace::limits::{BATCH_HEADER, BLOCK_HEADER};
use millrace::types::{BlockNo, ConnectionId, Epoch, Offset, Tick, padded};
use millrace::wire::batch::{self, ClientHalf, Kind, LeaderHalf};
use millrace::wire::block::{self, BatchesCrc, BlockHeader};
use millrace::wire::body::{Body, Channel, Replicate, Where};

/// The bytes of block 0 as the leader of `epoch` opens a log with it.
fn first_block(epoch: Epoch) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_HEADER + BATCH_HEADER];
    let (head, batch_bytes) = bytes.split_at_mut(BLOCK_HEADER);
    batch::write_client_half(batch_bytes, &ClientHalf::default());
    let half = LeaderHalf {
        kind: Kind::Local,
        log: LOG,
        base_offset: Offset(0),
        tick: Tick(1),
        txn_id: 0,
        origin_epoch: epoch,
    };
    let mut batches_crc = BatchesCrc::default();
    batches_crc.add(batch::write_leader_half(batch_bytes, &half));
    let header = BlockHeader {
        log: LOG,
        epoch,
        batches_crc: batches_crc.finish(),
        used_len: (BLOCK_HEADER + BATCH_HEADER) as u32,
        batch_count: 1,
        last_tick: Tick(1),
        first_in_segment: true,
        ..BlockHeader::default()
    };
    block::write_header(head, &header);
    bytes
}

fn say(world: &mut World, connection: ConnectionId, body: impl Into<Body>, payload: &[u8]) {
    let bytes = framing::encode(&body.into(), LOG, payload);
    let outgoing = Outgoing {
        head_len: bytes.len() - payload.len(),
        bytes,
        parts_len: 0,
        holds: Vec::new(),
        node: LEADER,
        run: 0,
    };
    world.net.send(world.now_us, connection, outgoing);
}

fn asking(epoch: u32) -> Where {
    Where {
        epoch: Epoch(epoch),
        log_end: BlockNo(0),
        founding: 0,
        last_epoch: Epoch(0),
        won: 0,
    }
}

fn block_of(epoch: u32) -> (Replicate, Vec<u8>) {
    let bytes = first_block(Epoch(epoch));
    let body = Replicate {
        epoch: Epoch(epoch),
        first: BlockNo(0),
        prev_epoch: Epoch(0),
        prev_crc: 0,
        committed_end: BlockNo(0),
        log_start: BlockNo(0),
        count: 1,
        records: 0,
        padded_len: padded(bytes.len()) as u32,
    };
    (body, bytes)
}

/// A follower that has promised an epoch takes nothing from a lower one, whoever asks, and goes on
/// in its own.
pub fn fenced_leader_is_powerless(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = small_blocks();
    // Nobody answers the world's frames to keep the connection alive.
    options.link.rpc_timeout_us = 60_000_000;
    let mut world = World::new(options, Rng::new(seed), trace);
    world.nodes[FIRST].new_member = true;
    world.net.started(0, LEADER);
    world.start_node(FIRST)?;
    world.run_for(50_000)?;
    world.net.dial(world.now_us, LEADER, FIRST, Channel::Data);
    world.run_for(50_000)?;
    let connection = world.net.dialed_id(LEADER, FIRST, Channel::Data);
    let connection = connection.expect("the follower listens");
    for epoch in [5, 3] {
        say(&mut world, connection, asking(epoch), &[]);
        world.run_for(50_000)?;
    }
    let (lower, bytes) = block_of(3);
    say(&mut world, connection, lower, &bytes);
    world.run_for(50_000)?;
    let held = world.nodes[FIRST].image.end();
    ensure(held == 0, Name::WatermarkWentBack, || {
        format!("node {FIRST} has promised epoch 5 and took {held} block(s) of epoch 3")
    })?;
    let (own, bytes) = block_of(5);
    say(&mut world, connection, own, &bytes);
    world.run_for(50_000)?;
    let held = world.nodes[FIRST].image.end();
    ensure(held == 1, Name::Stuck, || {
        format!(
            "node {FIRST} holds {held} blocks, its leader {} sent one",
            node_id(LEADER)
        )
    })?;
    Ok(world.finish())
}

/// Two candidates ask a voter for the same epoch, one after the other: its disk names the first one
/// for ever.
pub fn one_vote_an_epoch(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = small_blocks();
    options.electing = true;
    options.election_seed = seed;
    // The voter does not stand meanwhile.
    options.link.election_timeout_us = 60_000_000;
    let mut world = World::new(options, Rng::new(seed), trace);
    world.nodes[FIRST].new_member = true;
    world.start_node(FIRST)?;
    for candidate in [LEADER, SECOND] {
        world.net.started(0, candidate);
        world.run_for(50_000)?;
        world
            .net
            .dial(world.now_us, candidate, FIRST, Channel::Data);
        world.run_for(50_000)?;
    }
    for candidate in [LEADER, SECOND, LEADER] {
        let connection = world.net.dialed_id(candidate, FIRST, Channel::Data);
        // One that was refused, or is no longer followed, may have been closed.
        if let Some(connection) = connection {
            say(&mut world, connection, asking(5), &[]);
        }
        world.run_for(50_000)?;
        let promise = world.nodes[FIRST].promise();
        let first = Some((5, Some(node_id(LEADER))));
        ensure(promise == first, Name::TwoLeaders, || {
            format!("asked for epoch 5 by two candidates node {FIRST} promised {promise:?}")
        })?;
    }
    Ok(world.finish())
}
