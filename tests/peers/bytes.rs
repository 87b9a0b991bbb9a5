//! Recorded sessions, line for line: what passes the proxy is what was sent.
//!
//! Each session is played against an upstream five times: twice directly, which shows
//! what differs by itself, through the proxy without a journal, with a new one, and
//! once more with that one, where no call may have an effect again. Nothing is parsed
//! and printed again on the way, so lines are compared as bytes.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::setup::{self, fixture, text};
use crate::world::{GIT_CLOCK, PATIENCE_MS, World, git, is_direct};

#[test]
fn everything_is_the_same_through_the_proxy() {
    let Some(node) = setup::node() else { return };
    same_bytes(
        "everything",
        &[],
        |_| node.upstream("server-everything"),
        |_| {},
    );
}

#[test]
fn filesystem_is_the_same_through_the_proxy() {
    let Some(node) = setup::node() else { return };
    let upstream = |home: &Path| [node.upstream("server-filesystem"), vec![text(home)]].concat();
    same_bytes("filesystem", &[], upstream, |_| {});
}

#[test]
fn memory_is_the_same_through_the_proxy() {
    let Some(node) = setup::node() else { return };
    same_bytes("memory", &[], |_| node.upstream("server-memory"), |_| {});
}

#[test]
fn time_is_the_same_through_the_proxy() {
    let Some(python) = setup::python() else {
        return;
    };
    let upstream = |_: &Path| {
        vec![
            python.upstream("mcp-server-time"),
            "--local-timezone=UTC".to_owned(),
        ]
    };
    same_bytes("time", &["now"], upstream, |_| {});
    same_bytes("time-stateless", &["now"], upstream, |_| {});
}

#[test]
fn git_is_the_same_through_the_proxy() {
    let Some(python) = setup::python() else {
        return;
    };
    let upstream = |home: &Path| {
        vec![
            python.upstream("mcp-server-git"),
            "--repository".to_owned(),
            text(home),
        ]
    };
    let prepare = |home: &Path| {
        git(home, &["init", "--quiet", "--initial-branch=main"]);
        git(home, &["config", "user.name", "Peer"]);
        git(home, &["config", "user.email", "peer@example.invalid"]);
        git(
            home,
            &["commit", "--quiet", "--allow-empty", "--message=root"],
        );
        fs::write(home.join("note.txt"), "noted\n").expect("the repository is writable");
    };
    same_bytes("git", &[], upstream, prepare);
    same_bytes("git-stateless", &[], upstream, prepare);
}

/// Plays a session directly twice, then through the proxy three times, and compares.
///
/// The upstream's folder is made anew at the same path each time, but for the replay.
/// `clocked` are the ids of the calls whose answers tell the time.
fn same_bytes(
    session: &str,
    clocked: &[&str],
    upstream: impl Fn(&Path) -> Vec<String>,
    prepare: impl Fn(&Path),
) {
    let world = World::new();
    let home = world.path("home");
    let script = fs::read_to_string(fixture("sessions").join(session).with_extension("session"));
    let script = script
        .expect("the session is a fixture")
        .replace("{HOME}", &text(&home));
    let fresh = || {
        let _ = fs::remove_dir_all(&home);
        fs::create_dir(&home).expect("the world is writable");
        prepare(&home);
    };
    let direct = upstream(&home);
    let mask = |heard: &[String]| -> Vec<String> {
        let ids: Vec<Value> = clocked.iter().map(|&id| json!(id)).collect();
        heard
            .iter()
            .map(|line| {
                if ids.contains(&id_of(line)) {
                    without_time(line)
                } else {
                    line.clone()
                }
            })
            .collect()
    };

    fresh();
    let first = play(&direct, &script, &home);
    fresh();
    let second = play(&direct, &script, &home);
    same_lines(
        &mask(&first),
        &mask(&second),
        session,
        "two direct runs are the same",
    );
    if is_direct() {
        return;
    }

    let relayed = relay(&direct);
    fresh();
    let through = play(&relayed, &script, &home);
    same_lines(
        &mask(&first),
        &mask(&through),
        session,
        "the relay changes no byte",
    );

    let proxied = world.behind_proxy(&["--keep-identity"], &direct);
    fresh();
    let through = play(&proxied, &script, &home);
    same_lines(
        &mask(&first),
        &mask(&through),
        session,
        "the journal changes no byte",
    );

    let left = snapshot(&home);
    let again = play(&proxied, &script, &home);
    let calls: Vec<Value> = script
        .lines()
        .filter(|line| is_call(line))
        .map(id_of)
        .collect();
    let answers = |heard: &[String]| -> Vec<String> {
        heard
            .iter()
            .filter_map(|line| outcome(line, &calls))
            .collect()
    };
    assert_eq!(
        answers(&through).len(),
        calls.len(),
        "{session}: each call has one answer"
    );
    same_lines(
        &answers(&through),
        &answers(&again),
        session,
        "a replay is the stored bytes",
    );
    assert_eq!(left, snapshot(&home), "{session}: a replay has no effect");
    fs::remove_file(world.path("run.db")).expect("the journal is there");
}

/// Returns the argument vector of `upstream` behind the proxy without a journal.
fn relay(upstream: &[String]) -> Vec<String> {
    let proxy = [env!("CARGO_BIN_EXE_checkpoint"), "--keep-identity", "--"];
    proxy
        .iter()
        .map(|&word| word.to_owned())
        .chain(upstream.iter().cloned())
        .collect()
}

/// Compares what was heard in two runs, and shows the first line that differs.
fn same_lines(left: &[String], right: &[String], session: &str, promise: &str) {
    for (place, (left, right)) in left.iter().zip(right).enumerate() {
        assert_eq!(left, right, "{session}, line {}: {promise}", place + 1);
    }
    assert_eq!(
        left.len(),
        right.len(),
        "{session}, number of lines: {promise}"
    );
}

/// Plays one session and returns each line that was heard, in order.
fn play(command: &[String], script: &str, home: &Path) -> Vec<String> {
    let mut peer = Peer::start(command, home);
    for line in script.lines() {
        if let Some(method) = line.strip_prefix("#await ") {
            peer.hear_until(|heard| heard["method"] == method);
            continue;
        }
        peer.say(line);
        let id = id_of(line);
        if !id.is_null() {
            peer.hear_until(|heard| heard.get("method").is_none() && heard["id"] == id);
        }
    }
    peer.end()
}

/// An upstream (or the proxy in front of it) on the other end of two pipes.
struct Peer {
    child: Child,
    lines: Receiver<String>,
    /// Messages that no wait has looked at yet.
    unread: VecDeque<Value>,
    heard: Vec<String>,
}

impl Peer {
    fn start(command: &[String], home: &Path) -> Self {
        let mut process = Command::new(&command[0]);
        process.args(&command[1..]).current_dir(home);
        process
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        process.env("MEMORY_FILE_PATH", home.join("memory.jsonl"));
        process
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1");
        process.envs(GIT_CLOCK);
        let mut child = process.spawn().expect("the peer is installed");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while stdout
                .read_until(b'\n', &mut line)
                .is_ok_and(|length| length > 0)
            {
                let text = String::from_utf8(std::mem::take(&mut line)).expect("peers write UTF-8");
                if sender.send(text).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            unread: VecDeque::new(),
            heard: Vec::new(),
        }
    }

    fn say(&mut self, line: &str) {
        let stdin = self
            .child
            .stdin
            .as_mut()
            .expect("stdin is open until the end");
        writeln!(stdin, "{line}").expect("the peer reads");
    }

    /// Listens until a message fits, and answers what the peer asks meanwhile.
    fn hear_until(&mut self, fits: impl Fn(&Value) -> bool) {
        if let Some(place) = self.unread.iter().position(&fits) {
            self.unread.remove(place);
            return;
        }
        loop {
            let message = self.hear().expect("the peer goes on until it has answered");
            if fits(&message) {
                return;
            }
            self.unread.push_back(message);
        }
    }

    fn hear(&mut self) -> Option<Value> {
        let line = match self
            .lines
            .recv_timeout(Duration::from_millis(PATIENCE_MS.into()))
        {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("the peer hangs after {:?}", self.heard.last())
            }
        };
        // Some upstreams print empty lines; they are no messages, but they are heard.
        let message: Value = serde_json::from_str(&line).unwrap_or_default();
        self.heard.push(line);
        let answer = match message["method"].as_str() {
            Some("roots/list") => json!({"roots": [{"uri": "file:///srv/data", "name": "data"}]}),
            Some("sampling/createMessage") => json!({
                "role": "assistant", "model": "none", "content": {"type": "text", "text": "sampled"},
            }),
            Some("elicitation/create") => json!({"action": "decline"}),
            _ => return Some(message),
        };
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": answer});
        self.say(&answer.to_string());
        Some(message)
    }

    /// Closes the peer's input and returns all that it said up to its end.
    fn end(mut self) -> Vec<String> {
        drop(self.child.stdin.take());
        while self.hear().is_some() {}
        let status = self.child.wait().expect("the peer is our child");
        assert!(status.success(), "the peer ended with {status}");
        std::mem::take(&mut self.heard)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn id_of(line: &str) -> Value {
    let message: Value = serde_json::from_str(line).unwrap_or_default();
    message["id"].clone()
}

fn is_call(line: &str) -> bool {
    serde_json::from_str::<Value>(line).is_ok_and(|message| message["method"] == "tools/call")
}

/// Returns the id and the outcome's own bytes, if this line answers one of the calls.
///
/// A replay keeps those bytes; the order of the members around them is not promised.
fn outcome(line: &str, calls: &[Value]) -> Option<String> {
    let members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(line).ok()?;
    let outcome = members.get("result").or_else(|| members.get("error"))?;
    let id = id_of(line);
    calls.contains(&id).then(|| format!("{id} {outcome}"))
}

/// Returns the line with `0` for each digit: what is left is where it tells the time.
fn without_time(line: &str) -> String {
    line.chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect()
}

/// Returns each file below a folder and what is in it.
fn snapshot(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            found.extend(snapshot(&path));
        } else {
            found.push((path.clone(), fs::read(&path).expect("the file can be read")));
        }
    }
    found.sort();
    found
}
