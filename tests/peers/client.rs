//! One client in a process of its own, which plays a plan and can be killed.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::rmcp_client;
use crate::setup::{self, fixture};
use crate::world::{Call, PATIENCE_MS, World};

/// A client implementation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sdk {
    Python1,
    Python2,
    TypeScript1,
    TypeScript2,
    Rmcp,
}

/// How a client finds the protocol era.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    Legacy,
    Auto,
    Modern,
}

/// A client and how it is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client(pub(crate) Sdk, pub(crate) Mode);

impl Client {
    /// Starts the client on a plan; `None` (said loudly) where its runtime is missing.
    pub(crate) fn start(
        self,
        world: &World,
        command: &[String],
        calls: &[Call],
    ) -> Option<Running> {
        self.start_to_die(world, command, calls, None)
    }

    /// As [`Client::start`]; where a number is given the client kills itself when it is asked, or
    /// gets a task, for that many-th time.
    pub(crate) fn start_to_die(
        self,
        world: &World,
        command: &[String],
        calls: &[Call],
        die_at: Option<u32>,
    ) -> Option<Running> {
        let Self(sdk, mode) = self;
        let mode = match mode {
            Mode::Legacy => "legacy",
            Mode::Auto => "auto",
            Mode::Modern => "modern",
        };
        let numbered = calls.iter().zip(1..);
        let calls: Vec<Value> = numbered
            .map(|(call, seq)| {
                let (name, arguments) = (call.name, &call.arguments);
                json!({"seq": seq, "name": name, "arguments": arguments, "task": call.is_task})
            })
            .collect();
        let process = match sdk {
            Sdk::Python1 => python(1, "client.py")?,
            Sdk::Python2 => python(2, "client.py")?,
            Sdk::TypeScript1 => script("client-v1.js")?,
            Sdk::TypeScript2 => script("client-v2.js")?,
            Sdk::Rmcp => rmcp_client::command(),
        };
        let plan = json!({"command": command, "mode": mode, "calls": calls, "die_at": die_at});
        Some(Running::start(process, world, &plan))
    }
}

/// Returns one of our Python scripts, run by the interpreter with this major of the SDK.
pub(crate) fn python(major: u32, name: &str) -> Option<Command> {
    let mut command = Command::new(setup::python()?.interpreter(major));
    // No caches beside the scripts: those are the repository's.
    command.arg("-B").arg(fixture("python").join(name));
    Some(command)
}

fn script(name: &str) -> Option<Command> {
    let mut command = Command::new("node");
    command.arg(setup::node()?.script(name));
    Some(command)
}

/// A client at work, and what it has said so far.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<Value>,
    stderr: std::path::PathBuf,
}

impl Running {
    /// Starts a client that reads this plan.
    pub(crate) fn start(mut command: Command, world: &World, plan: &Value) -> Self {
        let file = world.path("plan.json");
        fs::write(&file, plan.to_string()).expect("the world is writable");
        command
            .env(rmcp_client::PLAN, &file)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .current_dir(world.path(""));
        let stderr = world.path("client-stderr.txt");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&stderr)
            .expect("the world is writable");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = command.spawn().expect("the client's runtime was found");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            seen: Vec::new(),
            stderr,
        }
    }

    /// Waits for the event of this name and, where one is given, of this seq.
    pub(crate) fn wait_for(&mut self, event: &str, seq: Option<u64>) {
        while let Some(found) = self.next() {
            if found["event"] == event && (seq.is_none() || found["seq"].as_u64() == seq) {
                return;
            }
        }
        panic!("the client ended before {event} {seq:?}: {}", self.story());
    }

    /// Ends the client as a crash would, and returns the results that it had seen.
    pub(crate) fn crash(mut self) -> Vec<Value> {
        self.child.kill().expect("the client is ours to kill");
        self.child.wait().expect("the client is our child");
        while self.next().is_some() {}
        self.results()
    }

    /// Ends the client and the process that it had started in front of the upstream.
    pub(crate) fn crash_with_proxy(self) -> Vec<Value> {
        let proxy = child_of(self.child.id());
        let results = self.crash();
        kill(Pid::from_raw(proxy), Signal::SIGKILL).expect("the proxy drains a held call");
        results
    }

    /// Waits until the client has killed itself, as its plan said.
    pub(crate) fn die(mut self) -> Story {
        while self.next().is_some() {}
        let status = self.child.wait().expect("the client is our child");
        assert_eq!(status.signal(), Some(9), "{}", self.story());
        self.tell()
    }

    /// Waits for the plan's end and returns all that the client said.
    pub(crate) fn finish(mut self) -> Story {
        self.wait_for("done", None);
        let status = self.child.wait().expect("the client is our child");
        assert!(
            status.success(),
            "the client ended with {status}: {}",
            self.story()
        );
        self.tell()
    }

    fn tell(&mut self) -> Story {
        Story {
            results: self.results(),
            events: std::mem::take(&mut self.seen),
        }
    }

    fn next(&mut self) -> Option<Value> {
        loop {
            match self
                .lines
                .recv_timeout(Duration::from_millis(PATIENCE_MS.into()))
            {
                // The test runner's own lines are not ours to read.
                Ok(line) if !line.starts_with('{') => {}
                Ok(line) => {
                    let event: Value = serde_json::from_str(&line).expect("a client prints JSON");
                    self.seen.push(event.clone());
                    return Some(event);
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => panic!("the client hangs: {}", self.story()),
            }
        }
    }

    fn results(&self) -> Vec<Value> {
        let results = self.seen.iter().filter(|event| event["event"] == "result");
        results.map(|event| event["result"].clone()).collect()
    }

    fn story(&self) -> String {
        let stderr = fs::read_to_string(&self.stderr).unwrap_or_default();
        format!("it said {:#?}, and on stderr:\n{stderr}", self.seen)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a client said from its start to its end.
#[derive(Debug)]
pub(crate) struct Story {
    /// The results in the order of their calls; a call that was refused has none.
    pub(crate) results: Vec<Value>,
    events: Vec<Value>,
}

impl Story {
    /// Returns the protocol revision that the client says it talks.
    pub(crate) fn revision(&self) -> &str {
        let connected = self
            .events
            .iter()
            .find(|event| event["event"] == "connected");
        connected
            .and_then(|event| event["revision"].as_str())
            .expect("a client says its revision")
    }

    /// Returns the errors that the client's caller was given.
    pub(crate) fn errors(&self) -> Vec<&Value> {
        self.events_named("error")
    }

    /// Returns what the client was asked, in order.
    pub(crate) fn asked(&self) -> Vec<&str> {
        let asked = self.events_named("asked").into_iter();
        asked
            .map(|event| event["kind"].as_str().expect("a question has a kind"))
            .collect()
    }

    /// Returns the events of one name, in order.
    pub(crate) fn events_named(&self, name: &str) -> Vec<&Value> {
        let is_named = |event: &&Value| event["event"] == name;
        self.events.iter().filter(is_named).collect()
    }

    /// Returns the ids of the tasks that the client was given.
    pub(crate) fn tasks(&self) -> Vec<&Value> {
        let tasks = self.events_named("task").into_iter();
        tasks.map(|event| &event["id"]).collect()
    }
}

/// Returns the id of the one child of a process.
fn child_of(parent: u32) -> i32 {
    let processes = fs::read_dir("/proc").expect("Linux shows its processes");
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |id: &i32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // The name in parentheses may hold anything; state and parent follow it.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = after_name.split_ascii_whitespace();
        fields.next().is_some_and(|state| state != "Z")
            && fields.next() == Some(&parent.to_string())
    };
    let children: Vec<i32> = ids.filter(is_child).collect();
    assert_eq!(children.len(), 1, "the client has one child, the proxy");
    children[0]
}
