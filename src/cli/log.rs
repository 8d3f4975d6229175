//! The log of a running node: lines on standard error, written by a thread of their own.
//!
//! A core that writes a line only hands it over. Standard error may be a pipe that nobody reads, or
//! a file on the disk that the logs keep busy: whoever waits for it must not be a core. Lines that
//! find too many before them are dropped and counted, and the count is a line as soon as there is
//! room.

use millrace::config::{ConfigError, LogFormat};
use std::io::IsTerminal;
use std::time::Duration;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// What `MILLRACE_LOG` may name.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Lines that may wait for standard error.
const WAITING_LINES: usize = 4096;
/// How often dropped lines are looked for.
const LOOK: Duration = Duration::from_secs(1);

/// Starts the log of a node. The guard writes what still waits, for a second at most, when it is
/// dropped. Starts two threads.
pub(super) fn start(format: LogFormat) -> Result<WorkerGuard, ConfigError> {
    let filter = filter()?;
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(WAITING_LINES)
        .thread_name("log")
        .finish(std::io::stderr());
    let dropped = writer.error_counter();
    write_to(writer, format, filter);
    let watch = std::thread::Builder::new().name("log-watch".to_owned());
    if let Err(error) = watch.spawn(move || tell_of_dropped(&dropped)) {
        tracing::warn!(%error, "dropped lines of the log will not be told of");
    }
    Ok(guard)
}

/// Starts the log of a command that ends by itself: it waits for standard error.
pub(super) fn start_of_command() -> Result<(), ConfigError> {
    write_to(std::io::stderr, LogFormat::Text, filter()?);
    Ok(())
}

/// Which lines there are, as `MILLRACE_LOG` says. The library would take any word for the name of a
/// module of which everything is to be shown: here every part must name a level.
fn filter() -> Result<EnvFilter, ConfigError> {
    let text = std::env::var_os("MILLRACE_LOG").unwrap_or_default();
    let text = text.to_string_lossy();
    if text.is_empty() {
        return Ok(EnvFilter::new("info,glommio=error"));
    }
    let has_level = |part: &str| {
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
        LEVELS.contains(&level.trim().to_ascii_lowercase().as_str())
    };
    let filter = text.split(',').all(has_level);
    let filter = filter.then(|| EnvFilter::try_new(&*text).ok()).flatten();
    filter.ok_or_else(|| {
        let levels = LEVELS.join(", ");
        let rule = format!("must be one of {levels}, or MODULE=LEVEL, separated by commas");
        let mend = "write for example info or info,glommio=error, or unset it";
        ConfigError::new("MILLRACE_LOG", &text, rule, mend)
    })
}

fn write_to<W>(writer: W, format: LogFormat, filter: EnvFilter)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        .with_writer(writer)
        .with_env_filter(filter)
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
