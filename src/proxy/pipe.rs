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

mod sink;
mod source;

use std::io;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub use sink::{Flushed, Progress, Sink};
pub use source::{Filled, Line, PREFIX_BYTES_MAX, READ_BYTES_MAX, Source};

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Whether the descriptor has an event now, its end and its errors included.
fn is_ready(fd: BorrowedFd<'_>, events: PollFlags) -> nix::Result<bool> {
    let mut fds = [PollFd::new(fd, events)];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
