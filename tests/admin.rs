//! What operators see of real nodes and may order: health, status, metrics, pausing links.
//!
//! Three processes over HTTP and the command line. Every number that is looked at is one that the
//! test has moved.

mod node;

use node::{Node, PATIENCE, Place, finish, millrace, ports, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

struct Set {
    places: Vec<Place>,
    admin: Vec<u16>,
}

impl Set {
    fn of(nodes: usize) -> Set {
        Set {
            places: (0..nodes).map(|_| Place::new()).collect(),
            admin: (0..nodes).map(|_| ports::reserve(1)).collect(),
        }
    }

    fn config(&self, node: usize, control: bool) -> PathBuf {
        let place = &self.places[node];
        let mut text = format!(
            "[node]\nid = {}\ndata_dir = {:?}\nadmin = \"{}\"\nadmin_control = {control}\n\
             [cluster]\nid = 7\nshards = 1\nelection = false\n",
            node + 1,
            place.data(),
            self.admin(node),
        );
        for (index, other) in self.places.iter().enumerate() {
            let address = other.address();
            let entry = format!(
                "[[cluster.nodes]]\nid = {}\naddress = \"{address}\"\n",
                index + 1
            );
            text.push_str(&entry);
        }
        text.push_str("[log]\nsegment_bytes = 2097152\nmax_block_bytes = 65536\n");
        text.push_str("[link]\ninitial_credit_bytes = 131072\nrpc_timeout_ms = 60000\n");
        let path = place.directory.path().join("node.toml");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn start(&self, node: usize) -> Node {
        Node::start(&self.config(node, true), &self.places[node].address())
    }

    fn admin(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.admin[node])
    }

    fn get(&self, node: usize, path: &str) -> (u16, String) {
        ask(&self.admin(node), "GET", path)
    }

    /// `millrace link ...` at a node: exit code and what it said.
    fn link(&self, node: usize, action: &str, peer: u32) -> (Option<i32>, String) {
        let mut command = millrace();
        command.args(["link", action, &peer.to_string()]);
        command.args(["--node", &self.places[node].address()]);
        let output = finish(command);
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        (output.status.code(), said)
    }

    /// The link from node 1 to `peer` as the status of node 1 has it.
    fn link_to(&self, peer: u64) -> Value {
        let (code, body) = self.get(0, "/status");
        assert_eq!(code, 200, "{body}");
        let status: Value = serde_json::from_str(&body).unwrap();
        let links = status["links"].as_array().unwrap();
        let link = links.iter().find(|link| link["peer"] == peer);
        link.unwrap_or_else(|| panic!("no link to {peer} in {body}"))
            .clone()
    }

    fn wait_for_link(&self, peer: u64, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        wait_for(what, || {
            last = self.link_to(peer);
            is(&last)
        });
        // In the metrics the link has this status and no other.
        let page = metrics(&self.get(0, "/metrics").1);
        let name = last["status"].as_str().unwrap();
        let labels = format!("origin=\"7\",shard=\"0\",peer=\"{peer}\"");
        let of = |status: &str| {
            page[&format!("millrace_link_status{{{labels},status=\"{status}\"}}")] as u64
        };
        if self.link_to(peer)["status"] == last["status"] {
            for status in [
                "replicating",
                "waiting_for_credit",
                "paused",
                "disconnected",
            ] {
                assert_eq!(of(status), u64::from(status == name), "{status}: {what}");
            }
        }
        last
    }

    /// Appends at the first node, which leads.
    fn append(&self, lines: usize) {
        let mut child = millrace()
            .args([
                "append",
                "--node",
                &self.places[0].address(),
                "--shard",
                "0",
            ])
            .args(["--level", "quorum", "--timeout-ms", "20000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        for line in 0..lines {
            writeln!(stdin, "{line} {}", "x".repeat(400)).unwrap();
        }
        drop(stdin);
        assert!(child.wait().unwrap().success());
    }
}

fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ask(address: &str, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the HTTP port is open");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("HTTP has a head");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (code.expect("HTTP has a code"), body.to_owned())
}

/// Every sample of the page by name and labels. The page must be what a scraper accepts: each
/// family with its help and type, units at the end of names, counters with `_total`, buckets that
/// add up.
fn metrics(page: &str) -> BTreeMap<String, f64> {
    assert!(page.ends_with("# EOF\n"), "{page}");
    let mut samples = BTreeMap::new();
    let mut family = (String::new(), String::new());
    let mut buckets = 0.0;
    for line in page.lines().filter(|line| *line != "# EOF") {
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            let [kind, name, rest] = words[..] else {
                panic!("a comment of three parts: {line}");
            };
            assert!(name.starts_with("millrace_"), "{line}");
            match kind {
                "HELP" => assert!(!rest.is_empty(), "{line}"),
                "TYPE" => family = (name.to_owned(), rest.to_owned()),
                "UNIT" => assert!(name.ends_with(&format!("_{rest}")), "{line}"),
                _ => panic!("no such comment: {line}"),
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').expect("a sample has a value");
        let value: f64 = value.parse().expect("a sample's value is a number");
        let bare = name.split('{').next().unwrap();
        let suffix = bare.strip_prefix(&family.0);
        let suffix = suffix.unwrap_or_else(|| panic!("{line} is not of {family:?}"));
        match (family.1.as_str(), suffix) {
            ("counter", "_total") | ("gauge", "") => {}
            ("histogram", "_sum") => buckets = 0.0,
            ("histogram", "_count") => {}
            ("histogram", "_bucket") => {
                assert!(value >= buckets, "buckets add up: {line}");
                buckets = value;
                if name.contains("le=\"+Inf\"") {
                    let labels = name.split('{').nth(1).unwrap();
                    let labels = labels.split("le=").next().unwrap();
                    let count = format!("{}_count", family.0);
                    let all = samples.iter().find(|(name, _): &(&String, _)| {
                        let labels = labels.trim_end_matches(',');
                        name.starts_with(&count) && name.contains(labels)
                    });
                    assert_eq!(all.map(|(_, all)| *all), Some(value), "{line}");
                }
            }
            other => panic!("{other:?}: {line}"),
        }
        assert!(samples.insert(name.to_owned(), value).is_none(), "{line}");
    }
    samples
}

#[test]
fn a_node_alone_tells_what_it_did() {
    let set = Set::of(1);
    let config = set.config(0, false);
    let node = Node::start(&config, &set.places[0].address());
    wait_for("healthy", || {
        set.get(0, "/healthz") == (200, "ok\n".to_owned())
    });
    let log = "{origin=\"7\",shard=\"0\"}";
    let before = metrics(&set.get(0, "/metrics").1);
    set.append(3000);
    let moved = [
        "millrace_appends_total",
        "millrace_blocks_sealed_total",
        "millrace_written_bytes_total",
        "millrace_shard_committed_records",
        "millrace_append_latency_seconds_count",
        "millrace_append_latency_seconds_sum",
        "millrace_disk_write_latency_seconds_count",
        "millrace_shard_cpu_seconds_total",
    ];
    let mut after = BTreeMap::new();
    let now = |name: &str, page: &BTreeMap<String, f64>| page[&format!("{name}{log}")];
    wait_for("the page shows the appends", || {
        after = metrics(&set.get(0, "/metrics").1);
        now("millrace_shard_committed_records", &after) == 3000.0
    });
    for name in moved {
        assert!(
            now(name, &after) > now(name, &before),
            "{name} has not moved"
        );
    }
    assert_eq!(after["millrace_records_encoded_total"], 0.0);
    assert_eq!(now("millrace_crc_failures_total", &after), 0.0);
    let (code, body) = set.get(0, "/status");
    assert_eq!(code, 200);
    let page: Value = serde_json::from_str(&body).unwrap();
    let frame = node.status();
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(&page), keys(&frame));
    assert_eq!(page["shards"][0]["committed_offset"], 3000);
    assert!(page["shards"][0]["counters"]["bytes_written"].as_u64() > Some(3000 * 400));
    let (code, body) = set.get(0, "/links");
    assert!(code == 404 && body.contains("/healthz"), "{code} {body}");
    let (code, body) = ask(&set.admin(0), "POST", "/links/2/pause");
    assert!(
        code == 403 && body.contains("node.admin_control"),
        "{code} {body}"
    );
}

/// S-11 S-25 S-33 S-34 S-35 Q-23
#[test]
fn the_four_statuses_can_be_told_apart_and_links_paused() {
    let set = Set::of(3);
    let _one = set.start(0);
    // Two of three are not there: no age since the epoch of the clock, and a reason.
    let link = set.link_to(2);
    assert_eq!(link["status"], "disconnected");
    assert!(link["since_ms"].as_u64().unwrap() < 60_000, "{link}");
    wait_for("unwell, with the reason", || {
        let (code, body) = set.get(0, "/healthz");
        code == 503 && body.contains("no open epoch")
    });
    let two = set.start(1);
    let three = set.start(2);
    for peer in [2, 3] {
        set.wait_for_link(peer, "replicating", |link| link["status"] == "replicating");
    }
    paused_from_either_side(&set);
    // Its credit is 128 KiB: a node that stands still has soon used it up.
    // SAFETY: the child is ours and was not waited for, so its number is not another process's.
    unsafe { libc::kill(two.pid(), libc::SIGSTOP) };
    set.append(2000);
    let waits = |link: &Value| link["status"] == "waiting_for_credit";
    let link = set.wait_for_link(2, "waiting for credit", waits);
    assert_eq!(link["cause"], "credit exhausted");
    assert!(link["lag"]["bytes"].as_u64().unwrap() > 0, "{link}");
    // SAFETY: as above.
    unsafe { libc::kill(two.pid(), libc::SIGCONT) };
    set.wait_for_link(2, "caught up", |link| link["lag"]["records"] == 0);
    three.kill();
    let link = set.wait_for_link(3, "disconnected", |link| link["status"] == "disconnected");
    assert_ne!(link["cause"], "", "{link}");
    assert_eq!(link["last_error"], link["cause"], "{link}");
    let _three = set.start(2);
    let link = set.wait_for_link(3, "connected", |link| link["status"] == "replicating");
    assert!(link["cause"] == "" && link["last_error"] != "", "{link}");
}

/// S-158 S-159 S-160 S-161
#[test]
fn what_each_link_takes_is_told() {
    let set = Set::of(2);
    let _nodes = [set.start(0), set.start(1)];
    let even = |link: &Value| link["status"] == "replicating" && link["lag"]["records"] == 0;
    set.wait_for_link(2, "replicating", even);
    let page = |node: usize| metrics(&set.get(node, "/metrics").1);
    let of = |page: &BTreeMap<String, f64>, name: &str, peer: u32| {
        let row = format!("millrace_{name}{{origin=\"7\",shard=\"0\",peer=\"{peer}\"}}");
        // A link shows up with the first report that knows it.
        page.get(&row).copied().unwrap_or_default()
    };
    let before = page(0);
    set.append(1000);
    set.wait_for_link(2, "even", even);
    // What they took shows in their reports, a little later.
    let bytes = 1000.0 * 400.0;
    wait_for("the follower's report", || {
        of(&page(1), "link_received_bytes_total", 1) > bytes
    });
    let grew = |name: &str| of(&page(0), name, 2) - of(&before, name, 2);
    wait_for("the leader's report", || {
        grew("link_sent_bytes_total") > bytes
    });
    for name in ["link_received_bytes_total", "link_cpu_seconds_total"] {
        assert!(grew(name) > 0.0, "{name}");
    }
    assert!(grew("replication_lag_seconds_count") > 0.0);
    let link = set.link_to(2);
    assert!(
        link["network"]["sent_bytes"].as_f64().unwrap() > bytes,
        "{link}"
    );
    assert!(link["cpu_s"].as_f64().unwrap() > 0.0, "{link}");
    // Nothing waits for the socket of a link that is even.
    set.wait_for_link(2, "nothing queued", |link| link["queued_bytes"] == 0);
    let row = "millrace_link_queued_bytes{origin=\"7\",shard=\"0\",peer=\"2\"}";
    wait_for("the same on the page", || page(0).get(row) == Some(&0.0));
}

fn paused_from_either_side(set: &Set) {
    // The two ports of a node are easily taken for each other.
    let mut command = millrace();
    command.args(["link", "pause", "2", "--node", &set.admin(0)]);
    let output = finish(command);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in [&set.admin(0)[..], "HTTP", "node.admin", "node.address"] {
        assert!(said.contains(word), "{word} is not in {said}");
    }
    let (code, said) = set.link(0, "resume", 2);
    assert!(code == Some(0) && said.contains("has not paused"), "{said}");
    let (code, said) = set.link(0, "pause", 9);
    assert!(
        code == Some(1) && said.contains("its peers are 2, 3"),
        "{said}"
    );
    // At the leader.
    let (code, said) = set.link(0, "pause", 2);
    assert!(code == Some(0) && said.contains("1 of 1 links"), "{said}");
    let (_, said) = set.link(0, "pause", 2);
    assert!(said.contains("were paused already"), "{said}");
    let is_paused = |link: &Value| link["status"] == "paused";
    let link = set.wait_for_link(2, "paused by the leader", is_paused);
    assert_eq!(link["cause"], "manual");
    set.append(200);
    let lags = |link: &Value| link["lag"]["records"].as_u64() >= Some(200);
    let link = set.wait_for_link(2, "a paused link lags", |link| {
        is_paused(link) && lags(link)
    });
    assert_eq!(link["cause"], "manual", "{link}");
    // What the peer lacks is told in bytes too, and grows older though nothing else is appended.
    let age = link["lag"]["seconds"].as_f64().expect("an age");
    set.wait_for_link(2, "a growing age", |link| {
        let lag = &link["lag"];
        lag["seconds"].as_f64() > Some(age + 0.5) && lag["bytes"].as_u64() > Some(0)
    });
    let (code, said) = set.link(0, "resume", 2);
    assert!(code == Some(0) && said.contains("resumed"), "{said}");
    let even = |link: &Value| link["lag"]["records"] == 0 && link["status"] == "replicating";
    set.wait_for_link(2, "even again", even);
    // At the follower: both sides show it.
    let (code, said) = set.link(1, "pause", 1);
    assert_eq!(code, Some(0), "{said}");
    let link = set.wait_for_link(2, "paused by the follower", is_paused);
    assert_eq!(link["cause"], "follower: manual");
    let status: Value = serde_json::from_str(&set.get(1, "/status").1).unwrap();
    let following = &status["shards"][0]["following"];
    assert_eq!(following["leader"], 1, "{following}");
    assert_eq!(following["status"], "paused", "{following}");
    assert_eq!(following["cause"], "manual", "{following}");
    set.append(10);
    assert_eq!(set.link(1, "resume", 1).0, Some(0));
    set.wait_for_link(2, "even again", even);
}

#[test]
fn without_an_http_port_a_link_cannot_be_paused_and_says_why() {
    let place = Place::new();
    let _node = Node::start(&place.write_config(1, ""), &place.address());
    let mut command = millrace();
    command.args(["link", "pause", "2", "--node", &place.address()]);
    let output = finish(command);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("mend: set node.admin"), "{said}");
}

#[test]
fn a_taken_port_is_refused_by_its_key() {
    let set = Set::of(1);
    let _taken = std::net::TcpListener::bind(set.admin(0)).unwrap();
    let mut command = millrace();
    command
        .arg("serve")
        .arg("--config")
        .arg(set.config(0, false));
    node::refuses(command, &["node.admin", &set.admin(0), "in use"]);
}

/// H-79
#[test]
fn lines_are_json_with_an_entry_of_the_catalogue_and_a_normal_start_is_calm() {
    let set = Set::of(2);
    let file = set.places[0].directory.path().join("lines");
    let mut command = millrace();
    command
        .arg("serve")
        .arg("--config")
        .arg(set.config(0, true));
    command.args(["--set", "node.log=json"]);
    command.stderr(std::fs::File::create(&file).unwrap());
    let _one = Node::spawn(command, &set.places[0].address());
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&file).unwrap();
        // The last one may be on its way.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        whole.lines().map(parse).collect()
    };
    let find = |id: &str| lines().into_iter().find(|line| line["id"] == id);
    // Alone it waits for the other node; that is no error.
    wait_for("it says what it waits for", || find("EpochWaits").is_some());
    let _two = set.start(1);
    wait_for("it leads", || find("EpochOpened").is_some());
    for id in ["EpochWaits", "EpochOpened"] {
        let line = find(id).unwrap();
        assert_eq!(
            (&line["level"], &line["log"]),
            (&"INFO".into(), &"7-0".into()),
            "{line}"
        );
    }
    let grave = lines().into_iter().find(|line| line["level"] == "ERROR");
    assert_eq!(grave, None);
}

/// In a set, what is led must be committed and what is followed heard of: after a few seconds
/// without, the node says so.
///
///
#[test]
fn a_node_that_cannot_commit_or_hears_no_leader_is_unwell() {
    let set = Set::of(3);
    let one = set.start(0);
    let two = set.start(1);
    let three = set.start(2);
    let well = |node| set.get(node, "/healthz") == (200, "ok\n".to_owned());
    wait_for("all are well", || (0..3).all(well));
    three.kill();
    // Two of three are a majority, however long it takes.
    std::thread::sleep(Duration::from_secs(5));
    assert!(well(0) && well(1), "{:?}", set.get(0, "/healthz"));
    two.kill();
    wait_for("it cannot commit", || {
        let (code, body) = set.get(0, "/healthz");
        code == 503 && body == "log 7-0 cannot commit: 1 of 3 nodes take blocks, it needs 2\n"
    });
    let _two = set.start(1);
    wait_for("well again", || well(0) && well(1));
    one.kill();
    wait_for("its leader is gone", || {
        let (code, body) = set.get(1, "/healthz");
        code == 503 && body.starts_with("log 7-0 follows node 1, which has not been heard for ")
    });
}

/// A node that is behind is brought up at the pace that an operator sets while it runs, and at once
/// when he lifts it. It starts when all is appended: what its leader seals would raise the pace.
#[test]
fn the_pace_of_a_catch_up_is_set_while_it_runs() {
    const BEFORE: u64 = 2 << 20;
    const PACE: u64 = 256 << 10;
    const LINES: usize = 60_000;
    let set = Set::of(3);
    let _nodes = [set.start(0), set.start(1)];
    let even = |link: &Value| link["status"] == "replicating" && link["lag"]["records"] == 0;
    // A new set counts on nobody before all were there.
    let behind = set.start(2);
    set.wait_for_link(3, "replicating", even);
    assert!(behind.stop().success());
    set.append(LINES);
    let config = set.config(2, true);
    let mut command = millrace();
    command.args(["serve", "--config"]).arg(&config);
    command.args(["--set", &format!("link.catch_up_bytes_per_s={BEFORE}")]);
    let _behind = Node::spawn(command, &set.places[2].address());
    let behind = || {
        let (code, body) = set.get(2, "/status");
        assert_eq!(code, 200, "{body}");
        let status: Value = serde_json::from_str(&body).unwrap();
        status["shards"][0].clone()
    };
    let set_pace = |pace: u64| {
        let mut command = millrace();
        command.args(["link", "catch-up", &pace.to_string()]);
        command.args(["--node", &set.places[2].address()]);
        let output = finish(command);
        assert!(output.status.success(), "{}", text(&output.stderr));
        wait_for("the pace in the status", || {
            behind()["catch_up"]["bytes_per_s"] == pace
        });
    };
    let bytes = |shard: &Value| shard["damage"]["bytes"].as_u64().expect("a number");
    wait_for("it is being brought up", || {
        behind()["catch_up"]["active"] == true
    });
    assert_eq!(behind()["catch_up"]["bytes_per_s"], BEFORE);
    set_pace(PACE);

    let (before, since) = (bytes(&behind()), Instant::now());
    std::thread::sleep(Duration::from_secs(4));
    let now = behind();
    let most = 3.0 * PACE as f64 * since.elapsed().as_secs_f64();
    let came = bytes(&now) - before;
    println!("{came} bytes came in {:?}", since.elapsed());
    assert_eq!(now["catch_up"]["active"], true, "{now}");
    assert!(came > 0 && (came as f64) < most, "{came} of at most {most}");

    let lifted = Instant::now();
    set_pace(0);
    set.wait_for_link(3, "even", even);
    println!("the rest came in {:?}", lifted.elapsed());
    wait_for("all of it is there", || {
        let now = behind();
        now["catch_up"]["active"] == false && bytes(&now) > LINES as u64 * 400
    });
}
