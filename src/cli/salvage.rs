//! `millrace salvage`: what a damaged log of a stopped node still holds, and, with `--yes`, an end
//! to it where the damage begins.
//!
//! For logs that nobody can repair. What is given up is kept in `data_dir/salvaged/`.

use super::{ConfigArguments, Failure, say};
use clap::Args;
use millrace::config::Config;
use millrace::runtime::identity;
use millrace::runtime::salvage::{self, GivenUp, Survey};
use millrace::types::{BlockNo, LogId, Offset, OriginId, ShardId};
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `salvage`.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: ConfigArguments,
    /// The log, as the node's messages and data directory name it.
    #[arg(long, value_name = "ORIGIN-SHARD", value_parser = log_id)]
    log: LogId,
    /// End the log where the damage begins. Without it nothing is changed.
    #[arg(long)]
    yes: bool,
}

/// A log of a stopped node.
pub(super) struct Stopped {
    pub(super) config: Config,
    pub(super) log: LogId,
    pub(super) directory: PathBuf,
    _lock: File,
}

impl Stopped {
    /// Takes the data directory that a configuration names, and one of its logs.
    pub(super) fn open(arguments: &ConfigArguments, log: LogId) -> Result<Stopped, Failure> {
        let config = arguments.load()?;
        let logs: Vec<LogId> = config.cluster.logs().collect();
        if !logs.contains(&log) {
            let known: Vec<String> = logs.iter().map(LogId::to_string).collect();
            let text = format!(
                "--log {log}: no log of this cluster; it has {}",
                known.join(", ")
            );
            return Err(Failure::Input(text));
        }
        let directory = config.node.data_dir.join(log.to_string());
        if !directory.is_dir() {
            let text = format!("{}: no such directory", directory.display());
            return Err(Failure::Input(text));
        }
        let lock = identity::lock(&config.node.data_dir)?;
        identity::check(&config, false)?;
        Ok(Stopped {
            config,
            log,
            directory,
            _lock: lock,
        })
    }

    /// Looks at every block.
    pub(super) fn survey(&self) -> Result<Survey, Failure> {
        salvage::survey(&self.directory, self.log).map_err(|error| self.failed(&error))
    }

    /// The first block that goes with the records from `offset` on.
    pub(super) fn block_at(&self, offset: Offset) -> Result<BlockNo, Failure> {
        let found = salvage::block_at(&self.directory, self.log, offset);
        found.map_err(|error| self.failed(&error))
    }

    /// Ends the log at `from`.
    pub(super) fn give_up(&self, from: BlockNo, lost: bool) -> Result<GivenUp, Failure> {
        let done = salvage::give_up(&self.directory, self.log, from, lost);
        done.map_err(|error| self.failed(&error))
    }

    /// Whether other nodes hold the log too.
    pub(super) fn has_peers(&self) -> bool {
        self.config.cluster.nodes.len() > 1
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        Failure::Failed(format!("{}: {error}", self.directory.display()))
    }
}

/// A log as directories name it.
pub(super) fn log_id(text: &str) -> Result<LogId, String> {
    let parts = text.split_once('-').and_then(|(origin, shard)| {
        let (origin, shard) = (origin.parse().ok()?, shard.parse().ok()?);
        Some(LogId {
            origin: OriginId(origin),
            shard: ShardId(shard),
        })
    });
    parts.ok_or_else(|| "must be ORIGIN-SHARD, two whole numbers, such as 1-0".to_owned())
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let stopped = Stopped::open(&arguments.config, arguments.log)?;
    let survey = stopped.survey()?;
    let Survey {
        log_start,
        sound_end,
        sound_offset,
        behind,
        ..
    } = &survey;
    say(format_args!(
        "log {}: blocks {log_start} to {sound_end} are sound; offsets end at {sound_offset}",
        stopped.log
    ))?;
    let Some(damage) = &survey.damage else {
        say(format_args!("no damage: the node can start"))?;
        return Ok(ExitCode::SUCCESS);
    };
    say(format_args!(
        "damage at block {}: {} at {}: {}",
        damage.block,
        damage.file.display(),
        damage.position,
        damage.rule
    ))?;
    say(format_args!(
        "behind it: {} sound blocks with {} records, the last below block {}",
        behind.blocks, behind.records, behind.end
    ))?;
    if stopped.has_peers() {
        say(format_args!(
            "other nodes hold this log too: a node that is started repairs damaged blocks from \
             them; of a missing or exchanged file it says so and does not start the log: then \
             move the log's directory away while all others are up. Use this command only if they \
             cannot help"
        ))?;
    }
    if !arguments.yes {
        say(format_args!(
            "nothing was changed; with --yes the log ends at block {} and the rest is kept in {}",
            damage.block,
            stopped.config.node.data_dir.join("salvaged").display()
        ))?;
        return Ok(ExitCode::from(1));
    }
    let done = stopped.give_up(damage.block, stopped.has_peers())?;
    say(format_args!(
        "log {} ends at block {}, offset {sound_offset}; what was given up is in {}",
        stopped.log,
        done.end,
        done.aside.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}
