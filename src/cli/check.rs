//! `millrace check`: whether a node could start here, and what its disk can do.
//!
//! Reads, tries and leaves nothing behind. With a configuration it makes every check that a start
//! makes; with a data directory alone, those of the machine and the directory. `--disk` measures
//! what a set of three nodes on this disk could take at most.

use super::{ConfigArguments, Failure, environment, say};
use clap::Args;
use millrace::admin;
use millrace::config::{Config, ConfigError, list};
use millrace::runtime::disk_check::{self, DiskSpeed};
use millrace::runtime::{identity, preflight, secret};
use millrace::types::whole;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `check`.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: ConfigArguments,
    /// Measure three concurrent writers on the disk of the data directory.
    #[arg(long)]
    disk: bool,
    /// How long to measure.
    #[arg(long, default_value_t = 5, value_parser = whole(1_u64, 600))]
    seconds: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What was looked at, and what is to be said of it where nothing is wrong; may be empty.
type Check = (&'static str, Result<String, ConfigError>);

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let wants_config = arguments.config.config.is_some() || arguments.config.node_id.is_some();
    let config = if wants_config {
        Some(arguments.config.load()?)
    } else {
        // The environment is held against the keys all the same.
        list(&arguments.config.overrides()?, environment())?;
        None
    };
    let given = arguments.config.data_dir.as_ref().map(PathBuf::from);
    let directory = config
        .as_ref()
        .map(|config| config.node.data_dir.clone())
        .or(given);
    let Some(directory) = directory else {
        let text = "check: nothing to look at; mend: pass --config FILE or --data-dir DIRECTORY";
        return Err(Failure::Input(text.to_owned()));
    };
    let checks = checks(config.as_ref(), &directory);
    // What is not there yet will lie on the disk of what is.
    let disk = preflight::nearest_directory(&directory);
    let speed = if arguments.disk && checks.iter().all(|(_, result)| result.is_ok()) {
        Some(
            disk_check::measure(disk, arguments.seconds)
                .map_err(|error| Failure::Failed(format!("{}: {error}", disk.display())))?,
        )
    } else {
        None
    };
    let memory = match speed {
        Some(_) => disk_check::memory_file_system(disk)?,
        None => None,
    };
    let warning = memory.map(|name| {
        format!("the directory lies on {name}: this is memory, and says nothing about a disk")
    });
    if arguments.json {
        print_json(&checks, speed.as_ref(), warning.as_deref())?;
    } else {
        print(&checks, speed.as_ref())?;
        if let Some(warning) = warning {
            say(format_args!("{:<16} {warning}", "warning"))?;
        }
    }
    let bad = checks.iter().any(|(_, result)| result.is_err());
    Ok(if bad {
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    })
}

fn checks(config: Option<&Config>, directory: &Path) -> Vec<Check> {
    let cores = config.map_or(1, |config| config.cores.count);
    let plain = |result: Result<(), ConfigError>| result.map(|()| String::new());
    // As a start has it: what is missing is created.
    let nearest = preflight::nearest_directory(directory);
    let data = preflight::existing_directory(nearest).map(|()| match nearest == directory {
        true => String::new(),
        false => format!("will be created in {}", nearest.display()),
    });
    let mut checks = vec![
        ("io_uring", plain(preflight::io_uring())),
        ("locked memory", plain(preflight::memlock(cores))),
        ("data directory", data),
    ];
    if let Some(config) = config {
        let files = preflight::descriptors(config)
            .map(|found| format!("{} connections of clients a core", found.clients));
        checks.push(("open files", files));
        checks.push(("CPUs", plain(preflight::cpus(config).map(|_| ()))));
        checks.push((
            "identity",
            plain(identity::check(config, false).map(|_| ())),
        ));
        checks.push(("secret", plain(secret::read(config).map(|_| ()))));
        let free = preflight::addresses(config).and_then(|all| {
            all.into_iter()
                .try_for_each(|address| preflight::bind(address).map(|_| ()))
        });
        checks.push(("port", plain(free)));
        if config.node.admin.is_some() {
            checks.push(("HTTP port", plain(admin::bind(config).map(|_| ()))));
        }
    }
    checks
}

fn print(checks: &[Check], speed: Option<&DiskSpeed>) -> io::Result<()> {
    for (name, result) in checks {
        match result {
            Ok(note) if note.is_empty() => say(format_args!("{name:<16} ok"))?,
            Ok(note) => say(format_args!("{name:<16} ok, {note}"))?,
            Err(error) => say(format_args!("{name:<16} {error}"))?,
        }
    }
    if let Some(speed) = speed {
        for (index, bytes) in speed.writers.iter().enumerate() {
            say(format_args!("writer {index:<9} {:.0} MB/s", bytes / 1e6))?;
        }
        say(format_args!(
            "{:<16} {:.0} MB/s",
            "total",
            speed.total() / 1e6
        ))?;
        say(format_args!(
            "{:<16} {:.0} MB/s: the most that a set of three nodes on this disk can take",
            "a third",
            speed.total() / 3e6
        ))?;
    }
    Ok(())
}

fn print_json(
    checks: &[Check],
    speed: Option<&DiskSpeed>,
    warning: Option<&str>,
) -> io::Result<()> {
    let checks: Vec<_> = checks
        .iter()
        .map(|(name, result)| {
            json!({
                "check": name,
                "ok": result.is_ok(),
                "note": result.as_ref().ok().filter(|note| !note.is_empty()),
                "problem": result.as_ref().err().map(ConfigError::to_string),
            })
        })
        .collect();
    let disk = speed.map(|speed| {
        json!({
            "seconds": speed.seconds,
            "writers_bytes_per_s": speed.writers,
            "total_bytes_per_s": speed.total(),
            "third_bytes_per_s": speed.total() / 3.0,
        })
    });
    say(format_args!(
        "{}",
        json!({ "checks": checks, "disk": disk, "warning": warning })
    ))?;
    Ok(())
}
