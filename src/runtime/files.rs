//! Blocking work on files and names: what the ring cannot do, or not without a thread of the
//! kernel.
//!
//! Everything here blocks and belongs on a blocking thread or before the first executor. "Durable"
//! is done with a full fsync of the file and of the directory that names it. Nothing is ever
//! replaced: a rename onto an existing name is an error. Read `disk.rs` next.

use super::spares::Spares;
use crate::config::ConfigError;
use crate::limits::{CHECKPOINT_COPY, DISK_ALIGNMENT};
use crate::shard::{DiskError, FileEntry, FileName};
use crate::types::BlockNo;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// One blocking operation in the directory of a log.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    Open(FileName),
    Provide,
    Name(BlockNo),
    Free(FileName),
    SyncDirectory,
}

/// Where a log's files lie and how they are written.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) directory: PathBuf,
    pub(super) dsync: bool,
}

impl Job {
    /// The file that it is about, by its name in the log's directory; empty for the directory.
    fn file(self) -> String {
        match self {
            Job::Open(name) | Job::Free(name) => file_name(name),
            Job::Provide | Job::Name(_) => file_name(FileName::Next),
            Job::SyncDirectory => String::new(),
        }
    }
}

impl Place {
    pub(super) fn path(&self, name: FileName) -> PathBuf {
        self.directory.join(file_name(name))
    }

    /// Carries out a job; the file that it opened, if it opened one.
    pub(super) fn carry_out(&self, job: Job, spares: &Spares) -> Result<Option<File>, DiskError> {
        let done = match job {
            Job::Open(name) => open_direct(&self.path(name), false, self.dsync).map(Some),
            Job::Provide => {
                let target = self.path(FileName::Next);
                let provided = spares.provide(&target);
                provided
                    .and_then(|_| open_direct(&target, false, self.dsync))
                    .map(Some)
            }
            Job::Free(name) => self.free(name, spares).map(|()| None),
            Job::Name(base) => self.name(base).map(|()| None),
            Job::SyncDirectory => sync_directory(&self.directory).map(|()| None),
        };
        done.map_err(|error| {
            let failed = disk_error(&error);
            // A full disk is told of once, by the log that needs the space.
            if let Some(denied) = denied(&self.directory.join(job.file()), &error) {
                tracing::error!("{denied}; mend: {}", OWNER_MEND);
            } else if failed != DiskError::NoSpace {
                let directory = self.directory.display();
                tracing::error!(%error, ?job, %directory, "a file operation failed");
            }
            failed
        })
    }

    /// Gives a file back. One that has the name of a segment and never was one stays, under another
    /// name.
    fn free(&self, name: FileName, spares: &Spares) -> io::Result<()> {
        let path = self.path(name);
        if begins_as_segment(&path)? {
            return spares.reclaim(&path);
        }
        let aside = |number: u32| {
            let end = format!("foreign-{number}");
            path.with_extension(end)
        };
        let unused = (1..).map(aside).find(|aside| !aside.exists());
        let aside = unused.expect("numbers do not end");
        rename_new(&path, &aside)?;
        let (path, aside) = (path.display(), aside.display());
        tracing::warn!(%path, %aside, "not a segment of a log in spite of its name: set aside");
        sync_directory(&self.directory)
    }

    fn name(&self, base: BlockNo) -> io::Result<()> {
        let (from, to) = (FileName::Next, FileName::Segment(base));
        rename_new(&self.path(from), &self.path(to))?;
        sync_directory(&self.directory)
    }

    /// Creates the directory and its zeroed checkpoint if they are not there, durably; lists the
    /// log's files.
    pub(super) fn prepare(&self) -> io::Result<Vec<FileEntry>> {
        create_directory(&self.directory)?;
        let checkpoint = self.path(FileName::Checkpoint);
        let whole = 2 * CHECKPOINT_COPY as u64;
        let len = fs::metadata(&checkpoint).map_or(0, |metadata| metadata.len());
        if len < whole {
            let file = open_direct(&checkpoint, true, false)?;
            allocate(&file, whole)?;
            // Whatever a shorter file holds stays: it is for recovery to judge.
            let from = len.next_multiple_of(CHECKPOINT_COPY as u64);
            let zeros = AlignedBytes::zeroed(2 * CHECKPOINT_COPY);
            file.write_all_at(&zeros.bytes()[from as usize..], from)?;
            file.sync_all()?;
            sync_directory(&self.directory)?;
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            match parse_name(&entry.file_name().to_string_lossy()) {
                Some(name) => found.push(FileEntry {
                    name,
                    len: entry.metadata()?.len(),
                }),
                None => {
                    let path = entry.path();
                    tracing::warn!(path = %path.display(), "not a file of a log: left alone");
                }
            }
        }
        found.sort_by_key(|entry: &FileEntry| entry.name);
        Ok(found)
    }
}

/// Whether a file begins with what this program writes there: the mark of a segment, or zeros.
fn begins_as_segment(path: &Path) -> io::Result<bool> {
    let mut bytes = Vec::new();
    let first = DISK_ALIGNMENT as u64;
    File::open(path)?.take(first).read_to_end(&mut bytes)?;
    Ok(bytes.starts_with(b"MRSG") || bytes.iter().all(|byte| *byte == 0))
}

/// The name of a file in its log's directory.
pub(super) fn file_name(name: FileName) -> String {
    match name {
        FileName::Checkpoint => "checkpoint".to_owned(),
        FileName::Next => "next.seg".to_owned(),
        FileName::Segment(base) => format!("{:020}.seg", base.0),
    }
}

pub(super) fn parse_name(name: &str) -> Option<FileName> {
    match name {
        "checkpoint" => Some(FileName::Checkpoint),
        "next.seg" => Some(FileName::Next),
        _ => {
            let base = name.strip_suffix(".seg").filter(|base| base.len() == 20)?;
            Some(FileName::Segment(BlockNo(base.parse().ok()?)))
        }
    }
}

/// What mends a file that the node may not use.
pub(super) const OWNER_MEND: &str =
    "give the file to that user (chown), or let it read and write (chmod u+rw)";

/// That a file may not be used, with its name and the user, if that is what the error says.
pub(super) fn denied(path: &Path, error: &io::Error) -> Option<String> {
    let is_denied = matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM));
    // SAFETY: the call takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    let path = path.display();
    is_denied.then(|| format!("user {user}, as which the node runs, may not use {path} ({error})"))
}

/// Why the node cannot start: a file or directory of its data cannot be used.
pub(super) fn refused_file(path: &Path, error: &io::Error, rule: &str) -> ConfigError {
    if let Some(denied) = denied(path, error) {
        let rule = "the node's user must own what lies there";
        return ConfigError::new("node.data_dir", denied, rule, OWNER_MEND);
    }
    let mend = match error.raw_os_error() {
        Some(libc::EINVAL | libc::EOPNOTSUPP) => "use a file system with O_DIRECT: ext4 or xfs",
        _ => "see the error and the kernel's log: correct the path or the disk",
    };
    let value = format!("{} ({error})", path.display());
    ConfigError::new("node.data_dir", value, rule, mend)
}

/// What the log is told of a failure.
pub(super) fn disk_error(error: &io::Error) -> DiskError {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => DiskError::NoSpace,
        errno => DiskError::Errno(errno.unwrap_or(libc::EIO)),
    }
}

/// Opens a file for direct I/O; every write waits for the medium if `dsync`.
pub(super) fn open_direct(path: &Path, create: bool, dsync: bool) -> io::Result<File> {
    let durable = if dsync { libc::O_DSYNC } else { 0 };
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .custom_flags(libc::O_DIRECT | durable)
        .open(path)
}

/// Creates a directory that may exist, with its name durable in the one above it.
pub(super) fn create_directory(path: &Path) -> io::Result<()> {
    if !path.is_dir() {
        fs::create_dir_all(path)?;
        if let Some(parent) = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            sync_directory(parent)?;
        }
    }
    sync_directory(path)
}

/// Bytes that may still be taken of the file system that holds `path`, by those who are not root.
pub(super) fn available(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the struct is integers, and the call fills it in.
    let mut found: libc::statvfs64 = unsafe { std::mem::zeroed() };
    // SAFETY: the string ends with a zero, and both live through the call.
    if unsafe { libc::statvfs64(path.as_ptr(), &mut found) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Renames a file to a name that does not exist.
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let from = CString::new(from.as_os_str().as_bytes())?;
    let to = CString::new(to.as_os_str().as_bytes())?;
    // SAFETY: both are strings that end with a zero and live through the call.
    let result = unsafe {
        libc::renameat2(
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives a file its length and its space.
pub(super) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    fallocate(file, 0, bytes)
}

/// The same, and all of it reads as zeros without being written.
pub(super) fn allocate_zero_range(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, libc::FALLOC_FL_ZERO_RANGE, bytes) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            file.set_len(0)?;
            fallocate(file, 0, bytes)
        }
        done => done,
    }
}

fn fallocate(file: &File, mode: i32, bytes: u64) -> io::Result<()> {
    loop {
        // SAFETY: takes integers only.
        let result = unsafe { libc::fallocate64(file.as_raw_fd(), mode, 0, bytes as i64) };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Memory at a 4096-aligned address, outside every pool: for zeros and probes.
#[derive(Debug)]
pub(super) struct AlignedBytes {
    memory: std::ptr::NonNull<u8>,
    layout: Layout,
}

impl AlignedBytes {
    pub(super) fn zeroed(len: usize) -> AlignedBytes {
        assert!(len > 0, "memory has a size");
        let layout = Layout::from_size_align(len, DISK_ALIGNMENT).expect("a small size");
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = std::ptr::NonNull::new(memory) else {
            handle_alloc_error(layout)
        };
        AlignedBytes { memory, layout }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is ours, zeroed, of that size, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.layout.size()) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed for changes.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated above with this layout, and nobody borrows it any more.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}
