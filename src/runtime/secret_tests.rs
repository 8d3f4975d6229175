//! Files that may hold a secret, and files that may not.

use super::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

const SECRET: &[u8] = b"a word that nobody may read anywhere";

fn file(directory: &Path, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, bytes).expect("written");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("ours");
    path
}

/// The refusal of a file, which must say this and nothing of what the file holds.
fn refusal(path: &Path, words: &[&str]) {
    let error = read_one(path).expect_err("it may not hold a secret");
    let text = error.to_string();
    assert!(text.starts_with("cluster.secret_file = "), "{text}");
    assert!(text.contains(path.to_str().expect("a name")), "{text}");
    for word in words.iter().chain(&["; mend: "]) {
        assert!(text.contains(word), "{text}");
    }
    assert!(!text.contains("nobody may read anywhere"), "{text}");
}

/// S-173: each file that must not be taken is refused by what is wrong with it.
#[test]
fn a_file_that_others_may_read_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let place = place.path();
    for mode in [0o400, 0o600] {
        let path = file(place, "sound", SECRET, mode);
        assert!(read_one(&path).is_ok(), "{mode:o}");
        fs::remove_file(path).expect("ours");
    }
    for mode in [0o640, 0o604, 0o644, 0o660, 0o610] {
        let path = file(place, "open", SECRET, mode);
        refusal(&path, &[&format!("mode {mode:04o}"), "chmod 600"]);
    }
    let short = file(place, "short", &SECRET[..31], 0o600);
    refusal(&short, &["31 bytes", "32 to 4096 bytes", "/dev/urandom"]);
    refusal(&file(place, "empty", b"", 0o600), &["0 bytes"]);
    let long = file(place, "long", &[7; SECRET_BYTES_MAX + 1], 0o600);
    refusal(&long, &["more", "32 to 4096 bytes"]);
    refusal(&place.join("gone"), &["No such file", "mode 0600"]);
    refusal(place, &["must be a file"]);
    let pipe = place.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo runs").success());
    refusal(&pipe, &["must be a file"]);
}

#[test]
fn a_file_of_another_user_is_refused() {
    // SAFETY: the call takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can give a file away");
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let path = file(place.path(), "another's", SECRET, 0o600);
    chown(&path, Some(65_534), None).expect("root may");
    refusal(&path, &["owner 65534", "chown 0"]);
}
