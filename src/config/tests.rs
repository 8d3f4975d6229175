//! The rules for values, alone and against each other.

use super::*;

fn loaded(set: &[&str], nodes: &[&str]) -> Result<Config, ConfigError> {
    let pair = |text: &&str| {
        let (key, value) = text.split_once('=').unwrap();
        (key.to_owned(), value.to_owned())
    };
    let overrides = Overrides {
        file: None,
        set: set.iter().map(pair).collect(),
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
    };
    load(&overrides, std::iter::empty())
}

const BASE: [&str; 3] = ["node.id=2", "node.data_dir=\"d\"", "cluster.id=7"];
const NODES: [&str; 3] = ["3=c:7000", "1=a:7000", "2=b:7000"];

fn with(set: &[&str]) -> Result<Config, ConfigError> {
    loaded(&[&BASE, set].concat(), &NODES)
}

fn refused(set: &[&str]) -> ConfigError {
    with(set).expect_err("must be refused")
}

#[test]
fn a_set_has_a_shard_per_node_and_leaders_in_the_order_of_ids() {
    let config = with(&[]).unwrap();
    assert_eq!(config.cluster.shards, 3);
    let origin = OriginId(7);
    let leaders: Vec<u32> = (0..5)
        .map(ShardId)
        .map(|shard| LogId { origin, shard })
        .map(|log| config.cluster.leader(log).0)
        .collect();
    assert_eq!(leaders, [1, 2, 3, 1, 2]);
    assert_eq!(config.cluster.origins(), [origin]);
    assert_eq!(config.node.address, "b:7000");
    assert_eq!(config.log.max_batch_bytes, crate::limits::MAX_BATCH_BYTES);
}

/// Where a key should stand and none does, the refusal shows just that.
#[test]
fn a_key_without_a_name_is_shown() {
    for (set, line) in [("=x", "\"\" = x: there is"), (" =x", "\" \" = x: there is")] {
        let shown = refused(&[set]).to_string();
        assert!(shown.starts_with(line), "{shown}");
    }
}

/// S-173: a configuration names the file of the secret, and holds no secret.
#[test]
fn the_secret_is_named_by_its_file() {
    let files = |value: &str| {
        let config = with(&[&format!("cluster.secret_file={value}")]).unwrap();
        let shown = config.values.iter();
        let shown = shown.clone().find(|one| one.key == "cluster.secret_file");
        (
            config.cluster.secret_files.clone(),
            shown.unwrap().text.clone(),
        )
    };
    let paths = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
    assert_eq!(with(&[]).unwrap().cluster.secret_files, paths(&[]));
    assert_eq!(files("\"/a\""), (paths(&["/a"]), "\"/a\"".to_owned()));
    let two = "[\"/a\", \"/b\"]";
    assert_eq!(files(two), (paths(&["/a", "/b"]), two.to_owned()));
    for wrong in [
        "[]",
        "\"\"",
        "[\"/a\", \"/a\"]",
        "[\"/a\", \"/b\", \"/c\"]",
        "7",
        "[7]",
    ] {
        let error = refused(&[&format!("cluster.secret_file={wrong}")]);
        assert_eq!(error.key, "cluster.secret_file", "{error}");
    }
    let set = with(&["cluster.secret_file=\"/a\""]).unwrap();
    assert_eq!(set.fingerprint(), with(&[]).unwrap().fingerprint());
}

/// S-3: in a mesh every node leads a log of its own origin in every shard.
#[test]
fn in_a_mesh_the_origin_of_a_log_is_its_leader() {
    let mesh = with(&["cluster.kind=\"mesh\"", "cluster.shards=2"]).unwrap();
    let logs: Vec<(String, u32)> = mesh
        .cluster
        .logs()
        .map(|log| (log.to_string(), mesh.cluster.leader(log).0))
        .collect();
    let wanted = ["1-0", "2-0", "3-0", "1-1", "2-1", "3-1"];
    let wanted = wanted.into_iter().zip([1, 2, 3, 1, 2, 3]);
    let wanted: Vec<(String, u32)> = wanted.map(|(log, node)| (log.to_owned(), node)).collect();
    assert_eq!(logs, wanted);
    assert_eq!(mesh.cluster.origin_of(NodeId(2)), OriginId(2));
    let set = with(&["cluster.shards=2"]).unwrap();
    assert_ne!(mesh.fingerprint(), set.fingerprint());
    let one = with(&["cluster.kind=\"mesh\""]).unwrap();
    assert_eq!(one.cluster.shards, 1);
}

/// S-171
#[test]
fn zero_and_negative_values_are_refused_by_name() {
    for key in [
        "node.id",
        "cluster.id",
        "cluster.shards",
        "cores.count",
        "log.segment_bytes",
        "log.max_block_bytes",
        "log.max_block_records",
        "log.write_depth",
        "log.batch_timeout_ms",
        "link.initial_credit",
        "link.initial_credit_bytes",
        "link.max_batch_size",
        "link.max_batch_bytes",
        "link.rpc_timeout_ms",
        "link.retry_backoff_ms",
    ] {
        for value in ["0", "-1"] {
            let error = refused(&[&format!("{key}={value}")]);
            assert_eq!((error.key.as_str(), error.value.as_str()), (key, value));
        }
    }
}

#[test]
fn node_list_must_be_consistent() {
    let error = loaded(&BASE, &["1=a:1", "1=b:1"]).unwrap_err();
    assert_eq!(error.key, "cluster.nodes[0].id and cluster.nodes[1].id");
    let error = loaded(&BASE, &["1=a:1"]).unwrap_err();
    assert_eq!(error.key, "node.id and cluster.nodes");
    let error = loaded(&BASE, &["2=a"]).unwrap_err();
    assert_eq!(error.key, "cluster.nodes[0].address");
    let error = loaded(&BASE, &[]).unwrap_err();
    assert_eq!(error.key, "cluster.nodes");
}

#[test]
fn port_ranges_of_one_host_must_not_overlap() {
    let nodes = ["1=a:7000", "2=a:7001"];
    assert!(loaded(&BASE, &nodes).is_ok());
    let two_cores = [&BASE[..], &["cores.count=2"]].concat();
    let error = loaded(&two_cores, &nodes).unwrap_err();
    assert_eq!(
        error.key,
        "cluster.nodes[0].address and cluster.nodes[1].address"
    );
    let error = loaded(&two_cores, &["2=a:65535"]).unwrap_err();
    assert_eq!(error.key, "cores.count and cluster.nodes[0].address");
}

#[test]
fn unaligned_sizes_and_unknown_words_are_refused() {
    assert_eq!(
        refused(&["log.max_block_bytes=5000"]).key,
        "log.max_block_bytes"
    );
    assert_eq!(
        refused(&["log.segment_bytes=5000001"]).key,
        "log.segment_bytes"
    );
    assert_eq!(refused(&["log.sync=\"fast\""]).key, "log.sync");
    assert_eq!(refused(&["cluster.kind=\"ring\""]).key, "cluster.kind");
    assert_eq!(refused(&["cores.cpus=[1,1]"]).key, "cores.cpus");
    assert_eq!(
        refused(&["cores.count=3", "cores.cpus=[1]"]).key,
        "cores.count and cores.cpus"
    );
}

/// S-162 S-163 S-164 S-165 S-167 S-168
#[test]
fn the_sources_names_and_numbers_are_accepted() {
    let config = with(&[
        "link.initial_credit=100",
        "link.max_batch_size=100",
        "link.max_batch_bytes=1048576",
        "log.batch_timeout_ms=10",
        "link.rpc_timeout_ms=5000",
        "link.retry_backoff_ms=1000",
    ])
    .unwrap();
    assert_eq!(config.link.initial_credit, 100);
    assert_eq!(config.log.max_block_records, 100);
    assert_eq!(config.log.max_batch_bytes, 1 << 20);
}

/// S-169 S-170 S-186
#[test]
fn every_preset_is_accepted_and_sets_what_it_says() {
    for preset in presets::PRESETS {
        let config = with(&[&format!("link.preset={}", preset.name)]).unwrap();
        for (key, value) in preset.values {
            let found = config.values.iter().find(|found| found.key == *key);
            let found = found.expect("a preset sets known keys");
            assert_eq!(found.text, value.to_string(), "{key}");
            assert_eq!(found.source, Source::Preset(preset.name), "{key}");
        }
    }
    let numbers = |name: &str| {
        let config = with(&[&format!("link.preset={name}")]).unwrap();
        let Log {
            max_block_records,
            batch_timeout_ms,
            ..
        } = config.log;
        (max_block_records, batch_timeout_ms)
    };
    assert_eq!(numbers("shanghai"), (100, 10));
    assert_eq!(numbers("throughput"), (1000, 100));
    assert_eq!(numbers("latency"), (10, 1));
    let wan = with(&["link.preset=wan"]).unwrap().link;
    // 250 MB/s for 300 ms, in bytes and in records of 100 bytes.
    assert!(wan.initial_credit_bytes >= 2 * 75_000_000);
    assert!(wan.initial_credit >= 2 * 750_000);
}

#[test]
fn a_preset_gives_way_to_everything_else() {
    let config = with(&["link.preset=shanghai", "link.rpc_timeout_ms=70"]).unwrap();
    assert_eq!(config.link.rpc_timeout_ms, 70);
    assert_eq!(config.link.initial_credit, 100);
    // The other name of a number in the preset.
    let config = with(&["link.preset=shanghai", "log.max_block_records=50"]).unwrap();
    assert_eq!(config.log.max_block_records, 50);
    let config = with(&["link.preset=none"]).unwrap();
    assert_eq!(config.link.preset, None);
}

#[test]
fn a_higher_layer_may_use_the_other_name_of_a_number() {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let base = BASE.iter().filter_map(|text| text.split_once('='));
    let mut set: Vec<_> = base.map(|(key, value)| pair(key, value)).collect();
    set.push(pair("log.max_block_records", "60"));
    let overrides = Overrides {
        file: None,
        set,
        nodes: NODES.map(str::to_owned).to_vec(),
    };
    let lower = [pair("MILLRACE_LINK_MAX_BATCH_SIZE", "50")];
    let config = load(&overrides, lower.into_iter()).unwrap();
    assert_eq!(config.log.max_block_records, 60);
    for key in ["log.max_block_records", "link.max_batch_size"] {
        let value = config.values.iter().find(|value| value.key == key).unwrap();
        assert_eq!((&value.text[..], &value.source), ("60", &Source::Flag));
    }
}

#[test]
fn the_admin_port_is_checked() {
    let config = with(&["node.admin=\"b:7900\"", "node.admin_control=true"]).unwrap();
    assert_eq!(config.node.admin.as_deref(), Some("b:7900"));
    assert_eq!(with(&["node.admin=off"]).unwrap().node.admin, None);
    for (set, key) in [
        ("node.admin=\"b\"", "node.admin"),
        ("node.admin=\"b:7000\"", "node.admin and node.address"),
        (
            "node.admin_control=true",
            "node.admin_control and node.admin",
        ),
        ("node.log=\"xml\"", "node.log"),
    ] {
        assert_eq!(refused(&[set]).key, key);
    }
}

#[test]
fn the_fingerprint_is_about_the_cluster_and_not_about_the_node() {
    let print =
        |set: &[&str], nodes: &[&str]| loaded(&[&BASE, set].concat(), nodes).unwrap().fingerprint();
    let plain = print(&[], &NODES);
    assert_eq!(
        plain,
        print(&["cores.spin_us=5"], &["1=x:1", "2=y:1", "3=z:1"])
    );
    assert_ne!(plain, print(&["cluster.shards=4"], &NODES));
    assert_ne!(plain, print(&["log.max_block_bytes=65536"], &NODES));
    assert_ne!(plain, print(&["cluster.election=false"], &NODES));
    assert_ne!(plain, print(&[], &["1=a:1", "2=b:1"]));
}

#[test]
fn sets_of_three_elect_their_leaders() {
    let election = |set: &[&str], nodes: &[&str]| {
        let config = loaded(&[&BASE, set].concat(), nodes);
        config.map(|config| config.cluster.election)
    };
    let two = ["1=a:1", "2=b:1"];
    assert_eq!(election(&[], &NODES), Ok(true));
    assert_eq!(election(&["cluster.election=false"], &NODES), Ok(false));
    assert_eq!(election(&[], &two), Ok(false));
    assert_eq!(election(&["cluster.kind=\"mesh\""], &NODES), Ok(false));
    for set in [
        &["cluster.election=true"][..],
        &["cluster.election=true", "cluster.kind=\"mesh\""],
    ] {
        let nodes = if set.len() == 1 { &two[..] } else { &NODES[..] };
        let error = election(set, nodes).expect_err("no election there");
        assert_eq!(error.key, "cluster.election");
    }
    assert_eq!(
        refused(&["cluster.election_timeout_ms=100"]).key,
        "cluster.election_timeout_ms"
    );
}

#[test]
fn a_refusal_is_one_line() {
    let error = ConfigError::new("key", "a\nvalue", "a\n  rule", "mend");
    assert_eq!(error.to_string(), "key = a value: a rule; mend: mend");
}

#[test]
fn retention_and_its_bounds_go_together() {
    assert_eq!(with(&[]).unwrap().log.retention, Retention::default());
    let bytes = "log.retention_bytes=268435456";
    let fifo = with(&["log.retention=fifo", bytes, "log.retention_age_s=60"]).unwrap();
    let expected = Retention {
        trim_bytes: Some(256 << 20),
        refuse_bytes: None,
        age_s: Some(60),
    };
    assert_eq!(fifo.log.retention, expected);
    let hard = with(&["log.retention=hard", bytes]).unwrap().log.retention;
    assert_eq!(
        (hard.trim_bytes, hard.refuse_bytes),
        (None, Some(256 << 20))
    );
    for (set, word) in [
        (&["log.retention=fifo"][..], "needs a bound"),
        (
            &["log.retention=hard", "log.retention_age_s=60"],
            "in bytes",
        ),
        (&[bytes], "keeps everything"),
        (&["log.retention=lifo", bytes], "hard"),
        (
            &["log.retention=fifo", "log.retention_bytes=1000"],
            "must be from",
        ),
        (
            &["log.retention=fifo", "log.retention_age_s=0"],
            "must be from",
        ),
    ] {
        let error = refused(set);
        assert!(error.rule.contains(word), "{set:?}: {error}");
        assert!(error.key.contains("log.retention"), "{set:?}: {error}");
    }
}
