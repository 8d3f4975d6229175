//! The shell of a node: threads, executors, sockets and files around the pure core.
//!
//! Owns everything that waits or blocks; decides nothing about records. One executor per configured
//! core, pinned, each with its own shards, buffers, ring, port and connections; beside them a
//! metronome, a thread that zeroes spare segments, and the main thread, which waits for signals. It
//! sees the core as events and actions only. Start with `runtime/executor.rs`; an append passes
//! `reader.rs`, `client.rs`, `driver.rs` and `disk.rs`.

mod buffers;
mod client;
mod connection;
mod dial;
mod disk;
pub mod disk_check;
mod driver;
mod executor;
mod files;
mod handoff;
pub mod identity;
mod lane;
mod local;
mod members;
mod metronome;
mod node;
mod peer;
pub mod preflight;
mod reader;
mod refusals;
mod report;
mod ring;
pub mod salvage;
pub mod secret;
mod server;
mod spares;
mod status;
mod trust;
mod twins;

use crate::config::{Config, ConfigError};
use crate::snapshot::{Board, Mailbox, Slot};
use crate::wire::capability::Capabilities;
use crate::wire::trust::Secrets;
use executor::{BLOCKING_THREADS, Prepared};
use files::Place;
use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};
use members::Members;
use metronome::Metronome;
use node::{Counters, Node};
use preflight::Connections;
use socket2::Socket;
use spares::Spares;
use std::fs::File;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Reactor's own memory, registered with three rings: small, so that an ordinary user's limit of
/// locked memory carries several executors. Buffers come from the heap.
const IO_MEMORY: usize = 64 << 10;
/// How long a busy executor goes on before it looks at its sockets.
const PREEMPT_TIMER: Duration = Duration::from_millis(2);
/// How long a clean stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a start may zero spare segments before the port opens.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(3);

/// What only the command line says.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServeOptions {
    /// This node's disk is blank because it is new, not because it was lost.
    pub new_member: bool,
}

/// A panic anywhere ends the whole process: half a node would keep its peers waiting.
pub fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
}

/// Runs a node until a signal stops it. Call from the main thread, before any thread exists that
/// has
/// not inherited `block_signals`.
/// `start_admin` is called once, when the node's cores have something to show.
pub fn serve(
    config: Config,
    options: ServeOptions,
    start_admin: impl FnOnce(Arc<dyn Board>) -> Result<(), ConfigError>,
) -> Result<ExitCode, ConfigError> {
    let signals = block_signals();
    preflight::io_uring()?;
    preflight::memlock(config.cores.count)?;
    let (pinned, cpus) = preflight::cpus(&config)?;
    let addresses = preflight::addresses(&config)?;
    let secrets = secret::read(&config)?;
    preflight::data_directory(&config.node.data_dir)?;
    let lock = identity::lock(&config.node.data_dir)?;
    let finalized = identity::check(&config, true)?;
    secret::warn_of_none(&config, &addresses);
    let sockets: Result<Vec<Socket>, ConfigError> =
        addresses.into_iter().map(preflight::bind).collect();
    let sockets = sockets?;
    let connections = preflight::descriptors(&config)?;
    let found = Found {
        cpus,
        secrets,
        finalized,
        connections,
    };
    let node = prepare_node(config, options, found, lock)?;
    let logs = prepare_logs(&node)?;
    metronome::start(node.metronomes.clone()).map_err(thread_refused)?;
    let spares = node.spares.clone();
    std::thread::Builder::new()
        .name("spares".to_owned())
        .spawn(move || spares.keep_full())
        .map_err(thread_refused)?;
    tracing::info!(node = %node.config.node.id, cluster = %node.config.cluster.id,
        version = env!("CARGO_PKG_VERSION"), cpus = ?pinned, "starting");
    let ended = start_executors(&node, &pinned, logs, sockets)?;
    start_admin(node.clone())?;
    wait(&node, signals, &ended)
}

fn thread_refused(error: std::io::Error) -> ConfigError {
    let rule = "a node needs a few threads";
    ConfigError::new(
        "threads",
        error,
        rule,
        "raise the limit of processes (ulimit -u)",
    )
}

/// What a start found, for the whole node.
struct Found {
    cpus: Vec<usize>,
    secrets: Option<Secrets>,
    finalized: Capabilities,
    connections: Connections,
}

fn prepare_node(
    config: Config,
    options: ServeOptions,
    found: Found,
    lock: File,
) -> Result<Arc<Node>, ConfigError> {
    let Found {
        cpus,
        secrets,
        finalized,
        connections,
    } = found;
    let directory = config.node.data_dir.join("spare");
    let logs = config.cluster.logs().count();
    let spares = Spares::open(&directory, config.log.segment_bytes, logs);
    let spares = spares.map_err(|error| {
        let rule = "its spare segments must be readable and writable";
        files::refused_file(&directory, &error, rule)
    })?;
    if let Err(error) = spares.prepare(PREPARE_TIMEOUT) {
        // A full disk still serves what it holds.
        tracing::warn!(%error, "no spare segment could be prepared");
    }
    let cores = config.cores.count;
    Ok(Arc::new(Node {
        fingerprint: config.fingerprint(),
        secrets,
        members: Members::new(&config, finalized),
        lock,
        spares: Arc::new(spares),
        metronomes: (0..cores).map(|_| Arc::new(Metronome::default())).collect(),
        published: (0..cores).map(|_| Slot::default()).collect(),
        reports: (0..cores).map(|_| Slot::default()).collect(),
        mailboxes: (0..cores).map(|_| Mailbox::default()).collect(),
        started: Instant::now(),
        counters: Counters::default(),
        handoffs: (0..cores).map(|_| AtomicU64::new(0)).collect(),
        cores_stopped: AtomicUsize::new(0),
        boot_id: boot_id(),
        new_member: options.new_member,
        cpus,
        connections,
        config,
    }))
}

/// The kernel's boot id: another one means that the machine was restarted in between.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).expect("hexadecimal digits are text");
        *byte = u8::from_str_radix(pair, 16).expect("hexadecimal digits are a number");
    }
    id
}

/// The logs of every core, their directories and checkpoints made.
fn prepare_logs(node: &Node) -> Result<Vec<Vec<Prepared>>, ConfigError> {
    let config = &node.config;
    let cores = config.cores.count;
    let mut all: Vec<Vec<Prepared>> = (0..cores).map(|_| Vec::new()).collect();
    for log in config.cluster.logs() {
        let place = Place {
            directory: config.node.data_dir.join(log.to_string()),
            dsync: config.log.dsync,
        };
        let files = place.prepare().map_err(|error| {
            let rule = "the log's directory must be readable and writable";
            files::refused_file(&place.directory, &error, rule)
        })?;
        all[usize::from(log.shard.0) % cores].push(Prepared { log, place, files });
    }
    Ok(all)
}

/// How an executor ended.
type Ended = Result<(), ConfigError>;

fn start_executors(
    node: &Arc<Node>,
    pinned: &[usize],
    logs: Vec<Vec<Prepared>>,
    sockets: Vec<Socket>,
) -> Result<Receiver<Ended>, ConfigError> {
    let (sender, ended) = channel();
    let spin = Duration::from_micros(node.config.cores.spin_us);
    let mut lanes = handoff::connect(pinned.len());
    for (index, (logs, socket)) in logs.into_iter().zip(sockets).enumerate() {
        let ends = std::mem::take(&mut lanes[index]);
        let (node, sender) = (node.clone(), sender.clone());
        let mut builder = LocalExecutorBuilder::new(Placement::Fixed(pinned[index]))
            .name(&format!("core-{index}"))
            .preempt_timer(PREEMPT_TIMER)
            .io_memory(IO_MEMORY)
            .blocking_thread_pool_placement(PoolPlacement::Unbound(BLOCKING_THREADS));
        if !spin.is_zero() {
            builder = builder.spin_before_park(spin);
        }
        let spawned = builder.spawn(move || async move {
            let result = executor::run(index, node, logs, ends, socket).await;
            // Nobody listens any more only if the process is ending anyway.
            let _ = sender.send(result);
        });
        spawned.map_err(|error| {
            let rule = "an executor must start on its CPU";
            let value = format!("{} ({error})", pinned[index]);
            let mend = preflight::ring_mend(&error.into());
            ConfigError::new("cores.cpus", value, rule, mend)
        })?;
    }
    Ok(ended)
}

/// Waits for a signal or for an executor that cannot go on; then for a clean stop.
fn wait(
    node: &Arc<Node>,
    signals: libc::sigset_t,
    ended: &Receiver<Ended>,
) -> Result<ExitCode, ConfigError> {
    let (told, signal) = channel();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || wait_for_signal(&signals, &told))
        .map_err(thread_refused)?;
    // An executor ends before a signal only if it could not start.
    while let Err(RecvTimeoutError::Timeout) = signal.recv_timeout(Duration::from_millis(100)) {
        if let Ok(Err(error)) = ended.try_recv() {
            return Err(error);
        }
    }
    tracing::info!("stopping");
    node.metronomes
        .iter()
        .for_each(|metronome| metronome.stop());
    let deadline = Instant::now() + STOP_TIMEOUT;
    for _ in 0..node.config.cores.count {
        let left = deadline.saturating_duration_since(Instant::now());
        match ended.recv_timeout(left) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                tracing::error!("no clean stop within {STOP_TIMEOUT:?}; the logs recover at start");
                return Ok(ExitCode::from(1));
            }
        }
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Blocks the signals that stop a node, for this thread and all that it starts. Call it before the
/// first thread starts; `serve` waits for these signals.
pub fn block_signals() -> libc::sigset_t {
    // SAFETY: a sigset_t is integers; sigemptyset makes it valid, the others change what they are
    // given.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    }
}

fn wait_for_signal(signals: &libc::sigset_t, told: &std::sync::mpsc::Sender<()>) {
    let mut number = 0;
    // SAFETY: the set is valid and the number is ours.
    while unsafe { libc::sigwait(signals, &mut number) } != 0 {}
    let _ = told.send(());
}
