//! `docs/output.md` against what the commands print: every member, its type, both forms.
//!
//! The page is the specification: its tables are read, and each document and line of a journal
//! with one of everything must be what they say, no more and no less.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused};
use crate::world::{World, run, text};

/// A row of the page: a member's type, and whether it may be left out.
struct Member {
    types: Vec<String>,
    is_optional: bool,
}

/// The page's tables of members, by their headings.
struct Page {
    shapes: BTreeMap<String, BTreeMap<String, Member>>,
    seen: BTreeSet<(String, String)>,
}

impl Page {
    fn read() -> Page {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/output.md");
        let mut shapes = BTreeMap::new();
        let mut heading = None;
        for line in fs::read_to_string(path).unwrap().lines() {
            if let Some(name) = line.strip_prefix("### `") {
                heading = Some(name.trim_end_matches('`').to_owned());
            }
            let cells: Vec<&str> = line.split(" | ").collect();
            if let (Some(heading), [name, types, means]) = (&heading, &cells[..])
                && let Some(name) = name.strip_prefix("| `")
            {
                let member = Member {
                    types: types.split(" or ").map(str::to_owned).collect(),
                    is_optional: means.contains("left out"),
                };
                let shape: &mut BTreeMap<_, _> = shapes.entry(heading.clone()).or_default();
                let twice = shape.insert(name.trim_end_matches('`').to_owned(), member);
                assert!(twice.is_none(), "{heading}: {line}");
            }
        }
        Page {
            shapes,
            seen: BTreeSet::new(),
        }
    }

    /// Holds an object to the tables of these shapes taken together.
    #[track_caller]
    fn check(&mut self, names: &[&str], value: &Value) {
        let object = value
            .as_object()
            .unwrap_or_else(|| panic!("{names:?}: {value}"));
        let mut inner = Vec::new();
        for name in object.keys() {
            let shape = names
                .iter()
                .find(|shape| self.member(shape, name).is_some());
            let shape = shape.unwrap_or_else(|| panic!("{names:?} has no {name}: {value}"));
            self.seen.insert(((*shape).to_owned(), name.clone()));
            inner.push((self.member(shape, name).unwrap().types.clone(), name));
        }
        for shape in names {
            for (name, member) in self
                .shapes
                .get(*shape)
                .unwrap_or_else(|| panic!("no {shape}"))
            {
                assert!(
                    member.is_optional || object.contains_key(name),
                    "{shape} lacks {name}: {value}"
                );
            }
        }
        for (types, name) in inner {
            assert!(
                types.iter().any(|wanted| self.is_of(wanted, &object[name])),
                "{names:?}: {name} is no {types:?}: {value}"
            );
        }
    }

    fn member(&self, shape: &str, name: &str) -> Option<&Member> {
        self.shapes.get(shape)?.get(name)
    }

    fn is_of(&mut self, wanted: &str, value: &Value) -> bool {
        if let Some(of) = wanted.strip_prefix("array of ") {
            let elements = value.as_array();
            return elements.is_some_and(|all| all.iter().all(|one| self.is_of(of, one)));
        }
        match wanted {
            "any" => true,
            "null" => value.is_null(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_u64(),
            "time" => value.as_str().is_some_and(|text| {
                text.len() == "2026-11-29T18:01:12.304511Z".len() && text.ends_with('Z')
            }),
            // A shape of its own, which fails by itself.
            shape if value.is_object() => {
                self.check(&[shape], value);
                true
            }
            _ => false,
        }
    }

    /// Holds what a command prints in both forms to `document`, and each line to `line`, which is
    /// found under `list` in the document; `None` where the line is the document.
    #[track_caller]
    fn both(&mut self, world: &World, words: &[&str], document: &str, list: Option<(&str, &str)>) {
        let json = output(world, &[words, &["--json"]].concat());
        assert!(json.starts_with("{\n  \"schema_version\": 1,"), "{json}");
        let whole: Value = serde_json::from_str(&json).unwrap();
        self.check(&[document], &whole);
        let lines = output(world, &[words, &["--jsonl"]].concat());
        let lines: Vec<Value> = self.lines(&lines);
        match list {
            None => assert_eq!(lines.len(), 1, "{lines:?}"),
            Some((name, shape)) => {
                let mut listed = whole[name].as_array().unwrap().clone();
                for item in &mut listed {
                    item["schema_version"] = json!(1);
                }
                // The same as in the document, as long as nothing but reading went on.
                if !words.contains(&"--yes") {
                    assert_eq!(lines, listed, "{words:?}");
                }
                for line in &lines {
                    self.check(&[shape], &without_version(line));
                }
            }
        }
        if list.is_none() {
            self.check(&[document], &lines[0]);
        }
    }

    /// Returns each line, which must begin with the version.
    #[track_caller]
    fn lines(&self, text: &str) -> Vec<Value> {
        text.lines()
            .map(|line| {
                assert!(line.starts_with("{\"schema_version\":1,"), "{line}");
                serde_json::from_str(line).unwrap()
            })
            .collect()
    }
}

fn without_version(line: &Value) -> Value {
    let mut line = line.clone();
    line.as_object_mut().unwrap().remove("schema_version");
    line
}

/// What a command says on stdout, whichever way it ends.
fn output(world: &World, words: &[&str]) -> String {
    let mut command = world.command(crate::world::checkpoint());
    let (words, upstream) = match words.iter().position(|word| *word == "--upstream") {
        None => (words.to_vec(), None),
        Some(at) => {
            let mut words = words.to_vec();
            words.remove(at);
            (words, Some(crate::world::UPSTREAM))
        }
    };
    command.args(&words).arg("--journal").arg(world.journal());
    if let Some(upstream) = upstream {
        command.arg("--").arg(upstream);
    }
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    assert!(!output.stdout.is_empty(), "{words:?}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// One of everything: outcomes of each sort, doubts, events, a second attempt, a fork.
fn fill(world: &World) {
    let mut proxy = world.proxy().flags(["--redact-args-in-journal"]).start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    let mut proxy = world.proxy().start();
    proxy.initialize();
    let keyed = Call::charge(2).seq(2).meta("checkpoint_key", "k");
    let traced = keyed.meta(
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    );
    assert_done(&proxy.call(&traced.meta("checkpoint_call_id", "toolu_2")));
    proxy.call(&Call::new(3, "fail_error", json!({})).seq(3));
    // A result that is no text.
    let odd = b"{\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{\"content\":[],\"x\":\"\xff\"}}\n";
    fs::write(world.path("odd"), odd).unwrap();
    let odd = json!({"raw_file": world.path("odd")});
    proxy.send_call(&Call::new(4, "odd", json!({})).seq(4).script(odd));
    proxy.recv_line();
    assert_done(&proxy.call(&Call::charge(5).seq(2)));
    let other = Call::new(6, "charge", json!({"order_id": "other"}));
    assert_refused(&proxy.call(&other.seq(2)), "divergence", "not_started");
    // A verdict by force, and the answer that comes after it.
    let held = Call::charge(8).seq(6).script(json!({"hold_after": "h"}));
    proxy.send_call(&held);
    world.wait_held("h");
    run(
        world,
        0,
        &["resolve", "6", "--completed", "--reason", "seen", "--force"],
    );
    world.release("h");
    proxy.recv_id_line(&json!(8));
    let dies = Call::new(7, "send_mail", json!({})).seq(5);
    proxy.call(&dies.script(json!({"stderr_flood": 8, "die": "after_effect"})));
    assert_eq!(proxy.wait_code(), 69);
    run(world, 0, &["reopen", "3", "--reason", "mended", "--yes"]);
    run(world, 0, &["fork", "--from", "2", "--new-workflow", "w2"]);
}

#[test]
fn each_document_and_line_is_what_the_page_says() {
    let world = World::new();
    fill(&world);
    let mut page = Page::read();
    let policy = world.policy_file("[tools.charge]\n");
    let policy = policy.to_str().unwrap();

    page.both(&world, &["ls"], "ls", Some(("entries", "entry")));
    page.both(
        &world,
        &["ls", "--limit", "2"],
        "ls",
        Some(("entries", "entry")),
    );
    for seq in ["1", "2", "3", "4", "5", "6"] {
        page.both(&world, &["show", seq], "show", None);
    }
    page.both(&world, &["show", "1", "--workflow-id", "w2"], "show", None);
    for command in [
        "tail --no-follow --from-start --json",
        "tail --no-follow --from-start --jsonl",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let lines = page.lines(&output(&world, &words));
        assert!(lines.len() > 8, "{lines:?}");
        for line in &lines {
            page.check(&["happening"], line);
        }
    }
    let lines = page.lines(&output(&world, &["export", "--format", "jsonl"]));
    assert_eq!(lines.len(), 6, "{lines:?}");
    for line in &lines {
        page.check(&["exported", "entry"], line);
    }
    page.both(
        &world,
        &["decide", "--tool", "charge", "--seq", "5"],
        "decide",
        None,
    );
    let unknown = ["--still-unknown", "--reason", "asked"];
    page.both(
        &world,
        &[&["resolve", "1-5"][..], &unknown, &["--dry-run"]].concat(),
        "reports",
        Some(("entries", "report")),
    );
    page.both(
        &world,
        &[&["resolve", "1-5"][..], &unknown, &["--yes"]].concat(),
        "reports",
        Some(("entries", "report")),
    );
    page.both(
        &world,
        &["fork", "--from", "2", "--new-workflow", "w3", "--dry-run"],
        "made",
        None,
    );
    page.both(
        &world,
        &["policy", "check", policy, "--tool", "charge"],
        "policy check",
        None,
    );
    page.both(&world, &["doctor", "--upstream"], "doctor", None);
    let client = world.path("client.json");
    let servers = r#"{"mcpServers": {"a": {"command": "x"}, "b": {"url": "https://example.com"}}}"#;
    fs::write(&client, servers).unwrap();
    let client = client.to_str().unwrap();
    page.both(&world, &["wrap", "--file", client], "wrap", None);
    page.both(
        &world,
        &["gc", "--older-than", "0s", "--dry-run"],
        "gc",
        None,
    );
    page.both(&world, &["gc", "--older-than", "0s", "--yes"], "gc", None);
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    db.execute_batch("UPDATE entries SET tool = 'x' WHERE seq = 2")
        .unwrap();
    drop(db);
    page.both(&world, &["verify"], "verify", Some(("findings", "finding")));

    let unseen: Vec<String> = page
        .shapes
        .iter()
        .flat_map(|(shape, members)| {
            members
                .keys()
                .map(move |name| (shape.clone(), name.clone()))
        })
        .filter(|member| !page.seen.contains(member))
        .map(|(shape, name)| format!("{shape}.{name}"))
        .collect();
    assert!(
        unseen.is_empty(),
        "on the page, but never printed: {unseen:?}"
    );
}

#[test]
fn the_two_forms_exclude_each_other() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1)));
    proxy.stop();
    let said = run(&world, 2, &["ls", "--json", "--jsonl"]);
    assert!(said.contains("--jsonl"), "{said}");
    // Codes are those of the other forms.
    run(&world, 3, &["ls", "--jsonl", "--fail-if-any"]);
    assert_eq!(
        run(&world, 0, &["ls", "--jsonl", "--in-doubt", "--fail-if-any"]),
        ""
    );
    assert_eq!(run(&world, 0, &["verify", "--jsonl"]), "");
}
