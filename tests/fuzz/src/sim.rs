//! The simulated disk and pool of the simulator: they hold whoever uses them to their contracts.

#[path = "../../sim/buffers.rs"]
pub mod buffers;
#[path = "../../sim/content.rs"]
pub mod content;
#[path = "../../sim/disk.rs"]
pub mod disk;
#[path = "../../sim/disk_crash.rs"]
pub mod disk_crash;
#[path = "../../sim/disk_options.rs"]
pub mod disk_options;
#[path = "../../sim/framing.rs"]
pub mod framing;
#[path = "../../sim/rng.rs"]
pub mod rng;
