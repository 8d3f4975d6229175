//! The command line against a real node: whatever was not done is said, with the exit code for it.
//!
//! 1 is "it failed", 2 is "bad input". No input or output that fails may look like success, and
//! none may make a command panic.

mod node;

use millrace::client::NewRecord;
use millrace::client::driver::ProducerConfig;
use millrace::client::driver::blocking::Producer;
use node::{Node, Place, millrace, text};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

struct Case {
    _place: Place,
    node: Node,
}

impl Case {
    fn new() -> Case {
        Case::with("")
    }

    /// With these settings of the log.
    fn with(settings: &str) -> Case {
        let place = Place::new();
        let config = place.write_config(1, settings);
        let node = Node::start(&config, &place.address());
        Case {
            _place: place,
            node,
        }
    }

    fn command(&self, name: &str, more: &[&str]) -> Command {
        let mut command = millrace();
        let node = ["--node", &self.node.address];
        command.arg(name).args(node).args(more);
        command
    }

    /// Appends what a shell line prints.
    fn append(&self, shell: &str, output: Stdio) -> Output {
        let mut command = self.command("append", &[]);
        let mut input = Command::new("sh")
            .args(["-c", shell])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        command.stdin(input.stdout.take().unwrap()).stdout(output);
        let output = command.stderr(Stdio::piped()).output().unwrap();
        input.wait().unwrap();
        output
    }
}

fn full() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

/// It ended with this code and said these words; a panic ends with neither.
fn ends(output: &Output, code: i32, words: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said:?}");
    }
}

#[test]
fn input_that_fails_is_no_success() {
    let case = Case::new();
    let mut command = case.command("append", &[]);
    command.stdin(File::open("/").unwrap());
    ends(&command.output().unwrap(), 1, &["standard input"]);
}

#[test]
fn a_line_that_no_record_can_hold_fails_and_names_itself() {
    let case = Case::new();
    let line = "echo one; head -c 20000000 /dev/zero | tr '\\0' a";
    let output = case.append(line, Stdio::piped());
    let words = [
        "1 records appended, 1 failed",
        "line 2 has more than 1048448 bytes",
    ];
    ends(&output, 1, &words);
    let output = case.command("read", &[]).output().unwrap();
    assert_eq!(text(&output.stdout), "one\n");
}

/// Lines behind a refused one were not sent: each counts as failed, read by then or not.
#[test]
fn lines_behind_a_refused_one_are_counted() {
    let case = Case::new();
    let lines = "echo one; head -c 20000000 /dev/zero | tr '\\0' a; echo; seq 1 10000";
    let output = case.append(lines, Stdio::piped());
    let words = [
        "1 records appended, 10001 failed,",
        "line 2 has more than 1048448 bytes",
    ];
    ends(&output, 1, &words);
    // An input that does not end is not waited for.
    let endless = "head -c 20000000 /dev/zero | tr '\\0' a; echo; echo two; exec sleep 8";
    let output = case.append(endless, Stdio::piped());
    let words = ["0 records appended, 2 failed (and what the input still brings)"];
    ends(&output, 1, &words);
}

/// The nodes say what a batch may take; nothing here has a bound of its own below it.
#[test]
fn a_line_that_the_nodes_take_is_appended() {
    let case = Case::with("[link]\nmax_batch_bytes = 4000000\n");
    let line = "head -c 2000000 /dev/zero | tr '\\0' a; echo; echo two";
    ends(&case.append(line, Stdio::piped()), 0, &[]);
    let output = case.command("read", &[]).output().unwrap();
    assert_eq!(
        text(&output.stdout),
        format!("{}\ntwo\n", "a".repeat(2_000_000))
    );
    let line = "head -c 3999900 /dev/zero | tr '\\0' a";
    let words = [
        "line 1 has 3999900 bytes",
        "raise link.max_batch_bytes on all nodes",
    ];
    ends(&case.append(line, Stdio::piped()), 1, &words);
}

/// A line without an end is refused at its bound, in bounded memory.
#[test]
fn a_line_that_never_ends_costs_no_more_than_one_that_fits() {
    let case = Case::new();
    let mut command = case.command("append", &[]);
    command.stdin(File::open("/dev/zero").unwrap());
    // Where the address space is bounded, whatever grows with the input fails.
    let bound = || {
        let bytes = 1 << 30;
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: bytes,
        };
        // SAFETY: the call reads the struct that it is given.
        match unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call and touches no memory of the parent.
    unsafe { command.pre_exec(bound) };
    let words = [
        "1 failed (and what the input still brings)",
        "line 1 has more than 1048448 bytes",
        "link.max_batch_bytes",
    ];
    ends(&command.output().unwrap(), 1, &words);
}

#[test]
fn an_interrupted_append_says_what_it_did() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let case = Case::new();
        let mut command = case.command("append", &[]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        // Stays open: the input has not ended.
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"one\ntwo\n").unwrap();
        let mut first = [0; 4];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut first)
            .unwrap();
        assert_eq!(&first, b"0 0\n");
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: the child is ours and was not waited for, so its number is not another process's.
        unsafe { libc::kill(child.id().try_into().unwrap(), signal) };
        let output = child.wait_with_output().unwrap();
        ends(
            &output,
            130,
            &["2 records appended, 0 failed", "0 unknown: interrupted"],
        );
        drop(input);
    }
}

/// What is in flight to a node that stands still is waited for only a moment.
#[test]
fn an_interrupted_append_does_not_wait_for_a_node_that_stands_still() {
    let case = Case::new();
    let mut command = case.command("append", &["--timeout-ms", "60000"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"one\n").unwrap();
    let mut first = [0; 4];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    // SAFETY: the children are ours and were not waited for.
    let signal = |pid: i32, signal| unsafe { libc::kill(pid, signal) };
    signal(case.node.pid(), libc::SIGSTOP);
    input.write_all(b"two\n").unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let began = Instant::now();
    signal(child.id().try_into().unwrap(), libc::SIGINT);
    let output = child.wait_with_output().unwrap();
    signal(case.node.pid(), libc::SIGCONT);
    ends(
        &output,
        130,
        &["1 records appended, 0 failed", "1 unknown: interrupted"],
    );
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    drop(input);
}

/// A reader of the offsets that went away does not have all of them.
#[test]
fn an_output_that_nobody_reads_is_a_failure() {
    let case = Case::new();
    let mut command = case.command("append", &["--batch-records", "1"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    drop(child.stdout.take());
    input.write_all(b"one\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    ends(
        &output,
        1,
        &["1 records appended", "standard output: Broken pipe"],
    );
}

#[test]
fn a_node_that_stands_still_is_said_not_to_answer() {
    let case = Case::new();
    // SAFETY: the child is ours and was not waited for, so its number is not another process's.
    let signal = |signal| unsafe { libc::kill(case.node.pid(), signal) };
    signal(libc::SIGSTOP);
    let read = case.command("read", &["--timeout-ms", "1500"]).output();
    let status = case.command("status", &[]).output();
    signal(libc::SIGCONT);
    let words = ["within 1500 ms: it is connected, but does not answer; mend: "];
    ends(&read.unwrap(), 1, &words);
    ends(&status.unwrap(), 1, &["no answer within 5000 ms"]);
}

#[test]
fn lines_go_by_key_compressed_and_are_read_from_a_time() {
    let case = Case::new();
    let input = File::options().read(true).open("/dev/null").unwrap();
    let mut command = case.command("append", &["--key", "k", "--shard", "0"]);
    ends(&command.stdin(input).output().unwrap(), 2, &["--key"]);
    let mut command = case.command("append", &["--key", "some key", "--codec", "zstd"]);
    let mut lines = Command::new("seq")
        .args(["1", "3000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    command.stdin(lines.stdout.take().unwrap());
    let output = command.output().unwrap();
    lines.wait().unwrap();
    ends(&output, 0, &[]);
    let first = text(&output.stdout);
    assert!(first.starts_with("0 0\n"), "{first}");
    let all: String = (1..=3000).map(|number| format!("{number}\n")).collect();
    let output = case
        .command("read", &["--from-time", "1"])
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), all);
    let later = ["--from-time", "9000000000000000"];
    let output = case.command("read", &later).output().unwrap();
    assert_eq!(text(&output.stdout), "");
    ends(&output, 0, &[]);
}

#[test]
fn output_that_takes_no_more_fails() {
    let case = Case::new();
    let output = case.append("echo one", full());
    ends(&output, 1, &["1 records appended", "standard output"]);
    for name in ["status", "read"] {
        let output = case.command(name, &[]).stdout(full()).output().unwrap();
        ends(&output, 1, &["No space left"]);
    }
}

/// Only an operator makes room in such a log: whoever appends is told at once, with the numbers.
#[test]
fn a_log_that_is_full_says_so_at_once() {
    let place = Place::new();
    let more = "retention = \"hard\"\nretention_bytes = 8388608\n";
    let config = place.write_config(1, more);
    let node = Node::start(&config, &place.address());
    let case = Case {
        _place: place,
        node,
    };
    let words = [
        "RetentionFull",
        "bytes held: ",
        ", bound: 8388608)",
        "mend: raise log.retention_bytes, or set log.retention = fifo",
    ];
    let lines = "head -c 12000000 /dev/zero | tr '\\0' a | fold -w 100000";
    ends(&case.append(lines, Stdio::piped()), 1, &words);
    let began = Instant::now();
    let mut command = case.command("append", &["--timeout-ms", "60000"]);
    command.stdin(File::open("/etc/hostname").unwrap());
    ends(&command.output().unwrap(), 1, &words);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "it tried for {took:?}");
}

#[test]
fn a_read_past_the_end_says_where_the_end_is() {
    let case = Case::new();
    case.append("printf '1\\n2\\n'", Stdio::piped());
    let output = case.command("read", &["--to", "9"]).output().unwrap();
    assert_eq!(text(&output.stdout), "1\n2\n");
    ends(&output, 1, &["end at 2, before --to 9"]);
}

#[test]
fn following_an_idle_log_goes_on_however_short_the_time_out_is() {
    let case = Case::new();
    case.append("echo one", Stdio::piped());
    let mut command = case.command("read", &["--follow", "--timeout-ms", "900", "--to", "2"]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut reader = command.spawn().unwrap();
    // Longer than the time-out and than a question waits at the node.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(reader.try_wait().unwrap().is_none(), "it gave up");
    case.append("echo two", Stdio::piped());
    let output = reader.wait_with_output().unwrap();
    ends(&output, 0, &[]);
    assert_eq!(text(&output.stdout), "one\ntwo\n");
}

#[test]
fn a_read_of_a_trimmed_log_begins_where_the_log_does() {
    let case = Case::with("retention = \"fifo\"\nretention_bytes = 8388608\n");
    let line = "x".repeat(1000);
    let all = format!("seq -f '%.0f {line}' 0 29999");
    ends(&case.append(&all, Stdio::piped()), 0, &[]);
    let read = |more: &[&str]| case.command("read", more).output().unwrap();
    // Trimming follows the writes: wait for it.
    let until = Instant::now() + node::PATIENCE;
    while read(&["--from", "0", "--to", "1"]).status.success() {
        assert!(Instant::now() < until, "nothing is trimmed");
        std::thread::sleep(Duration::from_millis(100));
    }
    ends(&read(&["--from", "0"]), 1, &["offset 0 is not in the log"]);
    let output = read(&[]);
    ends(&output, 0, &["the log begins at ", "trimmed"]);
    let said = text(&output.stderr);
    let start = said
        .split("begins at ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap();
    let start: usize = start.parse().unwrap();
    let lines = text(&output.stdout);
    let first = lines.lines().next().unwrap();
    assert_eq!(first, format!("{start} {line}"));
    assert_eq!(lines.lines().count(), 30_000 - start);
    ends(&read(&["--to", "1"]), 1, &["--to 1", "begins at"]);
}

#[test]
fn bytes_that_are_no_text_are_printed_exactly() {
    let case = Case::new();
    let lines = "printf 'a\\377\\n\\377\\376\\n\\377\\376\\375\\nplain\\n'";
    ends(&case.append(lines, Stdio::piped()), 0, &[]);
    let mut command = case.command("read", &["--format", "json"]);
    let said = text(&command.output().unwrap().stdout);
    let exact: Vec<serde_json::Value> = said
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|record| record["value_base64"].clone())
        .collect();
    let null = serde_json::Value::Null;
    assert_eq!(exact, ["Yf8=".into(), "//4=".into(), "//79".into(), null]);
}

/// Two of one name, and such as are no text.
#[test]
fn labels_are_all_printed() {
    let case = Case::new();
    let producer = Producer::connect([&case.node.address[..]], &ProducerConfig::new());
    let producer = producer.expect("the node answers");
    let twice = NewRecord::new("v").label("a", "1").label("a", "2");
    let bytes = NewRecord::new("v").label([0xFF], "1").label([0xFE], "2");
    for record in [twice, bytes] {
        let sent = producer.send(record).expect("it is small");
        sent.wait().expect("it is appended");
    }
    let mut command = case.command("read", &["--format", "json"]);
    let said = text(&command.output().unwrap().stdout);
    let said: Vec<serde_json::Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        said[0]["labels"],
        serde_json::json!([["a", "1"], ["a", "2"]])
    );
    assert_eq!(said[0]["labels_base64"], serde_json::Value::Null);
    let exact = serde_json::json!([["/w==", "MQ=="], ["/g==", "Mg=="]]);
    assert_eq!(said[1]["labels_base64"], exact);
}

/// What a node still writes is nothing to judge.
#[test]
fn a_verifier_refuses_a_running_node() {
    let case = Case::new();
    let mut command = node::loadgen::loadgen();
    let data = case._place.data();
    command.arg("verify").arg("--data").arg(&data);
    command.arg("--ledger").arg(data.join("none"));
    ends(&command.output().unwrap(), 2, &["a node runs", "stop it"]);
}

#[test]
fn bad_values_are_bad_input() {
    let case = Case::new();
    let bad = [
        (&["--from", "2", "--to", "1"][..], "--to 1"),
        (&["--shard", "9"], "--shard 9: must be below 1"),
    ];
    for (values, words) in bad {
        let output = case.command("read", values).output().unwrap();
        ends(&output, 2, &[words]);
    }
    for address in ["127.0.0.1", "127.0.0.1:99999", "127.0.0.1:0"] {
        for name in ["append", "read", "status"] {
            let output = millrace().args([name, "--node", address]).output().unwrap();
            ends(&output, 2, &["host:port"]);
        }
    }
}

#[test]
fn numbers_beyond_any_are_refused_with_flag_value_and_range() {
    let huge = "99999999999999999999";
    let node = ["--node", "127.0.0.1:1"];
    for (name, flag, range) in [
        ("read", "--from", "from 0 to 18446744073709551615"),
        ("read", "--shard", "from 0 to 65535"),
        ("read", "--timeout-ms", "from 1 to 4294967295"),
        ("append", "--in-flight", "from 1 to 64"),
        ("append", "--linger-ms", "from 0 to 4294967295"),
    ] {
        let mut command = millrace();
        command.arg(name).args(node).args([flag, huge]);
        ends(&command.output().unwrap(), 2, &[flag, huge, range]);
    }
    let mut command = millrace();
    command.args(["link", "pause", huge, "--node", "127.0.0.1:1"]);
    let words = ["PEER", huge, "from 1 to 4294967295"];
    ends(&command.output().unwrap(), 2, &words);
    let mut command = millrace();
    command.args(["check", "--seconds", huge]);
    ends(
        &command.output().unwrap(),
        2,
        &["--seconds", huge, "from 1 to 600"],
    );
}
