//! File systems of a test's own, gone when dropped, also after a failure. They need root.

use super::text;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A mounted file system.
pub struct Mount {
    pub directory: PathBuf,
    /// What lies below it is unmounted behind it.
    _below: Option<Box<Mount>>,
    _place: tempfile::TempDir,
}

impl Mount {
    /// An ext4 of so many bytes in an image below the build directory; why not, where it cannot be
    /// made.
    pub fn ext4(bytes: u64) -> Result<Mount, String> {
        Mount::ext4_in(None, bytes)
    }

    /// An ext4 of so many bytes whose image lies in memory of which there is less: a write to a
    /// place that was never written fails with an input/output error once it is used up.
    pub fn ext4_on_too_small(bytes: u64, memory_bytes: u64) -> Result<Mount, String> {
        let place = place()?;
        let directory = place.path().join("memory");
        fs::create_dir(&directory).map_err(|error| error.to_string())?;
        let mut mount = Command::new("mount");
        mount.args([
            "-t",
            "tmpfs",
            "-o",
            &format!("size={memory_bytes}"),
            "tmpfs",
        ]);
        run(mount.arg(&directory))?;
        let memory = Mount {
            directory,
            _below: None,
            _place: place,
        };
        Mount::ext4_in(Some(memory), bytes)
    }

    fn ext4_in(below: Option<Mount>, bytes: u64) -> Result<Mount, String> {
        let place = place()?;
        let inside = below
            .as_ref()
            .map_or(place.path(), |below| &below.directory);
        let (image, directory) = (inside.join("image"), place.path().join("mounted"));
        let file = File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(bytes).map_err(|error| error.to_string())?;
        fs::create_dir(&directory).map_err(|error| error.to_string())?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        let mut mount = Command::new("mount");
        run(mount.args(["-o", "loop"]).args([&image, &directory]))?;
        Ok(Mount {
            directory,
            _below: below.map(Box::new),
            _place: place,
        })
    }

    /// Where the image lies.
    pub fn below(&self) -> Option<&Path> {
        self._below.as_ref().map(|below| below.directory.as_path())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A process that was just killed may hold its files for a moment.
        for _ in 0..100 {
            if run(Command::new("umount").arg(&self.directory)).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = run(Command::new("umount").arg("-l").arg(&self.directory));
    }
}

fn place() -> Result<tempfile::TempDir, String> {
    let below = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tempfile::tempdir_in(below).map_err(|error| error.to_string())
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", text(&output.stderr)))
}

/// The file system, or a line that says that the test is skipped. Under `CI=true` root is expected
/// to be able to make it.
pub fn or_skip(mount: Result<Mount, String>) -> Option<Mount> {
    match mount {
        Ok(mount) => Some(mount),
        Err(why) => {
            // SAFETY: asks for a number.
            let root = unsafe { libc::geteuid() } == 0;
            let expected = root && std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!expected, "no small file system: {why}");
            println!("skipped: 1 test needs root and a loop device: {why}");
            None
        }
    }
}
