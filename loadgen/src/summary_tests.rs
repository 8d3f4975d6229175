//! Tests of the judgement: each thing that does not hold is named.

use super::*;
use crate::report::ShardReport;
use crate::verify::{NodeVerdict, Totals};

fn good() -> (Report, Verdict) {
    let shards = (0..2).map(|shard| ShardReport {
        origin: 7,
        shard,
        acked: 5,
        gap_max_ms: 0,
    });
    let report = Report {
        acked: 10,
        record_bytes: 100,
        shards: shards.collect(),
        ..Report::default()
    };
    let totals = Totals {
        checked: 10,
        compared_bytes: 8192,
        ..Totals::default()
    };
    let node = NodeVerdict {
        data: "node-1".to_owned(),
        totals,
        identical: true,
        ..NodeVerdict::default()
    };
    let verdict = Verdict {
        acked: 10,
        totals,
        replicas_identical: true,
        nodes: vec![node.clone(), node],
        ..Verdict::default()
    };
    (report, verdict)
}

#[test]
fn a_good_run_holds() {
    let (report, verdict) = good();
    assert!(failures(&report, &verdict).is_empty());
    assert!(text(&report, &verdict).contains("verdict     holds"));
}

#[test]
fn what_retention_took_away_is_no_loss() {
    let (report, mut verdict) = good();
    (verdict.totals.checked, verdict.totals.trimmed) = (4, 6);
    assert_eq!(failures(&report, &verdict), Vec::<String>::new());
    assert!(text(&report, &verdict).contains("trimmed by retention 6"));
}

#[test]
fn what_does_not_hold_is_named() {
    let fails = |change: fn(&mut Report, &mut Verdict), word: &str| {
        let (mut report, mut verdict) = good();
        change(&mut report, &mut verdict);
        let failures = failures(&report, &verdict).join("\n");
        assert!(failures.contains(word), "{word}: {failures}");
        assert!(text(&report, &verdict).contains("FAILED"));
    };
    fails(|report, _| report.shards[1].acked = 0, "shard 1");
    fails(|report, _| report.acked = 11, "11 records");
    fails(|_, verdict| verdict.totals.checked = 9, "9 were proven");
    fails(|_, verdict| verdict.replicas_identical = false, "findings");
    fails(
        |_, verdict| verdict.nodes[1].totals.compared_bytes = 0,
        "nothing was compared",
    );
    fails(
        |report, verdict| (report.acked, verdict.acked) = (0, 0),
        "nothing was acknowledged",
    );
}

#[test]
fn a_verdict_survives_its_json() {
    let (mut report, verdict) = good();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("verify.json");
    write_verdict(&path, &verdict).expect("written");
    assert_eq!(read_verdict(&path).expect("read"), verdict);
    report.verify = Some(verdict);
    report.write(&path).expect("written");
    assert_eq!(Report::read(&path).expect("read"), report);
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    for key in
        "checked missing duplicated reordered corrupt replicas_identical compared_bytes".split(' ')
    {
        assert!(json["verify"].get(key).is_some(), "no key {key}");
    }
}
