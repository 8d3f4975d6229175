//! Nodes as real processes, for tests: a temporary directory, a free port, a configuration, a
//! child.
//!
//! A child is killed by its own id when its handle is dropped, and its directory goes away with the
//! test. Nothing else on the machine is touched.

#![allow(dead_code)]

pub mod loadgen;
pub mod mount;
pub mod ports;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The command, without arguments.
pub fn millrace() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    for (name, _) in std::env::vars() {
        if name.starts_with("MILLRACE_") {
            command.env_remove(name);
        }
    }
    command
}

/// One node's place: directory, port, configuration.
pub struct Place {
    pub directory: tempfile::TempDir,
    pub port: u16,
}

impl Place {
    /// A place below the build directory, which lies on a disk.
    pub fn new() -> Place {
        let below = Path::new(env!("CARGO_TARGET_TMPDIR"));
        Place {
            directory: tempfile::tempdir_in(below).expect("a temporary directory"),
            port: ports::reserve(1),
        }
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Writes the configuration of a node that is a cluster by itself; the path of the file.
    pub fn write_config(&self, node: u32, more: &str) -> PathBuf {
        let text = format!(
            "[node]\nid = {node}\ndata_dir = {:?}\n[cluster]\nid = 7\n[[cluster.nodes]]\n\
             id = {node}\naddress = \"{}\"\n[log]\nsegment_bytes = 4194304\n{more}",
            self.data(),
            self.address(),
        );
        let path = self
            .directory
            .path()
            .join(format!("node-{node}-{}.toml", self.port));
        fs::write(&path, text).expect("the configuration is written");
        path
    }
}

/// A running node.
pub struct Node {
    child: Child,
    pub address: String,
}

impl Node {
    /// Starts a node and waits until its port is open.
    pub fn start(config: &Path, address: &str) -> Node {
        let mut command = millrace();
        command.arg("serve").arg("--config").arg(config);
        Node::spawn(command, address)
    }

    /// Starts a node by this command and waits until its port is open.
    pub fn spawn(mut command: Command, address: &str) -> Node {
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .expect("the node starts");
        let mut node = Node {
            child,
            address: address.to_owned(),
        };
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            let ended = node.child.try_wait().expect("the child is ours");
            assert!(ended.is_none(), "the node ended: {ended:?}");
            assert!(Instant::now() < until, "the node's port stays closed");
            std::thread::sleep(Duration::from_millis(10));
        }
        node
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Takes the node's power away. Returns when its port is closed, which takes the kernel a
    /// little longer than to end the process.
    pub fn kill(mut self) {
        self.child.kill().expect("the child is ours");
        self.child.wait().expect("the child is ours");
        self.wait_until_closed();
    }

    fn wait_until_closed(&self) {
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(&self.address).is_ok() {
            assert!(Instant::now() < until, "the port of a dead node stays open");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops the node cleanly.
    pub fn stop(mut self) -> ExitStatus {
        // SAFETY: the child is ours and was not waited for, so its number is not another process's.
        unsafe { libc::kill(self.pid(), libc::SIGTERM) };
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                self.wait_until_closed();
                return status;
            }
            assert!(Instant::now() < until, "the node does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The node's status.
    pub fn status(&self) -> serde_json::Value {
        let output = millrace()
            .args(["status", "--json", "--node", &self.address])
            .output()
            .expect("the command runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("the status is JSON")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that should end by itself, soon.
pub fn finish(mut command: Command) -> Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    // Both are read while it runs: a full pipe would stop it.
    let stdout = drain(child.stdout.take().expect("piped"));
    let stderr = drain(child.stderr.take().expect("piped"));
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            break status;
        }
        if Instant::now() > until {
            child.kill().expect("the child is ours");
            child.wait().expect("the child is ours");
            panic!("the command does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    Output {
        status,
        stdout: stdout.join().expect("the thread reads"),
        stderr: stderr.join().expect("the thread reads"),
    }
}

fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    })
}

/// A node that must refuse to start: exit 2 and one line, which holds all of `words`.
pub fn refuses(command: Command, words: &[&str]) {
    let output = finish(command);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let lines: Vec<_> = BufReader::new(&output.stderr[..]).lines().collect();
    assert_eq!(lines.len(), 1, "one line: {said}");
    for word in words.iter().chain(&["mend: "]) {
        assert!(said.contains(word), "no `{word}` in: {said}");
    }
}
