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
    let mut command = config(
        &place,
        "write_depth = 3\n\n[link]\nrpc_timeout_ms = 77\nretry_backoff_ms = 7\npreset = \"wan\"\n",
    );
    command.env("MILLRACE_LINK_PRESET", "throughput");
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
    let file = place.write_config(1, "");
    let file = file.display();
    for (key, value, source) in [
        ("log.write_depth", "3", format!("{file}:11")),
        (
            "link.rpc_timeout_ms",
            "88",
            "variable MILLRACE_LINK_RPC_TIMEOUT_MS".to_owned(),
        ),
        ("log.sync", "\"dsync\"", "flag".to_owned()),
        (
            "log.batch_timeout_ms",
            "100",
            "preset throughput".to_owned(),
        ),
        (
            "link.max_batch_size",
            "1000",
            "preset throughput".to_owned(),
        ),
        (
            "log.max_block_records",
            "1000",
            "preset throughput".to_owned(),
        ),
        ("link.retry_backoff_ms", "7", format!("{file}:15")),
        ("cores.count", "1", "default".to_owned()),
    ] {
        let line = line(key);
        assert!(
            line.contains(&format!("= {value} ")) && line.ends_with(&format!("# {source}")),
            "{line}"
        );
    }
}

/// S-162 S-163 S-164 S-165 S-167 S-168
#[test]
fn the_preset_shanghai_has_the_sources_numbers() {
    let place = Place::new();
    let mut command = config(&place, "");
    command.env("MILLRACE_LINK_PRESET", "shanghai");
    let said = text(&finish(command).stdout);
    for row in [
        "link.initial_credit = 100 ",
        "link.max_batch_size = 100 ",
        "link.max_batch_bytes = 1048576 ",
        "log.batch_timeout_ms = 10 ",
        "link.rpc_timeout_ms = 5000 ",
        "link.retry_backoff_ms = 1000 ",
    ] {
        let line = said.lines().find(|line| line.starts_with(row));
        let line = line.unwrap_or_else(|| panic!("no {row} in {said}"));
        assert!(line.ends_with("# preset shanghai"), "{line}");
    }
}

#[test]
fn unknown_keys_are_refused_wherever_they_stand() {
    let place = Place::new();
    refuses(
        config(&place, "write_dept = 3\n"),
        &["log.write_dept = ", ".toml:11", "there is no such key"],
    );
    refuses(
        config(&place, "[links]\npreset = \"wan\"\n"),
        &["links.preset = ", ".toml:12", "there is no such key"],
    );
    refuses(config(&place, "[links]\n"), &["links", "no such section"]);
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
fn a_value_of_the_wrong_type_is_refused_by_its_key() {
    let place = Place::new();
    refuses(
        config(&place, "write_depth = \"deep\"\n"),
        &["log.write_depth = \"deep\"", "invalid type", ".toml:11"],
    );
    let mut command = config(&place, "");
    command.env("MILLRACE_NODE_ADMIN_CONTROL", "maybe");
    refuses(
        command,
        &["node.admin_control", "variable MILLRACE_NODE_ADMIN_CONTROL"],
    );
}

/// S-169 S-171 D-S11
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
            "[link]\npreset = \"throughput\"\ninitial_credit = 100\n",
            ["link.initial_credit", "raise link.initial_credit to 1000"],
        ),
        (
            "[link]\npreset = \"fast\"\n",
            ["link.preset", "shanghai, throughput, latency, wan, edge"],
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
