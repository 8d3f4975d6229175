//! A damaged log on a real node: it stays closed and says where and what mends it, and the other
//! logs of the node go on.

mod node;

use node::{Node, Place, finish, millrace, text};
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Instant;

/// Position of the first block in a segment file.
const FIRST_BLOCK: u64 = 4096;

fn config(place: &Place) -> PathBuf {
    let text = format!(
        "[node]\nid = 1\ndata_dir = {:?}\n[cluster]\nid = 7\nshards = 2\n\
         [[cluster.nodes]]\nid = 1\naddress = \"{}\"\n[log]\nsegment_bytes = 4194304\n",
        place.data(),
        place.address(),
    );
    let path = place.directory.path().join("node.toml");
    fs::write(&path, text).expect("the configuration is written");
    path
}

fn append(node: &Node, shard: &str, line: &str) -> Output {
    let mut child = millrace()
        .args(["append", "--node", &node.address, "--shard", shard])
        .args(["--timeout-ms", "2000"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let mut stdin = child.stdin.take().expect("piped");
    // A command that ends early closes its input.
    let _ = writeln!(stdin, "{line}");
    drop(stdin);
    child.wait_with_output().expect("the command ends")
}

fn read(node: &Node, shard: &str) -> String {
    let mut command = millrace();
    command.args(["read", "--node", &node.address, "--shard", shard]);
    let output = finish(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_damaged_log_stays_closed_and_the_others_go_on() {
    let place = Place::new();
    let config = config(&place);
    let node = Node::start(&config, &place.address());
    for shard in ["0", "1"] {
        for line in ["first", "second"] {
            let output = append(&node, shard, line);
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
    }
    assert!(node.stop().success());

    let name = format!("{:020}.seg", 0);
    let path = place.data().join("7-0").join(&name);
    let file = fs::File::options().read(true).write(true).open(&path);
    let file = file.expect("the segment is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, FIRST_BLOCK + 200)
        .expect("long enough");
    file.write_all_at(&[!byte[0]], FIRST_BLOCK + 200)
        .expect("writable");
    let damaged = fs::read(&path).expect("readable");

    let node = Node::start(&config, &place.address());
    assert_eq!(read(&node, "1"), "first\nsecond\n");
    let output = append(&node, "1", "third");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let status = node.status();
    let said = status["shards"][0]["failed"]
        .as_str()
        .expect("a text")
        .to_owned();
    for word in [&name[..], &format!("at {FIRST_BLOCK}"), "block 0", "mend: "] {
        assert!(said.contains(word), "no `{word}` in: {said}");
    }
    assert_eq!(status["shards"][0]["role"], "failed");
    assert_eq!(status["shards"][1]["failed"], "");
    let output = append(&node, "0", "third");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert_eq!(read(&node, "1"), "first\nsecond\nthird\n");
    assert!(node.stop().success());
    assert!(
        fs::read(&path).expect("readable") == damaged,
        "nothing was changed"
    );
}

/// Starts a node again, with more arguments.
fn start(place: &Place, config: &Path, more: &[&str]) -> Node {
    let mut command = millrace();
    command.arg("serve").arg("--config").arg(config).args(more);
    Node::spawn(command, &place.address())
}

/// The log's segment files, ascending.
fn segments(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.data().join("7-0")).expect("the log is there");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut named: Vec<_> = paths
        .filter(|path| {
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            name.ends_with(".seg") && name != "next.seg"
        })
        .collect();
    named.sort();
    named
}

/// Fills so many segments of shard 0.
fn fill(node: &Node, place: &Place, files: usize) {
    let line = "x".repeat(900_000);
    while segments(place).len() < files {
        let output = append(node, "0", &line);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

/// A file that is gone is named, not the sound one before it: at the start, and if it goes while
/// the node runs, by the read that misses it, which counts.
///
/// H-78
#[test]
fn a_segment_that_is_gone_is_named() {
    let place = Place::new();
    let config = config(&place);
    let node = Node::start(&config, &place.address());
    fill(&node, &place, 5);
    assert!(node.stop().success());
    let gone = segments(&place).swap_remove(2);
    fs::remove_file(&gone).expect("it was there");
    let name = gone
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let node = Node::start(&config, &place.address());
    let until = Instant::now() + node::PATIENCE;
    let said = loop {
        let said = node.status()["shards"][0]["failed"]
            .as_str()
            .map(str::to_owned);
        match said.filter(|said| !said.is_empty()) {
            Some(said) => break said,
            None => assert!(Instant::now() < until, "the log is not closed"),
        }
    };
    assert!(said.starts_with(&name), "{said}");
    assert!(
        said.contains("missing") && said.contains("mend: "),
        "{said}"
    );
    assert!(node.stop().success());
}

/// Damage that a read meets is counted, and shown wherever somebody looks.
#[test]
fn damage_that_a_read_meets_is_counted() {
    let place = Place::new();
    let config = config(&place);
    let node = Node::start(&config, &place.address());
    fill(&node, &place, 4);
    assert!(node.stop().success());
    let node = Node::start(&config, &place.address());
    let path = &segments(&place)[1];
    let file = fs::File::options()
        .write(true)
        .open(path)
        .expect("it is there");
    file.write_all_at(&[0x5A; 64], FIRST_BLOCK + 1000)
        .expect("writable");
    file.sync_all().expect("it can be synced");
    let mut command = millrace();
    command.args(["read", "--node", &node.address, "--shard", "0"]);
    command.args(["--timeout-ms", "2000"]);
    assert!(!finish(command).status.success());
    let status = node.status();
    assert_eq!(status["counters"]["crc_failures"], 1);
    assert_eq!(status["shards"][0]["role"], "failed");
    assert!(node.stop().success());
}

/// A node that is alone and lost its checkpoint says what mends that, and the mend works.
#[test]
fn a_lost_checkpoint_of_a_single_node_is_told_and_mended() {
    let place = Place::new();
    let config = config(&place);
    let node = Node::start(&config, &place.address());
    for line in ["first", "second"] {
        let output = append(&node, "0", line);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    assert!(node.stop().success());
    fs::remove_file(place.data().join("7-0").join("checkpoint")).expect("it was there");
    let node = start(&place, &config, &[]);
    let until = Instant::now() + node::PATIENCE;
    loop {
        let status = node.status();
        let said = status["shards"][0]["waits_for"].as_str().expect("a text");
        if said.contains("--new-member") {
            break;
        }
        assert!(Instant::now() < until, "{status}");
    }
    assert!(node.stop().success());
    let node = start(&place, &config, &["--new-member"]);
    let until = Instant::now() + node::PATIENCE;
    while node.status()["shards"][0]["committed_offset"] != 2 {
        assert!(Instant::now() < until, "{}", node.status());
    }
    assert_eq!(read(&node, "0"), "first\nsecond\n");
    let output = append(&node, "0", "third");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(node.stop().success());
    let node = start(&place, &config, &[]);
    assert_eq!(read(&node, "0"), "first\nsecond\nthird\n");
    assert!(node.stop().success());
}

/// A file that has the name of a segment and never was one is not deleted.
#[test]
fn a_file_that_was_never_a_segment_is_kept() {
    let place = Place::new();
    let config = config(&place);
    let node = Node::start(&config, &place.address());
    let output = append(&node, "0", "first");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(node.stop().success());
    let log = place.data().join("7-0");
    let precious = b"somebody's only copy".repeat(1000);
    fs::write(log.join(format!("{:020}.seg", 900)), &precious).expect("writable");
    let spare = place.data().join("spare").join("7.txt");
    fs::write(&spare, &precious).expect("writable");
    let node = Node::start(&config, &place.address());
    assert_eq!(read(&node, "0"), "first\n");
    let output = append(&node, "0", "second");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(node.stop().success());
    let kept = fs::read_dir(&log).expect("readable");
    let mut kept = kept.filter_map(|entry| fs::read(entry.expect("an entry").path()).ok());
    assert!(kept.any(|bytes| bytes == precious), "it is gone");
    assert!(fs::read(&spare).is_ok_and(|bytes| bytes == precious));
}
