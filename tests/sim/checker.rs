//! The checkers: what must be true of a history, whoever made it.
//!
//! Apart from the simulator and from the code under test: they are told facts (what was sent, what
//! was answered, what the disks held at that moment, what a node said of itself) and return a
//! verdict. So each can be tested with a history made by hand. They never look into a node.
//! `verdict.rs` has the names, `log_checks.rs` the checks of whole logs at the end of a run.

use super::facts::{Ack, BatchFacts, BatchId, BlockFacts};
use super::verdict::{Checked, Name, ensure};
use millrace::limits::PRODUCER_BATCHES;
use millrace::types::{Level, ReadLevel};
use millrace::wire::body::CreditLimits;
use millrace::wire::producers::Producer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// An append that a client sent.
#[derive(Clone, Copy, Debug)]
pub struct SentAppend {
    /// The connection it went over: appends of one session keep their order.
    pub session: u64,
    /// Over the client's half and the body.
    pub digest: u64,
    /// Its records.
    pub record_count: u32,
    /// Whether it is sent until it is acknowledged: then it may be acknowledged more than once.
    pub retried: bool,
}

/// What the disks held when an answer was given.
#[derive(Clone, Copy, Debug)]
pub struct Holders {
    /// Whether the answering leader's disk held the block, with the batch at its place.
    pub leader: bool,
    /// Nodes, the leader among them, whose disks held that very block and all before it.
    pub nodes: usize,
    /// Whether another node was already seen to lead in a later epoch.
    pub overtaken: bool,
}

/// What a node says of its positions, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Number of its process: rises with each restart.
    pub run: u64,
    /// Epoch that it leads or has promised.
    pub epoch: u32,
    /// Committed blocks.
    pub high_watermark: u64,
    /// Durable blocks.
    pub durable_end: u64,
    /// Blocks held.
    pub log_end: u64,
    /// Blocks it says it has cut, in this run.
    pub blocks_cut: u64,
}

/// A read's answer.
#[derive(Clone, Debug)]
pub struct ReadAnswer {
    /// Which node gave it.
    pub node: usize,
    /// The level asked for.
    pub level: ReadLevel,
    /// The offset asked for.
    pub asked: u64,
    /// What came; none where the bytes were no batches.
    pub batches: Option<Vec<BatchFacts>>,
    /// Offset behind the last record, as the answer says.
    pub next: u64,
    /// Offset behind the last committed record, as the answer says.
    pub high_watermark: u64,
}

/// Everything that was said and seen, and what follows from it.
#[derive(Debug)]
pub struct Checker {
    majority: usize,
    pub(super) sent: BTreeMap<BatchId, SentAppend>,
    pub(super) acked: BTreeMap<BatchId, (Ack, u64)>,
    pub(super) refused: BTreeSet<BatchId>,
    /// Per session: sequence -> acknowledged range of offsets.
    sessions: BTreeMap<u64, BTreeMap<u32, (u64, u64)>>,
    /// The log as committed, by number, from the first block on.
    pub(super) committed: Vec<Rc<BlockFacts>>,
    /// Committed batches with records, by their first offset.
    by_offset: BTreeMap<u64, BatchFacts>,
    /// (epoch, block) -> header CRC and digest, as first written anywhere.
    written: BTreeMap<(u32, u64), (u32, u64)>,
    marks: BTreeMap<usize, Marks>,
    /// Nodes whose durable end went back: a cut, which they must count before it moves on.
    cutting: BTreeMap<usize, Marks>,
    /// Who was seen to lead in which epoch.
    leaders: BTreeMap<u32, usize>,
    /// Rises when a leader lost its memory or another node led: earlier `leader` acks may be gone
    /// then.
    pub(super) memory_losses: u64,
}

impl Checker {
    /// A checker of a set with so many members.
    pub fn new(members: usize) -> Checker {
        Checker {
            majority: members / 2 + 1,
            sent: BTreeMap::new(),
            acked: BTreeMap::new(),
            refused: BTreeSet::new(),
            sessions: BTreeMap::new(),
            committed: Vec::new(),
            by_offset: BTreeMap::new(),
            written: BTreeMap::new(),
            marks: BTreeMap::new(),
            cutting: BTreeMap::new(),
            leaders: BTreeMap::new(),
            memory_losses: 0,
        }
    }

    /// Number of the first block not known to be committed.
    pub fn committed_end(&self) -> u64 {
        self.committed.len() as u64
    }

    /// Offset behind the last committed record.
    pub fn committed_offset(&self) -> u64 {
        self.committed.last().map_or(0, |block| block.end_offset)
    }

    /// A committed block, whether it is still in the logs or not.
    pub fn committed_block(&self, block: u64) -> Option<&BlockFacts> {
        self.committed.get(block as usize).map(Rc::as_ref)
    }

    /// Offset behind the last record acknowledged at any level.
    pub fn acked_end(&self) -> u64 {
        let end = |(id, (ack, _)): (&BatchId, &(Ack, u64))| {
            ack.base_offset + u64::from(self.sent[id].record_count)
        };
        self.acked.iter().map(end).max().unwrap_or(0)
    }

    /// Appends acknowledged at this level.
    pub fn acked_count(&self, level: Level) -> u64 {
        self.acked
            .values()
            .filter(|(ack, _)| ack.level == level)
            .count() as u64
    }

    /// A client sends an append.
    pub fn append_sent(&mut self, id: BatchId, append: SentAppend) {
        let before = self.sent.insert(id, append);
        assert!(before.is_none(), "clients never send an append again");
    }

    /// Whether an append is sent until it is acknowledged.
    pub fn is_retried(&self, id: BatchId) -> bool {
        self.sent[&id].retried
    }

    /// A node refuses an append for good: it is not in the log and never will be.
    pub fn append_refused(&mut self, id: BatchId) {
        self.refused.insert(id);
    }

    /// A node's disk was replaced by a blank one: it knows nothing of what it said.
    pub fn memory_lost(&mut self, node: usize) {
        self.marks.remove(&node);
    }

    /// Of what was written, only this is still held somewhere.
    pub fn forget_written(&mut self, held: impl Fn(u32, u64) -> bool) {
        self.written
            .retain(|(epoch, block), _| held(*epoch, *block));
    }

    /// A follower said, or its leader believes, that it holds the leader's block `facts` and all
    /// before it; does it?
    pub fn matched(&self, node: usize, facts: &BlockFacts, holds: bool) -> Checked {
        ensure(holds, Name::AckedBeforeDurable, || {
            format!(
                "node {node} counts as holding block {} of epoch {}, it does not",
                facts.block, facts.epoch
            )
        })
    }

    /// The highest epoch that a node has promised or led, as far as it was seen.
    pub fn epoch_of(&self, node: usize) -> u32 {
        self.marks.get(&node).map_or(0, |marks| marks.epoch)
    }

    /// A node speaks in an epoch: not in one below what it has promised.
    pub fn epoch_said(&self, node: usize, epoch: u32) -> Checked {
        let promised = self.epoch_of(node);
        ensure(epoch >= promised, Name::WatermarkWentBack, || {
            format!("node {node} acknowledges in epoch {epoch} and has promised {promised}")
        })
    }

    /// The leader's disk was replaced by a blank one.
    pub fn leader_lost_memory(&mut self) {
        self.memory_losses += 1;
    }

    /// A node leads in an epoch: nobody else ever does.
    pub fn leader_seen(&mut self, node: usize, epoch: u32) -> Checked {
        let last = self.newest_leader();
        let first = *self.leaders.entry(epoch).or_insert(node);
        if self.newest_leader() != last && last.is_some() {
            self.memory_losses += 1;
        }
        ensure(first == node, Name::TwoLeaders, || {
            format!("nodes {first} and {node} both lead in epoch {epoch}")
        })
    }

    /// The node that led in the highest epoch seen.
    pub fn newest_leader(&self) -> Option<usize> {
        self.leaders.last_key_value().map(|(_, node)| *node)
    }

    /// Epochs that were seen to be led, and how often by another node than the one before.
    pub fn elections(&self) -> [u64; 2] {
        let nodes: Vec<usize> = self.leaders.values().copied().collect();
        let changes = nodes.windows(2).filter(|pair| pair[0] != pair[1]);
        [nodes.len() as u64, changes.count() as u64]
    }

    /// Whether this node was the next to lead after this epoch.
    pub fn led_next(&self, epoch: u32, node: usize) -> bool {
        let next = self.leaders.range(epoch + 1..).next();
        next.is_some_and(|(_, leader)| *leader == node)
    }

    /// The node that led in this epoch, if one was seen to.
    pub fn leader_of(&self, epoch: u32) -> Option<usize> {
        self.leaders.get(&epoch).copied()
    }

    /// Whether somebody led in an epoch above this one.
    pub fn is_overtaken(&self, epoch: u32) -> bool {
        self.leaders.range(epoch + 1..).next().is_some()
    }

    /// A node acknowledges an append. `holders` is what the disks hold at this very moment.
    pub fn append_acked(&mut self, id: BatchId, ack: Ack, holders: Holders) -> Checked {
        let sent = self.sent[&id];
        let name = Name::AckedBeforeDurable;
        ensure(ack.level == Level::Local || holders.leader, name, || {
            format!("{id:?} {ack:?}: the leader's own disk does not hold it")
        })?;
        let enough = ack.level != Level::Quorum || holders.nodes >= self.majority;
        ensure(enough, name, || {
            format!("{id:?} {ack:?}: durable on {} node(s) only", holders.nodes)
        })?;
        self.note_ack(id, ack, holders.overtaken)?;
        let range = (
            ack.base_offset,
            ack.base_offset + u64::from(sent.record_count),
        );
        let gone = self.overlapping(id, range);
        let session = self.sessions.entry(sent.session).or_default();
        gone.iter().for_each(|sequence| {
            session.remove(sequence);
        });
        let earlier = session.range(..id.sequence).next_back();
        let later = session.range(id.sequence + 1..).next();
        let ordered = earlier.is_none_or(|(_, (_, end))| *end <= range.0)
            && later.is_none_or(|(_, (start, _))| range.1 <= *start);
        ensure(ordered, Name::Reordered, || {
            format!("{id:?} at {range:?}, its neighbours {earlier:?} and {later:?}")
        })?;
        session.insert(id.sequence, range);
        Ok(())
    }

    /// Batches of a session that stand in the way of an acknowledged one, and may be gone. More
    /// than a few are never sent again.
    fn overlapping(&self, id: BatchId, range: (u64, u64)) -> Vec<u32> {
        let sent = self.sent[&id];
        let Some(session) = self.sessions.get(&sent.session) else {
            return Vec::new();
        };
        let before = session.range(..id.sequence).rev().take(16);
        let before = before.filter(|(_, (_, end))| *end > range.0);
        let behind = session.range(id.sequence + 1..).take(16);
        let behind = behind.filter(|(_, (start, _))| *start < range.1);
        let gone = before.chain(behind).filter(|(sequence, _)| {
            let sequence = **sequence;
            let (ack, losses) = self.acked[&BatchId { sequence, ..id }];
            self.may_be_gone(ack.level, losses)
        });
        gone.map(|(sequence, _)| *sequence).collect()
    }

    fn may_be_gone(&self, level: Level, losses: u64) -> bool {
        match level {
            Level::Local => true,
            Level::Leader => self.memory_losses > losses,
            Level::Quorum => false,
        }
    }

    /// Whether this very batch is committed.
    pub fn is_committed(&self, batch: &BatchFacts) -> bool {
        self.by_offset.get(&batch.base_offset) == Some(batch)
    }

    /// The batch is acknowledged: for the first time, or again at the same place. Another place is
    /// only right if what the first answer promised may be gone.
    fn note_ack(&mut self, id: BatchId, ack: Ack, overtaken: bool) -> Checked {
        let sent = self.sent[&id];
        // What an overtaken leader says at `leader` may be gone already.
        let losses = self.memory_losses.saturating_sub(u64::from(overtaken));
        let before = self.acked.insert(id, (ack, losses));
        let Some((first, losses)) = before else {
            return Ok(());
        };
        let same = (first.base_offset, first.block) == (ack.base_offset, ack.block);
        let may_be_gone = self.may_be_gone(first.level, losses);
        ensure(
            sent.retried && (same || may_be_gone),
            Name::AckedTwice,
            || format!("{id:?} was answered twice: {before:?}, then {ack:?}"),
        )?;
        if !same {
            // With it went what came after it.
            let session = self.sessions.entry(sent.session).or_default();
            session.split_off(&id.sequence);
        } else if first.level > ack.level {
            self.acked.insert(id, (first, losses));
        }
        Ok(())
    }

    /// A reader's copy of the log, to the end: it is the committed one.
    pub fn copy_is_committed(&self, client: u32, copy: &[BatchFacts]) -> Checked {
        let other = copy
            .iter()
            .find(|batch| self.by_offset.get(&batch.base_offset) != Some(batch));
        ensure(other.is_none(), Name::ReadWrong, || {
            let there = other.and_then(|batch| self.by_offset.get(&batch.base_offset));
            format!("client {client} was never told that {other:?} is gone; there is {there:?}")
        })
    }

    /// A node (at rest) says what it knows of producers; does the committed log say the same?
    pub fn producers_known(&self, node: usize, said: &[Producer]) -> Checked {
        let mut known: BTreeMap<u64, (u16, VecDeque<(u32, u64)>)> = BTreeMap::new();
        for batch in self.by_offset.values() {
            let Some((id, epoch, sequence)) = batch.producer else {
                continue;
            };
            let (last_epoch, batches) = known.entry(id).or_default();
            if *last_epoch != epoch {
                batches.clear();
            }
            *last_epoch = epoch;
            batches.push_back((sequence, batch.base_offset));
            if batches.len() > PRODUCER_BATCHES {
                batches.pop_front();
            }
        }
        let said = said.iter().map(|producer| {
            let batches = producer.batches.iter();
            let batches = batches.map(|batch| (batch.base_sequence, batch.base_offset.0));
            (producer.id, (producer.epoch, batches.collect()))
        });
        let said: BTreeMap<u64, (u16, VecDeque<(u32, u64)>)> = said.collect();
        ensure(said == known, Name::ProducersDiffer, || {
            format!("node {node} knows {said:?}, the committed log has {known:?}")
        })
    }

    /// A node says (to its leader) that it holds everything below `said_end`; its disk does up to
    /// `disk_end`, as a chain of blocks that are the leader's.
    pub fn position_said(&self, node: usize, said_end: u64, disk_end: u64) -> Checked {
        ensure(said_end <= disk_end, Name::AckedBeforeDurable, || {
            format!("node {node} says it holds all below {said_end}, its disk does to {disk_end}")
        })
    }

    /// A node wrote a block durably. One epoch writes one block of each number: same bytes
    /// anywhere.
    pub fn block_written(&mut self, node: usize, facts: &BlockFacts) -> Checked {
        let key = (facts.epoch, facts.block);
        let mine = (facts.header_crc, facts.digest);
        let first = *self.written.entry(key).or_insert(mine);
        ensure(first == mine && facts.sound, Name::BytesDiffer, || {
            format!(
                "node {node} wrote block {} of epoch {}: {mine:x?} where {first:x?} was first, \
                 sound: {}",
                facts.block, facts.epoch, facts.sound
            )
        })
    }

    /// A node says that `facts` is committed; `nodes` disks hold it and all before it.
    pub fn committed_seen(&mut self, node: usize, facts: &Rc<BlockFacts>, nodes: usize) -> Checked {
        if let Some(known) = self.committed.get(facts.block as usize) {
            return ensure(known == facts, Name::CommittedChanged, || {
                format!(
                    "block {} was {known:?}, node {node} has {facts:?}",
                    facts.block
                )
            });
        }
        ensure(
            facts.block == self.committed_end(),
            Name::WatermarkWentBack,
            || {
                format!(
                    "node {node} counts block {} as committed, the last one known is below {}",
                    facts.block,
                    self.committed_end()
                )
            },
        )?;
        ensure(nodes >= self.majority, Name::WatermarkWentBack, || {
            format!(
                "node {node} counts block {} as committed, {nodes} disk(s) hold it",
                facts.block
            )
        })?;
        let chained = facts.block == 0
            || self.committed.last().map(|last| last.header_crc) == Some(facts.prev_header_crc);
        ensure(chained, Name::CommittedChanged, || {
            format!(
                "block {} does not follow the committed one before it",
                facts.block
            )
        })?;
        for batch in facts.batches.iter().filter(|batch| batch.record_count > 0) {
            self.by_offset.insert(batch.base_offset, batch.clone());
        }
        self.committed.push(Rc::clone(facts));
        Ok(())
    }

    /// A node's positions while it knows of damage: they are not held against what it said before.
    pub fn marks_beside_damage(&mut self, node: usize, marks: Marks) {
        self.marks.insert(node, marks);
        self.cutting.remove(&node);
    }

    /// A node's positions. `disk_end` is where the chain of blocks on its disk ends.
    pub fn marks_seen(&mut self, node: usize, marks: Marks, disk_end: u64) -> Checked {
        let name = Name::WatermarkWentBack;
        let before = self.marks.insert(node, marks);
        let ordered =
            marks.high_watermark <= marks.durable_end && marks.durable_end <= marks.log_end;
        ensure(ordered, name, || {
            format!("node {node}: not high watermark <= durable end <= log end: {marks:?}")
        })?;
        ensure(
            marks.durable_end <= disk_end,
            Name::AckedBeforeDurable,
            || format!("node {node}: {marks:?}, its disk holds blocks up to {disk_end}"),
        )?;
        let promised = before.map_or(0, |before| before.epoch);
        ensure(marks.epoch >= promised, name, || {
            format!("node {node}: epoch {promised} -> {}", marks.epoch)
        })?;
        let Some(before) = before.filter(|before| before.run == marks.run) else {
            return ensure(marks.durable_end == disk_end, name, || {
                format!("node {node} recovered {marks:?} where its disk has all to {disk_end}")
            });
        };
        if marks.durable_end < before.durable_end {
            self.cutting.entry(node).or_insert(before);
        }
        let cutting = self.cutting.get(&node).copied();
        let cutting = cutting.filter(|before| before.run == marks.run);
        let counted = cutting.is_none_or(|before| marks.blocks_cut > before.blocks_cut);
        ensure(
            counted || marks.durable_end <= before.durable_end,
            name,
            || format!("node {node}: durable end {cutting:?} -> {marks:?} without a cut"),
        )?;
        if counted {
            self.cutting.remove(&node);
        }
        ensure(marks.high_watermark >= before.high_watermark, name, || {
            format!("node {node}: high watermark {before:?} -> {marks:?}")
        })
    }

    /// A node answers a search for the first batch as late as `timestamp` with `offset`. `bounds`:
    /// the offset where its log began when it answered, and the one behind what it counted as
    /// committed when it was asked.
    pub fn found(&self, timestamp: u64, offset: u64, bounds: (u64, u64)) -> Checked {
        let late = |batch: &BatchFacts| batch.max_timestamp >= timestamp;
        let there = self.by_offset.get(&offset).is_some_and(late);
        // What was committed after it was asked it need not have seen.
        let end = offset.min(bounds.1);
        let mut before = self.by_offset.range(bounds.0.min(end)..end);
        let passed = before.find(|(_, batch)| late(batch));
        ensure(passed.is_none(), Name::ReadWrong, || {
            format!("a search for time {timestamp} found offset {offset} and passed {passed:?}")
        })?;
        ensure(there || offset >= bounds.1, Name::ReadWrong, || {
            format!("a search for time {timestamp} found offset {offset}, where none is as late")
        })
    }

    /// A node answers a read. `node_committed` is the offset behind what that node counts as
    /// committed; what lies below was told through `committed_seen` before.
    pub fn read_answered(&self, answer: &ReadAnswer, node_committed: u64) -> Checked {
        let wrong = |why: &str| ensure(false, Name::ReadWrong, || format!("{why}: {answer:?}"));
        let Some(batches) = &answer.batches else {
            return wrong("bytes that are no batches");
        };
        if answer.high_watermark > self.committed_offset() {
            return wrong("its high watermark is above what is committed");
        }
        if answer.level == ReadLevel::Committed && answer.next > self.committed_offset() {
            return wrong("a committed read above the high watermark");
        }
        if answer.level == ReadLevel::Committed && answer.next > node_committed {
            return wrong("a committed read above the node's own high watermark");
        }
        let mut at = None;
        for batch in batches {
            if at.is_some_and(|at| at != batch.base_offset) {
                return wrong("batches that do not follow one another");
            }
            let first = at.is_none() && batch.record_count > 0;
            if first && !(batch.base_offset..batch.end_offset()).contains(&answer.asked) {
                return wrong("the first batch does not hold the offset asked for");
            }
            if batch.record_count > 0 && self.sent_as(batch).is_none() {
                return wrong("a batch that nobody sent");
            }
            let committed = batch.end_offset() <= node_committed.min(self.committed_offset());
            let same = self.by_offset.get(&batch.base_offset) == Some(batch);
            if committed && batch.record_count > 0 && !same {
                return wrong("another batch than the committed one");
            }
            at = Some(batch.end_offset());
        }
        if at.is_some_and(|at| at != answer.next) {
            return wrong("it ends elsewhere than it says");
        }
        Ok(())
    }

    /// The append that a found batch is, if its bytes are those that were sent.
    pub(super) fn sent_as(&self, batch: &BatchFacts) -> Option<BatchId> {
        let id = batch.id?;
        let sent = self.sent.get(&id)?;
        let same = sent.digest == batch.digest && sent.record_count == batch.record_count;
        same.then_some(id)
    }
}

/// The sender's and the receiver's book of one connection: what was sent and what was granted on
/// it, once nothing is in flight.
pub fn books_agree(
    link: &str,
    sender: (CreditLimits, CreditLimits),
    receiver: (CreditLimits, CreditLimits),
) -> Checked {
    ensure(sender == receiver, Name::CreditLeak, || {
        format!("{link}: sent and granted are {sender:?}, the other end says {receiver:?}")
    })
}

/// A link's credit at rest, and what it must be.
pub fn credit_at_rest(link: &str, records: (u64, u64), bytes: (u64, u64)) -> Checked {
    let same = records.0 == records.1 && bytes.0 == bytes.1;
    ensure(same, Name::CreditLeak, || {
        format!(
            "{link}: at rest the credit is {} records, {} bytes; granted were {} and {}",
            records.0, bytes.0, records.1, bytes.1
        )
    })
}

/// Bytes of buffers that a node holds, and the bound that follows from its settings.
pub fn memory_held(node: usize, held: usize, bound: usize, when: &str) -> Checked {
    ensure(held <= bound, Name::MemoryUnbounded, || {
        format!("node {node} holds {held} bytes of buffers {when}, at most {bound} add up")
    })
}

/// Something that was to happen within some virtual time.
pub fn done_in_time(done: bool, what: impl FnOnce() -> String) -> Checked {
    ensure(done, Name::Stuck, what)
}
