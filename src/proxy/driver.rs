//! The driver: the only reader and writer of the client's and the upstream's pipes.
//!
//! One thread and one `poll(2)`. Each round takes what is there from both sides, lets the session
//! say what it means, hands what must be durable to the journal in one batch, and writes what is
//! ready. Both directions are independent: a side that does not read stops only its own.
//!
//! Must not: decide about a line. Everything here is dull on purpose.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::child::{Pipes, Upstream};
use super::desk::{Answer, Desk, ProbeNews};
use super::guardian::Guardian;
use super::ladder::{Ladder, Pace, Step};
use super::pipe::{Filled, Flushed, Line, Sink, Source};
use super::session::{Level, Session, UpstreamEnd};
use super::signals::Signals;
use super::stderr::{RateLimit, StderrSink, Tail};
use crate::guard::Op;
use crate::journal::JournalError;

/// How much may wait for the client before the upstream is not read any further, in bytes.
const DOWN_BYTES_MAX: usize = 4 << 20;

/// How much may wait for the upstream before the client is not read any further, in bytes.
const UP_BYTES_MAX: usize = 4 << 20;

/// Lines taken from one side in one round, so that one batch and one write serve many.
const LINES_MAX: usize = 1024;

/// The same in bytes: what is taken waits in memory until the round's end, whoever reads it then.
const ROUND_BYTES_MAX: usize = 1 << 20;

/// How long a reservation waits for a busy journal (contract, section 11).
const RESERVE_PATIENCE: Duration = Duration::from_secs(5);

/// How long an outcome waits for a busy journal: it is worth more than a reservation.
const OUTCOME_PATIENCE: Duration = Duration::from_secs(30);

/// How long an outcome is tried again on a disk that is full or read-only.
const FULL_PATIENCE: Duration = Duration::from_secs(2);

/// The shortest and the longest pause between two tries: SQLite's lock has no queue, so who looks
/// seldom gets it seldom.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(8);

/// How long a delivery's mark waits for a commit to ride on, before it gets one of its own.
/// Nobody waits for it, but on a commit of its own the next call would.
const MARK_WAIT: Duration = Duration::from_millis(1);

/// How long what the upstream left in its pipes is awaited once its process has ended: somebody
/// else may hold them open.
const LEFTOVER_MAX: Duration = Duration::from_millis(200);

/// How long a client that has said nothing yet may take to ask, once the upstream is gone.
const FIRST_WORD_MAX: Duration = Duration::from_secs(1);

/// How long the last lines for the client may take.
const LAST_WORDS_MAX: Duration = Duration::from_secs(2);

/// What the driver moves bytes between.
pub(super) struct Edges {
    pub(super) client_in: Source,
    pub(super) client_out: Sink,
    pub(super) signals: Signals,
    pub(super) stderr: StderrSink,
    pub(super) line_bytes_max: usize,
}

/// What the last `poll(2)` announced. Only that is read: a look at each descriptor in each round
/// costs more than the bytes that are moved.
#[derive(Clone, Copy)]
struct Ready {
    signals: bool,
    client: bool,
    upstream: bool,
    errors: bool,
    /// Nothing was announced, and everything is read until it has no more.
    drains: bool,
}

impl Ready {
    const NOTHING: Self = Self {
        signals: false,
        client: false,
        upstream: false,
        errors: false,
        drains: false,
    };
    const DRAIN: Self = Self {
        signals: true,
        client: true,
        upstream: true,
        errors: true,
        drains: true,
    };
}

/// A batch that must be tried again.
struct Retry {
    ops: Vec<Op>,
    next: Instant,
    reconnects: bool,
    tries: Tries,
}

/// How long a batch has been tried, and how long the last pause was.
#[derive(Clone, Copy)]
struct Tries {
    since: Instant,
    pause: Duration,
}

/// The upstream's side.
struct Up {
    process: Upstream,
    input: Sink,
    output: Source,
    errors: Source,
    output_ended: Option<Instant>,
    errors_ended: bool,
    exit: Option<(ExitStatus, Instant)>,
}

pub(super) struct Driver {
    session: Session,
    edges: Edges,
    ready: Ready,
    /// A child may have ended since the upstream was last asked for.
    has_child_news: bool,
    up: Option<Up>,
    guardian: Arc<Mutex<Guardian>>,
    desk: Option<Desk>,
    retry: Option<Retry>,
    /// Of the batch that the journal has now, if it is not its first try.
    tries: Option<Tries>,
    /// Since when nothing but marks of deliveries waits for the journal.
    marks_since: Option<Instant>,
    ladder: Option<Ladder>,
    /// The group is gone, or nothing more can be done about it.
    group_over: bool,
    gave_up_on_group: bool,
    tail: Tail,
    noise_limit: RateLimit,
    started: Instant,
    client_spoke: bool,
    client_eof: bool,
    over_since: Option<Instant>,
    own_answers: OwnAnswers,
}

/// What we have answered ourselves and the client has not read: each line's end, as an offset in
/// all that goes to the client, and its size.
#[derive(Default)]
struct OwnAnswers {
    lines: VecDeque<(u64, usize)>,
    queued_bytes: usize,
}

impl OwnAnswers {
    fn push(&mut self, end: u64, bytes: usize) {
        self.lines.push_back((end, bytes));
        self.queued_bytes += bytes;
    }

    fn written(&mut self, offset: u64) {
        while let Some((end, bytes)) = self.lines.front() {
            if *end > offset {
                break;
            }
            self.queued_bytes -= bytes;
            self.lines.pop_front();
        }
    }
}

impl Driver {
    pub(super) fn new(
        session: Session,
        edges: Edges,
        upstream: Result<(Upstream, Pipes), String>,
        guardian: Arc<Mutex<Guardian>>,
        desk: Option<Desk>,
    ) -> Self {
        let now = Instant::now();
        let mut driver = Self {
            session,
            edges,
            ready: Ready::DRAIN,
            has_child_news: true,
            up: None,
            guardian,
            desk,
            retry: None,
            tries: None,
            marks_since: None,
            ladder: None,
            group_over: false,
            gave_up_on_group: false,
            tail: Tail::default(),
            noise_limit: RateLimit::new(20, 10),
            started: now,
            client_spoke: false,
            client_eof: false,
            over_since: None,
            own_answers: OwnAnswers::default(),
        };
        match upstream {
            Ok((process, pipes)) => {
                driver.up = Some(Up {
                    process,
                    input: pipes.input,
                    output: pipes.output,
                    errors: pipes.errors,
                    output_ended: None,
                    errors_ended: false,
                    exit: None,
                });
            }
            Err(error) => {
                driver.group_over = true;
                let end = UpstreamEnd {
                    not_started: Some(error),
                    ..UpstreamEnd::default()
                };
                driver.session.upstream_ended(end, 0, now);
            }
        }
        driver
    }

    /// Runs until both sides are served and the upstream's group is gone.
    pub(super) fn run(mut self) -> Session {
        loop {
            let now = Instant::now();
            self.pump(now);
            // What was handed on may have been the last thing that held the end back.
            self.climb(Instant::now());
            if self.is_over(Instant::now()) {
                break;
            }
            self.wait();
            let now = Instant::now();
            self.read_signals(now);
            self.read_client(now);
            self.read_upstream(now);
            self.read_errors();
            self.reap(now);
            self.session.tick(now);
        }
        self.finish()
    }

    // ---- what is there ----

    fn read_signals(&mut self, now: Instant) {
        if !self.ready.signals {
            return;
        }
        let pending = self.edges.signals.take();
        if pending.stop_count > 0 {
            self.session.stop(now, pending.stop_count);
            if let Some(ladder) = &mut self.ladder {
                ladder.hurry();
            }
        }
        if pending.child {
            self.has_child_news = true;
            let mut guardian = self.guardian.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = guardian.is_alive();
        }
    }

    fn wants_client(&self) -> bool {
        let up_is_full = self
            .up
            .as_ref()
            .is_some_and(|up| up.input.queued_bytes() >= UP_BYTES_MAX);
        // A client that does not read what we answer ourselves is not read either. What the upstream
        // says does not count: a client may well write to its end before it reads.
        let down_is_full = self.own_answers.queued_bytes >= DOWN_BYTES_MAX;
        !self.client_eof
            && !up_is_full
            && !down_is_full
            && !self.session.phase().is_client_gone()
            // What waits for a busy journal will be the upstream's to read.
            && self.session.held_bytes() < UP_BYTES_MAX
    }

    fn wants_upstream(&self) -> bool {
        self.edges.client_out.queued_bytes() < DOWN_BYTES_MAX
            || self.session.phase().is_client_gone()
    }

    fn read_client(&mut self, now: Instant) {
        let ready = self.ready;
        let is_due = ready.client || self.edges.client_in.has_unread();
        if !is_due || !self.wants_client() {
            return;
        }
        if ready.client && !ready.drains {
            self.edges.client_in.announce();
        }
        let (mut lines, mut taken) = (0, 0);
        while lines < LINES_MAX && taken < ROUND_BYTES_MAX {
            match self.edges.client_in.fill() {
                Ok(Filled::Data) => {}
                Ok(Filled::WouldBlock) => return,
                Ok(Filled::Eof) => {
                    self.client_eof = true;
                    if let Some(rest) = self.edges.client_in.rest() {
                        let bytes = match rest {
                            Line::Whole(bytes) => bytes.len(),
                            Line::TooLong { prefix, discarded } => {
                                prefix.len() + usize::try_from(discarded).unwrap_or(usize::MAX)
                            }
                        };
                        self.session.client_rest(bytes);
                    }
                    self.session.client_ended(now);
                    return;
                }
                Err(error) => {
                    tracing::warn!("the client's input can't be read: {error}");
                    self.client_eof = true;
                    self.session.client_ended(now);
                    return;
                }
            }
            while let Some(line) = self.edges.client_in.next_line(self.edges.line_bytes_max) {
                lines += 1;
                taken += line.kept_bytes();
                self.client_spoke = true;
                match line {
                    Line::Whole(line) => self.session.client_line(line),
                    Line::TooLong { prefix, discarded } => {
                        let bytes = prefix.len() as u64 + discarded;
                        let tail = self.edges.client_in.take_tail();
                        self.session.client_line_too_long(&prefix, &tail, bytes);
                    }
                }
                if lines >= LINES_MAX || taken >= ROUND_BYTES_MAX {
                    break;
                }
            }
            if !ready.drains && !self.edges.client_in.was_full() {
                return;
            }
        }
    }

    fn read_upstream(&mut self, now: Instant) {
        if !self.wants_upstream() {
            return;
        }
        let ready = self.ready;
        let Some(up) = &mut self.up else { return };
        let is_due = ready.upstream || up.output.has_unread();
        if !is_due || up.output_ended.is_some() {
            return;
        }
        let (mut lines, mut taken) = (0, 0);
        while lines < LINES_MAX && taken < ROUND_BYTES_MAX {
            match up.output.fill() {
                Ok(Filled::Data) => {}
                Ok(Filled::WouldBlock) => return,
                Ok(Filled::Eof) | Err(_) => {
                    // What it wrote before it died is delivered first, a cut line too: the client
                    // may judge what is left of it.
                    if let Some(Line::Whole(rest)) = up.output.rest() {
                        tracing::warn!(
                            "the upstream ended in the middle of a line: {} bytes are dropped",
                            rest.len()
                        );
                    }
                    up.output_ended = Some(now);
                    return;
                }
            }
            while let Some(line) = up.output.next_line(self.edges.line_bytes_max) {
                lines += 1;
                taken += line.kept_bytes();
                match line {
                    Line::Whole(line) => self.session.upstream_line(line, now),
                    Line::TooLong { prefix, discarded } => {
                        let bytes = prefix.len() as u64 + discarded;
                        let tail = up.output.take_tail();
                        self.session
                            .upstream_line_too_long(&prefix, &tail, bytes, now);
                    }
                }
                if lines >= LINES_MAX || taken >= ROUND_BYTES_MAX {
                    break;
                }
            }
            if !ready.drains && !up.output.was_full() {
                return;
            }
        }
    }

    fn read_errors(&mut self) {
        if !self.ready.errors {
            return;
        }
        let Some(up) = &mut self.up else { return };
        // Always drained: an undrained stderr stops the upstream.
        for _ in 0..16 {
            if up.errors_ended {
                return;
            }
            match up.errors.fill() {
                Ok(Filled::Data) => {
                    let bytes = up.errors.take_unread();
                    self.tail.push(bytes);
                    self.edges.stderr.copy(bytes);
                }
                Ok(Filled::WouldBlock) => return,
                Ok(Filled::Eof) | Err(_) => up.errors_ended = true,
            }
        }
    }

    fn reap(&mut self, now: Instant) {
        let Some(up) = &mut self.up else { return };
        // While it talks and no signal says otherwise, it lives.
        let may_have_ended = std::mem::take(&mut self.has_child_news)
            || !(self.ready.upstream || self.ready.client)
            || self.ready.drains
            || up.output_ended.is_some()
            || up.errors_ended;
        if up.exit.is_none()
            && may_have_ended
            && let Ok(Some(status)) = up.process.try_wait()
        {
            up.exit = Some((status, now));
        }
        let is_settled = |since: Instant| now.saturating_duration_since(since) >= LEFTOVER_MAX;
        let is_over = match (up.output_ended, up.exit) {
            (Some(ended), Some((_, exited))) => {
                // The stderr of a process that has ended is there, unless others hold it.
                up.errors_ended || is_settled(ended.max(exited))
            }
            // A grandchild may hold the output open, or the output may be closed for good.
            (None, Some((_, since))) | (Some(since), None) => is_settled(since),
            (None, None) => false,
        };
        if is_over && !self.session.phase().is_upstream_ended() {
            let end = UpstreamEnd {
                code: up.exit.and_then(|(status, _)| status.code()),
                signal: up.exit.and_then(|(status, _)| status.signal()),
                not_started: None,
                stderr_tail: self.tail.text(),
            };
            let written = up.input.total_written();
            self.session.upstream_ended(end, written, now);
            up.input.close();
            self.session.input_closed();
            if self.ladder.is_none() {
                self.ladder = Some(Ladder::after_input_closed(Pace::Urgent, now));
            }
        }
    }

    // ---- the way down ----

    fn climb(&mut self, now: Instant) {
        if self.group_over {
            return;
        }
        if self.ladder.is_none() && self.session.wants_input_closed(now) {
            let is_flushed = self.up.as_ref().is_none_or(|up| up.input.is_empty());
            let urgent = self.session.phase().is_urgent();
            if is_flushed || urgent || self.session.is_past_drain(now) {
                let pace = if urgent {
                    Pace::Urgent
                } else {
                    Pace::Leisurely
                };
                self.ladder = Some(Ladder::new(pace));
            }
        }
        let (Some(ladder), Some(up)) = (&mut self.ladder, &mut self.up) else {
            return;
        };
        if self.session.phase().is_urgent() {
            ladder.hurry();
        }
        // Each step at most once; the loop comes back when the next is due.
        match ladder.next(now, up.process.group_alive()) {
            Step::CloseInput { .. } => {
                up.input.close();
                self.session.input_closed();
            }
            Step::Terminate { .. } => {
                let _ = up.process.signal_group(Signal::SIGTERM);
            }
            Step::Kill { .. } => {
                let _ = up.process.signal_group(Signal::SIGKILL);
            }
            Step::Wait { .. } => {}
            Step::Gone => self.group_over = true,
            Step::GivenUp => {
                self.group_over = true;
                self.gave_up_on_group = true;
            }
        }
    }

    // ---- what is to be done ----

    /// Hands on whatever is ready, until nothing more comes of it.
    fn pump(&mut self, now: Instant) {
        loop {
            self.talk();
            self.write(now);
            if !self.ask_journal(now) {
                self.write(now);
                self.talk();
                break;
            }
        }
    }

    fn talk(&mut self) {
        for (level, text) in self.session.take_said() {
            match level {
                Level::Warn => tracing::warn!("{text}"),
                Level::Info => tracing::info!("{text}"),
                Level::Debug => tracing::debug!("{text}"),
            }
        }
        for line in self.session.take_noise() {
            match self.noise_limit.admit(Instant::now()) {
                Some(0) => self.edges.stderr.copy(&line),
                Some(suppressed) => {
                    tracing::warn!("{suppressed} lines of the upstream's output were left out");
                    self.edges.stderr.copy(&line);
                }
                None => {}
            }
        }
        self.edges.stderr.flush_queue();
    }

    fn write(&mut self, now: Instant) {
        if let Some(up) = &mut self.up {
            while let Some((line, key)) = self.session.to_upstream() {
                let start = up.input.total_pushed();
                up.input.push(line);
                if let Some(key) = key {
                    self.session.pushed_up(&key, start..up.input.total_pushed());
                }
            }
            // A broken pipe is no end by itself: the process will be seen to end, or it has only
            // closed its input and answers on.
            let _ = up.input.flush();
            self.session.wrote_up(up.input.total_written());
        }
        while let Some(outgoing) = self.session.to_client(now) {
            let bytes = outgoing.line.len();
            self.edges.client_out.push(outgoing.line);
            let end = self.edges.client_out.total_pushed();
            for ticket in outgoing.tickets {
                self.session.pushed_down(ticket, end);
            }
            if outgoing.is_ours {
                self.own_answers.push(end, bytes);
            }
        }
        let flushed = self.edges.client_out.flush();
        self.own_answers
            .written(self.edges.client_out.total_written());
        match flushed {
            Ok(Flushed::Done | Flushed::Blocked) => {
                self.session
                    .wrote_down(self.edges.client_out.total_written());
            }
            Ok(Flushed::Broken) | Err(_) => {
                self.session
                    .wrote_down(self.edges.client_out.total_written());
                self.session.client_gone(now);
            }
        }
    }

    /// Returns whether something came of it, so that it is worth another look.
    fn ask_journal(&mut self, now: Instant) -> bool {
        let Some(desk) = &mut self.desk else {
            return false;
        };
        // The bell is silenced first: what rings after that is seen by the next round.
        let answer = desk.take();
        desk.sync(now);
        for probe in self.session.take_probes() {
            desk.probe(probe);
        }
        while let Some(news) = desk.take_news() {
            match news {
                ProbeNews::Asks(question) => self.session.ask_upstream(question, now),
                ProbeNews::Done(place) => self.session.probed(place),
            }
        }
        for (place, heard) in self.session.take_heard() {
            desk.hand_back(place, heard);
        }
        if let Some(answer) = answer {
            self.take_answer(answer, now);
            return true;
        }
        if self.retry.as_ref().is_some_and(|retry| now < retry.next) {
            return false;
        }
        if let Some(retry) = self.retry.take() {
            self.tries = Some(retry.tries);
            return self.submit(retry.ops, retry.reconnects, now);
        }
        if self.session.has_only_lazy_ops() {
            let since = *self.marks_since.get_or_insert(now);
            if now.saturating_duration_since(since) < MARK_WAIT {
                // A delivery's mark rides on the next commit, which is about to come.
                return false;
            }
        }
        self.marks_since = None;
        if self.session.known().is_news
            && let Some(desk) = &mut self.desk
        {
            let known = self.session.known().clone();
            let is_told = desk.describe(|row| {
                if let Some((name, version)) = known.upstream {
                    row.upstream_name = Some(name);
                    row.upstream_version = Some(version);
                }
                if let Some((name, version)) = known.client {
                    row.client_name = Some(name);
                    row.client_version = Some(version);
                }
                row.protocol_version = known.protocol_version.or(row.protocol_version.take());
            });
            if is_told {
                self.session.told_news();
            }
        }
        match self.session.take_ops(now) {
            Some(ops) => self.submit(ops, false, now),
            None => {
                if let Some(desk) = self.desk.as_mut().filter(|_| !self.session.has_calls()) {
                    desk.rest(now);
                }
                false
            }
        }
    }

    fn submit(&mut self, ops: Vec<Op>, reconnects: bool, now: Instant) -> bool {
        let Some(desk) = &mut self.desk else {
            return false;
        };
        match desk.submit(ops, reconnects) {
            Some(answer) => {
                self.take_answer(answer, now);
                true
            }
            None => false,
        }
    }

    fn take_answer(&mut self, answer: Answer, now: Instant) {
        let Answer { ops, result, .. } = answer;
        let tries = self.tries.take();
        let error = match result {
            Ok(done) => {
                drop(ops);
                self.session.journal_done(done, now);
                return;
            }
            Err(error) => error,
        };
        let since = tries.map_or(now, |tries| tries.since);
        let waited = now.saturating_duration_since(since);
        let is_urgent = self.session.phase().is_urgent();
        let mut ops = ops;
        let patience = match &error {
            JournalError::Busy if is_urgent => Duration::from_millis(500),
            JournalError::Busy => {
                if waited >= RESERVE_PATIENCE {
                    ops = self.session.give_up_reservations(ops, &error, now);
                }
                ops = self.session.put_off(ops, now);
                OUTCOME_PATIENCE
            }
            JournalError::Full | JournalError::ReadOnly(_) => {
                ops = self.session.give_up_reservations(ops, &error, now);
                FULL_PATIENCE
            }
            JournalError::Unreadable(_)
            | JournalError::Moved(_)
            | JournalError::Damaged(_)
            | JournalError::Failed(_) => Duration::ZERO,
        };
        if ops.is_empty() {
            return;
        }
        if waited >= patience {
            self.session.journal_failed(ops, &error, now);
            return;
        }
        let pause = tries.map_or(RETRY_PAUSE_MIN, |tries| {
            (tries.pause * 2).min(RETRY_PAUSE_MAX)
        });
        self.retry = Some(Retry {
            ops,
            next: now + pause,
            reconnects: error != JournalError::Busy,
            tries: Tries { since, pause },
        });
    }

    // ---- waiting ----

    fn wait(&mut self) {
        let mut timeout = self.timeout();
        let reads_client = self.wants_client();
        let reads_upstream = self.wants_upstream();
        if (reads_client && self.edges.client_in.has_unread())
            || self
                .up
                .as_ref()
                .is_some_and(|up| reads_upstream && up.output.has_unread())
        {
            timeout = Some(Duration::ZERO);
        }
        let mut fds = Vec::with_capacity(9);
        fds.push(PollFd::new(self.edges.signals.as_fd(), PollFlags::POLLIN));
        let client_index = reads_client.then_some(fds.len());
        if reads_client {
            fds.push(PollFd::new(self.edges.client_in.as_fd(), PollFlags::POLLIN));
        }
        if let Some(fd) = self.edges.client_out.poll_fd() {
            // Asked for even when there is nothing to write: a reader that is gone is news.
            let wants = if self.edges.client_out.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::POLLOUT
            };
            if !self.session.phase().is_client_gone() {
                fds.push(PollFd::new(fd, wants));
            }
        }
        let out_index = fds.len().wrapping_sub(1);
        let watches_out =
            self.edges.client_out.poll_fd().is_some() && !self.session.phase().is_client_gone();
        let (mut upstream_index, mut errors_index) = (None, None);
        if let Some(up) = &self.up {
            if up.output_ended.is_none() && reads_upstream {
                upstream_index = Some(fds.len());
                fds.push(PollFd::new(up.output.as_fd(), PollFlags::POLLIN));
            }
            if !up.errors_ended {
                errors_index = Some(fds.len());
                fds.push(PollFd::new(up.errors.as_fd(), PollFlags::POLLIN));
            }
            if let Some(fd) = up.input.poll_fd().filter(|_| !up.input.is_empty()) {
                fds.push(PollFd::new(fd, PollFlags::POLLOUT));
            }
        }
        if let Some(desk) = &self.desk {
            fds.push(PollFd::new(desk.bell(), PollFlags::POLLIN));
            if let Some(bell) = desk.news_bell() {
                fds.push(PollFd::new(bell, PollFlags::POLLIN));
            }
        }
        let stderr = io::stderr();
        if self.edges.stderr.is_waiting() {
            fds.push(PollFd::new(stderr.as_fd(), PollFlags::POLLOUT));
        }
        let timeout = match timeout {
            // A millisecond more than needed never spins; one less would.
            Some(left) => {
                PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX)
            }
            None => PollTimeout::NONE,
        };
        let polled = poll(&mut fds, timeout);
        let is_gone = watches_out
            && fds
                .get(out_index)
                .and_then(PollFd::revents)
                .is_some_and(|events| events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP));
        let said = |index: Option<usize>| {
            let event = index.and_then(|index| fds.get(index)?.revents());
            // An unknown event is looked into, too.
            index.is_some() && event.is_none_or(|event| !event.is_empty())
        };
        let ready = Ready {
            signals: said(Some(0)),
            client: said(client_index),
            upstream: said(upstream_index),
            errors: said(errors_index),
            drains: false,
        };
        drop(fds);
        // What an interrupted wait says of its descriptors means nothing.
        self.ready = match polled {
            Ok(_) => ready,
            Err(_) => Ready {
                signals: true,
                ..Ready::NOTHING
            },
        };
        if is_gone {
            self.session.client_gone(Instant::now());
        }
        match polled {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => tracing::error!("poll: {error}"),
        }
    }

    fn timeout(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let mut next = self.session.deadline();
        let mut sooner = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        if let Some(retry) = &self.retry {
            sooner(retry.next);
        }
        if self.session.has_only_lazy_ops() && self.retry.is_none() {
            sooner(self.marks_since.unwrap_or(now) + MARK_WAIT);
        }
        if !self.session.has_calls()
            && let Some(at) = self.desk.as_ref().and_then(Desk::rests_at)
        {
            sooner(at);
        }
        if let Some(at) = self.desk.as_ref().and_then(Desk::syncs_at) {
            sooner(at);
        }
        if let (Some(_), false) = (&self.ladder, self.group_over) {
            // The end of a grandchild announces itself to nobody.
            sooner(now + Duration::from_millis(5));
        }
        if let Some(up) = &self.up
            && !self.session.phase().is_upstream_ended()
        {
            let since = [up.output_ended, up.exit.map(|(_, at)| at)];
            if let Some(since) = since.into_iter().flatten().max() {
                sooner(since + LEFTOVER_MAX);
            }
        }
        if self.session.phase().is_upstream_ended() {
            sooner(now + Duration::from_millis(20));
        }
        next.map(|next| next.saturating_duration_since(now))
    }

    // ---- the end ----

    fn is_over(&mut self, now: Instant) -> bool {
        if !self.session.phase().is_upstream_ended() && !self.group_over {
            return false;
        }
        if self.group_over && !self.session.phase().is_upstream_ended() {
            // The ladder is down, and what the group left in its pipes is all there is.
            self.ready = Ready::DRAIN;
            self.read_upstream(now);
            self.read_errors();
            let Some(up) = &mut self.up else { return true };
            if up.output_ended.is_none() && !self.gave_up_on_group {
                // Somebody outside the group holds the output; nobody else will answer.
                up.output_ended = Some(now.checked_sub(LEFTOVER_MAX).unwrap_or(now));
            }
            self.reap(now);
            let Some(up) = &mut self.up else { return true };
            if !self.session.phase().is_upstream_ended() {
                let written = up.input.total_written();
                let end = UpstreamEnd {
                    code: up.exit.and_then(|(status, _)| status.code()),
                    signal: up.exit.and_then(|(status, _)| status.signal()),
                    not_started: None,
                    stderr_tail: self.tail.text(),
                };
                self.session.upstream_ended(end, written, now);
            }
            return false;
        }
        if !self.session.is_idle() || !self.group_over {
            return false;
        }
        let since = *self.over_since.get_or_insert(now);
        let waited = now.saturating_duration_since(since);
        // A client that has not spoken yet is about to: it gets an answer, not a closed pipe.
        if !self.client_spoke
            && !self.client_eof
            && !self.session.phase().is_draining_for_client()
            && now.saturating_duration_since(self.started) < FIRST_WORD_MAX
        {
            return false;
        }
        let patience = if self.session.phase().is_urgent() {
            Duration::from_millis(100)
        } else {
            LAST_WORDS_MAX
        };
        self.edges.client_out.is_empty() || self.edges.client_out.is_closed() || waited >= patience
    }

    fn finish(mut self) -> Session {
        // What the client had written before the upstream was gone is answered, too.
        if !self.session.phase().is_client_gone() {
            self.ready = Ready::DRAIN;
            self.read_client(Instant::now());
        }
        self.session.end_waits();
        self.pump(Instant::now());
        self.session.close_session();
        let deadline = Instant::now() + Duration::from_millis(300);
        loop {
            let now = Instant::now();
            self.pump(now);
            if self.session.is_idle() && self.retry.is_none() || now >= deadline {
                break;
            }
            if self.session.is_asking()
                && self.retry.is_none()
                && let Some(desk) = &mut self.desk
                && let Some(answer) = desk.wait(deadline.saturating_duration_since(now))
            {
                self.take_answer(answer, now);
            } else if let Some(retry) = &self.retry {
                let pause = retry.next.saturating_duration_since(now);
                std::thread::sleep(pause.min(RETRY_PAUSE_MAX));
            }
        }
        // What the journal did not confirm in time is told all the same.
        self.session.tell_kept(None);
        self.write(Instant::now());
        self.edges.client_out.close();
        // Hosts that have sent a signal do not wait for a log to be moved.
        if let Some(desk) = self.desk.take()
            && !self.session.phase().is_urgent()
        {
            desk.close();
        }
        let guardian = std::mem::replace(
            &mut *self.guardian.lock().unwrap_or_else(PoisonError::into_inner),
            Guardian::absent(),
        );
        if self.gave_up_on_group {
            // It goes on where we give up, and holds the session's lock until then.
            drop(guardian);
        } else {
            guardian.dismiss();
        }
        self.edges.stderr.finish(Duration::from_millis(100));
        self.session
    }
}
