//! The operator: looks, and says what became of what is in doubt, by the effects log.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::plan::Deed;
use super::world::{DEADLINE, World};
use crate::random::Random;

/// Does a round's deeds, each after so many more answers, as long as the round lasts.
pub(crate) fn work(world: &World, round: usize, deeds: &[(u64, Deed)]) {
    let mut random = Random::new(world.plan.seed ^ (round as u64 + 1) << 32);
    for (more, deed) in deeds {
        if !world.progress.await_more(*more, DEADLINE) {
            return;
        }
        if !world.journal().exists() {
            continue;
        }
        world.oracle.count("operator's deeds", 1);
        match deed {
            Deed::List => drop(run(world, &["ls"], &[0])),
            Deed::Verify => verify(world),
            Deed::Show { seq } => {
                // There may be none at that place yet.
                let seq = seq.to_string();
                run(world, &["show", &seq, "--workflow-id", "numbered"], &[0, 1]);
            }
            Deed::Resolve { mistakes_per_mille } => {
                resolve(world, &mut random, *mistakes_per_mille);
            }
        }
    }
}

/// Settles all that is in doubt once nobody else is there.
pub(crate) fn resolve_all(world: &World) {
    let mut random = Random::new(world.plan.seed);
    resolve(world, &mut random, 0);
    let left = in_doubt(world);
    if !left.is_empty() {
        let bad = format!("in doubt, and can't be resolved: {left:?}");
        world.oracle.bad(bad);
    }
}

pub(crate) fn verify(world: &World) {
    run(world, &["verify"], &[0]);
}

fn in_doubt(world: &World) -> Vec<Value> {
    let output = run(world, &["ls", "--in-doubt", "--json"], &[0]);
    let listing: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    listing["entries"].as_array().cloned().unwrap_or_default()
}

fn resolve(world: &World, random: &mut Random, mistakes_per_mille: usize) {
    for entry in in_doubt(world) {
        let seq = entry["seq"].to_string();
        let of = ["--workflow-id", entry["workflow_id"].as_str().unwrap()];
        let shown = run(world, &[&["show", &seq, "--json"], &of[..]].concat(), &[0]);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
        let Some(name) = shown["arguments"]["json"]["order_id"].as_str() else {
            let bad = format!("nothing tells whose entry {entry} is: {shown}");
            world.oracle.bad(bad);
            continue;
        };
        // What may still run is not looked up: only after this the effects log is complete.
        let verdict = |verdict, is_dry| {
            let dry: &[&str] = if is_dry { &["--dry-run"] } else { &[] };
            let words = ["resolve", &seq, verdict, "--reason", "the effects log"];
            run(world, &[&words[..], &of, dry].concat(), &[0, 1])
        };
        if !verdict("--still-unknown", true).status.success() {
            continue;
        }
        let has_run = world.effects().contains_key(name);
        let given = if !has_run {
            "--not-executed"
        } else if random.chance(mistakes_per_mille) {
            world.oracle.count("wrong verdicts", 1);
            world.oracle.allow(name);
            "--not-executed"
        } else {
            "--completed"
        };
        if verdict(given, false).status.success() {
            world.oracle.count("verdicts", 1);
        }
    }
}

/// Runs a command and expects one of these codes.
fn run(world: &World, words: &[&str], codes: &[i32]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_checkpoint"))
        .args(words)
        .arg("--journal")
        .arg(world.journal())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if !output
        .status
        .code()
        .is_some_and(|code| codes.contains(&code))
    {
        let told = String::from_utf8_lossy(&output.stderr);
        let shown = String::from_utf8_lossy(&output.stdout);
        let bad = format!("{words:?} ended with {}: {told}{shown}", output.status);
        world.oracle.bad(bad);
    }
    output
}
