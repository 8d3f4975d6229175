//! The write-ahead log of one log on one node: how bytes become durable and how they are found
//! again.
//!
//! It owns the segment files, the checkpoint, the open block and the recent blocks of one log. It
//! never decides who may write: callers have checked what they hand in. It never does I/O: it asks
//! for disk operations with [`Log::poll_op`], is told their ends with [`Log::on_disk`], and says
//! what came of them with [`Log::poll_output`]. It knows nothing of replication but blocks, epochs
//! and one number, the end of what is committed.
//!
//! The files: `op.rs` is the seam to the disk, `output.rs` what a log says, `log.rs` the log itself
//! (read it next), `recovery.rs` what start-up believes, `cut.rs` how a suffix goes away.

pub mod config;
pub mod log;
pub mod op;
pub mod output;

mod append;
mod arrange;
mod cut;
mod cutting;
mod facts;
mod holes;
mod ids;
mod index;
mod inspect;
mod loads;
mod mend;
mod open;
mod pressure;
mod producers;
mod reader;
mod rebuild;
mod recent;
mod recovery;
pub mod retention;
mod saver;
mod scan;
mod scrub;
mod search;
mod segments;
mod skip;
mod space;
mod start;
mod writer;

#[cfg(test)]
mod append_tests;
#[cfg(test)]
mod cut_tests;
#[cfg(test)]
mod hole_cut_tests;
#[cfg(test)]
mod index_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod producers_tests;
#[cfg(test)]
mod recovery_tests;
#[cfg(test)]
mod retention_tests;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod scrub_tests;
#[cfg(test)]
mod space_tests;

pub use arrange::DAMAGE_MEND;
pub use config::Config;
pub use log::Log;
pub use mend::Wanted;
pub use output::{
    AppendRefusal, Appended, Common, CutDone, Damage, From, Health, Held, Load, Loaded, Output,
    ReadError, Recovered, RecoveredMemory, Refusal, RepairRefusal, SaveId, ScrubReport, State,
    Torn,
};
pub use producers::Sequence;
