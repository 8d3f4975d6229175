//! Requirements and their proofs, held together.
//!
//! `tests/requirements.toml` has one table for every id: what millrace must do and how far that is
//! shown. This file owns the check of that register, both ways: each id is there once with exactly
//! one status and each test it names exists, runs and names the id in its doc comment; and each
//! test whose doc comment names an id is listed under that id.
//!
//! It never judges whether a test proves what it claims: that is for the reader of the test.
//! The checkers take plain text, so that the last tests can feed them one mistake of each kind.
//! `scripts/requirements` prints the score; `tests/tidy.rs` keeps the rules of the source itself.

#[path = "tidy/lex.rs"]
mod lex;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A test that claims more than this proves nothing in particular.
const IDS_PER_TEST_MAX: usize = 6;

/// What ids begin with and how many there are, in the order of the register. `D-` are the gaps in
/// the texts of S, M, H and R; each list is numbered from 1 without a gap.
const LISTS: [(&str, u32); 9] = [
    ("S-", 187),
    ("M-", 90),
    ("H-", 89),
    ("R-", 91),
    ("D-S", 17),
    ("D-M", 6),
    ("D-H", 5),
    ("D-R", 6),
    ("Q-", 32),
];

/// Where tests live, relative to the repository root.
const SOURCE_ROOTS: [&str; 3] = ["src", "tests", "loadgen"];

/// What the register says of one id: the tests that prove it, as `path::name`.
type Register = BTreeMap<String, Vec<String>>;

/// One `.rs` file: its path relative to the repository root, with `/`, and its text.
struct Source {
    path: String,
    text: String,
}

/// One function of a source file with what stands directly above it.
#[derive(Debug)]
struct Function {
    path: String,
    name: String,
    ids: BTreeSet<String>,
    is_test: bool,
    is_ignored: bool,
}

impl Function {
    fn proof(&self) -> String {
        format!("{}::{}", self.path, self.name)
    }
}

#[test]
fn register_and_tests_agree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("tests/requirements.toml"))
        .expect("tests/requirements.toml is readable");
    let mut sources = Vec::new();
    for folder in SOURCE_ROOTS {
        collect_sources(&root.join(folder), folder, &mut sources);
    }
    assert!(!sources.is_empty(), "no .rs file below {}", root.display());

    let ids = known_ids();
    let (register, mut problems) = check_register(&text, &ids);
    let functions: Vec<Function> = sources.iter().flat_map(functions_of).collect();
    let paths: BTreeSet<&str> = sources.iter().map(|source| source.path.as_str()).collect();
    problems.extend(check_proofs(&register, &paths, &functions));
    problems.extend(check_tests(&register, &ids, &functions));
    assert!(
        problems.is_empty(),
        "tests/requirements.toml and the tests disagree in {} places:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

/// Every id of every list, in the order of the register.
fn known_ids() -> Vec<String> {
    LISTS
        .iter()
        .flat_map(|(list, count)| (1..=*count).map(move |number| format!("{list}{number}")))
        .collect()
}

/// Reads all `.rs` files below `folder`, build outputs and hidden folders apart, in sorted order.
fn collect_sources(folder: &Path, name: &str, sources: &mut Vec<Source>) {
    let Ok(listing) = fs::read_dir(folder) else {
        return;
    };
    let mut children: Vec<_> = listing
        .map(|child| child.expect("a readable folder"))
        .collect();
    children.sort_by_key(fs::DirEntry::file_name);
    for child in children {
        let child_name = child.file_name().to_string_lossy().into_owned();
        let path = format!("{name}/{child_name}");
        let kind = child.file_type().expect("a file type");
        if kind.is_dir() && child_name != "target" && !child_name.starts_with('.') {
            collect_sources(&child.path(), &path, sources);
        } else if kind.is_file() && child_name.ends_with(".rs") {
            let text = fs::read_to_string(child.path()).expect("a readable source file");
            sources.push(Source { path, text });
        }
    }
}

/// Checks the register by itself; returns the proofs of each id and all problems found.
fn check_register(text: &str, ids: &[String]) -> (Register, Vec<String>) {
    let mut problems = check_headers(text, ids);
    let mut register = Register::new();
    let table = match text.parse::<toml::Table>() {
        Ok(table) => table,
        Err(error) => {
            let error = error.to_string().replace('\n', " ");
            problems.push(format!("the register is no TOML: {error}; mend it"));
            return (register, problems);
        }
    };
    for (id, value) in &table {
        match value.as_table() {
            Some(fields) => {
                problems.extend(check_fields(id, fields));
                register.insert(id.clone(), proofs_of(id, fields, &mut problems));
            }
            None => problems.push(format!("{id}: stands outside a table; put it under its id")),
        }
    }
    (register, problems)
}

/// Ids must be there once each, in order; read from the lines, so that all of them are reported.
fn check_headers(text: &str, ids: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    let rank: BTreeMap<&str, usize> = ids
        .iter()
        .enumerate()
        .map(|(index, id)| (id.as_str(), index))
        .collect();
    let mut seen = BTreeSet::new();
    let mut highest = 0;
    for line in text.lines() {
        let header = line
            .trim()
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let Some(id) = header.map(str::trim) else {
            continue;
        };
        let Some(&index) = rank.get(id) else {
            problems.push(format!("{id}: is no id of any list; rename its table"));
            continue;
        };
        if !seen.insert(id) {
            problems.push(format!("{id}: has more than one table; keep one"));
        } else if index < highest {
            problems.push(format!("{id}: stands out of order; order by number"));
        }
        highest = highest.max(index);
    }
    for id in ids.iter().filter(|id| !seen.contains(id.as_str())) {
        problems.push(format!("{id}: has no table; add says and status"));
    }
    problems
}

/// A table has a `says` and exactly one status, and nothing else.
fn check_fields(id: &str, fields: &toml::Table) -> Vec<String> {
    let mut problems = Vec::new();
    for key in fields.keys() {
        if !["says", "proved", "partly", "later", "decided"].contains(&key.as_str()) {
            problems.push(format!("{id}: `{key}` is no key here; remove it"));
        }
    }
    if !fields.contains_key("says") {
        problems.push(format!("{id}: has no `says`; state what millrace must do"));
    }
    for key in ["says", "partly", "later", "decided"] {
        let Some(value) = fields.get(key) else {
            continue;
        };
        let text = value.as_str().unwrap_or_default();
        if text.trim().is_empty() || text.contains('\n') {
            problems.push(format!("{id}: `{key}` is not one line of text; write one"));
        }
    }
    let mut statuses: Vec<&str> = ["partly", "later", "decided"]
        .into_iter()
        .filter(|status| fields.contains_key(*status))
        .collect();
    if fields.contains_key("proved") && statuses != ["partly"] {
        statuses.insert(0, "proved");
    }
    if statuses.len() != 1 {
        problems.push(format!(
            "{id}: has not exactly one status but [{}]; keep one of proved, partly (with or \
             without proved), later, decided",
            statuses.join(" and ")
        ));
    }
    if let Some(decided) = fields.get("decided").and_then(toml::Value::as_str)
        && !is_decision(decided)
    {
        problems.push(format!(
            "{id}: `decided` names no place; write it as `DESIGN section N: why`"
        ));
    }
    problems
}

/// Whether a decision has the form `DESIGN section N: why`.
fn is_decision(decided: &str) -> bool {
    let rest = decided.strip_prefix("DESIGN section ");
    rest.and_then(|rest| rest.split_once(": "))
        .is_some_and(|(section, why)| {
            section.parse::<u32>().is_ok_and(|number| number > 0) && !why.trim().is_empty()
        })
}

/// The tests that a table lists, if they are listed well.
fn proofs_of(id: &str, fields: &toml::Table, problems: &mut Vec<String>) -> Vec<String> {
    let Some(proved) = fields.get("proved") else {
        return Vec::new();
    };
    let listed: Option<Vec<String>> = proved.as_array().and_then(|array| {
        array
            .iter()
            .map(|one| one.as_str().map(str::to_owned))
            .collect()
    });
    let Some(listed) = listed.filter(|listed| !listed.is_empty()) else {
        problems.push(format!(
            "{id}: `proved` is no list of tests; write [\"path/of/file.rs::test_name\"]"
        ));
        return Vec::new();
    };
    let mut proofs = Vec::new();
    for proof in listed {
        if proofs.contains(&proof) {
            problems.push(format!("{id}: lists {proof} more than once; keep one"));
        } else {
            proofs.push(proof);
        }
    }
    proofs
}

/// Each test the register names exists, runs and names the id.
fn check_proofs(
    register: &Register,
    paths: &BTreeSet<&str>,
    functions: &[Function],
) -> Vec<String> {
    let mut problems = Vec::new();
    for (id, proofs) in register {
        for proof in proofs {
            let named: Vec<_> = functions
                .iter()
                .filter(|one| one.proof() == *proof)
                .collect();
            let tests: Vec<_> = named.iter().filter(|one| one.is_test).collect();
            let problem = match (proof.rsplit_once("::"), &tests[..]) {
                (None, _) => "is not of the form path::name; name file and test",
                (Some((path, _)), _) if !paths.contains(path) => {
                    "lies in no file of that path; name the file that holds the test"
                }
                (_, []) if named.is_empty() => "does not exist; name a test that does",
                (_, []) => "has no #[test]; add it or name a test",
                (_, [test]) if test.is_ignored => "is ignored; let it run or take it off",
                (_, [test]) if test.ids.contains(id) => continue,
                (_, [_]) => "does not name the id; add it to the `///` lines above the test",
                (_, _) => "is the name of several tests; rename one",
            };
            problems.push(format!("{id}: {proof} {problem}"));
        }
    }
    problems
}

/// Each test that names ids names known and few ones, runs, and is listed under all of them.
fn check_tests(register: &Register, ids: &[String], functions: &[Function]) -> Vec<String> {
    let known: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    let mut problems = Vec::new();
    for function in functions.iter().filter(|function| function.is_test) {
        let proof = function.proof();
        if function.ids.len() > IDS_PER_TEST_MAX {
            problems.push(format!(
                "{proof}: names {} ids, more than {IDS_PER_TEST_MAX}; split the test",
                function.ids.len()
            ));
        }
        if function.is_ignored && !function.ids.is_empty() {
            problems.push(format!("{proof}: names ids but is ignored; let it run"));
        }
        for id in &function.ids {
            if !known.contains(id.as_str()) {
                problems.push(format!("{proof}: names {id}, in no list; mend it"));
            } else if register
                .get(id)
                .is_none_or(|proofs| !proofs.contains(&proof))
            {
                problems.push(format!(
                    "{proof}: names {id}; add \"{proof}\" to `proved` of [{id}]"
                ));
            }
        }
    }
    problems
}

/// All functions of a file, with doc lines and attributes directly above each.
///
/// Functions inside `proptest!` stand there as anywhere else, `#[test]` included.
fn functions_of(source: &Source) -> Vec<Function> {
    let mut found = Vec::new();
    let mut docs = String::new();
    let mut attributes: Vec<String> = Vec::new();
    let mut unfinished = String::new();
    for (line, holds_code) in lines_outside_strings(&source.text) {
        let mut code = std::mem::take(&mut unfinished) + line.trim();
        let stood_attribute = code.starts_with("#[");
        while code.starts_with("#[") {
            let Some(end) = attribute_end(&code) else {
                unfinished = std::mem::take(&mut code) + " ";
                break;
            };
            attributes.push(code[2..end].trim().to_owned());
            code = code[end + 1..].trim_start().to_owned();
        }
        if code.is_empty() && stood_attribute {
            continue;
        }
        if let Some(doc) = code.strip_prefix("///") {
            docs.push_str(doc);
            docs.push('\n');
        } else if !code.starts_with("//") {
            if let Some(name) = function_name(&code).filter(|_| holds_code) {
                found.push(Function {
                    path: source.path.clone(),
                    name: name.to_owned(),
                    ids: ids_in(&docs),
                    is_test: attributes.iter().any(|one| is_test_attribute(one)),
                    is_ignored: attributes.iter().any(|one| attribute_path(one) == "ignore"),
                });
            }
            docs.clear();
            attributes.clear();
        }
    }
    found
}

/// Where the bracket closes that opens an attribute.
fn attribute_end(code: &str) -> Option<usize> {
    let mut depth = 0_u32;
    for (index, character) in code.char_indices() {
        match character {
            '[' => depth += 1,
            ']' if depth == 1 => return Some(index),
            ']' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn attribute_path(attribute: &str) -> &str {
    attribute.split([' ', '=', '(']).next().unwrap_or_default()
}

fn is_test_attribute(attribute: &str) -> bool {
    let path = attribute_path(attribute);
    matches!(path.rsplit("::").next(), Some("test" | "property_test"))
}

/// The name of the function that a line of code begins, if it begins one.
fn function_name(code: &str) -> Option<&str> {
    let mut rest = code;
    for modifier in ["pub ", "async "] {
        rest = rest.strip_prefix(modifier).unwrap_or(rest);
    }
    let rest = rest.strip_prefix("fn ")?.trim_start();
    let end = rest.find(|character: char| !is_word(character))?;
    (end > 0 && rest[end..].starts_with(['(', '<'])).then_some(&rest[..end])
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// All ids that a text names: a list's letter, or `D-` and a list's letter, then a number.
fn ids_in(text: &str) -> BTreeSet<String> {
    text.split(|character: char| !is_word(character) && character != '-')
        .filter(|word| is_id(word))
        .map(str::to_owned)
        .collect()
}

fn is_id(word: &str) -> bool {
    let is_number =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if let Some(gap) = word.strip_prefix("D-") {
        return gap
            .strip_prefix(['S', 'M', 'H', 'R'])
            .is_some_and(is_number);
    }
    word.split_once('-').is_some_and(|(list, number)| {
        matches!(list, "S" | "M" | "H" | "R" | "Q") && is_number(number)
    })
}

/// The lines of a text as (line, whether it holds code), without those that a string literal spans.
fn lines_outside_strings(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut quoted = BTreeSet::new();
    let mut coded = BTreeSet::new();
    for token in lex::tokens(text) {
        if token.kind == lex::Kind::Literal {
            quoted.extend(token.line + 1..=token.last_line);
        } else if !token.text.is_empty() {
            coded.insert(token.line);
        }
    }
    (1..)
        .zip(text.lines())
        .filter(move |(number, _)| !quoted.contains(number))
        .map(move |(number, line)| (line, coded.contains(&number)))
}

// From here on: the checkers must be able to fail, and must stay silent on what is sound.

/// Runs all checkers on a made-up register and one made-up source file.
fn problems_of(register: &str, source: &str) -> Vec<String> {
    let ids = ["S-1".to_owned(), "S-2".to_owned()];
    let source = Source {
        path: "tests/a.rs".to_owned(),
        text: source.to_owned(),
    };
    let (register, mut problems) = check_register(register, &ids);
    let functions = functions_of(&source);
    let paths = BTreeSet::from([source.path.as_str()]);
    problems.extend(check_proofs(&register, &paths, &functions));
    problems.extend(check_tests(&register, &ids, &functions));
    problems
}

const SOUND_REGISTER: &str = r#"
[S-1]
says = "a"
proved = ["tests/a.rs::one"]
[S-2]
says = "b"
partly = "c"
proved = ["tests/a.rs::one"]
"#;

const SOUND_SOURCE: &str = r##"
/// Shows S-1 and S-2.
#[test]
#[cfg_attr(
    miri,
    allow(dead_code)
)]
fn one() { let quoted = '"'; let raw = r#"
/// S-9
#[test]
fn quoted() {}
"#; }
/// The rule of S-2, in a helper that is no test.
fn helper<'a>(_: &'a str) {}
mod other {
    fn one() {}
}
/* /// S-2
#[test]
fn remark() {}
*/
"##;

#[test]
fn sound_register_and_source_pass() {
    assert_eq!(
        problems_of(SOUND_REGISTER, SOUND_SOURCE),
        Vec::<String>::new()
    );
}

/// Each line replaces the first text by the second and must lead to the problem behind it; `~`
/// stands for a line's end.
const MISTAKES_IN_REGISTER: &str = r#"
[S-2] => [S-3] => S-3: is no id of any list
[S-2] => [S-1] => S-1: has more than one table
[S-2] => [S-2 => the register is no TOML
~[S-1] => ~x = 1~[S-1] => x: stands outside a table
[S-2]~says = "b"~partly = "c"~proved = ["tests/a.rs::one"]~ => => S-2: has no table
says = "a" => says = " " => S-1: `says` is not one line of text
says = "a" => says = "a\nb" => S-1: `says` is not one line of text
says = "a" => says = 7 => S-1: `says` is not one line of text
says = "a"~ => => S-1: has no `says`
says = "a" => says = "a"~note = "n" => S-1: `note` is no key
says = "a" => says = "a"~later = "l" => S-1: has not exactly one status but [proved and later
partly = "c" => later = "l" => S-2: has not exactly one status but [proved and later
partly = "c" => partly = "c"~later = "l" => exactly one status but [proved and partly and later
proved = ["tests/a.rs::one"]~[S-2] => [S-2] => S-1: has not exactly one status but []
"tests/a.rs::one"]~[S-2] => ]~[S-2] => S-1: `proved` is no list of tests
"tests/a.rs::one"]~[S-2] => 7]~[S-2] => S-1: `proved` is no list of tests
proved = ["tests/a.rs::one"]~[S-2] => decided = "so"~[S-2] => S-1: `decided` names no place
"tests/a.rs::one"]~[S-2] => "one"]~[S-2] => S-1: one is not of the form path::name
"tests/a.rs::one"]~[S-2] => "tests/b.rs::one"]~[S-2] => S-1: tests/b.rs::one lies in no file
"tests/a.rs::one"]~[S-2] => "tests/a.rs::two"]~[S-2] => S-1: tests/a.rs::two does not exist
"tests/a.rs::one"]~[S-2] => "tests/a.rs::quoted"]~[S-2] => tests/a.rs::quoted does not exist
"tests/a.rs::one"]~[S-2] => "tests/a.rs::remark"]~[S-2] => tests/a.rs::remark does not exist
"tests/a.rs::one"]~[S-2] => "tests/a.rs::helper"]~[S-2] => tests/a.rs::helper has no #[test]
["tests/a.rs::one"] => ["tests/a.rs::one", "tests/a.rs::one"] => more than once; keep one
proved = ["tests/a.rs::one"]~[S-2] => later = "l"~[S-2] => tests/a.rs::one: names S-1; add
"#;

/// The same for the sound source.
const MISTAKES_IN_SOURCE: &str = r"
S-1 and S-2 => S-1 => S-2: tests/a.rs::one does not name the id
S-1 and S-2 => S-1, S-2, S-3 => tests/a.rs::one: names S-3, in no list
S-1 and S-2 => S-1..S-2 S-3 S-4 S-5 D-S1 Q-1 => tests/a.rs::one: names 7 ids, more than 6
#[test]~ => #[test]~#[ignore = 'slow']~ => S-1: tests/a.rs::one is ignored
#[test]~ => #[test]~#[ignore]~ => tests/a.rs::one: names ids but is ignored
#[test]~ => #[test]~~ => S-1: tests/a.rs::one has no #[test]
#[test]~ => => S-1: tests/a.rs::one has no #[test]
#[test]~ => #[test]~let x = 1;~ => S-1: tests/a.rs::one has no #[test]
fn helper => #[test] fn helper => tests/a.rs::helper: names S-2; add
fn helper => #[test] fn one() {}~fn helper => tests/a.rs::one is the name of several tests
";

/// Applies each mistake to `sound` and asserts that `problems` finds it.
fn assert_found(mistakes: &str, sound: &str, problems: impl Fn(&str) -> Vec<String>) {
    for mistake in mistakes.lines().filter(|line| !line.is_empty()) {
        let parts: Vec<&str> = mistake.split("=>").collect();
        let [from, to, expected] = parts[..] else {
            panic!("not of three parts: {mistake}");
        };
        let [from, to] = [from, to].map(|part| part.trim().replace('~', "\n"));
        let unsound = sound.replacen(&from, &to, 1);
        assert_ne!(unsound, sound, "changes nothing: {mistake}");
        let found = problems(&unsound);
        let is_found = found
            .iter()
            .any(|problem| problem.contains(expected.trim()));
        assert!(is_found, "not found: {mistake}\nbut: {found:#?}");
    }
}

#[test]
fn each_mistake_in_the_register_is_found() {
    assert_found(MISTAKES_IN_REGISTER, SOUND_REGISTER, |register| {
        problems_of(register, SOUND_SOURCE)
    });
    let swapped = "[S-2]\nsays = 'b'\nlater = 'l'\n[S-1]\nsays = 'a'\nlater = 'l'\n";
    let found = problems_of(swapped, "");
    assert_eq!(found, ["S-1: stands out of order; order by number"]);
}

#[test]
fn each_mistake_in_a_source_is_found() {
    assert_found(MISTAKES_IN_SOURCE, SOUND_SOURCE, |source| {
        problems_of(SOUND_REGISTER, source)
    });
}

#[test]
fn ids_are_told_from_other_words() {
    let text = "S-1, (D-H5) Q-32's M-90.R-7 but SHA-1, RS-232, S-1x, D-Q1, S- or -S-4";
    let found: Vec<String> = ids_in(text).into_iter().collect();
    assert_eq!(found, ["D-H5", "M-90", "Q-32", "R-7", "S-1"]);
    assert_eq!(known_ids().len(), 523);
}
