//! Nodes that prove a secret to one another: they replicate, one that has another secret is refused
//! by name, and the secret is changed while the load goes on.
//!
//! What is no proof is shown by `src/wire/trust_tests.rs`, and of a whole node by
//! `tests/hostile.rs`.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, die_with_us, wait_until};
use crate::load::{Load, now_ms, verify};
use crate::node::{Node, PATIENCE, Place, finish, millrace, ports, text};
use crate::{append, assert_appended, lines, read};

const OLD: &str = "the secret that the cluster had at first";
const NEW: &str = "the secret that the cluster is to have";

fn write_secret(path: &Path, secret: &str, mode: u32) {
    fs::write(path, secret).expect("written");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
}

/// Who should follow whom stays known, also while a node is left out.
const PLACED: &str = "election = false\n";

/// The lines of `[cluster]` that name these files of the cluster's directory.
fn named(cluster: &Cluster, files: &[&str]) -> String {
    let paths: Vec<PathBuf> = files.iter().map(|name| cluster.file(name)).collect();
    match &paths[..] {
        [one] => format!("{PLACED}secret_file = {one:?}"),
        several => format!("{PLACED}secret_file = {several:?}"),
    }
}

/// Three nodes with the old secret, and all shards led.
fn start() -> Cluster {
    let mut cluster = Cluster::place(3);
    write_secret(&cluster.file("old"), OLD, 0o600);
    write_secret(&cluster.file("new"), NEW, 0o400);
    for node in cluster.ids() {
        cluster.write_config(node, &named(&cluster, &["old"]));
        cluster.start_node(node);
    }
    cluster.wait_until_led(PATIENCE);
    cluster
}

/// How many lines of a node's log say this.
fn said(cluster: &Cluster, node: usize, words: &str) -> usize {
    let log = fs::read_to_string(cluster.file(&format!("node-{node}.log"))).expect("a log");
    log.lines().filter(|line| line.contains(words)).count()
}

/// What a command prints, on both of its ends.
fn printed(arguments: &[&str]) -> String {
    let mut command = millrace();
    command.args(arguments);
    let output = finish(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout) + &text(&output.stderr)
}

/// Three nodes with one secret replicate as without one; a client has nothing to prove, and nothing
/// that anybody can print or read shows the secret.
///
/// S-172, S-173
#[test]
fn three_nodes_with_a_secret_replicate() {
    let mut cluster = start();
    for shard in 0..3 {
        let quorum = ["--level", "quorum"];
        assert_appended(&append(
            cluster.address(1),
            shard,
            lines(shard, 2000),
            &quorum,
        ));
    }
    cluster.wait_until_equal(PATIENCE);
    for node in cluster.ids() {
        let address = cluster.address(node).to_owned();
        for shard in 0..3 {
            assert!(
                read(&address, shard, 2000) == lines(shard, 2000),
                "node {node}"
            );
        }
        let config = cluster
            .file(&format!("node-{node}.toml"))
            .display()
            .to_string();
        let shown = printed(&["config", "--config", &config]);
        let file = cluster.file("old").display().to_string();
        assert!(shown.contains(&file), "the file is named: {shown}");
        let log = cluster.file(&format!("node-{node}.log"));
        for shown in [
            shown,
            printed(&["status", "--node", &address]),
            printed(&["status", "--json", "--node", &address]),
            fs::read_to_string(log).expect("a log"),
        ] {
            assert!(!shown.contains(OLD), "{shown}");
        }
        assert_eq!(said(&cluster, node, "peer refused"), 0);
    }
    cluster.stop_all();
    let config = cluster.file("node-1.toml").display().to_string();
    let checked = printed(&["check", "--config", &config]);
    assert!(
        checked.contains("secret") && !checked.contains(OLD),
        "{checked}"
    );
}

/// Why the links between node 3 and the others do not run, as all three say.
fn causes(cluster: &Cluster) -> Vec<String> {
    let cause = |of: &Value| of["cause"].as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for node in cluster.ids() {
        let status = cluster.status(node).unwrap_or_default();
        let links = status["links"].as_array().into_iter().flatten();
        let between = |link: &&Value| node == 3 || link["peer"] == 3;
        found.extend(links.filter(between).map(cause));
        let shards = cluster.shards(node);
        let follows = |(shard, _): &(usize, &Value)| (node == 3) != (*shard == 2);
        let shards = shards.iter().enumerate().filter(follows);
        found.extend(shards.map(|(_, shard)| cause(&shard["following"])));
    }
    found
}

fn wait_until_all_say(cluster: &Cluster, code: &str) {
    let mut last = Vec::new();
    let what = format!("every cause is {code}");
    let start = std::time::Instant::now();
    loop {
        last.clone_from(&causes(cluster));
        let right = |cause: &String| {
            cause.starts_with(&format!("refused: {code}: ")) && cause.contains("; mend: ")
        };
        // Of nodes 1 and 2 one link and one followed shard each, of node 3 two of each.
        if last.len() == 8 && last.iter().all(right) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: {last:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A node with another secret, or with none, gets no block and gives none. Both sides say why, in
/// their status and once in their logs; with the secret it is a member like another.
///
/// S-174
#[test]
fn a_node_that_does_not_know_the_secret_is_named_by_both_sides() {
    let mut cluster = start();
    let held = |cluster: &Cluster| -> Vec<Option<u64>> {
        let shards = cluster.shards(3);
        shards
            .iter()
            .map(|shard| shard["log_end"].as_u64())
            .collect()
    };
    cluster.wait_until_equal(PATIENCE);
    let before = held(&cluster);
    cluster.stop(3);
    cluster.write_config(3, &named(&cluster, &["new"]));
    cluster.start_node(3);
    let quorum = ["--level", "quorum", "--timeout-ms", "20000"];
    for shard in 0..2 {
        assert_appended(&append(
            cluster.address(1),
            shard,
            lines(shard, 500),
            &quorum,
        ));
    }
    wait_until_all_say(&cluster, "WrongSecret");
    let told = |cluster: &Cluster, words| [1, 2, 3].map(|node| said(cluster, node, words));
    let lines_before = told(&cluster, "WrongSecret");
    // One for each connection that there would be, and for either side of it.
    let few = lines_before.iter().all(|lines| (1..=8).contains(lines));
    assert!(few, "{lines_before:?}");
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(told(&cluster, "WrongSecret"), lines_before, "no news");
    assert_eq!(held(&cluster), before, "nothing came");

    cluster.stop(3);
    cluster.write_config(3, PLACED);
    cluster.start_node(3);
    wait_until_all_say(&cluster, "SecretMissing");
    assert_eq!(held(&cluster), before, "nothing came");

    cluster.stop(3);
    cluster.write_config(3, &named(&cluster, &["old"]));
    cluster.start_node(3);
    cluster.wait_until_led(PATIENCE);
    cluster.wait_until_equal(PATIENCE);
    assert_eq!(causes(&cluster), [""; 8].map(str::to_owned));
    for node in cluster.ids() {
        let log = cluster.file(&format!("node-{node}.log"));
        let log = fs::read_to_string(log).expect("a log");
        assert!(!log.contains(OLD) && !log.contains(NEW), "{log}");
    }
    cluster.stop_all();
}

/// The secret is changed node by node, in three rounds of restarts, while records are appended: no
/// node refuses another one at any time, and every acked record is on every node.
///
/// S-172, S-174
#[test]
fn a_secret_is_changed_under_load() {
    let mut cluster = start();
    let load = Load::start(&cluster, "load", 10_000);
    load.wait_until_resumed(now_ms(), PATIENCE);
    for files in [&["old", "new"][..], &["new", "old"], &["new"]] {
        for node in cluster.ids() {
            cluster.write_config(node, &named(&cluster, files));
            cluster.stop(node);
            cluster.start_node(node);
            load.wait_until_resumed(now_ms(), PATIENCE);
        }
    }
    let run = load.finish();
    cluster.wait_until_equal(PATIENCE);
    for node in cluster.ids() {
        for code in ["WrongSecret", "SecretMissing"] {
            assert_eq!(said(&cluster, node, code), 0, "node {node}");
        }
    }
    // The old one is worth nothing any more.
    cluster.stop(3);
    cluster.write_config(3, &named(&cluster, &["old"]));
    cluster.start_node(3);
    wait_until_all_say(&cluster, "WrongSecret");
    cluster.stop_all();
    let verdict = verify(&cluster, &run);
    println!(
        "acked {}, all there through nine restarts; unknown {}, of which {} are there",
        run.records("acked"),
        run.records("unknown"),
        verdict["nodes"][0]["unknown_present"]
    );
    assert!(run.records("acked") > 5_000, "{}", run.report);
}

/// A member that other machines reach and that has nothing to prove says so, once; one that has, or
/// that only this machine reaches, does not. A secret that others may read ends the start.
///
/// S-173
#[test]
fn a_node_without_a_secret_says_so_where_others_reach_it() {
    let place = Place::new();
    let other = ports::reserve(1);
    let (port, log) = (place.port, place.directory.path().join("log"));
    let secret = place.directory.path().join("secret");
    write_secret(&secret, OLD, 0o600);
    let serve = |host: &str, more: &[(&str, &Path)]| -> Command {
        let mut command = millrace();
        command
            .args(["serve", "--node-id", "1", "--cluster-id", "7", "--data-dir"])
            .arg(place.data())
            .args(["--nodes", &format!("1=127.0.0.1:{port}")])
            .args(["--nodes", &format!("2=127.0.0.1:{other}")])
            .env("MILLRACE_NODE_ADDRESS", format!("{host}:{port}"))
            .envs(more.iter().copied());
        die_with_us(&mut command);
        command
    };
    let variable = "MILLRACE_CLUSTER_SECRET_FILE";
    let with: &[(&str, &Path)] = &[(variable, &secret)];
    for (host, more, lines) in [
        ("0.0.0.0", &[][..], 1),
        ("0.0.0.0", with, 0),
        ("127.0.0.1", &[], 0),
    ] {
        let mut command = serve(host, more);
        let file = File::create(&log).expect("a file");
        command
            .stderr(file.try_clone().expect("a file"))
            .stdout(file);
        let node = Node::spawn(command, &place.address());
        wait_until("it has begun", PATIENCE, || {
            fs::read_to_string(&log).is_ok_and(|log| log.contains("starting"))
        });
        assert!(node.stop().success());
        let log = fs::read_to_string(&log).expect("a log");
        let told = log.lines().filter(|line| line.contains("NoSecret"));
        assert_eq!(told.count(), lines, "{host}: {log}");
    }
    write_secret(&secret, OLD, 0o644);
    let output = finish(serve("127.0.0.1", with));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let words = ["cluster.secret_file", "mode 0644", "chmod 600"];
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert!(!said.contains(OLD), "{said}");
}
