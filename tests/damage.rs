//! A damaged log on a real node: it stays closed and says where and what mends it, and the other
//! logs of the node go on.

mod node;

use node::{Node, Place, finish, millrace, text};
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Output, Stdio};

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
