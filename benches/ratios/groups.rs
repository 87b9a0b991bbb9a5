//! The groups of measurements, each with the contract's goals.

use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Plan;
use crate::client::{Between, Load, Peer};
use crate::large::{commands, long_session};
use crate::peers::peers;
use crate::slow::slow_disk;
use crate::stats::{Goal, Spread, Table, at, p50};

/// One group.
pub(crate) type Group = fn(&Plan, &mut Table) -> io::Result<()>;

/// All groups, by name.
pub(crate) const ALL: [(&str, Group); 15] = [
    ("100b", |plan, table| sequential(plan, table, 100, "100 B")),
    ("10kb", |plan, table| {
        sequential(plan, table, 10_000, "10 KB")
    }),
    ("1mb", megabyte),
    ("new", new_journal),
    ("flight", in_flight),
    ("slow", slow_disk),
    ("replay", replay),
    ("tmpfs", tmpfs),
    ("start", start_up),
    ("calls", system_calls),
    ("memory", memory),
    ("growth", growth),
    ("peers", peers),
    ("commands", commands),
    ("long", long_session),
];

/// Calls of a round; thirty rounds make ten thousand.
pub(crate) const CALLS: usize = 334;

/// Lets each of `seats` have its turn in each round, in an order that rotates, and returns what
/// each turn gave: `[seat][round]`.
pub(crate) fn rounds<S, T>(
    count: usize,
    seats: &mut [S],
    mut turn: impl FnMut(&mut S) -> io::Result<T>,
) -> io::Result<Vec<Vec<T>>> {
    let mut found: Vec<Vec<T>> = seats.iter().map(|_| Vec::with_capacity(count)).collect();
    for round in 0..count {
        for place in 0..seats.len() {
            let seat = (round + place) % seats.len();
            found[seat].push(turn(&mut seats[seat])?);
        }
    }
    Ok(found)
}

/// Returns the spread of the in-round ratios of one seat to another.
pub(crate) fn ratio<T>(
    found: &[Vec<T>],
    seat: usize,
    base: usize,
    value: impl Fn(&T) -> f64,
) -> Spread {
    Spread::of(
        found[seat]
            .iter()
            .zip(&found[base])
            .map(|(turn, base)| value(turn) / value(base)),
    )
}

pub(crate) fn journal(plan: &Plan, name: &str) -> Between {
    Between::Journal(plan.folder.join(format!("{name}.db")))
}

pub(crate) fn synced(plan: &Plan) -> Between {
    Between::Synced(plan.folder.join("synced.log"))
}

/// The floor of what keeps its journal in SQLite.
pub(crate) fn bare(folder: &Path, name: &str) -> Between {
    Between::Synced(folder.join(format!("bare-{name}.db")))
}

/// The floor of what keeps the product's rows.
pub(crate) fn rows(folder: &Path, name: &str) -> Between {
    Between::Synced(folder.join(format!("rows-{name}.journal")))
}

/// Some turns before the count begins, so that caches, logs and branches are warm.
pub(crate) fn warmed(
    between: &Between,
    result: Option<usize>,
    load: Load,
    calls: usize,
) -> io::Result<Peer> {
    let mut peer = Peer::ready(between, result)?;
    peer.sequential(load, calls)?;
    Ok(peer)
}

fn sequential(plan: &Plan, table: &mut Table, bytes: usize, size: &str) -> io::Result<()> {
    let load = Load::of(bytes);
    let between = [
        Between::Direct,
        Between::Relay,
        synced(plan),
        Between::Pass,
        journal(plan, &format!("sequential{bytes}")),
        bare(&plan.folder, &format!("sequential{bytes}")),
        rows(&plan.folder, &format!("sequential{bytes}")),
        Between::Deferred(plan.folder.join(format!("deferred{bytes}.db"))),
    ];
    let mut peers = Vec::new();
    for between in &between {
        peers.push(warmed(between, None, load, 100)?);
    }
    let found = rounds(plan.rounds, &mut peers, |peer| {
        let before = peer.cpu()?;
        let times = peer.sequential(load, CALLS)?;
        Ok((times, peer.cpu()?.saturating_sub(before)))
    })?;
    let middle = |turn: &(Vec<Duration>, Duration)| p50(&turn.0);
    let cpu = |turn: &(Vec<Duration>, Duration)| turn.1.as_secs_f64();
    let (pass, journaled) = match bytes {
        100 => (Goal::Most(1.15), Goal::Most(1.10)),
        _ => (Goal::Most(1.3), Goal::Most(1.15)),
    };
    for (seat, name) in ["direct", "relay", "relay-sync2"].iter().enumerate() {
        let p50 = Spread::of(found[seat].iter().map(middle));
        table.ratio(&format!("{name}, {size}, p50"), "µs", Goal::Shown, p50);
    }
    let what = format!("pass-through, {size}, p50 / relay");
    table.ratio(&what, "x", pass, ratio(&found, 3, 1, middle));
    let what = format!("pass-through, {size}, CPU / relay");
    table.ratio(&what, "x", Goal::Shown, ratio(&found, 3, 1, cpu));
    let what = format!("journaled, {size}, p50 / relay-sync2");
    table.ratio(&what, "x", journaled, ratio(&found, 4, 2, middle));
    let what = format!("relay-sqlite2, {size}, p50 / relay-sync2");
    table.ratio(&what, "x", Goal::Shown, ratio(&found, 5, 2, middle));
    let what = format!("relay-rows2, {size}, p50 / relay-sync2");
    table.ratio(&what, "x", Goal::Shown, ratio(&found, 6, 2, middle));
    let what = format!("journaled, {size}, p50 / relay-rows2");
    table.ratio(&what, "x", Goal::Shown, ratio(&found, 4, 6, middle));
    let what = format!("journaled, {size}, CPU / relay");
    table.ratio(&what, "x", Goal::Shown, ratio(&found, 4, 1, cpu));
    let what = format!("journaled, deferred, {size}, p50 / relay-sync2");
    table.ratio(&what, "x", Goal::Shown, ratio(&found, 7, 2, middle));
    let what = format!("journaled, deferred, {size}, p50 / journaled");
    table.ratio(&what, "x", Goal::Shown, ratio(&found, 7, 4, middle));
    let all = |seat: usize| -> Vec<Duration> {
        found[seat]
            .iter()
            .flat_map(|turn| turn.0.iter().copied())
            .collect()
    };
    let goal = if bytes == 100 { 1.3 } else { 1.5 };
    let (ours, floor) = (all(4), all(2));
    let what = format!(
        "journaled, {size}, p99 of {} calls / relay-sync2",
        ours.len()
    );
    table.count(
        &what,
        "x",
        Goal::Most(goal),
        at(&ours, 0.99) / at(&floor, 0.99),
    );
    for (seat, name) in [(5, "relay-sqlite2"), (6, "relay-rows2")] {
        let what = format!("{name}, {size}, p99 of as many / relay-sync2");
        let p99 = at(&all(seat), 0.99) / at(&floor, 0.99);
        table.count(&what, "x", Goal::Shown, p99);
    }
    peers.into_iter().try_for_each(Peer::end)
}

fn megabyte(plan: &Plan, table: &mut Table) -> io::Result<()> {
    let load = Load::of(1_000_000);
    let mut peers = Vec::new();
    for between in [Between::Relay, Between::Pass] {
        peers.push(warmed(&between, None, load, 3)?);
    }
    let found = rounds(plan.rounds, &mut peers, |peer| peer.sequential(load, 8))?;
    let middle = |times: &Vec<Duration>| p50(times);
    let relay = Spread::of(found[0].iter().map(middle));
    table.ratio("relay, 1 MB both ways, p50", "µs", Goal::Shown, relay);
    let what = "pass-through, 1 MB both ways, p50 / relay";
    table.ratio(what, "x", Goal::Most(1.5), ratio(&found, 1, 0, middle));
    drop(peers);

    let load = Load::of(100);
    let mut peers = Vec::new();
    for between in [
        synced(plan),
        journal(plan, "megabyte"),
        bare(&plan.folder, "megabyte"),
    ] {
        peers.push(warmed(&between, Some(1_000_000), load, 5)?);
    }
    let found = rounds(plan.rounds, &mut peers, |peer| peer.sequential(load, 8))?;
    let log = Spread::of(found[0].iter().map(middle));
    table.ratio("synced log, 1 MB results, p50", "µs", Goal::Shown, log);
    let what = "journaled, 1 MB results, p50 / synced log";
    table.ratio(what, "x", Goal::Most(1.3), ratio(&found, 1, 0, middle));
    let what = "relay-sqlite2, 1 MB results, p50 / synced log";
    table.ratio(what, "x", Goal::Shown, ratio(&found, 2, 0, middle));
    peers.into_iter().try_for_each(Peer::end)
}

/// The first calls of a journal that did not exist.
fn new_journal(plan: &Plan, table: &mut Table) -> io::Result<()> {
    let calls = if plan.is_quick { 250 } else { 500 };
    let mut next = 0;
    let mut seats = [true, false];
    let found = rounds(plan.rounds, &mut seats, |is_ours| {
        let between = if *is_ours {
            next += 1;
            journal(plan, &format!("new{next}"))
        } else {
            synced(plan)
        };
        let mut peer = Peer::ready(&between, None)?;
        let times = peer.sequential(Load::of(100), calls)?;
        peer.end()?;
        Ok(times)
    })?;
    let middle = |times: &Vec<Duration>| p50(times);
    let what = format!("journaled, 100 B, first {calls} calls, p50 / relay-sync2");
    table.ratio(&what, "x", Goal::Most(1.10), ratio(&found, 0, 1, middle));
    Ok(())
}

fn in_flight(plan: &Plan, table: &mut Table) -> io::Result<()> {
    let load = Load::of(100);
    let mut peers = Vec::new();
    for between in [
        Between::Relay,
        synced(plan),
        Between::Pass,
        journal(plan, "flight"),
        bare(&plan.folder, "flight"),
        rows(&plan.folder, "flight"),
    ] {
        peers.push(warmed(&between, None, load, 100)?);
    }
    let counts = [(1, 100), (8, 800), (64, 3000), (256, 6000)];
    let found = rounds(plan.rounds, &mut peers, |peer| {
        let mut rates = Vec::new();
        for (width, calls) in counts {
            let took = peer.pipelined(load, calls, width)?;
            rates.push(calls as f64 / took.as_secs_f64());
        }
        Ok(rates)
    })?;
    for (place, (width, _)) in counts.iter().enumerate() {
        let rate = |rates: &Vec<f64>| rates[place];
        let floor = match width {
            64 => Goal::Least(0.7),
            _ => Goal::Shown,
        };
        let what = format!("{width} in flight, pass-through, calls/s / relay");
        table.ratio(&what, "x", Goal::Shown, ratio(&found, 2, 0, rate));
        let what = format!("{width} in flight, journaled, calls/s / relay-sync2");
        table.ratio(&what, "x", floor, ratio(&found, 3, 1, rate));
        let what = format!("{width} in flight, relay-sqlite2, calls/s / relay-sync2");
        table.ratio(&what, "x", Goal::Shown, ratio(&found, 4, 1, rate));
        let what = format!("{width} in flight, relay-rows2, calls/s / relay-sync2");
        table.ratio(&what, "x", Goal::Shown, ratio(&found, 5, 1, rate));
        let alone = match width {
            64 => Goal::Least(25.0),
            256 => Goal::Least(45.0),
            _ => Goal::Shown,
        };
        let gain = Spread::of(found[3].iter().map(|rates| rates[place] / rates[0]));
        let bare = Spread::of(found[4].iter().map(|rates| rates[place] / rates[0]));
        if place > 0 {
            let what = format!("{width} in flight, journaled, calls/s / 1 in flight");
            table.ratio(&what, "x", alone, gain);
            let what = format!("{width} in flight, relay-sqlite2, calls/s / 1 in flight");
            table.ratio(&what, "x", Goal::Shown, bare);
        }
    }
    peers.into_iter().try_for_each(Peer::end)
}

/// Makes a journal of so many entries, with a `checkpoint` of its own on a file system in memory
/// where there is one, and returns where it is.
pub(crate) fn seed(plan: &Plan, entries: u64) -> io::Result<PathBuf> {
    let wanted = plan.folder.join(format!("seeded{entries}.db"));
    if wanted.exists() {
        return Ok(wanted);
    }
    let memory = memory_folder()?;
    let made = memory.path().join("seed.db");
    let mut peer = Peer::ready(&Between::Journal(made.clone()), None)?;
    let count = usize::try_from(entries).map_err(io::Error::other)?;
    peer.pipelined(Load::in_order(100, entries), count, 256)?;
    peer.end()?;
    copy_journal(&made, &plan.folder, &format!("seeded{entries}.db"))?;
    Ok(wanted)
}

/// Copies a closed journal, which has no log, with the mark beside it.
pub(crate) fn copy_journal(from: &Path, folder: &Path, name: &str) -> io::Result<()> {
    let place = from.parent().zip(from.file_name());
    let (from_folder, from_name) = place.ok_or(io::ErrorKind::InvalidInput)?;
    let from_name = from_name.to_string_lossy();
    for file in std::fs::read_dir(from_folder)? {
        let file = file?.file_name().to_string_lossy().into_owned();
        if file.contains(&*from_name) {
            let copy = file.replace(&*from_name, name);
            std::fs::copy(from_folder.join(&file), folder.join(copy))?;
        }
    }
    std::fs::File::open(folder.join(name))?.sync_all()
}

fn memory_folder() -> io::Result<tempfile::TempDir> {
    let base = Path::new("/dev/shm");
    let builder = || tempfile::Builder::new();
    if base.is_dir() {
        builder().prefix("ratios").tempdir_in(base)
    } else {
        builder().prefix("ratios").tempdir()
    }
}

fn sizes(plan: &Plan) -> Vec<u64> {
    let mut sizes = vec![1000, 100_000];
    if plan.is_full {
        sizes.push(1_000_000);
    }
    sizes
}

fn replay(plan: &Plan, table: &mut Table) -> io::Result<()> {
    let mut sizes = sizes(plan);
    if plan.is_huge {
        sizes.push(10_000_000);
    }
    let mut seats = vec![(Peer::ready(&Between::Relay, None)?, Load::of(100))];
    for entries in &sizes {
        seed(plan, *entries)?;
    }
    for entries in &sizes {
        let journal = seed(plan, *entries)?;
        // Making a large one may have driven a small one out of the system's memory, and what is
        // measured is not the disk.
        io::copy(&mut std::fs::File::open(&journal)?, &mut io::sink())?;
        let peer = Peer::ready(&Between::Journal(journal), None)?;
        seats.push((peer, Load::spread(100, *entries)));
    }
    for (peer, load) in &mut seats {
        peer.sequential(*load, 200)?;
    }
    let found = rounds(plan.rounds, &mut seats, |(peer, load)| {
        peer.sequential(*load, CALLS)
    })?;
    let middle = |times: &Vec<Duration>| p50(times);
    for (seat, entries) in sizes.iter().enumerate() {
        let what = format!("replay, {entries} entries, p50 / relay");
        table.ratio(
            &what,
            "x",
            Goal::Most(2.0),
            ratio(&found, seat + 1, 0, middle),
        );
    }
    let base = sizes.iter().position(|entries| *entries == 100_000);
    for (seat, entries) in sizes.iter().enumerate() {
        if let Some(base) = base.filter(|base| seat > *base) {
            let what = format!("replay, {entries} / 100000 entries, p50");
            let of = ratio(&found, seat + 1, base + 1, middle);
            table.ratio(&what, "x", Goal::Most(2.0), of);
        }
    }
    if !plan.is_full {
        table.not_run("replay, 1000000 entries, p50 / relay", "needs --full");
    }
    if !plan.is_huge {
        table.not_run("replay, 10000000 / 100000 entries, p50", "needs --huge");
    }
    Ok(())
}

fn tmpfs(plan: &Plan, table: &mut Table) -> io::Result<()> {
    if !Path::new("/dev/shm").is_dir() {
        table.not_run("journaled on tmpfs", "there is no /dev/shm");
        return Ok(());
    }
    let folder = memory_folder()?;
    let load = Load::of(100);
    let mut peers = Vec::new();
    for between in [
        Between::Relay,
        Between::Journal(folder.path().join("memory.db")),
        bare(folder.path(), "memory"),
        rows(folder.path(), "memory"),
    ] {
        peers.push(warmed(&between, None, load, 200)?);
    }
    let found = rounds(plan.rounds, &mut peers, |peer| {
        let before = peer.cpu()?;
        let times = peer.sequential(load, CALLS)?;
        Ok((
            p50(&times),
            (peer.cpu()?.saturating_sub(before)).as_secs_f64(),
        ))
    })?;
    let p50 = ratio(&found, 1, 0, |turn| turn.0);
    table.ratio(
        "journaled on tmpfs, 100 B, p50 / relay",
        "x",
        Goal::Most(1.8),
        p50,
    );
    for (seat, name) in [(2, "relay-sqlite2"), (3, "relay-rows2")] {
        let what = format!("{name} on tmpfs, 100 B, p50 / relay");
        table.ratio(
            &what,
            "x",
            Goal::Shown,
            ratio(&found, seat, 0, |turn| turn.0),
        );
    }
    for (seat, name) in [(1, "journaled"), (2, "relay-sqlite2"), (3, "relay-rows2")] {
        let cpu = Spread::of(found[seat].iter().map(|turn| turn.1 * 1e6 / CALLS as f64));
        let what = format!("{name} on tmpfs, 100 B, CPU of a call");
        table.ratio(&what, "µs", Goal::Shown, cpu);
    }
    peers.into_iter().try_for_each(Peer::end)
}

fn start_up(plan: &Plan, table: &mut Table) -> io::Result<()> {
    let old = sizes(plan)[sizes(plan).len() - 1];
    let mut seats = [
        Some(Between::Relay),
        Some(Between::Pass),
        None,
        Some(Between::Journal(seed(plan, old)?)),
    ];
    let mut next = 0;
    let found = rounds(plan.rounds, &mut seats, |between| {
        let between = between.clone().unwrap_or_else(|| {
            next += 1;
            journal(plan, &format!("start{next}"))
        });
        let start = Instant::now();
        let mut peer = Peer::spawn(&between, None)?;
        peer.greet()?;
        let hello = start.elapsed();
        let start = Instant::now();
        peer.sequential(Load::of(100), 1)?;
        let call = start.elapsed();
        peer.end()?;
        Ok((hello.as_secs_f64() * 1e3, call.as_secs_f64() * 1e3))
    })?;
    let relay = Spread::of(found[0].iter().map(|turn| turn.0));
    table.ratio("first answer, relay", "ms", Goal::Shown, relay);
    let names = [
        "pass-through",
        "new journal",
        &format!("journal of {old} entries"),
    ];
    let goals = [Goal::Most(2.0), Goal::Most(2.0), Goal::Most(1.0)];
    for (seat, (name, goal)) in names.iter().zip(goals).enumerate() {
        let over = |read: fn(&(f64, f64)) -> f64| {
            let pairs = found[seat + 1].iter().zip(&found[0]);
            Spread::of(pairs.map(|(turn, relay)| read(turn) - read(relay)))
        };
        table.ratio(
            &format!("first answer, {name}, over relay"),
            "ms",
            goal,
            over(|turn| turn.0),
        );
        let what = format!("first call after it, {name}, over relay");
        table.ratio(&what, "ms", Goal::Shown, over(|turn| turn.1));
    }
    Ok(())
}

/// Counts what a process asks of the system, with `strace -c` where there is one.
fn system_calls(plan: &Plan, table: &mut Table) -> io::Result<()> {
    if Command::new("strace").arg("-V").output().is_err() {
        table.not_run("syncs and system calls of a call", "there is no strace");
        return Ok(());
    }
    let load = Load::of(100);
    let mut peer = warmed(&Between::Pass, None, load, 50)?;
    let counted = count_calls(plan, &mut peer, 1000, 1)?;
    table.count(
        "pass-through, system calls of a call",
        "",
        Goal::Shown,
        counted.1,
    );
    drop(peer);
    let mut peer = warmed(&journal(plan, "calls"), None, load, 50)?;
    let counted = count_calls(plan, &mut peer, 1000, 1)?;
    table.count(
        "journaled, sequential, syncs of a call",
        "",
        Goal::Most(2.005),
        counted.0,
    );
    table.count(
        "journaled, sequential, system calls of a call",
        "",
        Goal::Shown,
        counted.1,
    );
    let counted = count_calls(plan, &mut peer, 10_000, 64)?;
    table.count(
        "journaled, 64 in flight, syncs of a call",
        "",
        Goal::Most(0.05),
        counted.0,
    );
    table.count(
        "journaled, 64 in flight, system calls of a call",
        "",
        Goal::Shown,
        counted.1,
    );
    peer.end()
}

fn count_calls(plan: &Plan, peer: &mut Peer, calls: usize, width: usize) -> io::Result<(f64, f64)> {
    let out = plan.folder.join("strace.txt");
    let mut strace = Command::new("strace")
        .args(["-f", "-c", "-o"])
        .arg(&out)
        .args(["-p", &peer.pid().to_string()])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let said = strace.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut said = BufReader::new(said);
    let mut line = String::new();
    said.read_line(&mut line)?;
    let counted = if line.contains("attached") {
        peer.pipelined(Load::of(100), calls, width).map(|_| ())
    } else {
        Err(io::Error::other(line.trim().to_owned()))
    };
    // It writes its table when it is interrupted.
    let pid = i32::try_from(strace.id()).map_err(io::Error::other)?;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGINT,
    )?;
    strace.wait()?;
    counted?;
    let mut syncs = 0.0;
    let mut all = 0.0;
    for line in std::fs::read_to_string(&out)?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (Some(name), Some(count)) = (words.last(), words.get(3)) else {
            continue;
        };
        let Ok(count) = count.parse::<f64>() else {
            continue;
        };
        if *name == "total" {
            continue;
        }
        all += count;
        if ["fdatasync", "fsync"].contains(name) {
            syncs += count;
        }
    }
    Ok((syncs / calls as f64, all / calls as f64))
}

fn memory(plan: &Plan, table: &mut Table) -> io::Result<()> {
    let large = (64 << 20) - 1024;
    for (name, between) in [
        ("pass-through", Between::Pass),
        ("journaled", journal(plan, "memory")),
    ] {
        let peer = warmed(&between, None, Load::of(100), 10)?;
        let idle = peer.status_kib("VmRSS")? as f64 / 1024.0;
        table.count(
            &format!("memory, idle, {name}"),
            "MiB",
            Goal::Most(6.0),
            idle,
        );
        peer.end()?;
        let mut peer = warmed(&between, Some(large), Load::of(100), 1)?;
        peer.sequential(Load::of(100), 1)?;
        let most = peer.status_kib("VmHWM")? as f64 * 1024.0 / large as f64;
        let what = format!("memory, a 64 MiB result, {name}");
        table.count(&what, "x its size", Goal::Most(2.5), most);
        peer.end()?;
    }
    Ok(())
}

fn growth(plan: &Plan, table: &mut Table) -> io::Result<()> {
    let grown = |name: &str, result: Option<usize>, calls: usize| -> io::Result<f64> {
        let path = plan.folder.join(format!("{name}.db"));
        let between = Between::Journal(path.clone());
        let mut sizes = [0.0; 2];
        for size in &mut sizes {
            warmed(&between, result, Load::of(100), calls)?.end()?;
            *size = std::fs::metadata(&path)?.len() as f64;
        }
        Ok((sizes[1] - sizes[0]) / calls as f64)
    };
    let arguments = r#"{"text":""}"#.len() + 100;
    let result = r#"{"content":[{"type":"text","text":""}]}"#.len();
    let calls = if plan.is_quick { 1000 } else { 3000 };
    let over = grown("growth", None, calls)? - (arguments + result + 100) as f64;
    table.count(
        "journal, bytes of a call over its payloads",
        "B",
        Goal::Most(500.0),
        over,
    );
    let large = (arguments + result + 1_000_000) as f64;
    let times = grown("growth1m", Some(1_000_000), 20)? / large;
    table.count(
        "journal, 1 MB results",
        "x payload",
        Goal::Most(1.01),
        times,
    );
    Ok(())
}
