//! Starts an upstream once, asks what it is, and ends it.
//!
//! Nothing is called: `server/discover`, `initialize` and `tools/list` have no effect. Each answer
//! has a time limit, and whatever happens no process of the upstream's group is left.
//!
//! Must not: call a tool, or judge what the upstream says.
//!
//! Source: MCP 2026-07-28, versioning (a client of both eras asks `server/discover` first, and any
//! error but the protocol's own leads to `initialize`).

use std::os::fd::{AsFd as _, BorrowedFd};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::json;
use crate::mcp::listing::read_listing;
use crate::mcp::outcome::read_error;
use crate::proxy::child::{Pipes, Upstream, UpstreamCommand};
use crate::proxy::guardian::Guardian;
use crate::proxy::ladder::{Ladder, Pace, Step};
use crate::proxy::pipe::{Filled, Line};
use crate::proxy::stderr::Tail;

/// How long the first answer may take: a package runner may download the upstream first.
const FIRST_LIMIT: Duration = Duration::from_secs(60);

/// How long each further answer may take.
const LIMIT: Duration = Duration::from_secs(15);

/// How long an upstream that does not know `server/discover` may stay silent about it.
const DISCOVER_LIMIT: Duration = Duration::from_secs(5);

/// The longest line that is read, in bytes.
const LINE_BYTES_MAX: usize = 64 << 20;

/// The most pages of tools that are asked for.
const PAGES_MAX: usize = 100;

/// The most answers that are kept for later.
const INBOX_MAX: usize = 64;

/// What was found out about an upstream.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// What `server/discover` was answered with.
    pub(super) discover: Option<Era>,
    /// What `initialize` was answered with.
    pub(super) initialize: Option<Era>,
    /// The tools, in their order.
    pub(super) tools: Vec<Tool>,
    /// Why the tools are not all there.
    pub(super) tools_trouble: Option<String>,
    /// Lines on its standard output that are no JSON.
    pub(super) noise: u64,
    /// Why there is nothing more to tell.
    pub(super) failure: Option<String>,
    /// The last it wrote to standard error.
    pub(super) stderr_tail: String,
    /// How it was ended.
    pub(super) end: &'static str,
    /// From its start to its first answer.
    pub(super) first_answer: Option<Duration>,
}

/// How an upstream answered the question that opens an era.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Era {
    /// It serves it.
    Serves {
        /// Its protocol revisions.
        versions: Vec<String>,
        /// Its own name and version.
        name: Option<String>,
    },
    /// It does not, or not any more on this connection.
    Refuses(String),
}

/// A tool as it is listed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) read_only_hint: Option<bool>,
    pub(super) idempotent_hint: Option<bool>,
    pub(super) destructive_hint: Option<bool>,
}

/// Starts the upstream, asks, and ends it. Call from the main thread.
pub(super) fn probe(command: &UpstreamCommand) -> Found {
    let mut found = Found::default();
    let started = Instant::now();
    let (process, pipes) = match Upstream::spawn(command, &mut Guardian::absent()) {
        Ok(started) => started,
        Err(error) => {
            found.failure = Some(format!("it can't be started: {error}"));
            found.end = "never started";
            return found;
        }
    };
    let mut talk = Talk {
        process,
        pipes,
        tail: Tail::default(),
        inbox: Vec::new(),
        noise: 0,
        started,
        first_answer: None,
        status: None,
    };
    if let Err(trouble) = talk.ask_all(&mut found) {
        found.failure = Some(trouble);
    }
    found.end = talk.end();
    found.noise = talk.noise;
    found.stderr_tail = talk.tail.text();
    found.first_answer = talk.first_answer;
    found
}

/// A conversation with an upstream.
struct Talk {
    process: Upstream,
    pipes: Pipes,
    tail: Tail,
    inbox: Vec<Vec<u8>>,
    noise: u64,
    started: Instant,
    first_answer: Option<Duration>,
    status: Option<ExitStatus>,
}

enum Answer {
    Result(Vec<u8>),
    Error { code: Option<i64>, message: String },
    Silence,
}

const META: &str = "\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\
     \"io.modelcontextprotocol/clientInfo\":{\"name\":\"checkpoint-doctor\",\"version\":\"1\"},\
     \"io.modelcontextprotocol/clientCapabilities\":{}}";

impl Talk {
    fn ask_all(&mut self, found: &mut Found) -> Result<(), String> {
        let discover = self.ask("discover", "server/discover", META, DISCOVER_LIMIT)?;
        found.discover = Some(match discover {
            Answer::Result(result) => Era::Serves {
                versions: texts(&result, "supportedVersions"),
                name: identity(&result),
            },
            Answer::Error { code, message } => Era::Refuses(told(code, &message)),
            Answer::Silence => Era::Refuses("no answer".to_owned()),
        });
        let params = "\"protocolVersion\":\"2025-11-25\",\"capabilities\":{},\
             \"clientInfo\":{\"name\":\"checkpoint-doctor\",\"version\":\"1\"}";
        let is_modern = matches!(found.discover, Some(Era::Serves { .. }));
        let limit = if is_modern { LIMIT } else { FIRST_LIMIT };
        let initialize = self.ask("initialize", "initialize", params, limit)?;
        found.initialize = Some(match initialize {
            Answer::Result(result) => Era::Serves {
                versions: json::last_member(&result, "protocolVersion")
                    .and_then(|member| json::text(member.value))
                    .map(std::borrow::Cow::into_owned)
                    .into_iter()
                    .collect(),
                name: identity(&result),
            },
            Answer::Error { code, message } => Era::Refuses(told(code, &message)),
            Answer::Silence if is_modern => Era::Refuses("no answer".to_owned()),
            Answer::Silence => {
                return Err(format!(
                    "it answered neither server/discover nor initialize within {} s",
                    FIRST_LIMIT.as_secs()
                ));
            }
        });
        let is_legacy = matches!(found.initialize, Some(Era::Serves { .. }));
        if is_legacy {
            self.send("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}");
        }
        if is_legacy || is_modern {
            self.list(found, is_modern)?;
        }
        Ok(())
    }

    fn list(&mut self, found: &mut Found, is_modern: bool) -> Result<(), String> {
        let meta = if is_modern { META } else { "" };
        let mut cursor: Option<String> = None;
        for page in 0..PAGES_MAX {
            let params = match &cursor {
                Some(cursor) if is_modern => format!("\"cursor\":{cursor},{meta}"),
                Some(cursor) => format!("\"cursor\":{cursor}"),
                None => meta.to_owned(),
            };
            let id = format!("tools-{page}");
            let result = match self.ask(&id, "tools/list", &params, LIMIT)? {
                Answer::Result(result) => result,
                Answer::Error { code, message } => {
                    found.tools_trouble = Some(told(code, &message));
                    return Ok(());
                }
                Answer::Silence => {
                    found.tools_trouble = Some("no answer".to_owned());
                    return Ok(());
                }
            };
            let listing = read_listing(&result);
            found.tools.extend(listing.tools.iter().map(|tool| Tool {
                name: tool.name.clone().into_owned(),
                read_only_hint: tool.read_only_hint,
                idempotent_hint: tool.idempotent_hint,
                destructive_hint: hint(tool.raw, "destructiveHint"),
            }));
            let next = json::last_member(&result, "nextCursor")
                .filter(|_| listing.has_next_cursor)
                .and_then(|member| String::from_utf8(member.value.to_vec()).ok());
            if next.is_none() || next == cursor {
                return Ok(());
            }
            cursor = next;
        }
        found.tools_trouble = Some(format!("there are more than {PAGES_MAX} pages"));
        Ok(())
    }

    /// Sends a request and waits for its answer.
    fn ask(
        &mut self,
        id: &str,
        method: &str,
        params: &str,
        limit: Duration,
    ) -> Result<Answer, String> {
        let id = format!("\"checkpoint-doctor-{id}\"");
        self.send(&format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{{{params}}}}}"
        ));
        let deadline = Instant::now() + limit;
        loop {
            if let Some(line) = self.take(&id) {
                let last = |name| json::last_member(&line, name).map(|member| member.value);
                if let Some(error) = last("error") {
                    let error = read_error(error);
                    return Ok(Answer::Error {
                        code: error.code,
                        message: error.message,
                    });
                }
                return Ok(Answer::Result(last("result").unwrap_or(b"{}").to_vec()));
            }
            if self.pipes.output.is_at_eof() {
                return Err(self.ended());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Answer::Silence);
            }
            self.turn(left)?;
        }
    }

    fn send(&mut self, line: &str) {
        self.pipes.input.push(format!("{line}\n").into_bytes());
        // What can't be written now is written when the pipe takes it; a broken one is seen as
        // the upstream's end.
        let _ = self.pipes.input.flush();
    }

    fn take(&mut self, id: &str) -> Option<Vec<u8>> {
        let at = self.inbox.iter().position(|line| {
            json::last_member(line, "id").is_some_and(|member| member.value == id.as_bytes())
        })?;
        Some(self.inbox.remove(at))
    }

    fn ended(&mut self) -> String {
        let deadline = Instant::now() + Duration::from_millis(500);
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.process.try_wait() {
                self.status = Some(status);
                return format!("it ended by itself: {status}");
            }
            // A child's end announces itself to nobody here.
            std::thread::sleep(Duration::from_millis(5));
        }
        "it closed its standard output".to_owned()
    }

    /// Waits until a pipe is ready, and moves what there is.
    fn turn(&mut self, limit: Duration) -> Result<(), String> {
        let limit = limit.min(Duration::from_secs(1));
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO);
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        let readable = [&self.pipes.output, &self.pipes.errors];
        for source in readable.into_iter().filter(|source| !source.is_at_eof()) {
            let fd: BorrowedFd<'_> = source.as_fd();
            fds.push(PollFd::new(fd, PollFlags::POLLIN));
        }
        if !self.pipes.input.is_empty()
            && let Some(fd) = self.pipes.input.poll_fd()
        {
            fds.push(PollFd::new(fd, PollFlags::POLLOUT));
        }
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(format!("its pipes can't be watched: {errno}")),
        }
        let _ = self.pipes.input.flush();
        self.read();
        Ok(())
    }

    fn read(&mut self) {
        if matches!(self.pipes.errors.fill(), Ok(Filled::Data)) {
            self.tail.push(self.pipes.errors.take_unread());
        }
        if !matches!(self.pipes.output.fill(), Ok(Filled::Data)) {
            return;
        }
        while let Some(line) = self.pipes.output.next_line(LINE_BYTES_MAX) {
            let Line::Whole(line) = line else {
                self.noise += 1;
                continue;
            };
            match json::kind(&line) {
                json::Kind::Object if json::last_member(&line, "method").is_none() => {
                    self.first_answer.get_or_insert(self.started.elapsed());
                    if self.inbox.len() < INBOX_MAX {
                        self.inbox.push(line);
                    }
                }
                json::Kind::Object | json::Kind::Array => {}
                _ if json::trim(&line).is_empty() => {}
                _ => self.noise += 1,
            }
        }
    }

    /// Ends the upstream's whole group; returns what it took.
    fn end(&mut self) -> &'static str {
        if self.status.is_some() && !self.process.group_alive() {
            return "ended by itself";
        }
        let mut ladder = Ladder::new(Pace::Leisurely);
        let mut took = "ended by itself";
        loop {
            let is_alive = self.process.group_alive();
            let look_again = match ladder.next(Instant::now(), is_alive) {
                Step::CloseInput { look_again } => {
                    self.pipes.input.close();
                    took = "ended when its input was closed";
                    look_again
                }
                Step::Terminate { look_again } => {
                    let _ = self.process.signal_group(Signal::SIGTERM);
                    took = "ended by SIGTERM";
                    look_again
                }
                Step::Kill { look_again } => {
                    let _ = self.process.signal_group(Signal::SIGKILL);
                    took = "ended by SIGKILL";
                    look_again
                }
                Step::Wait { look_again } => look_again,
                Step::Gone => return took,
                Step::GivenUp => return "still alive",
            };
            // Its last words must not keep it from ending.
            self.read();
            std::thread::sleep(look_again.saturating_duration_since(Instant::now()));
        }
    }
}

fn told(code: Option<i64>, message: &str) -> String {
    match code {
        Some(code) => format!("error {code}: {message}"),
        None => format!("an error: {message}"),
    }
}

fn hint(tool: &[u8], name: &str) -> Option<bool> {
    let annotations = json::last_member(tool, "annotations")?.value;
    match json::kind(json::last_member(annotations, name)?.value) {
        json::Kind::True => Some(true),
        json::Kind::False => Some(false),
        _ => None,
    }
}

fn texts(object: &[u8], name: &str) -> Vec<String> {
    json::last_member(object, name)
        .map(|member| {
            json::Elements::new(member.value)
                .filter_map(json::text)
                .map(std::borrow::Cow::into_owned)
                .collect()
        })
        .unwrap_or_default()
}

/// Returns the upstream's own name and version, where either era puts them.
fn identity(result: &[u8]) -> Option<String> {
    let modern = json::last_member(result, "_meta").and_then(|meta| {
        json::last_member(meta.value, "io.modelcontextprotocol/serverInfo")
            .map(|member| member.value)
    });
    let legacy = json::last_member(result, "serverInfo").map(|member| member.value);
    let info = modern.or(legacy)?;
    let text = |name| json::last_member(info, name).and_then(|member| json::text(member.value));
    let name = text("name")?;
    Some(match text("version") {
        Some(version) => format!("{name} {version}"),
        None => name.into_owned(),
    })
}
