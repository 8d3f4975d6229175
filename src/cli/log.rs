//! The log of a running node: lines on standard error, written by a thread of their own.
//!
//! A core that writes a line only hands it over. Standard error may be a pipe that nobody reads, or
//! a file on the disk that the logs keep busy: whoever waits for it must not be a core. Lines that
//! find too many before them are dropped and counted, and the count is a line as soon as there is
//! room.

use millrace::config::LogFormat;
use std::io::IsTerminal;
use std::time::Duration;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait for standard error.
const WAITING_LINES: usize = 4096;
/// How often dropped lines are looked for.
const LOOK: Duration = Duration::from_secs(1);

/// Starts the log of a node. The guard writes what still waits, for a second at most, when it is
/// dropped. Starts two threads.
pub(super) fn start(format: LogFormat) -> WorkerGuard {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(WAITING_LINES)
        .thread_name("log")
        .finish(std::io::stderr());
    let dropped = writer.error_counter();
    write_to(writer, format);
    let watch = std::thread::Builder::new().name("log-watch".to_owned());
    if let Err(error) = watch.spawn(move || tell_of_dropped(&dropped)) {
        tracing::warn!(%error, "dropped lines of the log will not be told of");
    }
    guard
}

/// Starts the log of a command that ends by itself: it waits for standard error.
pub(super) fn start_of_command() {
    write_to(std::io::stderr, LogFormat::Text);
}

/// `MILLRACE_LOG` says which lines there are.
fn write_to<W>(writer: W, format: LogFormat)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_from_env("MILLRACE_LOG");
    let lines = tracing_subscriber::fmt()
        .with_writer(writer)
        .with_env_filter(filter.unwrap_or_else(|_| EnvFilter::new("info,glommio=error")))
        .with_target(false);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}

/// Says how many lines were dropped since it last said so; never returns.
fn tell_of_dropped(counter: &ErrorCounter) {
    let mut told = 0;
    loop {
        std::thread::sleep(LOOK);
        let dropped = counter.dropped_lines();
        if dropped > told {
            let lines = dropped - told;
            tracing::warn!(
                lines,
                "lines of the log were dropped: standard error is slow"
            );
            told = dropped;
        }
    }
}
