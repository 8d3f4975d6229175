//! Settings that contradict one another: whatever two keys say against each other, the node does
//! not start, and the one line that it says names both keys and the mend.

use std::fs;

use crate::node::{Place, millrace, refuses};
use crate::tally::Tally;

/// Each kind of contradiction: its name, the settings, the words that must be in the line.
const ROWS: &[(&str, &[&str], &[&str])] = &[
    (
        "node not listed",
        &["node.id=9"],
        &["node.id and cluster.nodes", "add the node"],
    ),
    (
        "control without port",
        &["node.admin_control=true"],
        &["node.admin_control and node.admin", "set node.admin"],
    ),
    (
        "admin on a core's port",
        &["cores.count=2", "node.admin=\"127.0.0.1:PORT+1\""],
        &["node.admin and node.address", "choose another port"],
    ),
    (
        "cores and CPUs",
        &["cores.count=2", "cores.cpus=[0]"],
        &["cores.count and cores.cpus", "set one of the two only"],
    ),
    (
        "ports past the last",
        &["cores.count=250", "node 1=127.0.0.1:65530"],
        &[
            "cores.count and cluster.nodes[0].address",
            "choose a lower port",
        ],
    ),
    (
        "ports that overlap",
        &["cores.count=2", "node 1=h:7000", "node 2=h:7001"],
        &[
            "cluster.nodes[0].address and cluster.nodes[1].address",
            "leave as many ports",
        ],
    ),
    (
        "two nodes of one id",
        &["node 1=h:7000", "node 1=i:7000"],
        &[
            "cluster.nodes[0].id and cluster.nodes[1].id",
            "number each node once",
        ],
    ),
    (
        "a bound and no retention",
        &["log.retention_bytes=1073741824"],
        &[
            "log.retention, log.retention_bytes and log.retention_age_s",
            "fifo or hard",
        ],
    ),
    (
        "fifo without bound",
        &["log.retention=\"fifo\""],
        &[
            "log.retention, log.retention_bytes and log.retention_age_s",
            "set log.retention_bytes",
        ],
    ),
    (
        "hard by age alone",
        &["log.retention=\"hard\"", "log.retention_age_s=60"],
        &[
            "log.retention, log.retention_bytes and log.retention_age_s",
            "set log.retention_bytes",
        ],
    ),
    (
        "one number, two values",
        &["log.max_block_records=5", "link.max_batch_size=6"],
        &[
            "log.max_block_records and link.max_batch_size",
            "set one of the two only",
        ],
    ),
    (
        "a block above a segment",
        &["log.max_block_bytes=4194304"],
        &[
            "log.max_block_bytes and log.segment_bytes",
            "raise log.segment_bytes",
        ],
    ),
    (
        "a batch above a segment",
        &["link.max_batch_bytes=4194304"],
        &[
            "link.max_batch_bytes and log.segment_bytes",
            "raise log.segment_bytes",
        ],
    ),
    (
        "credit below a block",
        &["link.initial_credit_bytes=4096"],
        &[
            "link.initial_credit_bytes and log.max_block_bytes",
            "raise link.initial_credit_bytes",
        ],
    ),
    (
        "credit below its records",
        &["link.initial_credit=100"],
        &[
            "link.initial_credit and log.max_block_records",
            "raise link.initial_credit",
        ],
    ),
    (
        "a preset against a value",
        &["link.preset=\"throughput\"", "link.initial_credit=100"],
        &[
            "link.initial_credit and log.max_block_records",
            "raise link.initial_credit to 1000",
        ],
    ),
];

/// Every row, as a node that is to serve.
pub fn contradict(tally: &mut Tally) {
    for (name, settings, words) in ROWS {
        let place = Place::new();
        let mut command = millrace();
        command
            .args(["serve", "--config"])
            .arg(place.write_config(1, ""));
        for setting in *settings {
            let port = format!(":{}", place.port + 1);
            match setting.strip_prefix("node ") {
                Some(node) => command.args(["--nodes", node]),
                None => command.args(["--set", &setting.replace(":PORT+1", &port)]),
            };
        }
        refuses(command, words);
        let made = fs::exists(place.data()).expect("the directory can be looked at");
        assert!(!made, "{name}: a node that does not start leaves nothing");
        tally.count("settings", name, "exit 2");
    }
}
