//! What must not reach the upstream, and what is answered to it.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, refusal};
use crate::world::{World, contains};

/// These tests read codes, so refusals come as errors whoever calls.
const AS_ERRORS: [&str; 2] = ["--refusals", "error"];

/// Sends a line that is refused, and returns the one answer to it.
fn refused_line(world: &World, line: &[u8]) -> Value {
    let mut proxy = world.proxy().flags(AS_ERRORS).start();
    proxy.assert_ping();
    let before = world.upstream_lines().len();
    proxy.send_raw(line);
    proxy.send_raw(b"\n");
    let answer = proxy.recv();
    proxy.assert_ping();
    let reached = world.upstream_lines().split_off(before);
    assert_eq!(reached.len(), 1, "{}", String::from_utf8_lossy(line));
    assert!(contains(&reached[0], b"ping-it"));
    proxy.stop();
    assert_eq!(world.effects().len(), 0);
    assert!(answer["error"]["code"].is_i64(), "{answer}");
    answer
}

#[test]
fn what_our_parser_cannot_read_does_not_reach_the_upstream() {
    let call = Call::charge(1).line();
    let torn = &call[..call.len() - 1];
    let with_nan = call.replace("100", "NaN");
    let with_bom = format!("\u{feff}{call}");
    let two_values = format!("{call} {call}");
    let trailing = format!("{call}x");
    let single_quotes = call.replace('"', "'");
    let mut bad_byte = call.clone().into_bytes();
    let place = call.find("A-1").unwrap();
    bad_byte.splice(place..place + 3, [0xc3, 0x28]);
    for line in [
        b"this is no json".as_slice(),
        torn.as_bytes(),
        with_nan.as_bytes(),
        with_bom.as_bytes(),
        two_values.as_bytes(),
        trailing.as_bytes(),
        single_quotes.as_bytes(),
        &bad_byte,
        b"\xff\xfe",
    ] {
        let world = World::new();
        let answer = refused_line(&world, line);
        let code = answer["error"]["code"].as_i64().unwrap();
        assert!([-32700, -32600].contains(&code), "{answer}");
        if code == -32700 {
            assert_eq!(answer["id"], Value::Null, "{answer}");
        }
    }
}

#[test]
fn text_that_is_no_json_is_a_parse_error_without_an_id() {
    let world = World::new();
    let answer = refused_line(&world, b"this is no json");
    assert_eq!(answer["error"]["code"], -32700, "{answer}");
    assert_eq!(answer["id"], Value::Null, "{answer}");
    assert!(answer.as_object().unwrap().contains_key("id"), "{answer}");
}

#[test]
fn a_duplicate_member_where_we_decide_is_refused() {
    let cases = [
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"charge","arguments":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","m\u0065thod":"ping","params":{"name":"charge","arguments":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call","params":{"name":"charge","arguments":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge"},"params":{"name":"charge","arguments":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","name":"refund","arguments":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{},"arguments":{"a":1}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{},"_meta":{},"_meta":{"checkpoint_seq":1}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{},"_meta":{"checkpoint_seq":1,"checkpoint_seq":2}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{},"_meta":{"checkpoint_seq":1,"checkpoint\u005fseq":2}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{},"_meta":{"checkpoint_key":"a","checkpoint_key":"b"}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{"a":1,"a":2}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{"a":1,"\u0061":1}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{"x":[{"y":{"b":1,"b":1}}]}}}"#,
    ];
    for line in cases {
        let world = World::new();
        let answer = refused_line(&world, line.as_bytes());
        let code = answer["error"]["code"].as_i64().unwrap();
        assert!([-32602, -32600].contains(&code), "{line}: {answer}");
    }
    // Inside arguments and among our own members it has a kind of its own.
    for line in &cases[7..] {
        let world = World::new();
        let answer = refused_line(&world, line.as_bytes());
        assert_refused(&answer, "duplicate_member", "not_started");
        assert_eq!(answer["error"]["code"], -32602, "{line}");
        assert_eq!(answer["id"], 1, "{line}");
    }
}

#[test]
fn a_reserved_member_or_method_in_another_case_is_refused() {
    for line in [
        r#"{"jsonrpc":"2.0","id":1,"Method":"tools/call","params":{"name":"charge","arguments":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","METHOD":"tools/call","params":{"name":"charge","arguments":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"Name":"charge","arguments":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","Arguments":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","Params":{"name":"charge","arguments":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{},"_Meta":{"checkpoint_seq":1}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"Tools/Call","params":{"name":"charge","arguments":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call ","params":{"name":"charge","arguments":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"\ttools\u002fcall","params":{"name":"charge","arguments":{}}}"#,
    ] {
        let world = World::new();
        let answer = refused_line(&world, line.as_bytes());
        let code = answer["error"]["code"].as_i64().unwrap();
        assert!([-32602, -32600].contains(&code), "{line}: {answer}");
    }
}

#[test]
fn an_escaped_method_is_that_method() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let line = Call::charge(1)
        .line()
        .replace("tools/call", r"tools\u002fc\u0061ll");
    proxy.send(line);
    assert_done(&proxy.recv_id(1));
    proxy.stop();
    assert_eq!(world.entries().len(), 1);
    assert_eq!(world.effects_of("charge"), 1);
}

/// Case C47.
#[test]
fn a_call_without_a_usable_id_is_refused() {
    let call = Call::charge("ID").line();
    let mut lines: Vec<String> = ["null", "true", "{}", "[1]"]
        .iter()
        .map(|id| call.replace(r#""ID""#, id))
        .collect();
    lines.push(call.replace(r#""id":"ID","#, ""));
    for line in lines {
        let world = World::new();
        let answer = refused_line(&world, line.as_bytes());
        assert_eq!(answer["error"]["code"], -32600, "{line}: {answer}");
        assert_eq!(answer["id"], Value::Null, "{line}: {answer}");
    }
}

#[test]
fn a_call_of_a_wrong_shape_is_refused_or_journaled_but_never_slips_by() {
    for params in [r#""charge""#, "[]", "null", "7", "{}", r#"{"name":7}"#] {
        let world = World::new();
        let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        let mut proxy = world.proxy().flags(AS_ERRORS).start();
        proxy.send(&line);
        let answer = proxy.recv_id(1);
        assert!(answer["error"]["code"].is_i64(), "{answer}");
        proxy.stop();
        let journaled = if world.journal().exists() {
            world.entries().len()
        } else {
            0
        };
        assert_eq!(world.calls_at_upstream(), journaled, "{line}");
        assert_eq!(world.effects().len(), 0);
    }
}

#[test]
fn an_id_in_flight_is_refused_and_the_first_call_is_answered() {
    let world = World::new();
    let mut proxy = world.proxy().flags(AS_ERRORS).start();
    proxy.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let answer = proxy.call(&Call::new(1, "refund", json!({})));
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    assert_eq!(refusal(&answer)["kind"], "invalid_request", "{answer}");
    // The other spelling is another id.
    assert_done(&proxy.call(&Call::new("1", "send_mail", json!({}))));
    world.release("h");
    assert_done(&proxy.recv_id(1));
    // It is free again once it was answered.
    assert_done(&proxy.call(&Call::new(1, "refund", json!({}))));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.effects_of("refund"), 1);
    assert_eq!(world.effects_of("send_mail"), 1);
}

#[test]
fn an_array_with_a_call_in_it_is_refused_whole() {
    let call = Call::charge(1).line();
    let escaped = call.replace("tools/call", r"tools\/call");
    for line in [
        "[]".to_owned(),
        "[1]".to_owned(),
        r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},null]"#.to_owned(),
        format!("[{call}]"),
        format!(r#"[{{"jsonrpc":"2.0","id":1,"method":"ping"}},{escaped}]"#),
    ] {
        let world = World::new();
        let answer = refused_line(&world, line.as_bytes());
        assert_eq!(answer["error"]["code"], -32600, "{line}: {answer}");
    }
}

#[test]
fn an_unterminated_last_line_is_no_message() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.assert_ping();
    proxy.send_raw(Call::charge(1).line().as_bytes());
    proxy.close_stdin();
    assert_eq!(proxy.wait_code(), 0);
    assert_eq!(world.calls_at_upstream(), 0);
    assert_eq!(world.effects().len(), 0);
}

/// Case C35.
#[test]
fn header_framing_gets_one_clear_line_on_stderr() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let call = Call::charge(1).line();
    for _ in 0..3 {
        proxy.send_raw(format!("Content-Length: {}\r\n\r\n", call.len()).as_bytes());
    }
    proxy.assert_ping();
    proxy.stop_and_read(|stderr| {
        let lines = stderr
            .lines()
            .filter(|line| line.contains("Content-Length"));
        assert_eq!(lines.count(), 1, "{stderr}");
    });
    assert_eq!(world.effects().len(), 0);
    assert_eq!(world.upstream_lines().len(), 1);
}
