//! What the disk can do: three writers at once, as three nodes of a set on one machine would write.
//!
//! Each writer keeps eight direct writes of 1 MiB in flight, each durable when it completes, over a
//! file of its own that was allocated and written before. A record of a set of three is written
//! three times, so a third of the total is the most that such a set can take on this disk. Leaves
//! nothing behind.

use super::files::{AlignedBytes, allocate, open_direct};
use io_uring::{IoUring, opcode, types};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

const WRITERS: usize = 3;
const DEPTH: usize = 8;
const WRITE_BYTES: usize = 1 << 20;
/// From the kernel's `linux/magic.h`.
const RAMFS_MAGIC: i64 = 0x8584_58f6;
const FILE_BYTES: u64 = 128 << 20;

/// What was measured.
#[derive(Clone, Debug)]
pub struct DiskSpeed {
    /// Bytes per second of each writer.
    pub writers: Vec<f64>,
    /// How long they wrote.
    pub seconds: f64,
}

impl DiskSpeed {
    /// Bytes per second of all writers together.
    pub fn total(&self) -> f64 {
        self.writers.iter().sum()
    }
}

/// Measures the disk of `directory` for about `seconds`, in a directory that it removes afterwards.
pub fn measure(directory: &Path, seconds: u64) -> io::Result<DiskSpeed> {
    let place = Temporary::create(directory)?;
    let mut files = Vec::new();
    for index in 0..WRITERS {
        files.push(written_file(&place.0.join(format!("writer-{index}")))?);
    }
    let start = Barrier::new(WRITERS);
    let length = Duration::from_secs(seconds);
    let results: Vec<io::Result<f64>> = thread::scope(|scope| {
        let start = &start;
        let spawn = |file| scope.spawn(move || write(file, start, length));
        let writers: Vec<_> = files.iter().map(spawn).collect();
        let join = |writer: thread::ScopedJoinHandle<'_, _>| {
            writer
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a writer panicked")))
        };
        writers.into_iter().map(join).collect()
    });
    let writers: io::Result<Vec<f64>> = results.into_iter().collect();
    Ok(DiskSpeed {
        writers: writers?,
        seconds: seconds as f64,
    })
}

/// The name of a file system that is memory and no disk, if `directory` lies on one.
pub fn memory_file_system(directory: &Path) -> io::Result<Option<&'static str>> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: a statfs is integers; all zeros is a value of it.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero byte, and the call fills in the struct that it is given.
    if unsafe { libc::statfs(path.as_ptr(), &mut found) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(match found.f_type {
        libc::TMPFS_MAGIC => Some("tmpfs"),
        RAMFS_MAGIC => Some("ramfs"),
        _ => None,
    })
}

/// A directory that goes away with its files.
struct Temporary(PathBuf);

impl Temporary {
    fn create(directory: &Path) -> io::Result<Temporary> {
        let path = directory.join(format!("disk-check-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "remove this directory by hand");
        }
    }
}

fn written_file(path: &Path) -> io::Result<File> {
    let file = open_direct(path, true, false)?;
    allocate(&file, FILE_BYTES)?;
    let zeros = AlignedBytes::zeroed(WRITE_BYTES);
    for position in (0..FILE_BYTES).step_by(WRITE_BYTES) {
        file.write_all_at(zeros.bytes(), position)?;
    }
    file.sync_all()?;
    drop(file);
    open_direct(path, false, true)
}

/// Bytes per second of one writer.
fn write(file: &File, start: &Barrier, length: Duration) -> io::Result<f64> {
    let ring = IoUring::new(DEPTH as u32);
    let bytes = AlignedBytes::zeroed(WRITE_BYTES);
    start.wait();
    let mut ring = ring?;
    let began = Instant::now();
    let (mut next, mut done, mut in_flight) = (0_u64, 0_u64, 0);
    loop {
        let over = began.elapsed() >= length;
        while in_flight < DEPTH && !over {
            let write = opcode::Write::new(
                types::Fd(file.as_raw_fd()),
                bytes.bytes().as_ptr(),
                WRITE_BYTES as u32,
            );
            let entry = write.offset(next % FILE_BYTES).build();
            next += WRITE_BYTES as u64;
            // SAFETY: file and memory outlive every write: this loop ends when none is in flight.
            let pushed = unsafe { ring.submission().push(&entry) };
            pushed.map_err(|_| io::Error::other("the ring is full"))?;
            in_flight += 1;
        }
        if in_flight == 0 {
            return Ok(done as f64 / began.elapsed().as_secs_f64());
        }
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for entry in ring.completion() {
            in_flight -= 1;
            match entry.result() {
                count if count == WRITE_BYTES as i32 => done += WRITE_BYTES as u64,
                count if count >= 0 => return Err(io::Error::other("a short write")),
                errno => return Err(io::Error::from_raw_os_error(-errno)),
            }
        }
    }
}

#[cfg(test)]
#[path = "disk_check_tests.rs"]
mod tests;
