//! Files: headers and checkpoints alone, and whole directories of which somebody changed bytes.
//!
//! A log of a few segments is made once. An input is a list of changes to its files: bytes, blocks
//! and headers with mended CRCs, pages from elsewhere, files cut, grown, swapped, missing or under
//! another name. Whatever is there then, recovery opens the log or says why not, serves no block
//! that fails its checks, and finds the same again.

use super::input::Input;
use super::logs::{LOG, Rig, SEGMENT_BYTES, assert_sound};
use super::mend::{self, Place};
use super::sim::content::Content;
use super::sim::disk::{Disk, DiskOptions};
use super::sim::rng::Rng;
use millrace::limits::{BLOCK_HEADER, CHECKPOINT_COPY, DISK_ALIGNMENT, SEGMENT_HEADER};
use millrace::types::{BlockNo, Epoch};
use millrace::wal::op::FileName;
use millrace::wire::batch::ClientHalf;
use millrace::wire::{checkpoint, segment};
use std::collections::BTreeMap;

/// Longest file that a change makes.
const FILE_BYTES: usize = 2 * SEGMENT_BYTES as usize;
/// Blocks of which each is asked for after a recovery.
const LOADS: u64 = 64;

/// The bytes as headers, and as changes to a log.
pub fn play(bytes: &[u8]) {
    headers(bytes);
    headers(&mend::segment(bytes));
    headers(&mend::checkpoint(bytes));
    let mut input = Input::new(bytes);
    let mut files = Files::new(input.u8());
    while !input.is_empty() {
        files.change(&mut input);
    }
    recover(&files.disk());
}

/// Headers that are taken are written as they were read.
fn headers(bytes: &[u8]) {
    if let Some(header) = segment::read(bytes) {
        let mut again = vec![0xff; SEGMENT_HEADER];
        segment::write(&mut again, &header);
        assert_eq!(again, bytes[..SEGMENT_HEADER], "{header:?}");
        let name = segment::file_name(header.base_block);
        assert_eq!(segment::base_of(&name), Some(header.base_block));
    }
    if let Some(facts) = checkpoint::read(bytes) {
        let mut again = vec![0xff; CHECKPOINT_COPY];
        checkpoint::write(&mut again, &facts);
        assert_eq!(again, bytes[..CHECKPOINT_COPY], "{facts:?}");
    }
    if let Some(base) = std::str::from_utf8(bytes).ok().and_then(segment::base_of) {
        assert_eq!(segment::file_name(base).as_bytes(), bytes);
    }
}

/// What recovery finds on a disk, and then again.
fn recover(disk: &Disk) {
    let mut rng = Rng::new(1);
    let first = Rig::start(disk.clone());
    let Some(found) = first.recovered.clone() else {
        // Refused: nothing was changed, so the next start refuses too.
        let again = Rig::start(first.disk.kill(&mut rng));
        assert_eq!(again.refused, first.refused);
        return;
    };
    assert!(found.log_start.block <= found.log_end, "{found:?}");
    let after = first.disk.kill(&mut rng);
    let mut second = Rig::start(after);
    let again = second.recovered.clone();
    let Some(mut again) = again else {
        panic!("first {found:?}, then {:?}", second.refused);
    };
    assert_eq!(again.torn, None, "a torn tail is reported once");
    again.torn = found.torn;
    assert!(
        again.rewritten.is_empty(),
        "what is written anew is so once"
    );
    again.rewritten = found.rewritten.clone();
    assert_eq!(again, found, "a second recovery finds the same");
    serve(&mut second);
    if second.failed.is_none() {
        let disk = second.stop().kill(&mut rng);
        let third = Rig::start(disk);
        let again = third.recovered.expect("it opened before a clean stop");
        assert_eq!((again.torn, again.log_end), (None, found.log_end));
    }
}

/// Every block that is served is sound, and chained to the one before it where recovery read the
/// log. Below, in files that the checkpoint vouches for, a forger of CRCs may do as he likes.
fn serve(rig: &mut Rig) {
    let (start, end) = (rig.log.log_start().block.0, rig.log.log_end().0);
    let scanned = rig.log.checkpoint().scan_from.0;
    let mut before = None;
    for block in (start..end).take(LOADS as usize) {
        let Some((header, bytes)) = rig.load(BlockNo(block)) else {
            before = None;
            continue;
        };
        assert_sound(&header, &bytes);
        assert_eq!(header.block, BlockNo(block));
        if let Some(crc) = before.filter(|_| block > scanned) {
            assert_eq!(header.prev_header_crc, crc, "{header:?}");
        }
        before = Some(header.header_crc);
    }
}

/// The log that changes are made to: `committed` of its blocks, out of eighteen in three files.
fn original(clean: bool) -> Disk {
    let mut rig = Rig::start(Disk::new(DiskOptions::sound(SEGMENT_BYTES), 1));
    rig.create();
    for number in 0..18_u32 {
        let half = ClientHalf {
            record_count: 1 + number % 3,
            stored_len: 300 + 900 * (number % 9),
            max_timestamp: 1000 + u64::from(number),
            producer_id: u64::from(1 + number % 2),
            base_sequence: (number / 2) * 2,
            ..ClientHalf::default()
        };
        rig.append(Epoch(1 + number / 7), &half);
        if number == 9 {
            rig.log.note_committed(BlockNo(5));
        }
    }
    let disk = if clean { rig.stop() } else { rig.disk };
    disk.kill(&mut Rng::new(1))
}

thread_local! {
    static ORIGINALS: [Disk; 2] = [original(false), original(true)];
}

/// The directory, with the files that were changed as bytes.
struct Files {
    disk: Disk,
    changed: BTreeMap<FileName, Option<Vec<u8>>>,
}

impl Files {
    fn new(which: u8) -> Files {
        Files {
            disk: ORIGINALS.with(|disks| disks[usize::from(which % 2)].clone()),
            changed: BTreeMap::new(),
        }
    }

    fn disk(self) -> Disk {
        let mut disk = self.disk;
        for (name, bytes) in self.changed {
            let content = bytes.map(|bytes| {
                let mut content = Content::zeros(bytes.len() as u64);
                content.write_durably(0, &bytes);
                content
            });
            disk.put_file(name, content);
        }
        disk.kill(&mut Rng::new(1))
    }

    fn names(&self) -> Vec<FileName> {
        let mut names: Vec<_> = self.disk.files().iter().map(|file| file.name).collect();
        names.extend(self.changed.keys());
        names.sort();
        names.dedup();
        names.retain(|name| !matches!(self.changed.get(name), Some(None)));
        names
    }

    fn pick(&self, input: &mut Input<'_>) -> FileName {
        let names = self.names();
        names[usize::from(input.u8()) % names.len()]
    }

    /// A segment, if there is one.
    fn pick_segment(&self, input: &mut Input<'_>) -> FileName {
        let mut names = self.names();
        if names.len() > 1 {
            names.retain(|name| *name != FileName::Checkpoint);
        }
        names[usize::from(input.u8()) % names.len()]
    }

    fn bytes(&mut self, name: FileName) -> &mut Vec<u8> {
        let disk = &self.disk;
        let read = || disk.content(name).map(|pages| pages.read(0, FILE_BYTES));
        let bytes = self.changed.entry(name).or_insert_with(read);
        bytes.get_or_insert_default()
    }

    /// The bytes from a page of a file on.
    fn page(&mut self, name: FileName, page: u8) -> &mut [u8] {
        let bytes = self.bytes(name);
        let pages = (bytes.len() / DISK_ALIGNMENT).max(1);
        let at = usize::from(page) % pages * DISK_ALIGNMENT;
        let len = bytes.len();
        &mut bytes[at.min(len)..]
    }

    fn change(&mut self, input: &mut Input<'_>) {
        match input.u8() % 14 {
            0 => self.write(input),
            1 => self.edit_header(input),
            2 => self.edit_block(input),
            3 => self.new_block(input),
            4 | 5 => self.copy_page(input),
            6 => self.swap(input),
            7 => self.resize(input),
            8 => {
                let name = self.pick_segment(input);
                if name != FileName::Checkpoint {
                    self.changed.insert(name, None);
                }
            }
            9 => {
                let name = self.pick(input);
                let page = self.page(name, input.u8());
                let len = page.len().min(DISK_ALIGNMENT);
                page[..len].fill(0);
            }
            10 | 11 => self.edit_checkpoint(input),
            12 => self.edit_segment_header(input),
            _ => self.copy_file(input),
        }
    }

    /// Some bytes anywhere.
    fn write(&mut self, input: &mut Input<'_>) {
        let name = self.pick(input);
        let page = self.page(name, input.u8());
        let at = usize::from(input.u16()) % DISK_ALIGNMENT;
        lay(page, at, input.run());
    }

    /// Some bytes of a block's header, its CRC mended.
    fn edit_header(&mut self, input: &mut Input<'_>) {
        let name = self.pick_segment(input);
        let page = self.page(name, input.u8());
        let at = usize::from(input.u8()) % BLOCK_HEADER;
        if let Some(header) = page.get_mut(..BLOCK_HEADER) {
            lay(header, at, input.run());
            let crc = millrace::wire::crc_with_zeroed(header, 8);
            mend::put(header, 8, &crc.to_le_bytes());
        }
    }

    /// Some bytes of a block, every CRC of it mended.
    fn edit_block(&mut self, input: &mut Input<'_>) {
        let name = self.pick_segment(input);
        let page = self.page(name, input.u8());
        let at = usize::from(input.u16());
        if page.len() < DISK_ALIGNMENT {
            return;
        }
        let used = (mend::u32_at(page, 20) as usize).clamp(2 * BLOCK_HEADER, page.len());
        lay(&mut page[..used], at % used, input.run());
        let mended = mend::block(&page[..used]);
        page[..used].copy_from_slice(&mended);
    }

    /// A block of the input's that fits its place but for what the input says.
    fn new_block(&mut self, input: &mut Input<'_>) {
        let name = self.pick_segment(input);
        let page = self.page(name, input.u8());
        let place = Place {
            log: LOG,
            epoch: u32::from(input.u8()),
            block: u64::from(input.u8()),
            prev_crc: input.u32(),
            base_offset: u64::from(input.u8()),
            last_tick: 1_000_000 + u64::from(input.u16()),
        };
        let block = mend::sums(input.run(), &place);
        lay(page, 0, &block);
    }

    fn copy_page(&mut self, input: &mut Input<'_>) {
        let from = self.pick(input);
        let page = self.page(from, input.u8());
        let len = page
            .len()
            .min(DISK_ALIGNMENT * (1 + usize::from(input.u8() % 4)));
        let copy = page[..len].to_vec();
        let to = self.pick(input);
        lay(self.page(to, input.u8()), 0, &copy);
    }

    fn swap(&mut self, input: &mut Input<'_>) {
        let (one, other) = (self.pick_segment(input), self.pick_segment(input));
        if one != FileName::Checkpoint && other != FileName::Checkpoint {
            let taken = self.bytes(one).clone();
            let other = std::mem::replace(self.bytes(other), taken);
            *self.bytes(one) = other;
        }
    }

    fn resize(&mut self, input: &mut Input<'_>) {
        let name = self.pick_segment(input);
        if name != FileName::Checkpoint {
            let len = usize::from(input.u8()) * DISK_ALIGNMENT;
            self.bytes(name).resize(len.min(FILE_BYTES), 0);
        }
    }

    /// Some bytes of one copy of the checkpoint, or of both, its CRC mended.
    fn edit_checkpoint(&mut self, input: &mut Input<'_>) {
        let which = input.u8();
        let at = usize::from(input.u16()) % CHECKPOINT_COPY;
        let run = input.run();
        let bytes = self.bytes(FileName::Checkpoint);
        for (copy, bytes) in bytes.chunks_exact_mut(CHECKPOINT_COPY).take(2).enumerate() {
            if which % 3 != copy as u8 {
                lay(bytes, at, run);
                let mended = mend::checkpoint(bytes);
                bytes.copy_from_slice(&mended);
            }
        }
    }

    fn edit_segment_header(&mut self, input: &mut Input<'_>) {
        let name = self.pick_segment(input);
        let page = self.page(name, 0);
        let at = usize::from(input.u8() % 44);
        if let Some(header) = page.get_mut(..SEGMENT_HEADER) {
            lay(header, at, input.run());
            let mended = mend::segment(header);
            header.copy_from_slice(&mended);
        }
    }

    fn copy_file(&mut self, input: &mut Input<'_>) {
        let from = self.pick_segment(input);
        let name = match input.u8() {
            0xff => FileName::Next,
            base => FileName::Segment(BlockNo(u64::from(base))),
        };
        let copy = self.bytes(from).clone();
        *self.bytes(name) = copy;
    }
}

/// Lays bytes over others, as far as they go.
fn lay(over: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(over) = over.get_mut(at..) {
        let len = bytes.len().min(over.len());
        over[..len].copy_from_slice(&bytes[..len]);
    }
}
