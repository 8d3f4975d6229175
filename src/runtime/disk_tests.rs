//! The disk of a core on a real file system, through a real ring, without an executor.
//!
//! The test thread plays the tasks: it carries out requests itself and asks the ring until it
//! answers.

use super::*;
use crate::shard::FileEntry;
use crate::types::BlockNo;
use std::path::Path;
use std::time::{Duration, Instant};

const SEGMENT: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

struct Rig {
    disk: Disk,
    pool: Pool,
    place: Place,
    found: Vec<FileEntry>,
    last_ticket: u64,
    directory: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let executable = std::env::current_exe().unwrap();
        let below = executable.parent().unwrap();
        Rig::at(tempfile::tempdir_in(below).unwrap())
    }

    fn at(directory: tempfile::TempDir) -> Rig {
        let place = Place {
            directory: directory.path().join("7-0"),
            dsync: true,
        };
        let found = place.prepare().unwrap();
        let spares = Spares::open(&directory.path().join("spare"), SEGMENT, 1).unwrap();
        let lock = std::fs::File::open(directory.path()).unwrap();
        let (ring, _eventfd) = Ring::new(8, &[0], lock.as_raw_fd()).unwrap();
        let mut disk = Disk::new(ring, Arc::new(spares));
        let checkpoint = place.path(FileName::Checkpoint);
        let checkpoint = crate::runtime::files::open_direct(&checkpoint, false, true).unwrap();
        disk.add_log(place.clone(), checkpoint);
        Rig {
            disk,
            pool: Pool::new(64 << 20),
            place,
            found,
            last_ticket: 0,
            directory,
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }

    fn start(&mut self, operation: DiskOp) {
        self.disk.start(0, operation, &mut self.pool);
        self.disk.submit();
    }

    /// The next operation that ends, by its ticket.
    fn ended(&mut self) -> (Ticket, DiskResult) {
        let until = Instant::now() + PATIENCE;
        loop {
            let request = self.disk.requests().queue.borrow_mut().pop_front();
            if let Some(request) = request {
                let done = self.disk.finished(request.carry_out());
                return (done.ticket, done.result);
            }
            if let Some(done) = self.disk.completed(&mut self.pool) {
                assert_eq!(done.log, 0);
                return (done.ticket, done.result);
            }
            assert!(Instant::now() < until, "the disk does not answer");
            std::thread::sleep(Duration::from_micros(100));
            self.disk.submit();
        }
    }

    fn run(&mut self, operation: DiskOp) -> DiskResult {
        let ticket = operation.ticket();
        self.start(operation);
        let (ended, result) = self.ended();
        assert_eq!(ended, ticket);
        result
    }

    fn write(
        &mut self,
        file: FileId,
        position: u64,
        buffer: BufferId,
        (start, len): (usize, usize),
    ) {
        let ticket = self.ticket();
        let operation = DiskOp::Write {
            ticket,
            file,
            position,
            buffer,
            start,
            len,
        };
        assert_eq!(self.run(operation), Ok(len));
    }

    fn read(&mut self, file: FileId, position: u64, len: usize) -> (DiskResult, Vec<u8>) {
        let (ticket, buffer) = (self.ticket(), self.pool.take(len).unwrap());
        let operation = DiskOp::Read {
            ticket,
            file,
            position,
            buffer,
            len,
        };
        let result = self.run(operation);
        let bytes = self.pool.bytes(buffer)[..len].to_vec();
        self.pool.release(buffer);
        (result, bytes)
    }

    fn provide(&mut self, file: FileId) {
        let ticket = self.ticket();
        assert_eq!(self.run(DiskOp::Provide { ticket, file }), Ok(0));
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_new_log_has_a_checkpoint_of_zeros() {
    let mut rig = Rig::new();
    let names: Vec<FileName> = rig.found.iter().map(|entry| entry.name).collect();
    assert_eq!(names, [FileName::Checkpoint]);
    assert_eq!(rig.found[0].len, 8192);
    assert_eq!(
        rig.read(CHECKPOINT_FILE, 4096, 4096),
        (Ok(4096), vec![0; 4096])
    );
}

#[test]
fn part_of_a_buffer_goes_to_the_disk_and_comes_back() {
    let mut rig = Rig::new();
    rig.provide(FileId(1));
    let buffer = rig.pool.take(16_384).unwrap();
    for (index, byte) in rig.pool.bytes_mut(buffer).iter_mut().enumerate() {
        *byte = (index / 4096 + 1) as u8;
    }
    rig.write(FileId(1), 8192, buffer, (4096, 8192));
    let (result, bytes) = rig.read(FileId(1), 4096, 16_384);
    assert_eq!(result, Ok(16_384));
    let firsts: Vec<u8> = bytes.chunks(4096).map(|page| page[0]).collect();
    assert_eq!(firsts, [0, 2, 3, 0]);
    // The operation has ended: the bytes may change again.
    rig.pool.bytes_mut(buffer)[0] = 9;
}

#[test]
fn a_read_past_the_end_is_short_and_says_so() {
    let mut rig = Rig::new();
    rig.provide(FileId(1));
    let (result, _) = rig.read(FileId(1), SEGMENT - 4096, 8192);
    assert_eq!(result, Ok(4096));
}

#[test]
fn files_are_named_freed_and_found_again() {
    let mut rig = Rig::new();
    rig.provide(FileId(1));
    let ticket = rig.ticket();
    let (file, base) = (FileId(1), BlockNo(0));
    assert_eq!(rig.run(DiskOp::Name { ticket, file, base }), Ok(0));
    rig.provide(FileId(2));
    let segment = format!("{:020}.seg", 0);
    let all = ["checkpoint", "next.seg", &segment];
    let mut sorted = all.to_vec();
    sorted.sort_unstable();
    assert_eq!(names(&rig.place.directory), sorted);

    // After a restart they are what recovery is told of.
    let Rig {
        directory, disk, ..
    } = rig;
    drop(disk);
    let mut rig = Rig::at(directory);
    let found: Vec<FileName> = rig.found.iter().map(|entry| entry.name).collect();
    assert_eq!(
        found,
        [
            FileName::Checkpoint,
            FileName::Next,
            FileName::Segment(BlockNo(0))
        ]
    );

    let (ticket, file, name) = (rig.ticket(), FileId(5), FileName::Segment(BlockNo(0)));
    assert_eq!(rig.run(DiskOp::Open { ticket, file, name }), Ok(0));
    let ticket = rig.ticket();
    assert_eq!(rig.run(DiskOp::Sync { ticket, file }), Ok(0));
    let ticket = rig.ticket();
    assert_eq!(rig.run(DiskOp::Free { ticket, file }), Ok(0));
    let ticket = rig.ticket();
    assert_eq!(rig.run(DiskOp::SyncDirectory { ticket }), Ok(0));
    assert_eq!(names(&rig.place.directory), ["checkpoint", "next.seg"]);
    assert_eq!(names(&rig.directory.path().join("spare")).len(), 1);
}

#[test]
fn what_is_not_there_is_an_errno() {
    let mut rig = Rig::new();
    let (ticket, file, name) = (rig.ticket(), FileId(1), FileName::Next);
    let result = rig.run(DiskOp::Open { ticket, file, name });
    assert_eq!(result, Err(DiskError::Errno(libc::ENOENT)));
}

#[test]
fn more_operations_than_the_ring_holds_all_end() {
    let mut rig = Rig::new();
    rig.provide(FileId(1));
    let buffer = rig.pool.take(4096).unwrap();
    let count = 100;
    for index in 0..count {
        let operation = DiskOp::Write {
            ticket: rig.ticket(),
            file: FileId(1),
            position: index * 4096,
            buffer,
            start: 0,
            len: 4096,
        };
        rig.disk.start(0, operation, &mut rig.pool);
    }
    let mut tickets: Vec<u64> = (0..count).map(|_| rig.ended().0.0).collect();
    tickets.sort_unstable();
    tickets.dedup();
    assert_eq!(tickets.len() as u64, count);
}

/// A file that may not be used is no broken disk: it is named, with the user and what mends it.
#[test]
fn a_file_that_may_not_be_used_is_named() {
    let path = Path::new("/data/7-0/checkpoint");
    for errno in [libc::EACCES, libc::EPERM] {
        let error = std::io::Error::from_raw_os_error(errno);
        let told = crate::runtime::files::refused_file(path, &error, "must open").to_string();
        for word in ["/data/7-0/checkpoint", "user ", "chown", "chmod"] {
            assert!(told.contains(word), "no `{word}` in: {told}");
        }
        assert!(!told.contains("O_DIRECT"), "{told}");
        let told = DiskError::Errno(errno).text();
        assert!(
            told.contains("permission") && !told.contains("device"),
            "{told}"
        );
    }
    let error = std::io::Error::from_raw_os_error(libc::EINVAL);
    let told = crate::runtime::files::refused_file(path, &error, "must open").to_string();
    assert!(told.contains("O_DIRECT"), "{told}");
}
