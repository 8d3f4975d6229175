//! Whose data directory it is: `node.toml`, and the lock of the running process.
//!
//! A data directory belongs to one node of one cluster with one number of shards, for ever; that is
//! written once. What the cluster is finalized with (`wire/capability.rs`) is written beside it and
//! only grows: it is of the node, not of one log, it must be read before anything else of the
//! directory, and a version that does not know the file's words refuses to start, so a downgrade
//! ends before it touches a log. One process at a time uses the directory. The lock is the kernel's
//! (`flock`), so it ends with the process, however that ends.

use super::files::{create_directory, rename_new, sync_directory};
use crate::config::{Config, ConfigError, Kind};
use crate::wire::capability::Capabilities;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a dead process's last writes may take before its lock counts as that of a live one.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// Version of everything in the directory.
const FORMAT: u32 = 1;

#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    format: u32,
    cluster: u32,
    node: u32,
    shards: u16,
    /// Directories of before there was a choice are a set's.
    #[serde(default = "set")]
    kind: String,
    /// Names of the capabilities that the cluster is finalized with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    finalized: Vec<String>,
}

fn set() -> String {
    Kind::Set.name().to_owned()
}

/// Takes the directory for this process, as long as the file is open.
pub fn lock(directory: &Path) -> Result<File, ConfigError> {
    let fail = |value: String, rule: &str, mend: &str| {
        Err(ConfigError::new("node.data_dir", value, rule, mend))
    };
    let path = directory.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = match file {
        Ok(file) => file,
        Err(error) => {
            let value = format!("{} ({error})", path.display());
            return fail(value, "its lock must be writable", "correct its owner");
        }
    };
    let until = Instant::now() + LAST_WRITES;
    loop {
        // SAFETY: takes integers only; the descriptor is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(file);
        }
        if Instant::now() >= until {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let value = directory.display().to_string();
    let rule = "one process at a time may use a data directory, and another one does, or its last \
                writes have not ended";
    fail(value, rule, "stop that process, or name another directory")
}

/// Whether the directory belongs to the configured node; writes that down if nobody did before and
/// `write` is set. What its cluster is finalized with; refused if this version does not know that.
pub fn check(config: &Config, write: bool) -> Result<Capabilities, ConfigError> {
    let directory = &config.node.data_dir;
    let ours = of(config, Capabilities::NONE);
    let path = directory.join("node.toml");
    let fail = |error: &dyn std::fmt::Display, rule: &str, mend: &str| {
        let value = format!("{} ({error})", path.display());
        ConfigError::new("node.data_dir", value, rule, mend)
    };
    match fs::read_to_string(&path) {
        Ok(text) => {
            let found: Identity = toml::from_str(&text).map_err(|error| {
                let mend = "restore it from what `millrace status` last said";
                fail(
                    &error.message(),
                    "node.toml must be as it was written",
                    mend,
                )
            })?;
            compare(directory, &found, &ours)?;
            finalized(&path, &found)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if !write {
                return Ok(Capabilities::NONE);
            }
            let written = write_down(directory, &ours);
            written.map(|()| Capabilities::NONE).map_err(|error| {
                fail(
                    &error,
                    "node.toml must be writable",
                    "correct its owner or its disk",
                )
            })
        }
        Err(error) => Err(fail(
            &error,
            "node.toml must be readable",
            "correct its owner or its disk",
        )),
    }
}

/// What a node of this configuration writes down.
fn of(config: &Config, finalized: Capabilities) -> Identity {
    Identity {
        format: FORMAT,
        cluster: config.cluster.id.0,
        node: config.node.id.0,
        shards: config.cluster.shards,
        kind: config.cluster.kind.name().to_owned(),
        finalized: finalized.names(),
    }
}

/// What a directory says that its cluster is finalized with.
fn finalized(path: &Path, found: &Identity) -> Result<Capabilities, ConfigError> {
    let names = found.finalized.iter().map(String::as_str);
    Capabilities::from_names(names).map_err(|name| {
        let value = format!("{} (finalized with {name})", path.display());
        let rule = format!(
            "a node has all that its cluster is finalized with, and millrace {} does not know this",
            env!("CARGO_PKG_VERSION")
        );
        let mend = "start the version that finalized the cluster, or a newer one; nothing was \
                    changed";
        ConfigError::new("node.data_dir", value, &rule, mend)
    })
}

/// Writes down, durably, that the cluster is finalized with these. The directory is this process's.
pub(super) fn finalize(config: &Config, capabilities: Capabilities) -> io::Result<()> {
    let directory = &config.node.data_dir;
    let unfinished = write_unfinished(directory, &of(config, capabilities))?;
    fs::rename(unfinished, directory.join("node.toml"))?;
    sync_directory(directory)
}

fn compare(directory: &Path, found: &Identity, ours: &Identity) -> Result<(), ConfigError> {
    let facts = |identity: &Identity| {
        let Identity {
            format,
            cluster,
            node,
            shards,
            kind,
            finalized: _,
        } = identity;
        [
            ("format", "the version of millrace", format.to_string()),
            ("cluster", "cluster.id", cluster.to_string()),
            ("kind", "cluster.kind", kind.clone()),
            ("node", "node.id", node.to_string()),
            ("shards", "cluster.shards", shards.to_string()),
        ]
    };
    for ((what, key, theirs), (_, _, ours)) in facts(found).into_iter().zip(facts(ours)) {
        if theirs != ours {
            let directory = directory.display();
            let value = format!("{directory} (its {what} is {theirs}, {key} is {ours})");
            let rule = "a data directory belongs to one node of one cluster";
            let mend = format!("name another directory or correct {key}");
            return Err(ConfigError::new("node.data_dir", value, rule, mend));
        }
    }
    Ok(())
}

fn write_down(directory: &Path, identity: &Identity) -> io::Result<()> {
    create_directory(directory)?;
    let unfinished = write_unfinished(directory, identity)?;
    rename_new(&unfinished, &directory.join("node.toml"))?;
    sync_directory(directory)
}

/// Writes the file under another name, which is returned.
fn write_unfinished(directory: &Path, identity: &Identity) -> io::Result<PathBuf> {
    let text = toml::to_string(identity).map_err(io::Error::other)?;
    let unfinished = directory.join("node.toml.new");
    let mut file = File::create(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok(unfinished)
}
