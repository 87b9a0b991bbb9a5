//! Writing: from a queue of chunks to a descriptor.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::PollFlags;
use nix::sys::socket::{MsgFlags, sendmsg};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::sys::uio::writev;

use super::{is_ready, set_nonblocking};

/// How much one [`Sink::flush`] writes at most, in bytes, so that no side starves another.
const FLUSH_BYTES_MAX: usize = 1024 * 1024;

/// How many chunks go into one `writev`.
const SLICES_MAX: usize = 64;

/// What a blocking pipe takes without blocking once it polls writable (POSIX `PIPE_BUF`, Linux
/// value; other systems allow at least 512).
const PIPE_BUF_BYTES: usize = if cfg!(target_os = "linux") { 4096 } else { 512 };

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
pub(super) enum Output {
    Own(OwnedFd),
    Stdout(io::Stdout),
    Stderr(io::Stderr),
    Closed,
}

/// How a [`Sink`] writes without ever blocking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
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
    pub(super) how: How,
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

    pub(super) fn new(to: Output, how: How) -> Self {
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

    /// Forgets the queue and returns how many bytes that were; for output that may be lost.
    pub fn discard_queue(&mut self) -> usize {
        self.queue = VecDeque::new();
        self.head = 0;
        std::mem::take(&mut self.queued_bytes)
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
        self.discard_queue();
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

fn send_flags() -> MsgFlags {
    let flags = MsgFlags::MSG_DONTWAIT;
    #[cfg(target_os = "linux")]
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    flags
}
