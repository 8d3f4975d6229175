//! A disk that fails in the middle of a load: the node's logs close one by one as they meet it, the
//! rest of the node works, and the others lead on. A new disk is then filled by the others.
//!
//! The failing disk is an ext4 whose image lies in memory of which there is too little: once that
//! is used up, writes end with an input/output error of the device. Read `cluster.rs` first.

use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

use crate::cluster::{Cluster, wait_until};
use crate::load::{Load, now_ms, verify};
use crate::node::mount::{self, Mount};
use crate::node::{finish, millrace, text};

const DISK_BYTES: u64 = 1 << 30;
const MEMORY_BYTES: u64 = 256 << 20;
const RATE: u64 = 30_000;
const ACKS: u64 = 6_000;
const LIMIT: Duration = Duration::from_secs(60);

/// Q-10, H-9, H-78: node 1 leads shard 0 on a disk that fails.
#[test]
fn a_leader_whose_disk_fails_is_replaced_and_rebuilt() {
    let made = Mount::ext4_on_too_small(DISK_BYTES, MEMORY_BYTES);
    let Some(disk) = mount::or_skip(made) else {
        return;
    };
    let mut cluster = Cluster::place(3);
    for node in cluster.ids() {
        cluster.write_config(node, "");
    }
    std::os::unix::fs::symlink(&disk.directory, cluster.data(1)).expect("a link to the disk");
    for node in cluster.ids() {
        cluster.start_node(node);
    }
    cluster.wait_until_led(LIMIT);
    let load = Load::start_with(&cluster, "load", RATE, &["--timeout-ms", "2000"]);
    load.wait_until_acks(ACKS, LIMIT);

    let rest = disk.below().expect("it lies in memory").join("rest");
    let mut file = File::create(&rest).expect("there is memory");
    while file.write_all(&[0xA5; 1 << 16]).is_ok() {}
    let failed = |cluster: &Cluster| {
        let shards = cluster.shards(1);
        let is_failed = |shard: &&serde_json::Value| shard["role"] == "failed";
        shards.iter().filter(is_failed).count()
    };
    wait_until("a log of the failing disk is closed", LIMIT, || {
        failed(&cluster) > 0
    });
    let at_ms = now_ms();
    load.wait_until_resumed(at_ms + 500, LIMIT);
    load.wait_until_acks(ACKS, LIMIT);
    let said = cluster.shards(1);
    for shard in said.iter().filter(|shard| shard["role"] == "failed") {
        let text = shard["failed"].as_str().expect("a text");
        assert!(text.contains("mend: "), "{text}");
    }
    println!(
        "{} of {} logs closed by the disk",
        failed(&cluster),
        said.len()
    );
    // It still answers for them all, as one that does not lead them.
    let mut command = millrace();
    command.args(["status", "--node", cluster.address(1)]);
    let status = finish(command);
    assert!(
        text(&status.stdout).contains("failed"),
        "{}",
        text(&status.stdout)
    );

    cluster.kill(1);
    fs::remove_file(cluster.data(1)).expect("the link to the disk");
    drop(disk);
    cluster.start_node(1);
    load.wait_until_acks(ACKS, LIMIT);
    let run = load.finish();
    cluster.wait_until_equal(LIMIT);
    cluster.stop_all();
    verify(&cluster, &run);
    println!(
        "acked {}, all there on a new disk too",
        run.records("acked")
    );
}
