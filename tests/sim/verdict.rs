//! What a checker says when a run went wrong: a name that scripts can match, and the facts.
//!
//! The names are a closed set, so that a test of the checkers can ask for each of them. A verdict
//! never ends the process by itself: whoever runs the run prints it, with the seed. Read
//! `checker.rs` next.

use core::fmt;

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// An acknowledged batch is not in the log, or not where its answer said.
    AckedLost,
    /// A batch is in the log twice, or was answered twice.
    AckedTwice,
    /// Batches of one session stand in another order than they were sent.
    Reordered,
    /// A batch that was refused for good is in the log.
    RefusedAppended,
    /// Committed bytes differ between two nodes, or from what the client made.
    BytesDiffer,
    /// An answer was given before the disks held what it promises.
    AckedBeforeDurable,
    /// A watermark moved back, or above what it stands for.
    WatermarkWentBack,
    /// A committed block became another one.
    CommittedChanged,
    /// Credit was lost, or made out of nothing.
    CreditLeak,
    /// A node holds more buffers than its bounds add up to, or never gives one back.
    MemoryUnbounded,
    /// A read returned what it must not.
    ReadWrong,
    /// A node knows other batches of a producer than the log holds, or judges a sequence wrongly.
    ProducersDiffer,
    /// Two nodes led in one epoch, or one led that must not.
    TwoLeaders,
    /// Something that must happen did not within its time.
    Stuck,
    /// An assertion of the code under test failed.
    Panic,
}

impl Name {
    /// The name as scripts know it.
    pub fn text(self) -> &'static str {
        match self {
            Name::AckedLost => "acked_lost",
            Name::AckedTwice => "acked_twice",
            Name::Reordered => "reordered",
            Name::RefusedAppended => "refused_appended",
            Name::BytesDiffer => "bytes_differ",
            Name::AckedBeforeDurable => "acked_before_durable",
            Name::WatermarkWentBack => "watermark_went_back",
            Name::CommittedChanged => "committed_changed",
            Name::CreditLeak => "credit_leak",
            Name::MemoryUnbounded => "memory_unbounded",
            Name::ReadWrong => "read_wrong",
            Name::ProducersDiffer => "producers_differ",
            Name::TwoLeaders => "two_leaders",
            Name::Stuck => "stuck",
            Name::Panic => "panic",
        }
    }
}

/// The end of a run that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What kind of wrong.
    pub name: Name,
    /// Which batch, block, node, number.
    pub details: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verdict: {} {}", self.name.text(), self.details)
    }
}

/// What every check returns.
pub type Checked = Result<(), Verdict>;

/// A verdict unless `holds`; the details are only made if it does not.
pub fn ensure(holds: bool, name: Name, details: impl FnOnce() -> String) -> Checked {
    if holds {
        return Ok(());
    }
    Err(Verdict {
        name,
        details: details(),
    })
}
