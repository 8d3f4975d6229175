//! The process: hands over to the command line.
//!
//! A panic in any thread ends the whole process: a metronome or an executor that is gone would
//! leave the other waiting for ever. Read `cli.rs` next.

use std::process::ExitCode;

fn main() -> ExitCode {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::abort();
    }));
    loadgen::cli::main()
}
