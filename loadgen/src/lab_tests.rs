//! Tests of what the experiments share.

use super::*;

#[test]
fn the_median_is_the_middle() {
    assert_eq!(median(&[]), 0.0);
    assert_eq!(median(&[3.0]), 3.0);
    assert_eq!(median(&[5.0, 1.0, 4.0]), 4.0);
    assert_eq!(median(&[8.0, 1.0, 2.0, 4.0]), 3.0);
}

#[test]
fn a_child_that_takes_too_long_is_ended_and_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("sleep");
    let limit = Duration::from_millis(100);
    let child = Child::start(command.arg("60"), folder.path(), "sleeper", limit);
    let failure = child.expect("started").wait().expect_err("too long");
    assert!(matches!(failure, Failure::Failed(text) if text == "sleeper takes too long"));
    let left = std::fs::read_dir(folder.path()).expect("readable").count();
    assert_eq!(left, 0, "its files are gone");
}

#[test]
fn what_a_child_said_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("sh");
    command.args(["-c", "echo one; echo two; echo three >&2; exit 3"]);
    let child = Child::start(
        &mut command,
        folder.path(),
        "words",
        Duration::from_secs(30),
    );
    let ended = child.expect("started").wait().expect("ended");
    assert_eq!((ended.code, ended.stdout.as_str()), (3, "one\ntwo\n"));
    assert_eq!(ended.last_line(), "three");
}

#[test]
fn a_place_without_programs_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = Place {
        cluster: folder.path().to_owned(),
        bin: folder.path().join("nowhere"),
        work: folder.path().to_owned(),
    };
    let failure = place.checked().expect_err("no programs");
    assert!(matches!(failure, Failure::BadInput(text) if text.starts_with("--bin ")));
}
