//! One core of a node that stands still: its shards are led elsewhere, those of the other core
//! stay.
//!
//! A core is hung as a bug or a page fault that never ends would hang it: its one thread is stopped
//! through `ptrace`, while the process and its other core go on. Needs two CPUs and the right to
//! trace a child. Read `cluster.rs` and `elections.rs` first.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, wait_until};
use crate::node::PATIENCE;
use crate::{append, assert_appended, lines, read};

const CORES: usize = 2;
const SHARDS: usize = 6;
/// Led by node 1 where nothing is wrong; the second one lives on its second core.
const STAYS: usize = 0;
const MOVES: usize = 3;
const FAIL_OVER: Duration = Duration::from_secs(30);
/// The leader was caught up for ten seconds, and a loaded machine.
const GIVEN_BACK: Duration = Duration::from_secs(90);
const RECORDS: usize = 1000;

/// A thread of a child that is stopped until this is dropped.
struct Hung {
    thread: i32,
}

impl Hung {
    /// Stops a thread; why not, where the kernel refuses.
    fn new(thread: i32) -> Result<Hung, String> {
        trace(libc::PTRACE_SEIZE, thread)?;
        // From here on it is let go whatever happens.
        let hung = Hung { thread };
        trace(libc::PTRACE_INTERRUPT, thread)?;
        let mut status = 0;
        // SAFETY: the thread is traced by this one, and the status lives through the call.
        let found = unsafe { libc::waitpid(thread, &mut status, libc::__WALL) };
        if found == thread && libc::WIFSTOPPED(status) {
            return Ok(hung);
        }
        Err(format!("thread {thread} does not stop: {status}"))
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // A thread that is gone needs nothing.
        let _ = trace(libc::PTRACE_DETACH, self.thread);
    }
}

fn trace(request: libc::c_uint, thread: i32) -> Result<(), String> {
    // SAFETY: these requests take no memory of ours; the thread is one of a child that we started.
    match unsafe { libc::ptrace(request, thread, 0, 0) } {
        -1 => Err(std::io::Error::last_os_error().to_string()),
        _ => Ok(()),
    }
}

/// The thread of a node's core. Threads that it starts inherit its name, and have later numbers.
fn thread_of(process: u32, core: usize) -> i32 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the child runs");
    let named = |number: &i32| {
        let comm = fs::read_to_string(format!("/proc/{process}/task/{number}/comm"));
        comm.is_ok_and(|name| name.starts_with(&format!("core-{core}-")))
    };
    let numbers = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(named).min().expect("each core has a thread")
}

/// The core is hung, or a line says that the test is skipped: containers may forbid `ptrace`, even
/// to root.
fn hung_or_skip(process: u32, core: usize) -> Option<Hung> {
    match Hung::new(thread_of(process, core)) {
        Ok(hung) => Some(hung),
        Err(why) => {
            println!("skipped: 1 test needs to trace a child: {why}");
            None
        }
    }
}

/// Role and epoch of each shard as a node shows them; a core that is hung shows nothing.
fn views(cluster: &Cluster, node: usize) -> BTreeMap<usize, (String, u64)> {
    let view = |shard: Value| {
        let role = shard["role"].as_str()?.to_owned();
        let number = shard["shard"].as_u64()? as usize;
        Some((number, (role, shard["epoch"].as_u64()?)))
    };
    cluster.shards(node).into_iter().filter_map(view).collect()
}

fn leads(cluster: &Cluster, node: usize, shard: usize) -> bool {
    let views = views(cluster, node);
    views.get(&shard).is_some_and(|(role, _)| role == "leader")
}

fn two_cores_each() -> Cluster {
    let mut cluster = Cluster::place(3);
    for node in cluster.ids() {
        let more =
            format!("shards = {SHARDS}\nelection_timeout_ms = 2000\n[cores]\ncount = {CORES}");
        cluster.write_config(node, &more);
        cluster.start_node(node);
    }
    wait_until("each node leads its shards", GIVEN_BACK, || {
        (0..SHARDS).all(|shard| leads(&cluster, shard % 3 + 1, shard))
    });
    cluster
}

fn quorum(cluster: &Cluster, node: usize, shard: usize) {
    let more = ["--level", "quorum", "--timeout-ms", "20000"];
    let output = append(cluster.address(node), shard, lines(shard, RECORDS), &more);
    assert_appended(&output);
}

/// A core sends the heartbeats of its shards itself, so one that hangs loses what it leads.
#[test]
fn hung_core_loses_leadership() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < CORES {
        println!("skipped: 1 test needs {CORES} CPUs, here are {cpus}");
        return;
    }
    let mut cluster = two_cores_each();
    for shard in 0..SHARDS {
        quorum(&cluster, shard % 3 + 1, shard);
    }
    let before = views(&cluster, 1);
    let since = std::time::Instant::now();
    let Some(hung) = hung_or_skip(cluster.process(1), MOVES % CORES) else {
        return cluster.stop_all();
    };
    wait_until(
        "another node leads the hung core's shard",
        FAIL_OVER,
        || [2, 3].iter().any(|node| leads(&cluster, *node, MOVES)),
    );
    println!("led by another node after {:?}", since.elapsed());
    let next = [2, 3]
        .into_iter()
        .find(|node| leads(&cluster, *node, MOVES));
    quorum(&cluster, next.expect("one of them leads"), MOVES);
    // The other core of the same node keeps its shard, in the same epoch, and commits there.
    quorum(&cluster, 2, STAYS);
    let shown = views(&cluster, 2);
    assert_eq!(shown[&STAYS], ("follower".to_owned(), before[&STAYS].1));
    assert!(shown[&MOVES].1 > before[&MOVES].1, "{shown:?}");

    drop(hung);
    wait_until("the hung core follows or leads again", FAIL_OVER, || {
        let views = views(&cluster, 1);
        let role = views
            .get(&MOVES)
            .filter(|(_, epoch)| *epoch > before[&MOVES].1);
        role.is_some_and(|(role, _)| role == "follower" || role == "leader")
    });
    cluster.wait_until_equal(PATIENCE);
    wait_until("node 1 is given its shard back", GIVEN_BACK, || {
        leads(&cluster, 1, MOVES)
    });
    assert_eq!(views(&cluster, 1)[&STAYS].1, before[&STAYS].1);
    let twice = lines(MOVES, RECORDS).repeat(2);
    for node in cluster.ids() {
        let found = read(cluster.address(node), MOVES, 2 * RECORDS);
        assert!(found == twice, "node {node}");
    }
    cluster.stop_all();
}
