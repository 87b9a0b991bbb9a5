//! Signals as a readable descriptor, so that the one polling thread sees them among the rest.
//!
//! Invariants: nothing happens inside a signal handler but a flag and a byte into a socket pair;
//! SIGXFSZ kills nobody, so a file over its limit is an error of `write` (`EFBIG`); SIGPIPE is
//! ignored by `std` already. The upstream gets default dispositions (`pre_exec`).
//!
//! This module must not decide what a signal means.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::signal::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// What has arrived since the last [`Signals::take`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pending {
    /// How many of SIGTERM, SIGINT and SIGHUP arrived; several of one kind between two calls
    /// count once, as they do in the system.
    pub stop_count: u32,
    /// One of them, by its number, if any arrived.
    pub last_stop: Option<i32>,
    /// Whether SIGCHLD arrived: a child, the upstream or the guardian, may have ended.
    pub child: bool,
}

/// The handlers, for the life of the process: after a drop the signals would have no effect.
#[derive(Debug)]
pub struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Signals {
    /// Installs the handlers. Call once, before the upstream is started.
    ///
    /// # Errors
    ///
    /// No socket pair can be had, or the system refuses a handler.
    pub fn install() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        // A handler must never wait, whatever the loop does.
        write.set_nonblocking(true)?;
        read.set_nonblocking(true)?;
        let wanted = [SIGTERM, SIGINT, SIGHUP, SIGCHLD];
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, wanted)?;
        ignore_file_size_signal()?;
        Ok(Self { delivery })
    }

    /// Takes what has arrived; the descriptor is silent until the next signal. Never waits.
    pub fn take(&mut self) -> Pending {
        let mut pending = Pending::default();
        for signal in self.delivery.pending() {
            if signal == SIGCHLD {
                pending.child = true;
            } else {
                pending.stop_count += 1;
                pending.last_stop = Some(signal);
            }
        }
        pending
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}

/// Turns SIGXFSZ into `EFBIG`; also for the commands that need no other handler.
///
/// # Errors
///
/// The system refuses the handler.
pub fn ignore_file_size_signal() -> io::Result<()> {
    // A handler and not SIG_IGN: what is ignored would be inherited by the upstream.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use signal_hook::low_level::raise;

    use super::*;

    fn is_readable(signals: &Signals, timeout: PollTimeout) -> bool {
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        // The signal itself may interrupt the wait for it.
        poll(&mut fds, timeout) == Err(Errno::EINTR) || poll(&mut fds, PollTimeout::ZERO) == Ok(1)
    }

    /// One test, since signals belong to the whole process.
    #[test]
    fn signals_arrive_on_the_descriptor_and_kill_nobody() {
        let mut signals = Signals::install().unwrap();
        // Other tests' children may end at any time, so `child` is not looked at before ours.
        let stops = |pending: Pending| (pending.stop_count, pending.last_stop);
        assert_eq!(stops(signals.take()), (0, None));
        raise(SIGTERM).unwrap();
        assert!(is_readable(&signals, PollTimeout::MAX));
        assert_eq!(stops(signals.take()), (1, Some(SIGTERM)));
        assert_eq!(stops(signals.take()), (0, None));
        raise(SIGINT).unwrap();
        raise(SIGHUP).unwrap();
        assert_eq!(signals.take().stop_count, 2);

        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !signals.take().child {
            assert!(is_readable(&signals, PollTimeout::from(10_000u16)));
        }
        child.wait().unwrap();

        // It comes as an error of `write` instead; `tests/unix_edges.rs` has the limit for that.
        raise(SIGXFSZ).unwrap();
    }
}
