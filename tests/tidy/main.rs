//! Keeps the tree tidy: who may import whom, what a pure module must not touch, how long files,
//! lines and functions may be, what lies at the root, which words stay out.
//!
//! Each test applies one rule of `rules.rs` to the whole tree and lists every problem at once,
//! with its place and its mend. The negative tests are in `red.rs`. It needs nothing but std, and
//! a second at most.

mod lex;
mod paths;
mod red;
mod rules;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rules::Problem;

const RUST_FOLDERS: &[&str] = &["src", "tests", "loadgen", "benches"];

#[test]
fn modules_name_only_what_the_import_table_allows() {
    apply(rules::imports);
}

#[test]
fn pure_modules_stay_pure() {
    apply(rules::purity);
}

#[test]
fn files_are_short_and_narrow_and_open_with_a_module_doc() {
    apply(rules::shape);
}

#[test]
fn functions_are_short() {
    apply(rules::functions);
}

#[test]
fn no_forbidden_words() {
    let Some(tracked) = tracked() else { return };
    let problems = tracked.iter().flat_map(|path| {
        // Not a text, or deleted and not yet recorded as such: nothing to read.
        let text = fs::read_to_string(root().join(path)).unwrap_or_default();
        rules::words(path, &text)
    });
    report(&problems.collect::<Vec<_>>());
}

#[test]
fn the_root_holds_what_it_should() {
    if let Some(tracked) = tracked() {
        report(&rules::layout(&tracked));
    }
}

#[test]
fn scripts_have_the_run_bit() {
    let mut scripts = files("scripts", |path| {
        path.parent() == Some(&root().join("scripts"))
    });
    scripts.push(".ci/run".to_owned());
    let problems = scripts.iter().flat_map(|path| {
        let metadata = fs::metadata(root().join(path));
        let metadata = metadata.unwrap_or_else(|error| panic!("{path}: {error}"));
        rules::run_bit(path, metadata.permissions().mode())
    });
    report(&problems.collect::<Vec<_>>());
}

/// Applies a rule to every Rust file of the tree.
fn apply(rule: fn(&str, &str) -> Vec<Problem>) {
    let mut problems = Vec::new();
    for folder in RUST_FOLDERS {
        for path in files(folder, |path| {
            path.extension().is_some_and(|end| end == "rs")
        }) {
            let text = fs::read_to_string(root().join(&path));
            let text = text.unwrap_or_else(|error| panic!("{path}: {error}"));
            problems.extend(rule(&path, &text));
        }
    }
    report(&problems);
}

fn report(problems: &[Problem]) {
    let list: Vec<String> = problems.iter().map(Problem::to_string).collect();
    assert!(
        list.is_empty(),
        "{} problem(s):\n{}\n",
        list.len(),
        list.join("\n")
    );
}

fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or(env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// The accepted files below a folder of the root, relative to the root, in order. Build output
/// is left out; a folder that is absent holds no file.
fn files(folder: &str, accept: fn(&Path) -> bool) -> Vec<String> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && entry.file_name() != "target" {
                folders.push(path);
            } else if !is_folder && accept(&path) {
                let relative = path.strip_prefix(&root).unwrap_or(&path);
                found.push(relative.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

/// What git tracks, relative to the root; `None`, said aloud, where there is no repository.
fn tracked() -> Option<Vec<String>> {
    let root = root();
    let output = Command::new("git")
        .arg("-C")
        .arg(&root)
        .args(["ls-files", "-z"])
        .output();
    let output = match output {
        Ok(output) if root.join(".git").exists() => output,
        _ => {
            println!("skipped: git, or its repository, is absent");
            return None;
        }
    };
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git ls-files failed: {complaint}");
    let list = String::from_utf8_lossy(&output.stdout);
    let list: Vec<String> = list.split_terminator('\0').map(str::to_owned).collect();
    if list.is_empty() {
        println!("skipped: git tracks nothing yet");
        return None;
    }
    Some(list)
}
