//! What runs between `fork` and `exec`: the one place where `unsafe` is allowed.
//!
//! `std` calls a `pre_exec` closure in the forked child, where only async-signal-safe calls may
//! be made: another thread of the parent may have held any lock (the allocator's too) at the fork.
//! So everything here works on integers that were prepared before, allocates nothing, locks
//! nothing and calls nothing but thin wrappers of system calls. `std` has by then set the
//! descriptors 0 to 2, the process group and an empty signal mask.
//!
//! This module must not do anything that can be done before the fork or after the exec.
#![expect(
    unsafe_code,
    reason = "pre_exec, signal(2) and close_range(2) have no safe form; argued above and at each"
)]

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::unistd::{Pid, getpid, getppid, setsid};

/// The signal numbers whose dispositions survive an `exec` when they are ignored.
const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=64;

/// Up to where descriptors are marked one by one on kernels without `close_range`.
const FALLBACK_FDS_MAX: RawFd = 4096;

/// Prepares a command that becomes the upstream.
///
/// In the child, in this order: it is announced to the guardian (`announce`), so that no instant
/// is left in which it lives unknown; it gets SIGTERM when our main thread ends; its signals have
/// default dispositions; every descriptor but 0, 1 and 2 closes on exec.
///
/// Why SIGTERM: it is the backstop for when the guardian is dead as well, and reaches the direct
/// child only. SIGKILL would fell a shell and leave what it runs, and tear an effect in the
/// middle that nothing prevents from finishing; the guardian has SIGKILL for the deaf.
pub(super) fn upstream(command: &mut Command, announce: Option<RawFd>) {
    let parent = getpid();
    // SAFETY: the closure calls only functions of this module, which keep the rule above.
    unsafe {
        command.pre_exec(move || {
            if let Some(socket) = announce {
                super::guardian::announce(socket, getpid());
            }
            die_with(parent)?;
            set_signals(SIGNALS, libc::SIG_DFL);
            close_on_exec()
        });
    }
}

/// Prepares a command that becomes the guardian: a session of its own, deaf to TERM, INT and HUP
/// from its first instruction, and no descriptor but 0, 1 and 2.
pub(super) fn guardian(command: &mut Command) {
    // SAFETY: the closure calls only functions of this module, which keep the rule above.
    unsafe {
        command.pre_exec(move || {
            setsid()?;
            set_signals([libc::SIGTERM, libc::SIGINT, libc::SIGHUP], libc::SIG_IGN);
            close_on_exec()
        });
    }
}

/// Asks for SIGTERM when the parent's spawning thread ends, and fails if it has ended already.
fn die_with(parent: Pid) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)?;
    if getppid() != parent {
        return Err(io::Error::from_raw_os_error(libc::ECHILD));
    }
    Ok(())
}

fn set_signals(signals: impl IntoIterator<Item = libc::c_int>, disposition: libc::sighandler_t) {
    for signal in signals {
        // SAFETY: SIG_DFL and SIG_IGN run no code of ours. Numbers that can't be set (KILL, STOP,
        // those the C library keeps) are refused by the system, which is what we want.
        unsafe {
            libc::signal(signal, disposition);
        }
    }
}

/// Marks every descriptor above 2 close-on-exec; `std` still needs its own until then.
fn close_on_exec() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: takes integers only and touches no memory of ours.
        let result = unsafe {
            libc::syscall(
                libc::SYS_close_range,
                3,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            )
        };
        if result == 0 {
            return Ok(());
        }
    }
    for fd in 3..FALLBACK_FDS_MAX {
        // SAFETY: takes integers only; a number that is not open is refused with EBADF.
        unsafe {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
    Ok(())
}
