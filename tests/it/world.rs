//! A test's own world: a folder, a journal's place, the scripted upstream's logs, a bench.
//!
//! Nothing here sleeps. What a test waits for is an event: a line on a pipe, the end of a process,
//! a call that has come to the bench. Each wait has a deadline and fails with all that was heard.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::bench::Bench;
use crate::setup::Setup;

/// How long anything may take before a test calls it hung.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) const UPSTREAM: &str = env!("CARGO_BIN_EXE_scripted-upstream");

/// The path of another build of the proxy to test instead of this one.
const PROGRAM: &str = "CHECKPOINT_IT_PROGRAM";

/// The proxy under test.
pub(crate) fn checkpoint() -> OsString {
    std::env::var_os(PROGRAM).unwrap_or_else(|| env!("CARGO_BIN_EXE_checkpoint").into())
}

pub(crate) struct World {
    folder: tempfile::TempDir,
    bench: Arc<Bench>,
}

impl World {
    pub(crate) fn new() -> World {
        let folder = tempfile::Builder::new()
            .prefix("checkpoint-it-")
            .tempdir()
            .unwrap();
        let bench = Bench::open(&folder.path().join("bench"));
        World { folder, bench }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The journal, in a folder that the product has to make.
    pub(crate) fn journal(&self) -> PathBuf {
        self.path("state").join("run.db")
    }

    /// Writes a policy file; each text has a file of its own.
    pub(crate) fn policy_file(&self, text: &str) -> PathBuf {
        let mut number = 0;
        loop {
            let path = self.path(&format!("policy-{number}.toml"));
            match fs::read_to_string(&path) {
                Ok(there) if there == text => return path,
                Ok(_) => number += 1,
                Err(_) => {
                    fs::write(&path, text).unwrap();
                    return path;
                }
            }
        }
    }

    /// A proxy with a journal before the scripted upstream.
    pub(crate) fn proxy(&self) -> Setup<'_> {
        Setup::new(self)
    }

    /// The scripted upstream itself, without a proxy.
    pub(crate) fn direct(&self) -> Setup<'_> {
        self.proxy().without_proxy()
    }

    /// Every effect that was ever performed in this world.
    pub(crate) fn effects(&self) -> Vec<Value> {
        json_lines(&self.path("effects"))
    }

    /// How many effects one tool had.
    pub(crate) fn effects_of(&self, tool: &str) -> usize {
        self.effects()
            .iter()
            .filter(|effect| effect["tool"] == tool)
            .count()
    }

    /// Every line that any upstream of this world received, with its newline.
    pub(crate) fn upstream_lines(&self) -> Vec<Vec<u8>> {
        byte_lines(&self.path("lines"))
    }

    /// Every line that any upstream of this world sent, with its newline.
    pub(crate) fn sent_lines(&self) -> Vec<Vec<u8>> {
        byte_lines(&self.path("sent"))
    }

    /// How many lines with `tools/call` in them reached an upstream.
    pub(crate) fn calls_at_upstream(&self) -> usize {
        self.upstream_lines()
            .iter()
            .filter(|line| contains(line, b"tools/call"))
            .count()
    }

    /// Whether any file beside the journal, or the journal itself, holds the text.
    pub(crate) fn files_hold(&self, text: &str) -> bool {
        std::fs::read_dir(self.journal().parent().unwrap())
            .unwrap()
            .any(|file| {
                contains(
                    &std::fs::read(file.unwrap().path()).unwrap(),
                    text.as_bytes(),
                )
            })
    }

    /// Runs a command of the operator's on this world's journal.
    pub(crate) fn operator(&self, words: &[&str]) -> Output {
        let mut command = self.command(checkpoint());
        command.args(words).arg("--journal").arg(self.journal());
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// `ls --json`, whole.
    pub(crate) fn ls_json(&self) -> Value {
        self.operator_json(&["ls", "--json"])
    }

    /// The entries of `ls --json`.
    pub(crate) fn entries(&self) -> Vec<Value> {
        let listing = self.ls_json();
        listing["entries"]
            .as_array()
            .unwrap_or_else(|| panic!("no entries in {listing}"))
            .clone()
    }

    /// The one entry with this seq.
    pub(crate) fn entry(&self, seq: u64) -> Value {
        let mut found = self.entries();
        found.retain(|entry| entry["seq"] == seq);
        assert_eq!(found.len(), 1, "entries with seq {seq}: {found:?}");
        found.remove(0)
    }

    /// Changes the journal behind everybody's back.
    pub(crate) fn sql(&self, text: &str) {
        let db = rusqlite::Connection::open(self.journal()).unwrap();
        db.execute_batch(text).unwrap();
    }

    /// The status of the entry with this seq.
    pub(crate) fn status(&self, seq: u64) -> String {
        self.entry(seq)["status"].as_str().unwrap().to_owned()
    }

    pub(crate) fn show_json(&self, seq: u64) -> Value {
        self.operator_json(&["show", &seq.to_string(), "--json"])
    }

    fn operator_json(&self, words: &[&str]) -> Value {
        let output = self.operator(words);
        let out = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {out}\n{err}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{words:?}: {error}: {out}"))
    }

    /// A command with this world's environment and nothing of the machine's but `PATH`.
    pub(crate) fn command(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new(program.into());
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder())
            .env("TMPDIR", self.folder())
            .env("LANG", "C.UTF-8")
            .env("USER", "tester")
            .env("SCRIPTED_EFFECTS", self.path("effects"))
            .env("SCRIPTED_LINES", self.path("lines"))
            .env("SCRIPTED_SENT", self.path("sent"))
            .env("SCRIPTED_GATE", self.path("bench"))
            .current_dir(self.folder());
        command
    }

    /// Waits until a call has come to the bench under this name; returns its process id.
    pub(crate) fn wait_held(&self, name: &str) -> i32 {
        self.bench
            .wait_held(name, 1, DEADLINE)
            .unwrap_or_else(|| panic!("nobody came to hold {name:?}"))
    }

    /// Waits until so many calls wait at the bench under this name.
    pub(crate) fn wait_held_count(&self, name: &str, count: usize) {
        self.bench
            .wait_held(name, count, DEADLINE)
            .unwrap_or_else(|| panic!("fewer than {count} came to hold {name:?}"));
    }

    /// Lets all that wait under this name go on.
    pub(crate) fn release(&self, name: &str) {
        self.bench.release(name);
    }

    /// The process id of the `number`th process of this role that said hello, from 1.
    pub(crate) fn pid_of(&self, role: &str, number: usize) -> i32 {
        self.bench
            .wait_hello(role, number, DEADLINE)
            .unwrap_or_else(|| panic!("no {role} number {number} said hello"))
    }

    /// Waits until the process with this id, which had said hello, has ended.
    pub(crate) fn wait_gone(&self, pid: i32, limit: Duration) {
        assert!(
            self.bench.wait_gone(pid, limit),
            "process {pid} still lives after {limit:?}"
        );
    }

    /// Whether any upstream or grandchild ever said hello.
    pub(crate) fn is_upstream_seen(&self) -> bool {
        self.bench.has_heard()
    }
}

impl Drop for World {
    /// Leaves no process behind, also where the proxy under test did.
    fn drop(&mut self) {
        for pid in self.bench.living() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

pub(crate) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Whether a process lives: it is there and is no zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    !matches!(state, Some('Z' | 'X') | None)
}

/// How long a process has used a processor, in ticks (a hundred a second).
pub(crate) fn cpu_ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(") ").next().unwrap();
    let times = after_name.split(' ').skip(11).take(2);
    times.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// The most memory that a process ever had, in bytes.
pub(crate) fn peak_memory(pid: i32) -> u64 {
    memory_field(pid, "VmHWM:")
}

/// The memory that a process has, in bytes.
pub(crate) fn memory(pid: i32) -> u64 {
    memory_field(pid, "VmRSS:")
}

fn memory_field(pid: i32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.unwrap().parse::<u64>().unwrap() << 10
}

fn byte_lines(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap_or_default();
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect()
}

fn json_lines(path: &Path) -> Vec<Value> {
    byte_lines(path)
        .iter()
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

/// All that a command said, on both streams.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs an operator's command that must end with this code; returns all that it says.
#[track_caller]
pub(crate) fn run(world: &World, code: i32, words: &[&str]) -> String {
    let output = world.operator(words);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{words:?}: {}",
        text(&output)
    );
    text(&output)
}
