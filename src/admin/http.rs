//! The pages: from a request to an answer.
//!
//! Pages are made anew from one look at the board each. An order goes to every core's mailbox and
//! is answered when all of them have carried it out, or with a refusal that says what to do.

use super::listen::Listener;
use super::{Admin, health, metrics};
use crate::snapshot::{Board, Order, Wish};
use crate::types::{LogId, NodeId, ShardId};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long the cores may take for an order: they look ten times a second.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);

const ONLY_SHOWS: &str = "this port only shows; mend: set node.admin_control = true and restart";

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the pages are made of.
#[derive(Clone)]
struct Desk {
    board: Arc<dyn Board>,
    control: bool,
    peers: Arc<[NodeId]>,
}

/// Serves the port for ever.
pub(super) async fn serve(admin: Admin, board: Arc<dyn Board>) {
    let desk = Desk {
        board,
        control: admin.control,
        peers: admin.peers.into(),
    };
    let pages = Router::new()
        .route("/healthz", get(healthz))
        .route("/status", get(status))
        .route("/metrics", get(metrics_page))
        .route("/links/{peer}/{action}", post(order))
        .route("/shards/{shard}/promote/{node}", post(promote))
        .route("/catch-up/{bytes_per_s}", post(catch_up))
        .route("/scrub/{action}", post(scrub))
        .route("/finalize", post(finalize))
        .fallback(nothing)
        .with_state(desk);
    let served = match tokio::net::TcpListener::from_std(admin.listener) {
        Ok(listener) => axum::serve(Listener::new(listener), pages).await,
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        tracing::error!(%error, "the HTTP port is closed; restart the node to open it again");
    }
}

async fn healthz(State(desk): State<Desk>) -> Response {
    let reasons = health::reasons(&desk.board.snapshot(), Instant::now());
    if reasons.is_empty() {
        return "ok\n".into_response();
    }
    let lines: String = reasons.iter().map(|reason| format!("{reason}\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines).into_response()
}

async fn status(State(desk): State<Desk>) -> Response {
    json_page(StatusCode::OK, &desk.board.snapshot().status)
}

async fn metrics_page(State(desk): State<Desk>) -> Response {
    match metrics::page(desk.board.snapshot()) {
        Ok(page) => ([(header::CONTENT_TYPE, METRICS_TYPE)], page).into_response(),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn nothing() -> Response {
    let text = "no such page; there are /healthz, /status, /metrics and, by POST, \
                /links/PEER/pause, /links/PEER/resume, /shards/SHARD/promote/NODE, \
                /catch-up/BYTES, /scrub/now, /scrub/repair and /finalize";
    refuse(StatusCode::NOT_FOUND, text.to_owned())
}

/// Pauses or resumes the links with a node.
async fn order(State(desk): State<Desk>, Path((peer, action)): Path<(String, String)>) -> Response {
    let pause = match action.as_str() {
        "pause" => true,
        "resume" => false,
        _ => return nothing().await,
    };
    if !desk.control {
        return refuse(StatusCode::FORBIDDEN, ONLY_SHOWS.to_owned());
    }
    let known: Vec<String> = desk.peers.iter().map(NodeId::to_string).collect();
    let found = peer.parse().map(NodeId).ok();
    let Some(node) = found.filter(|node| desk.peers.contains(node)) else {
        let known = match known.is_empty() {
            true => "it is a cluster by itself".to_owned(),
            false => format!("its peers are {}", known.join(", ")),
        };
        let text = format!("this node has no link with node {peer}: {known}");
        return refuse(StatusCode::NOT_FOUND, text);
    };
    match give(&desk, Wish::Pause { peer: node, pause }).await {
        Ok(links) => json_page(StatusCode::OK, &outcome(node, &action, &links)),
        Err(text) => refuse(StatusCode::SERVICE_UNAVAILABLE, text.to_owned()),
    }
}

/// Hands the leadership of a shard to another node.
async fn promote(
    State(desk): State<Desk>,
    Path((shard, node)): Path<(String, String)>,
) -> Response {
    if !desk.control {
        return refuse(StatusCode::FORBIDDEN, ONLY_SHOWS.to_owned());
    }
    let (Ok(shard), Ok(to)) = (shard.parse().map(ShardId), node.parse().map(NodeId)) else {
        let text = "a shard and a node are numbers: /shards/SHARD/promote/NODE";
        return refuse(StatusCode::NOT_FOUND, text.to_owned());
    };
    let conflict = |text: String| refuse(StatusCode::CONFLICT, text);
    match give(&desk, Wish::Promote { shard, to }).await {
        Err(text) => refuse(StatusCode::SERVICE_UNAVAILABLE, text.to_owned()),
        Ok(logs) if logs.is_empty() => conflict(format!(
            "this node does not lead shard {shard}, if there is one; mend: ask its leader, see \
             `millrace status`"
        )),
        Ok(_) if desk.board.snapshot().status["node"] == to.0 => {
            conflict(format!("node {to} leads shard {shard} already"))
        }
        Ok(logs) if logs.iter().any(|(_, begun)| *begun) => {
            let text = format!("shard {shard} is being handed over to node {to}");
            json_page(
                StatusCode::OK,
                &json!({ "shard": shard.0, "to": to.0, "text": text }),
            )
        }
        Ok(_) => conflict(match desk.board.why_no_hand_over(to) {
            Some(why) => format!("shard {shard} cannot be handed over: {why}"),
            None => format!(
                "node {to} cannot take shard {shard} over now; mend: name another member of a set \
                 that elects its leaders, one whose link replicates and lacks nothing"
            ),
        }),
    }
}

/// Sets the pace at which this node lets itself be brought up.
async fn catch_up(State(desk): State<Desk>, Path(bytes_per_s): Path<String>) -> Response {
    if !desk.control {
        return refuse(StatusCode::FORBIDDEN, ONLY_SHOWS.to_owned());
    }
    let Some(bytes_per_s) = bytes_per_s.parse().ok().filter(|rate| *rate <= 1 << 40) else {
        let text = "bytes a second are a whole number up to 2^40, 0 for no bound: /catch-up/BYTES";
        return refuse(StatusCode::BAD_REQUEST, text.to_owned());
    };
    let text = match bytes_per_s {
        0 => "this node is brought up without a bound, until it restarts".to_owned(),
        rate => format!("this node is brought up at {rate} bytes a second, until it restarts"),
    };
    match give(&desk, Wish::CatchUp { bytes_per_s }).await {
        Ok(_) => json_page(
            StatusCode::OK,
            &json!({ "bytes_per_s": bytes_per_s, "text": text }),
        ),
        Err(text) => refuse(StatusCode::SERVICE_UNAVAILABLE, text.to_owned()),
    }
}

/// Reads the logs again, or asks at once for what is damaged.
async fn scrub(State(desk): State<Desk>, Path(action): Path<String>) -> Response {
    let read = match action.as_str() {
        "now" => true,
        "repair" => false,
        _ => return nothing().await,
    };
    if !desk.control {
        return refuse(StatusCode::FORBIDDEN, ONLY_SHOWS.to_owned());
    }
    match give(&desk, Wish::Scrub { read }).await {
        Err(text) => refuse(StatusCode::SERVICE_UNAVAILABLE, text.to_owned()),
        Ok(logs) if logs.is_empty() => {
            let text = "no log of this node is scrubbed: none is open, or no other node holds \
                        them; mend: see `millrace status`";
            refuse(StatusCode::CONFLICT, text.to_owned())
        }
        Ok(logs) => {
            let text = match read {
                true => format!("{} logs are being read", logs.len()),
                false => format!("what is damaged in {} logs is asked for", logs.len()),
            };
            json_page(StatusCode::OK, &json!({ "logs": logs.len(), "text": text }))
        }
    }
}

/// Finalizes the cluster, at this node.
async fn finalize(State(desk): State<Desk>) -> Response {
    if !desk.control {
        return refuse(StatusCode::FORBIDDEN, ONLY_SHOWS.to_owned());
    }
    match desk.board.finalize() {
        Ok(text) => json_page(StatusCode::OK, &json!({ "text": text })),
        Err(why) => refuse(StatusCode::CONFLICT, why),
    }
}

/// Leaves the order with every core; what became of each link.
async fn give(desk: &Desk, wish: Wish) -> Result<Vec<(LogId, bool)>, &'static str> {
    let mut answers = Vec::new();
    for mailbox in desk.board.mailboxes() {
        let (answer, told) = oneshot::channel();
        let order = Order { wish, answer };
        if !mailbox.leave(order) {
            return Err("too many orders wait already; try again");
        }
        answers.push(told);
    }
    let mut links = Vec::new();
    for told in answers {
        match timeout(ORDER_TIMEOUT, told).await {
            Ok(Ok(told)) => links.extend(told),
            _ => return Err("a core does not answer; it may carry the order out later"),
        }
    }
    links.sort_unstable();
    Ok(links)
}

fn outcome(peer: NodeId, action: &str, links: &[(LogId, bool)]) -> serde_json::Value {
    let changed = links.iter().filter(|(_, changed)| *changed).count();
    let text = match (action, links.len(), changed) {
        (_, 0, _) => format!("no log is shared with node {peer}: nothing to {action}"),
        ("pause", _, 0) => format!("the links with node {peer} were paused already"),
        (_, _, 0) => format!(
            "this node has not paused the links with node {peer}; if they are, resume them there"
        ),
        ("pause", all, _) => format!("{changed} of {all} links with node {peer} paused"),
        (_, all, _) => format!("{changed} of {all} links with node {peer} resumed"),
    };
    let link = |(log, changed): &(LogId, bool)| {
        let (origin, shard) = (log.origin.0, log.shard.0);
        json!({ "origin": origin, "shard": shard, "changed": changed })
    };
    json!({
        "peer": peer.0,
        "action": action,
        "changed": changed,
        "text": text,
        "links": links.iter().map(link).collect::<Vec<_>>(),
    })
}

fn json_page(code: StatusCode, value: &serde_json::Value) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (code, kind, format!("{value}\n")).into_response()
}

fn refuse(code: StatusCode, text: String) -> Response {
    json_page(code, &json!({ "error": text }))
}
