//! Each illness has its reason, and a healthy node has none.

use super::*;
use crate::snapshot::CoreReport;
use std::sync::Arc;

fn node(report: CoreReport) -> Snapshot {
    Snapshot {
        status: serde_json::Value::Null,
        shards: Vec::new(),
        cores: vec![Arc::new(report)],
    }
}

#[test]
fn a_core_is_well_as_long_as_it_reports() {
    let start = Instant::now();
    let silent = CoreReport::default();
    assert_eq!(
        reasons(&node(silent), start),
        ["core 0 has not reported yet"]
    );
    let report = CoreReport {
        at: Some(start),
        ..CoreReport::default()
    };
    let later = |ms| start + Duration::from_millis(ms);
    assert!(reasons(&node(report.clone()), later(1900)).is_empty());
    let reason = &reasons(&node(report.clone()), later(3200))[0];
    assert_eq!(reason, "core 0 has not reported for 3.2 s");
    let stopping = CoreReport {
        stopping: true,
        ..report
    };
    assert_eq!(reasons(&node(stopping), start), ["core 0 is stopping"]);
}
