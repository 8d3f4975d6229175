//! Shows every rule red on a made-up file, and green on the nearest file that is right.
//!
//! A rule without its negative test here does not count: it may have stopped looking.

use crate::rules::{
    FILE_LINES_MAX, FUNCTION_LINES_MAX, LINE_COLUMNS_MAX, Problem, functions, imports, layout,
    purity, run_bit, shape, words,
};

type Rule = fn(&str, &str) -> Vec<Problem>;

/// The lines on which a rule finds a problem.
fn lines(rule: Rule, path: &str, text: &str) -> Vec<usize> {
    rule(path, text)
        .iter()
        .map(|problem| problem.line)
        .collect()
}

fn red(rule: Rule, path: &str, text: &str) {
    assert!(!rule(path, text).is_empty(), "not red: {path}: {text}");
}

fn green(rule: Rule, path: &str, text: &str) {
    let problems: Vec<String> = rule(path, text).iter().map(Problem::to_string).collect();
    assert!(
        problems.is_empty(),
        "not green: {path}: {text}\n{}",
        problems.join("\n")
    );
}

#[test]
fn a_problem_names_place_rule_and_mend() {
    let problem = &imports("src/replica/leader.rs", "//! x\nuse crate::wal::Log;\n")[0];
    let expected = "src/replica/leader.rs:2: [imports] `replica` may not name `wal`; \
                    mend: name items by their module, one of: types, limits, wire, faults";
    assert_eq!(problem.to_string(), expected);
}

#[test]
fn imports_red_for_each_row() {
    for (path, text) in [
        ("src/types.rs", "use crate::wire::X;"),
        ("src/limits.rs", "use crate::types::X;"),
        ("src/buffers.rs", "use crate::wire::X;"),
        ("src/wire/frame.rs", "use crate::buffers::X;"),
        ("src/faults.rs", "use crate::wal::X;"),
        ("src/wal/log.rs", "use crate::replica::X;"),
        ("src/wal/log.rs", "use crate::client::X;"),
        ("src/replica/leader.rs", "use crate::wal::X;"),
        ("src/replica/leader.rs", "use crate::buffers::X;"),
        ("src/client/session.rs", "use crate::faults::X;"),
        ("src/client/driver/tokio.rs", "use crate::runtime::X;"),
        ("src/shard.rs", "use crate::runtime::X;"),
        ("src/config.rs", "use crate::wire::X;"),
        ("src/runtime/driver.rs", "use crate::wal::X;"),
        ("src/runtime/driver.rs", "use crate::replica::X;"),
        ("src/runtime/driver.rs", "use crate::faults::X;"),
        ("src/admin/http.rs", "use crate::shard::X;"),
        ("src/main.rs", "use millrace::shard::X;"),
        ("src/cli/serve.rs", "use millrace::wal::X;"),
        ("src/cli.rs", "use crate::replica::X;"),
        ("src/bin/tool.rs", "use millrace::wal::X;"),
        ("loadgen/src/main.rs", "use millrace::shard::X;"),
        ("tests/cluster.rs", "use millrace::faults::X;"),
        ("benches/append.rs", "use millrace::faults::X;"),
        ("src/novelty.rs", ""),
        ("src/wal/log.rs", "use crate::Novelty;"),
    ] {
        red(imports, path, text);
    }
}

#[test]
fn imports_green_for_what_the_table_allows() {
    for (path, text) in [
        ("src/lib.rs", "pub mod wal; pub use crate::replica::X;"),
        (
            "src/types.rs",
            "use std::fmt; pub(crate) fn f() { crate::types::g() }",
        ),
        ("src/buffers.rs", "use crate::{limits::Y, types::X};"),
        (
            "src/wal/log.rs",
            "use crate::{buffers, faults, limits, types, wire}; use super::segment;",
        ),
        ("src/wal.rs", "mod tests { use super::*; }"),
        ("src/wal_tests.rs", "use super::*;"),
        ("src/wal/log_tests.rs", "use super::super::segment::X;"),
        ("src/shard.rs", "use crate::{replica, wal};"),
        (
            "src/runtime/driver.rs",
            "use crate::shard::X; // never use crate::wal\n",
        ),
        (
            "src/runtime/driver.rs",
            "const TEXT: &str = \"crate::wal\"; /* crate::wal */",
        ),
        (
            "src/main.rs",
            "mod cli; use crate::cli::Cli; use millrace::config;",
        ),
        ("src/main.rs", "use crate::VERSION;"),
        (
            "loadgen/src/main.rs",
            "mod wal; use crate::wal::X; use millrace::client::Y;",
        ),
        ("tests/sim/main.rs", "use millrace::faults::X;"),
        ("tests/cluster.rs", "use millrace::{shard, wal};"),
    ] {
        green(imports, path, text);
    }
}

#[test]
fn imports_red_however_the_path_is_written() {
    for text in [
        "fn f() { crate::wal::f() }",
        "fn f() -> Vec<crate::wal::Log> { Vec::new() }",
        "use crate::{types::X, wal};",
        "use crate::{types::{X, Y}, wire::{self, frame::{A, B}}, wal::{C}};",
        "use crate::{\n    types::X,\n    wal::Log,\n};",
        "use crate :: wal as log;",
        "pub(crate) use ::millrace::wal;",
        "use millrace::{types, wal::*};",
        "use super::super::wal::Log;",
        "use super::{super::wal, progress};",
        "use self::super::super::wal;",
        "mod tests { use super::super::super::wal; }",
        "macro_rules! m { () => { $crate::wal::f() } }",
        "use crate::*;",
        "use crate as engine;",
        "use crate::{self as engine};",
        "use millrace as engine;",
        "extern crate millrace;",
    ] {
        red(imports, "src/replica/leader.rs", text);
    }
    red(imports, "src/replica.rs", "use super::wal;");
    red(imports, "src/replica_tests.rs", "use super::super::wal;");
    let group =
        "use crate::{\n    types::X,\n    wal::{\n        Log,\n        Segment,\n    },\n};";
    assert_eq!(lines(imports, "src/replica/leader.rs", group), [4, 5]);
}

#[test]
fn purity_red_for_each_ban() {
    for text in [
        "use glommio::Task;",
        "extern crate tokio;",
        "fn f() { rand::random() }",
        "use std::time::Duration;",
        "use std::{fmt, time::{Duration, Instant}};",
        "fn f() { ::std::thread::yield_now() }",
        "use std::net;",
        "fn f() { std::fs::read(\"x\"); }",
        "use std::io::{self, Write};",
        "use std as s;",
        "use std::*;",
        "async fn f() {}",
        "fn f() { g().await }",
        "use std::collections::HashMap;",
        "fn f(set: &HashSet<u8>) {}",
        "fn f() { unsafe { g() } }",
        "fn f() { println!(\"x\") }",
        "fn f() { eprintln!(\"x\") }",
    ] {
        for path in [
            "types",
            "limits",
            "buffers",
            "wire/code",
            "wal/log",
            "replica/leader",
        ] {
            red(purity, &format!("src/{path}.rs"), text);
        }
        for path in ["client/session", "shard", "faults", "wal/log_tests"] {
            red(purity, &format!("src/{path}.rs"), text);
        }
        for path in [
            "client/driver/tokio",
            "client/driver",
            "runtime/disk",
            "config",
            "main",
        ] {
            green(purity, &format!("src/{path}.rs"), text);
        }
        green(purity, "tests/cluster.rs", text);
    }
}

#[test]
fn purity_green_for_words_that_are_no_code() {
    for text in [
        "//! No async, no HashMap, no std::time.\n#![forbid(unsafe_code)]",
        "const TEXT: &str = \"async HashMap println!\"; const RAW: &str = r#\"unsafe \" async\"#;",
        "/* async /* unsafe */ async */ use std::collections::BTreeMap;",
        "fn f<'async_>(x: &'async_ u8, q: char) -> bool { q == '\"' || q == '\\'' } // async\n",
        "fn f(time: u64) -> u64 { core::time::Duration::from_millis(time).as_secs() }",
        "use crate::client::driver::tokio::Producer;",
    ] {
        green(purity, "src/client/mod.rs", text);
    }
    let text = "const A: &str = \"a\n\\\"b\n\";\nconst B: char = '\\u{1F}';\nasync fn f() {}";
    assert_eq!(lines(purity, "src/wal.rs", text), [5]);
}

#[test]
fn shape_red_for_long_files_wide_lines_and_no_doc() {
    let path = "src/wal/log.rs";
    let file = |lines: usize| format!("//! x\n{}", "\n".repeat(lines - 1));
    green(shape, path, &file(FILE_LINES_MAX));
    assert_eq!(
        lines(shape, path, &file(FILE_LINES_MAX + 1)),
        [FILE_LINES_MAX + 1]
    );

    let line = |columns: usize| format!("//! x\n{}\n", "\u{e9}".repeat(columns));
    green(shape, path, &line(LINE_COLUMNS_MAX));
    assert_eq!(lines(shape, path, &line(LINE_COLUMNS_MAX + 1)), [2]);

    assert_eq!(lines(shape, path, "use crate::types;\n"), [1]);
    assert_eq!(lines(shape, path, ""), [1]);
}

#[test]
fn functions_red_beyond_the_limit() {
    let path = "tests/cluster.rs";
    let signature =
        "//! x\npub(crate) const fn f(a: [u8; 4], g: fn(u8) -> u8)\nwhere\n    u8: Copy,\n";
    let function = |line: &str, lines: usize| format!("{signature}{{\n{}}}\n", line.repeat(lines));
    green(functions, path, &function("    f();\n", FUNCTION_LINES_MAX));
    assert_eq!(
        lines(
            functions,
            path,
            &function("    f();\n", FUNCTION_LINES_MAX + 1)
        ),
        [2]
    );
    green(
        functions,
        path,
        &function("    // why\n\n", FUNCTION_LINES_MAX + 1),
    );
    green(
        functions,
        path,
        &format!("trait T {{\n    fn f();\n{}}}", "const A: u8;\n".repeat(90)),
    );
    let text = format!(
        "fn f() {{\n    \"{}\"\n}}",
        "x\n".repeat(FUNCTION_LINES_MAX)
    );
    assert_eq!(lines(functions, path, &text), [1]);
}

#[test]
fn words_red_for_each() {
    for text in [
        concat!("see /wo", "rk/notes"),
        concat!("fn f() { tod", "o!() }"),
        concat!("fn f() { unimple", "mented!(\"x\") }"),
        concat!("# FIX", "ME: later"),
        concat!("XX", "X why"),
    ] {
        red(words, "README.md", text);
        assert_eq!(lines(words, "scripts/check", &format!("a\n{text}\n")), [2]);
    }
    // A template of mktemp, and a path that only ends like one of this machine.
    let template = format!("mktemp -d /tmp/check.{} # src/wo{}", "X".repeat(6), "rk/x");
    green(words, "scripts/check", &template);
}

#[test]
fn layout_red_for_strangers_and_gaps() {
    let tree = |paths: &str| paths.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let right = "Cargo.lock Cargo.toml LICENSE README.md .ci/run .gitignore src/lib.rs \
                 benches/append.rs loadgen/Cargo.toml tests/sim.rs scripts/check";
    assert!(layout(&tree(right)).is_empty());
    for stranger in ["NOTES.md", "docs/a.md", "src", "LICENSE/a"] {
        let problems = layout(&tree(&format!("{right} {stranger}")));
        let strangers: Vec<&str> = problems.iter().map(|problem| &problem.path[..]).collect();
        assert_eq!(strangers, [stranger]);
    }
    let gap = layout(&tree(&right.replace("LICENSE ", "")));
    assert_eq!(
        gap.iter()
            .map(|problem| &problem.path[..])
            .collect::<Vec<_>>(),
        ["LICENSE"]
    );
}

#[test]
fn run_bit_red_without_it() {
    assert!(run_bit("scripts/check", 0o100_755).is_empty());
    assert_eq!(run_bit("scripts/check", 0o100_644).len(), 1);
}
