//! The simulated disk itself: what it promises to the checks that stand on it.

use crate::sim::buffers::SimBuffers;
use crate::sim::disk::{Disk, DiskFault, DiskOptions, EIO};
use crate::sim::disk_crash::Outcome;
use crate::sim::rng::Rng;
use millrace::types::{BlockNo, BufferId, FileId, Ticket};
use millrace::wal::op::{CHECKPOINT_FILE, DiskOp, FileName};

const SEGMENT: u64 = 64 << 10;

fn setup() -> (Disk, SimBuffers) {
    (
        Disk::new(DiskOptions::sound(SEGMENT), 1),
        SimBuffers::new(1 << 20),
    )
}

fn write(ticket: u64, file: FileId, position: u64, buffer: BufferId) -> DiskOp {
    DiskOp::Write {
        ticket: Ticket(ticket),
        file,
        position,
        buffer,
        start: 0,
        len: 4096,
    }
}

fn first_bytes(disk: &Disk) -> Vec<u8> {
    let pages = disk
        .content(FileName::Checkpoint)
        .expect("it is always there");
    pages.page(0).iter().step_by(512).copied().collect()
}

#[test]
fn a_write_in_flight_is_there_by_any_subset_of_its_sectors() {
    let (mut disk, mut buffers) = setup();
    let buffer = buffers.put(&[7; 4096]).expect("room");
    disk.submit(write(1, CHECKPOINT_FILE, 0, buffer), &mut buffers);
    buffers.release(buffer);
    let mut rng = Rng::new(3);
    let which: Vec<bool> = (0..8).map(|sector| sector % 3 == 0).collect();
    let torn = disk.crash_with(&[Outcome::Sectors(which)], &mut rng);
    assert_eq!(first_bytes(&torn), [7, 0, 0, 7, 0, 0, 7, 0]);
    assert_eq!(
        first_bytes(&disk.crash_with(&[Outcome::Not], &mut rng)),
        [0; 8]
    );
    assert_eq!(
        first_bytes(&disk.crash_with(&[Outcome::Whole], &mut rng)),
        [7; 8]
    );
    assert_eq!(
        disk.complete(Ticket(1), &mut buffers),
        (Ticket(1), Ok(4096))
    );
    assert_eq!(first_bytes(&disk.crash(&mut rng)), [7; 8]);
    buffers.assert_all_back();
}

#[test]
fn what_a_killed_process_had_in_flight_can_be_seen_and_still_be_lost() {
    let (mut disk, mut buffers) = setup();
    let buffer = buffers.put(&[7; 4096]).expect("room");
    disk.submit(write(1, CHECKPOINT_FILE, 0, buffer), &mut buffers);
    let (mut seen, mut lost, mut kept) = (0, 0, 0);
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut killed = disk.kill(&mut rng);
        if first_bytes(&killed) != [7; 8] {
            continue;
        }
        seen += 1;
        lost += u32::from(first_bytes(&killed.crash(&mut rng)) != [7; 8]);
        let ticket = Ticket(2);
        let file = CHECKPOINT_FILE;
        killed.submit(DiskOp::Sync { ticket, file }, &mut buffers);
        killed
            .complete(ticket, &mut buffers)
            .1
            .expect("a sound disk");
        kept += u32::from(first_bytes(&killed.crash(&mut rng)) == [7; 8]);
    }
    assert!(seen > 10 && lost > 0, "seen {seen}, lost {lost}");
    assert_eq!(kept, seen, "what was synced stays");
}

#[test]
fn names_are_durable_once_given_and_open_before() {
    let (mut disk, mut buffers) = setup();
    let mut rng = Rng::new(3);
    let file = FileId(1);
    let base = BlockNo(5);
    disk.submit(
        DiskOp::Provide {
            ticket: Ticket(1),
            file,
        },
        &mut buffers,
    );
    assert_eq!(disk.crash_with(&[Outcome::Not], &mut rng).files().len(), 1);
    let there = disk.crash_with(&[Outcome::Whole], &mut rng).files();
    assert_eq!((there[1].name, there[1].len), (FileName::Next, SEGMENT));
    disk.complete(Ticket(1), &mut buffers)
        .1
        .expect("a sound disk");
    disk.submit(
        DiskOp::Name {
            ticket: Ticket(2),
            file,
            base,
        },
        &mut buffers,
    );
    assert_eq!(disk.crash_with(&[Outcome::Not], &mut rng).files(), there);
    disk.complete(Ticket(2), &mut buffers)
        .1
        .expect("a sound disk");
    let named = disk.crash(&mut rng).files();
    assert_eq!(named[1].name, FileName::Segment(base));
    disk.submit(
        DiskOp::Free {
            ticket: Ticket(3),
            file,
        },
        &mut buffers,
    );
    assert_eq!(disk.crash_with(&[Outcome::Not], &mut rng).files(), named);
    assert_eq!(
        disk.crash_with(&[Outcome::Whole], &mut rng).files().len(),
        1
    );
    disk.complete(Ticket(3), &mut buffers)
        .1
        .expect("a sound disk");
    assert_eq!(disk.crash(&mut rng).files().len(), 1);
}

#[test]
fn faults_hit_the_write_they_were_set_for() {
    let (mut disk, mut buffers) = setup();
    let file = FileId(1);
    disk.submit(
        DiskOp::Provide {
            ticket: Ticket(1),
            file,
        },
        &mut buffers,
    );
    disk.complete(Ticket(1), &mut buffers)
        .1
        .expect("a sound disk");
    disk.inject(1, DiskFault::Error);
    disk.inject(2, DiskFault::Short);
    let buffer = buffers.put(&[7; 4096]).expect("room");
    let mut results = Vec::new();
    for ticket in 2..6 {
        disk.submit(write(ticket, file, ticket * 4096, buffer), &mut buffers);
        results.push(disk.complete(Ticket(ticket), &mut buffers).1);
    }
    assert_eq!(results[0], Ok(4096));
    assert_eq!(results[1], Err(EIO));
    assert!(results[2].expect("a short write is no error") < 4096);
    assert_eq!(results[3], Ok(4096));
}

#[test]
#[should_panic(expected = "its bytes must not change")]
fn bytes_of_a_write_in_flight_must_not_change() {
    use millrace::buffers::Buffers as _;
    let (mut disk, mut buffers) = setup();
    let buffer = buffers.put(&[7; 4096]).expect("room");
    disk.submit(write(1, CHECKPOINT_FILE, 0, buffer), &mut buffers);
    buffers.bytes_mut(buffer)[0] = 8;
}

#[test]
#[should_panic(expected = "given back and is named again")]
fn a_buffer_is_released_once() {
    let (mut disk, mut buffers) = setup();
    let buffer = buffers.put(&[7; 4096]).expect("room");
    disk.submit(write(1, CHECKPOINT_FILE, 0, buffer), &mut buffers);
    buffers.release(buffer);
    buffers.release(buffer);
}
