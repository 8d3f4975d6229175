//! The command: parses arguments, starts one of the subcommands, turns its end into an exit code.
//!
//! 0: done. 1: it failed. 2: bad input, with one line that names what was wrong, the rule and the
//! mend. Every logic is elsewhere: the node in `runtime`, the other commands in `cli/`.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
