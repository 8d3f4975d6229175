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
        &[
            "log.write_dept = 3: there is no such key (",
            ".toml:11)",
            "did you mean log.write_depth?",
        ],
    );
    refuses(
        config(&place, "[links]\npreset = \"wan\"\n"),
        &[
            "links.preset = \"wan\": there is no such key (",
            ".toml:12)",
        ],
    );
    refuses(
        config(&place, "[cores]\ncpus = \"0,1\"\n"),
        &["cores.cpus = \"0,1\": ", ".toml:12)", "for example [0, 1]"],
    );
    refuses(config(&place, "[links]\n"), &["links", "no such section"]);
    let mut command = config(&place, "");
    command.env("MILLRACE_LOG_SINK", "x");
    refuses(command, &["MILLRACE_LOG_SINK", "no such key"]);
    for (mistyped, meant) in [
        ("MILLRACE_LNK_PRESET", "MILLRACE_LINK_PRESET"),
        ("MILLRACE_LINKPRESET", "MILLRACE_LINK_PRESET"),
        ("MILLRACE_PRESET", "MILLRACE_LINK_PRESET"),
        ("MILLRACE_CLUSTER", "MILLRACE_CLUSTER_ID"),
        ("MILLRACE_LOGS", "MILLRACE_LOG"),
    ] {
        let words = [mistyped, "no such key", &format!("did you mean {meant}?")];
        let file = place.write_config(1, "");
        for name in ["config", "check", "serve"] {
            let mut command = millrace();
            command
                .arg(name)
                .arg("--config")
                .arg(&file)
                .env(mistyped, "wan");
            if name == "config" {
                let output = finish(command);
                let said = text(&output.stderr);
                assert_eq!(output.status.code(), Some(2), "{said}");
                assert!(words.iter().all(|word| said.contains(word)), "{said}");
            } else {
                refuses(command, &words);
            }
        }
        let mut command = millrace();
        command
            .args(["check", "--data-dir", "."])
            .env(mistyped, "wan");
        refuses(command, &words);
    }
    // What others read is no key, and no mistake.
    let mut command = config(&place, "");
    command.env("MILLRACE_BIN", "x");
    assert!(finish(command).status.success());
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

/// S-169 S-171 D-S11 Q-30
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

#[test]
fn numbers_that_nothing_can_hold_are_refused_with_their_range() {
    let place = Place::new();
    let huge = "99999999999999999999";
    let words = ["log.write_depth = 99999999999999999999", "from 1 to 64"];
    refuses(config(&place, &format!("write_depth = {huge}\n")), &words);
    let mut command = config(&place, "");
    command.args(["--set", &format!("log.write_depth={huge}")]);
    refuses(command, &words);
    let mut command = config(&place, "");
    command.env("MILLRACE_LOG_WRITE_DEPTH", huge);
    refuses(command, &words);
    let mut command = config(&place, "");
    command.args(["--node-id", huge]);
    refuses(
        command,
        &["node.id = 99999999999999999999", "to 4294967295"],
    );
    let mut command = config(&place, "");
    command.args(["--nodes", &format!("{huge}=127.0.0.1:7100")]);
    refuses(command, &["cluster.nodes[0].id = 9999", "to 4294967295"]);
    refuses(
        config(&place, &format!("[cores]\ncpus = [0, {huge}]\n")),
        &["cores.cpus = 99999999999999999999", "from 0 to 4095"],
    );
}

#[test]
fn the_list_of_nodes_is_no_value_of_a_key() {
    let place = Place::new();
    let words = ["cluster.nodes", "[[cluster.nodes]]", "--nodes ID=HOST:PORT"];
    let mut command = config(&place, "");
    command.args(["--set", "cluster.nodes=1=127.0.0.1:7100"]);
    refuses(command, &words);
    let mut command = config(&place, "");
    command.env("MILLRACE_CLUSTER_NODES", "1=127.0.0.1:7100");
    refuses(command, &["MILLRACE_CLUSTER_NODES", words[1], words[2]]);
}

#[test]
fn without_a_cluster_every_key_is_printed_all_the_same() {
    let mut command = millrace();
    command.args(["config", "--set", "link.preset=wan"]);
    command.env("MILLRACE_LOG_WRITE_DEPTH", "3");
    let output = finish(command);
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("cluster.id = (not set)"), "{error}");
    let keys: Vec<&str> = said
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let all = millrace::config::KEYS.iter().map(|key| key.name);
    assert_eq!(keys, all.chain(["cluster.nodes"]).collect::<Vec<_>>());
    for (start, source) in [
        (
            "log.write_depth = 3 ",
            "# variable MILLRACE_LOG_WRITE_DEPTH",
        ),
        ("link.rpc_timeout_ms = 15000 ", "# preset wan"),
        ("log.segment_bytes = 67108864 ", "# default"),
        ("cluster.nodes = none ", "# default"),
    ] {
        let line = said.lines().find(|line| line.starts_with(start));
        assert!(
            line.is_some_and(|line| line.ends_with(source)),
            "{start}: {said}"
        );
    }
}

#[test]
fn a_level_of_the_log_that_is_none_is_refused() {
    let place = Place::new();
    let words = ["off, error, warn, info, debug, trace", "MODULE=LEVEL"];
    for level in ["nonsense", "info,nonsense", "millrace=loud", "info,"] {
        let mut command = config(&place, "");
        command.env("MILLRACE_LOG", level);
        let named = format!("MILLRACE_LOG = {level}");
        refuses(command, &[&named, words[0], words[1]]);
    }
    let mut command = millrace();
    command
        .arg("serve")
        .arg("--config")
        .arg(place.write_config(1, ""));
    command.env("MILLRACE_LOG", "verbose");
    refuses(command, &words);
    for level in ["debug", "WARN", "info,glommio=error", "off", ""] {
        let mut command = config(&place, "");
        command.env("MILLRACE_LOG", level);
        assert_eq!(finish(command).status.code(), Some(0), "{level}");
    }
}
