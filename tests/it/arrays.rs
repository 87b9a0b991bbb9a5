//! Arrays of the upstream's: a client that never sent one may get its answers in one.
//!
//! Only 2025-03-26 knows them, but an outcome counts in whatever it comes.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, member_bytes, result_bytes};
use crate::proxy::Proxy;
use crate::world::World;

/// A call that is never answered by itself.
fn silent(id: u32) -> Call {
    let script = json!({"never_answer": true});
    Call::new(id, "charge", json!({"n": id}))
        .seq(id)
        .script(script)
}

/// Sends a call that the upstream answers with this line. It ends when no other call runs.
fn send_answered_by(proxy: &mut Proxy, id: u32, line: &str) {
    let script = json!({"raw": line});
    proxy.send_call(
        &Call::new(id, "charge", json!({"n": id}))
            .seq(id)
            .script(script),
    );
}

fn answer(id: impl ToString, text: &str) -> String {
    let id = id.to_string();
    format!(r#"{{"result":{{"content":[],"n":1.0,"t":"{text}"}},"jsonrpc":"2.0","id":{id}}}"#)
}

#[test]
fn an_array_settles_each_call_that_it_answers_and_passes_as_it_came() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    for id in 1..=3 {
        proxy.send_call(&silent(id));
    }
    let answers = [
        answer(1, "one"),
        r#"{"jsonrpc":"2.0","method":"notifications/x"}"#.to_owned(),
        r#"{"id":2,"error":{"code":-32603,"message":"two"}}"#.to_owned(),
        r#"{"id":3,"error":{"code":-32042,"message":"mend"}}"#.to_owned(),
        answer(r#""1""#, "nobody's"),
        answer("$ID", "four"),
        r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#.to_owned(),
        "7".to_owned(),
    ];
    let line = format!(" [ {} ]\r", answers.join("\t, "));
    send_answered_by(&mut proxy, 4, &line);
    let heard = proxy.recv_line();
    assert_eq!(heard, (line.replace("$ID", "4") + "\n").as_bytes());
    proxy.assert_ping();
    let statuses = [1, 2, 3, 4].map(|seq| world.status(seq));
    assert_eq!(statuses, ["COMPLETED", "FAILED", "VOIDED", "COMPLETED"]);
    for (seq, text) in [(1_u32, "one"), (4, "four")] {
        let call = Call::new(seq + 10, "charge", json!({"n": seq})).seq(seq);
        let replay = proxy.call_line(&call);
        assert_eq!(
            result_bytes(&replay),
            member_bytes(answer(0, text).as_bytes(), "result")
        );
        assert!(world.entry(seq.into())["delivered_at"].is_string(), "{seq}");
    }
    let failed = proxy.call(&Call::new(12, "charge", json!({"n": 2})).seq(2));
    assert_eq!(failed["error"]["message"], "two");
    assert_eq!(world.calls_at_upstream(), 4);
    // The one that is to be mended runs again.
    assert_done(&proxy.call(&Call::new(13, "charge", json!({"n": 3})).seq(3)));
    proxy.stop();
    assert_eq!(world.calls_at_upstream(), 5);
}

/// The array is there and the client has read none of it: nothing in it is lost.
#[test]
fn a_resumed_client_is_answered_with_what_came_in_an_array() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&silent(1));
    send_answered_by(
        &mut proxy,
        2,
        &format!("[{},{}]", answer(1, "one"), answer("$ID", "two")),
    );
    proxy.recv_line();
    proxy.kill9();
    let mut proxy = world.proxy().start();
    for (seq, text) in [(1, "one"), (2, "two")] {
        let replay = proxy.call(&Call::new(seq, "charge", json!({"n": seq})).seq(seq));
        assert_eq!(replay["result"]["t"], text);
    }
    proxy.stop();
    assert_eq!(world.calls_at_upstream(), 2);
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn who_waits_for_a_call_is_answered_when_an_array_answers_that_call() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let mut joined = silent(1);
    proxy.send_call(&joined);
    joined.id = json!("joined");
    proxy.send_call(&joined);
    proxy.await_decided();
    let line = format!("[{}]", answer(1, "one"));
    proxy.send(
        json!({"jsonrpc": "2.0", "id": "e", "method": "x/emit", "params": {"lines": [line]}}),
    );
    assert_eq!(proxy.recv_line(), (line + "\n").as_bytes());
    assert_eq!(proxy.recv_id("joined")["result"]["t"], "one");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

/// What a line of its own would not reach the client with does not reach it in an array either.
#[test]
fn what_must_not_go_out_is_taken_out_of_the_array() {
    let world = World::new();
    let flags = ["--call-timeout", "50ms", "--refusals", "error"];
    let mut proxy = world.proxy().flags(flags).start();
    for id in 1..=2 {
        proxy.send_call(&silent(id));
        assert_refused(&proxy.recv_id(id), "outcome_unknown", "unknown");
    }
    let emit = |lines: &[String]| {
        let params = json!({"lines": lines});
        json!({"jsonrpc": "2.0", "id": "e", "method": "x/emit", "params": params})
    };
    let notice = r#"{"jsonrpc":"2.0","method":"notifications/x"}"#;
    let both = format!("[{}, {notice},{} ]", answer(1, "late"), answer(1, "again"));
    let second = format!("[{}]", answer(2, "late"));
    proxy.send(emit(&[both, second, notice.to_owned()]));
    assert_eq!(proxy.recv_line(), format!("[{notice} ]\n").as_bytes());
    assert_eq!(proxy.recv_line(), format!("{notice}\n").as_bytes());
    proxy.recv_id("e");
    proxy.await_decided();
    for seq in [1, 2] {
        let entry = world.entry(seq);
        assert_eq!(entry["status"], "COMPLETED", "{entry}");
        assert_eq!(entry["delivered_at"], Value::Null, "{entry}");
    }
    let replay = proxy.call(&Call::new(9, "charge", json!({"n": 1})).seq(1));
    assert_eq!(replay["result"]["t"], "late");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn a_cancelled_call_is_not_answered_in_an_array() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&silent(1));
    proxy.send_call(&silent(2));
    proxy.await_decided();
    proxy.cancel(1);
    let error = r#"{"id":1,"error":{"code":-32800,"message":"stopped"}}"#;
    send_answered_by(
        &mut proxy,
        9,
        &format!("[{error},{},{}]", answer(2, "x"), answer("$ID", "y")),
    );
    let heard = format!("[{},{}]\n", answer(2, "x"), answer(9, "y"));
    assert_eq!(proxy.recv_line(), heard.as_bytes());
    proxy.assert_ping();
    // It was stopped, and does not say what it had done by then.
    assert_eq!(world.entry(1)["in_doubt"], true);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn each_answer_in_an_array_is_annotated() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--annotate"]).start();
    proxy.send_call(&silent(1));
    let line = format!("[{} ,7,{}]", answer(1, "x"), answer("$ID", "y"));
    send_answered_by(&mut proxy, 2, &line);
    let heard = proxy.recv();
    for (place, seq) in [(0, 1), (2, 2)] {
        let mark = &heard[place]["result"]["_meta"]["checkpoint"];
        assert_eq!(
            (&mark["seq"], &mark["replayed"]),
            (&json!(seq), &json!(false)),
            "{heard}"
        );
    }
    assert_eq!(heard[1], 7);
    proxy.stop();
}

/// The identity in an array is replaced as elsewhere, and no other byte.
#[test]
fn the_answer_to_a_handshake_may_come_in_an_array() {
    let world = World::new();
    let upstream = r#"read -r line; printf '[{"x":1} , {"id":0,"result":{"serverInfo":{"name":"a","version":"b","x":1.0}}} ]\n'"#;
    let mut proxy = world
        .proxy()
        .flags(["--name", "n", "--version", "v"])
        .shell(upstream)
        .start();
    proxy.send(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#);
    let line = proxy.recv_line();
    let expected =
        r#"[{"x":1} , {"id":0,"result":{"serverInfo":{"name":"n","version":"v","x":1.0}}} ]"#;
    assert_eq!(String::from_utf8_lossy(&line), format!("{expected}\n"));
    assert_eq!(proxy.wait_code(), 0);
}
