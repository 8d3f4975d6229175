//! The nodes of a chaos run: real processes, each in its namespace, on a small disk of its own.
//!
//! Owns them from the first start to the end, however that comes: dropping the value kills them,
//! and the kernel does so should this process be killed. The file systems are mounted in this
//! process's own view of the mounts (`ip netns exec` gives it one) and go with it. Nothing here
//! decides what is to be disturbed: see `faults.rs`.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::net::{ADMIN, Net};
use crate::Failure;
use crate::lab::{Place, go_on, space};
use crate::nodes::NodeStatus;

/// Bytes of a node's file system; its image takes what is used of it.
const DISK_BYTES: u64 = 8 << 30;
/// Small, so that the logs roll.
const SEGMENT_BYTES: u64 = 8 << 20;
/// How long a node may take to end when it is asked to.
const STOP: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);
const BALLAST: &str = "ballast";

/// All nodes, by id from 1 on.
pub struct Fleet {
    place: Place,
    net: Net,
    /// The program that knows of clocks that are wrong, if there is one.
    faulty: Option<PathBuf>,
    nodes: Vec<Option<Child>>,
    mounted: Vec<PathBuf>,
}

impl Fleet {
    /// Makes the disks and configurations of so many nodes; none runs yet.
    pub fn new(
        place: &Place,
        net: &Net,
        faulty: Option<&Path>,
        nodes: u16,
    ) -> Result<Fleet, Failure> {
        let mut fleet = Fleet {
            place: place.clone(),
            net: net.clone(),
            faulty: faulty.map(Path::to_owned),
            nodes: (0..nodes).map(|_| None).collect(),
            mounted: Vec::new(),
        };
        for node in fleet.ids() {
            fleet.mount(node)?;
            let text = fleet.config(node);
            fs::write(fleet.file(node, "toml"), text).map_err(Failure::failed)?;
        }
        Ok(fleet)
    }

    /// Every id.
    pub fn ids(&self) -> std::ops::RangeInclusive<u16> {
        1..=self.nodes.len() as u16
    }

    /// Whether clocks can be wrong.
    pub fn has_clocks(&self) -> bool {
        self.faulty.is_some()
    }

    /// Where clients reach them.
    pub fn addresses(&self) -> Vec<String> {
        self.ids().map(Net::address).collect()
    }

    /// Data directories.
    pub fn data(&self) -> Vec<PathBuf> {
        self.ids()
            .map(|node| self.disk(node).join("data"))
            .collect()
    }

    fn file(&self, node: u16, end: &str) -> PathBuf {
        self.place.work.join(format!("node-{node}.{end}"))
    }

    fn disk(&self, node: u16) -> PathBuf {
        self.file(node, "disk")
    }

    fn mount(&mut self, node: u16) -> Result<(), Failure> {
        let (image, disk) = (self.file(node, "image"), self.disk(node));
        fs::create_dir_all(&disk).map_err(Failure::failed)?;
        let file = File::create(&image).map_err(Failure::failed)?;
        file.set_len(DISK_BYTES).map_err(Failure::failed)?;
        // No blocks for root: the nodes run as root and are to meet the end of their disk.
        let mut make = Command::new("mkfs.ext4");
        succeed(make.args(["-q", "-F", "-m", "0"]).arg(&image))?;
        let mut mount = Command::new("mount");
        succeed(mount.args(["-o", "loop"]).arg(&image).arg(&disk))?;
        self.mounted.push(disk);
        Ok(())
    }

    fn config(&self, node: u16) -> String {
        let cpus = thread::available_parallelism().map_or(1, |count| count.get() as u16);
        let mut text = format!(
            "[node]\nid = {node}\ndata_dir = {:?}\nadmin = \"{}:{ADMIN}\"\nadmin_control = true\n\
             [cores]\ncpus = [{}]\n[log]\nsegment_bytes = {SEGMENT_BYTES}\n[cluster]\nid = 77\n",
            self.disk(node).join("data"),
            Net::host(node),
            (node - 1) % cpus,
        );
        for other in self.ids() {
            let address = Net::address(other);
            let _ = write!(
                text,
                "[[cluster.nodes]]\nid = {other}\naddress = \"{address}\"\n"
            );
        }
        text
    }

    /// Starts a node that does not run; returns at once. `clock_ms` is how far its clock is off:
    /// only the program built for that is given one.
    pub fn start(&mut self, node: u16, clock_ms: Option<i64>) -> Result<(), Failure> {
        go_on()?;
        assert!(self.child(node).is_none(), "node {node} runs");
        let mut options = File::options();
        options.create(true).append(true);
        let log = options
            .open(self.file(node, "log"))
            .map_err(Failure::failed)?;
        let own = self.place.bin.join("millrace");
        let faulty = self.faulty.as_ref().filter(|_| clock_ms.is_some());
        let program = faulty.unwrap_or(&own);
        let mut command = self.net.command(node, program);
        command
            .args(["serve", "--config"])
            .arg(self.file(node, "toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(Failure::failed)?)
            .stderr(log);
        if let Some(ms) = clock_ms {
            command.env("MILLRACE_CLOCK_OFFSET_MS", ms.to_string());
        }
        // SAFETY: prctl is one system call, allowed between fork and exec.
        unsafe {
            command.pre_exec(
                || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                },
            )
        };
        *self.child(node) = Some(command.spawn().map_err(Failure::failed)?);
        Ok(())
    }

    fn child(&mut self, node: u16) -> &mut Option<Child> {
        &mut self.nodes[usize::from(node) - 1]
    }

    /// Kills a node as a crash would; it is gone when this returns.
    pub fn kill(&mut self, node: u16) -> Result<(), Failure> {
        let mut child = self
            .child(node)
            .take()
            .expect("only nodes that run are killed");
        if let Some(status) = child.try_wait().map_err(Failure::failed)? {
            return Err(Failure::Failed(format!("node {node} had ended: {status}")));
        }
        child.kill().map_err(Failure::failed)?;
        child.wait().map_err(Failure::failed)?;
        Ok(())
    }

    /// Stops a node where it stands, or lets it go on.
    pub fn signal(&mut self, node: u16, number: libc::c_int) -> Result<(), Failure> {
        let child = self
            .child(node)
            .as_ref()
            .expect("only nodes that run are signalled");
        // SAFETY: the process was started here and was not waited for.
        match unsafe { libc::kill(child.id() as libc::pid_t, number) } {
            0 => Ok(()),
            _ => Err(Failure::failed(io::Error::last_os_error())),
        }
    }

    /// Leaves a node's disk without a free byte.
    pub fn fill(&self, node: u16) -> Result<(), Failure> {
        let disk = self.disk(node);
        let file = File::create(disk.join(BALLAST)).map_err(Failure::failed)?;
        let (mut end, mut piece) = (0, space::free_bytes(&disk).unwrap_or(DISK_BYTES));
        while piece >= 4096 {
            // SAFETY: the descriptor is that of an open file.
            let taken = unsafe { libc::fallocate(file.as_raw_fd(), 0, end as i64, piece as i64) };
            match taken {
                0 => end += piece,
                _ => piece /= 2,
            }
        }
        Ok(())
    }

    /// Gives the space back.
    pub fn free(&self, node: u16) -> Result<(), Failure> {
        fs::remove_file(self.disk(node).join(BALLAST)).map_err(Failure::failed)
    }

    /// A node that has ended by itself, with the last that it said.
    pub fn fallen(&mut self) -> Result<(), Failure> {
        for node in self.ids() {
            let Some(child) = self.child(node) else {
                continue;
            };
            if let Some(status) = child.try_wait().map_err(Failure::failed)? {
                *self.child(node) = None;
                let said = fs::read_to_string(self.file(node, "log")).unwrap_or_default();
                let lines: Vec<&str> = said.lines().collect();
                let said = lines[lines.len().saturating_sub(12)..].join("\n");
                let text = format!("node {node} ended by itself, {status}:\n{said}");
                return Err(Failure::Failed(text));
            }
        }
        Ok(())
    }

    /// What a node that is not disturbed says of itself.
    pub fn status(&self, node: u16) -> Result<NodeStatus, Failure> {
        NodeStatus::ask(&Net::address(node)).map_err(Failure::failed)
    }

    /// Asks all nodes to end, and waits for it.
    pub fn stop(&mut self) -> Result<(), Failure> {
        for node in self.ids() {
            self.signal(node, libc::SIGTERM)?;
        }
        let until = Instant::now() + STOP;
        for node in self.ids() {
            let child = self.child(node).as_mut().expect("all nodes run");
            while child.try_wait().map_err(Failure::failed)?.is_none() {
                if Instant::now() >= until {
                    let text = format!("node {node} does not end within {STOP:?}");
                    return Err(Failure::Failed(text));
                }
                thread::sleep(LOOK);
            }
            *self.child(node) = None;
        }
        Ok(())
    }

    /// Where a node's own words are.
    pub fn log(&self, node: u16) -> PathBuf {
        self.file(node, "log")
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().flatten() {
            // An error means that it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        for disk in &self.mounted {
            // What cannot be done now is done by the kernel when this process ends.
            let _ = succeed(Command::new("umount").arg("-l").arg(disk));
        }
    }
}

fn succeed(command: &mut Command) -> Result<(), Failure> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(Failure::failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Failure::Failed(format!("{command:?}: {}", said.trim())))
}
