//! The driver: raw lines into a process, raw lines out of it, and the time between.

use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::log;
use crate::roles::START;

/// How long an answer may take before the run is given up.
const PATIENCE_MS: u16 = 60_000;

/// How much of a line is looked at.
const HEAD_BYTES: usize = 512;

/// What stands between the driver and the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// Nothing.
    Direct,
    /// The relay.
    Relay,
    /// The relay with two synced writes a call, into this file; two commits of bare SQLite, if
    /// it is a `.db`, and of the product's own rows, if it is a `.journal`.
    Synced(PathBuf),
    /// `checkpoint` without a journal.
    Pass,
    /// `checkpoint` with this journal.
    Journal(PathBuf),
    /// The same with `--durability deferred`.
    Deferred(PathBuf),
    /// A thin proxy of others: its command, to which the upstream's is added.
    Thin(Vec<String>),
    /// Another, on a disk whose syncs take so much longer: `strace` holds each up.
    Slow(Box<Between>, Duration),
}

/// A process that answers calls.
pub(crate) struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    read: Vec<u8>,
    /// What was read and ends in no line end yet: only how long it is, and its first bytes.
    begun: Vec<u8>,
    /// The first bytes of the last whole line.
    last: Vec<u8>,
    line: Vec<u8>,
    next_id: u64,
    pad: Vec<u8>,
}

/// What the calls of a run carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// The text's size, in bytes.
    pub(crate) text_bytes: usize,
    /// Sequence numbers are drawn from 1 to this; 0: none are sent.
    pub(crate) seqs: u64,
    /// How far the next number is from the last.
    pub(crate) stride: u64,
}

impl Load {
    /// New calls with a text of so many bytes.
    pub(crate) fn of(text_bytes: usize) -> Self {
        Self {
            text_bytes,
            seqs: 0,
            stride: 1,
        }
    }

    /// Calls that walk the sequence numbers from 1 to `seqs` in order.
    pub(crate) fn in_order(text_bytes: usize, seqs: u64) -> Self {
        Self {
            text_bytes,
            seqs,
            stride: 1,
        }
    }

    /// The same calls, spread over the whole journal.
    pub(crate) fn spread(text_bytes: usize, seqs: u64) -> Self {
        Self {
            text_bytes,
            seqs,
            // Without a factor in common with a power of ten.
            stride: 7_919_777,
        }
    }
}

impl Peer {
    /// Starts a process; `result_bytes` are what its upstream answers with, `None`: its own text.
    pub(crate) fn spawn(between: &Between, result_bytes: Option<usize>) -> io::Result<Self> {
        Self::start(command(between, result_bytes)?)
    }

    fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        fcntl(&input, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self {
            child,
            input: Some(input),
            output,
            read: vec![0; 1 << 20],
            begun: Vec::new(),
            last: Vec::new(),
            line: Vec::new(),
            next_id: 1,
            pad: Vec::new(),
        })
    }

    /// Starts a process and greets it, as every client does.
    pub(crate) fn ready(between: &Between, result_bytes: Option<usize>) -> io::Result<Self> {
        let mut peer = Self::spawn(between, result_bytes)?;
        peer.greet()?;
        Ok(peer)
    }

    /// Says hello and waits for the answer.
    pub(crate) fn greet(&mut self) -> io::Result<()> {
        let hello = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"ratios","version":"1"}}}
"#;
        self.exchange(hello.to_vec(), 1)?;
        let mut note = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_vec();
        note.push(b'\n');
        self.exchange(note, 0)?;
        Ok(())
    }

    /// Makes one call and checks that its own text comes back.
    pub(crate) fn probe(&mut self, load: Load) -> io::Result<()> {
        let text = format!("\"{:010}", self.next_id);
        self.sequential(load, 1)?;
        if memchr::memmem::find(&self.last, text.as_bytes()).is_some() {
            return Ok(());
        }
        let found = String::from_utf8_lossy(&self.last);
        Err(io::Error::other(format!("another answer: {found}")))
    }

    /// Makes `count` calls, one at a time, and returns how long each took.
    pub(crate) fn sequential(&mut self, load: Load, count: usize) -> io::Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            self.put_call(load);
            let line = std::mem::take(&mut self.line);
            let start = Instant::now();
            self.line = self.exchange(line, 1)?;
            times.push(start.elapsed());
            self.line.clear();
        }
        Ok(times)
    }

    /// Makes `count` calls, `in_flight` at any time, and returns how long all of it took.
    pub(crate) fn pipelined(
        &mut self,
        load: Load,
        count: usize,
        in_flight: usize,
    ) -> io::Result<Duration> {
        let start = Instant::now();
        let mut sent = 0;
        let mut answered = 0;
        let mut written = 0;
        while answered < count {
            while sent < count && sent - answered < in_flight {
                self.put_call(load);
                sent += 1;
            }
            written += self.write_some(written)?;
            if written == self.line.len() {
                self.line.clear();
                written = 0;
            }
            match self.read_some()? {
                0 => self.wait(written < self.line.len())?,
                lines => answered += lines,
            }
        }
        Ok(start.elapsed())
    }

    /// Writes `line` and waits for `answers` lines; returns the line's memory.
    fn exchange(&mut self, line: Vec<u8>, answers: usize) -> io::Result<Vec<u8>> {
        self.line = line;
        let mut written = 0;
        let mut answered = 0;
        while written < self.line.len() || answered < answers {
            if written < self.line.len() {
                written += self.write_some(written)?;
            }
            let is_writing = written < self.line.len();
            if is_writing || answered < answers {
                self.wait(is_writing)?;
                answered += self.read_some()?;
            }
        }
        Ok(std::mem::take(&mut self.line))
    }

    fn put_call(&mut self, load: Load) {
        let id = self.next_id;
        self.next_id += 1;
        let mut text = id;
        let line = &mut self.line;
        line.extend_from_slice(START);
        let _ = write!(line, r#"{id},"method":"tools/call","params":{{"#);
        if load.seqs > 0 {
            text = (id - 1).wrapping_mul(load.stride) % load.seqs + 1;
            let _ = write!(line, r#""_meta":{{"checkpoint_seq":{text}}},"#);
        }
        let _ = write!(line, r#""name":"echo","arguments":{{"text":"{text:010}"#);
        if self.pad.len() != load.text_bytes.saturating_sub(10) {
            self.pad = vec![b'a'; load.text_bytes.saturating_sub(10)];
        }
        line.extend_from_slice(&self.pad);
        line.extend_from_slice(b"\"}}}\n");
    }

    fn write_some(&mut self, from: usize) -> io::Result<usize> {
        if from == self.line.len() {
            return Ok(0);
        }
        let input = self.input.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        match nix::unistd::write(input, &self.line[from..]) {
            Ok(count) => Ok(count),
            Err(Errno::EAGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what is there and returns how many lines ended in it.
    fn read_some(&mut self) -> io::Result<usize> {
        let count = match nix::unistd::read(&self.output, &mut self.read) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(Errno::EAGAIN) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let mut rest = &self.read[..count];
        let mut lines = 0;
        while let Some(at) = memchr::memchr(b'\n', rest) {
            let room = HEAD_BYTES.saturating_sub(self.begun.len());
            self.begun.extend_from_slice(&rest[..at.min(room)]);
            let has = |part: &[u8]| memchr::memmem::find(&self.begun, part).is_some();
            // A refusal would be quick, and no answer. What is only told counts for nothing.
            if has(b"\"result\":{\"") && !has(b"\"isError\":true") {
                lines += 1;
            } else if !has(b"\"method\":\"notifications/") {
                let text = String::from_utf8_lossy(&rest[..at.min(400)]).into_owned();
                return Err(io::Error::other(format!("no result: {text}")));
            }
            std::mem::swap(&mut self.begun, &mut self.last);
            self.begun.clear();
            rest = &rest[at + 1..];
        }
        let room = HEAD_BYTES.saturating_sub(self.begun.len());
        self.begun.extend_from_slice(&rest[..rest.len().min(room)]);
        Ok(lines)
    }

    fn wait(&self, is_writing: bool) -> io::Result<()> {
        let mut fds = vec![PollFd::new(self.output.as_fd(), PollFlags::POLLIN)];
        if let Some(input) = self.input.as_ref().filter(|_| is_writing) {
            fds.push(PollFd::new(input.as_fd(), PollFlags::POLLOUT));
        }
        match poll(&mut fds, PollTimeout::from(PATIENCE_MS)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns a value of the process's status, in KiB.
    pub(crate) fn status_kib(&self, name: &str) -> io::Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|value| value.split_whitespace().next()?.parse().ok());
        value.ok_or_else(|| io::Error::other(format!("no {name}")))
    }

    /// Returns how long the process has been running on a processor, all its threads.
    pub(crate) fn cpu(&self) -> io::Result<Duration> {
        let mut total = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let nanos = text.split_whitespace().next();
            total += nanos
                .and_then(|nanos| nanos.parse::<u64>().ok())
                .unwrap_or(0);
        }
        Ok(Duration::from_nanos(total))
    }

    /// Closes its input and waits until it has ended.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.input = None;
        self.child.wait()?;
        Ok(())
    }
}

/// Returns the command of what stands between the driver and the upstream, the upstream's within.
fn command(between: &Between, result_bytes: Option<usize>) -> io::Result<Command> {
    let me = std::env::current_exe()?;
    let checkpoint = env!("CARGO_BIN_EXE_checkpoint");
    let mut command = match between {
        Between::Direct => {
            let mut command = Command::new(&me);
            command.args(["--role", "echo"]);
            command
        }
        Between::Relay => {
            let mut command = Command::new(&me);
            command.args(["--role", "relay", "-"]);
            command
        }
        Between::Synced(path) => {
            log::prepare(path)?;
            let mut command = Command::new(&me);
            command.args(["--role", "relay"]).arg(path);
            command
        }
        Between::Pass | Between::Journal(_) | Between::Deferred(_) => {
            let mut command = Command::new(checkpoint);
            let names = [
                "JOURNAL",
                "UPSTREAM_CMD",
                "WORKFLOW_ID",
                "POLICY",
                "LOG",
                "DURABILITY",
            ];
            for name in names {
                command.env_remove(format!("CHECKPOINT_{name}"));
            }
            if let Between::Journal(path) | Between::Deferred(path) = between {
                command.arg("--journal").arg(path);
            }
            if matches!(between, Between::Deferred(_)) {
                command.args(["--durability", "deferred"]);
            }
            command.arg("--").arg(&me).args(["--role", "echo"]);
            command
        }
        Between::Slow(inner, longer) => {
            let inner = command(inner, result_bytes)?;
            let mut command = Command::new("strace");
            command
                .args(["-f", "--seccomp-bpf", "-qq", "-o", "/dev/null"])
                .args(["-e", "trace=fdatasync", "-e"])
                .arg(format!(
                    "inject=fdatasync:delay_enter={}",
                    longer.as_micros()
                ))
                .arg(inner.get_program())
                .args(inner.get_args());
            for (name, _) in inner.get_envs().filter(|(_, value)| value.is_none()) {
                command.env_remove(name);
            }
            return Ok(command);
        }
        Between::Thin(words) => {
            let (program, args) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
            let mut command = Command::new(program);
            command.args(args).arg(&me).args(["--role", "echo"]);
            command
        }
    };
    if let Some(bytes) = result_bytes {
        command.arg(bytes.to_string());
    }
    Ok(command)
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.input = None;
        // It ends by itself when its input does; one that does not is ended here.
        let deadline = Instant::now() + Duration::from_secs(3);
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
