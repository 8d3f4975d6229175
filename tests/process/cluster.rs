//! A cluster of real nodes on loopback: their directory, ports, configurations and processes.
//!
//! Everything made here goes away with the [`Cluster`], also when a test fails: the nodes, killed
//! by their own ids, and the directory. Should the test's process itself be killed, the kernel
//! kills the nodes. One cluster at a time: each wants the machine for itself. Read `load.rs` next.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace::client::driver::blocking::Client;
use serde_json::Value;
use tempfile::TempDir;

use crate::node::{PATIENCE, millrace, ports};

/// Number of every cluster here.
const CLUSTER: u32 = 7;

/// Small, so that the logs roll.
const SEGMENT_BYTES: u32 = 8 << 20;

/// Ports of a node for clients: one for each core that it may be given.
const PORTS: u16 = 2;

/// Between two looks at something that should come.
const LOOK: Duration = Duration::from_millis(50);

static ALONE: Mutex<()> = Mutex::new(());

/// A cluster; nodes are numbered from 1, as in its configuration.
pub struct Cluster {
    directory: TempDir,
    addresses: Vec<String>,
    nodes: Vec<Option<Child>>,
    _alone: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Starts so many nodes and waits until every shard is led.
    pub fn start(count: usize) -> Cluster {
        let mut cluster = Cluster::place(count);
        for node in cluster.ids() {
            cluster.write_config(node, "");
            cluster.start_node(node);
        }
        cluster.wait_until_led(PATIENCE);
        cluster
    }

    /// So many nodes of which none has a configuration or runs.
    pub fn place(count: usize) -> Cluster {
        // A test that failed while it held the lock has cleaned up nevertheless.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let below = Path::new(env!("CARGO_TARGET_TMPDIR"));
        Cluster {
            directory: tempfile::tempdir_in(below).expect("a temporary directory"),
            addresses: (0..count)
                .map(|_| format!("127.0.0.1:{}", ports::reserve(PORTS)))
                .collect(),
            nodes: (0..count).map(|_| None).collect(),
            _alone: alone,
        }
    }

    pub fn ids(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.nodes.len()
    }

    /// A file beside the nodes' directories.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn data(&self, node: usize) -> PathBuf {
        self.file(&format!("node-{node}"))
    }

    pub fn address(&self, node: usize) -> &str {
        &self.addresses[node - 1]
    }

    /// All addresses, separated by commas.
    pub fn addresses(&self) -> String {
        self.addresses.join(",")
    }

    /// Writes a node's configuration, with these further lines of `[cluster]`.
    pub fn write_config(&self, node: usize, more: &str) {
        let mut text = format!(
            "[node]\nid = {node}\ndata_dir = {:?}\nadmin = \"127.0.0.1:{}\"\n\
             admin_control = true\n[cluster]\nid = {CLUSTER}\n{more}\n",
            self.data(node),
            ports::reserve(1)
        );
        for (index, address) in self.addresses.iter().enumerate() {
            text.push_str(&format!(
                "[[cluster.nodes]]\nid = {}\naddress = \"{address}\"\n",
                index + 1
            ));
        }
        text.push_str(&format!("[log]\nsegment_bytes = {SEGMENT_BYTES}\n"));
        let path = self.file(&format!("node-{node}.toml"));
        fs::write(path, text).expect("the configuration is written");
    }

    /// Starts a node that does not run; returns at once.
    pub fn start_node(&mut self, node: usize) {
        assert!(self.nodes[node - 1].is_none(), "node {node} runs");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.file(&format!("node-{node}.log")))
            .expect("the node's log opens");
        let mut command = millrace();
        command
            .arg("serve")
            .arg("--config")
            .arg(self.file(&format!("node-{node}.toml")))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log);
        die_with_us(&mut command);
        self.nodes[node - 1] = Some(command.spawn().expect("the node starts"));
    }

    /// `kill -9`; returns when the process is gone and its port closed.
    pub fn kill(&mut self, node: usize) {
        let mut child = self.nodes[node - 1].take().expect("the node runs");
        child.kill().expect("the child is ours");
        child.wait().expect("the child is ours");
        self.wait_until_closed(node);
    }

    /// `kill -9` of all nodes: none is waited for before all are told.
    pub fn kill_all(&mut self) {
        for child in self.nodes.iter_mut().flatten() {
            child.kill().expect("the child is ours");
        }
        for node in self.ids() {
            if let Some(mut child) = self.nodes[node - 1].take() {
                child.wait().expect("the child is ours");
                self.wait_until_closed(node);
            }
        }
    }

    /// Stops (`SIGSTOP`) a node's process where it is, or lets it go on.
    pub fn freeze(&self, node: usize, frozen: bool) {
        let child = self.nodes[node - 1].as_ref().expect("the node runs");
        signal(child, if frozen { libc::SIGSTOP } else { libc::SIGCONT });
    }

    /// The number of a node's process.
    pub fn process(&self, node: usize) -> u32 {
        let child = self.nodes[node - 1].as_ref().expect("the node runs");
        child.id()
    }

    /// Waits until a node says that it leads a shard.
    pub fn wait_until_leads(&self, node: usize, shard: usize, limit: Duration) {
        wait_until("the node leads", limit, || {
            self.roles(node).get(shard).map(String::as_str) == Some("leader")
        });
    }

    /// Stops a node cleanly.
    pub fn stop(&mut self, node: usize) {
        let child = self.nodes[node - 1].as_mut().expect("the node runs");
        signal(child, libc::SIGTERM);
        let status = wait_for(child, PATIENCE);
        assert!(status.success(), "node {node} stops with {status}");
        self.nodes[node - 1] = None;
        self.wait_until_closed(node);
    }

    pub fn stop_all(&mut self) {
        for node in self.ids() {
            self.stop(node);
        }
    }

    fn wait_until_closed(&self, node: usize) {
        let address = self.address(node);
        wait_until("the port of a node that ended closes", PATIENCE, || {
            TcpStream::connect(address).is_err()
        });
    }

    /// What the node says of itself; none if it does not answer.
    pub fn status(&self, node: usize) -> Option<Value> {
        let status = Client::connect(self.address(node)).and_then(|mut client| client.status());
        serde_json::from_str(&status.ok()?).ok()
    }

    /// What the node is for each shard.
    pub fn roles(&self, node: usize) -> Vec<String> {
        let role = |shard: Value| shard["role"].as_str().unwrap_or_default().to_owned();
        self.shards(node).into_iter().map(role).collect()
    }

    /// What the node says of each shard.
    pub fn shards(&self, node: usize) -> Vec<Value> {
        let status = self.status(node);
        let shards =
            status.and_then(|mut status| status["shards"].as_array_mut().map(std::mem::take));
        shards.unwrap_or_default()
    }

    /// Waits until every shard has a leader with an open epoch.
    pub fn wait_until_led(&mut self, limit: Duration) {
        wait_until("every shard is led", limit, || {
            self.assert_running();
            let running = self.ids().filter(|node| self.nodes[node - 1].is_some());
            let roles: Vec<_> = running.map(|node| self.roles(node)).collect();
            let led = |shard| {
                let role =
                    |roles: &Vec<String>| roles.get(shard).map(String::as_str) == Some("leader");
                roles.iter().any(role)
            };
            (0..self.nodes.len()).all(led)
        });
    }

    /// Waits until all nodes hold, durably, and have committed the same blocks.
    pub fn wait_until_equal(&mut self, limit: Duration) {
        wait_until("all nodes hold the same", limit, || {
            self.assert_running();
            let ends = |node| {
                let end = |shard: &Value| {
                    ["high_watermark", "durable_end", "log_end"].map(|key| shard[key].as_u64())
                };
                self.shards(node).iter().map(end).collect::<Vec<_>>()
            };
            let all: Vec<_> = self.ids().map(ends).collect();
            let level = |[one, two, three]: &[Option<u64>; 3]| one == two && two == three;
            !all[0].is_empty() && all[0].iter().all(level) && all.iter().all(|ends| *ends == all[0])
        });
    }

    fn assert_running(&mut self) {
        for (index, child) in self.nodes.iter_mut().enumerate() {
            let ended = child
                .as_mut()
                .and_then(|child| child.try_wait().expect("ours"));
            assert!(ended.is_none(), "node {} has ended: {ended:?}", index + 1);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().flatten() {
            end(child);
        }
        if std::thread::panicking() {
            for node in self.ids() {
                let name = format!("node-{node}.log");
                eprintln!("-- end of {name}\n{}", tail(&self.file(&name)));
            }
        }
    }
}

/// The last lines of a file.
pub fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

/// The kernel kills the child when this thread ends, however it ends.
pub fn die_with_us(command: &mut Command) {
    let die = || {
        // SAFETY: the call takes integers and changes this process only, which is the child.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call and touches no memory of the parent.
    unsafe { command.pre_exec(die) };
}

/// Sends a signal to a child that was not waited for.
pub fn signal(child: &Child, signal: i32) {
    // SAFETY: the child is ours and was not waited for, so its number is not another process's.
    unsafe { libc::kill(child.id() as i32, signal) };
}

/// Waits for a child that should end by itself.
pub fn wait_for(child: &mut Child, limit: Duration) -> ExitStatus {
    let mut status = None;
    wait_until("a process ends", limit, || {
        status = child.try_wait().expect("the child is ours");
        status.is_some()
    });
    status.expect("waited for")
}

/// Kills a child; for clean-up, so it cannot fail.
pub fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Looks until it holds; fails the test after `limit`.
pub fn wait_until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < until, "not within {limit:?}: {what}");
        std::thread::sleep(LOOK);
    }
}
