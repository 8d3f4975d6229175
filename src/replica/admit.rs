//! The rule by which a run of blocks enters a log: one for push, catch-up and an opening leader.
//!
//! Order of checks: failure latch, link, fence, **place**, headers, batch CRCs, write. This file
//! owns place and headers; `follower.rs` and `opening.rs` ask it. Pure functions of the frame's
//! body, the headers of its blocks and the log. Never silence: what does not go on is a refusal
//! with a code.
//!
//! The table, `next` being the log end; the first row that fits decides:
//!
//! | first | block before `first` | blocks of the run that are held | place |
//! |---|---|---|---|
//! | above next | - | - | out of sync, about the block before next |
//! | any | held, other epoch, below the log start | - | diverged there |
//! | any | held, other epoch | - | out of sync, about the block before first |
//! | any | held, same epoch, other bytes | - | diverged there |
//! | any | damaged and unknown, not below the high watermark | - | refused for now |
//! | next | same, or there is none | none | next |
//! | below next | same | the run has no blocks | held |
//! | below next | same | the first under another epoch, at or above the high watermark | cut there
//! |
//! | below next | same | the first under another epoch, below it | diverged there |
//! | below next | same | one of them: same epoch, other bytes | diverged there |
//! | below next | same | a later one under another epoch, below the high watermark | diverged there
//! |
//! | below next | same | a later one under another epoch | out of sync, about that block |
//! | below next | same | one damaged and unknown, not below the high watermark | refused for now |
//! | below next | same | all equal, run ends at or below next | held |
//! | below next | same | all equal, run ends above next | out of sync, about the block before next
//! |
//!
//! Blocks below the log start were committed before they were trimmed: they count as held and
//! equal. "Other bytes" means another `header_crc`, which by the chain covers every byte up to
//! there.

use super::view::LogView;
use crate::faults::{Fault, active};
use crate::types::{BlockNo, Epoch, LogId, Offset};
use crate::wire::block::BlockHeader;
use crate::wire::body::{Body, CreditLimits};
use crate::wire::checkpoint::LogStart;
use crate::wire::code::Code;

/// What the body of a frame says of the run of blocks that is its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Epoch of the sender, or the epoch that the asker is opening.
    pub epoch: Epoch,
    /// First block.
    pub first: BlockNo,
    /// Epoch of the block before it; 0 if there is none.
    pub prev_epoch: Epoch,
    /// `header_crc` of the block before it; 0 if not said.
    pub prev_crc: u32,
    /// Blocks.
    pub count: u32,
    /// Their records, if said.
    pub records: Option<u32>,
    /// Their padded bytes.
    pub padded_len: u32,
}

impl Run {
    /// The run of a frame, if it is one that carries a run.
    pub fn of(body: &Body) -> Option<Run> {
        match body {
            Body::Replicate(body) => Some(Run {
                epoch: body.epoch,
                first: body.first,
                prev_epoch: body.prev_epoch,
                prev_crc: body.prev_crc,
                count: body.count,
                records: Some(body.records),
                padded_len: body.padded_len,
            }),
            Body::FetchOk(body) => Some(Run {
                epoch: body.epoch,
                first: body.first,
                prev_epoch: body.prev_epoch,
                prev_crc: 0,
                count: body.count,
                records: None,
                padded_len: body.padded_len,
            }),
            _ => None,
        }
    }

    /// One past the last block.
    pub fn end(&self) -> BlockNo {
        BlockNo(self.first.0.saturating_add(u64::from(self.count)))
    }

    /// What the frame says that its blocks cost.
    pub fn weight(&self) -> CreditLimits {
        CreditLimits {
            records: u64::from(self.records.unwrap_or_default()),
            bytes: u64::from(self.padded_len),
        }
    }
}

/// Where two logs part, as the side that refuses sees it: it holds the block before `next`, in
/// `epoch`, and that epoch begins at `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    /// One past the block that this is about.
    pub next: BlockNo,
    /// Epoch of the block before `next`; 0 if there is none.
    pub epoch: Epoch,
    /// First block of that epoch.
    pub first: BlockNo,
}

/// Where a run belongs. See the table of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It continues the log.
    Next,
    /// It continues the log once everything from this block on is cut off.
    Cut(BlockNo),
    /// All of it is held.
    Held,
    /// This block differs, and it is committed or of the same epoch.
    Diverged(BlockNo),
    /// It begins the log anew.
    Anew(LogStart),
    /// It neither continues the log nor is it held.
    OutOfSync(Hints),
    /// Its headers are needed to tell, and they are not sound.
    Refuse(Code),
}

/// Whether the headers are those that the frame's body promises; if not, the code of the refusal.
/// `headers` is none if one of them is damaged or the payload's length does not fit them.
pub fn agree<'a>(
    run: &Run,
    headers: Option<&'a [BlockHeader]>,
    log: LogId,
) -> Result<&'a [BlockHeader], Code> {
    let headers = headers.ok_or(Code::BadCrc)?;
    let records: u64 = headers.iter().map(|h| u64::from(h.record_count)).sum();
    let bytes: u64 = headers.iter().map(|h| h.padded_len() as u64).sum();
    let numbered = (run.first.0..).zip(headers);
    let same = headers.len() == run.count as usize
        && bytes == u64::from(run.padded_len)
        && run.records.is_none_or(|said| u64::from(said) == records)
        && numbered.into_iter().all(|(number, header)| {
            header.block == BlockNo(number) && header.log == log && header.epoch <= run.epoch
        });
    if same {
        Ok(headers)
    } else {
        Err(Code::BadFrame)
    }
}

/// Where `run` belongs in `log`: the table of this file.
pub fn place(
    run: &Run,
    headers: Result<&[BlockHeader], Code>,
    log: &dyn LogView,
    high_watermark: BlockNo,
    may_truncate: bool,
) -> Place {
    let next = log.log_end();
    if run.first > next {
        return Place::OutOfSync(hints_at(log, next));
    }
    if let Some(place) = place_by_previous(run, log, high_watermark) {
        return place;
    }
    if run.first == next {
        return Place::Next;
    }
    if run.count == 0 {
        return Place::Held;
    }
    let headers = match headers {
        Ok(headers) => headers,
        Err(code) => return Place::Refuse(code),
    };
    for header in headers.iter().filter(|header| header.block < next) {
        let at = header.block;
        match same(log, at, header.epoch, header.header_crc) {
            Same::Yes => {}
            Same::Unknown if at < high_watermark.max(log.log_start()) => {}
            Same::Unknown => return Place::Refuse(Code::BlocksDamaged),
            Same::OtherBytes => return Place::Diverged(at),
            Same::OtherEpoch => {
                let free = at >= high_watermark || active(Fault::TruncateBelowCommit);
                return if !free || !may_truncate {
                    Place::Diverged(at)
                } else if at == run.first {
                    Place::Cut(at)
                } else {
                    Place::OutOfSync(hints_at(log, at.next()))
                };
            }
        }
    }
    if run.end() <= next {
        Place::Held
    } else {
        Place::OutOfSync(hints_at(log, next))
    }
}

/// Whether the headers chain to the block before the run, and each to the one before it. The run's
/// place is `Next` or `Cut`.
pub fn check_chain(run: &Run, headers: &[BlockHeader], log: &dyn LogView) -> Result<(), Code> {
    let Some(first) = headers.first() else {
        return Ok(());
    };
    let before = run.first.previous();
    let known = before.map_or(Some((Epoch(0), 0)), |block| log.held(block));
    if known.is_some_and(|(_, crc)| crc != first.prev_header_crc) {
        return Err(Code::Diverged);
    }
    // Below what recovery scanned a log knows neither CRCs nor offsets; the epoch of the block
    // before, which is the same, vouches for them there.
    check_links(run, headers, log.end_offset_of(run.first))
}

/// Whether the headers chain to one another, beginning with the first record at `known_offset`.
pub fn check_links(
    run: &Run,
    headers: &[BlockHeader],
    known_offset: Option<Offset>,
) -> Result<(), Code> {
    let Some(first) = headers.first() else {
        return Ok(());
    };
    let mut offset = known_offset.unwrap_or(first.base_offset);
    let mut epoch = run.prev_epoch;
    let mut previous_crc = first.prev_header_crc;
    for header in headers {
        let chained = header.prev_header_crc == previous_crc
            && header.epoch >= epoch
            && header.epoch.0 > 0
            && header.base_offset == offset;
        if !chained {
            return Err(Code::BadCrc);
        }
        (epoch, offset, previous_crc) = (header.epoch, header.end_offset, header.header_crc);
    }
    Ok(())
}

/// Where `run` belongs in `log`, the sender's log beginning at `start`: at that start by the rule
/// of [`place_at_start`], else by that of [`place`].
pub fn place_from(
    start: BlockNo,
    run: &Run,
    headers: Result<&[BlockHeader], Code>,
    log: &dyn LogView,
    (high_watermark, may_truncate): (BlockNo, bool),
) -> Place {
    let at_start = (run.first == start)
        .then(|| place_at_start(run, headers, log, high_watermark, may_truncate));
    let place = || place(run, headers, log, high_watermark, may_truncate);
    at_start.flatten().unwrap_or_else(place)
}

/// Whether the headers of a run that goes on at `place` chain, to the log if it is kept.
pub fn check_place(
    place: Place,
    run: &Run,
    headers: Result<&[BlockHeader], Code>,
    log: &dyn LogView,
) -> Result<(), Code> {
    match place {
        Place::Anew(_) => check_links(run, headers?, None),
        _ => check_chain(run, headers?, log),
    }
}

/// Where a run belongs that begins where the sender's log does: what lies before it is committed
/// and trimmed there. A log that ends before it, or that holds another block before it which is not
/// committed, begins anew with it. None: [`place`] decides.
pub fn place_at_start(
    run: &Run,
    headers: Result<&[BlockHeader], Code>,
    log: &dyn LogView,
    high_watermark: BlockNo,
    may_truncate: bool,
) -> Option<Place> {
    let previous = run.first.previous()?;
    let first = headers
        .ok()?
        .first()
        .filter(|first| first.first_in_segment)?;
    if run.first <= log.log_end() {
        let held = log.epoch_of(previous);
        if previous < log.log_start() || held.is_none() || held == Some(run.prev_epoch) {
            return None;
        }
        if previous < high_watermark || !may_truncate {
            return Some(Place::Diverged(previous));
        }
    }
    Some(Place::Anew(LogStart {
        block: run.first,
        offset: first.base_offset,
        prev_epoch: run.prev_epoch,
        prev_crc: first.prev_header_crc,
    }))
}

/// What this log says of the block before `next`.
pub fn hints_at(log: &dyn LogView, next: BlockNo) -> Hints {
    let epoch = next.previous().and_then(|block| log.epoch_of(block));
    let epoch = epoch.unwrap_or_default();
    Hints {
        next,
        epoch,
        first: log.first_of_epoch(epoch).unwrap_or(log.log_start()),
    }
}

/// The first block to send to (or to fetch from) a replica that gave these hints: one past the last
/// block that both logs can have. Epochs never fall along a log, so blocks of a higher epoch than
/// the hint's cannot be below its `next`; and if this log lacks the hint's epoch, nothing from
/// `first` on can be shared. Below the own log start if both part there.
pub fn step_back(log: &dyn LogView, hints: Hints) -> BlockNo {
    let mut end = hints.next.min(log.log_end());
    while let Some(epoch) = end.previous().and_then(|last| log.epoch_of(last)) {
        if epoch == hints.epoch {
            return end;
        }
        if epoch < hints.epoch {
            return end.min(hints.first);
        }
        match log.first_of_epoch(epoch) {
            Some(first) if first < end => end = first,
            _ => return BlockNo(0),
        }
    }
    BlockNo(0)
}

/// Whether the blocks of the run below `end` are held as they are.
pub(super) fn same_up_to(
    view: &dyn LogView,
    headers: Result<&[BlockHeader], Code>,
    end: BlockNo,
) -> bool {
    let headers = headers.unwrap_or_default();
    let mut held = headers.iter().filter(|header| header.block < end);
    held.all(|header| view.epoch_of(header.block) == Some(header.epoch))
}

enum Same {
    Yes,
    /// Nothing is known of the block that is held: it is damaged, or below the log start.
    Unknown,
    OtherEpoch,
    OtherBytes,
}

/// Compares a foreign block's identity with the one held; `header_crc` 0 means "not said".
fn same(log: &dyn LogView, block: BlockNo, epoch: Epoch, header_crc: u32) -> Same {
    let Some(held_epoch) = log.epoch_of(block) else {
        return Same::Unknown;
    };
    if held_epoch != epoch {
        return Same::OtherEpoch;
    }
    let held_crc = log.held(block).map(|(_, crc)| crc);
    let comparable = header_crc != 0 && !active(Fault::CompareEpochsOnly);
    if comparable && held_crc.is_some_and(|held| held != header_crc) {
        Same::OtherBytes
    } else {
        Same::Yes
    }
}

fn place_by_previous(run: &Run, log: &dyn LogView, high_watermark: BlockNo) -> Option<Place> {
    let previous = run.first.previous()?;
    match same(log, previous, run.prev_epoch, run.prev_crc) {
        Same::Yes => None,
        Same::Unknown if previous < high_watermark.max(log.log_start()) => None,
        Same::Unknown => Some(Place::Refuse(Code::BlocksDamaged)),
        Same::OtherBytes => Some(Place::Diverged(previous)),
        Same::OtherEpoch if previous < log.log_start() => Some(Place::Diverged(previous)),
        Same::OtherEpoch => Some(Place::OutOfSync(hints_at(log, run.first))),
    }
}

#[cfg(test)]
#[path = "admit_tests.rs"]
mod tests;
