//! The catalogue of odd and bad lines, each run against the real binary.
//!
//! The lines are data, under `fixtures/lines`; each file begins with what its columns mean. All
//! of one file are played into one session, one after the other, so that each of them also proves
//! that the session goes on after the one before. Told for each: what reached the upstream, byte
//! for byte, what the client heard, how many effects there were, what became of the entry, and
//! that the next call works. Told at the end: memory, and that nothing panicked.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::call::{Call, assert_done, member_bytes, refusal};
use crate::proxy::Proxy;
use crate::world::{World, contains, peak_memory};

/// Says which case it was, if a test panics.
struct Playing<'c>(&'c str);

impl Drop for Playing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- in the case {:?}", self.0);
        }
    }
}

/// One line of a catalogue.
struct Case {
    name: String,
    expected: String,
    line: String,
}

/// Reads a catalogue; its names are told apart.
fn catalogue(name: &str) -> Vec<Case> {
    let path = format!("{}/fixtures/lines/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let mut cases: Vec<Case> = Vec::new();
    for row in text.lines() {
        if row.is_empty() || row.starts_with('#') {
            continue;
        }
        let columns: Vec<&str> = row.split('\t').collect();
        let [name, expected, line] = columns[..] else {
            panic!("{row:?} has {} columns", columns.len());
        };
        assert!(
            cases.iter().all(|case| case.name != name),
            "{name} stands twice"
        );
        cases.push(Case {
            name: name.to_owned(),
            expected: expected.to_owned(),
            line: line.to_owned(),
        });
    }
    cases
}

/// Writes out `%XX`, `%{N*TEXT}`, `$ID` and `$SEQ`.
fn written_out(text: &str, id: u64, seq: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['%', '$']) {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$ID") {
            bytes.extend_from_slice(id.to_string().as_bytes());
            rest = after;
        } else if let Some(after) = rest.strip_prefix("$SEQ") {
            bytes.extend_from_slice(seq.to_string().as_bytes());
            rest = after;
        } else if let Some(after) = rest.strip_prefix("%{") {
            let (count, after) = after.split_once('*').unwrap();
            let (part, after) = after.split_once('}').unwrap();
            let part = written_out(part, id, seq);
            bytes.extend_from_slice(&part.repeat(count.parse().unwrap()));
            rest = after;
        } else if let Some(after) = rest.strip_prefix('%') {
            bytes.push(u8::from_str_radix(&after[..2], 16).unwrap());
            rest = &after[2..];
        } else {
            bytes.push(b'$');
            rest = &rest[1..];
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

/// What has been added to a log since it was last looked at.
struct Tail {
    path: PathBuf,
    offset: u64,
}

impl Tail {
    fn of(world: &World, log: &str) -> Tail {
        Tail {
            path: world.path(log),
            offset: 0,
        }
    }

    fn news(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(&self.path) {
            file.seek(SeekFrom::Start(self.offset)).unwrap();
            file.read_to_end(&mut bytes).unwrap();
        }
        self.offset += bytes.len() as u64;
        bytes
    }

    /// How many lines have been added.
    fn lines(&mut self) -> usize {
        let news = self.news();
        news.iter().filter(|byte| **byte == b'\n').count()
    }
}

/// A session into which a catalogue is played.
struct Session<'w> {
    proxy: Proxy,
    reached: Tail,
    sent: Tail,
    effects: Tail,
    world: &'w World,
    /// Of each entry in order: which case made it, and the status that it must have.
    entries: Vec<(String, String)>,
    /// What went wrong: all of it is told, not only the first.
    wrong: Vec<String>,
    marks: usize,
}

impl<'w> Session<'w> {
    fn start(world: &'w World, flags: &[&str]) -> Session<'w> {
        let flags = flags.iter().chain(&["--log", "error"]);
        let mut proxy = world.proxy().flags(flags).start();
        proxy.initialize();
        proxy.assert_ping();
        let mut session = Session {
            proxy,
            reached: Tail::of(world, "lines"),
            sent: Tail::of(world, "sent"),
            effects: Tail::of(world, "effects"),
            world,
            entries: Vec::new(),
            wrong: Vec::new(),
            marks: 0,
        };
        session.reached.news();
        session.sent.news();
        session
    }

    /// The seq that the next new call gets.
    fn next_seq(&self) -> u64 {
        self.entries.len() as u64 + 1
    }

    fn expect_entry(&mut self, case: &str, status: &str) {
        self.entries.push((case.to_owned(), status.to_owned()));
    }

    fn check(&mut self, case: &str, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            let mut what = what();
            if what.len() > 700 {
                let cut = (0..=700).rev().find(|at| what.is_char_boundary(*at));
                what.truncate(cut.unwrap());
                what.push('…');
            }
            self.wrong.push(format!("{case}: {what}"));
        }
    }

    /// Waits until the upstream has answered all that reached it before; returns what was heard.
    fn heard_until_quiet(&mut self) -> Vec<Vec<u8>> {
        self.marks += 1;
        let mark = format!("mark-{}", self.marks);
        self.proxy
            .send(json!({"jsonrpc": "2.0", "id": mark, "method": "x/quiet"}));
        let mut heard = Vec::new();
        loop {
            let line = self.proxy.recv_line();
            if contains(&line, format!("\"{mark}\"").as_bytes()) {
                return heard;
            }
            heard.push(line);
        }
    }

    /// Returns what reached the upstream since the last look, without our own marks.
    fn reached(&mut self) -> Vec<u8> {
        without_marks(&self.reached.news())
    }

    fn sent(&mut self) -> Vec<u8> {
        without_marks(&self.sent.news())
    }

    /// The session's next call works, whatever came before.
    fn next_call_works(&mut self, case: &str) {
        let seq = self.next_seq();
        let call = Call::new(format!("next-{seq}"), "refund", json!({"n": seq}));
        let answer = self.proxy.call(&call);
        assert_done(&answer);
        self.expect_entry(&format!("the call after {case}"), "COMPLETED");
        let effects = self.effects.lines();
        self.check(case, effects == 1, || {
            format!("{effects} effects of the next call")
        });
        self.reached.news();
        self.sent.news();
    }

    /// Ends the session and tells all that was wrong.
    fn finish(mut self, memory_bytes_max: u64) {
        let peak = peak_memory(self.proxy.pid());
        let listing = self.world.operator(&["ls", "--json", "--limit", "0"]);
        assert!(listing.status.success(), "{listing:?}");
        let listing: Value = serde_json::from_slice(&listing.stdout).unwrap();
        let mut found: Vec<Value> = listing["entries"].as_array().unwrap().clone();
        found.sort_by_key(|entry| entry["seq"].as_u64());
        if found.len() != self.entries.len() {
            let (found, expected) = (found.len(), self.entries.len());
            self.wrong
                .push(format!("{found} entries instead of {expected}"));
        }
        for (entry, (case, status)) in found.iter().zip(&self.entries) {
            if entry["status"] != *status.as_str() {
                let seq = &entry["seq"];
                let found = &entry["status"];
                self.wrong.push(format!(
                    "{case}: entry {seq} is {found} instead of {status}"
                ));
            }
        }
        let wrong = self.wrong;
        self.proxy.stop_and_read(|stderr| {
            assert!(!stderr.contains("panicked"), "{stderr}");
            assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
        });
        eprintln!("peak memory: {} KiB", peak >> 10);
        assert!(peak <= memory_bytes_max, "{} KiB", peak >> 10);
    }
}

fn without_marks(bytes: &[u8]) -> Vec<u8> {
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| !contains(&line[line.len().saturating_sub(200)..], b"\"mark-"))
        .flatten()
        .copied()
        .collect()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned()
}

/// Small enough that a catalogue can go over it.
const LIMIT: [&str; 2] = ["--max-message-bytes", "64KiB"];

#[test]
fn the_lines_of_a_client() {
    play_client("client.tsv", &[], 96 << 20);
}

#[test]
fn the_lines_of_a_client_around_the_limit() {
    play_client("client-limit.tsv", &LIMIT, 24 << 20);
}

fn play_client(catalogue_name: &str, flags: &[&str], memory_bytes_max: u64) {
    let world = World::new();
    let mut session = Session::start(&world, flags);
    let cases = catalogue(catalogue_name);
    for (id, case) in (10_000..).zip(&cases) {
        let _playing = Playing(&case.name);
        play_client_line(&mut session, case, id);
        session.next_call_works(&case.name);
    }
    session.finish(memory_bytes_max);
}

fn play_client_line(session: &mut Session<'_>, case: &Case, id: u64) {
    let name = case.name.as_str();
    let line = written_out(&case.line, id, session.next_seq());
    let line = [line.as_slice(), b"\n"].concat();
    session.proxy.send_raw(&line);
    let words: Vec<&str> = case.expected.splitn(4, ' ').collect();
    let mut passing: &[u8] = b"";
    let mut heard = Vec::new();
    if let "pass" | "call" = words[0] {
        passing = match words.get(1) {
            None => &line,
            Some(number) => {
                let number: usize = number.parse().unwrap();
                let mut lines = line.split_inclusive(|byte| *byte == b'\n');
                lines.nth(number - 1).unwrap()
            }
        };
    }
    if words[0] == "call" {
        session.expect_entry(name, "COMPLETED");
        // A call does not hold back the mark, so its answer is awaited first.
        heard.push(session.proxy.recv_line());
    }
    heard.extend(session.heard_until_quiet());
    let reached = session.reached();
    session.check(name, reached == passing, || {
        format!("the upstream got {:?}", lossy(&reached))
    });
    let effects = session.effects.lines();
    let expected = usize::from(words[0] == "call");
    session.check(name, effects == expected, || format!("{effects} effects"));
    match words[..] {
        ["pass" | "call", ..] => {
            let sent = session.sent();
            let heard = heard.concat();
            session.check(name, heard == sent, || {
                format!(
                    "the client heard {:?}, the upstream said {:?}",
                    lossy(&heard),
                    lossy(&sent)
                )
            });
        }
        ["silent"] => session.check(name, heard.is_empty(), || {
            format!("it was answered {:?}", lossy(&heard.concat()))
        }),
        ["refused", code, kind, expected_id] => {
            let [answer] = &heard[..] else {
                let heard = lossy(&heard.concat());
                session.check(name, false, || format!("not one answer: {heard:?}"));
                return;
            };
            let expected_id = written_out(expected_id, id, 0);
            let found_id = member_bytes(answer, "id").into_bytes();
            session.check(name, found_id == expected_id, || {
                format!("the answer's id is {:?}", lossy(&found_id))
            });
            if !contains(answer, b"\"error\":") {
                session.check(name, false, || format!("no refusal: {:?}", lossy(answer)));
                return;
            }
            let error: Value = serde_json::from_str(&member_bytes(answer, "error")).unwrap();
            let code: i64 = code.parse().unwrap();
            let is_right = error["code"] == code
                && error["data"]["kind"] == kind
                && error["data"]["side_effect"] == "not_started";
            session.check(name, is_right, || error.to_string());
            let message = error["message"].as_str().unwrap_or_default().to_owned();
            session.check(name, message.starts_with("checkpoint: "), || message);
        }
        _ => panic!("{name}: what is {:?}?", case.expected),
    }
}

#[test]
fn the_lines_of_an_upstream() {
    play_upstream("upstream.tsv", &[], 160 << 20);
}

#[test]
fn the_lines_of_an_upstream_around_the_limit() {
    play_upstream("upstream-limit.tsv", &LIMIT, 24 << 20);
}

fn play_upstream(catalogue_name: &str, flags: &[&str], memory_bytes_max: u64) {
    let world = World::new();
    let mut session = Session::start(&world, flags);
    let cases = catalogue(catalogue_name);
    for (id, case) in (10_000..).zip(&cases) {
        let _playing = Playing(&case.name);
        play_upstream_line(&mut session, case, id);
        session.next_call_works(&case.name);
    }
    session.finish(memory_bytes_max);
}

/// The answer that ends the call of a case whose line does not.
fn plain_answer(id: u64) -> Vec<u8> {
    format!("{{\"result\":{{\"content\":[],\"isError\":false}},\"jsonrpc\":\"2.0\",\"id\":{id}}}\n")
        .into_bytes()
}

fn play_upstream_line(session: &mut Session<'_>, case: &Case, id: u64) {
    let name = case.name.as_str();
    let seq = session.next_seq();
    let line = [written_out(&case.line, id, seq).as_slice(), b"\n"].concat();
    let plain = plain_answer(id);
    let words: Vec<&str> = case.expected.split(' ').collect();
    let (said, expected, status) = match words[..] {
        ["settles", status, ..] => (line.clone(), line.clone(), status),
        ["passes"] => {
            let both = [line.as_slice(), &plain].concat();
            (both.clone(), both, "COMPLETED")
        }
        ["too_large"] => (line.clone(), Vec::new(), "PENDING"),
        ["noise"] => (
            [line.as_slice(), &plain].concat(),
            plain.clone(),
            "COMPLETED",
        ),
        ["dropped"] => ([&plain, line.as_slice()].concat(), plain, "COMPLETED"),
        ["late"] => {
            let both = [&plain, line.as_slice()].concat();
            (both.clone(), both, "COMPLETED")
        }
        _ => panic!("{name}: what is {:?}?", case.expected),
    };
    let path = session.world.path("said");
    std::fs::write(&path, said).unwrap();
    let script = json!({"raw_file": path});
    let mut call = Call::new(id, "charge", json!({"n": seq})).seq(seq);
    if words.last() == Some(&"task") {
        call = call.param("task", json!({}));
    }
    session.proxy.send_call(&call.clone().script(script));
    session.expect_entry(name, status);
    let mut heard = Vec::new();
    if words[..] == ["too_large"] {
        expect_refusal(session, name, "message_too_large");
        call.id = json!(format!("again-{id}"));
        session.proxy.send_call(&call);
        expect_refusal(session, name, "in_doubt");
    }
    while heard.len() < expected.len() {
        heard.extend(session.proxy.recv_line());
    }
    heard.extend(session.heard_until_quiet().concat());
    session.check(name, heard == expected, || {
        format!("the client heard {:?}", lossy(&heard))
    });
    let effects = session.effects.lines();
    session.check(name, effects == 1, || format!("{effects} effects"));
    session.reached.news();
    if !matches!(words[..], ["settles", "COMPLETED" | "FAILED", ..]) {
        return;
    }
    // The same call again: the stored outcome, and nobody is asked.
    call.id = json!(format!("again-{id}"));
    session.proxy.send_call(&call);
    let replay = session.proxy.recv_line();
    let reached = session.reached();
    session.check(name, reached.is_empty(), || "a replay ran".to_owned());
    if words.last() == Some(&"not_replayable") {
        let answer: Value = serde_json::from_slice(&replay).unwrap();
        let kind = refusal(&answer)["kind"].clone();
        session.check(name, kind == "not_replayable", || kind.to_string());
        return;
    }
    let outcome = |line: &[u8]| -> Option<String> {
        let value = serde_json::from_slice::<&serde_json::value::RawValue>(line).ok()?;
        value.get().starts_with('{').then_some(())?;
        let name = if status == "FAILED" {
            "error"
        } else {
            "result"
        };
        let has_it = contains(line, format!("\"{name}\"").as_bytes());
        has_it.then(|| member_bytes(line, name))
    };
    // What no parser of ours takes is compared loosely: it has the outcome's first bytes.
    let is_same = match (outcome(&line), outcome(&replay)) {
        (Some(stored), Some(replayed)) => stored == replayed,
        (None, _) => !contains(&replay, b"not_replayable"),
        (Some(_), None) => false,
    };
    session.check(name, is_same, || {
        format!("the replay is {:?}", lossy(&replay))
    });
}

/// The next line refuses the call in this way: it may have had an effect.
fn expect_refusal(session: &mut Session<'_>, case: &str, kind: &str) {
    let answer = session.proxy.recv();
    let data = &answer["error"]["data"];
    let is_right = data["kind"] == kind && data["side_effect"] == "unknown";
    session.check(case, is_right, || answer.to_string());
}

#[test]
fn the_ends_of_a_client() {
    for case in catalogue("client-end.tsv") {
        let _playing = Playing(&case.name);
        let world = World::new();
        let output = world.proxy().run(&written_out(&case.line, 1, 1));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let heard = output.stdout.split_inclusive(|byte| *byte == b'\n').count();
        let counts = [world.upstream_lines().len(), heard, world.effects().len()];
        let counts = counts.map(|count| count.to_string()).join(" ");
        assert_eq!(counts, case.expected, "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn the_catalogue_is_a_large_one() {
    let files = [
        "client.tsv",
        "client-limit.tsv",
        "client-end.tsv",
        "upstream.tsv",
        "upstream-limit.tsv",
    ];
    let count: usize = files.iter().map(|name| catalogue(name).len()).sum();
    assert!(count >= 680, "{count}");
}
