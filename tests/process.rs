//! Real processes on loopback: real binaries, real signals, real disks.
//!
//! What the simulator proves of the engine's decisions is shown here of the whole program: nodes
//! are killed, lose their disks and run as an ordinary user, while the load generator keeps a
//! ledger of every batch and its verifier walks every file afterwards. `scripts/kill` runs the
//! first test and prints what it saw. Read `process/cluster.rs` for the nodes, `process/load.rs`
//! for the load, `process/kills.rs` for the kills, `process/secret.rs` for nodes that prove a
//! secret to one another, `process/versions.rs` for nodes of two versions.

mod node;

#[path = "process/broken_disk.rs"]
mod broken_disk;
#[path = "process/cluster.rs"]
mod cluster;
#[path = "process/elections.rs"]
mod elections;
#[path = "process/hung_core.rs"]
mod hung_core;
#[path = "process/kills.rs"]
mod kills;
#[path = "process/load.rs"]
mod load;
#[path = "process/older.rs"]
mod older;
#[path = "process/secret.rs"]
mod secret;
#[path = "process/versions.rs"]
mod versions;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use cluster::{Cluster, die_with_us};
use load::{Load, now_ms, verify};
use node::{Node, PATIENCE, Place, finish, millrace, text};

/// A number from the environment, for other runs than the gate's.
fn setting(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    let number = text.parse().ok().filter(|number| *number > 0);
    number.unwrap_or_else(|| panic!("{name}={text}: must be a number above 0"))
}

/// Runs a command with `input`; both ends are served, whatever comes first.
fn feed(mut command: Command, input: Vec<u8>) -> Output {
    die_with_us(&mut command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("piped");
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("the command ends");
    // A command that ends early closes its input.
    let _ = writer.join().expect("the thread writes");
    output
}

fn append(address: &str, shard: usize, input: Vec<u8>, more: &[&str]) -> Output {
    let mut command = millrace();
    command
        .args(["append", "--node", address, "--shard", &shard.to_string()])
        .args(more);
    feed(command, input)
}

fn read(address: &str, shard: usize, end: usize) -> Vec<u8> {
    let mut command = millrace();
    command
        .args(["read", "--node", address, "--shard", &shard.to_string()])
        .args(["--to", &end.to_string()]);
    let output = finish(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    output.stdout
}

fn lines(shard: usize, count: usize) -> Vec<u8> {
    let line = |number| format!("record {number} of shard {shard}, one line of the input\n");
    (0..count)
        .flat_map(|number| line(number).into_bytes())
        .collect()
}

fn assert_appended(output: &Output) {
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Every file below `directory`: its length, when it was changed, and a digest.
fn digests(directory: &Path) -> BTreeMap<PathBuf, (u64, SystemTime, u32)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            let metadata = fs::symlink_metadata(&path).expect("it is there");
            if metadata.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = fs::read(&path).expect("readable");
            let changed = metadata.modified().expect("a time");
            found.insert(path, (metadata.len(), changed, crc32fast::hash(&bytes)));
        }
    }
    found
}

/// S-121, S-127, Q-26, H-63, H-64, H-71
#[test]
fn three_nodes_survive_kills_under_load() {
    let outcome = kills::carry_out(&kills::Plan {
        rounds: setting("KILL_ROUNDS", 3) as usize,
        rate: setting("KILL_RATE", 30_000),
        down: Duration::from_millis(setting("KILL_DOWN_MS", 1000)),
    });
    outcome.assert_holds();
}

/// What the client packed travels, lies and is proven packed; keyed and random records too.
///
/// H-58, H-4, H-14, H-34, H-35
#[test]
fn packed_batches_travel_and_stay_as_the_client_made_them() {
    let mut cluster = Cluster::start(3);
    let mut runs = Vec::new();
    for (name, flags) in [
        ("packed", &["--codec", "zstd", "--key-count", "1000"][..]),
        ("random", &["--codec", "zstd", "--payload", "random"][..]),
        (
            "plain",
            &["--key-count", "1000", "--key-choice", "zipf"][..],
        ),
    ] {
        let load = Load::start_with(&cluster, name, 5_000, flags);
        load.wait_until_resumed(now_ms(), PATIENCE);
        std::thread::sleep(Duration::from_secs(1));
        let run = load.finish();
        assert!(run.records("acked") > 1_000, "{name}: {}", run.report);
        runs.push((name, run));
    }
    cluster.wait_until_equal(PATIENCE);
    cluster.stop_all();
    for (name, run) in &runs {
        verify(&cluster, run);
        let number = |key: &str| run.report[key].as_u64().expect("a number");
        let (raw, stored) = (number("raw_bytes"), number("stored_bytes"));
        let nodes = run.report["nodes"].as_array().expect("a list");
        let links = nodes
            .iter()
            .flat_map(|node| node["links"].as_array().expect("a list"));
        let sent: u64 = links
            .map(|link| link["sent_bytes"].as_u64().expect("a number"))
            .sum();
        println!("{name}: {raw} bytes, {stored} as sent by the client, {sent} on six links");
        assert_eq!(
            raw > 2 * stored,
            *name == "packed",
            "{name}: {raw} to {stored}"
        );
        // Two followers a log, block headers besides; some room for what a link sends again.
        assert!(
            (2 * stored..3 * stored).contains(&sent),
            "{name}: {stored} and {sent}"
        );
        assert!(nodes.iter().all(|node| node["records_encoded"] == 0));
    }
}

/// All nodes are killed at one instant, twice in one run; every acked record is on every node.
///
///
#[test]
fn all_nodes_lose_power_at_once() {
    let mut cluster = Cluster::start(3);
    let load = Load::start(&cluster, "load", 30_000);
    for _ in 0..2 {
        std::thread::sleep(Duration::from_secs(1));
        load.wait_until_acks(10_000, Duration::from_secs(20));
        cluster.kill_all();
        std::thread::sleep(Duration::from_millis(300));
        let back_ms = now_ms();
        for node in cluster.ids() {
            cluster.start_node(node);
        }
        load.wait_until_resumed(back_ms, Duration::from_secs(20));
    }
    let run = load.finish();
    cluster.wait_until_equal(PATIENCE);
    cluster.stop_all();
    let verdict = verify(&cluster, &run);
    println!(
        "acked {}, all there; unknown {}, of which {} are there",
        run.records("acked"),
        run.records("unknown"),
        verdict["nodes"][0]["unknown_present"]
    );
    assert!(run.records("acked") > 30_000);
}

/// A node comes back with an empty directory: as a follower of two logs and as the leader of the
/// third one. Alone with one other node it counts for nothing; with both it copies all, verbatim,
/// and counts again.
///
///
#[test]
fn a_blank_disk_is_refilled() {
    let mut cluster = Cluster::start(3);
    let load = Load::start(&cluster, "load", 30_000);
    load.wait_until_acks(10_000, Duration::from_secs(20));
    std::thread::sleep(Duration::from_secs(1));
    let run = load.finish();
    cluster.wait_until_equal(PATIENCE);

    // Node 3 loses its disk while node 2 is away. A majority of the nodes is there, but not one
    // that knows what was acked before.
    cluster.stop(3);
    cluster.stop(2);
    fs::remove_dir_all(cluster.data(3)).expect("it is ours");
    cluster.start_node(3);
    let quorum = ["--level", "quorum", "--timeout-ms", "2000"];
    let output = append(cluster.address(1), 0, lines(0, 1), &quorum);
    let said = text(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(1),
        "acked without a majority: {said}"
    );
    assert!(
        said.contains("1 unknown") || said.contains("1 failed"),
        "{said}"
    );
    let roles = cluster.roles(3);
    assert!(
        roles.len() == 3 && roles[2] != "leader",
        "leads without a memory: {roles:?}"
    );

    cluster.start_node(2);
    cluster.wait_until_led(PATIENCE);
    cluster.wait_until_equal(PATIENCE);

    // It counts again, as a follower and as a leader: without node 2 there is no other majority.
    cluster.stop(2);
    let patient = ["--level", "quorum", "--timeout-ms", "10000"];
    assert_appended(&append(cluster.address(1), 0, lines(0, 1000), &patient));
    assert_appended(&append(cluster.address(3), 2, lines(2, 1000), &patient));
    cluster.start_node(2);
    cluster.wait_until_led(PATIENCE);

    // And once more under load: node 1 loses the log that it leads while the others go on.
    let load = Load::start(&cluster, "more", 30_000);
    load.wait_until_acks(10_000, Duration::from_secs(20));
    cluster.stop(1);
    fs::remove_dir_all(cluster.data(1)).expect("it is ours");
    cluster.start_node(1);
    load.wait_until_resumed(now_ms(), Duration::from_secs(20));
    let more = load.finish();
    cluster.wait_until_equal(PATIENCE);
    cluster.stop_all();
    verify(&cluster, &run);
    verify(&cluster, &more);
}

/// A clean stop and a start between writing and reading; a follower does not get again what it has.
///
/// S-2, S-124, Q-30
#[test]
fn restart_keeps_the_log() {
    const COUNT: usize = 20_000;
    let mut cluster = Cluster::start(3);
    for shard in 0..3 {
        // A follower gets also what was acknowledged without it, and nobody asks for it again.
        let level = ["quorum", "leader", "local"][shard];
        let more = ["--batch-records", "20", "--level", level];
        let output = append(cluster.address(1), shard, lines(shard, COUNT), &more);
        assert_appended(&output);
    }
    cluster.wait_until_equal(PATIENCE);
    cluster.stop_all();

    for node in cluster.ids() {
        let before = digests(&cluster.data(node));
        let config = cluster.file(&format!("node-{node}.toml"));
        for (flag, value) in [("--data-dir", cluster.data(node)), ("--config", config)] {
            let mut command = millrace();
            command.arg("check").arg(flag).arg(value);
            let output = finish(command);
            assert!(output.status.success(), "{}", text(&output.stdout));
        }
        assert!(
            digests(&cluster.data(node)) == before,
            "check changed node {node}"
        );
    }

    for node in cluster.ids() {
        cluster.start_node(node);
    }
    cluster.wait_until_led(PATIENCE);
    for node in cluster.ids() {
        for shard in 0..3 {
            let found = read(cluster.address(node), shard, COUNT);
            assert!(found == lines(shard, COUNT), "node {node}, shard {shard}");
        }
        let status = cluster.status(node).expect("it answers");
        for shard in status["shards"].as_array().expect("a list") {
            // The first block of the new epoch, and nothing that was there before.
            let admitted = shard["counters"]["blocks_admitted"].as_u64();
            let held = shard["log_end"].as_u64();
            assert!(held > Some(8) && admitted < Some(4), "node {node}: {shard}");
        }
    }
    cluster.stop_all();
}

/// Who runs the node in `an_ordinary_user_can_run_it`.
const NOBODY: u32 = 65_534;

/// Makes the child an ordinary user who may lock 8 MiB.
fn as_nobody(command: &mut Command) {
    command.uid(NOBODY).gid(NOBODY);
    let limit = || {
        let limit = libc::rlimit {
            rlim_cur: 8 << 20,
            rlim_max: 8 << 20,
        };
        // SAFETY: the call reads the struct that it is given.
        match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call and touches no memory of the parent.
    unsafe { command.pre_exec(limit) };
    die_with_us(command);
}

/// The first folder on the way to `path` that others may not pass.
fn closed_folder(path: &Path) -> Option<&Path> {
    let closed = |folder: &&Path| {
        let mode = fs::metadata(folder).map_or(0, |metadata| metadata.mode());
        mode & 0o001 == 0
    };
    path.ancestors().skip(1).find(closed)
}

#[test]
fn an_ordinary_user_can_run_it() {
    // SAFETY: the call takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can become another user");
        return;
    }
    let place = Place::new();
    let ways = [
        Path::new(env!("CARGO_BIN_EXE_millrace")),
        place.directory.path(),
    ];
    if let Some(folder) = ways.into_iter().find_map(closed_folder) {
        println!("skipped: other users cannot pass {}", folder.display());
        return;
    }
    let config = place.write_config(1, "");
    for path in [place.directory.path(), &config] {
        chown(path, Some(NOBODY), Some(NOBODY)).expect("root may");
    }
    let mut command = millrace();
    command.arg("serve").arg("--config").arg(&config);
    as_nobody(&mut command);
    let node = Node::spawn(command, &place.address());
    let owner = fs::metadata(place.data().join("node.toml")).expect("written");
    assert_eq!(owner.uid(), NOBODY);

    let mut command = millrace();
    command.args(["append", "--node", &node.address]);
    as_nobody(&mut command);
    assert_appended(&feed(command, lines(0, 5000)));
    let mut command = millrace();
    command.args(["read", "--node", &node.address]);
    as_nobody(&mut command);
    let output = finish(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout == lines(0, 5000));
    assert!(node.stop().success());
}

#[test]
fn release_binary_knows_no_faults() {
    let binary = fs::read(env!("CARGO_BIN_EXE_millrace")).expect("the binary");
    let holds = |word: &str| {
        let word = word.as_bytes();
        binary.windows(word.len()).any(|window| window == word)
    };
    // A name that every binary knows: the search finds what is there.
    assert!(holds("MILLRACE_LOG"), "the search finds nothing at all");
    let knows = ["MILLRACE_FAULT", "ack_early", "MILLRACE_CLOCK_OFFSET_MS"].map(holds);
    let knows = knows.contains(&true);
    assert_eq!(knows, cfg!(feature = "faults"));
}
