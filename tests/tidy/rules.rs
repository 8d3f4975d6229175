//! The rules of the tree, each a function from a file to its problems.
//!
//! Owns the import table (`ROWS`): which module may name which. The table is the architecture; a
//! new module enters by a new row, in the same commit. A rule reads only what it is handed, so
//! that `red.rs` can show each one failing on a made-up file, and it returns every problem it
//! finds, never just the first.

use std::collections::BTreeSet;
use std::fmt;

use crate::lex::{Kind, Token, tokens};
use crate::paths::{Path, paths};

pub(crate) const FILE_LINES_MAX: usize = 600;
pub(crate) const FUNCTION_LINES_MAX: usize = 70;
pub(crate) const LINE_COLUMNS_MAX: usize = 100;

/// One row of the import table. Every module may name itself.
struct Row {
    module: &'static str,
    may_name: &'static [&'static str],
    /// Events in, actions out: no clock, no I/O, no async, no order that a hash decides.
    pure: bool,
}

const fn pure(module: &'static str, may_name: &'static [&'static str]) -> Row {
    Row {
        module,
        may_name,
        pure: true,
    }
}

const fn shell(module: &'static str, may_name: &'static [&'static str]) -> Row {
    Row {
        module,
        may_name,
        pure: false,
    }
}

/// `wal` and `replica` are siblings, unaware of each other; `shard` alone composes them, and the
/// shells see `shard` alone.
const ROWS: &[Row] = &[
    pure("types", &["limits"]),
    pure("limits", &[]),
    pure("buffers", &["types", "limits"]),
    pure("wire", &["types", "limits"]),
    pure("faults", &["types", "limits"]),
    pure("wal", &["types", "limits", "wire", "buffers", "faults"]),
    pure("replica", &["types", "limits", "wire", "faults"]),
    pure("client", &["types", "limits", "wire"]),
    pure(
        "shard",
        &[
            "types", "limits", "buffers", "wire", "faults", "wal", "replica", "client",
        ],
    ),
    shell("config", &["types", "limits"]),
    shell(
        "runtime",
        &[
            "types", "limits", "buffers", "wire", "shard", "config", "snapshot",
        ],
    ),
    shell("snapshot", &["types", "shard"]),
    shell("admin", &["types", "config", "snapshot"]),
    shell(
        "cli",
        &[
            "config", "runtime", "admin", "client", "types", "limits", "wire",
        ],
    ),
    shell("loadgen", &["types", "limits", "wire", "client"]),
    shell("examples", &["types", "client"]),
    shell("tests", ENGINE),
];

/// What tests and benchmarks may name. The switches of the deliberate faults are for the
/// simulator alone.
const ENGINE: &[&str] = &[
    "types", "limits", "buffers", "wire", "wal", "replica", "client", "shard", "config", "runtime",
    "admin", "cli", "snapshot",
];
const SIMULATOR: &str = "tests/sim";

/// Shells inside a pure module.
const SHELLS_WITHIN: &[&str] = &["src/client/driver"];

const IMPURE_CRATES: &[&str] = &["glommio", "rand", "tokio"];
const IMPURE_STD: &[&str] = &["fs", "io", "net", "thread", "time"];
const IMPURE_WORDS: &[&str] = &["HashMap", "HashSet", "async", "unsafe"];
const IMPURE_MACROS: &[&str] = &["dbg", "eprint", "eprintln", "print", "println"];

/// Built from halves, so that this file does not hold them.
const FORBIDDEN_TEXTS: &[(&str, &str)] = &[
    (
        concat!("/wo", "rk/"),
        "a path of one machine: use a relative path or a setting",
    ),
    (concat!("tod", "o!("), "finish it, or leave it out"),
    (concat!("unimple", "mented!("), "finish it, or leave it out"),
    (
        concat!("FIX", "ME"),
        "mend it, or say in a sentence why it stays",
    ),
    (
        concat!("XX", "X"),
        "mend it, or say in a sentence why it stays",
    ),
];

const TOP_FILES: &[&str] = &["Cargo.lock", "Cargo.toml", "LICENSE", "README.md"];
const TOP_FOLDERS: &[&str] = &["benches", "examples", "loadgen", "scripts", "src", "tests"];

/// One breach of one rule, and how to mend it.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) rule: &'static str,
    pub(crate) what: String,
    pub(crate) mend: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem {
            path,
            line,
            rule,
            what,
            mend,
        } = self;
        write!(formatter, "{path}:{line}: [{rule}] {what}; mend: {mend}")
    }
}

/// Collects the problems that one rule finds in one file.
struct Found<'a> {
    rule: &'static str,
    path: &'a str,
    problems: Vec<Problem>,
}

impl<'a> Found<'a> {
    fn new(rule: &'static str, path: &'a str) -> Self {
        Found {
            rule,
            path,
            problems: Vec::new(),
        }
    }

    fn add(&mut self, line: usize, what: impl Into<String>, mend: impl Into<String>) {
        let (path, rule) = (self.path.to_owned(), self.rule);
        self.problems.push(Problem {
            path,
            line,
            rule,
            what: what.into(),
            mend: mend.into(),
        });
    }
}

/// Whether a file names only the modules that its row of the table allows.
pub(crate) fn imports(path: &str, text: &str) -> Vec<Problem> {
    let mut found = Found::new("imports", path);
    let Some(owner) = owner(path) else {
        return found.problems;
    };
    let Some(row) = row(owner) else {
        found.add(
            1,
            format!("module `{owner}` has no row in the import table"),
            "add its row",
        );
        return found.problems;
    };
    let mut seen = BTreeSet::new();
    for named in paths(&tokens(text)) {
        let Some(target) = engine_path(&named, path) else {
            continue;
        };
        let whole = matches!(target.first(), None | Some(&"*" | &"self"));
        let module = if whole { "*" } else { target[0] };
        // `pub(crate)` and `in_module::item` are no imports; a root named whole is one.
        let harmless = (whole && !named.imported) || module == owner;
        // The command line's `crate` is its own; only the engine's modules are of interest.
        let foreign = owner == "cli" && named.segments[0] != "millrace" && row_of(module).is_none();
        if harmless || foreign || may_name(path, row, module) || !seen.insert((named.line, module))
        {
            continue;
        }
        let what = match (whole, row_of(module)) {
            (true, _) => format!("`{owner}` names the root of the crate as a whole"),
            (false, Some(_)) => format!("`{owner}` may not name `{module}`"),
            (false, None) => format!("`{module}` is no module of the import table"),
        };
        let mend = match row.may_name {
            [] => format!("`{owner}` names no other module"),
            allowed => format!("name items by their module, one of: {}", allowed.join(", ")),
        };
        found.add(named.line, what, mend);
    }
    found.problems
}

/// Whether a pure module stays free of clocks, I/O, threads, async, randomness and hash order.
pub(crate) fn purity(path: &str, text: &str) -> Vec<Problem> {
    let mut found = Found::new("purity", path);
    let pure = owner(path).and_then(row).is_some_and(|row| row.pure);
    if !pure || SHELLS_WITHIN.iter().any(|shell| path.starts_with(shell)) {
        return found.problems;
    }
    let tokens = tokens(text);
    let mend = "take it as an event or a parameter, or move the code into a shell";
    for named in paths(&tokens).iter().filter(|named| is_impure(named)) {
        found.add(
            named.line,
            format!("names `{}`", named.segments.join("::")),
            mend,
        );
    }
    for (index, token) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).map_or("", |index| tokens[index].text);
        let after = tokens.get(index + 1).map_or("", |token| token.text);
        let word = token.kind == Kind::Word && IMPURE_WORDS.contains(&token.text);
        let print = after == "!" && IMPURE_MACROS.contains(&token.text);
        let wait = before == "." && token.text == "await";
        if word || print || wait {
            found.add(token.line, format!("uses `{}`", token.text), mend);
        }
    }
    found.problems.sort_by_key(|problem| problem.line);
    found.problems
}

/// Whether a file is short, narrow, and begins with what it is about.
pub(crate) fn shape(path: &str, text: &str) -> Vec<Problem> {
    let mut found = Found::new("shape", path);
    if !text.starts_with("//!") {
        let mend = "open with what it owns, what it must never do, which file to read next";
        found.add(1, "no module doc (`//!`) at the top", mend);
    }
    for (index, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > LINE_COLUMNS_MAX {
            let what = format!("{columns} columns, at most {LINE_COLUMNS_MAX}");
            found.add(index + 1, what, "break the line");
        }
    }
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        let what = format!("{lines} lines, at most {FILE_LINES_MAX}");
        found.add(
            FILE_LINES_MAX + 1,
            what,
            "split by idea; unit tests go to a sibling file",
        );
    }
    found.problems
}

/// Whether every function fits a screen. Blank lines and comments do not count, as in clippy.
pub(crate) fn functions(path: &str, text: &str) -> Vec<Problem> {
    let mut found = Found::new("functions", path);
    let tokens = tokens(text);
    for (index, pair) in tokens.windows(2).enumerate() {
        if pair[0].text != "fn" || pair[1].kind != Kind::Word {
            continue;
        }
        let lines = body_lines(&tokens[index..]);
        if lines > FUNCTION_LINES_MAX {
            let what = format!(
                "`{}` has {lines} lines, at most {FUNCTION_LINES_MAX}",
                pair[1].text
            );
            found.add(pair[0].line, what, "split it, or move data into a table");
        }
    }
    found.problems
}

/// Whether a text file is free of machine paths and of marks of unfinished work.
pub(crate) fn words(path: &str, text: &str) -> Vec<Problem> {
    let mut found = Found::new("words", path);
    for (index, line) in text.lines().enumerate() {
        for (word, mend) in FORBIDDEN_TEXTS {
            if holds_word(line, word) {
                found.add(index + 1, format!("holds `{word}`"), *mend);
            }
        }
    }
    found.problems
}

/// Whether the root holds what it should, given every tracked path. A folder that is not there yet
/// holds nothing untidy; a file that is not there is missed.
pub(crate) fn layout(tracked: &[String]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut tops = BTreeSet::new();
    for path in tracked {
        let (top, is_file) = match path.split_once('/') {
            Some((top, _)) => (top, false),
            None => (&path[..], true),
        };
        let known = if is_file { TOP_FILES } else { TOP_FOLDERS };
        if tops.insert((top, is_file)) && !top.starts_with('.') && !known.contains(&top) {
            let mut found = Found::new("layout", path);
            let known = [TOP_FILES, TOP_FOLDERS].concat().join(", ");
            let mend = format!("move it into one of: {known}, or a dotfile");
            found.add(1, format!("`{top}` does not belong at the root"), mend);
            problems.append(&mut found.problems);
        }
    }
    for name in TOP_FILES
        .iter()
        .filter(|name| !tops.contains(&(**name, true)))
    {
        let mut found = Found::new("layout", name);
        found.add(1, "is missing from the root", "add it and track it");
        problems.append(&mut found.problems);
    }
    problems
}

/// Whether a script can be run, given the mode bits of its file.
pub(crate) fn run_bit(path: &str, mode: u32) -> Vec<Problem> {
    let mut found = Found::new("run bit", path);
    if mode & 0o111 != 0o111 {
        found.add(
            1,
            format!("mode {:o} cannot be run", mode & 0o777),
            format!("chmod +x {path}"),
        );
    }
    found.problems
}

fn is_impure(named: &Path<'_>) -> bool {
    match named.segments[..] {
        // A variable may be called `rand`.
        [_] if !named.imported => false,
        ["std"] | ["std", "*" | "self"] => true,
        ["std", part, ..] => IMPURE_STD.contains(&part),
        [name, ..] => IMPURE_CRATES.contains(&name),
        [] => false,
    }
}

/// The row that a file falls under: its module in `src`, else its folder. `None` for the root of
/// the library, which declares the modules and so names them all.
fn owner(path: &str) -> Option<&str> {
    let (folder, rest) = path.split_once('/')?;
    if folder != "src" {
        return Some(if folder == "benches" { "tests" } else { folder });
    }
    match module_path(rest)[..] {
        [] => None,
        ["main" | "bin", ..] => Some("cli"),
        [name, ..] if name.starts_with("cli_") => Some("cli"),
        [name, ..] => Some(name),
    }
}

/// The module that a file of `src` is. Unit tests in a sibling, `log_tests.rs`, are a child of
/// the file that they test: `log::tests`.
fn module_path(rest: &str) -> Vec<&str> {
    let stem = rest.strip_suffix(".rs").unwrap_or(rest);
    let mut module: Vec<&str> = stem.split('/').collect();
    module.pop_if(|last| matches!(*last, "lib" | "mod"));
    if let Some(tested) = module.last().and_then(|last| last.strip_suffix("_tests")) {
        module.pop();
        module.extend([tested, "tests"]);
    }
    module
}

fn row_of(module: &str) -> Option<&'static Row> {
    ROWS.iter()
        .find(|row| row.module == module && !matches!(module, "examples" | "loadgen" | "tests"))
}

fn row(owner: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.module == owner)
}

fn may_name(path: &str, row: &Row, module: &str) -> bool {
    row.may_name.contains(&module) || module == "faults" && path.starts_with(SIMULATOR)
}

/// The path inside the engine's library that a path names, if it does.
fn engine_path<'a>(named: &Path<'a>, file: &'a str) -> Option<Vec<&'a str>> {
    if named.segments[0] == "millrace" {
        let alone = named.segments.len() == 1 && !named.imported;
        return (!alone).then(|| named.segments[1..].to_vec());
    }
    named.root_path(&module_path(file.strip_prefix("src/")?))
}

/// Lines with code between the braces of the function that the tokens begin with.
fn body_lines(tokens: &[Token<'_>]) -> usize {
    let mut nesting = 0_i32;
    let mut open = None;
    for (index, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" => nesting += 1,
            ")" | "]" | "}" => nesting -= 1,
            ";" if nesting == 0 && open.is_none() => return 0,
            "{" => {
                open = open.or(Some(index));
                nesting += 1;
            }
            _ => {}
        }
        let Some(first) = open else { continue };
        if token.text == "}" && nesting == 0 {
            let (from, to) = (tokens[first].line, token.line);
            let body = tokens[first..index].iter();
            let lines = body.flat_map(|token| token.line..=token.last_line);
            let lines: BTreeSet<usize> = lines.filter(|line| *line > from && *line < to).collect();
            return lines.len();
        }
    }
    0
}

/// Whether a line holds a word that is no part of a longer one.
fn holds_word(line: &str, word: &str) -> bool {
    let glued =
        |character: Option<char>| character.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let ends_open = word.ends_with(|c: char| c.is_alphanumeric());
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !(glued(before) || ends_open && glued(after))
    })
}
