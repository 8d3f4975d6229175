//! Every script tells what it is, and does nothing when it is asked for that or not understood.

mod node;

use node::text;
use std::fs;
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

/// Runs a script with nothing that it could do anything with but itself: no cargo, no apt-get.
fn run(script: &Path, flag: &str) -> Output {
    let tools = tempfile::tempdir().expect("a temporary directory");
    for tool in ["bash", "dirname", "sed", "env"] {
        let found = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(tool));
        let found = found.iter().find(|path| path.exists());
        let found = found.unwrap_or_else(|| panic!("no {tool}"));
        std::os::unix::fs::symlink(found, tools.path().join(tool)).expect("a link");
    }
    let bash = tools.path().join("bash");
    let mut command = Command::new(bash);
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
