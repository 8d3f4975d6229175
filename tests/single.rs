//! One node, by itself a cluster, as a real process: what it acknowledged is there after its power
//! is cut.

mod node;

use node::{Node, Place, millrace, text};
use std::io::Write;
use std::process::{Command, Output, Stdio};

const COUNT: usize = 100_000;

fn lines(range: std::ops::Range<usize>) -> Vec<u8> {
    let mut text = Vec::new();
    for number in range {
        writeln!(text, "{number}").unwrap();
    }
    text
}

fn run_with_input(mut command: Command, input: Vec<u8>) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    // A command that ends early closes its input.
    let _ = writer.join().unwrap();
    output
}

fn append(node: &Node, input: Vec<u8>, more: &[&str]) -> Output {
    let mut command = millrace();
    command.args(["append", "--node", &node.address]).args(more);
    run_with_input(command, input)
}

fn read(node: &Node, more: &[&str]) -> Vec<u8> {
    let mut command = millrace();
    command.args(["read", "--node", &node.address]).args(more);
    let output = node::finish(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    output.stdout
}

#[test]
fn acknowledged_records_survive_kill_9() {
    let place = Place::new();
    let config = place.write_config(1, "");
    let node = Node::start(&config, &place.address());
    let output = append(&node, lines(1..COUNT + 1), &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let offsets = text(&output.stdout);
    let first = offsets.lines().next();
    assert_eq!(first, Some("0 0"), "one line per batch: shard and offset");
    node.kill();

    let node = Node::start(&config, &place.address());
    assert!(
        read(&node, &[]) == lines(1..COUNT + 1),
        "every line, in order"
    );
    let part = read(&node, &["--from", "500", "--to", "503", "--level", "local"]);
    assert_eq!(text(&part), "501\n502\n503\n");
    let json = text(&read(
        &node,
        &["--from", "7", "--to", "8", "--format", "json"],
    ));
    let record: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&record["offset"], &record["value"]),
        (&7.into(), &"8".into())
    );

    // The log goes on behind what was there.
    let output = append(&node, lines(0..1), &["--level", "leader"]);
    assert_eq!(text(&output.stdout), format!("0 {COUNT}\n"));
    let status = node.status();
    assert_eq!(
        status["counters"]["records_encoded"], 0,
        "a node encodes no record"
    );
    assert_eq!(status["shards"][0]["committed_offset"], COUNT + 1);
    assert!(node.stop().success(), "SIGTERM stops it cleanly");

    let node = Node::start(&config, &place.address());
    assert_eq!(read(&node, &[]).len(), lines(1..COUNT + 1).len() + 2);
}

#[test]
fn an_append_that_is_refused_ends_with_its_reason() {
    let place = Place::new();
    let node = Node::start(&place.write_config(1, ""), &place.address());
    let output = append(&node, lines(0..3), &["--shard", "5"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let output = append(&node, lines(0..3), &["--level", "most"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let mut long = vec![b'x'; 2 << 20];
    long.push(b'\n');
    let output = append(&node, long, &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("1 failed") && said.contains("max_batch_bytes"),
        "{said}"
    );
}

/// A pipe that is full already and that nobody reads.
fn blocked_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    use std::os::fd::AsRawFd;
    let (reader, mut writer) = std::io::pipe().unwrap();
    let block = |flags: libc::c_int| {
        // SAFETY: the descriptor is open; the call sets flags of the pipe's end.
        assert_eq!(
            unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags) },
            0
        );
    };
    block(libc::O_NONBLOCK);
    while (&writer).write(&[b'.'; 1]).is_ok() {}
    block(0);
    writer.flush().unwrap();
    (reader, writer)
}

/// Lines of the log wait for standard error by themselves: a pipe that nobody reads holds up
/// neither the start, nor an append, nor the stop.
#[test]
fn a_log_that_nobody_reads_holds_nothing_up() {
    let place = Place::new();
    let config = place.write_config(1, "");
    let (reader, writer) = blocked_pipe();
    let mut command = millrace();
    command.args(["serve", "--config"]).arg(&config);
    command.env("MILLRACE_LOG", "trace").stderr(writer);
    let node = Node::spawn(command, &place.address());
    let mut append = millrace();
    append.args(["append", "--node", &node.address]);
    let output = run_with_input(append, lines(0..1000));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(node.stop().success());
    drop(reader);
}
