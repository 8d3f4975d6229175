//! What an operator decides about logs that nobody can repair: `millrace salvage` for damage on a
//! node without peers, `millrace diverge` for two nodes whose committed logs differ.

mod node;

use node::{Node, PATIENCE, Place, finish, millrace, ports, text};
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

/// Position of the first block in a segment file.
const FIRST_BLOCK: u64 = 4096;

fn append(address: &str, line: &str) {
    let mut child = millrace()
        .args(["append", "--node", address, "--shard", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the command runs");
    let mut stdin = child.stdin.take().expect("piped");
    let _ = writeln!(stdin, "{line}");
    drop(stdin);
    assert!(child.wait().expect("the command ends").success(), "{line}");
}

fn read_local(address: &str) -> String {
    let mut command = millrace();
    command.args(["read", "--node", address, "--shard", "0"]);
    let output = finish_ok(command.args(["--level", "local"]));
    text(&output.stdout)
}

fn finish_ok(command: &mut std::process::Command) -> Output {
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

/// Runs a command of the program that should end with this code; what it printed.
fn prints(arguments: &[&str], code: i32) -> String {
    let mut command = millrace();
    command.args(arguments);
    let output = finish(command);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// Every file below a directory with its bytes, spares aside.
fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("spare") {
            found.extend(files(&path));
        } else if path.is_file() && !path.ends_with("lock") {
            let bytes = fs::read(&path).expect("readable");
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("it can be made");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(fs::copy(&path, &target).expect("it can be copied")),
        }
    }
}

/// The log ends where the damage begins, starts again, and what it gave up is kept.
#[test]
fn a_damaged_log_without_peers_is_salvaged() {
    let place = Place::new();
    let config = place.write_config(1, "");
    let config_text = config.display().to_string();
    let node = Node::start(&config, &place.address());
    let lines = ["first", "second", "third", "fourth"];
    for line in lines {
        append(&node.address, line);
    }
    assert!(node.stop().success());
    let none = prints(&["salvage", "--config", &config_text, "--log", "7-0"], 0);
    assert!(none.contains("no damage"), "{none}");

    let segment = place.data().join("7-0").join(format!("{:020}.seg", 0));
    let file = fs::File::options().write(true).open(&segment);
    let file = file.expect("the segment is there");
    // The block of the epoch's start and one for each record, of a page each: the third record's.
    let at = FIRST_BLOCK + 3 * 4096 + 200;
    file.write_all_at(&[0x5A; 8], at).expect("writable");
    let before = files(&place.data());

    let node = Node::start(&config, &place.address());
    let until = Instant::now() + PATIENCE;
    loop {
        let status = node.status();
        let failed = status["shards"][0]["failed"].as_str().expect("a text");
        if failed.contains("millrace salvage") {
            break;
        }
        assert!(failed.is_empty() && Instant::now() < until, "{failed}");
    }
    let busy = prints(&["salvage", "--config", &config_text, "--log", "7-0"], 2);
    assert!(busy.contains("one process at a time"), "{busy}");
    assert!(node.stop().success());

    let wrong = prints(&["salvage", "--config", &config_text, "--log", "7-9"], 2);
    assert!(wrong.contains("no log of this cluster"), "{wrong}");
    let told = prints(&["salvage", "--config", &config_text, "--log", "7-0"], 1);
    for word in [
        "damage at block 3",
        "1 sound blocks with 1 records",
        "--yes",
    ] {
        assert!(told.contains(word), "no `{word}` in: {told}");
    }
    let changed = files(&place.data());
    assert!(before == changed, "nothing is changed without --yes");

    let done = prints(
        &["salvage", "--config", &config_text, "--log", "7-0", "--yes"],
        0,
    );
    assert!(done.contains("ends at block 3"), "{done}");
    let aside = place.data().join("salvaged").join("7-0-1");
    let kept = fs::read(aside.join(format!("{:020}.seg", 0))).expect("kept");
    let damaged = before.iter().find(|(path, _)| *path == segment);
    assert!(
        damaged.is_some_and(|(_, bytes)| *bytes == kept),
        "kept as it was"
    );

    let node = Node::start(&config, &place.address());
    append(&node.address, "fifth");
    assert_eq!(read_local(&node.address), "first\nsecond\nfifth\n");
    assert!(node.stop().success());
    let node = Node::start(&config, &place.address());
    assert_eq!(read_local(&node.address), "first\nsecond\nfifth\n");
    assert!(node.stop().success());
}

/// A salvage that dies in the middle leaves a log that does not start as if nothing were wrong, and
/// that the next one brings to its end.
#[test]
fn a_salvage_that_was_interrupted_is_run_again() {
    let place = Place::new();
    let config = place.write_config(1, "");
    let config_text = config.display().to_string();
    let node = Node::start(&config, &place.address());
    let log = place.data().join("7-0");
    let segment = |path: &PathBuf| path.extension().is_some_and(|end| end == "seg");
    let segments = |log: &Path| {
        let all = fs::read_dir(log).expect("the log is there");
        let mut all: Vec<PathBuf> = all.map(|entry| entry.expect("an entry").path()).collect();
        all.retain(segment);
        all.sort();
        all
    };
    let line = "x".repeat(900_000);
    while segments(&log).len() < 7 {
        append(&node.address, &line);
    }
    assert!(node.stop().success());
    let file = fs::File::options().write(true).open(&segments(&log)[1]);
    let file = file.expect("the segment is there");
    file.write_all_at(&[0x5A; 8], FIRST_BLOCK + 1_000_000)
        .expect("writable");
    let damaged = place.directory.path().join("damaged");
    copy(&place.data(), &damaged);
    let salvage = ["salvage", "--config", &config_text, "--log", "7-0", "--yes"];
    for turn in 0..8 {
        fs::remove_dir_all(place.data()).expect("it was there");
        copy(&damaged, &place.data());
        match turn {
            // As it is after the first file was moved.
            0 => {
                let named = segments(&log)
                    .into_iter()
                    .rfind(|path| !path.ends_with("next.seg"));
                let named = named.expect("several");
                let aside = place.data().join("salvaged").join("7-0-1");
                fs::create_dir_all(&aside).expect("it can be made");
                let name = named.file_name().expect("a name");
                fs::rename(&named, aside.join(name)).expect("it can be moved");
            }
            _ => {
                let mut command = millrace();
                let child = command.args(salvage).stdout(Stdio::null());
                let mut child = child.stderr(Stdio::null()).spawn().expect("it runs");
                std::thread::sleep(Duration::from_millis(3 * turn));
                child.kill().expect("it can be killed");
                child.wait().expect("it ends");
            }
        }
        prints(&salvage, 0);
        let node = Node::start(&config, &place.address());
        append(&node.address, "and on");
        assert!(node.stop().success());
    }
}

/// Two nodes of a set without elections: their configurations and data.
struct Pair {
    place: Place,
    addresses: [String; 2],
}

impl Pair {
    fn new() -> Pair {
        let port = ports::reserve(2);
        Pair {
            place: Place::new(),
            addresses: [port, port + 1].map(|port| format!("127.0.0.1:{port}")),
        }
    }

    fn data(&self, node: usize) -> PathBuf {
        self.place
            .directory
            .path()
            .join(format!("node-{}", node + 1))
    }

    fn config(&self, node: usize) -> PathBuf {
        let [one, two] = &self.addresses;
        let text = format!(
            "[node]\nid = {}\ndata_dir = {:?}\n[cluster]\nid = 7\nshards = 1\n\
             [[cluster.nodes]]\nid = 1\naddress = \"{one}\"\n\
             [[cluster.nodes]]\nid = 2\naddress = \"{two}\"\n[log]\nsegment_bytes = 4194304\n",
            node + 1,
            self.data(node),
        );
        let path = self
            .place
            .directory
            .path()
            .join(format!("{}.toml", node + 1));
        fs::write(&path, text).expect("the configuration is written");
        path
    }

    fn start(&self) -> [Node; 2] {
        [0, 1].map(|node| Node::start(&self.config(node), &self.addresses[node]))
    }

    fn stop(nodes: [Node; 2]) {
        for node in nodes {
            assert!(node.stop().success());
        }
    }

    fn keep(&self, node: usize, name: &str) {
        copy(&self.data(node), &self.place.directory.path().join(name));
    }

    fn restore(&self, node: usize, name: &str) {
        fs::remove_dir_all(self.data(node)).expect("it was there");
        copy(&self.place.directory.path().join(name), &self.data(node));
    }
}

/// Both nodes were put back to a backup at different times, so each holds committed records that
/// the other one does not. The link says so, nothing is lost by itself, the tool shows where they
/// part, and the operator's word settles it.
///
/// S-133, S-139, S-140, S-141
#[test]
fn logs_that_differ_are_shown_and_settled() {
    let pair = Pair::new();
    let nodes = pair.start();
    for line in ["first", "second", "third"] {
        append(&pair.addresses[0], line);
    }
    Pair::stop(nodes);
    pair.keep(0, "backup-1");
    pair.keep(1, "backup-2");
    let nodes = pair.start();
    append(&pair.addresses[0], "mine");
    append(&pair.addresses[0], "mine too");
    Pair::stop(nodes);
    pair.keep(0, "late-1");
    pair.restore(0, "backup-1");
    pair.restore(1, "backup-2");
    let nodes = pair.start();
    append(&pair.addresses[0], "theirs");
    append(&pair.addresses[0], "theirs too");
    Pair::stop(nodes);
    pair.restore(0, "late-1");

    let nodes = pair.start();
    let until = Instant::now() + PATIENCE;
    while nodes[0].status()["links"][0]["diverged_at"].is_null() {
        assert!(Instant::now() < until, "{}", nodes[0].status());
    }
    assert_eq!(
        read_local(&pair.addresses[0]),
        "first\nsecond\nthird\nmine\nmine too\n"
    );
    assert_eq!(
        read_local(&pair.addresses[1]),
        "first\nsecond\nthird\ntheirs\ntheirs too\n"
    );
    let [one, two] = &pair.addresses;
    let shown = prints(&["diverge", "show", "--node", one, "--node", two], 1);
    assert!(shown.contains("they differ from offset 3 on"), "{shown}");
    let partly = prints(&["diverge", "show", "--node", one], 1);
    assert!(partly.contains("not asked"), "{partly}");
    let [leader, follower] = nodes;
    assert!(follower.stop().success());

    let config = pair.config(1).display().to_string();
    let resolve = |more: &[&str], code| {
        let base = ["diverge", "resolve", "--config", &config, "--log", "7-0"];
        prints(&[&base[..], more].concat(), code)
    };
    let own = resolve(&["--from", "3", "--keep", "2"], 2);
    assert!(own.contains("blocks are to stay"), "{own}");
    let far = resolve(&["--from", "99", "--keep", "1"], 2);
    assert!(far.contains("offsets end at 5"), "{far}");
    let would = resolve(&["--from", "3", "--keep", "1"], 1);
    assert!(would.contains("nothing was changed"), "{would}");
    let done = resolve(&["--from", "3", "--keep", "1", "--yes"], 0);
    assert!(done.contains("gave up"), "{done}");

    let follower = Node::start(&pair.config(1), &pair.addresses[1]);
    append(&pair.addresses[0], "after");
    let all = "first\nsecond\nthird\nmine\nmine too\nafter\n";
    let until = Instant::now() + PATIENCE;
    while read_local(&pair.addresses[1]) != all {
        assert!(Instant::now() < until, "{}", read_local(&pair.addresses[1]));
    }
    assert_eq!(read_local(&pair.addresses[0]), all);
    let shown = prints(&["diverge", "show", "--node", one, "--node", two], 0);
    assert!(shown.contains("no log"), "{shown}");
    let aside = pair.data(1).join("salvaged").join("7-0-1");
    let kept = files(&aside);
    let theirs =
        |(_, bytes): &(PathBuf, Vec<u8>)| bytes.windows(10).any(|window| window == b"theirs too");
    assert!(kept.iter().any(theirs), "what was given up is kept");
    Pair::stop([leader, follower]);
}

/// Three nodes that elect their leaders; two lost their disks, and an operator said that they are
/// new while the third was away, which holds what the set had committed. Nothing of it is cut, the
/// leader says that the logs differ, and so does its health.
#[test]
fn a_member_that_holds_more_than_the_set_is_told_to_differ() {
    let place = Place::new();
    let port = ports::reserve(6);
    let address = |node: u16| format!("127.0.0.1:{}", port + node);
    let config = |node: u16| {
        let mut text = format!(
            "[node]\nid = {}\ndata_dir = {:?}\nadmin = \"127.0.0.1:{}\"\n[cluster]\nid = 7\n\
             shards = 1\n[log]\nsegment_bytes = 4194304\n",
            node + 1,
            place.directory.path().join(format!("node-{node}")),
            port + 3 + node
        );
        for other in 0..3 {
            let (id, address) = (other + 1, address(other));
            text += &format!("[[cluster.nodes]]\nid = {id}\naddress = \"{address}\"\n");
        }
        let path = place.directory.path().join(format!("{node}.toml"));
        fs::write(&path, text).expect("the configuration is written");
        path
    };
    let nodes = [0, 1, 2].map(|node| Node::start(&config(node), &address(node)));
    for line in ["first", "second", "third"] {
        append(&address(0), line);
    }
    for node in nodes {
        assert!(node.stop().success());
    }
    for lost in [1, 2] {
        let data = place.directory.path().join(format!("node-{lost}"));
        fs::remove_dir_all(data).expect("it was there");
    }
    let anew = |node: u16| {
        let mut command = millrace();
        command
            .arg("serve")
            .arg("--config")
            .arg(config(node))
            .arg("--new-member");
        Node::spawn(command, &address(node))
    };
    let others = [anew(1), anew(2)];
    append(&address(1), "after");
    let first = Node::start(&config(0), &address(0));
    let differs = |node: &Node| {
        let links = node.status()["links"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        links.iter().any(|link| !link["diverged_at"].is_null())
    };
    let until = Instant::now() + PATIENCE;
    while !others.iter().chain([&first]).any(differs) {
        assert!(Instant::now() < until, "{}", first.status());
    }
    let health = |node: u16| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port + 3 + node));
        let stream = stream.as_mut().expect("the HTTP port is open");
        let request = "GET /healthz HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut answer = String::new();
        std::io::Read::read_to_string(stream, &mut answer).expect("it answers");
        answer
    };
    let until = Instant::now() + PATIENCE;
    while !(0..3).any(|node| health(node).contains("holds other blocks")) {
        assert!(Instant::now() < until, "{}", health(1));
    }
    assert_eq!(read_local(&address(0)), "first\nsecond\nthird\n");
    for node in others.into_iter().chain([first]) {
        assert!(node.stop().success());
    }
}
