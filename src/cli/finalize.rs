//! `millrace finalize`: makes what all nodes of a cluster can a fact of the cluster.
//!
//! Asks one node who belongs to the cluster and each of them what it can, and shows that. With
//! `--yes`, and only if all answer and none lacks what another one has, it gives each node the
//! order at its HTTP port. A node checks once more for itself; one that was given the order before
//! says so, so what broke off is simply repeated. From then on a node of an older version is
//! refused by all others. It cannot be taken back.

use super::link::{admin_port, order};
use super::status::{cell, table};
use super::{Failure, node_address, say};
use clap::Args;
use millrace::client::driver::blocking::Client;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::ExitCode;

/// Arguments of `finalize`.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Any node of the cluster.
    #[arg(long, value_name = "HOST:PORT", value_parser = node_address)]
    node: String,
    /// Do it. Each node needs node.admin and node.admin_control.
    #[arg(long)]
    yes: bool,
}

/// One configured node, and what it says of itself.
struct Member {
    node: Value,
    address: String,
    said: Result<Value, String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let first = status(&arguments.node).map_err(Failure::Failed)?;
    let listed = first["members"].as_array();
    let Some(listed) = listed.filter(|listed| !listed.is_empty()) else {
        let version = cell(&first["version"]);
        let text =
            format!("that node (millrace {version}) does not know of finalizing; upgrade it");
        return Err(Failure::Failed(text));
    };
    let member = |row: &Value| {
        let address = row["address"].as_str().unwrap_or_default().to_owned();
        Member {
            node: row["node"].clone(),
            said: status(&address).and_then(|said| the_same(&said, &first, row).map(|()| said)),
            address,
        }
    };
    let members: Vec<Member> = listed.iter().map(member).collect();
    show(&members)?;
    let able: BTreeSet<String> = members
        .iter()
        .flat_map(|one| names(one, "capabilities"))
        .collect();
    let all = able.iter().cloned().collect::<Vec<_>>().join(" ");
    let done = |one: &Member| names(one, "finalized") == able;
    say(format_args!(""))?;
    if members.iter().all(done) {
        say(format_args!("finalized with {all}: nothing is left to do"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let hindrance = members.iter().find_map(|one| hinders(one, &able));
    match (hindrance, arguments.yes) {
        (Some(why), true) => return Err(Failure::Failed(why)),
        (Some(why), false) => say(format_args!("cannot be finalized now: {why}"))?,
        (None, false) => say(format_args!(
            "all nodes have {all}; --yes finalizes the cluster with it: from then on every node \
             refuses one that lacks it, and an older version does not start with its data"
        ))?,
        (None, true) => give(&members)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives the order to all, once all can be given it.
fn give(members: &[Member]) -> Result<(), Failure> {
    let mut ports = Vec::new();
    for member in members {
        let node = cell(&member.node);
        let port = admin_port(&member.address).map_err(|why| named(&node, why))?;
        let said = member.said.as_ref().ok();
        if said.is_none_or(|said| said["admin"]["control"] != true) {
            return Err(Failure::Failed(format!(
                "node {node} takes no orders; mend: set node.admin_control = true and restart it"
            )));
        }
        ports.push((node, port));
    }
    for (node, port) in ports {
        order(&port, "/finalize").map_err(|why| named(&node, why))?;
    }
    Ok(())
}

fn named(node: &str, why: Failure) -> Failure {
    match why {
        Failure::Failed(text) | Failure::Input(text) => {
            Failure::Failed(format!("node {node}: {text}"))
        }
    }
}

/// What a node says of itself.
fn status(address: &str) -> Result<Value, String> {
    let said = Client::connect(address).and_then(|mut client| client.status());
    let said = said.map_err(|error| error.to_string())?;
    serde_json::from_str(&said).map_err(|error| format!("the node's status is no JSON: {error}"))
}

/// Whether it is the node that is configured at this address.
fn the_same(said: &Value, first: &Value, row: &Value) -> Result<(), String> {
    let (node, cluster) = (&said["node"], &said["cluster"]);
    if node == &row["node"] && cluster == &first["cluster"] {
        return Ok(());
    }
    let (node, cluster) = (cell(node), cell(cluster));
    Err(format!(
        "node {node} of cluster {cluster} answers at its address"
    ))
}

/// The names under a key of what a node says.
fn names(member: &Member, key: &str) -> BTreeSet<String> {
    let said = member.said.as_ref().ok();
    let names = said.and_then(|said| said[key].as_array());
    let texts = names.into_iter().flatten().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

/// Why the cluster cannot be finalized because of this node.
fn hinders(member: &Member, able: &BTreeSet<String>) -> Option<String> {
    let node = cell(&member.node);
    if let Err(why) = &member.said {
        let address = &member.address;
        return Some(format!(
            "node {node} ({address}) cannot be reached: {why}; mend: start it and try again"
        ));
    }
    let has = names(member, "capabilities");
    let lacks: Vec<&str> = able.difference(&has).map(String::as_str).collect();
    (!lacks.is_empty()).then(|| {
        let lacks = lacks.join(" ");
        format!("node {node} lacks {lacks}; mend: upgrade it and try again")
    })
}

/// A row for each node.
fn show(members: &[Member]) -> Result<(), Failure> {
    let row = |member: &Member| {
        let of = |key: &str| {
            member
                .said
                .as_ref()
                .map_or(Value::Null, |said| said[key].clone())
        };
        let set = |key: &str| {
            let names: Vec<String> = names(member, key).into_iter().collect();
            names.join(" ")
        };
        let answers = match &member.said {
            Ok(_) => "yes",
            Err(_) => "no",
        };
        json!({
            "node": member.node,
            "address": member.address,
            "answers": answers,
            "version": of("version"),
            "protocol": of("protocol"),
            "capabilities": set("capabilities"),
            "finalized": set("finalized"),
        })
    };
    let columns = [
        ("node", &["node"][..]),
        ("address", &["address"]),
        ("answers", &["answers"]),
        ("millrace", &["version"]),
        ("protocol", &["protocol"]),
        ("capabilities", &["capabilities"]),
        ("finalized with", &["finalized"]),
    ];
    table(&columns, &members.iter().map(row).collect())?;
    Ok(())
}
