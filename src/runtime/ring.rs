//! An io_uring of our own beside the executor's: writes and reads of byte ranges of the core's
//! buffers.
//!
//! The executor's file type writes whole buffers only and reads into memory of its own, which would
//! cost a copy of every block that does not fill its buffer. This ring takes addresses. Its
//! completions wake the executor through an eventfd. It owns no buffer and no file: whoever pushes
//! an operation keeps both alive until its completion was taken (see `disk.rs`, the only user).

use io_uring::{IoUring, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The ring of one core.
pub(super) struct Ring {
    ring: IoUring,
    waiting: VecDeque<squeue::Entry>,
    /// In the kernel, or ended and not yet taken: at most `depth`, so completions always fit.
    in_flight: usize,
    depth: usize,
}

/// One operation for the ring.
#[derive(Clone, Copy, Debug)]
pub(super) enum Transfer {
    /// Writes memory to a file.
    Write {
        /// The file.
        fd: RawFd,
        /// First byte.
        from: *const u8,
        /// Bytes.
        len: u32,
        /// Where in the file.
        position: u64,
    },
    /// Reads a file to memory.
    Read {
        /// The file.
        fd: RawFd,
        /// First byte.
        to: *mut u8,
        /// Bytes.
        len: u32,
        /// Where in the file.
        position: u64,
    },
    /// Makes a file durable, its size included.
    Sync {
        /// The file.
        fd: RawFd,
    },
}

impl Ring {
    /// A ring with room for `depth` operations, and the eventfd that its completions count up.
    /// Worker threads of the kernel may run on any of `cpus`: without that they share the
    /// executor's.
    /// `lock` stays open until the last operation has ended, even if the process is killed.
    pub(super) fn new(depth: u32, cpus: &[usize], lock: RawFd) -> io::Result<(Ring, OwnedFd)> {
        let quiet = IoUring::builder().setup_coop_taskrun().build(depth);
        let ring = quiet.or_else(|_| IoUring::new(depth))?;
        // SAFETY: eventfd takes two integers; the descriptor it returns belongs to nobody else.
        let eventfd = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        ring.submitter().register_eventfd(eventfd.as_raw_fd())?;
        ring.submitter().register_files(&[lock])?;
        // SAFETY: a cpu_set_t is a bit set of integers; all zeros is the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
            // SAFETY: the number is below CPU_SETSIZE.
            unsafe { libc::CPU_SET(*cpu, &mut set) };
        }
        if let Err(error) = ring.submitter().register_iowq_aff(&set) {
            tracing::debug!(%error, "kernel workers stay on the executor's CPU");
        }
        let ring = Ring {
            ring,
            waiting: VecDeque::new(),
            in_flight: 0,
            depth: depth as usize,
        };
        Ok((ring, eventfd))
    }

    /// Queues an operation; `name` comes back with its completion. Memory and file stay as they are
    /// until then: that is the caller's promise.
    pub(super) fn push(&mut self, transfer: Transfer, name: u64) {
        let entry = match transfer {
            Transfer::Write {
                fd,
                from,
                len,
                position,
            } => opcode::Write::new(types::Fd(fd), from, len)
                .offset(position)
                .build(),
            Transfer::Read {
                fd,
                to,
                len,
                position,
            } => opcode::Read::new(types::Fd(fd), to, len)
                .offset(position)
                .build(),
            Transfer::Sync { fd } => opcode::Fsync::new(types::Fd(fd)).build(),
        };
        self.waiting.push_back(entry.user_data(name));
    }

    /// Hands to the kernel what is queued, as far as there is room for its completions: what does
    /// not fit waits for some of those.
    pub(super) fn submit(&mut self) {
        while !self.waiting.is_empty() && self.in_flight < self.depth {
            let mut queue = self.ring.submission();
            while self.in_flight < self.depth
                && let Some(entry) = self.waiting.front()
            {
                // SAFETY: the caller of `push` keeps memory and file alive until the completion.
                if unsafe { queue.push(entry) }.is_err() {
                    break;
                }
                self.waiting.pop_front();
                self.in_flight += 1;
            }
            drop(queue);
            if !self.enter() {
                return;
            }
        }
        if !self.ring.submission().is_empty() {
            self.enter();
        }
    }

    /// Whether the kernel took something.
    fn enter(&mut self) -> bool {
        match self.ring.submit() {
            Ok(count) => count > 0,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => false,
                _ => panic!("io_uring_enter: {error}"),
            },
        }
    }

    /// The next operation that has ended: its name, and bytes or a negative errno.
    pub(super) fn completion(&mut self) -> Option<(u64, i32)> {
        let entry = self.ring.completion().next()?;
        self.in_flight -= 1;
        Some((entry.user_data(), entry.result()))
    }

    /// Whether the kernel did not take something that it has room for: it must be asked again, no
    /// completion will tell.
    pub(super) fn must_ask_again(&mut self) -> bool {
        !self.ring.submission().is_empty()
            || (!self.waiting.is_empty() && self.in_flight < self.depth)
    }
}
