//! What a log asks of its disk, and what the disk answers.
//!
//! The shell carries out operations in any order and any number at a time; the log itself waits
//! where order matters. Every operation is answered by exactly one completion with its ticket.
//! Nothing here is retried by the shell. "Durable" means: survives a loss of power once the
//! completion was given.

use crate::types::{BlockNo, BufferId, FileId, Ticket};

/// A file in the directory of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileName {
    /// `checkpoint`: 8192 bytes, two copies. The shell creates it zeroed together with the
    /// directory, durably, before the log starts; it is always there and always
    /// [`CHECKPOINT_FILE`].
    Checkpoint,
    /// `next.seg`: the file that the next roll will use.
    Next,
    /// `<base_block, 20 digits>.seg`.
    Segment(BlockNo),
}

/// A file found in the log's directory at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Which file.
    pub name: FileName,
    /// Its length in bytes.
    pub len: u64,
}

/// The checkpoint file's id: it is open from the start.
pub const CHECKPOINT_FILE: FileId = FileId(0);

/// One operation. Positions, lengths and buffer ranges are multiples of 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOp {
    /// Opens an existing file of the log's directory as `file`.
    Open {
        /// Names the operation.
        ticket: Ticket,
        /// The id it gets.
        file: FileId,
        /// Which file.
        name: FileName,
    },
    /// Brings a file of `segment_bytes` into the log's directory as `next.seg`, open as `file`,
    /// preallocated, all zeros, its name durable. It replaces no file: there is no `next.seg`
    /// before.
    Provide {
        /// Names the operation.
        ticket: Ticket,
        /// The id it gets.
        file: FileId,
    },
    /// Renames `next.seg` to the segment name for `base`, durably. The id stays.
    Name {
        /// Names the operation.
        ticket: Ticket,
        /// The file, open.
        file: FileId,
        /// First block it holds.
        base: BlockNo,
    },
    /// Takes a file out of the log's directory, durably, and closes it. It may become a spare,
    /// zeroed.
    Free {
        /// Names the operation.
        ticket: Ticket,
        /// The file, open.
        file: FileId,
    },
    /// Writes `len` bytes of a buffer, from `start` on, at `position`, durably. Completes with the
    /// count of bytes written, which may be short.
    Write {
        /// Names the operation.
        ticket: Ticket,
        /// The file, open.
        file: FileId,
        /// Where in the file.
        position: u64,
        /// From which buffer.
        buffer: BufferId,
        /// First byte in the buffer.
        start: usize,
        /// Bytes.
        len: usize,
    },
    /// Reads `len` bytes at `position` to the start of a buffer. Completes with the count of bytes
    /// read, short at the end of the file.
    Read {
        /// Names the operation.
        ticket: Ticket,
        /// The file, open.
        file: FileId,
        /// Where in the file.
        position: u64,
        /// Into which buffer.
        buffer: BufferId,
        /// Bytes.
        len: usize,
    },
    /// Makes everything in the file durable, whoever wrote it.
    Sync {
        /// Names the operation.
        ticket: Ticket,
        /// The file, open.
        file: FileId,
    },
    /// Makes the names in the log's directory durable.
    SyncDirectory {
        /// Names the operation.
        ticket: Ticket,
    },
}

impl DiskOp {
    /// The ticket that its completion will carry.
    pub fn ticket(&self) -> Ticket {
        match *self {
            DiskOp::Open { ticket, .. }
            | DiskOp::Provide { ticket, .. }
            | DiskOp::Name { ticket, .. }
            | DiskOp::Free { ticket, .. }
            | DiskOp::Write { ticket, .. }
            | DiskOp::Read { ticket, .. }
            | DiskOp::Sync { ticket, .. }
            | DiskOp::SyncDirectory { ticket } => ticket,
        }
    }
}

/// Why an operation failed. What it has done to the disk is then unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// The device or the file system answered this errno.
    Errno(i32),
    /// No space left.
    NoSpace,
}

/// What mends a device or file system that fails.
pub const DEVICE_MEND: &str = "see the kernel's log for the device's errors, mend or replace it, \
    then restart the node";

/// What mends a file that the node may not use.
pub const PERMISSION_MEND: &str = "give the files of node.data_dir to the user that the node runs \
    as (chown -R), let it read and write them (chmod -R u+rwX), then restart the node; its log \
    names the file and the user";

/// What mends a lack of descriptors.
pub const DESCRIPTORS_MEND: &str = "raise the limit of open files (ulimit -n, LimitNOFILE in the \
    service): a log needs one for each of its segment files and three more; then restart the node";

/// What mends a file that is not there any more.
pub const GONE_MEND: &str = "bring the data directory back to where node.data_dir says, as it was, \
    then restart the node";

impl DiskError {
    /// What it is, and the mend.
    pub fn text(self) -> String {
        let name = match self {
            DiskError::NoSpace => {
                return "no space left; mend: free space on the file system of node.data_dir, or \
                        raise its quota, then restart the node"
                    .to_owned();
            }
            DiskError::Errno(5) => "input/output error",
            DiskError::Errno(errno @ (1 | 13)) => {
                return format!("permission denied (errno {errno}); mend: {PERMISSION_MEND}");
            }
            DiskError::Errno(errno @ (23 | 24)) => {
                return format!("no descriptor is left (errno {errno}); mend: {DESCRIPTORS_MEND}");
            }
            DiskError::Errno(2) => {
                return format!("a file of the log is gone (errno 2); mend: {GONE_MEND}");
            }
            DiskError::Errno(30) => "the file system is read-only",
            DiskError::Errno(_) => "an error of the device or file system",
        };
        let DiskError::Errno(errno) = self else {
            unreachable!("told above");
        };
        format!("{name} (errno {errno}); mend: {DEVICE_MEND}")
    }
}

/// What an operation answered: bytes for reads and writes, 0 for the others.
pub type DiskResult = Result<usize, DiskError>;
