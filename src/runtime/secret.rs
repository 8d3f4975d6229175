//! The secret of a cluster as it lies on the disk: who may read it, how long it is.
//!
//! Read once, at the start. What a file holds goes into [`Secrets`], which cannot be shown, and
//! nowhere else: a refusal names the file, its mode, owner or length, never a byte of it.

use crate::config::{Config, ConfigError};
use crate::limits::{SECRET_BYTES_MAX, SECRET_BYTES_MIN};
use crate::wire::message::Message;
use crate::wire::trust::{Secret, Secrets};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What `cluster.secret_file` names; none if it names nothing.
pub fn read(config: &Config) -> Result<Option<Secrets>, ConfigError> {
    let files = config.cluster.secret_files.iter();
    let mut secrets = Vec::new();
    for file in files {
        secrets.push(read_one(file)?);
    }
    let mut secrets = secrets.into_iter();
    Ok(secrets.next().map(|first| Secrets {
        first,
        second: secrets.next(),
    }))
}

fn read_one(path: &Path) -> Result<Secret, ConfigError> {
    let refused = |why: String, rule: &str, mend: String| {
        let value = format!("{} ({why})", path.display());
        ConfigError::new("cluster.secret_file", value, rule, mend)
    };
    let failed = |error: io::Error| {
        let rule = "must be a file that the user of the node can read";
        let mend = "give all nodes a copy of one file, made for example by `head -c 32 \
                    /dev/urandom`, and mode 0600";
        refused(error.to_string(), rule, mend.to_owned())
    };
    // A pipe would wait for somebody who writes into it.
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() {
        let mend = "name a regular file".to_owned();
        return Err(refused("it is none".to_owned(), "must be a file", mend));
    }
    let mode = facts.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let rule = "nobody but its owner may read or write it";
        let mend = format!("chmod 600 {}", path.display());
        return Err(refused(format!("mode {mode:04o}"), rule, mend));
    }
    // SAFETY: the call takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    if facts.uid() != user && facts.uid() != 0 {
        let rule = "must belong to the user of the node or to root";
        let mend = format!("chown {user} {}", path.display());
        return Err(refused(format!("owner {}", facts.uid()), rule, mend));
    }
    let mut bytes = Vec::new();
    let most = SECRET_BYTES_MAX as u64 + 1;
    file.take(most).read_to_end(&mut bytes).map_err(failed)?;
    Secret::new(&bytes).ok_or_else(|| {
        let rule = format!("must hold {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes");
        let mend = "make one for all nodes, for example by `head -c 32 /dev/urandom`";
        let held = match bytes.len() {
            len if len > SECRET_BYTES_MAX => "more".to_owned(),
            len => format!("{len} bytes"),
        };
        refused(held, &rule, mend.to_owned())
    })
}

/// Says once that members have no secret to prove, where other machines may connect.
pub(super) fn warn_of_none(config: &Config, listens: &[SocketAddr]) {
    let open = listens.iter().find(|address| !address.ip().is_loopback());
    let alone = config.cluster.nodes.len() == 1;
    let Some(address) = open.filter(|_| !alone && config.cluster.secret_files.is_empty()) else {
        return;
    };
    let message = Message::NoSecret;
    let (id, mend) = (message.name(), message.mend());
    tracing::warn!(id, %address, "{}; mend: {mend}", message.meaning());
}

#[cfg(test)]
#[path = "secret_tests.rs"]
mod tests;
