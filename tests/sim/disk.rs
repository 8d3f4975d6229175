//! The disk of one log, simulated: the directory behind the seam of `millrace::wal::op`.
//!
//! Operations are submitted, stay in flight, and complete in any order that the caller likes. A
//! completed operation is durable, one in flight may have happened or not: [`Disk::crash`] makes a
//! disk after a loss of power of it, [`Disk::kill`] one after the death of the process, where what
//! was in flight may be seen by a reader and still be lost later. Faults are drawn from
//! [`DiskOptions`] or set for one operation with [`Disk::inject`]. Breaking the seam's contract
//! (unaligned or overlapping writes, a file that is not open, a file freed in use) is a bug of the
//! core and panics. A write past the end of a segment makes it longer.
//!
//! A use: `submit(op, &mut buffers)` returns the latency drawn for it; the caller's clock decides
//! when to call `complete(ticket, &mut buffers)`, whose answer goes to the core. A copy of a disk
//! is cheap. Read `content.rs` for the bytes, `disk_crash.rs` for the states after a crash.

use super::buffers::SimBuffers;
use super::content::{Content, Pages, sectors};
pub use super::disk_options::{DiskCounts, DiskFault, DiskOptions};
use super::rng::{Chance, Rng};
use millrace::buffers::Buffers as _;
use millrace::limits::{CHECKPOINT_COPY, DISK_ALIGNMENT, SECTOR};
use millrace::types::{BlockNo, FileId, Ticket};
use millrace::wal::op::{CHECKPOINT_FILE, DiskError, DiskOp, DiskResult, FileEntry, FileName};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// EIO.
pub const EIO: DiskError = DiskError::Errno(5);

/// Bytes of the checkpoint file.
const CHECKPOINT_BYTES: u64 = 2 * CHECKPOINT_COPY as u64;

/// Names a file apart from its name and its open id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Node(u64);

/// An operation that has not completed.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub(super) op: DiskOp,
    /// The file it works on; the new file of a `Provide`.
    pub(super) node: Node,
    /// The bytes of a write.
    pub(super) bytes: Rc<[u8]>,
    /// Sectors that a sync will make durable: those that were dirty when it began.
    dirty: BTreeSet<u64>,
    fault: Option<DiskFault>,
}

/// A change of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameChange {
    Link(FileName, Node),
    /// From, to, and which file.
    Rename(FileName, FileName, Node),
    Unlink(FileName),
}

/// The directory of one log.
#[derive(Clone, Debug)]
pub struct Disk {
    pub(super) options: DiskOptions,
    pub(super) rng: Rng,
    pub(super) nodes: BTreeMap<Node, Content>,
    pub(super) names: BTreeMap<FileName, Node>,
    pub(super) durable_names: BTreeMap<FileName, Node>,
    /// Changes that `names` shows and `durable_names` does not, oldest first.
    pub(super) late_names: Vec<NameChange>,
    pub(super) open: BTreeMap<FileId, Node>,
    pub(super) in_flight: Vec<InFlight>,
    /// Faults to come: after so many more writes to segments.
    pub(super) injected: Vec<(u64, DiskFault)>,
    next_node: u64,
    counts: DiskCounts,
}

impl Disk {
    /// An empty directory with a zeroed checkpoint. `seed` is that of the faults and latencies.
    pub fn new(options: DiskOptions, seed: u64) -> Disk {
        let node = Node(0);
        let names = BTreeMap::from([(FileName::Checkpoint, node)]);
        Disk {
            options,
            rng: Rng::new(seed),
            nodes: BTreeMap::from([(node, Content::zeros(CHECKPOINT_BYTES))]),
            durable_names: names.clone(),
            names,
            late_names: Vec::new(),
            open: BTreeMap::from([(CHECKPOINT_FILE, node)]),
            in_flight: Vec::new(),
            injected: Vec::new(),
            next_node: 1,
            counts: DiskCounts::default(),
        }
    }

    /// How it behaves; may be changed at any time.
    pub fn options_mut(&mut self) -> &mut DiskOptions {
        &mut self.options
    }

    /// What was submitted so far. A crash does not reset it.
    pub fn counts(&self) -> DiskCounts {
        self.counts
    }

    /// The files a starting log finds.
    pub fn files(&self) -> Vec<FileEntry> {
        self.entries(&self.names)
    }

    /// The files that a loss of power surely leaves.
    pub fn durable_files(&self) -> Vec<FileEntry> {
        self.entries(&self.durable_names)
    }

    fn entries(&self, names: &BTreeMap<FileName, Node>) -> Vec<FileEntry> {
        let entry = |(name, node): (&FileName, &Node)| FileEntry {
            name: *name,
            len: self.nodes[node].current().len(),
        };
        names.iter().map(entry).collect()
    }

    /// What a reader of this file sees.
    pub fn content(&self, name: FileName) -> Option<&Pages> {
        let node = self.names.get(&name)?;
        Some(self.nodes[node].current())
    }

    /// What a loss of power surely leaves of this file.
    pub fn durable_content(&self, name: FileName) -> Option<&Pages> {
        let node = self.durable_names.get(&name)?;
        Some(self.nodes[node].durable())
    }

    /// Operations in flight, oldest first.
    pub fn in_flight(&self) -> impl ExactSizeIterator<Item = &DiskOp> {
        self.in_flight.iter().map(|entry| &entry.op)
    }

    /// The write to a segment that follows `writes` more of them gets this fault.
    pub fn inject(&mut self, writes: u64, fault: DiskFault) {
        self.injected.push((writes, fault));
    }

    /// Faults set with `inject` that have not happened do not happen any more.
    pub fn forget_injected(&mut self) {
        self.injected.clear();
    }

    /// Inverts a bit of a file, if it is there and long enough: the medium rots.
    pub fn flip_bit(&mut self, name: FileName, position: u64, bit: u8) -> bool {
        let Some(node) = self.names.get(&name) else {
            return false;
        };
        let content = self.nodes.get_mut(node).expect("named files are kept");
        if position >= content.current().len() {
            return false;
        }
        content.flip_bit(position, bit);
        true
    }

    /// Overwrites whole pages of a file durably, as somebody else than the log would.
    pub fn overwrite(&mut self, name: FileName, position: u64, bytes: &[u8]) {
        let node = self.names[&name];
        let content = self.nodes.get_mut(&node).expect("named files are kept");
        content.write_durably(position, bytes);
    }

    /// Puts a file there durably, as somebody else than the log would, or takes it away.
    pub fn put_file(&mut self, name: FileName, content: Option<Content>) {
        self.names.remove(&name);
        if let Some(content) = content {
            self.nodes.insert(Node(self.next_node), content);
            self.names.insert(name, Node(self.next_node));
            self.next_node += 1;
        }
        self.durable_names = self.names.clone();
    }

    /// A replaced disk: everything is gone, the checkpoint is zeroed. Only for a stopped log.
    pub fn lose_everything(&mut self) {
        let fresh = Disk::new(self.options.clone(), self.rng.next_u64());
        let counts = self.counts;
        *self = fresh;
        self.counts = counts;
    }

    /// Takes an operation. Returns how long it takes, in microseconds of the caller's clock.
    pub fn submit(&mut self, op: DiskOp, buffers: &mut SimBuffers) -> u64 {
        let ticket = op.ticket();
        assert!(
            self.in_flight().all(|other| other.ticket() != ticket),
            "{ticket:?} is in flight already"
        );
        let node = self.node_of(&op);
        self.check(&op, node);
        self.count(&op);
        let (bytes, dirty) = self.begin(&op, node, buffers);
        let fault = self.draw_fault(&op);
        self.in_flight.push(InFlight {
            op,
            node,
            bytes,
            dirty,
            fault,
        });
        if self.rng.happens(self.options.slow) {
            return self.options.slow_us;
        }
        let (shortest, longest) = self.options.latency_us;
        self.rng.between(shortest, longest)
    }

    /// Ends the operation with this ticket: its effect is there and durable, or it failed.
    pub fn complete(&mut self, ticket: Ticket, buffers: &mut SimBuffers) -> (Ticket, DiskResult) {
        let index = self
            .in_flight
            .iter()
            .position(|entry| entry.op.ticket() == ticket);
        let entry = self
            .in_flight
            .remove(index.expect("the operation is in flight"));
        let result = self.end(&entry, buffers);
        (ticket, result)
    }

    /// Ends one operation of those in flight, whichever; none if there is none.
    pub fn complete_any(
        &mut self,
        rng: &mut Rng,
        buffers: &mut SimBuffers,
    ) -> Option<(Ticket, DiskResult)> {
        if self.in_flight.is_empty() {
            return None;
        }
        let ticket = self.in_flight[rng.index(self.in_flight.len())].op.ticket();
        Some(self.complete(ticket, buffers))
    }

    fn node_of(&mut self, op: &DiskOp) -> Node {
        match *op {
            DiskOp::Provide { .. } => {
                let node = Node(self.next_node);
                self.next_node += 1;
                node
            }
            DiskOp::Open { name, .. } => self.names.get(&name).copied().unwrap_or(Node(u64::MAX)),
            DiskOp::SyncDirectory { .. } => Node(u64::MAX),
            DiskOp::Name { file, .. }
            | DiskOp::Free { file, .. }
            | DiskOp::Write { file, .. }
            | DiskOp::Read { file, .. }
            | DiskOp::Sync { file, .. } => {
                let node = self.open.get(&file);
                *node.unwrap_or_else(|| panic!("{op:?}: the file is not open"))
            }
        }
    }

    /// The contract of the seam.
    fn check(&self, op: &DiskOp, node: Node) {
        let busy = || self.in_flight.iter().any(|other| other.node == node);
        match *op {
            DiskOp::Open { file, name, .. } => {
                assert!(self.names.contains_key(&name), "{op:?}: no such file");
                self.assert_unused(op, file);
            }
            DiskOp::Provide { file, .. } => {
                let coming = self
                    .in_flight()
                    .any(|other| matches!(other, DiskOp::Provide { .. } | DiskOp::Name { .. }));
                let there = self.names.contains_key(&FileName::Next);
                assert!(!there && !coming, "{op:?}: there is a next.seg");
                self.assert_unused(op, file);
            }
            DiskOp::Name { base, .. } => {
                let next = self.names.get(&FileName::Next) == Some(&node);
                assert!(next, "{op:?}: the file is not next.seg");
                let taken = self.names.contains_key(&FileName::Segment(base));
                assert!(!taken, "{op:?}: the name is taken");
            }
            DiskOp::Free { .. } => assert!(!busy(), "{op:?}: the file is in use"),
            DiskOp::Write { position, len, .. } => {
                let end = position + len as u64;
                let is_segment = node != Node(0);
                assert!(
                    is_segment || end <= CHECKPOINT_BYTES,
                    "{op:?}: past the end"
                );
                let aligned = position.is_multiple_of(DISK_ALIGNMENT as u64)
                    && len.is_multiple_of(DISK_ALIGNMENT)
                    && len > 0;
                assert!(aligned, "{op:?}: not aligned");
                for other in &self.in_flight {
                    if let DiskOp::Write {
                        position: at,
                        len: other_len,
                        ..
                    } = other.op
                    {
                        let apart = end <= at || at + other_len as u64 <= position;
                        assert!(
                            other.node != node || apart,
                            "{op:?} overlaps {:?}",
                            other.op
                        );
                    }
                }
            }
            DiskOp::Read { position, len, .. } => {
                let aligned = position.is_multiple_of(DISK_ALIGNMENT as u64)
                    && len.is_multiple_of(DISK_ALIGNMENT)
                    && len > 0;
                assert!(aligned, "{op:?}: not aligned");
            }
            DiskOp::Sync { .. } | DiskOp::SyncDirectory { .. } => {}
        }
    }

    fn assert_unused(&self, op: &DiskOp, file: FileId) {
        let coming = self.in_flight().any(|other| match *other {
            DiskOp::Open { file: id, .. } | DiskOp::Provide { file: id, .. } => id == file,
            _ => false,
        });
        assert!(
            !coming && !self.open.contains_key(&file),
            "{op:?}: the id is in use"
        );
    }

    fn count(&mut self, op: &DiskOp) {
        let counts = &mut self.counts;
        let counter = match op {
            DiskOp::Open { .. } => &mut counts.open,
            DiskOp::Provide { .. } => &mut counts.provide,
            DiskOp::Name { .. } => &mut counts.name,
            DiskOp::Free { .. } => &mut counts.free,
            DiskOp::Write { file, .. } if *file == CHECKPOINT_FILE => &mut counts.checkpoint,
            DiskOp::Write { .. } => &mut counts.write,
            DiskOp::Read { .. } => &mut counts.read,
            DiskOp::Sync { .. } | DiskOp::SyncDirectory { .. } => &mut counts.sync,
        };
        *counter += 1;
    }

    fn begin(
        &mut self,
        op: &DiskOp,
        node: Node,
        buffers: &mut SimBuffers,
    ) -> (Rc<[u8]>, BTreeSet<u64>) {
        match *op {
            DiskOp::Write {
                buffer, start, len, ..
            } => {
                buffers.hold(buffer);
                assert!(start.is_multiple_of(DISK_ALIGNMENT), "{op:?}: not aligned");
                let bytes = buffers.held_bytes(buffer)[start..start + len].into();
                (bytes, BTreeSet::new())
            }
            DiskOp::Read { buffer, len, .. } => {
                assert!(
                    len <= buffers.bytes(buffer).len(),
                    "{op:?}: the buffer is too small"
                );
                buffers.hold_to_fill(buffer);
                (Rc::new([]), BTreeSet::new())
            }
            DiskOp::Sync { .. } => (Rc::new([]), self.nodes[&node].dirty().clone()),
            DiskOp::Provide { .. } => {
                self.nodes
                    .insert(node, Content::zeros(self.options.segment_bytes));
                (Rc::new([]), BTreeSet::new())
            }
            _ => (Rc::new([]), BTreeSet::new()),
        }
    }

    fn draw_fault(&mut self, op: &DiskOp) -> Option<DiskFault> {
        let options = &self.options;
        let (short, error, no_space) = match op {
            DiskOp::Write { .. } => (options.short_write, options.write_error, options.no_space),
            DiskOp::Provide { .. } => (Chance::NEVER, options.write_error, options.no_space),
            DiskOp::Read { .. } => (Chance::NEVER, options.read_error, Chance::NEVER),
            DiskOp::Open { .. } => (Chance::NEVER, Chance::NEVER, Chance::NEVER),
            _ => (Chance::NEVER, options.write_error, Chance::NEVER),
        };
        let mut fault = None;
        for (chance, kind) in [
            (no_space, DiskFault::NoSpace),
            (error, DiskFault::Error),
            (short, DiskFault::Short),
        ] {
            if self.rng.happens(chance) {
                fault = Some(kind);
            }
        }
        if matches!(op, DiskOp::Provide { .. }) && self.options.full {
            fault = Some(DiskFault::NoSpace);
        }
        if matches!(op, DiskOp::Write { file, .. } if *file != CHECKPOINT_FILE) {
            let due = self.injected.iter().position(|(writes, _)| *writes == 0);
            fault = due.map(|index| self.injected.remove(index).1).or(fault);
            for (writes, _) in &mut self.injected {
                *writes = writes.saturating_sub(1);
            }
        }
        self.counts.faults += u64::from(fault.is_some());
        fault
    }

    fn end(&mut self, entry: &InFlight, buffers: &mut SimBuffers) -> DiskResult {
        match entry.op {
            DiskOp::Write { buffer, .. } => {
                buffers.unhold(buffer);
                self.end_write(entry)
            }
            DiskOp::Read {
                buffer,
                position,
                len,
                ..
            } => {
                let bytes = self.read(entry, position, len);
                buffers.fill(buffer, bytes.as_deref().unwrap_or(&[]));
                bytes.map(|bytes| bytes.len())
            }
            DiskOp::Sync { .. } => {
                failed(entry.fault)?;
                let content = self
                    .nodes
                    .get_mut(&entry.node)
                    .expect("open files are kept");
                content.make_durable(&entry.dirty);
                Ok(0)
            }
            DiskOp::Open { file, .. } => {
                failed(entry.fault)?;
                self.open.insert(file, entry.node);
                Ok(0)
            }
            DiskOp::SyncDirectory { .. } => {
                failed(entry.fault)?;
                self.sync_names();
                Ok(0)
            }
            DiskOp::Provide { file, .. } => {
                self.end_name_change(entry)?;
                self.open.insert(file, entry.node);
                Ok(0)
            }
            DiskOp::Name { .. } => self.end_name_change(entry),
            DiskOp::Free { file, .. } => {
                self.end_name_change(entry)?;
                self.open.remove(&file);
                Ok(0)
            }
        }
    }

    fn end_write(&mut self, entry: &InFlight) -> DiskResult {
        let DiskOp::Write { position, .. } = entry.op else {
            unreachable!("only writes end here");
        };
        let content = self
            .nodes
            .get_mut(&entry.node)
            .expect("open files are kept");
        match entry.fault {
            None => {
                content.write_durably(position, &entry.bytes);
                Ok(entry.bytes.len())
            }
            Some(DiskFault::Short) => {
                let whole = (entry.bytes.len() / SECTOR) as u64;
                let written = self.rng.below(whole) as usize * SECTOR;
                content.write_durably(position, &entry.bytes[..written]);
                Ok(written)
            }
            Some(DiskFault::Error) => {
                for (sector, bytes) in sectors(position, &entry.bytes) {
                    if self.rng.flip() {
                        content.write_dirty(sector, bytes);
                    }
                }
                Err(EIO)
            }
            Some(DiskFault::NoSpace) => Err(DiskError::NoSpace),
        }
    }

    /// A read sees a write that is in flight in part, wherever both meet.
    fn read(&mut self, entry: &InFlight, position: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        failed(entry.fault)?;
        let mut bytes = self.nodes[&entry.node].current().read(position, len);
        let end = position + bytes.len() as u64;
        for other in self
            .in_flight
            .iter()
            .filter(|other| other.node == entry.node)
        {
            let DiskOp::Write { position: at, .. } = other.op else {
                continue;
            };
            for (sector, part) in sectors(at, &other.bytes) {
                let start = sector * SECTOR as u64;
                if start >= position && start < end && self.rng.flip() {
                    let from = (start - position) as usize;
                    bytes[from..from + SECTOR].copy_from_slice(part);
                }
            }
        }
        Ok(bytes)
    }

    fn end_name_change(&mut self, entry: &InFlight) -> DiskResult {
        let change = self
            .name_change(entry)
            .expect("the operation changes a name");
        match entry.fault {
            Some(DiskFault::NoSpace) => return Err(DiskError::NoSpace),
            Some(_) => {
                if self.rng.flip() {
                    change.apply(&mut self.names);
                    self.late_names.push(change);
                }
                return Err(EIO);
            }
            None => {}
        }
        change.apply(&mut self.names);
        self.sync_names();
        Ok(0)
    }

    pub(super) fn sync_names(&mut self) {
        self.durable_names = self.names.clone();
        self.late_names.clear();
        let named: BTreeSet<Node> = self.names.values().copied().collect();
        let open: BTreeSet<Node> = self.open.values().copied().collect();
        let busy: BTreeSet<Node> = self.in_flight.iter().map(|entry| entry.node).collect();
        self.nodes
            .retain(|node, _| named.contains(node) || open.contains(node) || busy.contains(node));
    }

    /// How an operation changes the directory, if it does.
    pub(super) fn name_change(&self, entry: &InFlight) -> Option<NameChange> {
        match entry.op {
            DiskOp::Provide { .. } => Some(NameChange::Link(FileName::Next, entry.node)),
            DiskOp::Name { base, .. } => Some(NameChange::Rename(
                FileName::Next,
                FileName::Segment(base),
                entry.node,
            )),
            DiskOp::Free { .. } => {
                let named = self.names.iter().find(|(_, node)| **node == entry.node);
                named.map(|(name, _)| NameChange::Unlink(*name))
            }
            _ => None,
        }
    }

    /// The segment files, by first block, with what a reader sees of them.
    pub fn segments(&self) -> impl Iterator<Item = (BlockNo, &Pages)> {
        self.names.iter().filter_map(|(name, node)| match name {
            FileName::Segment(base) => Some((*base, self.nodes[node].current())),
            FileName::Checkpoint | FileName::Next => None,
        })
    }
}

impl NameChange {
    /// Applies it, where it can be applied.
    pub(super) fn apply(self, names: &mut BTreeMap<FileName, Node>) {
        match self {
            NameChange::Link(name, node) => {
                names.entry(name).or_insert(node);
            }
            NameChange::Rename(from, to, node) => {
                if names.get(&from) == Some(&node) {
                    names.remove(&from);
                    names.insert(to, node);
                }
            }
            NameChange::Unlink(name) => {
                names.remove(&name);
            }
        }
    }
}

fn failed(fault: Option<DiskFault>) -> Result<(), DiskError> {
    match fault {
        None => Ok(()),
        Some(_) => Err(EIO),
    }
}
