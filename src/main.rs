//! The binary: parse, set up logging, run, exit.

use std::process::ExitCode;

fn main() -> ExitCode {
    checkpoint::cli::main(std::env::args_os()).into()
}
