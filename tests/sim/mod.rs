//! What the simulated runs share: chance, memory, disk; network, world and checkers for clusters.
//!
//! Nothing here has a clock, a thread or a file: a run is a function of its seed. Each test target
//! uses a part of it, so unused items are no warning. Read `disk.rs` for the heart of it.

#![allow(dead_code)]

pub mod buffers;
pub mod chaos;
pub mod checker;
pub mod client;
pub mod content;
pub mod disk;
pub mod disk_crash;
pub mod disk_options;
pub mod facts;
pub mod framing;
pub mod image;
pub mod log_checks;
pub mod long;
pub mod mesh;
pub mod network;
pub mod network_parts;
pub mod node;
pub mod options;
pub mod producer;
pub mod reader;
pub mod report;
pub mod rest;
pub mod rng;
pub mod rot;
pub mod runs;
pub mod scenarios;
pub mod scenarios_changes;
pub mod scenarios_damage;
pub mod scenarios_election;
#[cfg(feature = "node")]
pub mod scenarios_links;
pub mod scenarios_loss;
pub mod scenarios_producers;
pub mod scenarios_script;
pub mod scenarios_writes;
pub mod trace;
pub mod verdict;
pub mod world;
pub mod world_client;
pub mod world_node;
pub mod world_producer;
