//! Every script tells what it is, and does nothing when it is asked for that or not understood.

mod node;

use node::text;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Every script, in a fixed order.
fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let all = fs::read_dir(folder).expect("the scripts are there");
    let all = all.map(|entry| entry.expect("an entry").path());
    let mut all: Vec<PathBuf> = all.filter(|path| path.is_file()).collect();
    all.sort();
    assert!(all.len() >= 12, "{all:?}");
    all
}

/// A folder with nothing in it that a script could do anything with but itself: no cargo, no
/// apt-get.
fn tools() -> tempfile::TempDir {
    let tools = tempfile::tempdir().expect("a temporary directory");
    for tool in ["bash", "dirname", "sed", "env"] {
        let found = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(tool));
        let found = found.iter().find(|path| path.exists());
        let found = found.unwrap_or_else(|| panic!("no {tool}"));
        std::os::unix::fs::symlink(found, tools.path().join(tool)).expect("a link");
    }
    tools
}

fn run(script: &Path, flag: &str) -> Output {
    let tools = tools();
    let mut command = Command::new(tools.path().join("bash"));
    command.arg(script).arg(flag);
    command.env("PATH", tools.path()).stdin(Stdio::null());
    command.output().expect("the script runs")
}

#[test]
fn help_is_the_header_and_nothing_is_done() {
    for script in scripts() {
        let source = fs::read_to_string(&script).expect("a script is text");
        let header = source.lines().skip(1);
        let header = header.take_while(|line| line.starts_with('#'));
        let header: String = header
            .map(|line| format!("{}\n", line[1..].strip_prefix(' ').unwrap_or(&line[1..])))
            .collect();
        for flag in ["--help", "-h"] {
            let output = run(&script, flag);
            let name = script.display();
            assert_eq!(output.status.code(), Some(0), "{name}: {output:?}");
            assert_eq!(text(&output.stdout), header, "{name}");
            assert!(output.stderr.is_empty(), "{name}: {output:?}");
        }
        assert!(header.contains("Exit code: "), "{}", script.display());
    }
}

#[test]
fn a_flag_that_there_is_not_is_refused() {
    for script in scripts() {
        let output = run(&script, "--no-such-flag");
        let name = script.file_name().expect("a name").to_string_lossy();
        assert_eq!(output.status.code(), Some(2), "{name}: {output:?}");
        let said = text(&output.stderr);
        let named = said.contains(&format!("scripts/{name}: ")) && said.contains("--no-such-flag");
        assert!(named, "{name}: {said}");
    }
}

/// Runs the gate, mutants apart, with a cargo that does nothing but write down what it is asked
/// for, and fails if that begins with `failing`. What it was asked for, a line each.
fn gate(failing: &str) -> (Output, String) {
    let tools = tools();
    let asked = tools.path().join("asked");
    let cargo =
        "#!/bin/bash\necho \"$* ${RUSTDOCFLAGS-}\" >>\"$ASKED\"\n[[ \"$*\" != \"$FAILING\"* ]]\n";
    for (name, text) in [
        ("cargo", cargo),
        ("cc", "#!/bin/bash\n"),
        ("git", "#!/bin/bash\n"),
    ] {
        let path = tools.path().join(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    }
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/check");
    let list = run(&check, "--list");
    let list = text(&list.stdout);
    let phases = list.lines().filter_map(|line| line.split(' ').next());
    let mut command = Command::new(tools.path().join("bash"));
    command.arg(check);
    command.args(phases.filter(|phase| *phase != "mutants"));
    command
        .env_remove("CHECK_PROFILE")
        .env_remove("RUSTDOCFLAGS");
    command.env("PATH", tools.path()).env("ASKED", &asked);
    command.env("FAILING", failing).stdin(Stdio::null());
    let output = command.output().expect("the gate runs");
    let asked = fs::read_to_string(asked).expect("it asked for something");
    (output, asked)
}

/// The gate asks for formatted code, for no warning in code and documentation, and for every test
/// of the workspace, those of several nodes among them; if one of them fails, so does the gate.
///
/// H-75, H-76
#[test]
fn the_gate_lets_no_warning_and_no_failing_test_through() {
    let (output, asked) = gate("nothing");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let whole = "--locked --profile release --workspace";
    for (call, exactly) in [
        ("fmt --all", "fmt --all --check".to_owned()),
        (
            "clippy --locked",
            format!("clippy {whole} --all-targets --all-features -- -D warnings"),
        ),
        ("test --locked", format!("test {whole}")),
        (
            "doc --locked",
            format!("doc {whole} --all-features --no-deps -D warnings"),
        ),
    ] {
        let is_asked = asked.lines().any(|line| line.trim_end() == exactly);
        assert!(is_asked, "no `{exactly}` in:\n{asked}");
        let (output, _) = gate(call);
        assert_eq!(output.status.code(), Some(1), "{call}: {output:?}");
    }
}
