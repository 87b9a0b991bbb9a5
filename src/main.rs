//! The binary: parse, set up logging, run, exit.

use std::process::ExitCode;

use checkpoint::proxy::guardian;

fn main() -> ExitCode {
    // Before anything else: a guardian has no settings, no log and no journal.
    if guardian::is_asked_for(std::env::args_os().nth(1).as_deref()) {
        guardian::run();
    }
    checkpoint::cli::main(std::env::args_os()).into()
}
