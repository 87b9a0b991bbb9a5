//! Bytes at the edge: one reader and one writer type for a single `poll(2)` loop.
//!
//! [`Source`] turns what a descriptor delivers into lines, [`Sink`] turns a queue of chunks into
//! writes. Both hold one descriptor and never wait: the loop polls, they act once and return.
//!
//! Invariants:
//!
//! - No byte is changed, dropped or reordered, except a line over the limit, which is reported.
//! - Lines end at `\n` only; a `\r` before it belongs to the line.
//! - `O_NONBLOCK` is never set on an open file description that another process may share: the
//!   client and the shell that started us would find their own end non-blocking.
//! - A line costs memory in proportion to its size, and time too: a byte is searched once.
//!
//! This module must not look into a line, log, or decide what a broken pipe means.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, sendmsg};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::sys::uio::writev;

/// How much one [`Source::fill`] reads at most, in bytes: the size of a pipe on Linux.
pub const READ_BYTES_MAX: usize = 64 * 1024;

/// How much of a line over the limit is kept, in bytes, so that its id can be looked for.
pub const PREFIX_BYTES_MAX: usize = 64 * 1024;

/// How much one [`Sink::flush`] writes at most, in bytes, so that no side starves another.
const FLUSH_BYTES_MAX: usize = 1024 * 1024;

/// How many chunks go into one `writev`.
const SLICES_MAX: usize = 64;

/// What a blocking pipe takes without blocking once it polls writable (POSIX `PIPE_BUF`, Linux
/// value; other systems allow at least 512).
const PIPE_BUF_BYTES: usize = if cfg!(target_os = "linux") { 4096 } else { 512 };

/// Above this, a partial line grows by an eighth and not twofold, so that it costs its own size.
const DOUBLING_BYTES_MAX: usize = 1024 * 1024;

/// What [`Source::fill`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// Bytes are there; call [`Source::next_line`] until it returns `None`.
    Data,
    /// Nothing to read now.
    WouldBlock,
    /// The other side has closed; [`Source::rest`] has what it left without a newline.
    Eof,
}

/// One line of a [`Source`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// The bytes up to and with the `\n` (without one only from [`Source::rest`]).
    Whole(Vec<u8>),
    /// The line was longer than the limit and has been read past.
    TooLong {
        /// Its first bytes, [`PREFIX_BYTES_MAX`] at most.
        prefix: Vec<u8>,
        /// How many bytes came after the prefix, the `\n` included.
        discarded: u64,
    },
}

/// Where a [`Source`] reads.
#[derive(Debug)]
enum Input {
    /// A non-blocking end that only we have.
    Own(OwnedFd),
    /// A description that others may share; it may be blocking, so it is polled before each read.
    Shared(OwnedFd),
    /// Our standard input, which is shared in the same sense.
    Stdin(io::Stdin),
}

/// A reader that splits into lines and never blocks.
///
/// `fill` and `next_line` alternate: `fill` reads once, `next_line` is called until it returns
/// `None`. A caller that stops half-way (its other side is full) just goes on later; until then
/// [`Source::has_unread`] is true and `fill` does nothing.
#[derive(Debug)]
pub struct Source {
    from: Input,
    /// What the last read brought; `unread` is the part that no line has taken yet.
    read: Box<[u8]>,
    unread: std::ops::Range<usize>,
    /// The begun line, without any `\n`.
    partial: Vec<u8>,
    /// While a line over the limit is read past: how many bytes beyond `partial` went away.
    discarded: Option<u64>,
    is_at_eof: bool,
}

impl Source {
    /// Reads a descriptor whose open file description is ours alone, and makes it non-blocking.
    ///
    /// # Errors
    ///
    /// The descriptor's flags can't be changed.
    pub fn own(fd: OwnedFd) -> io::Result<Self> {
        set_nonblocking(fd.as_fd())?;
        Ok(Self::new(Input::Own(fd)))
    }

    /// Reads a descriptor whose open file description others may share; its flags are left alone.
    #[must_use]
    pub fn shared(fd: OwnedFd) -> Self {
        Self::new(Input::Shared(fd))
    }

    /// Reads our standard input; nothing else in the process may read it.
    #[must_use]
    pub fn stdin() -> Self {
        Self::new(Input::Stdin(io::stdin()))
    }

    fn new(from: Input) -> Self {
        Self {
            from,
            read: vec![0; READ_BYTES_MAX].into_boxed_slice(),
            unread: 0..0,
            partial: Vec::new(),
            discarded: None,
            is_at_eof: false,
        }
    }

    /// Reads once, if all that was read before has been taken.
    ///
    /// A peer that vanished (`EIO` of a hung-up terminal, `ECONNRESET`) is an end like any other.
    ///
    /// # Errors
    ///
    /// What `read(2)` says, apart from the above and from interruptions, which are no data yet.
    pub fn fill(&mut self) -> io::Result<Filled> {
        if self.has_unread() {
            return Ok(Filled::Data);
        }
        if self.is_at_eof {
            return Ok(Filled::Eof);
        }
        let fd = match &self.from {
            Input::Own(fd) => fd.as_fd(),
            Input::Shared(fd) => fd.as_fd(),
            Input::Stdin(stdin) => stdin.as_fd(),
        };
        // A read that has been announced can't block, one that has not could for ever.
        if !matches!(self.from, Input::Own(_)) && !is_ready(fd, PollFlags::POLLIN)? {
            return Ok(Filled::WouldBlock);
        }
        match nix::unistd::read(fd, &mut self.read) {
            Ok(0) | Err(Errno::EIO | Errno::ECONNRESET) => {
                self.is_at_eof = true;
                Ok(Filled::Eof)
            }
            Ok(count) => {
                self.unread = 0..count;
                Ok(Filled::Data)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Filled::WouldBlock),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the next line, if its end has been read.
    ///
    /// `max` limits a line in bytes without its `\n`. Past it nothing is kept but the prefix.
    pub fn next_line(&mut self, max: usize) -> Option<Line> {
        if self.unread.is_empty() {
            return None;
        }
        let new = &self.read[self.unread.clone()];
        let Some(at) = memchr::memchr(b'\n', new) else {
            let all = self.unread.clone();
            self.append(all, max);
            self.unread = 0..0;
            return None;
        };
        let end = self.unread.start + at;
        let line = self.unread.start..end + 1;
        self.unread.start = end + 1;
        if self.partial.is_empty() && self.discarded.is_none() && at <= max {
            return Some(Line::Whole(self.read[line].to_vec()));
        }
        // The newline does not count, so that a line of exactly `max` bytes is whole.
        self.append(line.start..end, max);
        if self.discarded.is_none() {
            self.partial.push(b'\n');
        }
        self.discarded = self.discarded.map(|count| count + 1);
        Some(self.take_partial())
    }

    /// Takes what is left after the end of input: a line without `\n`, or nothing.
    ///
    /// Meaningful once `fill` has returned [`Filled::Eof`] and `next_line` has returned `None`.
    pub fn rest(&mut self) -> Option<Line> {
        if self.partial.is_empty() && self.discarded.is_none() {
            return None;
        }
        Some(self.take_partial())
    }

    /// Takes all that has been read as it is, for a stream that has no lines.
    ///
    /// Not to be mixed with `next_line` on one source.
    pub fn take_unread(&mut self) -> &[u8] {
        let all = std::mem::take(&mut self.unread);
        &self.read[all]
    }

    /// Whether bytes have been read that no line has taken: call `next_line` before polling.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// How many bytes are held: the begun line, and what has been read and not been taken.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.partial.len() + self.unread.len()
    }

    /// Whether the end of input has been read.
    #[must_use]
    pub fn is_at_eof(&self) -> bool {
        self.is_at_eof
    }

    /// Adds a piece without `\n` to the begun line, or to what is discarded of it.
    fn append(&mut self, piece: std::ops::Range<usize>, max: usize) {
        let piece = &self.read[piece];
        if let Some(count) = &mut self.discarded {
            // A limit below the prefix's size must not make the prefix depend on the reads' sizes.
            let room = PREFIX_BYTES_MAX.saturating_sub(self.partial.len());
            let kept = piece.len().min(room);
            self.partial.extend_from_slice(&piece[..kept]);
            *count += (piece.len() - kept) as u64;
            return;
        }
        if self.partial.len() + piece.len() > max {
            let kept_bytes = self.partial.len() + piece.len();
            // The prefix is copied, so that the long line's memory is given back now.
            let mut prefix = Vec::with_capacity(kept_bytes.min(PREFIX_BYTES_MAX));
            for part in [self.partial.as_slice(), piece] {
                let room = PREFIX_BYTES_MAX - prefix.len();
                prefix.extend_from_slice(&part[..part.len().min(room)]);
            }
            self.discarded = Some((kept_bytes - prefix.len()) as u64);
            self.partial = prefix;
            return;
        }
        reserve(&mut self.partial, piece.len() + 1);
        self.partial.extend_from_slice(piece);
    }

    fn take_partial(&mut self) -> Line {
        let bytes = std::mem::take(&mut self.partial);
        match self.discarded.take() {
            None => Line::Whole(bytes),
            Some(discarded) => Line::TooLong {
                prefix: bytes,
                discarded,
            },
        }
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.from {
            Input::Own(fd) | Input::Shared(fd) => fd.as_fd(),
            Input::Stdin(stdin) => stdin.as_fd(),
        }
    }
}

/// Makes room for `more` bytes; a large line grows by an eighth, so its time stays linear.
fn reserve(bytes: &mut Vec<u8>, more: usize) {
    let needed = bytes.len() + more;
    if needed <= bytes.capacity() {
        return;
    }
    if needed < DOUBLING_BYTES_MAX {
        bytes.reserve(more);
    } else {
        bytes.reserve_exact(more.max(bytes.capacity() / 8));
    }
}

/// How far [`Sink::flush`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// The queue is empty.
    Done,
    /// The queue is not empty; call again when the descriptor polls writable.
    Blocked,
    /// Nobody reads any more, or the sink was closed. The queue is gone; the counters stand.
    Broken,
}

/// How much of a chunk the other side can have seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The pipe accepted no byte of it.
    Untouched,
    /// The pipe accepted some of it, not all.
    Partial,
    /// The pipe accepted all of it.
    Whole,
}

/// Where a [`Sink`] writes.
#[derive(Debug)]
enum Output {
    Own(OwnedFd),
    Stdout(io::Stdout),
    Stderr(io::Stderr),
    Closed,
}

/// How a [`Sink`] writes without ever blocking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// The description is ours and non-blocking, or a file, which does not block in this sense.
    Write,
    /// A socket whose description is shared: each send asks not to block.
    Send,
    /// A shared blocking description: small writes, each after it polled writable.
    Cautious,
}

/// An ordered queue of chunks to one descriptor.
///
/// `total_pushed` and `total_written` count bytes from the sink's start, so that whoever notes
/// `total_pushed` before and after a push can ask for that chunk's [`Progress`] at any time.
#[derive(Debug)]
pub struct Sink {
    to: Output,
    how: How,
    queue: VecDeque<Vec<u8>>,
    /// How many bytes of the first chunk have been written.
    head: usize,
    queued_bytes: usize,
    total_pushed: u64,
    total_written: u64,
}

impl Sink {
    /// Writes a descriptor whose open file description is ours alone, and makes it non-blocking.
    ///
    /// # Errors
    ///
    /// The descriptor's flags can't be changed.
    pub fn own(fd: OwnedFd) -> io::Result<Self> {
        set_nonblocking(fd.as_fd())?;
        Ok(Self::new(Output::Own(fd), How::Write))
    }

    /// Writes a descriptor whose open file description others may share, without touching it.
    ///
    /// # Errors
    ///
    /// The descriptor can't be looked at.
    pub fn shared(fd: OwnedFd) -> io::Result<Self> {
        let (how, reopened) = approach(fd.as_fd())?;
        Ok(Self::new(Output::Own(reopened.unwrap_or(fd)), how))
    }

    /// Writes our standard output; nothing else in the process may write it.
    ///
    /// Where a description of our own can be had, it takes the place of descriptor 1, so that no
    /// second writer keeps a pipe open after [`Sink::close`].
    ///
    /// # Errors
    ///
    /// Descriptor 1 can't be looked at (it is closed) or replaced.
    pub fn stdout() -> io::Result<Self> {
        let stdout = io::stdout();
        let (how, reopened) = approach(stdout.as_fd())?;
        if let Some(fd) = reopened {
            nix::unistd::dup2_stdout(fd)?;
        }
        Ok(Self::new(Output::Stdout(stdout), how))
    }

    /// Writes our standard error, as [`Sink::stdout`] does the output.
    ///
    /// # Errors
    ///
    /// Descriptor 2 can't be looked at (it is closed) or replaced.
    pub fn stderr() -> io::Result<Self> {
        let stderr = io::stderr();
        let (how, reopened) = approach(stderr.as_fd())?;
        if let Some(fd) = reopened {
            nix::unistd::dup2_stderr(fd)?;
        }
        Ok(Self::new(Output::Stderr(stderr), how))
    }

    fn new(to: Output, how: How) -> Self {
        Self {
            to,
            how,
            queue: VecDeque::new(),
            head: 0,
            queued_bytes: 0,
            total_pushed: 0,
            total_written: 0,
        }
    }

    /// Queues a chunk, which is moved and not copied; a closed sink only counts it.
    pub fn push(&mut self, chunk: Vec<u8>) {
        self.total_pushed += chunk.len() as u64;
        if !chunk.is_empty() && !self.is_closed() {
            self.queued_bytes += chunk.len();
            self.queue.push_back(chunk);
        }
    }

    /// Writes what the other side takes now, a bounded amount, without waiting.
    ///
    /// # Errors
    ///
    /// What `write(2)` says (`ENOSPC`, `EFBIG`, …); the queue is as it was. A reader that is gone
    /// is no error but [`Flushed::Broken`], after which the sink is closed.
    pub fn flush(&mut self) -> io::Result<Flushed> {
        let mut budget = FLUSH_BYTES_MAX;
        loop {
            if self.is_closed() {
                return Ok(Flushed::Broken);
            }
            if self.queue.is_empty() {
                return Ok(Flushed::Done);
            }
            if budget == 0 {
                return Ok(Flushed::Blocked);
            }
            match self.write_once() {
                Ok(0) | Err(Errno::EAGAIN) => return Ok(Flushed::Blocked),
                Ok(count) => {
                    self.advance(count);
                    budget = budget.saturating_sub(count);
                }
                Err(Errno::EINTR) => {}
                // A terminal that was hung up answers EIO, a reader that is gone the others.
                Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN | Errno::EIO) => {
                    self.close();
                    return Ok(Flushed::Broken);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// How many bytes wait in the queue.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Whether nothing waits in the queue.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many bytes have ever been pushed: the offset at which the next chunk begins.
    #[must_use]
    pub fn total_pushed(&self) -> u64 {
        self.total_pushed
    }

    /// How many bytes the other side's pipe has ever accepted.
    #[must_use]
    pub fn total_written(&self) -> u64 {
        self.total_written
    }

    /// How much of the chunk that occupies these offsets has been accepted; also after the end.
    #[must_use]
    pub fn progress(&self, chunk: std::ops::Range<u64>) -> Progress {
        if self.total_written >= chunk.end {
            Progress::Whole
        } else if self.total_written > chunk.start {
            Progress::Partial
        } else {
            Progress::Untouched
        }
    }

    /// Whether the sink was closed or found broken.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.to, Output::Closed)
    }

    /// Closes the descriptor, so that the other side sees the end, and forgets the queue.
    ///
    /// Descriptors 1 and 2 are not left free for the next `open` but lead to the null device.
    pub fn close(&mut self) {
        self.queue = VecDeque::new();
        self.head = 0;
        self.queued_bytes = 0;
        match std::mem::replace(&mut self.to, Output::Closed) {
            Output::Own(_) | Output::Closed => {}
            Output::Stdout(_) => {
                // Without a null device the descriptor stays as it is until we exit.
                let _ = open_null().and_then(nix::unistd::dup2_stdout);
            }
            Output::Stderr(_) => {
                let _ = open_null().and_then(nix::unistd::dup2_stderr);
            }
        }
    }

    fn write_once(&self) -> nix::Result<usize> {
        let Some(fd) = self.poll_fd() else {
            return Err(Errno::EPIPE);
        };
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut used = 0;
        let mut skip = self.head;
        for (slot, chunk) in slices.iter_mut().zip(&self.queue) {
            *slot = IoSlice::new(&chunk[skip..]);
            skip = 0;
            used += 1;
        }
        let slices = &slices[..used];
        match self.how {
            How::Write => writev(fd, slices),
            How::Send => sendmsg::<()>(fd.as_raw_fd(), slices, &[], send_flags(), None),
            How::Cautious => {
                if !is_ready(fd, PollFlags::POLLOUT)? {
                    return Err(Errno::EAGAIN);
                }
                let first = &slices[0];
                nix::unistd::write(fd, &first[..first.len().min(PIPE_BUF_BYTES)])
            }
        }
    }

    fn advance(&mut self, mut count: usize) {
        self.total_written += count as u64;
        self.queued_bytes -= count;
        while let Some(first) = self.queue.front() {
            let left = first.len() - self.head;
            if count < left {
                self.head += count;
                break;
            }
            count -= left;
            self.head = 0;
            self.queue.pop_front();
        }
    }

    /// The descriptor to poll for `POLLOUT` while the queue is not empty, and for `POLLERR` always;
    /// none after the end.
    #[must_use]
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.to {
            Output::Own(fd) => Some(fd.as_fd()),
            Output::Stdout(stdout) => Some(stdout.as_fd()),
            Output::Stderr(stderr) => Some(stderr.as_fd()),
            Output::Closed => None,
        }
    }
}

/// How to write a descriptor that others may share, and its replacement if there is one.
fn approach(fd: BorrowedFd<'_>) -> io::Result<(How, Option<OwnedFd>)> {
    let kind = SFlag::from_bits_truncate(fstat(fd)?.st_mode) & SFlag::S_IFMT;
    if kind == SFlag::S_IFSOCK {
        return Ok((How::Send, None));
    }
    if kind == SFlag::S_IFREG {
        // Opening it again would lose the offset, and with it what others have written.
        return Ok((How::Write, None));
    }
    match reopen(fd) {
        Ok(own) => Ok((How::Write, Some(own))),
        // Another user's pipe, no /proc, or no reader left: writing says the rest.
        Err(_) => Ok((How::Cautious, None)),
    }
}

/// Opens what a pipe or a terminal leads to once more, as a non-blocking description of our own.
fn reopen(fd: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    open(path.as_str(), flags, Mode::empty())
}

fn open_null() -> nix::Result<OwnedFd> {
    open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Whether the descriptor has an event now, its end and its errors included.
fn is_ready(fd: BorrowedFd<'_>, events: PollFlags) -> nix::Result<bool> {
    let mut fds = [PollFd::new(fd, events)];
    Ok(poll(&mut fds, PollTimeout::ZERO)? > 0)
}

fn send_flags() -> MsgFlags {
    let flags = MsgFlags::MSG_DONTWAIT;
    #[cfg(target_os = "linux")]
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    flags
}

#[cfg(test)]
#[path = "pipe_tests.rs"]
mod tests;
