//! `checkpoint export`: all or nothing, in the shapes that providers document.

use std::process::Output;

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused};
use crate::world::World;

fn export(world: &World, words: &[&str]) -> Output {
    let words: Vec<&str> = ["export"].iter().chain(words).copied().collect();
    world.operator(&words)
}

/// Exports and reads the array.
fn exported(world: &World, words: &[&str]) -> Vec<Value> {
    let output = export(world, words);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {err}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// Asserts code 1, nothing on stdout, and these words on stderr.
#[track_caller]
fn refused(world: &World, words: &[&str], said: &[&str]) {
    let output = export(world, words);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words:?}: {err}");
    assert!(output.stdout.is_empty(), "{words:?}");
    for word in said {
        assert!(err.contains(word), "{words:?}: no {word:?} in {err}");
    }
}

fn with_id(call: Call, id: &str) -> Call {
    call.meta("checkpoint_call_id", id)
}

fn result(text: &str, more: Value) -> Value {
    let mut result = json!({"content": [{"type": "text", "text": text}], "isError": false});
    for (name, value) in more.as_object().unwrap() {
        result[name] = value.clone();
    }
    json!({"result": result.to_string()})
}

const PROVIDERS: [(&str, &str, &str); 3] = [
    ("openai-chat", "tool_call_id", "content"),
    ("openai-responses", "call_id", "output"),
    ("anthropic", "tool_use_id", "content"),
];

/// Seq 1 done, 2 failed, 3 with `isError`, 4 with an image; each with a call id.
fn settled() -> World {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let call = |id: u64, tool: &str| {
        with_id(
            Call::new(id, tool, json!({})).seq(id),
            &format!("toolu_{id}"),
        )
    };
    proxy.call(&call(1, "charge").script(result("charged 1", json!({}))));
    let error = json!({"error": {"code": -32000, "message": "card declined"}});
    proxy.call(&call(2, "charge").script(error));
    proxy.call(&call(3, "charge").script(result("no such order", json!({"isError": true}))));
    let image = json!({"content": [
        {"type": "text", "text": "the chart"},
        {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}]});
    proxy.call(&call(4, "chart").script(result("", image)));
    proxy.stop();
    world
}

#[test]
fn each_provider_gets_its_documented_shape_in_call_order() {
    let world = settled();
    let error = json!({"error": {"code": -32000, "message": "card declined",
        "side_effect_state": "unknown"}});
    for (format, id, content) in PROVIDERS {
        let items = exported(&world, &["--format", format]);
        let ids: Vec<_> = items
            .iter()
            .map(|item| item[id].as_str().unwrap())
            .collect();
        assert_eq!(
            ids,
            ["toolu_1", "toolu_2", "toolu_3", "toolu_4"],
            "{format}"
        );
        assert_eq!(items[0][content], "charged 1");
        let told: Value = serde_json::from_str(items[1][content].as_str().unwrap()).unwrap();
        assert_eq!(told, error, "{format}");
        assert_eq!(items[2][content], "no such order");
    }
    let chat = exported(&world, &["--format", "openai-chat", "--seq", "1"]);
    assert_eq!(
        chat,
        [json!({"role": "tool", "tool_call_id": "toolu_1", "content": "charged 1"})]
    );
    let responses = exported(&world, &["--format", "openai-responses", "--seq", "4"]);
    assert_eq!(
        responses,
        [
            json!({"type": "function_call_output", "call_id": "toolu_4", "output": [
            {"type": "input_text", "text": "the chart"},
            {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}]})
        ]
    );
    let anthropic = exported(&world, &["--format", "anthropic"]);
    assert!(anthropic[0].get("is_error").is_none());
    assert_eq!(
        (&anthropic[1]["is_error"], &anthropic[2]["is_error"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(anthropic[3]["type"], "tool_result");
    assert_eq!(
        anthropic[3]["content"],
        json!([
            {"type": "text", "text": "the chart"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                "data": "iVBORw0KGgo="}}])
    );
    let mcp = exported(&world, &["--format", "mcp"]);
    assert_eq!(
        mcp[0]["content"],
        json!([{"type": "text", "text": "charged 1"}])
    );
    assert_eq!(
        (&mcp[1]["isError"], &mcp[1]["structuredContent"]),
        (&json!(true), &error)
    );
    assert_eq!(mcp[3]["content"][1]["mimeType"], "image/png");
    let names: Vec<_> = mcp
        .iter()
        .map(|item| &item["_meta"]["checkpoint"]["seq"])
        .collect();
    assert_eq!(names, [1, 2, 3, 4]);
}

#[test]
fn entries_are_chosen_by_seq_and_call_id_and_told_in_call_order() {
    let world = settled();
    for words in [
        &["--seq", "3", "1"][..],
        &["--seq", "3,1"],
        &["--seq", "3", "--seq", "1"],
        &["--call-id", "toolu_3", "toolu_1"],
        &["--call-id", "toolu_3", "--seq", "1"],
    ] {
        let words: Vec<&str> = ["--format", "openai-chat"]
            .iter()
            .chain(words)
            .copied()
            .collect();
        let items = exported(&world, &words);
        let ids: Vec<_> = items.iter().map(|item| &item["tool_call_id"]).collect();
        assert_eq!(ids, ["toolu_1", "toolu_3"], "{words:?}");
    }
    refused(
        &world,
        &["--format", "mcp", "--seq", "1", "9"],
        &["no entry 9"],
    );
    refused(
        &world,
        &["--format", "mcp", "--call-id", "toolu_9"],
        &["toolu_9"],
    );
    assert_eq!(export(&world, &["--format", "pdf"]).status.code(), Some(2));
    assert_eq!(
        export(&world, &["--format", "mcp", "--seq", "0"])
            .status
            .code(),
        Some(2)
    );
    let message = ["--format", "mcp", "--close-message", "m"];
    assert_eq!(export(&world, &message).status.code(), Some(2));
    let nothing = World::new();
    assert_eq!(
        export(&nothing, &["--format", "mcp"]).status.code(),
        Some(5)
    );
}

/// C6: a completed call whose result the client lost; the pair is made from the journal.
#[test]
fn a_lost_result_is_exported_and_resuming_returns_it_too() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let call = with_id(Call::charge(1).seq(1), "call_lost");
    proxy.send_call(&call.clone().script(json!({"hold_before": "h"})));
    world.wait_held("h");
    proxy.drop_output();
    world.release("h");
    proxy.close_stdin();
    proxy.wait();
    for (format, id, content) in PROVIDERS {
        let items = exported(&world, &["--format", format, "--seq", "1"]);
        assert_eq!(items.len(), 1);
        assert_eq!(items[0][id], "call_lost");
        assert!(
            items[0][content].as_str().unwrap().contains("charge done"),
            "{items:?}"
        );
    }
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&call));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn an_entry_without_a_call_id_is_named_by_its_seq_or_refused() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    assert_done(&proxy.call(&with_id(Call::charge(2).seq(2), "toolu_2")));
    assert_done(&proxy.call(&with_id(Call::charge(3).seq(3), "toolu_2")));
    proxy.stop();
    for (format, ..) in PROVIDERS {
        let one = ["--format", format, "--seq", "1"];
        refused(&world, &one, &["entry 1 has no call id"]);
        let two = ["--format", format, "--seq", "2", "3"];
        refused(&world, &two, &["entries 2 and 3 have the same call id"]);
        assert_eq!(
            exported(&world, &["--format", format, "--seq", "2"]).len(),
            1
        );
    }
    let items = exported(&world, &["--format", "mcp"]);
    assert_eq!(items.len(), 3);
    assert_eq!(items[0]["_meta"]["checkpoint"]["call_id"], Value::Null);
}

#[test]
fn while_an_outcome_is_unknown_nothing_is_exported_unless_it_is_closed() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&with_id(Call::charge(1).seq(1), "toolu_1")));
    let dies = with_id(Call::new(2, "send_mail", json!({})).seq(2), "toolu_2");
    proxy.call(&dies.clone().script(json!({"die": "after_effect"})));
    assert_eq!(proxy.wait_code(), 69);
    for format in ["mcp", "openai-chat", "openai-responses", "anthropic"] {
        refused(
            &world,
            &["--format", format],
            &["entry 2 (in doubt)", "--close-pending"],
        );
        refused(&world, &["--format", format, "--seq", "2"], &["entry 2"]);
        // What is decided can be had alone.
        assert_eq!(
            exported(&world, &["--format", format, "--seq", "1"]).len(),
            1
        );
    }
    let before = world.entry(2);
    let close = [
        "--format",
        "anthropic",
        "--close-pending",
        "cancelled",
        "--close-code",
        "-7",
        "--close-message",
        "cut off by \"us\"",
    ];
    let items = exported(&world, &close);
    let told: Value = serde_json::from_str(items[1]["content"].as_str().unwrap()).unwrap();
    let error = json!({"error": {"code": -7, "message": "cut off by \"us\"",
        "side_effect_state": "unknown", "provenance": "synthetic"}});
    assert_eq!((&told, &items[1]["is_error"]), (&error, &json!(true)));
    // A later export says the same, in each format, also when it is asked to say something else.
    let chat = exported(&world, &["--format", "openai-chat"]);
    let told: Value = serde_json::from_str(chat[1]["content"].as_str().unwrap()).unwrap();
    assert_eq!(told, error);
    let other = exported(&world, &["--format", "mcp", "--close-pending", "error"]);
    assert_eq!(other[1]["structuredContent"], error);
    assert_eq!(other[1]["_meta"]["checkpoint"]["provenance"], "synthetic");
    assert_eq!(
        other[1]["_meta"]["checkpoint"]["side_effect_state"],
        "unknown"
    );
    // The entry is what it was: in doubt, and refused.
    assert_eq!(world.entry(2), before);
    assert_eq!(before["in_doubt"], true);
    let shown = world.show_json(2);
    let closed = shown["events"].as_array().unwrap().iter();
    assert_eq!(
        closed
            .filter(|event| event["kind"] == "export_closed")
            .count(),
        1
    );
    let mut proxy = world.proxy().start();
    assert_refused(&proxy.call(&dies), "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.effects_of("send_mail"), 1);
    assert_eq!(world.operator(&["verify"]).status.code(), Some(0));
}

#[test]
fn what_is_running_is_no_outcome_and_a_late_one_takes_the_closings_place() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let call = with_id(Call::charge(1).seq(1), "toolu_1");
    proxy.send_call(&call.script(json!({"hold_before": "h"})));
    world.wait_held("h");
    refused(&world, &["--format", "openai-chat"], &["entry 1 (running)"]);
    let closed = exported(
        &world,
        &["--format", "openai-chat", "--close-pending", "error"],
    );
    assert!(closed[0]["content"].as_str().unwrap().contains("7703"));
    world.release("h");
    assert_done(&proxy.recv_id(1));
    proxy.stop();
    let items = exported(&world, &["--format", "openai-chat"]);
    assert!(
        items[0]["content"]
            .as_str()
            .unwrap()
            .contains("charge done")
    );
}

#[test]
fn what_is_expired_or_damaged_is_never_a_success() {
    let world = settled();
    let gc = world.operator(&["gc", "--older-than", "0s"]);
    assert!(gc.status.success());
    let items = exported(&world, &["--format", "anthropic"]);
    for (item, state) in items
        .iter()
        .zip(["completed", "unknown", "completed", "completed"])
    {
        let told: Value = serde_json::from_str(item["content"].as_str().unwrap()).unwrap();
        assert_eq!(told["error"]["code"], 7706);
        assert_eq!(told["error"]["side_effect_state"], state);
        assert_eq!(item["is_error"], true);
    }
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    db.execute_batch("UPDATE entries SET tool = 'refund' WHERE seq = 1")
        .unwrap();
    drop(db);
    refused(&world, &["--format", "anthropic"], &["entry 1 is damaged"]);
    let close = ["--format", "mcp", "--close-pending", "error", "--seq", "1"];
    refused(&world, &close, &["entry 1 is damaged"]);
}

#[test]
fn rows_are_whatever_there_is() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let odd = Call::new(1, "cha\u{1b}[2Jrge", json!({"a": "x,\"y\"", "n": 1.0})).seq(1);
    proxy.call(&odd.script(json!({"no_effect": true})));
    let dies = Call::new(2, "send_mail", json!({})).seq(2);
    proxy.call(&dies.script(json!({"die": "after_effect"})));
    assert_eq!(proxy.wait_code(), 69);
    let output = export(&world, &["--format", "jsonl"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(
        (&rows[0]["status"], &rows[1]["in_doubt"]),
        (&json!("COMPLETED"), &json!(true))
    );
    assert_eq!(rows[0]["arguments"]["json"]["a"], "x,\"y\"");
    assert!(!text.contains('\u{1b}'));
    let output = export(&world, &["--format", "csv", "--seq", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.split("\r\n").collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("workflow_id,branch,seq,tool,status,"));
    assert!(
        lines[1].contains(r#""{""a"":""x,\""y\"""",""n"":1.0}""#),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'));
}
