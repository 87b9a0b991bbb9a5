//! The same on a disk that is slower than the one at hand: each sync takes a millisecond more.
//!
//! How much of a call is ours depends on how long the disk takes. That of a machine in a data
//! centre answers a sync within 0.1 ms; many take ten to fifty times as long.

use std::io;
use std::process::Command;
use std::time::Duration;

use crate::Plan;
use crate::client::{Between, Load, Peer};
use crate::groups::{bare, journal, ratio, rounds, rows, synced, warmed};
use crate::stats::{Goal, Spread, Table, p50};

/// What a sync takes longer.
const LONGER: Duration = Duration::from_millis(1);

/// Calls of a round, one at a time and with [`WIDTH`] in flight.
const CALLS: usize = 60;
const CALLS_IN_FLIGHT: usize = 1500;
const WIDTH: usize = 64;

/// The group.
pub(crate) fn slow_disk(plan: &Plan, table: &mut Table) -> io::Result<()> {
    if Command::new("strace").arg("-V").output().is_err() {
        table.not_run("a disk that is slower by 1 ms a sync", "there is no strace");
        return Ok(());
    }
    let load = Load::of(100);
    let mut peers = Vec::new();
    for between in [
        synced(plan),
        bare(&plan.folder, "slow"),
        rows(&plan.folder, "slow"),
        journal(plan, "slow"),
    ] {
        let between = Between::Slow(Box::new(between), LONGER);
        peers.push(warmed(&between, None, load, 50)?);
    }
    let found = rounds(plan.rounds, &mut peers, |peer| {
        let times = peer.sequential(load, CALLS)?;
        let took = peer.pipelined(load, CALLS_IN_FLIGHT, WIDTH)?;
        Ok((p50(&times), CALLS_IN_FLIGHT as f64 / took.as_secs_f64()))
    })?;
    let middle = |turn: &(f64, f64)| turn.0;
    let rate = |turn: &(f64, f64)| turn.1;
    let mut row = |what: &str, unit: &str, spread: Spread| {
        let what = format!("syncs slower by 1 ms: {what}");
        table.ratio(&what, unit, Goal::Shown, spread);
    };
    row(
        "relay-sync2, 100 B, p50",
        "µs",
        Spread::of(found[0].iter().map(middle)),
    );
    row(
        "journaled, 100 B, p50 / relay-sync2",
        "x",
        ratio(&found, 3, 0, middle),
    );
    row(
        "relay-sqlite2, 100 B, p50 / relay-sync2",
        "x",
        ratio(&found, 1, 0, middle),
    );
    row(
        "relay-rows2, 100 B, p50 / relay-sync2",
        "x",
        ratio(&found, 2, 0, middle),
    );
    row(
        "64 in flight, journaled, calls/s / relay-sync2",
        "x",
        ratio(&found, 3, 0, rate),
    );
    row(
        "64 in flight, relay-sqlite2, calls/s / relay-sync2",
        "x",
        ratio(&found, 1, 0, rate),
    );
    let alone = |turn: &(f64, f64)| turn.1 * turn.0 / 1e6;
    row(
        "64 in flight, journaled, calls/s / 1 in flight",
        "x",
        Spread::of(found[3].iter().map(alone)),
    );
    peers.into_iter().try_for_each(Peer::end)
}
