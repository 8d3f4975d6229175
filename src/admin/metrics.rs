//! The metrics page: one look at the board, in OpenMetrics text.
//!
//! Names and base units are those of Prometheus (seconds, bytes); positions count blocks, lag and
//! credit also records. Labels: `origin` and `shard` name a log, `peer` the other node of a link.
//! Nothing is kept between two scrapes. Each family is one row of [`write`].

use crate::snapshot::{LinkStatus, LinkUsage, LinkView, Role, ShardStatus, ShardUsage, Snapshot};
use crate::types::{Buckets, LogId, NodeId};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

type Labels = Vec<(&'static str, String)>;
type Rows = Vec<(Labels, Sample)>;

enum Sample {
    Whole(u64),
    Real(f64),
    Counts(Buckets),
}

/// Counters of the process as the status names them: name on the page, whether it only grows, help.
const PROCESS: &[(&str, &str, bool, &str)] = &[
    (
        "records_encoded",
        "records_encoded",
        true,
        "Records that this node encoded: always 0, clients encode and nobody else does",
    ),
    (
        "bad_frames",
        "bad_frames",
        true,
        "Frames refused for their CRC or lengths",
    ),
    (
        "unknown_frames",
        "unknown_frames",
        true,
        "Frames of a type not known here",
    ),
    (
        "refused_peers",
        "refused_peers",
        true,
        "Nodes refused at their first frame",
    ),
    (
        "connections_accepted",
        "connections_accepted",
        true,
        "Connections accepted",
    ),
    (
        "connections_refused",
        "connections_refused",
        true,
        "Connections closed because a core had as many as it takes",
    ),
    (
        "handoffs",
        "handoffs",
        true,
        "Client requests handed to another core",
    ),
    (
        "connections_open",
        "connections_open",
        false,
        "Connections open now",
    ),
    (
        "segments_ready",
        "spare_segments",
        false,
        "Zeroed segment files ready for use",
    ),
    (
        "segments_provided_ready",
        "segments_provided_ready",
        true,
        "Segment files that were ready when a log needed one",
    ),
    (
        "segments_provided_cold",
        "segments_provided_cold",
        true,
        "Segment files that had to be made when a log needed one",
    ),
];

type LinkGauge = (
    &'static str,
    Option<Unit>,
    &'static str,
    fn(&LinkView) -> Option<Sample>,
);

type ShardRow = (&'static str, &'static str, fn(&ShardStatus) -> u64);

/// Gauges of each log: name on the page, help, value.
const SHARD_GAUGES: &[ShardRow] = &[
    ("shard_epoch", "Epoch in force", |s| s.epoch.0.into()),
    ("shard_log_start_blocks", "First block kept", |s| {
        s.log_start.0
    }),
    ("shard_high_watermark_blocks", "Committed blocks", |s| {
        s.high_watermark.0
    }),
    ("shard_durable_end_blocks", "Durable blocks", |s| {
        s.durable_end.0
    }),
    ("shard_log_end_blocks", "Blocks held", |s| s.log_end.0),
    ("shard_faulty_blocks", "Blocks damaged here", |s| {
        let ranges = s.damage.ranges.iter();
        ranges.map(|(from, end, _)| end.0 - from.0).sum()
    }),
    (
        "shard_durable_records",
        "Offset behind the last durable record",
        |s| s.durable_offset.0,
    ),
    (
        "shard_committed_records",
        "Offset behind the last committed record",
        |s| s.committed_offset.0,
    ),
];

/// Counters of each log.
const SHARD_COUNTERS: &[ShardRow] = &[
    ("appends", "Batches accepted from clients", |s| {
        s.counters.appends
    }),
    ("blocks_sealed", "Blocks sealed here as leader", |s| {
        s.counters.blocks_sealed
    }),
    ("blocks_admitted", "Blocks admitted here as follower", |s| {
        s.counters.blocks_admitted
    }),
    ("blocks_cut", "Blocks cut off, torn or truncated", |s| {
        s.counters.blocks_cut
    }),
    ("damage_found", "Damage found in the log's files", |s| {
        s.counters.damage_found
    }),
    ("blocks_repaired", "Damaged blocks repaired", |s| {
        s.counters.blocks_repaired
    }),
    (
        "rewritten",
        "Damaged headers and checkpoint copies written anew",
        |s| s.counters.rewritten,
    ),
    ("scrubs", "Passes of the scrub that ended", |s| {
        s.counters.scrubs
    }),
    ("crc_failures", "Blocks or batches refused for a CRC", |s| {
        s.counters.crc_failures
    }),
];

/// Gauges of each link that this node leads.
const LINK_GAUGES: &[LinkGauge] = &[
    (
        "link_status_age",
        Some(Unit::Seconds),
        "How long it has had this status",
        |l| Some(Sample::Real(seconds_of_us(l.since_us))),
    ),
    (
        "link_lag_records",
        None,
        "Records that the follower lacks",
        |l| Some(Sample::Whole(l.lag_records)),
    ),
    (
        "link_lag",
        Some(Unit::Bytes),
        "Bytes of blocks that the follower lacks; absent if not known",
        |l| l.lag_bytes.map(Sample::Whole),
    ),
    (
        "link_lag",
        Some(Unit::Seconds),
        "Age of the oldest block that it lacks",
        |l| l.lag_us.map(|us| Sample::Real(seconds_of_us(us))),
    ),
    (
        "link_credit_records",
        None,
        "Records that may still be sent",
        |l| Some(Sample::Whole(l.credit_records)),
    ),
    (
        "link_credit",
        Some(Unit::Bytes),
        "Bytes that may still be sent",
        |l| Some(Sample::Whole(l.credit_bytes)),
    ),
    (
        "link_queued",
        Some(Unit::Bytes),
        "Memory of what waits for the link's socket",
        |l| Some(Sample::Whole(l.queued_bytes as u64)),
    ),
    ("link_sent_blocks", None, "First block not sent", |l| {
        Some(Sample::Whole(l.sent.0))
    }),
    (
        "link_matched_blocks",
        None,
        "First block not acknowledged",
        |l| Some(Sample::Whole(l.matched.0)),
    ),
];

/// The page.
pub(super) fn page(snapshot: Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("millrace");
    registry.register_collector(Box::new(Look(snapshot)));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

#[derive(Debug)]
struct Look(Snapshot);

impl Collector for Look {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut page = Page(encoder);
        process(&mut page, &self.0)?;
        shards(&mut page, &self.0)?;
        links(&mut page, &self.0)?;
        usage(&mut page, &self.0)
    }
}

struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    /// Writes one family; none if it has no rows.
    fn write(
        &mut self,
        kind: MetricType,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        rows: Rows,
    ) -> fmt::Result {
        if rows.is_empty() {
            return Ok(());
        }
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, sample) in rows {
            let mut row = family.encode_family(&labels)?;
            match (kind, sample) {
                (_, Sample::Counts(counts)) => {
                    let bound = |(bound, count): (Option<u64>, u64)| {
                        (bound.map_or(f64::MAX, seconds_of_us), count)
                    };
                    let buckets: Vec<(f64, u64)> = counts.each().map(bound).collect();
                    let sum = seconds_of_us(counts.sum_us());
                    row.encode_histogram::<NoLabelSet>(sum, counts.count(), &buckets, None)?;
                }
                (MetricType::Counter, Sample::Whole(value)) => {
                    row.encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
                }
                (MetricType::Counter, Sample::Real(value)) => {
                    row.encode_counter::<NoLabelSet, f64, u64>(&value, None)?;
                }
                (_, Sample::Whole(value)) => row.encode_gauge(&value)?,
                (_, Sample::Real(value)) => row.encode_gauge(&value)?,
            }
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, unit: Option<Unit>, help: &str, rows: Rows) -> fmt::Result {
        self.write(MetricType::Gauge, name, unit, help, rows)
    }

    fn counter(&mut self, name: &str, unit: Option<Unit>, help: &str, rows: Rows) -> fmt::Result {
        self.write(MetricType::Counter, name, unit, help, rows)
    }
}

fn seconds_of_us(us: u64) -> f64 {
    us as f64 / 1e6
}

fn seconds_of_ns(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn process(page: &mut Page<'_>, look: &Snapshot) -> fmt::Result {
    let status = &look.status;
    let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| status[key].as_u64().unwrap_or_default().to_string();
    let labels = vec![
        ("node", number("node")),
        ("cluster", number("cluster")),
        ("version", text("version")),
        ("protocol", number("protocol")),
    ];
    let one = vec![(labels, Sample::Whole(1))];
    page.gauge("node_info", None, "The node: always 1", one)?;
    let uptime = status["uptime_s"].as_f64().unwrap_or_default();
    let rows = vec![(Vec::new(), Sample::Real(uptime))];
    page.gauge("uptime", Some(Unit::Seconds), "Time since the start", rows)?;
    let names = |key: &str| status[key].as_array().into_iter().flatten();
    let names = |key: &str| {
        names(key)
            .filter_map(|name| name.as_str())
            .collect::<Vec<_>>()
    };
    let finalized = names("finalized");
    let rows = names("capabilities").into_iter().map(|name| {
        let labels = vec![("capability", name.to_owned())];
        (labels, Sample::Whole(u64::from(finalized.contains(&name))))
    });
    let help = "What this node knows: 1 where the cluster is finalized with it";
    page.gauge("capability_finalized", None, help, rows.collect())?;
    for (key, name, grows, help) in PROCESS {
        let value = status["counters"][key].as_u64();
        let rows = value.map(|value| (Vec::new(), Sample::Whole(value)));
        let rows = rows.into_iter().collect();
        match grows {
            true => page.counter(name, None, help, rows)?,
            false => page.gauge(name, None, help, rows)?,
        }
    }
    let cores = || look.cores.iter().enumerate();
    let core = |index: usize| vec![("core", index.to_string())];
    let rows =
        cores().map(|(index, report)| (core(index), Sample::Real(seconds_of_ns(report.cpu_ns))));
    let help = "CPU time of the core's thread";
    page.counter("core_cpu", Some(Unit::Seconds), help, rows.collect())?;
    let rows =
        cores().map(|(index, report)| (core(index), Sample::Whole(report.buffer_bytes as u64)));
    let help = "Memory of the core's buffers";
    page.gauge("core_buffers", Some(Unit::Bytes), help, rows.collect())?;
    let rows = cores().filter_map(|(index, report)| {
        let age = report.at?.elapsed().as_secs_f64();
        Some((core(index), Sample::Real(age)))
    });
    let help = "Age of the core's report: it hangs if this grows past 2";
    page.gauge("core_report_age", Some(Unit::Seconds), help, rows.collect())
}

fn of_log(log: LogId) -> Labels {
    vec![
        ("origin", log.origin.to_string()),
        ("shard", log.shard.to_string()),
    ]
}

fn shards(page: &mut Page<'_>, look: &Snapshot) -> fmt::Result {
    let all = |value: fn(&ShardStatus) -> u64| -> Rows {
        let row = |shard: &ShardStatus| (of_log(shard.log), Sample::Whole(value(shard)));
        look.shards.iter().map(row).collect()
    };
    let roles = [
        (Role::Recovering, "recovering"),
        (Role::Opening, "opening"),
        (Role::Leader, "leader"),
        (Role::Follower, "follower"),
        (Role::Failed, "failed"),
    ];
    let rows = look.shards.iter().flat_map(|shard| {
        roles.map(|(role, name)| {
            let mut labels = of_log(shard.log);
            labels.push(("role", name.to_owned()));
            (labels, Sample::Whole(u64::from(shard.role == role)))
        })
    });
    let help = "What this node is for the log: 1 for its role, 0 for the others";
    page.gauge("shard_role", None, help, rows.collect())?;
    for (name, help, value) in SHARD_GAUGES {
        page.gauge(name, None, help, all(*value))?;
    }
    for (name, help, value) in SHARD_COUNTERS {
        page.counter(name, None, help, all(*value))?;
    }
    let help = "Bytes handed to the disk, padding included";
    let written = all(|shard| shard.counters.bytes_written);
    page.counter("written", Some(Unit::Bytes), help, written)?;
    let scrubbed = all(|shard| shard.counters.scrub_bytes);
    page.counter(
        "scrubbed",
        Some(Unit::Bytes),
        "Bytes read by the scrub",
        scrubbed,
    )?;
    let rows = look.shards.iter().filter_map(|shard| {
        let silence = seconds_of_us(shard.following.as_ref()?.silence_us?);
        Some((of_log(shard.log), Sample::Real(silence)))
    });
    let help = "Time since this follower heard of its leader";
    page.gauge(
        "shard_leader_silence",
        Some(Unit::Seconds),
        help,
        rows.collect(),
    )?;
    let rows = look.shards.iter();
    let rows = rows.map(|shard| (of_log(shard.log), Sample::Counts(shard.append_latency)));
    let help = "From the arrival of an append to its acknowledgement";
    let (kind, unit) = (MetricType::Histogram, Some(Unit::Seconds));
    page.write(kind, "append_latency", unit, help, rows.collect())
}

fn of_link(log: LogId, peer: NodeId) -> Labels {
    let mut labels = of_log(log);
    labels.push(("peer", peer.to_string()));
    labels
}

/// Links that this node leads.
fn links(page: &mut Page<'_>, look: &Snapshot) -> fmt::Result {
    let each = || {
        let shards = look.shards.iter();
        shards.flat_map(|shard| shard.links.iter().map(move |link| (shard.log, link)))
    };
    let statuses = [
        (LinkStatus::Replicating, "replicating"),
        (LinkStatus::WaitingForCredit, "waiting_for_credit"),
        (LinkStatus::Paused, "paused"),
        (LinkStatus::Disconnected, "disconnected"),
    ];
    let rows = each().flat_map(|(log, link)| {
        statuses.map(|(status, name)| {
            let mut labels = of_link(log, link.peer);
            labels.push(("status", name.to_owned()));
            (labels, Sample::Whole(u64::from(link.status == status)))
        })
    });
    let help = "The link's status: 1 for the one it has, 0 for the others";
    page.gauge("link_status", None, help, rows.collect())?;
    for (name, unit, help, value) in LINK_GAUGES {
        let rows = each().filter_map(|(log, link)| Some((of_link(log, link.peer), value(link)?)));
        page.gauge(name, unit.clone(), help, rows.collect())?;
    }
    let rows =
        each().map(|(log, link)| (of_link(log, link.peer), Sample::Counts(link.lag_buckets)));
    let help = "Per block, from the leader's append of its last batch to the follower's \
                acknowledgement";
    let (kind, unit) = (MetricType::Histogram, Some(Unit::Seconds));
    page.write(kind, "replication_lag", unit, help, rows.collect())
}

/// What shards and links took, on either side of a link.
fn usage(page: &mut Page<'_>, look: &Snapshot) -> fmt::Result {
    let shards = || {
        let cores = look.cores.iter();
        cores.flat_map(|core| core.usage.iter())
    };
    let row = |(log, usage): (&LogId, &ShardUsage)| {
        (of_log(*log), Sample::Real(seconds_of_ns(usage.cpu_ns)))
    };
    let help = "Time in the shard's own code, sockets left out";
    page.counter(
        "shard_cpu",
        Some(Unit::Seconds),
        help,
        shards().map(row).collect(),
    )?;
    let row =
        |(log, usage): (&LogId, &ShardUsage)| (of_log(*log), Sample::Counts(usage.disk_writes));
    let help = "From handing a write to the disk to its completion";
    let (kind, unit) = (MetricType::Histogram, Some(Unit::Seconds));
    page.write(
        kind,
        "disk_write_latency",
        unit,
        help,
        shards().map(row).collect(),
    )?;
    type Value = fn(&LinkUsage) -> Sample;
    let counters: [(&str, Unit, &str, Value); 3] = [
        (
            "link_cpu",
            Unit::Seconds,
            "Time on the link's frames, up to the socket",
            |l| Sample::Real(seconds_of_ns(l.cpu_ns)),
        ),
        (
            "link_sent",
            Unit::Bytes,
            "Bytes of frames for the other node",
            |l| Sample::Whole(l.sent_bytes),
        ),
        (
            "link_received",
            Unit::Bytes,
            "Bytes of frames from the other node",
            |l| Sample::Whole(l.received_bytes),
        ),
    ];
    for (name, unit, help, value) in counters {
        let rows = shards().flat_map(|(log, usage)| {
            let links = usage.links.iter();
            links.map(|(peer, link)| (of_link(*log, *peer), value(link)))
        });
        page.counter(name, Some(unit), help, rows.collect())?;
    }
    Ok(())
}
