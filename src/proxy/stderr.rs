//! Our own stderr, which must never hold up a call, and what is kept of the upstream's.
//!
//! Both the log and the copy of the upstream's stderr go through one [`StderrSink`]. In the proxy
//! a reader that does not read costs lines, counted, but no time.
//!
//! Invariants: what is queued is bounded; what is dropped is dropped as whole writes and reported
//! by a later line; a broken stderr stops nothing.
//!
//! This module must not look at what it carries.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing_subscriber::fmt::MakeWriter;

use super::pipe::{Flushed, Sink};

/// How much waits for a slow reader of our stderr, in bytes.
pub const QUEUE_BYTES_MAX: usize = 1024 * 1024;

/// How much of the upstream's last stderr is kept as evidence, in bytes.
pub const TAIL_BYTES_MAX: usize = 8 * 1024;

/// A clonable writer to our stderr; all clones share one queue.
///
/// Starts in direct mode (each write blocks until it is written), for the commands. The proxy
/// changes to queueing with [`StderrSink::queue_to`] before it handles its first call.
#[derive(Debug, Clone)]
pub struct StderrSink(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// `None` in direct mode.
    sink: Option<Sink>,
    dropped_bytes: u64,
    dropped_writes: u64,
    /// Whether the last byte taken was no newline.
    is_mid_line: bool,
}

impl Default for StderrSink {
    fn default() -> Self {
        Self::direct()
    }
}

impl StderrSink {
    /// Writes straight to descriptor 2, waiting for its reader.
    #[must_use]
    pub fn direct() -> Self {
        let state = State {
            sink: None,
            dropped_bytes: 0,
            dropped_writes: 0,
            is_mid_line: false,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Queues from now on; the loop calls [`StderrSink::flush_queue`].
    pub fn queue_to(&self, sink: Sink) {
        self.state().sink = Some(sink);
    }

    /// Takes bytes that are not ours (the upstream's stderr) as they are.
    pub fn copy(&self, bytes: &[u8]) {
        self.state().take(bytes);
    }

    /// Writes what the reader takes now, without waiting; in direct mode there is nothing to do.
    ///
    /// An error of the descriptor (a full disk) costs what is queued and is no one's failure.
    pub fn flush_queue(&self) -> Flushed {
        self.state().flush()
    }

    /// Whether the loop should wait for descriptor 2 ([`io::stderr`]) to become writable.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.state()
            .sink
            .as_ref()
            .is_some_and(|sink| !sink.is_empty())
    }

    /// Writes what is queued, waiting for the reader no longer than `limit`. For the very end.
    pub fn finish(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut state = self.state();
        while state.flush() == Flushed::Blocked {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let Some(fd) = state.sink.as_ref().and_then(Sink::poll_fd) else {
                return;
            };
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            // An interruption just leads to another look at the clock.
            let _ = poll(&mut [PollFd::new(fd, PollFlags::POLLOUT)], timeout);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is sound between any two statements, so a panic elsewhere does not matter.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write is one or more whole lines of ours; they begin on a line of their own.
impl Write for StderrSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        if state.sink.is_some() && state.is_mid_line {
            state.take(b"\n");
        }
        state.take(bytes);
        // The log has no one to tell that it can't be written.
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for StderrSink {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl State {
    fn take(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        let Some(sink) = &mut self.sink else {
            let _ = io::stderr().write_all(bytes);
            return;
        };
        if sink.is_closed() {
            return;
        }
        if sink.queued_bytes() + bytes.len() > QUEUE_BYTES_MAX {
            self.dropped_bytes += bytes.len() as u64;
            self.dropped_writes += 1;
            return;
        }
        self.report_dropped();
        self.is_mid_line = *last != b'\n';
        if let Some(sink) = &mut self.sink {
            sink.push(bytes.to_vec());
        }
    }

    /// Queues a line on what was dropped, if anything was.
    fn report_dropped(&mut self) {
        let Some(sink) = &mut self.sink else { return };
        if self.dropped_writes == 0 {
            return;
        }
        let start = if self.is_mid_line { "\n" } else { "" };
        let (writes, bytes) = (self.dropped_writes, self.dropped_bytes);
        let notice = format!(
            "{start}checkpoint: stderr was not read; {bytes} bytes dropped ({writes} writes)\n"
        );
        sink.push(notice.into_bytes());
        self.is_mid_line = false;
        self.dropped_bytes = 0;
        self.dropped_writes = 0;
    }

    fn flush(&mut self) -> Flushed {
        loop {
            let Some(sink) = &mut self.sink else {
                return Flushed::Done;
            };
            match sink.flush() {
                Ok(Flushed::Done) if self.dropped_writes > 0 => self.report_dropped(),
                Ok(flushed) => return flushed,
                Err(_) => {
                    // Dropped in silence: a report would meet the same error, in each turn.
                    sink.discard_queue();
                    return Flushed::Done;
                }
            }
        }
    }
}

/// The last bytes of a stream.
#[derive(Debug, Clone)]
pub struct Tail {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Default for Tail {
    fn default() -> Self {
        Self::new(TAIL_BYTES_MAX)
    }
}

impl Tail {
    /// Keeps at most `bytes_max` bytes, and needs at most twice that.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            bytes_max,
        }
    }

    /// Adds what has come.
    pub fn push(&mut self, bytes: &[u8]) {
        let new = &bytes[bytes.len().saturating_sub(self.bytes_max)..];
        if self.bytes.len() + new.len() > 2 * self.bytes_max {
            let kept_from = (self.bytes.len() + new.len() - self.bytes_max).min(self.bytes.len());
            self.bytes.drain(..kept_from);
        }
        self.bytes.extend_from_slice(new);
    }

    /// Returns the last bytes, oldest first.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.bytes.len().saturating_sub(self.bytes_max)..]
    }

    /// Returns the last bytes as text; what is no UTF-8 (a character cut in two) is replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

/// Lets a burst pass and then a steady rate, and counts the rest.
#[derive(Debug, Clone)]
pub struct RateLimit {
    interval: Duration,
    burst: u32,
    /// When the burst will be fully available again.
    full_at: Option<Instant>,
    suppressed: u64,
}

impl RateLimit {
    /// Lets `burst` pass at once and `per_second` after that; both at least 1.
    #[must_use]
    pub fn new(burst: u32, per_second: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self {
            interval,
            burst: burst.max(1),
            full_at: None,
            suppressed: 0,
        }
    }

    /// Asks for one to pass: `Some` with how many were suppressed since the last that did, or
    /// `None` if this one is suppressed.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + self.interval;
        if full_at - now > self.interval * self.burst {
            self.suppressed += 1;
            return None;
        }
        self.full_at = Some(full_at);
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Takes the count of those suppressed since the last that passed, for a report at the end.
    pub fn take_suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn queued() -> (StderrSink, std::io::PipeReader) {
        let (read, write) = std::io::pipe().unwrap();
        let stderr = StderrSink::direct();
        stderr.queue_to(Sink::own(write.into()).unwrap());
        (stderr, read)
    }

    /// Drains the sink into its reader and returns what came.
    fn drain(stderr: StderrSink, mut read: std::io::PipeReader) -> String {
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            read.read_to_string(&mut text).unwrap();
            text
        });
        stderr.finish(Duration::from_secs(20));
        assert!(!stderr.is_waiting());
        drop(stderr);
        reader.join().unwrap()
    }

    #[test]
    fn our_lines_begin_on_their_own_line() {
        let (stderr, read) = queued();
        stderr.copy(b"upstream without an end");
        let mut log = stderr.make_writer();
        log.write_all(b"WARN ours\n").unwrap();
        stderr.copy(b"a\n");
        log.write_all(b"INFO ours\n").unwrap();
        assert!(stderr.is_waiting());
        drop(log);
        let text = drain(stderr, read);
        assert_eq!(text, "upstream without an end\nWARN ours\na\nINFO ours\n");
    }

    #[test]
    fn a_reader_that_does_not_read_costs_lines_and_no_time() {
        let (mut stderr, read) = queued();
        let line = [b"x".repeat(999), b"\n".to_vec()].concat();
        for _ in 0..5000 {
            stderr.write_all(&line).unwrap();
            assert_ne!(stderr.flush_queue(), Flushed::Broken);
        }
        let text = drain(stderr, read);
        let (kept, notice): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with('x'));
        assert!(kept.len() * 1000 > QUEUE_BYTES_MAX - 2000);
        let dropped = 5000 - kept.len();
        let expected = format!(
            "checkpoint: stderr was not read; {}000 bytes dropped ({dropped} writes)",
            dropped
        );
        assert_eq!(notice, [expected]);
    }

    #[test]
    fn a_broken_stderr_stops_nothing() {
        let (mut stderr, read) = queued();
        drop(read);
        stderr.write_all(b"line\n").unwrap();
        assert_eq!(stderr.flush_queue(), Flushed::Broken);
        stderr.write_all(b"line\n").unwrap();
        assert!(!stderr.is_waiting());
        stderr.finish(Duration::from_secs(20));
    }

    #[test]
    fn a_tail_keeps_the_last_bytes() {
        let mut tail = Tail::new(4);
        let mut all = Vec::new();
        for piece in ["", "a", "bcd", "ef", "ghijklmnop", "q", "rstu"] {
            tail.push(piece.as_bytes());
            all.extend_from_slice(piece.as_bytes());
            assert_eq!(
                tail.bytes(),
                &all[all.len().saturating_sub(4)..],
                "after {piece:?}"
            );
            assert!(tail.bytes.len() <= 8);
        }
        let mut tail = Tail::new(2);
        tail.push("aé".as_bytes());
        assert_eq!(tail.text(), "é");
        tail.push(b"b");
        assert_eq!(tail.text(), "\u{fffd}b");
    }

    #[test]
    fn a_burst_passes_then_a_rate() {
        let start = Instant::now();
        let mut limit = RateLimit::new(20, 10);
        let passed = (0..50).filter(|_| limit.admit(start).is_some()).count();
        assert_eq!(passed, 20);
        assert_eq!(limit.admit(start + Duration::from_millis(99)), None);
        assert_eq!(limit.admit(start + Duration::from_millis(100)), Some(31));
        assert_eq!(limit.admit(start + Duration::from_millis(100)), None);
        let later = start + Duration::from_secs(60);
        assert_eq!(limit.admit(later), Some(1));
        assert_eq!((1..50).filter(|_| limit.admit(later).is_some()).count(), 19);
        assert_eq!(limit.take_suppressed(), 30);
    }
}
