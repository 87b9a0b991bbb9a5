//! The ratios of contract, section 13: `cargo bench --bench ratios`.
//!
//! Everything that is compared runs in the same minutes on the same machine: in each round every
//! contestant has its turn, in an order that rotates, and what counts is the ratio within the
//! round. Absolute figures of a shared machine tell little; quartiles that lie far apart are
//! called so instead of being judged.
//!
//! Flags after `--`: `--quick` (fewer rounds), `--full` (also 10^6 entries, and 10^6 calls),
//! `--huge` (also replays from 10^7 entries, which take some minutes and 16 GB to make),
//! `--only NAME,…` (some of the groups), `--dir PATH` (where the journals and logs are).

#![expect(
    clippy::cast_precision_loss,
    reason = "counts and sizes of a benchmark are far below 2^52"
)]

mod client;
mod groups;
#[expect(
    dead_code,
    reason = "it belongs to the tests of peers, which use all of it"
)]
#[path = "../../tests/peers/install.rs"]
mod install;
mod large;
mod log;
mod peers;
mod roles;
mod rows;
mod slow;
mod stats;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// After this the run ends, whatever it was doing.
const RUN_MAX: Duration = Duration::from_secs(60 * 60);

/// What a run was asked for.
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) is_quick: bool,
    pub(crate) is_full: bool,
    pub(crate) is_huge: bool,
    only: Vec<String>,
    pub(crate) folder: PathBuf,
}

impl Plan {
    fn wants(&self, group: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == group)
    }
}

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [role, name, rest @ ..] = words.as_slice()
        && role == "--role"
    {
        return roles::run(name, rest);
    }
    // Built and run by `cargo test --all-targets` too, where nobody waits for figures.
    if !words.iter().any(|word| word == "--bench") {
        return say("run it with: cargo bench --bench ratios\n");
    }
    let has = |flag: &str| words.iter().any(|word| word == flag);
    let value = |flag: &str| {
        let at = words.iter().position(|word| word == flag)?;
        words.get(at + 1).cloned()
    };
    let base = value("--dir").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let folder = tempfile::Builder::new().prefix("ratios").tempdir_in(base)?;
    let is_quick = has("--quick");
    let plan = Plan {
        rounds: value("--rounds")
            .and_then(|rounds| rounds.parse().ok())
            .unwrap_or(if is_quick { 10 } else { 30 }),
        is_quick,
        is_full: has("--full"),
        is_huge: has("--huge"),
        only: value("--only")
            .map(|names| names.split(',').map(String::from).collect())
            .unwrap_or_default(),
        folder: folder.path().to_owned(),
    };
    // Whoever is left over sees the end of its input when this process is gone.
    std::thread::spawn(|| {
        std::thread::sleep(RUN_MAX);
        std::process::exit(1);
    });
    let start = Instant::now();
    let mut table = stats::Table::default();
    for (name, group) in groups::ALL {
        if plan.wants(name) {
            say(&format!(
                "{name} … {:.0} s\n",
                start.elapsed().as_secs_f64()
            ))?;
            if let Err(error) = group(&plan, &mut table) {
                table.not_run(name, &error.to_string());
            }
        }
    }
    say(&format!(
        "\n{} rounds, {:.0} s\n\n{}",
        plan.rounds,
        start.elapsed().as_secs_f64(),
        table.text()
    ))
}

fn say(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}
