//! The binary: parse, set up logging, run, exit.
fn main() {}
