//! A running proxy and our ends of its pipes; every wait has a deadline.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::call::{Call, assert_done, is_answer_to};
use crate::world::{DEADLINE, World};

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
    pub(crate) fn start(mut command: Command) -> Proxy {
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

    /// The next line, however long it takes to make, within this limit.
    pub(crate) fn recv_line_within(&mut self, limit: Duration) -> Vec<u8> {
        assert!(self.stash.is_empty());
        let line = self.read_line(limit).flatten();
        line.unwrap_or_else(|| panic!("no line came\n{}", self.stderr_now()))
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

    /// Waits until every call that was sent before has been decided: one more call was, and is
    /// answered. (A ping would not do, it may overtake a call that waits for its reservation.)
    pub(crate) fn await_decided(&mut self) {
        let barrier = Call::new("decided-it", "read_balance", json!({}));
        let answer = self.call(&barrier);
        assert_done(&answer);
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

    /// Takes the proxy's input, for a thread that writes to it.
    pub(crate) fn take_stdin(&mut self) -> ChildStdin {
        self.stdin.take().expect("stdin is still open")
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

    /// Stops the proxy, until it gets SIGCONT, and waits until all of its threads stand still.
    ///
    /// Whoever is stopped in the middle of a commit holds the journal until it goes on, and
    /// everybody waits for it. A test that is about the stopped one's call and not about its lock
    /// must not hit that moment, so this one has the journal to itself while it stops the proxy.
    pub(crate) fn stall(&self, world: &World) {
        let journal = rusqlite::Connection::open(world.journal()).unwrap();
        journal.busy_timeout(DEADLINE).unwrap();
        journal.execute_batch("BEGIN IMMEDIATE").unwrap();
        self.signal(Signal::SIGSTOP);
        let stopped = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT;
        let status = waitid(Id::Pid(Pid::from_raw(self.pid)), stopped).unwrap();
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
        journal.execute_batch("ROLLBACK").unwrap();
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
