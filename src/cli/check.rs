//! `millrace check`: whether a node could start here, and what its disk can do.
//!
//! Reads, tries and leaves nothing behind. With a configuration it makes every check that a start
//! makes; with a data directory alone, those of the machine and the directory. `--disk` measures
//! what a set of three nodes on this disk could take at most.

use super::{ConfigArguments, Failure, say};
use clap::Args;
use millrace::config::{Config, ConfigError};
use millrace::runtime::disk_check::{self, DiskSpeed};
use millrace::runtime::{identity, preflight};
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

type Check = (&'static str, Result<(), ConfigError>);

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let wants_config = arguments.config.config.is_some() || arguments.config.node_id.is_some();
    let config = if wants_config {
        Some(arguments.config.load()?)
    } else {
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
    let speed = if arguments.disk && checks.iter().all(|(_, result)| result.is_ok()) {
        Some(
            disk_check::measure(&directory, arguments.seconds)
                .map_err(|error| Failure::Failed(format!("{}: {error}", directory.display())))?,
        )
    } else {
        None
    };
    let memory = match speed {
        Some(_) => disk_check::memory_file_system(&directory)?,
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
    let mut checks = vec![
        ("io_uring", preflight::io_uring()),
        ("locked memory", preflight::memlock(cores)),
        ("data directory", preflight::existing_directory(directory)),
    ];
    if let Some(config) = config {
        checks.push(("CPUs", preflight::cpus(config).map(|_| ())));
        checks.push(("identity", identity::check(config, false)));
        let free = preflight::addresses(config).and_then(|all| {
            all.into_iter()
                .try_for_each(|address| preflight::bind(address).map(|_| ()))
        });
        checks.push(("port", free));
    }
    checks
}

fn print(checks: &[Check], speed: Option<&DiskSpeed>) -> io::Result<()> {
    for (name, result) in checks {
        match result {
            Ok(()) => say(format_args!("{name:<16} ok"))?,
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
