//! Damage: from what the log finds to the blocks that another node brings.
//!
//! `wal` says what is damaged and takes only bytes that it can prove; `replica` says whom to ask.
//! Here one's findings become the other's questions, and both become lines for operators. Read
//! `wal/scrub.rs` and `replica/mending.rs`.

use super::links::batches_sound;
use super::status::{DamageView, ScrubView};
use super::{Shard, View};
use crate::buffers::Buffers;
use crate::replica::{Damaged, Mended};
use crate::types::{BlockNo, BufferId, Time};
use crate::wal::{Health, Recovered, RepairRefusal, State};
use crate::wire::block::BlockHeader;
use crate::wire::message::Message;

impl Shard {
    /// The log has news of what its files hold.
    pub(super) fn on_health(&mut self, now: Time, health: Health) {
        match health {
            Health::Damaged(damage) => {
                self.counters.damage_found += 1;
                self.notice(Message::DamageFound, damage.to_string());
            }
            Health::Repaired { from, end } => {
                self.counters.blocks_repaired += end.0 - from.0;
                let text = format!("blocks {from} up to {end} are as they were written");
                self.notice(Message::DamageRepaired, text);
                self.replica.repaired();
                self.room_came = true;
            }
            Health::Rewritten(what) => {
                self.counters.damage_found += 1;
                self.counters.rewritten += 1;
                self.notice(Message::Rewritten, format!("wrote {what} anew"));
            }
            Health::Scrubbed(report) => {
                self.counters.scrubs += 1;
                self.counters.scrub_bytes += report.bytes;
                let text = format!("{} bytes read, {} damaged", report.bytes, report.found);
                self.notice(Message::Scrubbed, text);
                let view = View::new(&self.log, &self.stash);
                let end = self.replica.high_watermark();
                self.replica.compare(now, end, &view);
            }
        }
    }

    /// What recovery passed by.
    pub(super) fn on_damage_recovered(&mut self, recovered: &Recovered) {
        for damage in &recovered.damage {
            self.counters.damage_found += 1;
            self.notice(Message::DamageFound, damage.to_string());
        }
        for what in &recovered.rewritten {
            self.counters.rewritten += 1;
            self.notice(Message::Rewritten, format!("wrote {what} anew"));
        }
    }

    /// Asks for what is damaged. To be called after every round of events.
    pub(super) fn mend(&mut self, now: Time) {
        self.look_after_cap(now);
        let wanted = self.log.wanted().map(|wanted| Damaged {
            first: wanted.from,
            prev_epoch: wanted.prev_epoch,
            max_bytes: wanted.max_bytes,
        });
        let wanted: Vec<Damaged> = wanted.collect();
        if !wanted.is_empty() || self.mends {
            self.mends = !wanted.is_empty();
            self.replica.mend(now, &wanted);
        }
    }

    /// Damage that is repaired, that was none or that is committed or gone ends what this node
    /// vouches for no more: what lies behind counts as if it had become durable now.
    fn look_after_cap(&mut self, now: Time) {
        let sound_end = self.log.sound_end(self.log.committed_end());
        let capped = Some(sound_end).filter(|end| *end < self.log.durable_end());
        let before = std::mem::replace(&mut self.capped, capped);
        if before.is_some_and(|before| before < sound_end) {
            let view = View::new(&self.log, &self.stash);
            self.replica.sound(now, &view);
        }
    }

    /// The opening of an epoch gives up a damaged end that nobody else can hold.
    pub(super) fn cut_tail(&mut self, now: Time, from: BlockNo) {
        let open = matches!(self.log.state(), State::Open | State::Stopping);
        if !open || self.log.is_cutting() || from >= self.log.log_end() {
            return;
        }
        self.note_cut(from, "they are damaged, and no other member can hold them");
        self.log.cut(from);
        self.replica.gave_way(from);
        let view = View::new(&self.log, &self.stash);
        self.replica.tail_cut(now, &view);
    }

    /// A run came for the place of damaged blocks.
    pub(super) fn on_repair_run(
        &mut self,
        (buffer, len): (BufferId, usize),
        headers: &[BlockHeader],
        buffers: &dyn Buffers,
    ) {
        let sound = batches_sound(&buffers.bytes(buffer)[..len], headers);
        self.counters.crc_failures += u64::from(!sound);
        let result = match sound {
            true => self.log.repair(buffer, headers),
            false => Err(RepairRefusal::NotWanted),
        };
        let what = match result {
            Ok(()) => Mended::Taken,
            Err(RepairRefusal::NotWanted) => Mended::Useless,
            Err(RepairRefusal::Parts) if self.gives_way(headers[0].block) => Mended::Taken,
            Err(RepairRefusal::Differs | RepairRefusal::Parts) => Mended::Differ,
        };
        if result.is_err() {
            self.release(buffer);
        }
        self.replica.mended(what);
    }

    /// The log of the leader parts from this one among damaged blocks that begin with `first`: if
    /// none of them is committed they go, with what lies behind, like others of an older epoch.
    fn gives_way(&mut self, first: BlockNo) -> bool {
        if !self.replica.may_give_way() || self.log.is_cutting() {
            return false;
        }
        let epoch = self.replica.epoch();
        self.note_cut(first, &format!("epoch {epoch} has others there"));
        self.log.cut(first);
        self.replica.gave_way(first);
        true
    }

    /// An operator wants the log read again (`true`), or what is damaged asked for at once.
    pub(super) fn on_scrub(&mut self, now: Time, read: bool) {
        if read {
            self.log.scrub(now);
        }
        self.replica.mend_now();
    }

    /// Whether this node repairs the log: others hold it too.
    pub fn can_scrub(&self) -> bool {
        self.config.wal.repairs && self.failed.is_empty()
    }

    /// What is damaged, and what the scrub does.
    pub(super) fn damage_view(&self, now: Time) -> DamageView {
        let [running, last] = self.log.scrubs();
        let ranges = self.log.faulty().into_iter();
        DamageView {
            ranges: ranges
                .map(|((from, end), since)| (from, end, now.since_us(since)))
                .collect(),
            waits_for: self.replica.mends(),
            is_scrubbed: self.can_scrub(),
            running: running.map(|report| ScrubView {
                since_us: now.since_us(report.began),
                lasted_us: now.since_us(report.began),
                bytes: report.bytes,
                found: report.found,
            }),
            last: last.map(|report| ScrubView {
                since_us: now.since_us(report.ended),
                lasted_us: report.ended.since_us(report.began),
                bytes: report.bytes,
                found: report.found,
            }),
            bytes: self.log.bytes(),
        }
    }
}
