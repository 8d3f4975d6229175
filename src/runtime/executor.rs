//! One executor: what runs on one core from its first moment to its last.
//!
//! Builds the ring, the pool, the disk and the shards of the core, starts their tasks, opens the
//! port and waits for a stop. The order matters: the kernel's workers get their CPUs before
//! anything needs one, and the port opens when everything behind it is there.

use super::buffers::Pool;
use super::dial;
use super::disk::Disk;
use super::driver::Core;
use super::files::{Place, open_direct, refused_file};
use super::handoff::{self, Handoffs};
use super::local::Clock;
use super::metronome::Metronome;
use super::node::Node;
use super::preflight::{self, refused_address};
use super::ring::Ring;
use super::server;
use crate::config::{ConfigError, Kind};
use crate::limits;
use crate::shard::{FileEntry, FileName, LinkConfig, Retention, Shard, ShardConfig, WalConfig};
use crate::types::LogId;
use glommio::io::BufferedFile;
use glommio::net::TcpListener;
use glommio::timer::sleep;
use socket2::Socket;
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Operations in the ring at once; more wait in a queue.
const RING_DEPTH: u32 = 256;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Blocking threads of a core, and so file operations at once.
pub(super) const BLOCKING_THREADS: usize = 2;
/// How long answers may take to leave when the node stops.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A log of this core before its shard exists.
pub(super) struct Prepared {
    pub(super) log: LogId,
    pub(super) place: Place,
    pub(super) files: Vec<FileEntry>,
}

/// Runs a core until it has stopped cleanly.
pub(super) async fn run(
    index: usize,
    node: Arc<Node>,
    prepared: Vec<Prepared>,
    lanes: handoff::Ends,
    socket: Socket,
) -> Result<(), ConfigError> {
    let fail = |error: io::Error| {
        let rule = "io_uring and eventfd must work";
        let mend = preflight::ring_mend(&error);
        ConfigError::new("io_uring", error, rule, mend)
    };
    // Before anything else waits: only the metronome gets an executor going that parks too soon.
    let started = listen_to_metronome(&node.metronomes[index]);
    // The first park takes about 10 ms; now nobody waits for it.
    sleep(Duration::from_millis(1)).await;
    let (ring, eventfd) = Ring::new(RING_DEPTH, &node.cpus, node.lock.as_raw_fd()).map_err(fail)?;
    let core = build(index, node, ring, prepared, lanes)?;
    // Whoever finds the port open finds a status too.
    core.publish();
    started.replace(Some(core.clone()));
    start_tasks(&core, eventfd);
    let address = listen(&core, socket)?;
    tracing::info!(core = index, %address, "listening");
    core.stopped.wait().await;
    // Requests that others handed to this core are answered as long as any core is at work.
    let node = &core.node;
    node.cores_stopped.fetch_add(1, Ordering::AcqRel);
    while node.cores_stopped.load(Ordering::Acquire) < node.config.cores.count {
        sleep(Duration::from_millis(1)).await;
    }
    let queued = || {
        let connections = core.connections.borrow();
        let mut connections = connections.values();
        core.handoffs.are_busy() || connections.any(|c| c.has_words_to_say())
    };
    let until = core.clock.now().plus_us(LAST_WORDS.as_micros() as u64);
    while queued() && core.clock.now() < until {
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

fn build(
    index: usize,
    node: Arc<Node>,
    ring: Ring,
    prepared: Vec<Prepared>,
    lanes: handoff::Ends,
) -> Result<Rc<Core>, ConfigError> {
    let clock = Clock::new();
    let mut disk = Disk::new(ring, node.spares.clone());
    let mut shards = Vec::new();
    for log in prepared {
        let path = log.place.path(FileName::Checkpoint);
        let checkpoint = open_direct(&path, false, log.place.dsync)
            .map_err(|error| refused_file(&path, &error, "the checkpoint must open"))?;
        disk.add_log(log.place, checkpoint);
        let config = shard_config(&node, log.log);
        shards.push((log.log, Shard::new(config, log.files, clock.now())));
    }
    let config = &node.config;
    let block = (config.log.max_batch_bytes + limits::BLOCK_HEADER).max(config.log.max_block_bytes);
    let budget = limits::core_buffer_bytes(&limits::BufferNeeds {
        logs: shards.len(),
        nodes: config.cluster.nodes.len(),
        block_bytes: block,
        write_depth: config.log.write_depth,
        credit_bytes: config.link.initial_credit_bytes as usize,
    });
    let pool = Pool::new(budget);
    let handoffs = Handoffs::new(lanes);
    let core = Core::new(index, node, (pool, disk, handoffs), shards, clock);
    Ok(Rc::new(core))
}

fn shard_config(node: &Node, log: LogId) -> ShardConfig {
    let config = &node.config;
    let link = LinkConfig {
        initial_credit: config.link.initial_credit,
        initial_credit_bytes: config.link.initial_credit_bytes,
        catch_up_bytes_per_s: node.share_of_pace(config.link.catch_up_bytes_per_s),
        rpc_timeout_us: config.link.rpc_timeout_ms * 1000,
        retry_backoff_us: config.link.retry_backoff_ms * 1000,
        election_timeout_us: config.cluster.election_timeout_ms * 1000,
        ..LinkConfig::default()
    };
    let wal = WalConfig {
        segment_bytes: config.log.segment_bytes,
        max_block_bytes: config.log.max_block_bytes,
        max_batch_bytes: config.log.max_batch_bytes,
        max_block_records: config.log.max_block_records,
        write_depth: config.log.write_depth,
        batch_timeout_us: config.log.batch_timeout_ms * 1000,
        retention: Retention {
            trim_bytes: config.log.retention.trim_bytes,
            refuse_bytes: config.log.retention.refuse_bytes,
            age_us: config.log.retention.age_s.map(|age_s| age_s * 1_000_000),
        },
        scrub_bytes_per_s: config.log.scrub_bytes_per_s,
        scrub_interval_us: config.log.scrub_interval_s * 1_000_000,
        boot_id: node.boot_id,
        writes_survive: config.log.dsync,
        ..WalConfig::with_defaults(log, config.cluster.members())
    };
    ShardConfig {
        node: config.node.id,
        leader: config.cluster.leader(log),
        electing: config.cluster.election,
        seed: started_at(),
        mesh: config.cluster.kind == Kind::Mesh,
        wal,
        link,
        new_member: node.new_member,
    }
}

/// When this process asked, nanoseconds: nodes that are started together differ in it, so their
/// election timeouts do as well.
fn started_at() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Starts the task that the metronome wakes; the core goes to where it looks once it is there.
fn listen_to_metronome(metronome: &Arc<Metronome>) -> Rc<RefCell<Option<Rc<Core>>>> {
    let started = Rc::new(RefCell::new(None));
    let (metronome, listener) = (metronome.clone(), started.clone());
    glommio::spawn_local(async move {
        let core = || -> Option<Rc<Core>> { listener.borrow().clone() };
        let stop = || core().map(|core| core.stop()).is_some();
        let hear = || core().iter().for_each(|core| handoff::hear(core));
        metronome.listen(stop, hear).await;
    })
    .detach();
    started
}

fn start_tasks(core: &Rc<Core>, eventfd: OwnedFd) {
    glommio::spawn_local(core.clone().collect_for_ever()).detach();
    glommio::spawn_local(core.clone().keep_time()).detach();
    glommio::spawn_local(hear_completions(core.clone(), eventfd)).detach();
    for _ in 0..BLOCKING_THREADS {
        glommio::spawn_local(carry_out_requests(core.clone())).detach();
    }
    handoff::start(core);
    glommio::spawn_local(server::watch(core.clone())).detach();
    glommio::spawn_local(dial::dial_for_shards(core.clone())).detach();
    let config = &core.node.config;
    let peers = config.cluster.members().into_iter();
    // One connection a pair: two would each be the newest to one side, and heartbeats would pass
    // each other.
    for node in peers.filter(|node| *node > config.node.id) {
        let known_cores = Rc::new(Cell::new(1));
        glommio::spawn_local(dial::control(core.clone(), node, 0, known_cores)).detach();
    }
}

/// Opens the port.
fn listen(core: &Rc<Core>, socket: Socket) -> Result<std::net::SocketAddr, ConfigError> {
    let address = socket
        .local_addr()
        .ok()
        .and_then(|address| address.as_socket());
    let address = address.expect("a bound socket has an address");
    socket
        .listen(BACKLOG)
        .map_err(|error| refused_address(address, &error))?;
    // SAFETY: the descriptor was given up by `socket` and belongs to nobody else.
    let listener = unsafe { TcpListener::from_raw_fd(socket.into_raw_fd()) };
    glommio::spawn_local(server::accept(core.clone(), listener)).detach();
    Ok(address)
}

/// Waits for completions of the ring: never ends.
async fn hear_completions(core: Rc<Core>, eventfd: OwnedFd) {
    // SAFETY: the descriptor was given up by `eventfd` and belongs to nobody else.
    let file = unsafe { BufferedFile::from_raw_fd(eventfd.into_raw_fd()) };
    loop {
        if let Err(error) = file.read_at(0, size_of::<u64>()).await {
            tracing::debug!(%error, "the ring's eventfd");
        }
        core.disk_is_ready();
    }
}

/// Hands file operations to a blocking thread, one at a time: never ends.
async fn carry_out_requests(core: Rc<Core>) {
    let requests = core.disk.borrow().requests();
    loop {
        let request = requests.next().await;
        let outcome = glommio::executor()
            .spawn_blocking(move || request.carry_out())
            .await;
        core.disk_finished(outcome);
    }
}
