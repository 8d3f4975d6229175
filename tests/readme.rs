//! The README against the program: what it must say, and that what it names is there.

use std::fs;
use std::path::Path;

fn readme() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join("README.md")).expect("the README is there")
}

/// One line of words, without emphasis, so that a line break or a bold word hides nothing.
fn plain(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace("**", "")
}

/// What stands between backquotes.
fn quoted(text: &str) -> Vec<String> {
    let parts = text.split('`').skip(1).step_by(2);
    parts.map(str::to_owned).collect()
}

/// S-12, S-148, S-151, S-176: the limits that nobody may learn from a loss.
#[test]
fn the_readme_says_what_is_not_promised() {
    let text = plain(&readme());
    for said in [
        "Reads are not linearizable",
        "causal order across nodes is not promised",
        "conflicts that do not commute are the application's to resolve",
        "No access rules and no TLS",
    ] {
        assert!(text.contains(said), "the README does not say: {said}");
    }
    for claimed in ["reads are linearizable", "exactly once", "exactly-once"] {
        assert!(
            !text.to_lowercase().contains(claimed),
            "the README claims: {claimed}"
        );
    }
}

#[test]
fn every_file_that_the_readme_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = ["src/", "scripts/", "tests/", "examples/", "loadgen/"];
    let mut seen = 0;
    for name in quoted(&readme()) {
        let path = name.split_whitespace().next().unwrap_or_default();
        if places.iter().any(|place| path.starts_with(place)) {
            assert!(
                root.join(path).exists(),
                "the README names {path}, which is not there"
            );
            seen += 1;
        }
    }
    assert!(seen > 10, "the README names files: {seen}");
}

#[cfg(feature = "node")]
#[test]
fn every_key_that_the_readme_names_is_one() {
    let arguments = "config --node-id 1 --data-dir none --cluster-id 1 --nodes 1=127.0.0.1:7100";
    let printed = std::process::Command::new(env!("CARGO_BIN_EXE_millrace"))
        .args(arguments.split(' '))
        .output()
        .expect("millrace runs");
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let sections = ["node.", "cluster.", "cores.", "log.", "link."];
    let mut seen = 0;
    for name in quoted(&readme()) {
        let key = name.split([' ', '=']).next().unwrap_or_default();
        if sections.iter().any(|section| key.starts_with(section)) {
            assert!(
                printed
                    .lines()
                    .any(|line| line.split([' ', '=']).next() == Some(key)),
                "the README names the key {key}, which is none"
            );
            seen += 1;
        }
    }
    assert!(seen > 10, "the README names keys: {seen}");
}
