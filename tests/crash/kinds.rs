//! What an operation in flight is for, as its bytes and its file show.
//!
//! The disk knows writes and names only; whether each thing a log does was ever caught in the
//! middle by a crash is told by what is being written. Read `images.rs` next.

use crate::sim::disk::Disk;
use millrace::limits::CHECKPOINT_COPY;
use millrace::wal::op::{CHECKPOINT_FILE, DiskOp, FileName};
use millrace::wire::checkpoint::{self, Checkpoint};
use std::fmt;

/// Sectors of a write of which every subset is examined.
pub const FEW_SECTORS: usize = 8;

/// What an operation that changes the disk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Blocks behind the end of the log.
    Append,
    /// A copy of a checkpoint with another epoch or vote in it.
    Vote,
    /// A copy of a checkpoint with another start of the log in it.
    Trim,
    /// Any other copy of a checkpoint.
    Save,
    /// The header of a segment file.
    Header,
    /// The mark of a cut over a block that goes.
    Cut,
    /// A file comes in, or gets its name.
    Roll,
    /// A file goes back to where it came from.
    Recycle,
}

impl Kind {
    /// Every kind, as the tallies count them.
    pub const ALL: [Kind; 8] = [
        Kind::Append,
        Kind::Vote,
        Kind::Trim,
        Kind::Save,
        Kind::Header,
        Kind::Cut,
        Kind::Roll,
        Kind::Recycle,
    ];

    /// Whether it is a write, which may be torn.
    pub fn tears(self) -> bool {
        !matches!(self, Kind::Roll | Kind::Recycle)
    }

    /// What this operation in flight is for; none if it changes nothing.
    pub fn of(disk: &Disk, op: &DiskOp) -> Option<Kind> {
        match op {
            DiskOp::Write { file, .. } if *file == CHECKPOINT_FILE => {
                Some(of_checkpoint(disk, disk.bytes_in_flight(op.ticket())))
            }
            DiskOp::Write { position: 0, .. } => Some(Kind::Header),
            DiskOp::Write { .. } => {
                let bytes = disk.bytes_in_flight(op.ticket());
                let blank = bytes.iter().all(|byte| *byte == 0);
                Some(if blank { Kind::Cut } else { Kind::Append })
            }
            DiskOp::Provide { .. } | DiskOp::Name { .. } => Some(Kind::Roll),
            DiskOp::Free { .. } => Some(Kind::Recycle),
            _ => None,
        }
    }
}

/// Against the older copy on the disk: the second copy of a save is like the first.
fn of_checkpoint(disk: &Disk, bytes: &[u8]) -> Kind {
    let there = disk.content(FileName::Checkpoint).expect("always there");
    let there = there.read(0, 2 * CHECKPOINT_COPY);
    let copies = there.chunks(CHECKPOINT_COPY).filter_map(checkpoint::read);
    let before = copies.min_by_key(|copy| copy.sequence);
    let said = |copy: &Checkpoint| (copy.promised, copy.vote, copy.log_start);
    let now = checkpoint::read(bytes).expect("a log writes sound checkpoints");
    match (before.as_ref().map(said), said(&now)) {
        (Some((epoch, vote, _)), (new, voted, _)) if (epoch, vote) != (new, voted) => Kind::Vote,
        (Some((_, _, start)), (_, _, new)) if start != new => Kind::Trim,
        _ => Kind::Save,
    }
}

/// Of each kind: how often it was in flight at a point, images that have it torn at sectors, and
/// operations of it of which every subset of sectors was examined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds([[u64; 3]; Kind::ALL.len()]);

impl Kinds {
    /// It was in flight at a point.
    pub fn in_flight(&mut self, kind: Kind) {
        self.0[kind as usize][0] += 1;
    }

    /// An image has it torn.
    pub fn torn(&mut self, kind: Kind) {
        self.0[kind as usize][1] += 1;
    }

    /// Every subset of the sectors of one was examined.
    pub fn all_subsets(&mut self, kind: Kind) {
        self.0[kind as usize][2] += 1;
    }

    /// How often it was in flight, in how many images it is torn, and of how many all subsets of
    /// sectors were examined.
    pub fn counts(&self, kind: Kind) -> [u64; 3] {
        self.0[kind as usize]
    }

    /// Adds what another run examined.
    pub fn add(&mut self, other: &Kinds) {
        for (mine, theirs) in self.0.iter_mut().flatten().zip(other.0.iter().flatten()) {
            *mine += theirs;
        }
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, [points, torn, all]) in Kind::ALL.iter().zip(self.0) {
            let kind = format!("{kind:?}").to_lowercase();
            write!(f, "{kind} {points}/{torn}/{all} ")?;
        }
        write!(
            f,
            "(in flight / torn images / with every subset of sectors)"
        )
    }
}
