//! What hostile clients can make a node hold: real processes, their memory measured.
//!
//! Each test says how much may be held and why (see `limits.rs`) and allows `MARGIN` for what is
//! allocated besides. Without the bound the same clients would make the node hold several times
//! that. Whatever they do, another client's appends are acknowledged and its reads answered.

mod node;

use millrace::client::NewRecord;
use millrace::client::driver::blocking::{Producer, Reader};
use millrace::client::driver::{ProducerConfig, ReaderConfig};
use millrace::limits;
use millrace::limits::FRAME_HEADER;
use millrace::types::{Epoch, Level, LogId, Offset, OriginId, ReadLevel, ShardId};
use millrace::wire::body::{Body, Metadata, PROTOCOL, Read, Status};
use millrace::wire::code::Code;
use millrace::wire::frame::read_header;
use node::{Node, PATIENCE, Place};
use std::fs;
use std::io::{Read as _, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Recent blocks, blocks in flight, fragments of the allocator.
const MARGIN: usize = 64 << 20;
/// How long a hostile client's writes may stand still before it counts as held back.
const STUCK: Duration = Duration::from_millis(500);

/// Resident bytes of the node's process.
fn resident(node: &Node) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.and_then(|kib| kib.parse::<usize>().ok())
        .expect("a size")
        * 1024
}

/// Writes frame after frame until the node reads no further or `most` were taken; never reads.
fn flood(address: &str, frame: impl Fn(u64) -> Vec<u8>, most: u64) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the node listens");
    stream.set_write_timeout(Some(STUCK)).expect("a socket");
    for number in 1..=most {
        if stream.write_all(&frame(number)).is_err() {
            break;
        }
    }
    stream
}

fn log(shard: u16) -> LogId {
    let (origin, shard) = (OriginId(7), ShardId(shard));
    LogId { origin, shard }
}

/// A well-behaved client is served: an append and a read of it, with retries where the node asks
/// for them.
fn is_served(node: &Node, shard: u16) {
    let offset = append(node, shard, 100, 1);
    let config = ReaderConfig::new(shard)
        .from_offset(offset)
        .timeout(PATIENCE);
    let reader = Reader::connect([&node.address[..]], &config.at_seed());
    let mut reader = reader.expect("the node answers");
    assert!(reader.next_record().expect("it is served").is_some());
}

/// Appends so many batches of one record of so many bytes; the offset of the last one.
fn append(node: &Node, shard: u16, bytes: usize, batches: u64) -> u64 {
    let config = ProducerConfig::new().level(Level::Quorum).timeout(PATIENCE);
    let producer = Producer::connect([&node.address[..]], &config.max_batch_records(1));
    let producer = producer.expect("the node answers");
    let send = |_| {
        let record = NewRecord::new(vec![7; bytes]).shard(shard).timestamp_us(1);
        producer.send(record).expect("there is room")
    };
    let waiting: Vec<_> = (0..batches).map(send).collect();
    let acks = waiting
        .into_iter()
        .map(|pending| pending.wait().expect("it is acknowledged"));
    acks.last().expect("at least one").offset.0
}

/// The most that the node holds above `before` while `clients` stay.
fn peak_above(before: usize, node: &Node, clients: &[TcpStream]) -> usize {
    let looks = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        resident(node)
    });
    let peak = looks.max().expect("looked");
    assert!(!clients.is_empty());
    peak.saturating_sub(before)
}

/// Twenty-four clients ask for 900 reads of 1 MiB each and take no answer.
fn pipelined_reads(cores: u16, shard: u16) {
    const BLOCKS: u64 = 48;
    let place = Place {
        port: node::ports::reserve(2),
        ..Place::new()
    };
    let more = format!("[cores]\ncount = {cores}\n");
    let path = place.write_config(1, &more);
    let text = fs::read_to_string(&path).expect("just written");
    fs::write(
        &path,
        text.replace("[cluster]\n", "[cluster]\nshards = 2\n"),
    )
    .expect("written");
    let node = Node::start(&path, &place.address());
    append(&node, shard, 1_000_000, BLOCKS);
    let before = resident(&node);
    let read = |number: u64| {
        let body = Read {
            offset: Offset(number % BLOCKS),
            max_bytes: 1 << 20,
            wait_ms: 20_000,
            level: ReadLevel::Committed.number(),
            last_epoch: Epoch(0),
        };
        Body::from(body).encode(number, log(shard), 0)
    };
    let hostile: Vec<_> = (0..24).map(|_| flood(&node.address, read, 900)).collect();
    let above = peak_above(before, &node, &hostile);
    // Buffers of answers; through another core also their copies, and what the lanes hold.
    let copies = if cores > 1 {
        limits::READ_ANSWER_BYTES + 2 * limits::HANDOFF_BYTES
    } else {
        0
    };
    let most = limits::READ_ANSWER_BYTES + copies + MARGIN;
    println!("held {} of at most {} MiB", above >> 20, most >> 20);
    assert!(above <= most, "{above} bytes above what it held before");
    is_served(&node, shard);
    drop(hostile);
    is_served(&node, 1 - shard);
    assert!(node.stop().success());
}

#[test]
fn pipelined_reads_that_nobody_takes_hold_a_bounded_part_of_memory() {
    pipelined_reads(1, 0);
}

#[test]
fn pipelined_reads_through_another_core_are_bounded_too() {
    if std::thread::available_parallelism().map_or(1, usize::from) > 1 {
        pipelined_reads(2, 1);
    } else {
        println!("not run: one CPU");
    }
}

/// S-84, D-S13: sending never blocks: twelve sockets that take nothing hold up nobody else.
///
/// H-18
#[test]
fn answers_that_nobody_takes_stop_the_questions() {
    let place = Place::new();
    let node = Node::start(&place.write_config(1, ""), &place.address());
    is_served(&node, 0);
    let before = resident(&node);
    let status = |number| Body::from(Status {}).encode(number, log(0), 0);
    let hostile: Vec<_> = (0..12)
        .map(|_| flood(&node.address, status, 100_000))
        .collect();
    let above = peak_above(before, &node, &hostile);
    let most = limits::CORE_ANSWER_BYTES + MARGIN;
    println!("held {} of at most {} MiB", above >> 20, most >> 20);
    assert!(above <= most, "{above} bytes above what it held before");
    is_served(&node, 0);
    drop(hostile);
    assert!(node.stop().success());
}

#[test]
fn a_thousand_idle_connections_cost_their_read_buffers() {
    const IDLE: usize = 1_000;
    raise_file_limit();
    let place = Place::new();
    let node = Node::start(&place.write_config(1, ""), &place.address());
    is_served(&node, 0);
    let before = resident(&node);
    let hello = |number| Body::from(Metadata { protocol: PROTOCOL }).encode(number, log(0), 0);
    let idle: Vec<_> = (0..IDLE).map(|_| flood(&node.address, hello, 1)).collect();
    let above = peak_above(before, &node, &idle);
    let most = IDLE * 2 * limits::READ_BUFFER_BYTES;
    println!("held {} of at most {} MiB", above >> 20, most >> 20);
    assert!(above <= most, "{above} bytes above what it held before");
    is_served(&node, 0);
    let open = node.status()["counters"]["connections_open"].clone();
    assert!(open.as_u64() >= Some(IDLE as u64), "{open} are open");
    drop(idle);
    assert!(node.stop().success());
}

/// Connections that say nothing hold every place that a core has: a client above the bound is told
/// so all the same.
#[test]
fn a_client_above_the_bound_is_told_so_though_idle_connections_hold_every_place() {
    const IDLE: usize = 1_500;
    raise_file_limit();
    let place = Place::new();
    let node = Node::start(&place.write_config(1, ""), &place.address());
    let hello = Body::from(Metadata { protocol: PROTOCOL }).encode(7, log(0), 0);
    // As many as the core serves have said something; all others never do.
    let connect = |_| TcpStream::connect(&node.address).expect("the node listens");
    let served: Vec<_> = (0..limits::CORE_CONNECTIONS)
        .map(|_| flood(&node.address, |_| hello.clone(), 1))
        .collect();
    for mut client in &served {
        client.read_exact(&mut [0; 1]).expect("it is served");
    }
    let silent: Vec<_> = (served.len()..IDLE).map(connect).collect();
    for attempt in 0..8 {
        let mut client = connect(0);
        client.set_read_timeout(Some(PATIENCE)).expect("a socket");
        client.write_all(&hello).expect("it is taken");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("an end, no reset");
        let head: [u8; FRAME_HEADER] = answer[..FRAME_HEADER].try_into().expect("a frame");
        let header = read_header(&head).expect("a frame");
        let body = &answer[FRAME_HEADER..FRAME_HEADER + header.body_len];
        let Some(Ok(Body::Error(error))) = Body::decode(header.kind, body) else {
            panic!("attempt {attempt}: no refusal");
        };
        assert_eq!(
            Code::from_number(error.code),
            Some(Code::TooManyConnections)
        );
        assert_eq!(header.correlation, 7);
    }
    drop((served, silent));
    assert!(node.stop().success());
}

/// Without descriptors for more connections the node says so, counts them, and goes on: its log
/// finds those that it needs for the segments to come, whoever connects.
#[test]
fn connections_that_find_no_descriptor_are_told_and_counted() {
    let place = Place::new();
    let path = place.write_config(1, "");
    let said = place.directory.path().join("said");
    let mut command = node::millrace();
    command.arg("serve").arg("--config").arg(&path);
    command.stderr(fs::File::create(&said).expect("a file"));
    let limit = || {
        let limit = libc::rlimit {
            rlim_cur: 96,
            rlim_max: 96,
        };
        // SAFETY: the call reads the struct that it is given.
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call and touches no memory of the parent.
    unsafe { command.pre_exec(limit) };
    let node = Node::spawn(command, &place.address());
    is_served(&node, 0);
    let connect = |_| TcpStream::connect(&node.address).expect("the kernel takes it");
    let many: Vec<_> = (0..120).map(connect).collect();
    let until = Instant::now() + PATIENCE;
    let full = |said: String| said.contains("NotAccepted") || said.contains("ConnectionsFull");
    let told = || fs::read_to_string(&said).is_ok_and(full);
    while !told() {
        assert!(Instant::now() < until, "nothing was said");
        std::thread::sleep(Duration::from_millis(20));
    }
    let lines = "x".repeat(900_000) + "\n";
    let mut append = node::millrace();
    append.args(["append", "--node", &node.address, "--shard", "0"]);
    let mut append = append
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut input = append.stdin.take().expect("piped");
    for _ in 0..30 {
        input.write_all(lines.as_bytes()).expect("it reads on");
    }
    drop(input);
    assert!(
        append.wait().expect("it ends").success(),
        "the log has rolled six times"
    );
    drop(many);
    is_served(&node, 0);
    assert_eq!(node.status()["shards"][0]["failed"], "");
    let refused = node.status()["counters"]["connections_refused"].clone();
    assert!(refused.as_u64() > Some(0), "{refused} were counted");
    assert!(node.stop().success());
}

/// As many files as the system allows, for this process and the node that it starts: a connection
/// takes two of the node's.
fn raise_file_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls take a limit that lives through them.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}
