//! A cluster of processes for one experiment, through `scripts/cluster`.
//!
//! It is there from [`Cluster::up`] on and gone, with its files, when the value is dropped: at the
//! end, after an error, after a signal. Ports are looked for, so that a cluster of somebody else is
//! never in the way. Read `space.rs` next.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::child::{Child, Ended};
use super::{Place, go_on};
use crate::Failure;
use crate::proxy::{Proxy, Route, Trouble};

/// How far above a node its proxy listens, if there is one.
pub const PEER_PORTS: u16 = 50;

/// Base ports that are tried; a node listens at 100 x id above one of them.
const BASES: [u16; 5] = [7100, 12_100, 17_100, 22_100, 27_100];

/// How long the script may take for anything: it gives up by itself before.
const SCRIPT: Duration = Duration::from_secs(120);

/// What kind of cluster.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Nodes.
    pub nodes: u16,
    /// Shards; as the nodes decide if none are named.
    pub shards: Option<u16>,
    /// Cores of each node.
    pub cores: u16,
    /// Settings, `section.key=value`.
    pub settings: Vec<String>,
    /// How far above its own port a node is reached by the others; 0: they come directly.
    pub peer_ports: u16,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            nodes: 3,
            shards: None,
            cores: 1,
            settings: Vec::new(),
            peer_ports: 0,
        }
    }
}

/// Nodes that run.
pub struct Cluster {
    place: Place,
    dir: PathBuf,
    addresses: Vec<String>,
}

impl Setup {
    /// A proxy in front of every node, `peer_ports` above it; connections between nodes are late by
    /// `delay` each way.
    pub fn proxy(&self, base_port: u16, delay: Duration) -> Result<Proxy, Failure> {
        let route = |id: u16| {
            let at = |more: u16| ([127, 0, 0, 1], base_port + 100 * id + more).into();
            Route {
                listen: at(self.peer_ports),
                target: at(0),
            }
        };
        let routes: Vec<Route> = (1..=self.nodes).map(route).collect();
        let trouble = Trouble {
            delay,
            ..Trouble::default()
        };
        Proxy::start(&routes, trouble).map_err(Failure::failed)
    }

    /// A base port at whose nodes' ports nobody listens.
    pub fn free_base_port(&self) -> Result<u16, Failure> {
        let ports = |base: u16| {
            let of = move |id: u16| base + 100 * id;
            let nodes = 1..=self.nodes;
            let own = nodes
                .clone()
                .flat_map(move |id| (0..self.cores).map(move |k| of(id) + k));
            let others = nodes.map(move |id| of(id) + self.peer_ports);
            own.chain(others.filter(|_| self.peer_ports > 0))
        };
        let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        let found = BASES.into_iter().find(|base| ports(*base).all(free));
        found.ok_or_else(|| Failure::Failed(format!("no free ports above any of {BASES:?}")))
    }
}

impl Cluster {
    /// Starts the nodes in a new folder and waits until every shard is led.
    pub fn up(place: &Place, setup: &Setup, base_port: u16) -> Result<Cluster, Failure> {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let cluster = Cluster {
            place: place.clone(),
            dir: place.work.join(format!("cluster-{number}")),
            addresses: (1..=setup.nodes)
                .map(|id| format!("127.0.0.1:{}", base_port + 100 * id))
                .collect(),
        };
        let mut flags = vec!["up".to_owned(), setup.nodes.to_string()];
        let mut flag = |name: &str, value: String| flags.extend([name.to_owned(), value]);
        flag("--base-port", base_port.to_string());
        flag("--cores", setup.cores.to_string());
        if let Some(shards) = setup.shards {
            flag("--shards", shards.to_string());
        }
        if setup.peer_ports > 0 {
            flag("--peer-ports", setup.peer_ports.to_string());
        }
        for setting in &setup.settings {
            flag("--set", setting.clone());
        }
        let ended = cluster.script(&flags)?;
        match ended.code {
            0 => Ok(cluster),
            2 => Err(Failure::BadInput(ended.last_line())),
            _ => Err(Failure::Failed(ended.tail(30))),
        }
    }

    fn script(&self, flags: &[impl AsRef<OsStr>]) -> Result<Ended, Failure> {
        let mut command = self.command(flags);
        Child::start(&mut command, &self.place.work, "script", SCRIPT)?.wait()
    }

    fn command(&self, flags: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(&self.place.cluster);
        command
            .args(flags)
            .arg("--dir")
            .arg(&self.dir)
            .env("MILLRACE_BIN", self.place.bin.join("millrace"))
            .env("LOADGEN_BIN", self.place.bin.join("loadgen"));
        command
    }

    /// Programs and folders that it was made with.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a load keeps its ledger.
    pub fn ledger(&self) -> PathBuf {
        self.dir.join("run.ledger")
    }

    /// Base address of each node, by id.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The data directory of each node, by id.
    pub fn data(&self) -> Vec<PathBuf> {
        let of = |id| self.dir.join(format!("node-{id}"));
        (1..=self.addresses.len()).map(of).collect()
    }

    /// `id=pid` of each node, separated by commas.
    pub fn pids(&self) -> Result<String, Failure> {
        let ended = self.script(&["pids"])?;
        match ended.code {
            0 => Ok(ended.stdout.trim().to_owned()),
            _ => Err(Failure::Failed(ended.tail(5))),
        }
    }

    /// The process of one node.
    pub fn pid(&self, node: u64) -> Result<u32, Failure> {
        let pids = self.pids()?;
        let own = |pair: &str| {
            pair.split_once('=')
                .filter(|(id, _)| *id == node.to_string())?
                .1
                .parse()
                .ok()
        };
        let pid = pids.split(',').find_map(own);
        pid.ok_or_else(|| Failure::Failed(format!("node {node} does not run")))
    }

    /// Kills a node and starts it again with an empty disk: it has to be brought up from nothing.
    /// Where its old files lie now: to remove them makes the file system discard their blocks, for
    /// which whoever writes to the same disk waits, so the caller does it when nothing is measured.
    pub fn restart_emptied(&self, node: u64) -> Result<PathBuf, Failure> {
        let id = node.to_string();
        let done = |ended: Ended| match ended.code {
            0 => Ok(()),
            _ => Err(Failure::Failed(ended.tail(5))),
        };
        done(self.script(&["kill", &id])?)?;
        let aside = self.dir.join(format!("node-{id}.aside"));
        fs::rename(&self.data()[node as usize - 1], &aside).map_err(Failure::failed)?;
        done(self.script(&["start", &id])?)?;
        Ok(aside)
    }

    /// Stops the nodes; their files stay until the value is dropped.
    pub fn stop(&self) -> Result<(), Failure> {
        go_on()?;
        let ended = self.script(&["down"])?;
        match ended.code {
            0 => Ok(()),
            _ => Err(Failure::Failed(ended.tail(5))),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.dir.join("cluster").exists() {
            // Also after a signal, when nothing else is started any more; what it cannot stop, the
            // calling script tries again.
            let _ = self.command(&["down"]).output();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}
