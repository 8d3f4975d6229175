//! `millrace link pause|resume PEER`: stops and restarts replication between two nodes.
//!
//! Asks the node for its status, which names its HTTP port, and gives the order there. A pause
//! lasts until it is resumed or the node restarts, and holds for every link between the two nodes,
//! in both directions.

use super::{Failure, node_address, say};
use clap::{Args, Subcommand};
use millrace::client::driver::blocking::Client;
use millrace::client::driver::in_time;
use millrace::types::whole;
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

/// How long the node's HTTP port may take: longer than it gives its cores.
const PATIENCE: Duration = Duration::from_secs(10);

/// Arguments of `link`.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Stop sending between the node and PEER.
    Pause(Target),
    /// Go on.
    Resume(Target),
    /// Set the pace at which the node is brought up when it is behind, until it restarts.
    CatchUp(Pace),
}

#[derive(Args, Debug)]
struct Pace {
    /// Bytes a second, shared evenly by its logs; 0 for no bound (link.catch_up_bytes_per_s).
    #[arg(value_parser = whole(0, 1_u64 << 40))]
    bytes_per_s: u64,
    /// The node that is behind, at its port for clients.
    #[arg(long, value_name = "HOST:PORT", value_parser = node_address)]
    node: String,
}

#[derive(Args, Debug)]
struct Target {
    /// The other node's id.
    #[arg(value_parser = whole(1, u32::MAX))]
    peer: u32,
    /// The node to ask, at its port for clients (node.address). It names its HTTP port (node.admin)
    /// by itself, and needs one, and node.admin_control.
    #[arg(long, value_name = "HOST:PORT", value_parser = node_address)]
    node: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (path, node) = match &arguments.action {
        Action::Pause(target) => (format!("/links/{}/pause", target.peer), &target.node),
        Action::Resume(target) => (format!("/links/{}/resume", target.peer), &target.node),
        Action::CatchUp(pace) => (format!("/catch-up/{}", pace.bytes_per_s), &pace.node),
    };
    order(&admin_port(node)?, &path)?;
    Ok(ExitCode::SUCCESS)
}

/// Gives an order to a node's HTTP port and says what came of it.
pub(super) fn order(address: &str, path: &str) -> Result<(), Failure> {
    let failed = |error| Failure::Failed(format!("{address}: {}", in_time(error, PATIENCE)));
    let (code, body) = post(address, path).map_err(failed)?;
    let answer: Value = serde_json::from_str(&body)
        .map_err(|_| Failure::Failed(format!("{address}: no answer of a node: {body}")))?;
    if code != 200 {
        let text = answer["error"].as_str().unwrap_or(&body);
        return Err(Failure::Failed(text.to_owned()));
    }
    say(format_args!("{}", answer["text"].as_str().unwrap_or(&body)))?;
    Ok(())
}

/// The node's HTTP port, as it says itself. One that listens everywhere is asked at the node's
/// host.
pub(super) fn admin_port(node: &str) -> Result<String, Failure> {
    let status = Client::connect(node)?.status()?;
    let status: Value = serde_json::from_str(&status)
        .map_err(|error| Failure::Failed(format!("the node's status is no JSON: {error}")))?;
    let Some(address) = status["admin"]["address"].as_str() else {
        let text = "the node has no HTTP port; mend: set node.admin, for example to \
                    127.0.0.1:7900, and node.admin_control = true, and restart it";
        return Err(Failure::Failed(text.to_owned()));
    };
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let everywhere = matches!(host, "0.0.0.0" | "[::]");
    let host = match node.rsplit_once(':') {
        Some((node_host, _)) if everywhere => node_host,
        _ => host,
    };
    Ok(format!("{host}:{port}"))
}

/// Status code and body of the answer.
fn post(address: &str, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let code = code.ok_or_else(|| io::Error::other("no answer in HTTP"))?;
    Ok((code, body.to_owned()))
}
