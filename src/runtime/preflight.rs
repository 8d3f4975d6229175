//! Everything that can be known to be wrong before the first executor runs, in words of our own.
//!
//! The executor answers a missing io_uring with a panic about old kernels, and a full memlock limit
//! with a number pair; an operator gets one line instead that names the rule and the mend. Each
//! check reads, tries and leaves nothing behind. Read `identity.rs` for the data directory's owner.

use super::files::{AlignedBytes, create_directory};
use crate::config::{Config, ConfigError};
use crate::limits::{CORE_CONNECTIONS, CORE_CONNECTIONS_MORE, DISK_ALIGNMENT};
use crate::types::LogId;
use io_uring::opcode;
use socket2::{Domain, Protocol, Socket, Type};
use std::fs::{self, OpenOptions};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// What an executor and its disk's ring need of locked memory, at most.
const MEMLOCK_BYTES: u64 = 512 << 10;

/// How long a port may stay in use before it counts as another process's.
const PORT_PATIENCE: Duration = Duration::from_secs(2);

/// Whether io_uring may be used here, and knows what is asked of it.
pub fn io_uring() -> Result<(), ConfigError> {
    let error = match io_uring::IoUring::new(8) {
        Ok(ring) => {
            let mut probe = io_uring::Probe::new();
            // A kernel that cannot be asked knows none of the later operations.
            let asked = ring.submitter().register_probe(&mut probe).is_ok();
            return operations(|code| asked && probe.is_supported(code));
        }
        Err(error) => error,
    };
    let rule = "io_uring must be allowed (Linux 5.8 or newer)";
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let disabled = disabled.unwrap_or_default().trim().to_owned();
    let mend = match error.raw_os_error() {
        Some(libc::ENOSYS) => "use a newer kernel, or a seccomp profile that allows io_uring",
        Some(libc::EPERM | libc::EACCES) if !matches!(disabled.as_str(), "" | "0") => {
            "set sysctl kernel.io_uring_disabled=0"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "allow io_uring in the seccomp profile of the container or service"
        }
        _ => ring_mend(&error),
    };
    Err(ConfigError::new("io_uring", error, rule, mend))
}

/// What the executor and the rings of the disk ask of the kernel.
#[rustfmt::skip]
const OPERATIONS: [(u8, &str); 23] = [
    (opcode::Nop::CODE, "NOP"),
    (opcode::Readv::CODE, "READV"),
    (opcode::Writev::CODE, "WRITEV"),
    (opcode::Fsync::CODE, "FSYNC"),
    (opcode::ReadFixed::CODE, "READ_FIXED"),
    (opcode::WriteFixed::CODE, "WRITE_FIXED"),
    (opcode::PollAdd::CODE, "POLL_ADD"),
    (opcode::PollRemove::CODE, "POLL_REMOVE"),
    (opcode::SendMsg::CODE, "SENDMSG"),
    (opcode::RecvMsg::CODE, "RECVMSG"),
    (opcode::Timeout::CODE, "TIMEOUT"),
    (opcode::TimeoutRemove::CODE, "TIMEOUT_REMOVE"),
    (opcode::Accept::CODE, "ACCEPT"),
    (opcode::LinkTimeout::CODE, "LINK_TIMEOUT"),
    (opcode::Connect::CODE, "CONNECT"),
    (opcode::Fallocate::CODE, "FALLOCATE"),
    (opcode::OpenAt::CODE, "OPENAT"),
    (opcode::Close::CODE, "CLOSE"),
    (opcode::Statx::CODE, "STATX"),
    (opcode::Read::CODE, "READ"),
    (opcode::Write::CODE, "WRITE"),
    (opcode::Send::CODE, "SEND"),
    (opcode::Recv::CODE, "RECV"),
];

/// Whether the kernel knows every operation; if not, all that it does not know are named.
fn operations(knows: impl Fn(u8) -> bool) -> Result<(), ConfigError> {
    let unknown = OPERATIONS.iter().filter(|(code, _)| !knows(*code));
    let names: Vec<&str> = unknown.map(|(_, name)| *name).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(ConfigError::new(
        "io_uring",
        format!("no {}", names.join(", ")),
        "io_uring must know the operations that are used here",
        "use Linux 5.8 or newer",
    ))
}

/// What mends a ring that the kernel refused for want of locked memory.
const MEMLOCK_MEND: &str = "raise the limit of locked memory (ulimit -l 8192, or LimitMEMLOCK=8M \
    in the service): it is for all processes of the user together";

/// What mends an error of io_uring.
pub fn ring_mend(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => MEMLOCK_MEND,
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        _ => "see the error",
    }
}

/// Whether the process may lock as much memory as its executors need: the executors ask for the
/// limit of one of them whoever they are, and the kernel counts what all of them lock unless the
/// process may lock what it likes.
pub fn memlock(cores: usize) -> Result<(), ConfigError> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call fills in the struct that it is given.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    let counted = if may_lock_all() { 1 } else { cores.max(1) };
    let needed = MEMLOCK_BYTES * counted as u64;
    if result == 0 && limit.rlim_cur < needed {
        let value = format!("{} bytes", limit.rlim_cur);
        let rule = format!(
            "io_uring needs at least {needed} bytes of locked memory, {MEMLOCK_BYTES} for each of \
             {counted} cores"
        );
        return Err(ConfigError::new("memlock limit", value, rule, MEMLOCK_MEND));
    }
    Ok(())
}

/// Whether the process has the capability to lock memory without a limit.
fn may_lock_all() -> bool {
    const IPC_LOCK: u32 = 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = held.and_then(|held| u64::from_str_radix(held.trim(), 16).ok());
    held.is_some_and(|held| (held >> IPC_LOCK) & 1 == 1)
}

/// Connections that a core lets in.
#[derive(Clone, Copy, Debug)]
pub struct Connections {
    /// Of clients; those above it are told so.
    pub clients: usize,
    /// Of clients and members of the cluster.
    pub all: usize,
}

/// Descriptors of a core besides its files and connections, and of the process: rings, timers,
/// ports, the lock.
const CORE_DESCRIPTORS: usize = 24;
const PROCESS_DESCRIPTORS: usize = 16;

/// Raises the soft limit of open files to the hard one, and shares it out: each log has a
/// descriptor for each of its files and three more, a connection takes two, and a quarter of what
/// is left is kept for segments to come, so that clients never take what a log needs. A limit that
/// does not carry the logs is refused; one that carries fewer connections than usual is told.
pub fn descriptors(config: &Config) -> Result<Connections, ConfigError> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call fills in the struct that it is given.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the call reads the struct that it is given.
    let raised = known && unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } == 0;
    let usual = CORE_CONNECTIONS + CORE_CONNECTIONS_MORE;
    let cores = config.cores.count;
    if !raised {
        tracing::warn!("the limit of open files is not known, or cannot be raised");
        return Ok(Connections {
            clients: CORE_CONNECTIONS,
            all: usual,
        });
    }
    let most = usize::try_from(limit.rlim_max).unwrap_or(usize::MAX);
    let logs = config.cluster.logs();
    let of_log = |log: LogId| 3 + files_in(&config.node.data_dir.join(log.to_string()));
    let own = logs.map(of_log).sum::<usize>() + CORE_DESCRIPTORS * cores + PROCESS_DESCRIPTORS;
    let rest = most.saturating_sub(own);
    let all = usual.min((rest - rest / 4) / 2 / cores);
    if all < 2 * config.cluster.nodes.len() {
        let value = most.to_string();
        let rule = format!(
            "the logs and ports of this node take {own} descriptors, and each connection two more"
        );
        let mend = "raise it (ulimit -Hn, or LimitNOFILE in the service)";
        return Err(ConfigError::new("limit of open files", value, rule, mend));
    }
    let clients = all - CORE_CONNECTIONS_MORE.min(all / 2);
    if all < usual {
        tracing::warn!(
            most,
            own,
            clients,
            "the limit of open files is below what connections may take, so fewer clients are let \
             in; mend: raise it (ulimit -Hn, or LimitNOFILE in the service)"
        );
    }
    Ok(Connections { clients, all })
}

/// Files in a directory; none if it is not there.
fn files_in(directory: &Path) -> usize {
    fs::read_dir(directory).map_or(0, Iterator::count)
}

/// The CPU of each executor, and every CPU that the process may use.
pub fn cpus(config: &Config) -> Result<(Vec<usize>, Vec<usize>), ConfigError> {
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let allowed: Vec<usize> = allowed.into_iter().map(|core| core.id).collect();
    let cores = &config.cores;
    let list = |cpus: &[usize]| {
        let names: Vec<String> = cpus.iter().map(usize::to_string).collect();
        names.join(",")
    };
    if cores.count > allowed.len() {
        let value = format!("{} and CPUs {}", cores.count, list(&allowed));
        let keys = "cores.count and the process's CPU mask";
        let rule = "each executor has a CPU of its own";
        let mend = "lower cores.count or widen the mask (taskset, cpuset)";
        return Err(ConfigError::new(keys, value, rule, mend));
    }
    if let Some(cpu) = cores.cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        let rule = format!("the process may only use CPUs {}", list(&allowed));
        let mend = "name one of them or widen the mask";
        return Err(ConfigError::new("cores.cpus", cpu, rule, mend));
    }
    let chosen = if cores.cpus.is_empty() {
        // Several nodes on one machine start at different CPUs, so that they share evenly.
        let first = config.node.id.0 as usize * cores.count;
        let chosen = (0..cores.count).map(|index| allowed[(first + index) % allowed.len()]);
        chosen.collect()
    } else {
        cores.cpus.clone()
    };
    Ok((chosen, allowed))
}

/// Whether the data directory can be made, written and read with direct I/O.
pub fn data_directory(path: &Path) -> Result<(), ConfigError> {
    create_directory(path).map_err(|error| {
        let mend = "create it, or correct its owner";
        refused_directory(
            path,
            &error,
            "must be a directory that this user can write",
            mend,
        )
    })?;
    existing_directory(path)
}

/// The directory itself if something is there, else the nearest one above it that exists: where a
/// start creates what is missing.
pub fn nearest_directory(path: &Path) -> &Path {
    let above = |path: &&Path| !path.as_os_str().is_empty();
    let missing = |path: &Path| fs::symlink_metadata(path).is_err_and(|error| gone(&error));
    let found = path.ancestors().filter(above).find(|path| !missing(path));
    // A name alone lies in the working directory.
    found.unwrap_or(Path::new("."))
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Whether a directory can be written and read with direct I/O. Leaves nothing in it.
pub fn existing_directory(path: &Path) -> Result<(), ConfigError> {
    direct_io(path).map_err(|error| {
        let (rule, mend) = match error.raw_os_error() {
            Some(libc::EINVAL | libc::EOPNOTSUPP) => (
                "its file system must support O_DIRECT",
                "use a directory on ext4 or xfs",
            ),
            Some(libc::ENOSPC | libc::EDQUOT) => ("must have space left", "free some space"),
            Some(libc::ENOENT) => ("must exist", "create it, or correct the path"),
            _ => (
                "must be a directory that this user can write",
                "correct its owner or its mount options",
            ),
        };
        refused_directory(path, &error, rule, mend)
    })
}

fn refused_directory(path: &Path, error: &io::Error, rule: &str, mend: &str) -> ConfigError {
    let value = format!("{} ({error})", path.display());
    ConfigError::new("node.data_dir", value, rule, mend)
}

/// Writes and reads one aligned block of a file without a name.
fn direct_io(path: &Path) -> io::Result<()> {
    let flags = libc::O_TMPFILE | libc::O_DIRECT | libc::O_DSYNC;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)?;
    let mut block = AlignedBytes::zeroed(DISK_ALIGNMENT);
    block.bytes_mut().fill(0xA5);
    file.write_all_at(block.bytes(), 0)?;
    block.bytes_mut().fill(0);
    file.read_exact_at(block.bytes_mut(), 0)?;
    if block.bytes().iter().all(|byte| *byte == 0xA5) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EIO))
    }
}

/// The addresses on which the cores listen: base port, base port + 1 and so on.
pub fn addresses(config: &Config) -> Result<Vec<SocketAddr>, ConfigError> {
    let address = &config.node.address;
    let found = address.to_socket_addrs().map(|mut found| found.next());
    let Ok(Some(base)) = found else {
        let rule = "the host must have an address";
        let mend = "use an IP address or a name that resolves";
        return Err(ConfigError::new("node.address", address, rule, mend));
    };
    let at = |index: usize| SocketAddr::new(base.ip(), base.port() + index as u16);
    Ok((0..config.cores.count).map(at).collect())
}

/// A socket bound to the address; nobody else may be listening there. The port of a process that
/// was just killed is free only when the kernel has taken its rings apart, a little later.
pub fn bind(address: SocketAddr) -> Result<Socket, ConfigError> {
    let until = Instant::now() + PORT_PATIENCE;
    loop {
        match try_bind(address) {
            Err(error)
                if error.raw_os_error() == Some(libc::EADDRINUSE) && Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            bound => return bound.map_err(|error| refused_address(address, &error)),
        }
    }
}

fn try_bind(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    // A port whose last connections still fade away can be used again at once.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Why a socket could not be bound, or not listen.
pub fn refused_address(address: SocketAddr, error: &io::Error) -> ConfigError {
    let (rule, mend) = match error.raw_os_error() {
        Some(libc::EADDRINUSE) => (
            "the port must be free",
            "stop what listens there (ss -ltnp), or choose another port",
        ),
        Some(libc::EADDRNOTAVAIL) => (
            "the host must be an address of this machine",
            "set node.address to one of them, or to 0.0.0.0 with the port",
        ),
        Some(libc::EACCES) => (
            "the port must be allowed for this user",
            "choose a port above 1023",
        ),
        _ => ("must be an address to listen on", "see the error"),
    };
    ConfigError::new("node.address", format!("{address} ({error})"), rule, mend)
}

#[cfg(test)]
#[path = "preflight_tests.rs"]
mod tests;
