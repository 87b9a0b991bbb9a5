//! Whoever a policy names is asked what became of a call in doubt, and believed only if clear.
//!
//! [`settle`] has the steps, the same whoever is asked; a tool of the upstream is asked by
//! `tool`, and what follows here is how a command is asked.
//!
//! Invariants:
//!
//! - The command gets the entry on its stdin and nothing else of ours: no descriptor, no lock, and
//!   no text of the wire in its arguments, so that no shell and no option parser ever sees one.
//! - It runs in a process group of its own, for a limited time; when [`ask`] returns, no process of
//!   that group is left.
//! - Whatever is not exactly one of the three verdicts, said by a command that ended with 0, is
//!   unknown: the entry stays in doubt, with all that was seen as evidence.
//!
//! Whether a question may be asked (the recorded upstream must be dead) and what a verdict does to
//! the entry is decided elsewhere. It blocks for as long as it takes, so it must not be called where
//! bytes are moved.

mod settle;
mod tool;

pub use settle::{Asks, Ledger, Probe, Settled, Word, settle};
pub use tool::{Heard, NoUpstream, ToolQuestion, Upstream};

use std::fmt;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, pipe2};

use super::group::ProcessGroup;
use super::pre_exec;
use crate::json::{self, Kind};
use crate::rules::entry::Entry;

/// How much of what it printed is kept as evidence, in bytes of each stream.
pub const EVIDENCE_BYTES_MAX: usize = 4096;

/// How much its stdout may hold beside the result, in bytes.
const WRAPPING_BYTES_MAX: usize = 64 << 10;

/// How long the end of a killed command is waited for.
const KILL_WAIT: Duration = Duration::from_secs(1);

/// How often it is looked whether they have ended that the command left behind.
const KILL_POLL: Duration = Duration::from_millis(2);

/// How much is read or written at a time, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// What is asked of whom.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The program and its arguments; a name without a slash is looked for in `PATH`.
    pub command: &'a [String],
    /// The entry, as [`EntryStory::to_json`] tells it.
    pub entry: &'a [u8],
    /// After which the answer is unknown.
    pub timeout: Duration,
    /// The largest result that is taken, in bytes.
    pub result_bytes_max: usize,
}

/// What became of the call in doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was executed, with this raw result: an object, on one line.
    Completed {
        /// The result.
        result: Vec<u8>,
    },
    /// It was not executed.
    NotExecuted,
    /// Nobody can say.
    Unknown(Unclear),
}

/// Why a verdict is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unclear {
    /// The command says so itself.
    Said,
    /// It could not be started, or not be talked to.
    NotStarted(String),
    /// It did not end in time, and was killed.
    TimedOut,
    /// It did not end with 0.
    Ended(ExitStatus),
    /// It printed more than a result may hold, and was killed.
    TooMuch,
    /// What it printed is none of the three verdicts.
    NoVerdict(&'static str),
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said => f.write_str("the command says that it is unknown"),
            Self::NotStarted(why) => write!(f, "the command could not be run: {why}"),
            Self::TimedOut => f.write_str("the command did not end in time"),
            Self::Ended(status) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "the command ended with code {code}"),
                (None, Some(signal)) => write!(f, "the command was ended by signal {signal}"),
                (None, None) => f.write_str("the command ended oddly"),
            },
            Self::TooMuch => f.write_str("the command printed too much"),
            Self::NoVerdict(why) => write!(f, "the command printed no verdict: {why}"),
        }
    }
}

/// A verdict and what was seen of the command that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The verdict.
    pub verdict: Verdict,
    /// How the command ended, where it did.
    pub status: Option<ExitStatus>,
    /// The first [`EVIDENCE_BYTES_MAX`] bytes of its stdout.
    pub stdout: Vec<u8>,
    /// The last [`EVIDENCE_BYTES_MAX`] bytes of its stderr.
    pub stderr: Vec<u8>,
    /// How long it took.
    pub elapsed: Duration,
}

impl Answer {
    /// Returns what was seen as a JSON object on one line, for an event: `verdict`, `why` of an
    /// unknown one, `exit_code` or `signal`, `stdout`, `stderr`, `elapsed_ms`.
    #[must_use]
    pub fn evidence(&self) -> String {
        let (verdict, why) = match &self.verdict {
            Verdict::Completed { .. } => ("completed", None),
            Verdict::NotExecuted => ("not_executed", None),
            Verdict::Unknown(unclear) => ("unknown", Some(unclear.to_string())),
        };
        let mut text = format!(r#"{{"verdict":"{verdict}""#);
        if let Some(why) = why {
            text += &format!(r#","why":{}"#, json::quote(&why));
        }
        if let Some(code) = self.status.and_then(|status| status.code()) {
            text += &format!(r#","exit_code":{code}"#);
        }
        if let Some(signal) = self.status.and_then(|status| status.signal()) {
            text += &format!(r#","signal":{signal}"#);
        }
        text + &format!(
            r#","stdout":{},"stderr":{},"elapsed_ms":{}}}"#,
            json::quote_bytes(&self.stdout),
            json::quote_bytes(&self.stderr),
            self.elapsed.as_millis()
        )
    }
}

/// What a reconcile command is told about a call in doubt.
#[derive(Clone, Copy, Debug)]
pub struct EntryStory<'a> {
    /// The workflow.
    pub workflow_id: &'a str,
    /// The branch's number within it.
    pub branch: u32,
    /// The entry.
    pub entry: &'a Entry,
    /// The key that a policy's `pass_key` handed to the upstream, or would have.
    pub idempotency_key: &'a str,
    /// The raw arguments; `None` where the call had none or the journal does not hold them.
    pub arguments: Option<&'a [u8]>,
    /// The journal does not hold the arguments on purpose.
    pub is_redacted: bool,
}

impl EntryStory<'_> {
    /// Returns the story as a JSON object on one line, with the names of the journal's schema.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let entry = self.entry;
        let optional = |text: Option<&str>| text.map_or_else(|| "null".to_owned(), json::quote);
        let created_at = jiff::Timestamp::from_microsecond(entry.created_at.0)
            .map_or_else(|_| "null".to_owned(), |at| format!("\"{at:.6}\""));
        let key = entry.key.as_ref();
        let arguments = self.arguments.map_or("null".into(), |raw| {
            String::from_utf8_lossy(raw).replace(['\n', '\r'], " ")
        });
        format!(
            r#"{{"workflow_id":{},"branch":{},"seq":{},"tool":{},"status":"{}","attempt":{},"fence":{},"created_at":{created_at},"signature":"{}","key":{},"window":{},"call_id":{},"idempotency_key":{},"redacted":{},"arguments":{arguments}}}"#,
            json::quote(self.workflow_id),
            self.branch,
            entry.seq,
            json::quote(&entry.tool),
            entry.status.name(),
            entry.attempt,
            entry.fence,
            entry.signature,
            optional(key.map(|held| held.key.as_str())),
            optional(key.map(|held| held.window.name())),
            optional(entry.call_id.as_deref()),
            json::quote(self.idempotency_key),
            self.is_redacted,
        )
        .into_bytes()
    }
}

/// Runs the command and returns what it says. Blocks until it has ended or was killed.
#[must_use]
pub fn ask(question: &Question<'_>) -> Answer {
    let began = Instant::now();
    let mut seen = Seen::new(question.result_bytes_max.saturating_add(WRAPPING_BYTES_MAX));
    let end = match start(question.command) {
        Ok(child) => attend(child, question, began, &mut seen),
        Err(error) => Err(Unclear::NotStarted(error.to_string())),
    };
    let verdict = match &end {
        Err(unclear) => Verdict::Unknown(unclear.clone()),
        Ok(status) if !status.success() => Verdict::Unknown(Unclear::Ended(*status)),
        Ok(_) if seen.is_too_much => Verdict::Unknown(Unclear::TooMuch),
        Ok(_) => read_verdict(&seen.stdout),
    };
    seen.stdout.truncate(EVIDENCE_BYTES_MAX);
    Answer {
        verdict,
        status: end.ok(),
        stdout: seen.stdout,
        stderr: seen.stderr,
        elapsed: began.elapsed(),
    }
}

/// Reads what a command printed: one JSON object and white space.
#[must_use]
pub fn read_verdict(stdout: &[u8]) -> Verdict {
    let no_verdict = |why| Verdict::Unknown(Unclear::NoVerdict(why));
    let raw = json::trim(stdout);
    if json::check(raw).is_err() {
        return no_verdict("it is not one JSON value");
    }
    if !json::is_object(raw) {
        return no_verdict("it is no object");
    }
    if json::find_duplicate(raw).is_some() {
        return no_verdict("two of its members have the same name");
    }
    let verdict = json::member(raw, "verdict").and_then(json::text);
    let result = json::member(raw, "result");
    match (verdict.as_deref(), result) {
        (Some("completed"), Some(result)) if json::is_object(result) => Verdict::Completed {
            // In legal JSON a raw line end can only be white space, and a result is one line.
            result: json::trim(result)
                .iter()
                .map(|byte| {
                    if matches!(byte, b'\n' | b'\r') {
                        b' '
                    } else {
                        *byte
                    }
                })
                .collect(),
        },
        (Some("completed"), _) => no_verdict("completed has a result, an object"),
        (Some("not_executed"), Some(result)) if json::kind(result) != Kind::Null => {
            no_verdict("not_executed has no result")
        }
        (Some("not_executed"), _) => Verdict::NotExecuted,
        (Some("unknown"), _) => Verdict::Unknown(Unclear::Said),
        _ => no_verdict("its verdict is not completed, not_executed or unknown"),
    }
}

fn start(command: &[String]) -> io::Result<Child> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an empty command"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // Default signals, none of our descriptors, and an end with ours.
    pre_exec::upstream(&mut command, None);
    command.spawn()
}

/// What was read of the command's output.
struct Seen {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    stdout_bytes_max: usize,
    is_too_much: bool,
}

impl Seen {
    fn new(stdout_bytes_max: usize) -> Self {
        Self {
            stdout: Vec::new(),
            stderr: Vec::new(),
            stdout_bytes_max,
            is_too_much: false,
        }
    }

    fn take_stdout(&mut self, chunk: &[u8]) {
        let room = self.stdout_bytes_max.saturating_sub(self.stdout.len());
        self.is_too_much |= chunk.len() > room;
        self.stdout
            .extend_from_slice(&chunk[..chunk.len().min(room)]);
    }

    fn take_stderr(&mut self, chunk: &[u8]) {
        self.stderr.extend_from_slice(chunk);
        let surplus = self.stderr.len().saturating_sub(EVIDENCE_BYTES_MAX);
        self.stderr.drain(..surplus);
    }
}

/// Feeds and reads the command until it has ended, its time is up or it printed too much; then its
/// group is ended and what is left in its pipes is read.
fn attend(
    mut child: Child,
    question: &Question<'_>,
    began: Instant,
    seen: &mut Seen,
) -> Result<ExitStatus, Unclear> {
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id fits pid_t"));
    let group = ProcessGroup::led_by(pid.as_raw());
    let mut stdin = child.stdin.take();
    let mut stdout = child.stdout.take();
    let mut stderr = child.stderr.take();
    let told = (|| {
        for fd in [
            stdin.as_ref().map(AsFd::as_fd),
            stdout.as_ref().map(AsFd::as_fd),
            stderr.as_ref().map(AsFd::as_fd),
        ] {
            set_nonblocking(fd.expect("it was piped"))?;
        }
        Exit::of(pid)
    })();
    let exit = match told {
        Ok(exit) => exit,
        Err(error) => {
            let _ = killpg(pid, Signal::SIGKILL);
            let _ = child.wait();
            return Err(Unclear::NotStarted(error.to_string()));
        }
    };
    let mut left = question.entry;
    let unclear = loop {
        let Some(time) = question.timeout.checked_sub(began.elapsed()) else {
            break Some(Unclear::TimedOut);
        };
        let fds = [
            Some(exit.0.as_fd()),
            stdin.as_ref().map(AsFd::as_fd),
            stdout.as_ref().map(AsFd::as_fd),
            stderr.as_ref().map(AsFd::as_fd),
        ];
        let [has_ended, takes, prints, complains] = match wait(fds, time) {
            Ok(ready) => ready,
            Err(error) => break Some(Unclear::NotStarted(error.to_string())),
        };
        if has_ended {
            break None;
        }
        if takes && !feed(stdin.as_mut(), &mut left) {
            stdin = None;
        }
        if prints && read(stdout.as_mut(), |chunk| seen.take_stdout(chunk)) == Read::End {
            stdout = None;
        }
        if complains && read(stderr.as_mut(), |chunk| seen.take_stderr(chunk)) == Read::End {
            stderr = None;
        }
        if seen.is_too_much {
            break Some(Unclear::TooMuch);
        }
    };
    // The leader is not reaped yet, so its number is still its group's and nobody else's.
    let _ = killpg(pid, Signal::SIGKILL);
    let is_over = wait([Some(exit.0.as_fd()), None, None, None], KILL_WAIT);
    let killed = Instant::now();
    while group.is_alive() && killed.elapsed() < KILL_WAIT {
        // Others of the group are nobody's to wait for; they end as soon as they are scheduled.
        std::thread::sleep(KILL_POLL);
    }
    let status = match is_over {
        Ok([true, ..]) => child.wait().ok(),
        _ => None,
    };
    // A process that left the group may hold the pipes open and fill them for ever, so only so
    // much is read as a pipe and our limit hold.
    let chunks_max = seen.stdout_bytes_max / CHUNK_BYTES + 16;
    for _ in 0..chunks_max {
        if read(stdout.as_mut(), |chunk| seen.take_stdout(chunk)) != Read::Some {
            break;
        }
    }
    for _ in 0..chunks_max {
        if read(stderr.as_mut(), |chunk| seen.take_stderr(chunk)) != Read::Some {
            break;
        }
    }
    match (unclear, status) {
        (Some(unclear), _) => Err(unclear),
        (None, Some(status)) => Ok(status),
        (None, None) => Err(Unclear::TimedOut),
    }
}

/// A descriptor that becomes readable once a child has ended and before it is reaped.
struct Exit(OwnedFd);

impl Exit {
    fn of(pid: Pid) -> io::Result<Self> {
        let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
        std::thread::Builder::new()
            .name("reconcile-wait".to_owned())
            .spawn(move || {
                let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
                while waitid(Id::Pid(pid), flags) == Err(Errno::EINTR) {}
                drop(theirs);
            })?;
        Ok(Self(ours))
    }
}

/// Waits until one of the descriptors is ready, or for `time`; the second is written, the others
/// are read.
fn wait(fds: [Option<BorrowedFd<'_>>; 4], time: Duration) -> io::Result<[bool; 4]> {
    let mut places = Vec::with_capacity(fds.len());
    let mut polled = Vec::with_capacity(fds.len());
    for (place, fd) in fds.into_iter().enumerate() {
        if let Some(fd) = fd {
            let events = if place == 1 {
                PollFlags::POLLOUT
            } else {
                PollFlags::POLLIN
            };
            places.push(place);
            polled.push(PollFd::new(fd, events));
        }
    }
    // Rounded up, so that the last moment is not spun away.
    let ms = time.as_millis().saturating_add(1);
    let timeout = PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX);
    match poll(&mut polled, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready = [false; 4];
    for (place, fd) in places.into_iter().zip(&polled) {
        ready[place] = fd.any().unwrap_or(false);
    }
    Ok(ready)
}

/// Writes some of what is left; tells whether the pipe is still wanted.
fn feed(stdin: Option<&mut ChildStdin>, left: &mut &[u8]) -> bool {
    let Some(stdin) = stdin else { return false };
    match stdin.write(&left[..left.len().min(CHUNK_BYTES)]) {
        Ok(written) => *left = &left[written..],
        Err(error) if is_for_later(&error) => {}
        // A command need not read the entry.
        Err(_) => return false,
    }
    !left.is_empty()
}

/// What came of reading once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Some,
    Nothing,
    End,
}

fn read(from: Option<&mut impl io::Read>, mut take: impl FnMut(&[u8])) -> Read {
    let Some(from) = from else { return Read::End };
    let mut chunk = vec![0; CHUNK_BYTES];
    match from.read(&mut chunk) {
        Ok(0) => Read::End,
        Ok(count) => {
            take(&chunk[..count]);
            Read::Some
        }
        Err(error) if is_for_later(&error) => Read::Nothing,
        Err(_) => Read::End,
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

#[cfg(test)]
mod tests;
