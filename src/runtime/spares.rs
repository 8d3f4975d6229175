//! Segment files kept ahead of need in `data/spare/`: preallocated, already written, durable.
//!
//! A write into space that was written before changes no metadata, so it is two to four times
//! faster than one into merely allocated space. One plain thread zeroes files at depth 1, gently
//! while logs are being written; a freed segment comes back here and is zeroed before it is used
//! again. An empty pool never stalls a log: it gets a merely allocated file, and a counter says so.
//! No new file takes the last [`limits::SPACE_RESERVE`] bytes of the file system: that is a full
//! disk, and everybody asks again later.
//! Everything here blocks; no executor calls it but through its blocking threads. Read `files.rs`
//! next.

use super::files::{self, sync_directory};
use crate::limits;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Digits of a spare's number in its name.
const NUMBER_DIGITS: usize = 20;
const SLICE: usize = 1 << 20;
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(5);

/// The spares of one node.
#[derive(Debug)]
pub(super) struct Spares {
    directory: PathBuf,
    segment_bytes: u64,
    target: usize,
    state: Mutex<State>,
    wanted: Condvar,
    /// Bytes that logs have written: tells the zeroing thread whether anybody is at work.
    pub(super) log_bytes: AtomicU64,
    /// Segments provided from files that were zeroed ahead.
    pub(super) provided_ready: AtomicU64,
    /// Segments provided in merely allocated space.
    pub(super) provided_cold: AtomicU64,
    /// Whether the last attempt to prepare a spare failed: the disk is nearly full.
    pub(super) short: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<PathBuf>,
    dirty: Vec<PathBuf>,
    next_number: u64,
}

impl Spares {
    /// The pool in `directory`, which is created if it is not there. Keeps `logs` logs going.
    pub(super) fn open(directory: &Path, segment_bytes: u64, logs: usize) -> io::Result<Spares> {
        files::create_directory(directory)?;
        let mut state = State::default();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let stem = stem.filter(|stem| stem.len() == NUMBER_DIGITS);
            let number = stem.and_then(|stem| stem.parse::<u64>().ok());
            let end = path.extension().and_then(|end| end.to_str());
            let end = end.filter(|end| ["cold", "dirty", "ready"].contains(end));
            let (Some(number), Some(end)) = (number, end) else {
                tracing::warn!(path = %path.display(), "not a spare segment: left alone");
                continue;
            };
            state.next_number = state.next_number.max(number + 1);
            // Of another size, or left over when a merely allocated file was being made.
            let len = fs::metadata(&path)?.len();
            if end == "cold" || len != segment_bytes {
                let path_text = path.display();
                tracing::info!(path = %path_text, len, segment_bytes, "a spare of no use: removed");
                fs::remove_file(&path)?;
            } else if end == "ready" {
                state.ready.push(path);
            } else if end == "dirty" {
                state.dirty.push(path);
            }
        }
        let affordable = (limits::SPARE_BYTES / segment_bytes).max(1) as usize;
        Ok(Spares {
            directory: directory.to_owned(),
            segment_bytes,
            target: affordable.min(logs * limits::SPARES_PER_LOG),
            state: Mutex::new(state),
            wanted: Condvar::new(),
            log_bytes: AtomicU64::new(0),
            provided_ready: AtomicU64::new(0),
            provided_cold: AtomicU64::new(0),
            short: AtomicBool::new(false),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic anywhere aborts the process, so the lock is never poisoned.
        self.state.lock().expect("the lock is not poisoned")
    }

    /// Files ready for use.
    pub(super) fn ready(&self) -> usize {
        self.state().ready.len()
    }

    /// Zeroes files at full rate until the target is reached or the time is over.
    pub(super) fn prepare(&self, longest: Duration) -> io::Result<()> {
        let end = Instant::now() + longest;
        while self.ready() < self.target && Instant::now() < end {
            self.make_one(&|| false)?;
        }
        Ok(())
    }

    /// The zeroing thread: never returns.
    pub(super) fn keep_full(&self) -> ! {
        loop {
            {
                let mut state = self.state();
                while state.ready.len() >= self.target {
                    state = self.wanted.wait(state).expect("the lock is not poisoned");
                }
            }
            let seen = AtomicU64::new(self.log_bytes.load(Ordering::Relaxed));
            let busy = || {
                let now = self.log_bytes.load(Ordering::Relaxed);
                seen.swap(now, Ordering::Relaxed) != now
            };
            match self.make_one(&busy) {
                Ok(()) => {
                    if self.short.swap(false, Ordering::Relaxed) {
                        tracing::info!("spare segments can be prepared again");
                    }
                }
                Err(error) => {
                    if !self.short.swap(true, Ordering::Relaxed) {
                        let text = "no spare segment can be prepared; appends go on until the \
                            logs need the next file";
                        tracing::warn!(%error, "{text}");
                    }
                    std::thread::sleep(PAUSE_AFTER_ERROR);
                }
            }
        }
    }

    /// Zeroes one file: a dirty one, else a new one. Waits between slices while `busy`.
    fn make_one(&self, busy: &dyn Fn() -> bool) -> io::Result<()> {
        let dirty = self.state().dirty.pop();
        let path = match dirty {
            Some(path) => path,
            None => {
                self.check_space()?;
                self.new_path("dirty")
            }
        };
        let zeroed = self.zero(&path, busy);
        if let Err(error) = zeroed {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        let ready = path.with_extension("ready");
        files::rename_new(&path, &ready)?;
        sync_directory(&self.directory)?;
        self.state().ready.push(ready);
        Ok(())
    }

    fn zero(&self, path: &Path, busy: &dyn Fn() -> bool) -> io::Result<()> {
        let file = files::open_direct(path, true, false)?;
        files::allocate(&file, self.segment_bytes)?;
        let zeros = files::AlignedBytes::zeroed(SLICE);
        let pause = Duration::from_secs_f64(SLICE as f64 / limits::ZERO_BYTES_PER_SECOND as f64);
        let mut position = 0;
        while position < self.segment_bytes {
            let len = (self.segment_bytes - position).min(SLICE as u64);
            file.write_all_at(&zeros.bytes()[..len as usize], position)?;
            position += len;
            if busy() {
                std::thread::sleep(pause);
            }
        }
        file.sync_all()
    }

    /// Whether a new file may be made.
    fn check_space(&self) -> io::Result<()> {
        let needed = self.segment_bytes + limits::SPACE_RESERVE;
        if files::available(&self.directory)? < needed {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        Ok(())
    }

    fn new_path(&self, end: &str) -> PathBuf {
        let mut state = self.state();
        let number = state.next_number;
        state.next_number += 1;
        self.directory.join(format!("{number:020}.{end}"))
    }

    /// Puts a file of zeros at `target`, where none is, and makes its name durable there.
    pub(super) fn provide(&self, target: &Path) -> io::Result<()> {
        let ready = self.state().ready.pop();
        self.wanted.notify_one();
        match ready {
            Some(path) => {
                if let Err(error) = files::rename_new(&path, target) {
                    self.state().ready.push(path);
                    return Err(error);
                }
                self.provided_ready.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                self.provide_cold(target)?;
                self.provided_cold.fetch_add(1, Ordering::Relaxed);
            }
        }
        let directory = target.parent().expect("a segment lies in a directory");
        let synced = sync_directory(directory).and_then(|()| sync_directory(&self.directory));
        if synced.is_err() {
            // It was not provided: the next attempt must find the name free.
            let _ = fs::remove_file(target);
        }
        synced
    }

    /// Without a ready file: a dirty one whose space is marked as unwritten, else a new one.
    fn provide_cold(&self, target: &Path) -> io::Result<()> {
        let dirty = self.state().dirty.pop();
        let path = match dirty {
            Some(path) => path,
            None => {
                self.check_space()?;
                self.new_path("cold")
            }
        };
        let made = (|| {
            let file = files::open_direct(&path, true, false)?;
            files::allocate_zero_range(&file, self.segment_bytes)?;
            file.sync_all()?;
            files::rename_new(&path, target)
        })();
        if made.is_err() {
            let _ = fs::remove_file(&path);
        }
        made
    }

    /// Takes a file out of a log's directory, durably: a spare to be zeroed, or nothing.
    pub(super) fn reclaim(&self, path: &Path) -> io::Result<()> {
        let enough = {
            let state = self.state();
            state.dirty.len() + state.ready.len() >= 2 * self.target
        };
        let same_size = fs::metadata(path)?.len() == self.segment_bytes;
        if enough || !same_size {
            fs::remove_file(path)?;
        } else {
            let target = self.new_path("dirty");
            match files::rename_new(path, &target) {
                // Not even a name fits in: then the space serves the file system better.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    fs::remove_file(path)?;
                }
                renamed => {
                    renamed?;
                    sync_directory(&self.directory)?;
                    self.state().dirty.push(target);
                }
            }
        }
        sync_directory(path.parent().expect("a segment lies in a directory"))
    }
}

#[cfg(test)]
#[path = "spares_tests.rs"]
mod tests;
