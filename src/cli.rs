//! The command line: what can be asked of `millrace`, and how its answers look.
//!
//! Each subcommand has its file. They share the exit codes (0 done, 1 failed, 2 bad input; 130 for
//! an append that was interrupted) and that results go to standard output and everything else to
//! standard error.

mod append;
mod check;
mod diverge;
mod finalize;
mod lines;
mod link;
mod log;
mod promote;
mod read;
mod salvage;
mod scrub;
mod status;

use clap::{Args, Parser, Subcommand};
use millrace::admin;
use millrace::config::{Config, ConfigError, Overrides, Value, list, load};
use millrace::runtime::{self, ServeOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// A replicated log for Linux on bare metal.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node.
    Serve(Serve),
    /// Append lines of standard input: one line is one record. Prints `shard offset` per batch.
    Append(append::Arguments),
    /// Print records.
    Read(read::Arguments),
    /// Show how a node is.
    Status(status::Arguments),
    /// Pause or resume replication between two nodes.
    Link(link::Arguments),
    /// Hand the leadership of a shard to another node, without an append that fails.
    Promote(promote::Arguments),
    /// Show what all nodes of a cluster can, and make that a fact of the cluster after an upgrade.
    Finalize(finalize::Arguments),
    /// Show where logs of two nodes differ, and settle whose blocks stay.
    Diverge(diverge::Arguments),
    /// Show what is damaged on a node's disk, have its logs read again, and see them repaired.
    Scrub(scrub::Arguments),
    /// Show what a damaged log of a stopped node still holds, and end it there.
    Salvage(salvage::Arguments),
    /// Look whether a node could start here, and what its disk can do. Changes nothing.
    Check(check::Arguments),
    /// Print every key in force, and where its value came from.
    Config(ConfigArguments),
}

/// Where configuration comes from.
#[derive(Args, Clone, Debug, Default)]
struct ConfigArguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// This node's id (node.id).
    #[arg(long, value_name = "ID")]
    node_id: Option<String>,
    /// Where its data lies (node.data_dir).
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: Option<String>,
    /// Where it listens (node.address).
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// The cluster's number (cluster.id).
    #[arg(long, value_name = "ID")]
    cluster_id: Option<String>,
    /// A node of the cluster; once for each (cluster.nodes).
    #[arg(long, value_name = "ID=HOST:PORT", num_args = 1)]
    nodes: Vec<String>,
    /// Any other key, such as --set log.sync=none.
    #[arg(long, value_name = "KEY=VALUE", num_args = 1)]
    set: Vec<String>,
}

#[derive(Args, Debug)]
struct Serve {
    #[command(flatten)]
    config: ConfigArguments,
    /// This node's disk is blank because the node is new, not because a disk was lost.
    #[arg(long)]
    new_member: bool,
}

impl ConfigArguments {
    fn overrides(&self) -> Result<Overrides, ConfigError> {
        let mut set = Vec::new();
        for text in &self.set {
            let Some((key, value)) = text.split_once('=') else {
                let rule = "must be KEY=VALUE";
                let mend = "write for example --set log.sync=none";
                return Err(ConfigError::new("--set", text, rule, mend));
            };
            set.push((key.to_owned(), value.to_owned()));
        }
        let quoted = |text: &String| format!("{text:?}");
        for (key, value) in [
            ("node.id", self.node_id.clone()),
            ("cluster.id", self.cluster_id.clone()),
            ("node.data_dir", self.data_dir.as_ref().map(quoted)),
            ("node.address", self.address.as_ref().map(quoted)),
        ] {
            set.extend(value.map(|value| (key.to_owned(), value)));
        }
        Ok(Overrides {
            file: self.config.clone(),
            set,
            nodes: self.nodes.clone(),
        })
    }

    fn load(&self) -> Result<Config, ConfigError> {
        load(&self.overrides()?, environment())
    }
}

/// The environment as far as it is text.
fn environment() -> impl Iterator<Item = (String, String)> {
    let texts = std::env::vars_os();
    texts.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Why a subcommand did not do what it was asked.
enum Failure {
    /// Exit code 2.
    Input(String),
    /// Exit code 1.
    Failed(String),
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::Input(error.to_string())
    }
}

impl From<millrace::client::driver::ClientError> for Failure {
    fn from(error: millrace::client::driver::ClientError) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::Failed(error.to_string())
    }
}

/// Prints a line. An output that takes no more is a failure to be told, not a reason to panic.
fn say(line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}

/// Milliseconds that a flag may name at most: 49 days, which every clock can add.
const MS_MOST: u64 = u32::MAX as u64;

/// A node's address as a flag gives it: host and port.
fn node_address(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(port)) if port > 0 => Ok(text.to_owned()),
        _ => Err("must be host:port with a port from 1 to 65535".to_owned()),
    }
}

/// Parses the arguments and does what they say.
pub fn run() -> ExitCode {
    runtime::abort_on_panic();
    // Wrong arguments are printed by the parser, which exits with 2.
    let arguments = Arguments::parse();
    if !matches!(arguments.command, Command::Serve(_))
        && let Err(error) = log::start_of_command()
    {
        return ended(Err(error.into()));
    }
    if !matches!(arguments.command, Command::Serve(_) | Command::Append(_)) {
        // Whoever reads the output may stop reading. (A node ignores that, and an append still
        // has its counts to say.)
        // SAFETY: sets the default action of a signal, before any other thread exists.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    let done = match arguments.command {
        Command::Serve(arguments) => serve(&arguments),
        Command::Append(arguments) => append::run(&arguments),
        Command::Read(arguments) => read::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Link(arguments) => link::run(&arguments),
        Command::Promote(arguments) => promote::run(&arguments),
        Command::Finalize(arguments) => finalize::run(&arguments),
        Command::Diverge(arguments) => diverge::run(&arguments),
        Command::Scrub(arguments) => scrub::run(&arguments),
        Command::Salvage(arguments) => salvage::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Config(arguments) => print_config(&arguments),
    };
    ended(done)
}

fn ended(done: Result<ExitCode, Failure>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(Failure::Input(text)) => {
            eprintln!("millrace: {text}");
            ExitCode::from(2)
        }
        Err(Failure::Failed(text)) => {
            eprintln!("millrace: {text}");
            ExitCode::from(1)
        }
    }
}

fn serve(arguments: &Serve) -> Result<ExitCode, Failure> {
    let options = ServeOptions {
        new_member: arguments.new_member,
    };
    let config = arguments.config.load()?;
    // Before the first thread: all of them inherit it.
    runtime::block_signals();
    let _flushes = log::start(config.node.log)?;
    let admin = admin::bind(&config)?;
    let start = |board| admin.map_or(Ok(()), |admin| admin.start(board));
    Ok(runtime::serve(config, options, start)?)
}

/// Prints every key, of what is no whole configuration too; then what is wrong with it is told.
fn print_config(arguments: &ConfigArguments) -> Result<ExitCode, Failure> {
    let config = match arguments.load() {
        Ok(config) => config,
        Err(error) => {
            // What cannot even be listed has that same error.
            let values = list(&arguments.overrides()?, environment()).unwrap_or_default();
            print_values(&values)?;
            return Err(error.into());
        }
    };
    print_values(&config.values)?;
    say(format_args!(
        "# fingerprint of the cluster facts: {:08x}",
        config.fingerprint()
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn print_values(values: &[Value]) -> std::io::Result<()> {
    for value in values {
        let left = format!("{} = {}", value.key, value.text);
        say(format_args!("{left:<56} # {}", value.source))?;
    }
    Ok(())
}
