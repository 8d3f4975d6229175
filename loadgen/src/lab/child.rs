//! A process that an experiment starts: its words are kept, its time is bounded, and it goes when
//! the experiment goes.
//!
//! Output goes to files, so that nothing waits for a reader. A signal to this program, or the time
//! limit, asks the child to end and kills it if it does not. Only ever a process started here is
//! signalled. Read `cluster.rs` for the one kind that lives on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::go_on;
use crate::Failure;

const LOOK: Duration = Duration::from_millis(50);

/// How long a child that was asked to end may take.
const END: Duration = Duration::from_secs(20);

/// A running process.
pub struct Child {
    process: process::Child,
    files: [PathBuf; 2],
    name: String,
    until: Instant,
}

/// How it ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Exit code; -1 if a signal ended it.
    pub code: i32,
    /// All that it printed.
    pub stdout: String,
    /// All that it complained about.
    pub stderr: String,
}

impl Ended {
    /// The last line that it said.
    pub fn last_line(&self) -> String {
        self.tail(1)
    }

    /// The last lines that it said.
    pub fn tail(&self, lines: usize) -> String {
        let said = [&self.stdout, &self.stderr].map(|text| text.trim_end());
        let said = if said[1].is_empty() { said[0] } else { said[1] };
        let all: Vec<&str> = said.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Child {
    /// Starts it; what it says goes to files in `folder`, named after `name`.
    pub fn start(
        command: &mut Command,
        folder: &Path,
        name: &str,
        limit: Duration,
    ) -> Result<Child, Failure> {
        go_on()?;
        let files = ["out", "err"].map(|end| folder.join(format!("{name}.{end}")));
        let place = |path: &Path, error| Failure::Failed(format!("{}: {error}", path.display()));
        let open = |path: &PathBuf| File::create(path).map_err(|error| place(path, error));
        command
            .stdin(Stdio::null())
            .stdout(open(&files[0])?)
            .stderr(open(&files[1])?);
        let program = PathBuf::from(command.get_program());
        let process = command.spawn().map_err(|error| place(&program, error))?;
        Ok(Child {
            process,
            files,
            name: name.to_owned(),
            until: Instant::now() + limit,
        })
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> Result<bool, Failure> {
        let ended = self.process.try_wait().map_err(Failure::failed)?;
        Ok(ended.is_some())
    }

    /// Waits for its end; an error if a signal or the time limit came first.
    pub fn wait(mut self) -> Result<Ended, Failure> {
        loop {
            if let Some(status) = self.process.try_wait().map_err(Failure::failed)? {
                return Ok(self.ended(status));
            }
            go_on()?;
            if Instant::now() >= self.until {
                return Err(Failure::Failed(format!("{} takes too long", self.name)));
            }
            thread::sleep(LOOK);
        }
    }

    fn ended(&self, status: ExitStatus) -> Ended {
        let read = |path: &PathBuf| fs::read(path).unwrap_or_default();
        let text = |path| String::from_utf8_lossy(&read(path)).into_owned();
        Ended {
            code: status.code().unwrap_or(-1),
            stdout: text(&self.files[0]),
            stderr: text(&self.files[1]),
        }
    }

    fn end(&mut self) {
        let pid = self.process.id() as libc::pid_t;
        // SAFETY: the process was started here and was not waited for yet, so it is its number.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let until = Instant::now() + END;
        while Instant::now() < until {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(LOOK);
        }
        // An error means that it has ended meanwhile.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.end();
        }
        for path in &self.files {
            // Left behind, it goes with its folder.
            let _ = fs::remove_file(path);
        }
    }
}
