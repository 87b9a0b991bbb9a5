//! A test's own world: a folder, a journal's place, the scripted upstream's logs, a bench.
//!
//! Nothing here sleeps. What a test waits for is an event: a line on a pipe, the end of a process,
//! a call that has come to the bench. Each wait has a deadline and fails with all that was heard.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// How long anything may take before a test calls it hung.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) const UPSTREAM: &str = env!("CARGO_BIN_EXE_scripted-upstream");

/// Set, no proxy is started: the tests talk to the upstream itself (to try the harness alone).
const DIRECT: &str = "CHECKPOINT_IT_DIRECT";

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

    /// A proxy with a journal before the scripted upstream.
    pub(crate) fn proxy(&self) -> Setup<'_> {
        Setup {
            world: self,
            flags: Vec::new(),
            journal: Some(self.journal()),
            upstream: Upstream::Scripted(Vec::new()),
            env: Vec::new(),
            wrapper: Vec::new(),
            is_direct: std::env::var_os(DIRECT).is_some(),
        }
    }

    /// The scripted upstream itself, without a proxy.
    pub(crate) fn direct(&self) -> Setup<'_> {
        let mut setup = self.proxy();
        setup.is_direct = true;
        setup
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
        !self.bench.told.lock().unwrap().hellos.is_empty()
    }
}

impl Drop for World {
    /// Leaves no process behind, also where the proxy under test did.
    fn drop(&mut self) {
        let told = self
            .bench
            .told
            .lock()
            .unwrap_or_else(|told| told.into_inner());
        for (_, pid) in &told.hellos {
            // An open connection is a living process, so the id is still its own.
            if !told.gone.contains(pid) {
                let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
            }
        }
    }
}

/// What runs behind the proxy.
enum Upstream {
    /// The scripted one, with options, after `--`.
    Scripted(Vec<String>),
    /// The scripted one, with options, as `--upstream-cmd`.
    Shell(String),
    /// Another program and its arguments, after `--`.
    Program(Vec<OsString>),
}

/// How a proxy is to be started.
pub(crate) struct Setup<'w> {
    world: &'w World,
    flags: Vec<OsString>,
    journal: Option<PathBuf>,
    upstream: Upstream,
    env: Vec<(String, OsString)>,
    wrapper: Vec<OsString>,
    is_direct: bool,
}

impl Setup<'_> {
    pub(crate) fn flags<I: IntoIterator<Item: Into<OsString>>>(mut self, flags: I) -> Self {
        self.flags.extend(flags.into_iter().map(Into::into));
        self
    }

    pub(crate) fn journal(mut self, path: impl Into<PathBuf>) -> Self {
        self.journal = Some(path.into());
        self
    }

    pub(crate) fn without_journal(mut self) -> Self {
        self.journal = None;
        self
    }

    /// Options of the scripted upstream.
    pub(crate) fn upstream(mut self, options: &[&str]) -> Self {
        let options = options.iter().map(|word| (*word).to_owned()).collect();
        self.upstream = Upstream::Scripted(options);
        self
    }

    /// A shell command; `$UPSTREAM` in it is the scripted upstream's path.
    pub(crate) fn shell(mut self, command: &str) -> Self {
        self.upstream = Upstream::Shell(command.to_owned());
        self.env("UPSTREAM", UPSTREAM)
    }

    pub(crate) fn program<I: IntoIterator<Item: Into<OsString>>>(mut self, words: I) -> Self {
        self.upstream = Upstream::Program(words.into_iter().map(Into::into).collect());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// A program that runs the proxy, such as `strace -o FILE`.
    pub(crate) fn wrapper<I: IntoIterator<Item: Into<OsString>>>(mut self, words: I) -> Self {
        self.wrapper = words.into_iter().map(Into::into).collect();
        self
    }

    /// The whole command line.
    fn words(&self) -> Vec<OsString> {
        let mut words = self.wrapper.clone();
        if self.is_direct {
            match &self.upstream {
                Upstream::Scripted(options) => {
                    words.push(UPSTREAM.into());
                    words.extend(options.iter().map(OsString::from));
                }
                Upstream::Shell(command) => {
                    words.extend(["/bin/sh".into(), "-c".into(), command.into()]);
                }
                Upstream::Program(program) => words.extend(program.iter().cloned()),
            }
            return words;
        }
        words.push(checkpoint());
        words.extend(self.flags.iter().cloned());
        if let Some(journal) = &self.journal {
            words.extend(["--journal".into(), journal.into()]);
        }
        match &self.upstream {
            Upstream::Scripted(options) => {
                words.extend(["--".into(), UPSTREAM.into()]);
                words.extend(options.iter().map(OsString::from));
            }
            Upstream::Shell(command) => words.extend(["--upstream-cmd".into(), command.into()]),
            Upstream::Program(program) => {
                words.push("--".into());
                words.extend(program.iter().cloned());
            }
        }
        words
    }

    fn command(&self) -> Command {
        let words = self.words();
        let mut command = self.world.command(&words[0]);
        command.args(&words[1..]);
        command.envs(self.env.iter().cloned());
        command
    }

    pub(crate) fn start(self) -> Proxy {
        Proxy::start(self.command())
    }

    /// Runs to the end with this input; for command lines that are refused.
    pub(crate) fn run(self, input: &[u8]) -> Output {
        let mut proxy = self.start();
        proxy.send_raw(input);
        proxy.close_stdin();
        let status = proxy.wait();
        let mut stdout = Vec::new();
        while let Some(line) = proxy.next_line() {
            stdout.extend_from_slice(&line);
        }
        Output {
            status,
            stdout,
            stderr: proxy.stderr_to_end().into_bytes(),
        }
    }
}

/// A running proxy and our ends of its pipes.
pub(crate) struct Proxy {
    pid: i32,
    stdin: Option<ChildStdin>,
    lines: Option<Receiver<Vec<u8>>>,
    /// Its end makes the reader drop its end of the proxy's stdout.
    reading: Option<UnixStream>,
    is_paused: Arc<Mutex<()>>,
    stash: Vec<Vec<u8>>,
    stderr: Arc<Mutex<Vec<u8>>>,
    stderr_ended: Receiver<()>,
    ended: Receiver<ExitStatus>,
    status: Option<ExitStatus>,
}

impl Proxy {
    fn start(mut command: Command) -> Proxy {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stderr = Arc::default();
        let stderr_ended = read_all(child.stderr.take().unwrap(), Arc::clone(&stderr));
        let (reading, stop) = UnixStream::pair().unwrap();
        let is_paused = Arc::default();
        let lines = read_lines(child.stdout.take().unwrap(), stop, Arc::clone(&is_paused));
        Proxy {
            pid: i32::try_from(child.id()).unwrap(),
            stdin: child.stdin.take(),
            lines: Some(lines),
            reading: Some(reading),
            is_paused,
            stash: Vec::new(),
            stderr,
            stderr_ended,
            ended: await_end(child),
            status: None,
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends one line; the newline is added here.
    pub(crate) fn send(&mut self, line: impl ToString) {
        let mut line = line.to_string().into_bytes();
        line.push(b'\n');
        self.send_raw(&line);
    }

    /// Sends exactly these bytes. A proxy that no longer reads is the test's to notice.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("stdin is still open");
        let _ = stdin.write_all(bytes).and_then(|()| stdin.flush());
    }

    /// The next line with its newline, or nothing at the end of the output.
    pub(crate) fn next_line(&mut self) -> Option<Vec<u8>> {
        if !self.stash.is_empty() {
            return Some(self.stash.remove(0));
        }
        self.read_line(DEADLINE)
            .unwrap_or_else(|| panic!("no line came\n{}", self.stderr_now()))
    }

    /// The next line if it comes in time: `None` for the deadline, `Some(None)` for the end.
    fn read_line(&mut self, limit: Duration) -> Option<Option<Vec<u8>>> {
        match self.lines.as_ref()?.recv_timeout(limit) {
            Ok(line) => Some(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Some(None),
            Err(RecvTimeoutError::Timeout) => None,
        }
    }

    /// The next line, which must come.
    pub(crate) fn recv_line(&mut self) -> Vec<u8> {
        self.next_line()
            .unwrap_or_else(|| panic!("the output ended\n{}", self.stderr_now()))
    }

    /// The next line as JSON.
    pub(crate) fn recv(&mut self) -> Value {
        let line = self.recv_line();
        serde_json::from_slice(&line)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&line)))
    }

    /// The line that answers this id; others are kept for later.
    pub(crate) fn recv_id_line(&mut self, id: &Value) -> Vec<u8> {
        let mut passed_by = Vec::new();
        loop {
            let Some(line) = self.next_line() else {
                let passed: Vec<_> = passed_by
                    .iter()
                    .map(|line: &Vec<u8>| String::from_utf8_lossy(line).into_owned())
                    .collect();
                panic!(
                    "the output ended before an answer to {id}; heard {passed:?}\n{}",
                    self.stderr_now()
                );
            };
            if is_answer_to(&line, id) {
                passed_by.append(&mut self.stash);
                self.stash = passed_by;
                return line;
            }
            passed_by.push(line);
        }
    }

    /// The answer to this id.
    pub(crate) fn recv_id(&mut self, id: impl Into<Value>) -> Value {
        let line = self.recv_id_line(&id.into());
        serde_json::from_slice(&line).unwrap()
    }

    /// Whether the answer to this id comes within the time; other lines are kept.
    pub(crate) fn recv_id_within(&mut self, id: i64, limit: Duration) -> Option<Value> {
        let end = Instant::now() + limit;
        let is_it = |line: &Vec<u8>| is_answer_to(line, &json!(id));
        if let Some(place) = self.stash.iter().position(is_it) {
            return serde_json::from_slice(&self.stash.remove(place)).ok();
        }
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.read_line(left)??;
            if is_answer_to(&line, &json!(id)) {
                return serde_json::from_slice(&line).ok();
            }
            self.stash.push(line);
        }
    }

    /// Sends a request and returns its answer.
    pub(crate) fn request(&mut self, id: impl Into<Value>, method: &str, params: Value) -> Value {
        let id = id.into();
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        self.recv_id(id)
    }

    /// The handshake of the `initialize` revisions.
    pub(crate) fn initialize(&mut self) {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "it", "version": "1"},
        });
        let answer = self.request("init", "initialize", params);
        assert!(answer["result"]["protocolVersion"].is_string(), "{answer}");
        self.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    /// Asserts that other traffic passes, and that all sent before has been read.
    pub(crate) fn assert_ping(&mut self) {
        let answer = self.request("ping-it", "ping", json!({}));
        assert_eq!(answer["result"], json!({}), "{answer}");
    }

    /// Waits until the upstream has sent the answers of all calls that it runs.
    pub(crate) fn await_quiet(&mut self) {
        let answer = self.request("quiet-it", "x/quiet", json!({}));
        assert_eq!(answer["result"], json!({}), "{answer}");
    }

    /// Tells the upstream that a request was given up.
    pub(crate) fn cancel(&mut self, id: impl Into<Value>) {
        let params = json!({"requestId": id.into(), "reason": "it"});
        let method = "notifications/cancelled";
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    pub(crate) fn send_call(&mut self, call: &Call) {
        self.send(call.line());
    }

    /// Sends a call and returns its answer.
    pub(crate) fn call(&mut self, call: &Call) -> Value {
        self.send_call(call);
        self.recv_id(call.id.clone())
    }

    /// Sends a call and returns its answer's line.
    pub(crate) fn call_line(&mut self, call: &Call) -> Vec<u8> {
        self.send_call(call);
        self.recv_id_line(&call.id)
    }

    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Closes both pipes, as the end of a client does.
    pub(crate) fn drop_client(&mut self) {
        self.stdin = None;
        self.drop_output();
    }

    /// Closes our end of the proxy's stdout, which is a broken pipe to it.
    pub(crate) fn drop_output(&mut self) {
        self.reading = None;
        if let Some(lines) = self.lines.take() {
            // The reader's end of the channel closes after its end of the pipe.
            while lines.recv().is_ok() {}
        }
    }

    /// Runs something while nobody reads the proxy's stdout.
    pub(crate) fn while_paused<T>(&mut self, run: impl FnOnce(&mut Proxy) -> T) -> T {
        let is_paused = Arc::clone(&self.is_paused);
        let _paused = is_paused.lock().unwrap();
        run(self)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            kill(Pid::from_raw(self.pid), signal).unwrap();
        }
    }

    /// Ends the proxy as a crash does and waits for its end.
    pub(crate) fn kill9(&mut self) {
        self.signal(Signal::SIGKILL);
        assert_eq!(self.wait().signal(), Some(9));
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.wait_within(DEADLINE)
    }

    pub(crate) fn wait_within(&mut self, limit: Duration) -> ExitStatus {
        if let Some(status) = self.status {
            return status;
        }
        let status = self.ended.recv_timeout(limit).unwrap_or_else(|_| {
            panic!("the proxy lives on after {limit:?}\n{}", self.stderr_now())
        });
        self.status = Some(status);
        status
    }

    /// Waits for the end and returns the code.
    pub(crate) fn wait_code(&mut self) -> i32 {
        let status = self.wait();
        status
            .code()
            .unwrap_or_else(|| panic!("ended by {:?}\n{}", status.signal(), self.stderr_now()))
    }

    /// Ends the input, expects a clean end.
    pub(crate) fn stop(mut self) {
        self.close_stdin();
        assert_eq!(self.wait_code(), 0, "{}", self.stderr_now());
    }

    /// Ends as [`Proxy::stop`] does and shows all of stderr.
    pub(crate) fn stop_and_read(mut self, check: impl FnOnce(&str)) {
        self.close_stdin();
        assert_eq!(self.wait_code(), 0, "{}", self.stderr_now());
        check(&self.stderr_to_end());
    }

    pub(crate) fn stderr_now(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().unwrap()).into_owned()
    }

    /// All of stderr, after the end of all that hold it.
    pub(crate) fn stderr_to_end(&mut self) -> String {
        let ended = self.stderr_ended.recv_timeout(DEADLINE);
        assert_ne!(
            ended,
            Err(RecvTimeoutError::Timeout),
            "somebody still holds the proxy's stderr"
        );
        self.stderr_now()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if self.status.is_none() && self.ended.try_recv().is_err() {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
        if std::thread::panicking() {
            eprintln!("--- stderr of the proxy\n{}", self.stderr_now());
        }
    }
}

/// A `tools/call` in the making.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) id: Value,
    tool: String,
    arguments: Value,
    meta: serde_json::Map<String, Value>,
    params: serde_json::Map<String, Value>,
}

impl Call {
    pub(crate) fn new(id: impl Into<Value>, tool: &str, arguments: Value) -> Call {
        Call {
            id: id.into(),
            tool: tool.to_owned(),
            arguments,
            meta: serde_json::Map::new(),
            params: serde_json::Map::new(),
        }
    }

    /// The usual charge.
    pub(crate) fn charge(id: impl Into<Value>) -> Call {
        Call::new(id, "charge", json!({"order_id": "A-1", "amount": 100}))
    }

    pub(crate) fn seq(self, seq: impl Into<Value>) -> Call {
        self.meta("checkpoint_seq", seq)
    }

    pub(crate) fn meta(mut self, name: &str, value: impl Into<Value>) -> Call {
        self.meta.insert(name.to_owned(), value.into());
        self
    }

    /// What the upstream is to do with it; no part of the signature.
    pub(crate) fn script(self, script: Value) -> Call {
        self.meta("script", script)
    }

    pub(crate) fn param(mut self, name: &str, value: impl Into<Value>) -> Call {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    /// The stateless revision's `_meta`.
    pub(crate) fn modern(self) -> Call {
        self.meta("io.modelcontextprotocol/protocolVersion", "2026-07-28")
            .meta(
                "io.modelcontextprotocol/clientCapabilities",
                json!({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}),
            )
            .meta(
                "io.modelcontextprotocol/clientInfo",
                json!({"name": "it", "version": "1"}),
            )
    }

    pub(crate) fn line(&self) -> String {
        let mut params = self.params.clone();
        params.insert("name".into(), json!(self.tool));
        params.insert("arguments".into(), self.arguments.clone());
        if !self.meta.is_empty() {
            params.insert("_meta".into(), json!(self.meta));
        }
        json!({"jsonrpc": "2.0", "id": self.id, "method": "tools/call", "params": params})
            .to_string()
    }
}

/// The refusal in an answer, whichever of its two shapes it has.
#[track_caller]
pub(crate) fn refusal(answer: &Value) -> &Value {
    let data = &answer["error"]["data"];
    if data["kind"].is_string() {
        return data;
    }
    let data = &answer["result"]["structuredContent"];
    assert!(data["kind"].is_string(), "no refusal: {answer}");
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    data
}

/// Asserts a refusal of this kind, and what it says of the effect.
#[track_caller]
pub(crate) fn assert_refused(answer: &Value, kind: &str, side_effect: &str) {
    let data = refusal(answer);
    assert_eq!(data["kind"], kind, "{answer}");
    assert_eq!(data["side_effect"], side_effect, "{answer}");
}

/// Asserts an ordinary result.
#[track_caller]
pub(crate) fn assert_done(answer: &Value) {
    assert_eq!(answer["result"]["isError"], false, "{answer}");
}

/// The bytes of the member `result` of a line.
#[track_caller]
pub(crate) fn result_bytes(line: &[u8]) -> String {
    member_bytes(line, "result")
}

/// The bytes of a top-level member of a line.
#[track_caller]
pub(crate) fn member_bytes(line: &[u8], name: &str) -> String {
    let members: HashMap<String, Box<RawValue>> = serde_json::from_slice(line)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(line)));
    members
        .get(name)
        .unwrap_or_else(|| panic!("no {name}: {}", String::from_utf8_lossy(line)))
        .get()
        .to_owned()
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

fn is_answer_to(line: &[u8], id: &Value) -> bool {
    serde_json::from_slice::<Value>(line)
        .is_ok_and(|message| message["id"] == *id && message.get("method").is_none())
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

/// Reads lines until the pipe ends or `stop` does; then the pipe is dropped, and then the channel.
fn read_lines(
    pipe: std::process::ChildStdout,
    stop: UnixStream,
    is_paused: Arc<Mutex<()>>,
) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut pipe = pipe;
        let mut block = vec![0u8; 65536];
        let mut begun: Vec<u8> = Vec::new();
        loop {
            let mut ready = [
                PollFd::new(pipe.as_fd(), PollFlags::POLLIN),
                PollFd::new(stop.as_fd(), PollFlags::POLLIN),
            ];
            poll(&mut ready, PollTimeout::NONE).unwrap();
            if ready[1].any() == Some(true) {
                break;
            }
            drop(is_paused.lock().unwrap());
            let size = pipe.read(&mut block).unwrap_or(0);
            if size == 0 {
                break;
            }
            for part in block[..size].split_inclusive(|byte| *byte == b'\n') {
                begun.extend_from_slice(part);
                if part.ends_with(b"\n") {
                    let _ = sender.send(std::mem::take(&mut begun));
                }
            }
        }
        drop(pipe);
        if !begun.is_empty() {
            let _ = sender.send(begun);
        }
        drop(sender);
    });
    receiver
}

fn read_all(mut pipe: impl Read + Send + 'static, into: Arc<Mutex<Vec<u8>>>) -> Receiver<()> {
    let (ended, receiver) = channel();
    std::thread::spawn(move || {
        let _ended = ended;
        let mut block = [0u8; 8192];
        while let Ok(size @ 1..) = pipe.read(&mut block) {
            into.lock().unwrap().extend_from_slice(&block[..size]);
        }
    });
    receiver
}

fn await_end(mut child: Child) -> Receiver<ExitStatus> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        if let Ok(status) = child.wait() {
            let _ = sender.send(status);
        }
    });
    receiver
}

/// Where the scripted upstream says hello and waits to be let go.
struct Bench {
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Default)]
struct Told {
    hellos: Vec<(String, i32)>,
    gone: Vec<i32>,
    held: Vec<(String, i32, UnixStream)>,
    open: Vec<String>,
}

impl Bench {
    fn open(path: &Path) -> Arc<Bench> {
        let listener = UnixListener::bind(path).unwrap();
        let bench = Arc::new(Bench {
            told: Mutex::default(),
            changed: Condvar::new(),
        });
        let listening = Arc::clone(&bench);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let bench = Arc::clone(&listening);
                std::thread::spawn(move || bench.hear(stream));
            }
        });
        bench
    }

    fn hear(&self, stream: UnixStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        if reader.read_line(&mut line).is_err() {
            return;
        }
        let Ok(said) = serde_json::from_str::<Value>(&line) else {
            return;
        };
        let pid = said["pid"].as_i64().and_then(|pid| pid.try_into().ok());
        let pid: i32 = pid.unwrap_or_default();
        let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
        let mut told = self.told.lock().unwrap();
        if said["kind"] == "hold" {
            let name = text("name");
            if !told.open.contains(&name) {
                told.held.push((name, pid, stream));
            }
            self.changed.notify_all();
            return;
        }
        told.hellos.push((text("role"), pid));
        self.changed.notify_all();
        drop(told);
        let _ = reader.read(&mut [0u8; 1]);
        self.told.lock().unwrap().gone.push(pid);
        self.changed.notify_all();
    }

    fn wait<T>(&self, limit: Duration, find: impl Fn(&Told) -> Option<T>) -> Option<T> {
        let told = self.told.lock().unwrap();
        let (told, _) = self
            .changed
            .wait_timeout_while(told, limit, |told| find(told).is_none())
            .unwrap();
        find(&told)
    }

    fn wait_held(&self, name: &str, count: usize, limit: Duration) -> Option<i32> {
        self.wait(limit, |told| {
            let mut held = told.held.iter().filter(|(held, ..)| held == name);
            held.nth(count - 1).map(|(_, pid, _)| *pid)
        })
    }

    fn wait_hello(&self, role: &str, number: usize, limit: Duration) -> Option<i32> {
        self.wait(limit, |told| {
            let mut of_role = told.hellos.iter().filter(|(said, _)| said == role);
            of_role.nth(number - 1).map(|(_, pid)| *pid)
        })
    }

    fn wait_gone(&self, pid: i32, limit: Duration) -> bool {
        self.wait(limit, |told| told.gone.contains(&pid).then_some(()))
            .is_some()
    }

    /// Lets go those that wait and those that will still come.
    fn release(&self, name: &str) {
        let mut told = self.told.lock().unwrap();
        told.held.retain(|(held, ..)| held != name);
        told.open.push(name.to_owned());
    }
}
