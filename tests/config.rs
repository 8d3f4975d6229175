//! Configuration as an operator meets it: sources, unknown keys, contradictions.
//!
//! The rules for single values are tested beside the code; here it is the real command with its
//! exit codes and lines.

mod node;

use node::{Place, finish, millrace, refuses, text};
use std::process::Command;

fn config(place: &Place, more: &str) -> Command {
    let mut command = millrace();
    command
        .arg("config")
        .arg("--config")
        .arg(place.write_config(1, more));
    command
}

#[test]
fn every_value_is_printed_with_its_source() {
    let place = Place::new();
    let mut command = config(&place, "write_depth = 3\n[link]\nrpc_timeout_ms = 77\n");
    command.env("MILLRACE_LINK_RPC_TIMEOUT_MS", "88");
    command.env("MILLRACE_LOG_SYNC", "none");
    command.args(["--set", "log.sync=dsync"]);
    let output = finish(command);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let line = |key: &str| {
        let found = said
            .lines()
            .find(|line| line.starts_with(&format!("{key} = ")));
        found
            .unwrap_or_else(|| panic!("no {key} in {said}"))
            .to_owned()
    };
    for (key, value, source) in [
        ("log.write_depth", "3", "file"),
        (
            "link.rpc_timeout_ms",
            "88",
            "environment MILLRACE_LINK_RPC_TIMEOUT_MS",
        ),
        ("log.sync", "\"dsync\"", "flag"),
        ("cores.count", "1", "default"),
    ] {
        let line = line(key);
        assert!(
            line.contains(value) && line.ends_with(&format!("# {source}")),
            "{line}"
        );
    }
}

#[test]
fn unknown_keys_are_refused_wherever_they_stand() {
    let place = Place::new();
    refuses(
        config(&place, "write_dept = 3\n"),
        &["unknown field", "write_dept"],
    );
    let mut command = config(&place, "");
    command.env("MILLRACE_LOG_SINK", "x");
    refuses(command, &["MILLRACE_LOG_SINK", "no such key"]);
    let mut command = config(&place, "");
    command.args(["--set", "log.sink=1"]);
    refuses(command, &["log.sink", "no such key"]);
}

#[test]
fn what_is_no_toml_is_refused_with_its_line() {
    let place = Place::new();
    refuses(
        config(&place, "write_depth = = 3\n"),
        &["line 11 is no TOML"],
    );
}

#[test]
fn contradictions_name_both_keys() {
    let place = Place::new();
    for (more, words) in [
        (
            "[link]\ninitial_credit_bytes = 4096\n",
            ["link.initial_credit_bytes", "log.max_block_bytes"],
        ),
        (
            "[link]\ninitial_credit = 100\n",
            ["link.initial_credit", "log.max_block_records"],
        ),
        (
            "max_block_records = 5\n[link]\nmax_batch_size = 6\n",
            ["log.max_block_records", "link.max_batch_size"],
        ),
        (
            "max_block_bytes = 4194304\n",
            ["log.max_block_bytes", "log.segment_bytes"],
        ),
    ] {
        refuses(config(&place, more), &words);
    }
}
