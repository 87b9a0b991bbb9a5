//! The edges of a process, with real ones: what is left when the proxy is killed.
//!
//! A parent that can be killed is this very test program, started once more for one ignored test.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it says"
)]

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use checkpoint::proxy::child::{Upstream, UpstreamCommand};
use checkpoint::proxy::group::{ProcessGroup, group_alive_at};
use checkpoint::proxy::guardian::Guardian;
use checkpoint::proxy::pipe::{Filled, Flushed, Sink, Source};
use checkpoint::proxy::signals::Signals;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

const FOLDER: &str = "UNIX_EDGES_FOLDER";
const UPSTREAM: &str = "UNIX_EDGES_UPSTREAM";

/// How long anything may take before a test calls it hung.
const DEADLINE: Duration = Duration::from_secs(20);

/// Deaf to TERM and to the end of its input, with a grandchild that is so too.
const DEAF: &str = "trap '' TERM HUP INT; sleep 1000 & echo up; while :; do sleep 1000; done";

fn start_guardian() -> Guardian {
    Guardian::spawn_program(Path::new(env!("CARGO_BIN_EXE_checkpoint"))).unwrap()
}

/// Locks the whole file for its open file description; `false` if another one has it.
fn lock(file: &std::fs::File) -> bool {
    let range = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&range)).is_ok()
}

fn open(path: &Path) -> std::fs::File {
    std::fs::File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

/// Plays the proxy: locks, starts a guardian and an upstream, says who they are, and stays.
#[test]
#[ignore = "a role that other tests start and kill"]
fn role_parent() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let folder = Path::new(&folder);
    let session = open(&folder.join("lock"));
    assert!(lock(&session));
    let mut guardian = start_guardian();
    guardian.hold(session.as_fd()).unwrap();
    let command = UpstreamCommand::Shell(std::env::var(UPSTREAM).unwrap());
    let (upstream, mut pipes) = Upstream::spawn(&command, &mut guardian).unwrap();
    assert!(upstream.unguarded().is_none());
    while !pipes.output.has_unread() {
        pipes.output.fill().unwrap();
        std::thread::yield_now();
    }
    let group = upstream.group();
    let text = format!(
        "{} {} {}",
        group.pgid,
        group.started_at_ticks,
        guardian.pid().unwrap()
    );
    std::fs::write(folder.join("new"), text).unwrap();
    std::fs::rename(folder.join("new"), folder.join("ready")).unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    // Asked to end in good order.
    drop(pipes);
    upstream.signal_group(Signal::SIGKILL).unwrap();
    guardian.dismiss();
    std::process::exit(0);
}

struct Parent {
    child: Child,
    folder: tempfile::TempDir,
    group: ProcessGroup,
    guardian: i32,
}

impl Parent {
    fn start(upstream: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "role_parent", "--nocapture"])
            .env(FOLDER, folder.path())
            .env(UPSTREAM, upstream)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let ready = folder.path().join("ready");
        until(DEADLINE, || ready.exists());
        let text = std::fs::read_to_string(ready).unwrap();
        let mut numbers = text.split(' ').map(|number| number.parse::<i64>().unwrap());
        let mut next = || numbers.next().unwrap();
        let pgid = i32::try_from(next()).unwrap();
        let group = ProcessGroup {
            pgid,
            started_at_ticks: u64::try_from(next()).unwrap(),
        };
        Self {
            child,
            folder,
            group,
            guardian: i32::try_from(next()).unwrap(),
        }
    }

    fn is_lock_free(&self) -> bool {
        lock(&open(&self.folder.path().join("lock")))
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Polls for what announces itself to nobody, with a limit; returns how long it took.
fn until(limit: Duration, mut condition: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < limit, "not within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    began.elapsed()
}

#[test]
fn a_killed_proxy_leaves_nothing_behind_and_the_lock_is_freed_last() {
    let mut parent = Parent::start(DEAF);
    let group = parent.group;
    assert!(group_alive_at(group.pgid, group.started_at_ticks));
    assert!(!parent.is_lock_free());
    // What a host does first must not fell the guardian.
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        kill(Pid::from_raw(parent.guardian), signal).unwrap();
    }
    parent.kill();
    let took = until(DEADLINE, || {
        let is_free = parent.is_lock_free();
        // Asked in this order, so that a group that outlives the lock is seen.
        let is_alive = group.is_alive();
        assert!(
            !(is_free && is_alive),
            "the lock is free before the group is gone"
        );
        is_free
    });
    assert!(
        took > Duration::from_secs(2),
        "it had its chances: {took:?}"
    );
    until(DEADLINE, || {
        !ProcessGroup::led_by(parent.guardian).is_alive()
    });
}

#[test]
fn killing_the_proxys_whole_group_does_not_reach_the_guardian() {
    // Ends by itself at the end of its input, as most do, apart from a grandchild.
    let mut parent = Parent::start("sleep 1000 & echo up; cat");
    let proxy = Pid::from_raw(i32::try_from(parent.child.id()).unwrap());
    killpg(proxy, Signal::SIGKILL).unwrap();
    parent.child.wait().unwrap();
    until(DEADLINE, || parent.is_lock_free());
    assert!(!parent.group.is_alive());
}

#[test]
fn an_orderly_end_dismisses_the_guardian() {
    let mut parent = Parent::start(DEAF);
    drop(parent.child.stdin.take());
    let status = parent.child.wait().unwrap();
    assert!(status.success());
    assert!(parent.is_lock_free(), "free as soon as the proxy has ended");
    assert!(!ProcessGroup::led_by(parent.guardian).is_alive());
}

#[test]
fn without_its_guardian_the_direct_child_gets_sigterm() {
    let mut parent = Parent::start("trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done");
    kill(Pid::from_raw(parent.guardian), Signal::SIGKILL).unwrap();
    parent.kill();
    let group = parent.group;
    until(DEADLINE, || !group.is_alive());
}

#[test]
fn a_dead_guardian_is_reported_and_stops_nothing() {
    let mut guardian = start_guardian();
    assert!(guardian.is_alive());
    kill(Pid::from_raw(guardian.pid().unwrap()), Signal::SIGKILL).unwrap();
    until(DEADLINE, || !guardian.is_alive());
    let command = UpstreamCommand::Shell("cat".to_owned());
    let (mut upstream, pipes) = Upstream::spawn(&command, &mut guardian).unwrap();
    assert!(upstream.unguarded().is_some());
    assert!(guardian.release().is_err());
    drop(pipes);
    until(DEADLINE, || upstream.try_wait().unwrap().is_some());
    guardian.dismiss();
}

#[test]
fn a_child_that_was_only_announced_is_ended_too() {
    // As if we were killed between the fork and the parent's own message.
    let mut guardian = start_guardian();
    let mut child = Command::new("sleep")
        .arg("1000")
        .process_group(0)
        .spawn()
        .unwrap();
    let pgid = i32::try_from(child.id()).unwrap();
    guardian
        .watch(ProcessGroup {
            pgid,
            started_at_ticks: 0,
        })
        .unwrap();
    drop(guardian);
    until(DEADLINE, || child.try_wait().unwrap().is_some());
}

#[test]
fn the_guardian_has_nothing_of_ours() {
    let (leaked, _other) = std::io::pipe().unwrap();
    let flag = FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty());
    fcntl(&leaked, flag).unwrap();
    let guardian = start_guardian();
    let proc = format!("/proc/{}", guardian.pid().unwrap());
    // The loader has descriptors of its own for a moment.
    until(DEADLINE, || {
        let mut fds: Vec<String> = std::fs::read_dir(format!("{proc}/fd"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        fds.sort();
        fds == ["0", "1", "2"]
    });
    for fd in ["1", "2"] {
        let target = std::fs::read_link(format!("{proc}/fd/{fd}")).unwrap();
        assert_eq!(target, Path::new("/dev/null"));
    }
    assert_eq!(
        std::fs::read_link(format!("{proc}/cwd")).unwrap(),
        Path::new("/")
    );
    let stat = std::fs::read_to_string(format!("{proc}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(
        fields[3],
        guardian.pid().unwrap().to_string(),
        "it leads its own session"
    );
    guardian.dismiss();
    assert!(
        !Path::new(&proc).exists(),
        "it has ended and was waited for"
    );
}

#[test]
fn a_guardian_started_by_hand_says_so_by_its_code() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_checkpoint"));
    let status = command
        .arg("__guardian")
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(64));
}

/// Plays a process whose files may not grow beyond what `ulimit -f` says.
#[test]
#[ignore = "a role that another test starts under a limit"]
fn role_limited() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let _signals = Signals::install().unwrap();
    let mut file = open(&Path::new(&folder).join("limited"));
    let error = file.write_all(&vec![0; 1 << 20]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
    std::process::exit(42);
}

#[test]
fn a_file_over_its_limit_is_an_error_and_no_death() {
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new("/bin/sh")
        .args([
            "-c",
            "ulimit -f 64; exec \"$0\" --ignored --exact role_limited",
        ])
        .arg(std::env::current_exe().unwrap())
        .env(FOLDER, folder.path())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(42));
}

/// Plays a process that closes its output and goes on.
#[test]
#[ignore = "a role that another test starts"]
fn role_closes_output() {
    let Some(_) = std::env::var_os(FOLDER) else {
        return;
    };
    let mut input = Source::stdin();
    for mut sink in [Sink::stdout().unwrap(), Sink::stderr().unwrap()] {
        sink.push(b"last words\n".to_vec());
        assert_eq!(sink.flush().unwrap(), Flushed::Done);
        sink.close();
    }
    while input.fill().unwrap() != Filled::Eof {
        while input.next_line(100).is_some() {}
        let mut fds = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::NONE).unwrap();
    }
    std::process::exit(42);
}

#[test]
fn a_closed_output_ends_for_its_reader_while_we_go_on() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "role_closes_output", "--nocapture"])
        .env(FOLDER, "unused")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(text.ends_with("last words\n"), "{text}");
    text.clear();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "last words\n");
    assert!(child.try_wait().unwrap().is_none(), "it lives");
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"a line\n").unwrap();
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(42));
}
