//! One world: a folder, a journal, a gate, a disk that can be full, agents and an operator.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::agent;
use super::gate::Gate;
use super::operator;
use super::oracle::Oracle;
use super::plan::{Plan, Round};
use crate::bench::Bench;

/// How long anything may take before it is called hung.
pub(crate) const DEADLINE: Duration = Duration::from_secs(40);

/// How long the last process of a world may take to end.
const LAST_ONES: Duration = Duration::from_secs(15);

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) bench: Bench,
    pub(crate) gate: Arc<Gate>,
    pub(crate) disk: Disk,
    pub(crate) progress: Progress,
    pub(crate) oracle: Oracle,
}

/// Answers that anybody has read: what those wait for who stop a proxy or give a verdict.
#[derive(Default)]
pub(crate) struct Progress {
    state: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Progress {
    pub(crate) fn step(&self) {
        self.state.lock().unwrap().0 += 1;
        self.changed.notify_all();
    }

    fn set_over(&self, is_over: bool) {
        self.state.lock().unwrap().1 = is_over;
        self.changed.notify_all();
    }

    /// Waits for so many more answers, at most for `limit`. Returns false once the round is over.
    pub(crate) fn await_more(&self, more: u64, limit: Duration) -> bool {
        let state = self.state.lock().unwrap();
        let goal = state.0 + more;
        let (state, _) = self
            .changed
            .wait_timeout_while(state, limit, |(now, is_over)| *now < goal && !*is_over)
            .unwrap();
        !state.1
    }
}

/// The disk as the proxies see it: full beyond a place in every file, or not.
///
/// A limit of the process on the size of its files (`RLIMIT_FSIZE`, set from outside by `prlimit`)
/// needs no privilege and no file system of its own, and can be lifted again. It is set on proxies
/// whose upstream runs, so that the effects log stays whole.
#[derive(Default)]
pub(crate) struct Disk {
    state: Mutex<(BTreeSet<u32>, usize)>,
}

impl Disk {
    pub(crate) fn add(&self, pid: u32) {
        self.state.lock().unwrap().0.insert(pid);
    }

    /// Must come before the process is waited for: until then its id is its own.
    pub(crate) fn remove(&self, pid: u32) {
        self.state.lock().unwrap().0.remove(&pid);
    }

    pub(crate) fn fill(&self, at_bytes: u64) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        limit(&state.0, &at_bytes.to_string());
    }

    pub(crate) fn free(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 -= 1;
        if state.1 == 0 {
            limit(&state.0, "unlimited");
        }
    }
}

fn limit(pids: &BTreeSet<u32>, soft: &str) {
    for pid in pids {
        // One that has just been killed is past it.
        let _ = Command::new("prlimit")
            .args([format!("--pid={pid}"), format!("--fsize={soft}:")])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
    }
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let bench = Bench::new();
        std::fs::write(
            bench.path("policy.toml"),
            "[defaults]\nwait_poll = \"20ms\"\n",
        )
        .unwrap();
        Self {
            gate: Gate::open(&bench.path("gate")),
            plan,
            bench,
            disk: Disk::default(),
            progress: Progress::default(),
            oracle: Oracle::default(),
        }
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.bench.path("run.db")
    }

    pub(crate) fn proxy(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_checkpoint"));
        command
            .args([
                "--refusals",
                "error",
                "--log",
                "off",
                "--drain-timeout",
                "5s",
            ])
            .arg("--policy")
            .arg(self.bench.path("policy.toml"))
            .arg("--journal")
            .arg(self.journal())
            .args(["--", env!("CARGO_BIN_EXE_scripted-upstream")])
            .env("SCRIPTED_EFFECTS", self.bench.path("effects"))
            .env("SCRIPTED_GATE", self.bench.path("gate"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }

    /// How often each step's effect happened.
    pub(crate) fn effects(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        let text = std::fs::read_to_string(self.bench.path("effects")).unwrap_or_default();
        for line in text.lines() {
            let effect: serde_json::Value = serde_json::from_str(line).unwrap();
            let name = effect["order_id"].as_str().unwrap().to_owned();
            *counts.entry(name).or_default() += 1;
        }
        counts
    }

    /// Lives through the plan and then in peace to the end. Returns the counts and all that is bad.
    pub(crate) fn run(self) -> (BTreeMap<String, usize>, BTreeSet<String>) {
        for (number, round) in self.plan.rounds.iter().enumerate() {
            self.round(number, round);
        }
        let quiet = self.plan.quiet_round();
        let last = self.plan.rounds.len();
        // All that can be told is told; what is still in doubt is the operator's, and then nothing
        // is left that could not be done.
        self.round(last, &quiet);
        let left = self.gate.await_empty(LAST_ONES);
        if !left.is_empty() {
            self.oracle.bad(format!("upstreams {left:?} are left"));
        }
        operator::resolve_all(&self);
        self.round(last + 1, &quiet);
        let left = self.gate.await_empty(LAST_ONES);
        if !left.is_empty() {
            self.oracle.bad(format!("upstreams {left:?} are left"));
        }
        self.gate.close();
        self.judge_end()
    }

    fn judge_end(self) -> (BTreeMap<String, usize>, BTreeSet<String>) {
        let effects = self.effects();
        self.oracle.judge_end(&self.plan.steps, &effects);
        self.oracle.count("effects", effects.values().sum());
        operator::verify(&self);
        let left = self.processes_left();
        if !left.is_empty() {
            self.oracle.bad(format!("processes are left: {left:?}"));
        }
        self.oracle.into_parts()
    }

    fn round(&self, number: usize, round: &Round) {
        self.progress.set_over(false);
        std::thread::scope(|scope| {
            let operator = scope.spawn(|| operator::work(self, number, &round.deeds));
            let agents: Vec<_> = round
                .parts
                .iter()
                .enumerate()
                .map(|(agent, part)| scope.spawn(move || agent::work(self, number, agent, part)))
                .collect();
            for agent in agents {
                agent.join().unwrap();
            }
            self.progress.set_over(true);
            operator.join().unwrap();
        });
        self.oracle.judge_effects(&self.effects());
    }

    /// Waits for the end of every process that has this world's folder in its environment:
    /// proxies, guardians, upstreams. Returns those that outlive the limit.
    fn processes_left(&self) -> Vec<String> {
        let folder = self.bench.path("").to_string_lossy().into_owned();
        let start = Instant::now();
        loop {
            let left = processes_that_know(&folder);
            if left.is_empty() || start.elapsed() > LAST_ONES {
                return left;
            }
            // They are no children of ours: nothing tells their end.
            std::thread::yield_now();
        }
    }
}

fn processes_that_know(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let environment = read("environ");
        if environment
            .windows(text.len())
            .any(|part| part == text.as_bytes())
        {
            let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            found.push(format!("{:?} {command}", entry.file_name()));
        }
    }
    found
}
