//! The upstream's process: started in a group of its own, and its end observed.
//!
//! Invariants:
//!
//! - Started from the main thread only: the parent-death signal fires when the spawning *thread*
//!   ends (`prctl(2)`, `PR_SET_PDEATHSIG`).
//! - The upstream has descriptors 0, 1 and 2, default signals and nothing else of ours.
//! - Our ends of its pipes are non-blocking, close on exec, and held by no other process, so the
//!   upstream sees end of input the moment we end, however we end.
//! - Its process group is signalled, never a single process.
//!
//! This module must not decide when to shut down ([`super::ladder`]) or read what comes.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::Signal;

use super::group::ProcessGroup;
use super::guardian::Guardian;
use super::pipe::{Sink, Source};
use super::pre_exec;

/// How the upstream is named on our command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamCommand {
    /// Run by `/bin/sh -c`, so quotes, `$VAR` and `&&` work.
    Shell(String),
    /// The exact argument vector, no shell; never empty.
    Argv(Vec<OsString>),
}

impl UpstreamCommand {
    fn command(&self) -> io::Result<Command> {
        match self {
            Self::Shell(line) => {
                let mut command = Command::new("/bin/sh");
                command.arg("-c").arg(line);
                Ok(command)
            }
            Self::Argv(argv) => {
                let (program, arguments) = argv.split_first().ok_or_else(|| {
                    io::Error::new(io::ErrorKind::InvalidInput, "an empty command")
                })?;
                let mut command = Command::new(program);
                command.args(arguments);
                Ok(command)
            }
        }
    }
}

/// Our ends of the upstream's pipes.
#[derive(Debug)]
pub struct Pipes {
    /// Its standard input.
    pub input: Sink,
    /// Its standard output.
    pub output: Source,
    /// Its standard error.
    pub errors: Source,
}

/// A started upstream. Dropping it neither ends nor waits for it.
#[derive(Debug)]
pub struct Upstream {
    child: Child,
    group: ProcessGroup,
    status: Option<ExitStatus>,
    unguarded: Option<io::Error>,
}

impl Upstream {
    /// Starts the upstream; on return it has been executed and the guardian knows its group.
    ///
    /// # Errors
    ///
    /// It can't be executed, or no pipes or process can be had. A dead guardian is no error but
    /// [`Upstream::unguarded`].
    pub fn spawn(command: &UpstreamCommand, guardian: &mut Guardian) -> io::Result<(Self, Pipes)> {
        let mut command = command.command()?;
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        pre_exec::upstream(&mut command, guardian.announce_fd());
        let mut child = command.spawn()?;
        let pid = i32::try_from(child.id()).expect("a process id fits pid_t");
        let group = ProcessGroup::led_by(pid);
        let unguarded = guardian.watch(group).err();
        let pipes = Pipes {
            input: Sink::own(taken(child.stdin.take().map(OwnedFd::from)))?,
            output: Source::own(taken(child.stdout.take().map(OwnedFd::from)))?,
            errors: Source::own(taken(child.stderr.take().map(OwnedFd::from)))?,
        };
        Ok((
            Self {
                child,
                group,
                status: None,
                unguarded,
            },
            pipes,
        ))
    }

    /// Why nobody will end this upstream if the proxy is killed, if that is so.
    #[must_use]
    pub fn unguarded(&self) -> Option<&io::Error> {
        self.unguarded.as_ref()
    }

    /// The direct child's process id, which is its group's number too.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.group.pgid
    }

    /// The process group's number.
    #[must_use]
    pub fn pgid(&self) -> i32 {
        self.group.pgid
    }

    /// When the direct child started, in clock ticks after boot; 0 where the system does not say.
    #[must_use]
    pub fn started_at_ticks(&self) -> u64 {
        self.group.started_at_ticks
    }

    /// The process group, as it can be recorded and asked for later.
    #[must_use]
    pub fn group(&self) -> ProcessGroup {
        self.group
    }

    /// Reaps the direct child if it has ended; its status stays known. Never waits.
    ///
    /// # Errors
    ///
    /// Someone else has waited for our child.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Whether any member of the group could still do something; reaps the direct child first.
    ///
    /// While the direct child has ended and another member has not, this reads all of `/proc`.
    pub fn group_alive(&mut self) -> bool {
        // A child that can't be waited for is judged by what the system lists.
        matches!(self.try_wait(), Ok(None)) || self.group.is_alive()
    }

    /// Sends a signal to the whole group; nothing happens if it is gone.
    ///
    /// # Errors
    ///
    /// None of the members may be signalled by us.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        self.group.signal(signal)
    }
}

fn taken(pipe: Option<OwnedFd>) -> OwnedFd {
    pipe.expect("each of the three was asked for as a pipe")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::ladder::{Ladder, Pace, Step};
    use super::super::pipe::{Filled, Flushed, Line};
    use super::*;

    fn shell(line: &str) -> (Upstream, Pipes) {
        let command = UpstreamCommand::Shell(line.to_owned());
        Upstream::spawn(&command, &mut Guardian::absent()).unwrap()
    }

    /// Waits for the next line; the pipe's readiness is the event.
    fn line(source: &mut Source) -> Option<String> {
        loop {
            if let Some(Line::Whole(line)) = source.next_line(1 << 20) {
                return Some(String::from_utf8(line).unwrap());
            }
            match source.fill().unwrap() {
                Filled::Data => {}
                Filled::Eof => return None,
                Filled::WouldBlock => wait_readable(source, Duration::from_secs(10)),
            }
        }
    }

    fn wait_readable(source: &Source, limit: Duration) {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use std::os::fd::AsFd;
        let mut fds = [PollFd::new(source.as_fd(), PollFlags::POLLIN)];
        // Interrupted by another test's signal, it is asked again by the caller.
        let _ = poll(&mut fds, PollTimeout::try_from(limit).unwrap());
    }

    /// Climbs the ladder as the loop does; returns the steps taken and how long it took.
    fn climb(
        upstream: &mut Upstream,
        pipes: &mut Pipes,
        pace: Pace,
    ) -> (Vec<&'static str>, Duration) {
        let began = Instant::now();
        let mut ladder = Ladder::new(pace);
        let mut steps = Vec::new();
        loop {
            let alive = upstream.group_alive();
            let look_again = match ladder.next(Instant::now(), alive) {
                Step::CloseInput { look_again } => {
                    steps.push("close");
                    pipes.input.close();
                    look_again
                }
                Step::Terminate { look_again } => {
                    steps.push("term");
                    upstream.signal_group(Signal::SIGTERM).unwrap();
                    look_again
                }
                Step::Kill { look_again } => {
                    steps.push("kill");
                    upstream.signal_group(Signal::SIGKILL).unwrap();
                    look_again
                }
                Step::Wait { look_again } => look_again,
                Step::Gone => return (steps, began.elapsed()),
                Step::GivenUp => panic!("a survivor"),
            };
            std::thread::sleep(look_again.saturating_duration_since(Instant::now()));
        }
    }

    #[test]
    fn an_upstream_that_ends_on_eof_is_gone_at_once() {
        let (mut upstream, mut pipes) = shell("cat; exit 7");
        pipes.input.push(b"hello\n".to_vec());
        assert_eq!(pipes.input.flush().unwrap(), Flushed::Done);
        assert_eq!(line(&mut pipes.output).unwrap(), "hello\n");
        let (steps, took) = climb(&mut upstream, &mut pipes, Pace::Leisurely);
        assert_eq!(steps, ["close"]);
        assert!(took < Duration::from_millis(500), "{took:?}");
        assert_eq!(line(&mut pipes.output), None);
        assert_eq!(upstream.try_wait().unwrap().unwrap().code(), Some(7));
    }

    #[test]
    fn a_group_deaf_to_eof_and_term_is_killed_with_its_grandchildren() {
        let (mut upstream, mut pipes) =
            shell("trap '' TERM; sleep 1000 & sleep 1000 & echo $!; wait; wait");
        let grandchild: i32 = line(&mut pipes.output).unwrap().trim().parse().unwrap();
        let (steps, took) = climb(&mut upstream, &mut pipes, Pace::Urgent);
        assert_eq!(steps, ["close", "term", "kill"]);
        assert!(took < Duration::from_millis(900), "{took:?}");
        let left = super::super::group::ProcessGroup::led_by(grandchild);
        assert!(!left.is_alive());
        assert!(!upstream.group_alive());
    }

    #[test]
    fn a_grandchild_that_outlives_the_shell_still_counts() {
        let (mut upstream, mut pipes) = shell("sleep 1000 >/dev/null 2>&1 </dev/null & echo up");
        assert_eq!(line(&mut pipes.output).unwrap(), "up\n");
        assert_eq!(line(&mut pipes.output), None, "the shell has ended");
        let status = loop {
            if let Some(status) = upstream.try_wait().unwrap() {
                break status;
            }
            std::thread::yield_now();
        };
        assert!(status.success());
        assert!(upstream.group_alive(), "its child has not");
        let (steps, _) = climb(&mut upstream, &mut pipes, Pace::Urgent);
        assert_eq!(steps, ["close", "term"]);
    }

    #[test]
    fn the_upstream_has_three_descriptors_and_default_signals() {
        // A descriptor without close-on-exec, as a careless library would leave it.
        let (leaked, _other) = std::io::pipe().unwrap();
        let flag = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty());
        nix::fcntl::fcntl(&leaked, flag).unwrap();
        let command = UpstreamCommand::Argv(vec![OsString::from("cat")]);
        let (upstream, mut pipes) = Upstream::spawn(&command, &mut Guardian::absent()).unwrap();
        // An answer proves that the loader has closed its own.
        pipes.input.push(b"up\n".to_vec());
        pipes.input.flush().unwrap();
        assert_eq!(line(&mut pipes.output).unwrap(), "up\n");
        let proc = format!("/proc/{}", upstream.pid());
        let mut fds: Vec<_> = std::fs::read_dir(format!("{proc}/fd"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        fds.sort();
        assert_eq!(fds, ["0", "1", "2"]);
        let status = std::fs::read_to_string(format!("{proc}/status")).unwrap();
        let masks = |name| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap()
                .trim()
        };
        for name in ["SigBlk:", "SigIgn:"] {
            // 32 and 33 belong to the C library, which lets nobody set them.
            let ours = u64::from_str_radix(masks(name), 16).unwrap() & !(0b11 << 31);
            assert_eq!(ours, 0, "{name}");
        }
    }

    #[test]
    fn an_argument_vector_is_taken_as_it_is_and_a_missing_program_is_an_error() {
        let argv = ["printf", "%s\\n", "$HOME; 'x'"]
            .map(OsString::from)
            .to_vec();
        let (upstream, mut pipes) =
            Upstream::spawn(&UpstreamCommand::Argv(argv), &mut Guardian::absent()).unwrap();
        assert_eq!(line(&mut pipes.output).unwrap(), "$HOME; 'x'\n");
        assert!(upstream.unguarded().is_some());
        for argv in [vec![], vec![OsString::from("/nonexistent/program")]] {
            let command = UpstreamCommand::Argv(argv);
            assert!(Upstream::spawn(&command, &mut Guardian::absent()).is_err());
        }
    }
}
