//! The other processes of a run: the echoing upstream, and the relay that nobody can beat.
//!
//! They are this same program under another name, so that one command measures everything.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::log::Log;
use crate::peers;

/// The first bytes of every line that the driver and the upstream write; the id follows.
pub(crate) const START: &[u8] = br#"{"jsonrpc":"2.0","id":"#;

/// Runs as `name` with `words`.
pub(crate) fn run(name: &str, words: &[String]) -> io::Result<()> {
    match name {
        "echo" => echo(words.first().and_then(|word| word.parse().ok())),
        "relay" => relay(words),
        "rust-sdk" => peers::rust_proxy(words, true),
        "rust-sdk-stdio" => peers::rust_proxy(words, false),
        _ => Err(io::Error::other(format!("no role {name}"))),
    }
}

/// Answers each call with its own text, or with `result_bytes` bytes; nothing is parsed but the id.
fn echo(result_bytes: Option<usize>) -> io::Result<()> {
    let mut input = io::stdin().lock();
    let mut output = io::stdout().lock();
    let fixed = result_bytes.map(|bytes| vec![b'r'; bytes]);
    let mut held = Vec::new();
    let mut read = vec![0; 1 << 20];
    let mut answers = Vec::new();
    loop {
        let count = input.read(&mut read)?;
        if count == 0 {
            return Ok(());
        }
        let mut rest = &read[..count];
        while let Some(at) = memchr::memchr(b'\n', rest) {
            let (line, next) = rest.split_at(at + 1);
            rest = next;
            if held.is_empty() {
                answer(&line[..at], fixed.as_deref(), &mut answers);
            } else {
                held.extend_from_slice(&line[..at]);
                answer(&held, fixed.as_deref(), &mut answers);
                held.clear();
            }
        }
        held.extend_from_slice(rest);
        // Standard output splits at line ends; one write serves all that was asked.
        let written = io::Write::write_all(&mut RawOut(&mut output), &answers);
        written?;
        answers.clear();
    }
}

/// Past the standard library's own line buffer.
struct RawOut<'a, T>(&'a mut T);

impl<T: AsFd> Write for RawOut<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(nix::unistd::write(self.0.as_fd(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a call of the driver's says before its arguments' text.
const MARK: &[u8] = br#""name":"echo","arguments":{"text":""#;

fn answer(line: &[u8], fixed: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some((id, call)) = read(line) else {
        return;
    };
    out.extend_from_slice(START);
    out.extend_from_slice(id);
    match call {
        Asked::Call(text) => {
            out.extend_from_slice(br#","result":{"content":[{"type":"text","text":""#);
            out.extend_from_slice(fixed.unwrap_or(text));
            out.extend_from_slice(b"\"}]}}\n");
        }
        Asked::Tools => out.extend_from_slice(
            br#","result":{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}}
"#,
        ),
        Asked::Hello => out.extend_from_slice(
            br#","result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}}}
"#,
        ),
    }
}

/// What a line asks for.
enum Asked<'a> {
    Call(&'a [u8]),
    Tools,
    Hello,
}

/// Returns a request's id and what it asks for.
fn read(line: &[u8]) -> Option<(&[u8], Asked<'_>)> {
    if let Some(after) = line.strip_prefix(START) {
        let (id, after) = number(after);
        let head = &after[..after.len().min(128)];
        // The driver's own: the text is the last thing in the line, `"}}}` ends it.
        if after.starts_with(br#","method":"tools/call""#)
            && let Some(at) = memchr::memmem::find(head, MARK)
            && after.ends_with(b"\"}}}")
        {
            return Some((id, Asked::Call(&after[at + MARK.len()..after.len() - 4])));
        }
    }
    // What an SDK wrote has its members in any order. Nothing that is sent here holds these words
    // elsewhere.
    let after = |mark: &[u8]| {
        let at = memchr::memmem::find(line, mark)?;
        Some(&line[at + mark.len()..])
    };
    let (id, _) = number(after(br#""id":"#)?);
    if after(br#""method":"tools/call""#).is_some() {
        let text = after(br#""text":""#).unwrap_or_default();
        let end = memchr::memchr(b'"', text).unwrap_or(text.len());
        return Some((id, Asked::Call(&text[..end])));
    }
    let asks_tools = after(br#""method":"tools/list""#).is_some();
    Some((
        id,
        if asks_tools {
            Asked::Tools
        } else {
            Asked::Hello
        },
    ))
}

/// Splits the digits off that a text begins with.
fn number(text: &[u8]) -> (&[u8], &[u8]) {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    text.split_at(digits)
}

/// One direction of the relay.
struct Way {
    from: OwnedFd,
    to: Option<OwnedFd>,
    buffer: Vec<u8>,
    sent: usize,
    /// The buffer may go out: it is logged, or there is no log.
    is_released: bool,
    is_at_end: bool,
}

/// One thread that polls both pipes and copies bytes; with a log, whole lines are written to it
/// and synced before they go on, all that came in one read under one sync.
fn relay(words: &[String]) -> io::Result<()> {
    let (log, echo) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut log = match log.as_str() {
        "-" => None,
        path => Some(Log::open(Path::new(path))?),
    };
    let mut upstream = Command::new(std::env::current_exe()?)
        .args(["--role", "echo"])
        .args(echo)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let pipes = upstream.stdin.take().zip(upstream.stdout.take());
    let (input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
    let mut ways = [
        way(nix::unistd::dup(io::stdin())?, input.into())?,
        way(output.into(), nix::unistd::dup(io::stdout())?)?,
    ];
    let mut read = vec![0; 64 << 10];
    while !ways[1].is_at_end {
        let mut fds = Vec::with_capacity(2);
        let mut whose = [0; 2];
        for (index, way) in ways.iter().enumerate() {
            if way.is_released && way.sent < way.buffer.len() {
                if let Some(to) = &way.to {
                    whose[fds.len()] = index;
                    fds.push(PollFd::new(to.as_fd(), PollFlags::POLLOUT));
                }
            } else if !way.is_at_end {
                whose[fds.len()] = index;
                fds.push(PollFd::new(way.from.as_fd(), PollFlags::POLLIN));
            }
        }
        poll(&mut fds, PollTimeout::NONE)?;
        let mut ready = [false; 2];
        for (fd, index) in fds.iter().zip(whose) {
            ready[index] |= fd.any().unwrap_or(false);
        }
        drop(fds);
        for index in [0, 1] {
            if ready[index] {
                ways[index].turn(&mut read, log.as_mut(), index == 1)?;
            }
        }
    }
    drop(ways);
    upstream.wait()?;
    Ok(())
}

fn way(from: OwnedFd, to: OwnedFd) -> io::Result<Way> {
    for fd in [&from, &to] {
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    Ok(Way {
        from,
        to: Some(to),
        buffer: Vec::new(),
        sent: 0,
        is_released: true,
        is_at_end: false,
    })
}

impl Way {
    fn turn(&mut self, read: &mut [u8], log: Option<&mut Log>, is_answer: bool) -> io::Result<()> {
        if !self.is_released || self.sent == self.buffer.len() {
            match nix::unistd::read(&self.from, read) {
                Ok(0) => {
                    self.is_at_end = true;
                    self.to = None;
                    return Ok(());
                }
                Ok(count) => {
                    if self.is_released {
                        self.buffer.clear();
                        self.sent = 0;
                    }
                    self.buffer.extend_from_slice(&read[..count]);
                }
                Err(Errno::EAGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            self.is_released = true;
            if let Some(log) = log {
                if self.buffer.ends_with(b"\n") {
                    log.put(&self.buffer, is_answer)?;
                } else {
                    self.is_released = false;
                    return Ok(());
                }
            }
        }
        let Some(to) = &self.to else { return Ok(()) };
        match nix::unistd::write(to, &self.buffer[self.sent..]) {
            Ok(count) => self.sent += count,
            Err(Errno::EAGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
