//! What `export` writes is what the providers' own packages say that it must be.
//!
//! The unit tests compare it with the shapes as we read them; here the typed definitions in
//! `openai`, `anthropic` and `mcp` are asked. They run the entries of a real journal: every sort of
//! content, failures of both sorts, verdicts, and a call that was closed without an outcome.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::setup;
use crate::world::{World, is_direct};

const FORMATS: [&str; 4] = ["mcp", "openai-chat", "openai-responses", "anthropic"];

/// The `result` of each call, as the upstream sends it.
const RESULTS: [&str; 18] = [
    r#"{"content":[{"type":"text","text":"charged \u00e9 \"x\""}],"isError":false}"#,
    r#"{"content":[{"type":"text","text":"no such order"}],"isError":true}"#,
    r#"{"content":[{"type":"text","text":"see"},{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"text","text":""}]}"#,
    r#"{"content":[{"type":"image","data":"aGk=","mimeType":"image/jpeg"}],"isError":true}"#,
    r#"{"content":[{"type":"image","data":"a\/k=","mimeType":"image\/webp"}]}"#,
    r#"{"content":[{"type":"image","data":"aGk=","mimeType":"image/tiff"}]}"#,
    r#"{"content":[{"type":"image","data":"aGk=","mimeType":"image/gif"},{"type":"image","data":"aGk=","mimeType":"image/svg+xml"}]}"#,
    r#"{"content":[{"type":"audio","data":"QQ==","mimeType":"audio/wav"}]}"#,
    r#"{"content":[{"type":"resource_link","uri":"file:///b","name":"b","mimeType":"text/plain"}]}"#,
    r#"{"content":[{"type":"resource","resource":{"uri":"file:///a","mimeType":"text/plain","text":"inside"}}]}"#,
    r#"{"content":[{"type":"resource","resource":{"uri":"file:///bill.pdf","mimeType":"application/pdf","blob":"JVBE"}}]}"#,
    r#"{"content":[{"type":"text","text":"both"},{"type":"resource","resource":{"uri":"file:///p","mimeType":"image/png","blob":"aGk="}}]}"#,
    r#"{"content":[{"type":"resource","resource":{"uri":"file:///z","mimeType":"application/zip","blob":"UEs="}}]}"#,
    r#"{"content":[]}"#,
    r#"{"content":[],"structuredContent":{"n":1.5,"deep":{"a":[1,null]}}}"#,
    r#"{"content":[{"type":"text","text":"{}"}],"structuredContent":{"found":true}}"#,
    r#"{"content":[{"type":"text","text":"noted","annotations":{"audience":["user"],"priority":0.5},"_meta":{"a":1}}],"_meta":{"b":2}}"#,
    // What a later revision might add: an MCP client of today does not know it.
    r#"{"content":[{"type":"hologram","depth":3}]}"#,
];

/// The one of them that only the providers' formats can put into today's words.
const LATER: u64 = 18;

fn call(seq: u64, script: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": seq, "method": "tools/call", "params": {
        "name": "charge", "arguments": {"order": seq},
        "_meta": {"checkpoint_seq": seq, "checkpoint_call_id": format!("call_{seq}"),
            "script": script}}})
}

/// Plays calls to the end of the proxy.
fn play(world: &World, calls: &[Value]) {
    let mut proxy = Command::new(env!("CARGO_BIN_EXE_checkpoint"))
        .arg("--journal")
        .arg(world.path("run.db"))
        .args(["--", env!("CARGO_BIN_EXE_scripted-upstream")])
        .current_dir(world.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the proxy starts");
    let mut input = proxy.stdin.take().expect("it is piped");
    for call in calls {
        writeln!(input, "{call}").expect("the proxy reads");
    }
    drop(input);
    proxy.wait().expect("the proxy ends");
}

fn operator(world: &World, words: &[&str]) -> Vec<u8> {
    let output = Command::new(env!("CARGO_BIN_EXE_checkpoint"))
        .args(words)
        .arg("--journal")
        .arg(world.path("run.db"))
        .stdin(Stdio::null())
        .output()
        .expect("the command runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    output.stdout
}

/// A journal of all sorts of entries; returns how many.
fn fill(world: &World) -> u64 {
    let mut calls: Vec<Value> = (1..)
        .zip(RESULTS)
        .map(|(seq, result)| call(seq, json!({"result": result})))
        .collect();
    let last = calls.len() as u64;
    let error = json!({"code": -32000, "message": "declined", "data": {"why": ["limit"]}});
    calls.push(call(last + 1, json!({"error": error})));
    play(world, &calls);
    for seq in last + 2..=last + 5 {
        play(world, &[call(seq, json!({"die": "after_effect"}))]);
    }
    let verdict = |seq: u64, words: &[&str]| {
        let seq = seq.to_string();
        let words = [&["resolve", &seq, "--reason", "asked", "--yes"][..], words].concat();
        operator(world, &words);
    };
    verdict(last + 2, &["--completed"]);
    verdict(last + 3, &["--not-executed"]);
    let error = r#"{"code": -1, "message": "it failed"}"#;
    verdict(last + 4, &["--failed", "--error", error]);
    // The last stays in doubt, and is closed.
    last + 5
}

/// Asks the providers' types about each item; returns their objections.
fn objections(python: &std::path::Path, items: &[(&str, Value)]) -> Vec<Option<String>> {
    let mut process = Command::new(python)
        .arg(setup::fixture("python/provider_types.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the interpreter starts");
    let input = process.stdin.take().expect("it is piped");
    serde_json::to_writer(input, items).expect("the script reads");
    let output = process.wait_with_output().expect("the script ends");
    assert!(output.status.success(), "the script failed");
    let said: Vec<Option<String>> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("a line of JSON"))
        .collect();
    assert_eq!(said.len(), items.len());
    said
}

#[test]
fn what_is_exported_is_of_the_providers_own_types() {
    let Some(python) = setup::providers() else {
        return;
    };
    if is_direct() {
        return;
    }
    let world = World::new();
    let count = fill(&world);
    let mut items = Vec::new();
    for format in FORMATS {
        let is_mcp = format == "mcp";
        let seqs: Vec<String> = (1..=count)
            .filter(|seq| !is_mcp || *seq != LATER)
            .map(|seq| seq.to_string())
            .collect();
        let seqs = seqs.join(",");
        let closing = ["--close-pending", "cancelled"];
        let words = [
            &["export", "--format", format, "--seq", &seqs][..],
            &closing,
        ]
        .concat();
        let exported: Vec<Value> =
            serde_json::from_slice(&operator(&world, &words)).expect("an array");
        assert_eq!(exported.len() as u64, count - u64::from(is_mcp));
        items.extend(exported.into_iter().map(|item| (format, item)));
    }
    let objected: Vec<String> = objections(python, &items)
        .into_iter()
        .zip(&items)
        .filter_map(|(why, (format, item))| Some(format!("{format}: {item}\n{}", why?)))
        .collect();
    assert!(objected.is_empty(), "{}", objected.join("\n"));
    // What a provider has a place for is there, and not only told of.
    let kinds = |format: &str, member: &str| -> Vec<String> {
        let mut kinds: Vec<String> = items
            .iter()
            .filter(|(name, _)| *name == format)
            .flat_map(|(_, item)| item[member].as_array().cloned().unwrap_or_default())
            .map(|part| part["type"].as_str().unwrap_or_default().to_owned())
            .collect();
        kinds.sort();
        kinds.dedup();
        kinds
    };
    assert_eq!(
        kinds("openai-responses", "output"),
        ["input_file", "input_image", "input_text"]
    );
    assert_eq!(kinds("anthropic", "content"), ["document", "image", "text"]);
}

/// The types do object: each of these is one step from what is exported.
#[test]
fn the_providers_types_object_to_what_is_wrong() {
    let Some(python) = setup::providers() else {
        return;
    };
    let chat = json!({"role": "tool", "tool_call_id": "c", "content": "x"});
    let responses = json!({"type": "function_call_output", "call_id": "c", "output":
        [{"type": "input_image", "image_url": "data:image/png;base64,aGk="}]});
    let anthropic = json!({"type": "tool_result", "tool_use_id": "c", "content":
        [{"type": "image", "source":
            {"type": "base64", "media_type": "image/png", "data": "aGk="}}]});
    let mcp = json!({"content": [{"type": "text", "text": "x"}], "isError": true});
    let right = [
        ("openai-chat", chat),
        ("openai-responses", responses),
        ("anthropic", anthropic),
        ("mcp", mcp),
    ];
    for (why, (format, _)) in objections(python, &right).into_iter().zip(&right) {
        assert_eq!(why, None, "{format}");
    }
    let changes = [
        (0, "/content", json!({"text": "x"})),
        (0, "/role", json!("function")),
        (0, "/tool_call_id", json!(7)),
        (0, "/is_error", json!(true)),
        (1, "/call_id", Value::Null),
        (1, "/output/0/type", json!("image")),
        (1, "/output/0/data", json!("aGk=")),
        (1, "/is_error", json!(true)),
        (2, "/content/0/source/media_type", json!("image/tiff")),
        (2, "/content/0/source/mimeType", json!("image/png")),
        (2, "/is_error", json!("true")),
        (2, "/isError", json!(true)),
        (3, "/content/0/type", json!("hologram")),
        (3, "/isError", json!("true")),
        (3, "/is_error", json!(true)),
    ];
    let wrong: Vec<(&str, Value)> = changes
        .iter()
        .map(|(index, pointer, value)| {
            let (format, mut item) = right[*index].clone();
            let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
            item.pointer_mut(parent).expect("it is there")[name] = value.clone();
            (format, item)
        })
        .collect();
    for (why, item) in objections(python, &wrong).into_iter().zip(&wrong) {
        assert!(why.is_some(), "nobody objected to {item:?}");
    }
}
