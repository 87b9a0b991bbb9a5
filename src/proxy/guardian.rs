//! The guardian: a small process that outlives a killed proxy and ends what it left.
//!
//! A parent-death signal reaches the direct child only, and nothing of ours runs after SIGKILL.
//! So the proxy starts this program once more, in a session of its own, on one end of a socket
//! pair. While the other end is open the guardian sleeps. When it closes without a farewell, the
//! guardian ends the upstream's process group, and only then lets go of the session's lock, so
//! that a free lock means a dead upstream.
//!
//! Invariants:
//!
//! - The upstream announces itself before it becomes the upstream, so it is never unknown here.
//! - The guardian is deaf to TERM, INT and HUP, and has no descriptor of the client's.
//! - It ends: at once after a farewell, otherwise within 5 s of the proxy's end.
//! - Its absence breaks no call. The proxy logs it and goes on.
//!
//! This module must not read the journal or decide anything about calls.
//!
//! Protocol: messages of 16 bytes, the first a tag: `W` (then, from the 4th, the process group as
//! `i32` and from the 8th the leader's start as `u64` ticks, 0 for 'look it up', both native),
//! `H` (with one descriptor, to be kept open), `G` (the group is gone by the proxy's own hand).

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, getsockopt, recvmsg, send,
    sendmsg, socketpair, sockopt,
};
use nix::unistd::Pid;

use super::group::ProcessGroup;
use super::pre_exec;

/// The first argument that makes this program a guardian. Not for people, so not in the help.
pub const MARKER: &str = "__guardian";

/// The name under which the guardian is listed, so that it is not killed by the proxy's name.
#[cfg(target_os = "linux")]
const LISTED_NAME: &std::ffi::CStr = c"ckpt-guardian";

const MESSAGE_BYTES: usize = 16;
const WATCH: u8 = b'W';
const HOLD: u8 = b'H';
const GONE: u8 = b'G';

/// How long a group has to end by itself, since its input is closed, before SIGTERM.
const EOF_PATIENCE: Duration = Duration::from_millis(1500);
/// How long it has after SIGTERM before SIGKILL.
const TERM_PATIENCE: Duration = Duration::from_millis(1000);
/// How long the kernel has to carry out SIGKILL. A member that is still listed then runs no more.
const KILL_PATIENCE: Duration = Duration::from_millis(1500);
/// How often the group is looked at: its members are not our children and tell us nothing.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long [`Guardian::dismiss`] waits for its end.
const DISMISS_PATIENCE: Duration = Duration::from_millis(250);

/// The proxy's side: owns the guardian's process and our end of the socket.
///
/// Dropping it without [`Guardian::release`] means what a crash means.
#[derive(Debug)]
pub struct Guardian {
    socket: Option<OwnedFd>,
    child: Option<Child>,
}

impl Guardian {
    /// Starts a guardian from the running program's own file, also if that was replaced since.
    ///
    /// Returns when it has been executed, not when it is ready: messages wait in the socket.
    /// Call before other threads exist, and before the upstream is started.
    ///
    /// # Errors
    ///
    /// No socket pair, no process, or no way to find our own file.
    pub fn spawn() -> io::Result<Self> {
        let own = Path::new("/proc/self/exe");
        let program = if own.exists() {
            own.to_owned()
        } else {
            std::env::current_exe()?
        };
        Self::spawn_program(&program)
    }

    /// Starts a guardian from the given program, which must be this one, by its absolute path.
    ///
    /// # Errors
    ///
    /// As [`Guardian::spawn`].
    pub fn spawn_program(program: &Path) -> io::Result<Self> {
        let family = AddressFamily::Unix;
        #[cfg(target_os = "linux")]
        let (ours, theirs) = socketpair(family, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        #[cfg(not(target_os = "linux"))]
        let (ours, theirs) = {
            let pair = socketpair(family, SockType::Stream, None, SockFlag::empty())?;
            let flag = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
            nix::fcntl::fcntl(&pair.0, flag)?;
            pair
        };
        let mut command = Command::new(program);
        command
            .arg0(own_name())
            .arg(MARKER)
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        pre_exec::guardian(&mut command);
        let child = command.spawn()?;
        Ok(Self {
            socket: Some(ours),
            child: Some(child),
        })
    }

    /// Stands for a guardian that could not be started: every message to it fails.
    #[must_use]
    pub fn absent() -> Self {
        Self {
            socket: None,
            child: None,
        }
    }

    /// Names the group to end if we end without a farewell.
    ///
    /// # Errors
    ///
    /// The guardian is dead or absent: log it, calls go on.
    pub fn watch(&mut self, group: ProcessGroup) -> io::Result<()> {
        self.send(&watch_message(group), None)
    }

    /// Has the guardian keep the descriptor's open file description, and any lock on it, until
    /// the group is gone.
    ///
    /// # Errors
    ///
    /// As [`Guardian::watch`].
    pub fn hold(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.send(&tagged(HOLD), Some(fd))
    }

    /// Says that the group is gone by our own hand: nothing is to be ended any more.
    ///
    /// # Errors
    ///
    /// As [`Guardian::watch`].
    pub fn release(&mut self) -> io::Result<()> {
        self.send(&tagged(GONE), None)
    }

    /// Releases the guardian and waits briefly for its end, so that what it held is free.
    ///
    /// Takes well under a millisecond if it is well. A guardian that does not end in time is left
    /// to itself: it ends when it is scheduled.
    pub fn dismiss(mut self) {
        // A guardian that can't be told is dead or will find the group gone by itself.
        let _ = self.release();
        self.socket = None;
        let Some(mut child) = self.child.take() else {
            return;
        };
        let deadline = Instant::now() + DISMISS_PATIENCE;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Whether the guardian's process still runs; reaps it if not. For a SIGCHLD.
    pub fn is_alive(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// The guardian's process id, for the log and for tests.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.child
            .as_ref()
            .and_then(|child| i32::try_from(child.id()).ok())
    }

    /// The socket through which a child announces itself between `fork` and `exec`.
    pub(super) fn announce_fd(&self) -> Option<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn send(
        &mut self,
        message: &[u8; MESSAGE_BYTES],
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let Some(socket) = &self.socket else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let raw = fd.map(|fd| [fd.as_raw_fd()]);
        let rights = raw.as_ref().map(|raw| [ControlMessage::ScmRights(raw)]);
        let controls = rights.as_ref().map_or(&[][..], |rights| &rights[..]);
        let slices = [IoSlice::new(message)];
        let sent = sendmsg::<()>(socket.as_raw_fd(), &slices, controls, send_flags(), None);
        match sent {
            Ok(MESSAGE_BYTES) => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => {
                // A dead guardian stays dead; the next message fails without a system call.
                if error != Errno::EAGAIN {
                    self.socket = None;
                }
                Err(error.into())
            }
        }
    }
}

/// Announces the calling process as a group to watch, between `fork` and `exec`.
///
/// Async-signal-safe: one message on the stack, one `send`. A failure has no consequence here,
/// since the parent sends the same, with the start time, and reports it.
pub(super) fn announce(socket: RawFd, leader: Pid) {
    let group = ProcessGroup {
        pgid: leader.as_raw(),
        started_at_ticks: 0,
    };
    let _ = send(socket, &watch_message(group), send_flags());
}

fn tagged(tag: u8) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[0] = tag;
    message
}

fn watch_message(group: ProcessGroup) -> [u8; MESSAGE_BYTES] {
    let mut message = tagged(WATCH);
    message[4..8].copy_from_slice(&group.pgid.to_ne_bytes());
    message[8..16].copy_from_slice(&group.started_at_ticks.to_ne_bytes());
    message
}

fn send_flags() -> MsgFlags {
    let flags = MsgFlags::MSG_DONTWAIT;
    #[cfg(target_os = "linux")]
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    flags
}

fn own_name() -> PathBuf {
    std::env::args_os()
        .next()
        .map_or_else(|| PathBuf::from("checkpoint"), PathBuf::from)
}

/// Whether the arguments ask for a guardian.
#[must_use]
pub fn is_asked_for(first_argument: Option<&OsStr>) -> bool {
    first_argument == Some(OsStr::new(MARKER))
}

/// Is the guardian, and never returns. Descriptor 0 must be its end of the socket.
///
/// Ends with code 0 after its work, and with 64 if a person has started it.
pub fn run() -> ! {
    let stdin = io::stdin();
    let is_socket = getsockopt(&stdin, sockopt::SockType).is_ok();
    if !is_socket {
        std::process::exit(64);
    }
    #[cfg(target_os = "linux")]
    {
        // The name is for listings only.
        let _ = nix::sys::prctl::set_name(LISTED_NAME);
    }
    if let Some(group) = listen(stdin.as_fd()) {
        end(group);
    }
    // Leaving closes what is held; there is nothing to do after it.
    std::process::exit(0)
}

/// Sleeps until the proxy is gone or has said farewell; returns the group to end, if any.
fn listen(socket: BorrowedFd<'_>) -> Option<ProcessGroup> {
    let mut watched = None;
    while let Some(message) = receive(socket) {
        match message[0] {
            WATCH => watched = parse_watch(&message).or(watched),
            // The descriptor came with it and is open from now on.
            HOLD => {}
            GONE => return None,
            // A message of a later version: ending the group stays the right thing to do.
            _ => {}
        }
    }
    watched
}

/// Receives one message; `None` at the end of the stream and on any error.
fn receive(socket: BorrowedFd<'_>) -> Option<[u8; MESSAGE_BYTES]> {
    let mut message = [0; MESSAGE_BYTES];
    let mut filled = 0;
    // Room for more than one descriptor, so that none is cut off and closed.
    let mut control = nix::cmsg_space!([RawFd; 4]);
    while filled < MESSAGE_BYTES {
        let mut slices = [IoSliceMut::new(&mut message[filled..])];
        let flags = MsgFlags::empty();
        match recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags) {
            Ok(received) if received.bytes == 0 => return None,
            Ok(received) => filled += received.bytes,
            Err(Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
    Some(message)
}

fn parse_watch(message: &[u8; MESSAGE_BYTES]) -> Option<ProcessGroup> {
    let pgid = i32::from_ne_bytes(message[4..8].try_into().ok()?);
    let started_at_ticks = u64::from_ne_bytes(message[8..16].try_into().ok()?);
    if started_at_ticks != 0 {
        return Some(ProcessGroup {
            pgid,
            started_at_ticks,
        });
    }
    let group = ProcessGroup::led_by(pgid);
    // Where start times are known, a leader without one has ended already (its program could not
    // be executed), and its number may come to mean someone else.
    let is_known_gone = group.started_at_ticks == 0 && Path::new("/proc/self/stat").exists();
    (!is_known_gone).then_some(group)
}

/// Ends a group whose input is closed: patience, SIGTERM, patience, SIGKILL.
fn end(group: ProcessGroup) {
    if is_gone_within(group, EOF_PATIENCE, None)
        || is_gone_within(group, TERM_PATIENCE, Some(Signal::SIGTERM))
    {
        return;
    }
    let deadline = Instant::now() + KILL_PATIENCE;
    while Instant::now() < deadline {
        // Repeated, since a member may fork while the signal goes round.
        if is_gone_within(group, LOOK_EVERY, Some(Signal::SIGKILL)) {
            return;
        }
    }
}

/// Signals the group, then watches it for at most `patience`.
fn is_gone_within(group: ProcessGroup, patience: Duration, signal: Option<Signal>) -> bool {
    let deadline = Instant::now() + patience;
    if let Some(signal) = signal {
        // Members of another user can't be signalled; then waiting is all that is left.
        let _ = group.signal(signal);
    }
    loop {
        if !group.is_alive() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}
