//! The load generator for tests of the whole: a program of another package.

use std::path::Path;
use std::process::Command;
use std::sync::Once;

/// The load generator: the one beside the node's binary, brought up to date first, or
/// `LOADGEN_BIN`.
pub fn loadgen() -> Command {
    static BUILT: Once = Once::new();
    if let Some(path) = std::env::var_os("LOADGEN_BIN") {
        return Command::new(path);
    }
    let path = Path::new(env!("CARGO_BIN_EXE_millrace")).with_file_name("loadgen");
    // An old one may speak another protocol, or pass where today's would fail.
    BUILT.call_once(|| build(&path));
    Command::new(path)
}

fn build(path: &Path) {
    let folder = path.parent().expect("a folder");
    let profile = folder.file_name().and_then(|name| name.to_str());
    let profile = match profile.expect("the folder of a profile") {
        "debug" => "dev",
        other => other,
    };
    let mut command = Command::new(env!("CARGO"));
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--workspace", "--bin", "loadgen"])
        .args(["--profile", profile, "--target-dir"])
        .arg(folder.parent().expect("the build directory"));
    let status = command.status().expect("cargo runs");
    assert!(
        status.success() && path.exists(),
        "{}: not built",
        path.display()
    );
}
