//! Reads a file through a window that moves forward, and says how far a long walk has come.
//!
//! Memory is one window, whatever the file's size. A view past the end is short; anything else that
//! cannot be read is an error of the disk and ends the verification. Read `walk.rs` next.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WINDOW: u64 = 4 << 20;

/// How far a walk has come, told on stderr once a second, beginning after the first. Shared by the
/// threads that walk.
#[derive(Debug)]
pub struct Progress {
    what: Mutex<(&'static str, Instant)>,
    bytes: AtomicU64,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            what: Mutex::new(("", Instant::now())),
            bytes: AtomicU64::new(0),
        }
    }
}

impl Progress {
    /// A new part of the work begins.
    pub fn begin(&self, what: &'static str) {
        self.what.lock().expect("nothing panics under the lock").0 = what;
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// So many bytes more were read.
    pub fn add(&self, bytes: u64) {
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut what = self.what.lock().expect("nothing panics under the lock");
        if what.1.elapsed() >= Duration::from_secs(1) {
            what.1 = Instant::now();
            let mb = bytes as f64 / 1e6;
            let _ = writeln!(io::stderr(), "{}: {mb:.0} MB", what.0);
        }
    }
}

/// A file and a window on it.
#[derive(Debug)]
pub struct Reader<'p> {
    file: File,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
    progress: &'p Progress,
}

impl<'p> Reader<'p> {
    /// Opens a file.
    pub fn open(path: &Path, progress: &'p Progress) -> io::Result<Reader<'p>> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(named)?;
        let len = file.metadata().map_err(named)?.len();
        Ok(Reader {
            file,
            len,
            start: 0,
            bytes: Vec::new(),
            progress,
        })
    }

    /// The file's length.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes at `position`, fewer at the end of the file.
    pub fn view(&mut self, position: u64, len: u64) -> io::Result<&[u8]> {
        let end = (position.saturating_add(len)).min(self.len);
        if position >= end {
            return Ok(&[]);
        }
        let held = self.start..self.start + self.bytes.len() as u64;
        if !(held.contains(&position) && end <= held.end) {
            let load = (end - position).max(WINDOW).min(self.len - position);
            self.bytes.resize(load as usize, 0);
            self.file.read_exact_at(&mut self.bytes, position)?;
            self.start = position;
            self.progress.add(load);
        }
        let from = (position - self.start) as usize;
        Ok(&self.bytes[from..from + (end - position) as usize])
    }
}
