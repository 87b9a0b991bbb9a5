//! One test's folder: its journal, its upstreams and the effects that they have.
//!
//! The effects are counted where they happen (a file, a repository), never by what
//! a client or a journal says of them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

use crate::setup::{Node, Python, text};

/// How long anything in these tests may take before it counts as hung.
pub(crate) const PATIENCE_MS: u16 = 60_000;

/// Stops the clock of git and of GitPython, so that equal commits have equal names.
pub(crate) const GIT_CLOCK: [(&str, &str); 2] = [
    ("GIT_AUTHOR_DATE", "1700000000 +0000"),
    ("GIT_COMMITTER_DATE", "1700000000 +0000"),
];

/// Whether the proxy is left out (`PEERS_DIRECT=1`).
pub(crate) fn is_direct() -> bool {
    std::env::var_os("PEERS_DIRECT").is_some()
}

/// A test's folder, gone with the test.
pub(crate) struct World {
    folder: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a temporary folder can be made"),
        }
    }

    /// Returns a path in the folder, with no symlink in it: some upstreams resolve them.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let folder = self
            .folder
            .path()
            .canonicalize()
            .expect("the folder exists");
        folder.join(name)
    }

    /// Returns the argument vector of `upstream` behind the proxy and its journal.
    pub(crate) fn behind_proxy(&self, options: &[&str], upstream: &[String]) -> Vec<String> {
        if is_direct() {
            return upstream.to_vec();
        }
        let journal = text(&self.path("run.db"));
        let mut command = vec![
            env!("CARGO_BIN_EXE_checkpoint").to_owned(),
            "--journal".to_owned(),
            journal,
        ];
        command.extend(options.iter().map(|&option| option.to_owned()));
        command.push("--".to_owned());
        command.extend_from_slice(upstream);
        command
    }
}

/// One tool call of a plan; its place in the plan is its seq.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) arguments: Value,
    /// It is to be answered with a task (2025-11-25; later the upstream alone decides).
    pub(crate) is_task: bool,
}

impl Call {
    pub(crate) fn new(name: &'static str, arguments: Value) -> Self {
        Self {
            name,
            arguments,
            is_task: false,
        }
    }
}

/// The upstream of the black-box tests, for what no upstream by others does in every era: it asks
/// its client, answers with tasks, and logs each effect.
pub(crate) struct Scripted {
    effects: PathBuf,
    pub(crate) upstream: Vec<String>,
}

impl Scripted {
    /// Names the upstream; its tasks outlive it.
    pub(crate) fn new(world: &World) -> Self {
        let effects = world.path("effects");
        let program = env!("CARGO_BIN_EXE_scripted-upstream");
        let (log, tasks) = (text(&effects), text(&world.path("tasks")));
        let upstream = [program, "--effects", &log, "--tasks", &tasks];
        Self {
            upstream: upstream.map(str::to_owned).to_vec(),
            effects,
        }
    }

    /// Returns the tools of the effects in the order in which they happened.
    pub(crate) fn effects(&self) -> Vec<String> {
        let log = fs::read_to_string(&self.effects).unwrap_or_default();
        let tool = |line: &str| {
            let effect: Value = serde_json::from_str(line).expect("an effect is JSON");
            effect["tool"]
                .as_str()
                .expect("an effect has a tool")
                .to_owned()
        };
        log.lines().map(tool).collect()
    }
}

/// An upstream on a folder, whose every effect adds a line that is counted.
pub(crate) struct Notes {
    folder: PathBuf,
    pub(crate) upstream: Vec<String>,
}

impl Notes {
    /// Makes the folder and names the filesystem upstream for it.
    pub(crate) fn new(world: &World, node: &Node) -> Self {
        let folder = world.path("notes");
        fs::create_dir(&folder).expect("the folder is new");
        fs::write(folder.join("log.txt"), "END\n").expect("the folder is writable");
        let mut upstream = node.upstream("server-filesystem");
        upstream.push(text(&folder));
        Self { folder, upstream }
    }

    /// Returns a call that adds `effect` to the log, again each time it runs.
    pub(crate) fn add(&self, effect: &str) -> Call {
        let edit = json!({"oldText": "END", "newText": format!("{effect}\nEND")});
        let path = text(&self.folder.join("log.txt"));
        Call::new("edit_file", json!({"path": path, "edits": [edit]}))
    }

    /// Returns the effects in the order in which they happened.
    pub(crate) fn effects(&self) -> Vec<String> {
        let log = fs::read_to_string(self.folder.join("log.txt")).expect("the log exists");
        log.lines()
            .filter(|line| *line != "END")
            .map(str::to_owned)
            .collect()
    }
}

/// A git repository, whose commits are the effects and can be held at a gate.
pub(crate) struct Repository {
    folder: PathBuf,
    pub(crate) upstream: Vec<String>,
    entered: File,
    release: File,
}

impl Repository {
    /// Makes a repository whose commit of the subject `held` stops after it is made.
    ///
    /// The hook runs inside the upstream's call: at the gate the effect has happened
    /// and its answer has not been written.
    pub(crate) fn new(world: &World, python: &Python, held: &str) -> Self {
        let folder = world.path("repository");
        git(
            world.path("").as_path(),
            &["init", "--quiet", "--initial-branch=main", "repository"],
        );
        git(&folder, &["config", "user.name", "Peer"]);
        git(&folder, &["config", "user.email", "peer@example.invalid"]);
        git(
            &folder,
            &["commit", "--quiet", "--allow-empty", "--message=root"],
        );
        let entered = fifo(&world.path("entered"));
        let release = fifo(&world.path("release"));
        let hook = format!(
            "#!/bin/sh\nsubject=$(git log -1 --format=%s)\necho \"$subject\" >> '{gate}effects'\n\
             if [ \"$subject\" = '{held}' ]; then echo in > '{gate}entered'; read -r _ < '{gate}release'; fi\n",
            gate = text(&world.path("")),
        );
        let path = folder.join(".git/hooks/post-commit");
        fs::create_dir_all(path.parent().expect("a hook has a folder"))
            .expect("the folder can be made");
        fs::write(&path, hook).expect("the hook can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the hook is ours");
        let upstream = vec![
            python.upstream("mcp-server-git"),
            "--repository".to_owned(),
            text(&folder),
        ];
        Self {
            folder,
            upstream,
            entered,
            release,
        }
    }

    /// Returns the two calls that stage a new file and commit it as `subject`.
    pub(crate) fn commit(&self, subject: &str) -> [Call; 2] {
        let file = format!("{subject}.txt");
        fs::write(self.folder.join(&file), subject).expect("the repository is writable");
        let repo = text(&self.folder);
        [
            Call::new("git_add", json!({"repo_path": repo, "files": [file]})),
            Call::new("git_commit", json!({"repo_path": repo, "message": subject})),
        ]
    }

    /// Waits until the held commit has been made.
    pub(crate) fn wait_until_held(&self) {
        let mut ready = [PollFd::new(self.entered.as_fd(), PollFlags::POLLIN)];
        let count =
            poll(&mut ready, PollTimeout::from(PATIENCE_MS)).expect("the gate can be polled");
        assert_eq!(count, 1, "no call reached the gate");
        let _ = (&self.entered).read(&mut [0; 8]);
    }

    /// Lets the held call go on to its answer.
    pub(crate) fn release(&self) {
        (&self.release)
            .write_all(b"go\n")
            .expect("the gate is open on our side");
    }

    /// Returns the subjects that the hook saw, in order: one for each commit made.
    pub(crate) fn effects(&self) -> Vec<String> {
        let log = self.folder.with_file_name("effects");
        let log = fs::read_to_string(log).unwrap_or_default();
        let effects: Vec<String> = log.lines().map(str::to_owned).collect();
        let count = git(&self.folder, &["rev-list", "--count", "HEAD"]);
        assert_eq!(
            count.trim(),
            (effects.len() + 1).to_string(),
            "hook and history agree"
        );
        effects
    }
}

fn fifo(path: &Path) -> File {
    let mode = nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR;
    nix::unistd::mkfifo(path, mode).expect("a fifo can be made");
    // Open both ways, so that neither side ever waits for the other to open it.
    let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
        .expect("the fifo is there")
}

pub(crate) fn git(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null());
    command.envs(GIT_CLOCK);
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output().expect("git is on this machine");
    assert!(
        output.status.success(),
        "git {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("git prints UTF-8 here")
}
