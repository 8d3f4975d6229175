//! What the simulated runs share: chance, memory, disk; network, world and checkers for clusters.
//!
//! Nothing here has a clock, a thread or a file: a run is a function of its seed. Each test target
//! uses a part of it, so unused items are no warning. Read `disk.rs` for the heart of it.

#![allow(dead_code)]

pub mod buffers;
pub mod content;
pub mod disk;
pub mod disk_crash;
pub mod disk_options;
pub mod rng;
