//! `scripts/cluster` as a user runs it: what it says is so, and what fails is shown.
//!
//! Nodes are those of the script, stopped by the script. Read `scripts/cluster --help` first.

mod node;

use node::{PATIENCE, finish, loadgen::loadgen, ports, text};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A cluster of the script. What runs of it ends with the test.
struct Cluster {
    folder: tempfile::TempDir,
    base_port: u16,
}

struct Said {
    code: Option<i32>,
    text: String,
}

impl Cluster {
    fn new(nodes: u16) -> Cluster {
        let below = Path::new(env!("CARGO_TARGET_TMPDIR"));
        Cluster {
            folder: tempfile::tempdir_in(below).expect("a temporary directory"),
            // Node i listens 100 * i above this one.
            base_port: ports::reserve(100 * nodes + 1) - 1,
        }
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("cluster")
    }

    fn address(&self, node: u16) -> String {
        format!("127.0.0.1:{}", self.base_port + 100 * node)
    }

    fn script(&self, words: &[&str]) -> Said {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(root.join("scripts/cluster"));
        command
            .args(words)
            .arg("--dir")
            .arg(self.dir())
            .env("MILLRACE_BIN", env!("CARGO_BIN_EXE_millrace"))
            .env("LOADGEN_BIN", loadgen().get_program());
        let output = finish(command);
        Said {
            code: output.status.code(),
            text: text(&output.stdout) + &text(&output.stderr),
        }
    }

    fn up(&self, words: &[&str]) -> Said {
        let port = self.base_port.to_string();
        let settings = ["--base-port", &port, "--set", "log.segment_bytes=4194304"];
        self.script(&[&["up"], words, &settings].concat())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.script(&["down"]);
    }
}

impl Said {
    fn is(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.text);
        for word in words {
            assert!(self.text.contains(word), "no `{word}` in: {}", self.text);
        }
    }
}

#[test]
fn a_node_that_dies_at_its_start_is_not_said_to_be_started() {
    let cluster = Cluster::new(1);
    cluster.up(&["1"]).is(0, &["every log led"]);
    cluster.script(&["kill", "1"]).is(0, &["killed"]);
    let other = take(&cluster.address(1));
    let words = ["ended as soon as it was started", "node-1.log", "in use"];
    cluster.script(&["start", "1"]).is(1, &words);
    drop(other);
    let file = cluster.dir().join("node-1.toml");
    let good = std::fs::read_to_string(&file).expect("a configuration");
    std::fs::write(&file, good.replace("[link]", "[link]\nsink = 1")).expect("written");
    let words = ["ended as soon as it was started", "link.sink"];
    cluster.script(&["start", "1"]).is(1, &words);
    std::fs::write(&file, good).expect("written");
    let address = cluster.address(1);
    cluster
        .script(&["start", "1"])
        .is(0, &["node 1 started", &address]);
    cluster.script(&["start", "1"]).is(1, &["runs already"]);
}

/// Takes a port as soon as the kernel has let go of that of a killed node.
fn take(address: &str) -> TcpListener {
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < until, "{address}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_list_of_nodes_is_the_scripts_own() {
    let cluster = Cluster::new(1);
    let said = cluster.up(&["1", "--set", "cluster.nodes=[]"]);
    said.is(2, &["cluster.nodes", "up N and --base-port"]);
}

/// Every node of a mesh takes load to logs of its own, at the level of a mesh, and what it
/// acknowledged is on all of them.
#[test]
fn the_load_generator_drives_and_proves_a_mesh() {
    for (nodes, shards) in [(3, 1), (2, 2)] {
        let cluster = Cluster::new(nodes);
        let (count, shards_text) = (nodes.to_string(), shards.to_string());
        let kind = ["--kind", "mesh", "--shards", &shards_text];
        cluster
            .up(&[&[&count[..]], &kind[..]].concat())
            .is(0, &["every log led"]);
        cluster.script(&["status"]).is(0, &["(mesh)"]);
        let addresses: Vec<String> = (1..=nodes).map(|node| cluster.address(node)).collect();
        let file = |name: &str| cluster.folder.path().join(name);
        let mut load = loadgen();
        load.args(["run", "--nodes", &addresses.join(",")])
            .args(["--seconds", "1", "--warmup", "0.2", "--rate", "4000"])
            .args([
                "--batch-records",
                "20",
                "--connections",
                "8",
                "--key-count",
                "100",
            ])
            .arg("--ledger")
            .arg(file("run.ledger"))
            .arg("--json")
            .arg(file("run.json"));
        let output = finish(load);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{said}");
        let report = json(&file("run.json"));
        assert_eq!(
            (&report["level"], &report["settled"]),
            (&"leader".into(), &true.into())
        );
        assert_eq!(
            (&report["failed"], &report["unknown"]),
            (&0.into(), &0.into()),
            "{said}"
        );
        let logs = report["shards"].as_array().expect("a row for each log");
        let named = logs
            .iter()
            .map(|log| (log["origin"].as_u64(), log["shard"].as_u64()));
        let all = (1..=u64::from(nodes)).flat_map(|node| (0..shards).map(move |s| (node, s)));
        let all = all.map(|(node, shard)| (Some(node), Some(shard)));
        assert_eq!(named.collect::<Vec<_>>(), all.collect::<Vec<_>>());
        assert!(
            logs.iter().all(|log| log["acked"].as_u64() > Some(0)),
            "{report}"
        );
        cluster.script(&["down"]).is(0, &[]);
        let mut verify = loadgen();
        let data = cluster.script(&["data"]).text;
        verify
            .args(["verify", "--data", data.trim()])
            .arg("--ledger")
            .arg(file("run.ledger"));
        verify.arg("--json").arg(file("verify.json"));
        let output = finish(verify);
        assert!(output.status.success(), "{}", text(&output.stdout));
        let verdict = json(&file("verify.json"));
        assert_eq!(verdict["checked"], report["acked"], "{verdict}");
        assert_eq!(verdict["replicas_identical"], true, "{verdict}");
    }
}

fn json(path: &Path) -> serde_json::Value {
    let bytes = std::fs::read(path).expect("written");
    serde_json::from_slice(&bytes).expect("JSON")
}
