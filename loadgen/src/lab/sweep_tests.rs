//! Tests of the grid and of the choice.

use clap::Parser;

use super::*;
use crate::report::Latency;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: SweepArgs,
}

fn args(flags: &[&str]) -> SweepArgs {
    Line::parse_from([&["sweep", "--work", "."], flags].concat()).args
}

#[test]
fn the_grid_is_every_combination() {
    assert_eq!(grid(&args(&[])), [Point::default()]);
    let flags = [
        "--cores",
        "1,2",
        "--write-depth",
        "1,4,8",
        "--batch-timeout",
        "10",
    ];
    let grid = grid(&args(&flags));
    assert_eq!(grid.len(), 6);
    let expected = Point {
        cores: Some(2),
        batch_timeout_ms: Some(10),
        write_depth: Some(4),
        ..Point::default()
    };
    assert_eq!(grid[4], expected);
    assert_eq!(grid[4].text(), "cores 2, batch-timeout 10, write-depth 4");
}

#[test]
fn a_grid_that_takes_too_long_is_refused_before_anything_starts() {
    let flags = [
        "--cores",
        "1,2,3,4",
        "--write-depth",
        "1,2,4,8",
        "--limit-s",
        "60",
    ];
    let failure = sweep(&args(&flags)).expect_err("too long");
    let Failure::BadInput(text) = failure else {
        panic!("{failure:?}")
    };
    assert!(
        text.starts_with("--limit-s 60: 16 points take about 240 s"),
        "{text}"
    );
}

fn row(records_per_s: f64, p99: u64) -> Row {
    let latency_us = Latency {
        p99,
        ..Latency::default()
    };
    Row {
        point: Point::default(),
        report: Some(Report {
            records_per_s: Some(records_per_s),
            latency_us: Some(latency_us),
            ..Report::default()
        }),
        refused: String::new(),
    }
}

#[test]
fn the_fastest_point_is_within_the_bound() {
    let refused = Row {
        report: None,
        refused: "no".to_owned(),
        ..row(0.0, 0)
    };
    let rows = [
        row(5.0, 50_001),
        refused,
        row(3.0, 50_000),
        row(4.0, 20_000),
    ];
    assert_eq!(fastest(&rows, 50.0), Some(3));
    assert_eq!(fastest(&rows, 60.0), Some(0));
    assert_eq!(fastest(&rows, 10.0), None);
}
