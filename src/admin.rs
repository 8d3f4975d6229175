//! The HTTP port of a node, for operators and their tools: health, status, metrics, pausing links.
//!
//! One ordinary thread with a runtime of its own. It reads what the cores publish (`snapshot.rs`)
//! and leaves orders in their mailboxes; it may be slow or dead without any core noticing, and it
//! never touches a record. It must not decide anything about the node. The pages:
//!
//! | request | answer |
//! |---|---|
//! | `GET /healthz` | 200 `ok`, or 503 with the reasons, one a line (`admin/health.rs`) |
//! | `GET /status` | the status as JSON, as `millrace status --json` prints it |
//! | `GET /metrics` | everything that has a number, in OpenMetrics text |
//! | `POST /finalize` | finalizes the cluster at this node; needs `node.admin_control` |
//! | `POST /links/PEER/pause`, `.../resume` | what came of it; needs `node.admin_control` |
//!
//! Read `admin/http.rs` next, then `admin/metrics.rs`.

mod health;
mod http;
mod listen;
mod metrics;

use crate::config::{Config, ConfigError};
use crate::snapshot::Board;
use crate::types::NodeId;
use std::net::TcpListener;
use std::sync::Arc;

/// The port, bound and not served yet.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
    control: bool,
    peers: Vec<NodeId>,
}

/// Binds the port; none if the configuration wants none.
pub fn bind(config: &Config) -> Result<Option<Admin>, ConfigError> {
    let Some(address) = &config.node.admin else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    let listener = listener.map_err(|error| {
        let value = format!("{address} ({error})");
        let rule = "the address must be this machine's and the port free";
        let mend = "name another one, or \"off\"";
        ConfigError::new("node.admin", value, rule, mend)
    })?;
    let members = config.cluster.members().into_iter();
    Ok(Some(Admin {
        listener,
        control: config.node.admin_control,
        peers: members.filter(|node| *node != config.node.id).collect(),
    }))
}

impl Admin {
    /// Starts the thread, which serves until the process ends.
    pub fn start(self, board: Arc<dyn Board>) -> Result<(), ConfigError> {
        let refused = |error: std::io::Error| {
            let rule = "the HTTP port needs a thread and an event loop";
            let mend = "raise the limits of processes and files (ulimit -u, ulimit -n)";
            ConfigError::new("node.admin", error, rule, mend)
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(refused)?;
        let (address, control) = (self.listener.local_addr(), self.control);
        let serve = move || runtime.block_on(http::serve(self, board));
        let thread = std::thread::Builder::new().name("admin".to_owned());
        thread.spawn(serve).map_err(refused)?;
        if let Ok(address) = address {
            tracing::info!(%address, control, "serving status and metrics");
        }
        Ok(())
    }
}
