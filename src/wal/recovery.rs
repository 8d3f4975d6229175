//! Start-up: reads what is on the disk and decides what of it is the log. It changes nothing.
//!
//! Blocks below `scan_from` of the checkpoint are trusted but for the segment that holds the one
//! before it; from there on every block is verified whole, until one is not good. What it is then,
//! this table says (`judge`):
//!
//! | header  | batches | chain | sound later block   | known to have existed | verdict |
//! |---------|---------|-------|---------------------|-----------------------|---------|
//! | sound   | sound   | fits  | -                   | -                     | good    |
//! | else    |         |       | -                   | yes                   | faulty  |
//! | else    |         |       | beyond WRITE_WINDOW | no                    | faulty  |
//! | zero    | -       | -     | none                | no                    | end     |
//! | else    |         |       | none or within      | no                    | torn    |
//!
//! Known to have existed: blocks below `scan_from` and below the checkpoint's high watermark. A
//! later block's `committed_end` tells it only where nobody else commits, in a set of one: a
//! follower writes blocks that the others committed long before it holds them durably, several at a
//! time, and a hole among those is torn. *Torn* is cut, *faulty* never: the log is refused with
//! file, position and mend, unless other nodes hold it too: then the damage is noted and passed by
//! (`skip.rs`).
//!
//! Memory: without a sound checkpoint the log is blank if it has no segment file, else its memory
//! is lost. Writes that need not survive a loss of power (`writes_survive` off) lose it too when
//! the kernel was started anew without a clean stop; nothing is known to have existed then. Read
//! `arrange.rs` next, then `log.rs` for what follows: the cut, syncs, the first save.

use super::arrange::{Found, Plan, arrange};
use super::config::Config;
use super::cut::Sweep;
use super::ids::Ids;
use super::index::Index;
use super::op::{CHECKPOINT_FILE, DiskOp, FileEntry, FileName};
use super::output::{Damage, RecoveredMemory, Refusal, Torn};
use super::producers::Producers;
use super::reader::Reader;
use super::saver::read_copies;
use super::scan::Scan;
use super::search::sound_header;
use super::segments::Segment;
use crate::buffers::Buffers;
use crate::limits::{BLOCK_HEADER, CHECKPOINT_COPY, DISK_ALIGNMENT, SEGMENT_HEADER};
use crate::types::{BlockNo, BufferId, FileId};
use crate::wire::checkpoint::{self, Checkpoint, Memory};
use crate::wire::segment::SegmentHeader;
use crate::wire::{crc_with_zeroed, segment};
use std::collections::VecDeque;

/// The header where a block should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Sound,
    /// Not a header of this log, and not all zero.
    Unsound,
    /// 4096 zeros, or the end of the file.
    Zero,
}

/// Sound blocks of the log behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Later {
    None,
    Within,
    Beyond,
}

/// What recovery sees where a block should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sight {
    pub(super) head: Head,
    pub(super) batches: bool,
    pub(super) chains: bool,
    pub(super) later: Later,
    pub(super) existed: bool,
}

/// What that means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    End,
    Torn,
    Faulty,
}

/// The decision table.
pub(super) fn judge(sight: &Sight) -> Verdict {
    match *sight {
        Sight {
            head: Head::Sound,
            batches: true,
            chains: true,
            ..
        } => Verdict::Good,
        Sight { existed: true, .. } => Verdict::Faulty,
        Sight {
            later: Later::Beyond,
            ..
        } => Verdict::Faulty,
        Sight {
            head: Head::Zero,
            later: Later::None,
            ..
        } => Verdict::End,
        Sight { .. } => Verdict::Torn,
    }
}

/// A log as recovery found it, and what has to be done before it is in service, in this order:
/// erase `marks` and free `frees` (a cut), sync, name.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) checkpoint: Checkpoint,
    /// Copy of the checkpoint to be written first.
    pub(super) first_copy: u64,
    pub(super) memory: RecoveredMemory,
    pub(super) index: Index,
    pub(super) producers: Producers,
    pub(super) segments: VecDeque<Segment>,
    pub(super) torn: Option<Torn>,
    /// Places to erase, ascending.
    pub(super) marks: Vec<(FileId, u64)>,
    /// Files to free, ascending.
    pub(super) frees: Vec<FileId>,
    /// What is not zero behind the end of the log.
    pub(super) sweep: Option<Sweep>,
    pub(super) name: Option<(FileId, BlockNo)>,
    pub(super) syncs: Vec<FileId>,
    /// Blocks that are damaged, and what is written anew.
    pub(super) skipped: Skipped,
}

/// What recovery passed by in a log that others hold too.
#[derive(Debug, Default)]
pub(super) struct Skipped {
    pub(super) faulty: Vec<(BlockNo, BlockNo)>,
    /// A damaged end: the log ends where it begins.
    pub(super) missing: Option<(BlockNo, BlockNo)>,
    /// Headers of segments to be written anew.
    pub(super) headers: Vec<(FileId, SegmentHeader)>,
    pub(super) damage: Vec<Damage>,
    /// A copy of the checkpoint that was not sound.
    pub(super) copy: Option<u64>,
}

/// The end of recovery.
#[derive(Debug)]
pub(super) enum Outcome {
    Ready(Box<Ready>),
    Refused(Refusal),
}

/// What a step came to.
pub(super) enum Flow {
    Op(DiskOp),
    /// Waits for the operation in flight or for a buffer.
    Wait,
    Done(Outcome),
}

/// What is known from the checkpoint file alone.
#[derive(Clone, Debug)]
pub(super) struct Past {
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) first_copy: u64,
    pub(super) memory: RecoveredMemory,
    /// Writes may have been lost anywhere: nothing is known to have existed.
    pub(super) unsafe_loss: bool,
    /// The position of a copy that is neither sound nor was never written.
    pub(super) rotten_copy: Option<u64>,
}

#[derive(Debug)]
enum Step {
    Checkpoint,
    Open(usize),
    Head(usize),
    Arrange,
    Scan(Box<Scan>),
}

/// Recovery of one log.
#[derive(Debug)]
pub(super) struct Recovery {
    config: Config,
    step: Step,
    found: Vec<Found>,
    past: Option<Past>,
    reader: Reader,
    in_flight: bool,
}

impl Recovery {
    pub(super) fn new(config: &Config, files: &[FileEntry]) -> Recovery {
        let mut files: Vec<FileEntry> = files.to_vec();
        files.retain(|entry| entry.name != FileName::Checkpoint);
        files.sort_by_key(|entry| match entry.name {
            FileName::Segment(base) => (0, base),
            FileName::Checkpoint | FileName::Next => (1, BlockNo(0)),
        });
        Recovery {
            config: config.clone(),
            step: Step::Checkpoint,
            found: files.into_iter().map(Found::new).collect(),
            past: None,
            reader: Reader::default(),
            in_flight: false,
        }
    }

    /// Goes on until something has to be read, or all is decided.
    pub(super) fn poll(&mut self, ids: &mut Ids, buffers: &mut dyn Buffers) -> Flow {
        while !self.in_flight {
            if let Step::Open(at) = self.step {
                self.in_flight = true;
                self.found[at].file = ids.file();
                return Flow::Op(DiskOp::Open {
                    ticket: ids.ticket(),
                    file: self.found[at].file,
                    name: self.found[at].entry.name,
                });
            }
            match self.step(buffers) {
                Err(refusal) => return Flow::Done(Outcome::Refused(refusal)),
                Ok(Some(ready)) => return Flow::Done(Outcome::Ready(ready)),
                Ok(None) => {}
            }
            if let Some(op) = self.reader.poll(ids, buffers) {
                self.in_flight = true;
                return Flow::Op(op);
            }
            if self.reader.is_waiting() {
                return Flow::Wait;
            }
        }
        Flow::Wait
    }

    /// The operation in flight ended.
    pub(super) fn on_disk(&mut self, count: usize, buffers: &mut dyn Buffers) {
        self.in_flight = false;
        match self.step {
            Step::Open(at) => self.step = Step::Head(at),
            _ => self.reader.on_read(count, buffers),
        }
    }

    /// Buffers that are not needed any more; all of them once recovery is over.
    pub(super) fn release(&mut self, all: bool) -> Option<BufferId> {
        if all {
            self.reader.release()
        } else {
            self.reader.outgrown()
        }
    }

    fn step(&mut self, buffers: &dyn Buffers) -> Result<Option<Box<Ready>>, Refusal> {
        match &mut self.step {
            Step::Checkpoint => {
                let len = 2 * CHECKPOINT_COPY;
                if self.reader.covers_just(CHECKPOINT_FILE, 0, len) {
                    let past = self.past(self.reader.bytes(0, buffers))?;
                    self.past = Some(past);
                    self.open(0);
                }
            }
            Step::Open(_) => unreachable!("opening is an operation"),
            Step::Head(at) => {
                let at = *at;
                if self.read_head(at, buffers)? {
                    self.open(at + 1);
                }
            }
            Step::Arrange => {
                let past = self.past.take().expect("the checkpoint was read first");
                match arrange(&self.config, past, core::mem::take(&mut self.found))? {
                    Plan::Ready(ready) => return Ok(Some(ready)),
                    Plan::Scan(layout) => {
                        self.step = Step::Scan(Box::new(Scan::new(&self.config, *layout)));
                    }
                }
            }
            Step::Scan(scan) => return scan.run(&mut self.reader, buffers),
        }
        Ok(None)
    }

    fn open(&mut self, at: usize) {
        self.step = if at < self.found.len() {
            Step::Open(at)
        } else {
            Step::Arrange
        };
    }

    fn past(&self, bytes: &[u8]) -> Result<Past, Refusal> {
        for copy in [0, CHECKPOINT_COPY] {
            refuse_version(
                &bytes[copy..],
                b"MRCP",
                "checkpoint",
                copy as u64,
                BlockNo(0),
            )?;
        }
        let has_segments = self
            .found
            .iter()
            .any(|found| found.entry.name != FileName::Next);
        let (checkpoint, first_copy) = match read_copies(bytes) {
            Ok(copies) => copies,
            Err(never_created) => {
                let blank = never_created && !has_segments;
                return Ok(Past {
                    checkpoint: None,
                    first_copy: 0,
                    memory: if blank {
                        RecoveredMemory::Blank
                    } else {
                        RecoveredMemory::Lost
                    },
                    unsafe_loss: false,
                    rotten_copy: None,
                });
            }
        };
        self.check_identity(&checkpoint)?;
        let rebooted = checkpoint.boot_id != self.config.boot_id;
        let unsafe_loss = !self.config.writes_survive && !checkpoint.clean && rebooted;
        let lost = unsafe_loss || checkpoint.memory == Memory::Lost;
        Ok(Past {
            checkpoint: Some(checkpoint),
            first_copy,
            memory: if lost {
                RecoveredMemory::Lost
            } else {
                RecoveredMemory::Whole
            },
            unsafe_loss,
            rotten_copy: rotten_copy(bytes),
        })
    }

    fn check_identity(&self, checkpoint: &Checkpoint) -> Result<(), Refusal> {
        let refuse = |rule: String, mend: &'static str| Refusal {
            file: "checkpoint".to_owned(),
            position: 0,
            block: BlockNo(0),
            rule,
            mend,
        };
        if checkpoint.log != self.config.log {
            let (found, wanted) = (checkpoint.log, self.config.log);
            return Err(refuse(
                format!("the directory holds log {found}, log {wanted} was expected"),
                "correct data_dir, or the directory's name",
            ));
        }
        if checkpoint.members != self.config.members {
            let ids = |list: &[crate::types::NodeId]| {
                let list: Vec<String> = list.iter().map(ToString::to_string).collect();
                list.join(", ")
            };
            let (found, wanted) = (ids(&checkpoint.members), ids(&self.config.members));
            return Err(refuse(
                format!("the log's members are [{found}], the configuration says [{wanted}]"),
                "restore the former [[cluster.nodes]]",
            ));
        }
        Ok(())
    }

    fn read_head(&mut self, at: usize, buffers: &dyn Buffers) -> Result<bool, Refusal> {
        let found = &mut self.found[at];
        let len = (2 * SEGMENT_HEADER).min(found.entry.len as usize);
        if len == 0 {
            return Ok(true);
        }
        if !self.reader.covers_just(found.file, 0, len) {
            return Ok(false);
        }
        let bytes = self.reader.bytes(0, buffers);
        let name = found.name();
        refuse_version(bytes, b"MRSG", &name, 0, BlockNo(0))?;
        found.header = segment::read(bytes);
        let first = bytes.get(SEGMENT_HEADER..).unwrap_or_default();
        if first.len() >= BLOCK_HEADER {
            found.first = sound_header(first, self.config.log);
        }
        Ok(true)
    }
}

/// A copy of the checkpoint that holds something and is not sound. A crash while it was written
/// leaves such a one too.
fn rotten_copy(bytes: &[u8]) -> Option<u64> {
    let mut copies = [0, CHECKPOINT_COPY].into_iter();
    let rotten = copies.find(|at| {
        let copy = &bytes[*at..*at + CHECKPOINT_COPY];
        checkpoint::read(copy).is_none() && copy.iter().any(|byte| *byte != 0)
    });
    rotten.map(|at| at as u64)
}

/// Refuses a sound header of a version that is not known here: nothing of it is cut. In
/// every version the CRC lies at 8, and a block's header says its own length at 6; where the CRC
/// does not fit it is no version but damage.
pub(super) fn refuse_version(
    bytes: &[u8],
    magic: &[u8; 4],
    file: &str,
    position: u64,
    block: BlockNo,
) -> Result<(), Refusal> {
    if bytes.len() < BLOCK_HEADER || &bytes[..4] != magic || bytes[4] == 1 {
        return Ok(());
    }
    let len = match magic {
        b"MRBK" => usize::from(u16::from_le_bytes([bytes[6], bytes[7]])),
        _ => DISK_ALIGNMENT,
    };
    let whole = (BLOCK_HEADER..=bytes.len()).contains(&len);
    if !whole || crc_with_zeroed(&bytes[..len], 8).to_le_bytes() != bytes[8..12] {
        return Ok(());
    }
    Err(Refusal {
        file: file.to_owned(),
        position,
        block,
        rule: format!("format version {}, known here is 1", bytes[4]),
        mend: "start the version that wrote it",
    })
}
