//! Names for disk operations and files, and what each operation in flight is for.
//!
//! Tickets and file ids grow and are never reused, so a completion can never be taken for another
//! one's. Read `log.rs` next, which hands completions to the part that asked.

use super::op::CHECKPOINT_FILE;
use crate::types::{FileId, Ticket};

/// Counters for tickets and files.
#[derive(Debug)]
pub(super) struct Ids {
    ticket: u64,
    file: u64,
}

impl Ids {
    pub(super) fn new() -> Ids {
        Ids {
            ticket: 0,
            file: CHECKPOINT_FILE.0,
        }
    }

    pub(super) fn ticket(&mut self) -> Ticket {
        self.ticket += 1;
        Ticket(self.ticket)
    }

    pub(super) fn file(&mut self) -> FileId {
        self.file += 1;
        FileId(self.file)
    }
}

/// What an operation in flight is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A step of recovery's reading.
    Recover,
    /// A name or sync after recovery's reading.
    Settle,
    /// A copy of the checkpoint.
    Save,
    /// The header block of a new segment.
    SegmentHeader,
    /// The next file.
    Provide,
    /// The name of a new segment.
    Name,
    /// Blocks: the number of the write.
    Write(u64),
    /// A read for a load or a search by time: its number.
    Load(u64),
    /// A step of a cut.
    Cut,
    /// A trimmed file.
    Trim,
    /// A read of the scrub.
    Scrub,
    /// A segment's header, written anew.
    Rewrite,
    /// A step of a repair.
    Mend,
}

impl Purpose {
    /// For the message of a failure.
    pub(super) fn text(self) -> &'static str {
        match self {
            Purpose::Recover => "reading the log at start",
            Purpose::Settle => "making the recovered log durable",
            Purpose::Save => "writing the checkpoint",
            Purpose::SegmentHeader => "writing a segment's header",
            Purpose::Provide => "bringing in the next segment file",
            Purpose::Name => "naming a segment file",
            Purpose::Write(_) => "writing blocks",
            Purpose::Load(_) => "reading blocks",
            Purpose::Cut => "cutting the log",
            Purpose::Trim => "freeing a trimmed segment file",
            Purpose::Scrub => "reading for the scrub",
            Purpose::Rewrite => "writing a segment's header anew",
            Purpose::Mend => "repairing blocks",
        }
    }
}
