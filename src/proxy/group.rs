//! A process group, told apart from a later one that was given the same number.
//!
//! The proxy, its guardian and the operator's commands all ask whether an upstream still lives.
//! A number alone can't tell: a process that has ended and that nobody waits for still answers
//! `kill(0)`, and numbers are used again.
//!
//! Invariants:
//!
//! - A group is signalled only while it can still be the one that was meant.
//! - When in doubt, a group is alive: saying so costs an operator a look, the contrary an effect.
//!
//! This module must not wait.

use std::io;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// A process group, as its number and its leader's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessGroup {
    /// The group's number, which is its leader's process id; above 1.
    pub pgid: i32,
    /// When the leader started, in clock ticks after boot; 0 where the system does not say.
    ///
    /// Tells two processes of one number apart within one boot, so keep [`boot_id`] beside it.
    pub started_at_ticks: u64,
}

impl ProcessGroup {
    /// Describes the group that the living (or not yet waited for) process leads.
    #[must_use]
    pub fn led_by(pid: i32) -> Self {
        let started_at_ticks = stat(pid).map_or(0, |stat| stat.started_at_ticks);
        Self {
            pgid: pid,
            started_at_ticks,
        }
    }

    /// Whether a member is left that could still do something.
    ///
    /// Members that have ended and were not waited for don't count: under an init process that
    /// does not reap they stay for ever.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        if self.pgid <= 1 {
            return false;
        }
        // Mostly the leader lives, and then one file says it all.
        if let Some(leader) = stat(self.pgid) {
            if self.is_not_from(leader.started_at_ticks) {
                // The system gives no number to a process while a group bears it, so another
                // process of that number proves that the group we knew has ended.
                return false;
            }
            if !leader.is_over && leader.pgid == self.pgid {
                return true;
            }
        }
        // A listing is no snapshot: a member may fork and end while it is read, so that neither is
        // seen. Two listings that miss everything are enough, since numbers are given upwards.
        (0..2).any(|_| self.is_listed())
    }

    fn is_listed(&self) -> bool {
        if killpg(Pid::from_raw(self.pgid), None) == Err(Errno::ESRCH) {
            return false;
        }
        let Some(members) = members(self.pgid) else {
            return true;
        };
        members
            .iter()
            .any(|member| !member.is_over && member.started_at_ticks >= self.started_at_ticks)
    }

    /// Sends a signal to every member; a group that is gone is none the worse for it.
    ///
    /// # Errors
    ///
    /// `EPERM`: there are members, and none of them may be signalled by us.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        match killpg(Pid::from_raw(self.pgid), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn is_not_from(&self, started_at_ticks: u64) -> bool {
        self.started_at_ticks != 0 && self.started_at_ticks != started_at_ticks
    }
}

/// Whether a recorded group still has a member that could do something, for another process.
///
/// `started_at_ticks` may be 0 for 'unknown'. Meaningful only within the boot and the process
/// namespace in which the group was recorded.
#[must_use]
pub fn group_alive_at(pgid: i32, started_at_ticks: u64) -> bool {
    ProcessGroup {
        pgid,
        started_at_ticks,
    }
    .is_alive()
}

/// Names the running boot, so that start times of another one are not compared; `None` where the
/// system has no such name.
///
/// Source: `proc_sys_kernel(5)`, `random/boot_id`.
#[must_use]
pub fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

/// What `/proc/<pid>/stat` says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    pid: i32,
    pgid: i32,
    /// Ended and not waited for, or about to vanish.
    is_over: bool,
    started_at_ticks: u64,
}

/// Lists a group's members, ended ones included; `None` where there is no `/proc` to read.
fn members(pgid: i32) -> Option<Vec<Stat>> {
    let mut members = Vec::new();
    let mut has_seen_any = false;
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Some(stat) = stat(pid) else { continue };
        has_seen_any = true;
        if stat.pgid == pgid {
            members.push(stat);
        }
    }
    has_seen_any.then_some(members)
}

fn stat(pid: i32) -> Option<Stat> {
    parse_stat(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the fields after the command name, which may itself contain blanks and brackets.
///
/// Source: `proc_pid_stat(5)`: state is field 3, pgrp 5, starttime 22.
fn parse_stat(pid: i32, line: &[u8]) -> Option<Stat> {
    let after_name = memchr::memrchr(b')', line)?;
    let rest = std::str::from_utf8(line.get(after_name + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        pid,
        pgid: fields.get(2)?.parse().ok()?,
        is_over: matches!(*fields.first()?, "Z" | "X" | "x"),
        started_at_ticks: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_command_name_can_not_confuse_the_reader() {
        let line = b"42 (a) Z 1 (b)) S 1 41 40 0 -1 4 0 0 0 0 1 2 3 4 20 0 1 0 777 0 0\n";
        let expected = Stat {
            pid: 42,
            pgid: 41,
            is_over: false,
            started_at_ticks: 777,
        };
        assert_eq!(parse_stat(42, line), Some(expected));
        assert_eq!(parse_stat(42, b"42 (a) Z 1"), None);
        assert_eq!(parse_stat(42, b""), None);
    }

    #[test]
    fn a_child_nobody_waited_for_is_not_alive() {
        let mut child = Command::new("cat")
            .process_group(0)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let group = ProcessGroup::led_by(i32::try_from(child.id()).unwrap());
        assert!(group.started_at_ticks > 0);
        assert!(group.is_alive());
        assert!(
            group_alive_at(group.pgid, 0),
            "an unknown start is no proof of its end"
        );
        assert!(
            !group_alive_at(group.pgid, group.started_at_ticks - 1),
            "another process"
        );
        assert!(
            !group_alive_at(group.pgid, group.started_at_ticks + 1),
            "another process"
        );
        group.signal(Signal::SIGKILL).unwrap();
        // Waits for the end without reaping, so that the zombie stays to be looked at.
        let id = nix::sys::wait::Id::Pid(Pid::from_raw(group.pgid));
        let flags = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
        nix::sys::wait::waitid(id, flags).unwrap();
        assert!(
            killpg(Pid::from_raw(group.pgid), None).is_ok(),
            "the number alone says it lives"
        );
        assert!(!group.is_alive());
        child.wait().unwrap();
        assert!(!group.is_alive());
        group.signal(Signal::SIGKILL).unwrap();
    }

    #[test]
    fn numbers_that_mean_something_else_to_kill_are_no_groups() {
        for pgid in [-1, 0, 1] {
            assert!(!group_alive_at(pgid, 0));
            let group = ProcessGroup {
                pgid,
                started_at_ticks: 0,
            };
            group.signal(Signal::SIGKILL).unwrap();
        }
    }
}
