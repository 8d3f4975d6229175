//! Writes the right bytes where damaged ones stand, and reads them back.
//!
//! What is written was made by whoever led the log, and chains to the sound blocks before and
//! behind the damage; a run that does not is refused and nothing is touched. One repair is under
//! way at a time. A device that gives back other bytes than were written a moment ago closes the
//! log. Read `holes.rs` first.

use super::holes::Hole;
use super::ids::Purpose;
use super::index::Tail;
use super::log::Log;
use super::op::{DEVICE_MEND, DiskOp};
use super::output::{Health, Output, RepairRefusal, State};
use crate::buffers::Buffers;
use crate::types::{BlockNo, BufferId, Epoch, FileId};
use crate::wire::block::BlockHeader;
use crate::wire::segment;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Write,
    Writing,
    Read,
    Reading,
}

/// A repair under way.
#[derive(Debug)]
pub(super) struct Mend {
    from: BlockNo,
    /// What is left of the hole afterwards.
    rest: Option<Hole>,
    headers: Vec<BlockHeader>,
    file: FileId,
    position: u64,
    len: usize,
    buffer: BufferId,
    check: Option<BufferId>,
    stage: Stage,
}

impl Mend {
    /// Whether an operation is in flight.
    fn is_busy(&self) -> bool {
        matches!(self.stage, Stage::Writing | Stage::Reading)
    }

    pub(super) fn is_using(&self, file: FileId) -> bool {
        self.file == file && self.is_busy()
    }

    pub(super) fn buffers(self) -> impl Iterator<Item = BufferId> {
        [Some(self.buffer), self.check].into_iter().flatten()
    }
}

/// Blocks that another node should be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// First block.
    pub from: BlockNo,
    /// One past the last.
    pub end: BlockNo,
    /// Epoch of the block before; 0 if there is none.
    pub prev_epoch: crate::types::Epoch,
    /// Most bytes that they take on the disk.
    pub max_bytes: u64,
}

impl Log {
    /// The damaged blocks whose place is known, while no repair is under way.
    pub fn wanted(&self) -> impl Iterator<Item = Wanted> {
        let open = self.state == State::Open && self.mend.is_none() && self.may_mend();
        let holes = self.holes.iter().filter(move |_| open);
        holes.map(|hole| Wanted {
            from: hole.from(),
            end: hole.end,
            prev_epoch: hole.before.epoch,
            max_bytes: hole.limit - hole.position,
        })
    }

    /// A cut that has not begun may even wait for a repair. What is damaged is in the checkpoint
    /// before it is repaired: a repair that a crash cuts off is looked at again.
    fn may_mend(&self) -> bool {
        !self.is_guarded() && (self.cut.is_none() || self.cut_waits())
    }

    /// Epoch of the block behind a hole; 0 if it is not known.
    fn epoch_behind(&self, hole: &Hole) -> Epoch {
        match hole.end >= self.index.tail.next {
            true => self.index.tail.epoch,
            false => self.index.epoch_of(hole.end).unwrap_or_default(),
        }
    }

    /// Takes blocks for the place of damaged ones. They lie in `buffer` as on the disk, from its
    /// start on, and each is sound by itself; the buffer is the log's from now on unless it refuses
    /// them. What is not known to be committed is taken only if it is proven to be what stood here:
    /// by the last block of the damage, or as one of them is of the epoch of the block behind it,
    /// for one epoch is of one leader and so of one log.
    pub fn repair(
        &mut self,
        buffer: BufferId,
        headers: &[BlockHeader],
    ) -> Result<(), RepairRefusal> {
        let busy = self.state != State::Open || self.mend.is_some() || !self.may_mend();
        let first = headers.first().filter(|_| !busy);
        let hole = first.and_then(|first| self.holes.at(first.block)).copied();
        let (Some(first), Some(hole)) = (first, hole) else {
            return Err(RepairRefusal::NotWanted);
        };
        if first.block != hole.from() {
            return Err(RepairRefusal::NotWanted);
        }
        // More than the hole may have come.
        let mut headers: Vec<BlockHeader> = headers
            .iter()
            .take_while(|header| header.block < hole.end)
            .copied()
            .collect();
        let (mut tail, mut len) = chained(&hole, &headers).ok_or(RepairRefusal::Differs)?;
        let comes_to_end = tail.next == hole.end;
        let proven = comes_to_end && hole.ends_with(&tail, len);
        if !proven {
            let behind = self.epoch_behind(&hole);
            let refusal = unproven(comes_to_end, (tail.epoch, behind));
            let one_leader = match refusal {
                RepairRefusal::Differs => None,
                _ => headers.iter().rposition(|header| header.epoch == behind),
            };
            let of_one_leader = one_leader.map_or(0, |last| last + 1);
            let committed = self.known_committed();
            let committed = headers.partition_point(|header| header.block < committed);
            headers.truncate(committed.max(of_one_leader));
            if headers.is_empty() {
                return Err(refusal);
            }
            (tail, len) = chained(&hole, &headers).expect("a part of a chain");
        }
        let misplaced =
            |header: &&BlockHeader| header.first_in_segment && header.block != hole.segment;
        if let Some(header) = headers.iter().find(misplaced) {
            let name = segment::file_name(header.block);
            self.latch(format!(
                "{name}: the file is missing: block {} begins it, and the next file holds later \
                 blocks only; mend: {}",
                header.block,
                super::DAMAGE_MEND
            ));
            return Err(RepairRefusal::NotWanted);
        }
        let limit = hole.position + len as u64;
        let whole = tail.next == hole.end;
        if limit > hole.limit || whole && !proven {
            return Err(RepairRefusal::Differs);
        }
        let segment = self.segments.starting_at(hole.segment);
        let file = segment.and_then(|one| one.file);
        self.mend = Some(Box::new(Mend {
            from: hole.from(),
            rest: (!whole).then_some(Hole {
                before: tail,
                position: limit,
                ..hole
            }),
            headers,
            file: file.ok_or(RepairRefusal::NotWanted)?,
            position: hole.position,
            len,
            buffer,
            check: None,
            stage: Stage::Write,
        }));
        Ok(())
    }

    pub(super) fn mend_op(&mut self, buffers: &mut dyn Buffers) -> Option<(DiskOp, Purpose)> {
        let mend = self.mend.as_mut()?;
        let (file, position, len) = (mend.file, mend.position, mend.len);
        let op = match mend.stage {
            Stage::Writing | Stage::Reading => return None,
            Stage::Write => {
                mend.stage = Stage::Writing;
                DiskOp::Write {
                    ticket: self.ids.ticket(),
                    file,
                    position,
                    buffer: mend.buffer,
                    start: 0,
                    len,
                }
            }
            Stage::Read => {
                let buffer = buffers.take(len)?;
                mend.check = Some(buffer);
                mend.stage = Stage::Reading;
                DiskOp::Read {
                    ticket: self.ids.ticket(),
                    file,
                    position,
                    buffer,
                    len,
                }
            }
        };
        Some((op, Purpose::Mend))
    }

    /// The blocks of a hole from its first one up to where `rest` begins are sound again. What is
    /// left of it behind the committed end is looked at once more: what stands in front of it
    /// proves what is sound in there.
    fn repaired(&mut self, from: BlockNo, rest: Option<Hole>) {
        let committed = self.known_committed();
        let (again, rest): (Option<Hole>, Option<Hole>) = match rest {
            Some(rest) if rest.from() >= committed => (Some(rest), None),
            rest => (None, rest),
        };
        self.holes.repaired(from, rest, again);
        if let Some(hole) = again {
            self.scrub.look_at(hole.segment);
        }
    }

    pub(super) fn on_mended(&mut self, count: usize, buffers: &dyn Buffers) {
        let mend = self.mend.as_mut().expect("it asked for it");
        if mend.stage == Stage::Writing {
            mend.stage = Stage::Read;
            return;
        }
        let mend = self.mend.take().expect("just seen");
        let check = mend.check.expect("it was read into");
        let same = count == mend.len
            && buffers.bytes(check)[..count] == buffers.bytes(mend.buffer)[..count];
        let (from, position) = (mend.from, mend.position);
        if same {
            let end = mend.headers.last().map_or(from, |last| last.block.next());
            mend.headers.iter().for_each(|one| self.index.learn(one));
            self.repaired(from, mend.rest);
            self.outputs
                .push_back(Output::Health(Health::Repaired { from, end }));
        }
        self.outputs.extend(mend.buffers().map(Output::Release));
        match same {
            true => self.note_holes(),
            false => self.latch(format!(
                "block {from} was written again at {position} and reads otherwise; mend: \
                 {DEVICE_MEND}"
            )),
        }
    }
}

/// What blocks are that nothing proves to have stood here, by the epoch of the last one and that of
/// the block behind the damage. Only blocks up to its end show that the logs part.
fn unproven(comes_to_end: bool, (last, behind): (Epoch, Epoch)) -> RepairRefusal {
    match comes_to_end {
        true if last == behind => RepairRefusal::Differs,
        true => RepairRefusal::Parts,
        false => RepairRefusal::NotWanted,
    }
}

/// What comes behind the blocks, and their bytes, if they chain from before the hole on.
fn chained(hole: &Hole, headers: &[BlockHeader]) -> Option<(Tail, usize)> {
    let mut tail = hole.before;
    let mut len = 0;
    for header in headers {
        if !tail.continued_by(header) {
            return None;
        }
        tail = Tail::behind(header);
        len += header.padded_len();
    }
    Some((tail, len))
}
