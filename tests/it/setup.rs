//! How a proxy is to be started: its flags, its journal, its upstream.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::proxy::Proxy;
use crate::world::{UPSTREAM, World, checkpoint};

/// Set, no proxy is started: the tests talk to the upstream itself (to try the harness alone).
const DIRECT: &str = "CHECKPOINT_IT_DIRECT";

/// What runs behind the proxy.
enum Upstream {
    /// The scripted one, with options, after `--`.
    Scripted(Vec<String>),
    /// The scripted one, with options, as `--upstream-cmd`.
    Shell(String),
    /// Another program and its arguments, after `--`.
    Program(Vec<OsString>),
}

/// How a proxy is to be started.
pub(crate) struct Setup<'w> {
    world: &'w World,
    flags: Vec<OsString>,
    journal: Option<PathBuf>,
    upstream: Upstream,
    env: Vec<(String, OsString)>,
    wrapper: Vec<OsString>,
    is_direct: bool,
}

impl<'w> Setup<'w> {
    /// A proxy with the world's journal before the scripted upstream.
    pub(crate) fn new(world: &'w World) -> Setup<'w> {
        Setup {
            world,
            flags: Vec::new(),
            journal: Some(world.journal()),
            upstream: Upstream::Scripted(Vec::new()),
            env: Vec::new(),
            wrapper: Vec::new(),
            is_direct: std::env::var_os(DIRECT).is_some(),
        }
    }

    /// What would run behind the proxy, alone.
    pub(crate) fn without_proxy(mut self) -> Self {
        self.is_direct = true;
        self
    }

    pub(crate) fn flags<I: IntoIterator<Item: Into<OsString>>>(mut self, flags: I) -> Self {
        self.flags.extend(flags.into_iter().map(Into::into));
        self
    }

    pub(crate) fn journal(mut self, path: impl Into<PathBuf>) -> Self {
        self.journal = Some(path.into());
        self
    }

    pub(crate) fn without_journal(mut self) -> Self {
        self.journal = None;
        self
    }

    /// A policy file with this text.
    pub(crate) fn policy(self, text: &str) -> Self {
        let path = self.world.policy_file(text);
        self.flags([OsString::from("--policy"), path.into()])
    }

    /// Options of the scripted upstream.
    pub(crate) fn upstream(mut self, options: &[&str]) -> Self {
        let options = options.iter().map(|word| (*word).to_owned()).collect();
        self.upstream = Upstream::Scripted(options);
        self
    }

    /// A shell command; `$UPSTREAM` in it is the scripted upstream's path.
    pub(crate) fn shell(mut self, command: &str) -> Self {
        self.upstream = Upstream::Shell(command.to_owned());
        self.env("UPSTREAM", UPSTREAM)
    }

    pub(crate) fn program<I: IntoIterator<Item: Into<OsString>>>(mut self, words: I) -> Self {
        self.upstream = Upstream::Program(words.into_iter().map(Into::into).collect());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// A program that runs the proxy, such as `strace -o FILE`.
    pub(crate) fn wrapper<I: IntoIterator<Item: Into<OsString>>>(mut self, words: I) -> Self {
        self.wrapper = words.into_iter().map(Into::into).collect();
        self
    }

    /// The whole command line.
    fn words(&self) -> Vec<OsString> {
        let mut words = self.wrapper.clone();
        if self.is_direct {
            match &self.upstream {
                Upstream::Scripted(options) => {
                    words.push(UPSTREAM.into());
                    words.extend(options.iter().map(OsString::from));
                }
                Upstream::Shell(command) => {
                    words.extend(["/bin/sh".into(), "-c".into(), command.into()]);
                }
                Upstream::Program(program) => words.extend(program.iter().cloned()),
            }
            return words;
        }
        words.push(checkpoint());
        words.extend(self.flags.iter().cloned());
        if let Some(journal) = &self.journal {
            words.extend(["--journal".into(), journal.into()]);
        }
        match &self.upstream {
            Upstream::Scripted(options) => {
                words.extend(["--".into(), UPSTREAM.into()]);
                words.extend(options.iter().map(OsString::from));
            }
            Upstream::Shell(command) => words.extend(["--upstream-cmd".into(), command.into()]),
            Upstream::Program(program) => {
                words.push("--".into());
                words.extend(program.iter().cloned());
            }
        }
        words
    }

    fn command(&self) -> Command {
        let words = self.words();
        let mut command = self.world.command(&words[0]);
        command.args(&words[1..]);
        command.envs(self.env.iter().cloned());
        command
    }

    pub(crate) fn start(self) -> Proxy {
        Proxy::start(self.command())
    }

    /// Runs to the end with this input; for command lines that are refused.
    pub(crate) fn run(self, input: &[u8]) -> Output {
        let mut proxy = self.start();
        proxy.send_raw(input);
        proxy.close_stdin();
        let status = proxy.wait();
        let mut stdout = Vec::new();
        while let Some(line) = proxy.next_line() {
            stdout.extend_from_slice(&line);
        }
        Output {
            status,
            stdout,
            stderr: proxy.stderr_to_end().into_bytes(),
        }
    }
}
