//! Bytes that pass, bytes that must not, and what is said about each.

use serde_json::{Value, json};

use crate::world::{
    Call, World, assert_done, assert_refused, contains, member_bytes, refusal, result_bytes,
};

/// Sends a line that is refused, and returns the one answer to it.
fn refused_line(world: &World, line: &[u8]) -> Value {
    let mut proxy = world.proxy().start();
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
fn what_is_no_call_passes_as_the_same_bytes_both_ways() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let lines = [
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x/echo\",\"params\":{\"b\":1.0,\"a\":1e400}}\n",
        "{ \"method\" : \"x/unknown\" ,\t\"id\" : \"\\u0061\", \"jsonrpc\":\"2.0\", \"extra\":[] }\n",
        "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}\r\n",
        "{\"jsonrpc\":\"2.0\",\"id\":-0,\"method\":\"x/echo\",\"params\":{\"s\":\"\u{2028}\u{2029}\u{85}\\u000b\"}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":9007199254740993,\"method\":\"x/echo\",\"params\":{}}\n",
        "[{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\"},{\"jsonrpc\":\"2.0\",\"method\":\"x/notice\"}]\n",
        "{\"jsonrpc\":\"2.0\",\"method\":\"x/notice\",\"params\":{\"tools/call\":\"tools/call\"}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{\"an\":\"answer to nobody\"}}\n",
    ];
    for line in lines {
        proxy.send_raw(line.as_bytes());
    }
    proxy.await_quiet();
    let received = world.upstream_lines();
    for (line, received) in lines.iter().zip(&received) {
        assert_eq!(line.as_bytes(), received);
    }
    assert_eq!(received.len(), lines.len() + 1);
    proxy.stop();
}

#[test]
fn all_that_the_upstream_sends_arrives_in_order_as_the_same_bytes() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let lines = json!([
        r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
        "{ \"jsonrpc\" : \"2.0\",\t\"method\":\"notifications/message\",\"params\":{\"level\":7} }\r",
        "{\"jsonrpc\":\"2.0\",\"method\":\"x/y\",\"params\":{\"s\":\"\u{2028}\u{2029}\u{85}\"}}",
        r#"{"jsonrpc":"2.0","id":0,"method":"roots/list"}"#,
        r#"[{"jsonrpc":"2.0","method":"x/z"}]"#,
        r#"{"jsonrpc":"2.0","method":"x/nan","params":{"n":NaN}}"#,
        r#"{"jsonrpc":"2.0","method":"x/a","method":"x/b"}"#,
        "{not json at all",
        "[1]",
        "{}",
        r#"{"jsonrpc":"2.0","id":"nobody","result":{"resultType":"x-unknown"}}"#,
        "\u{feff} {\"jsonrpc\":\"2.0\",\"method\":\"x/bom\"}",
    ]);
    let params = json!({"lines": lines});
    proxy.send(json!({"jsonrpc": "2.0", "id": 1, "method": "x/emit", "params": params}));
    let count = lines.as_array().unwrap().len() + 1;
    let heard: Vec<Vec<u8>> = (0..count).map(|_| proxy.recv_line()).collect();
    assert_eq!(heard, world.sent_lines());
    proxy.stop();
}

#[test]
fn a_call_reaches_the_upstream_as_the_clients_bytes() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let line = "{ \"params\":{\"_meta\":{\"vendor/x\":[1.0,1e1],\"checkpoint_seq\":1,\"progressToken\":\"\\u0070\"},\"arguments\":{\"z\":1.0,\"a\":12345678901234567890123},\"name\":\"ch\\u0061rge\"},\t\"method\":\"tools\\/call\",\"id\":\"\\u0061\",\"jsonrpc\":\"2.0\"}\r\n";
    proxy.send_raw(line.as_bytes());
    let answer = proxy.recv_line();
    assert_eq!(world.upstream_lines(), [line.as_bytes()]);
    assert_eq!(world.sent_lines(), std::slice::from_ref(&answer));
    assert_eq!(member_bytes(&answer, "id"), r#""\u0061""#);
    proxy.stop();
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.effects_of("charge"), 1);
}

/// Case C46.
#[test]
fn ids_come_back_as_they_were_sent() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let long = format!(r#""{}""#, "i".repeat(4096));
    let ids = [
        "0",
        "-1",
        "1",
        r#""1""#,
        r#""""#,
        r#""\u0061""#,
        "9007199254740993",
        "18446744073709551616",
        "1.0",
        "1e3",
        &long,
    ];
    for id in ids {
        let line = Call::charge("ID")
            .script(json!({"hold_before": "all"}))
            .line();
        proxy.send(line.replace(r#""ID""#, id));
    }
    world.wait_held_count("all", ids.len());
    world.release("all");
    let mut heard: Vec<String> = ids
        .iter()
        .map(|_| member_bytes(&proxy.recv_line(), "id"))
        .collect();
    let mut ids = ids.map(str::to_owned);
    heard.sort_unstable();
    ids.sort_unstable();
    assert_eq!(heard, ids);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), ids.len());
}

#[test]
fn legal_json_passes_whatever_a_strict_parsers_habits() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let deep = format!("{}1{}", "[".repeat(300), "]".repeat(300));
    let long = "1234567890".repeat(500);
    let odd = [
        r#"{"s":"\ud800"}"#,
        r#"{"n":1e400}"#,
        &format!(r#"{{"d":{deep}}}"#),
        &format!(r#"{{"n":{long}}}"#),
        r#"{"s":"\u0000\u007f\/"}"#,
        "{\"s\":\"\u{2028}\u{2029}\u{85}\"}",
    ];
    for (seq, arguments) in (1u64..).zip(odd) {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":{seq},"method":"tools/call","params":{{"name":"charge","arguments":{arguments},"_meta":{{"checkpoint_seq":{seq}}}}}}}"#
        );
        proxy.send(&line);
        assert_done(&proxy.recv_id(seq));
        let reached = world.upstream_lines().pop().unwrap();
        assert_eq!(reached, format!("{line}\n").into_bytes());
        proxy.send(&line);
        assert_done(&proxy.recv_id(seq));
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), odd.len());
    assert_eq!(world.entries().len(), odd.len());
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
        let mut proxy = world.proxy().start();
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
    let mut proxy = world.proxy().start();
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

#[test]
fn a_line_in_many_writes_and_many_lines_in_one_are_lines() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    for byte in (Call::charge(1).line() + "\n").as_bytes() {
        proxy.send_raw(&[*byte]);
    }
    assert_done(&proxy.recv_id(1));
    let many: String = (2..50).map(|id| Call::charge(id).line() + "\n").collect();
    proxy.send_raw(many.as_bytes());
    for id in 2..50 {
        assert_done(&proxy.recv_id(id));
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 49);
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

/// Case C29.
#[test]
fn banners_on_the_upstreams_stdout_go_to_stderr() {
    let world = World::new();
    let banner = "Server v1 listening\n\u{1b}[32mready\u{1b}[0m\n\n\"str\"\n";
    let mut proxy = world.proxy().upstream(&["--banner", banner]).start();
    proxy.assert_ping();
    let answer = proxy.call_line(&Call::charge(1).script(json!({"banner": "log: charging\n"})));
    assert!(contains(&answer, b"charge done"));
    proxy.close_stdin();
    assert_eq!(proxy.wait_code(), 0);
    assert_eq!(proxy.next_line(), None);
    let stderr = proxy.stderr_to_end();
    assert!(stderr.contains("Server v1 listening"), "{stderr}");
    assert!(stderr.contains("log: charging"), "{stderr}");
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_flood_of_banners_is_rated() {
    let world = World::new();
    let banner = "noise noise noise\n".repeat(20_000);
    let mut proxy = world.proxy().start();
    let script = json!({"banner": banner});
    assert_done(&proxy.call(&Call::charge(1).script(script)));
    proxy.stop_and_read(|stderr| {
        let lines = stderr.matches("noise noise noise").count();
        assert!((1..10_000).contains(&lines), "{lines} lines");
    });
}

/// Case C28.
#[test]
fn a_flood_on_stderr_blocks_nobody() {
    let world = World::new();
    let flood = 10 << 20;
    let options = ["--stderr-flood", "1048576"];
    let mut proxy = world.proxy().upstream(&options).start();
    assert_done(&proxy.call(&Call::charge(1).script(json!({"stderr_flood": flood}))));
    proxy.close_stdin();
    assert_eq!(proxy.wait_code(), 0);
    assert!(proxy.stderr_to_end().len() >= 1 << 20);
    assert_eq!(world.effects_of("charge"), 1);
}

/// Case C25: neither side deadlocks the other.
#[test]
fn big_messages_pass_both_ways_while_the_client_reads_nothing() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let size = 4 << 20;
    proxy.assert_ping();
    proxy.while_paused(|proxy| {
        for id in 1..=3 {
            let arguments = json!({"bytes": size, "padding": "p".repeat(size)});
            proxy.send_call(&Call::new(id, "big", arguments));
        }
    });
    for id in 1..=3 {
        let line = proxy.recv_id_line(&json!(id));
        assert!(result_bytes(&line).len() > size);
        assert!(world.sent_lines().contains(&line));
    }
    proxy.stop();
    assert_eq!(world.effects_of("big"), 3);
}

#[test]
fn a_lenient_answer_settles_its_call_with_those_very_bytes() {
    for raw in [
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[],"n":NaN}}"#,
        r#"{"result":{"a":1,"a":2,"content":[]},"id":$ID,"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":$ID,"result":{"content":[]}}"#,
    ] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        proxy.send_call(&Call::charge(1).seq(1).script(json!({"raw": raw})));
        let line = proxy.recv_line();
        let expected = raw.replace("$ID", "1") + "\n";
        assert_eq!(line, expected.as_bytes());
        proxy.assert_ping();
        assert_eq!(world.status(1), "COMPLETED", "{raw}");
        proxy.stop();
        assert_eq!(world.effects_of("charge"), 1);
    }
}

#[test]
fn unknown_answers_pass_and_a_second_answer_does_not() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let script = json!({"extra_answers": 2, "answer_twice": true});
    proxy.send_call(&Call::charge(1).seq(1).script(script));
    proxy.await_quiet();
    assert_eq!(proxy.recv()["id"], "unknown-0");
    assert_eq!(proxy.recv()["id"], "unknown-1");
    assert_eq!(proxy.recv()["id"], 1);
    proxy.close_stdin();
    assert_eq!(proxy.wait_code(), 0);
    assert_eq!(proxy.next_line(), None, "the second answer was forwarded");
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn an_answer_under_a_wrong_id_settles_nothing() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"wrong_id": true})));
    assert_eq!(proxy.recv()["id"], "nobody");
    proxy.assert_ping();
    assert_eq!(world.status(1), "PENDING");
    proxy.kill9();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn progress_during_a_call_arrives_before_its_answer() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let call = Call::new(1, "progress", json!({"n": 3})).seq(1);
    let script = json!({"hold_before": "h"});
    proxy.send_call(&call.meta("progressToken", "t").script(script));
    for step in 1..=3 {
        let notice = proxy.recv();
        assert_eq!(notice["method"], "notifications/progress");
        assert_eq!(notice["params"]["progress"], step);
    }
    world.release("h");
    assert_done(&proxy.recv_id(1));
    // A replay has no progress.
    let call = Call::new(2, "progress", json!({"n": 3})).seq(1);
    proxy.send_call(&call.meta("progressToken", "u"));
    assert_eq!(proxy.recv()["id"], 2);
    proxy.stop();
    assert_eq!(world.effects_of("progress"), 1);
}

#[test]
fn answers_come_in_the_upstreams_order() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    for id in 1..=3 {
        let hold = json!({"hold_after": format!("h{id}")});
        proxy.send_call(&Call::charge(id).script(hold));
    }
    for id in [2, 3, 1] {
        world.wait_held(&format!("h{id}"));
        world.release(&format!("h{id}"));
        assert_eq!(proxy.recv()["id"], id);
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

/// Case C53: the two directions' ids are two spaces.
#[test]
fn requests_of_the_upstream_pass_with_an_id_that_the_client_uses_too() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::new(1, "ask", json!({"ask_id": 1})).seq(1));
    let question = proxy.recv_line();
    assert_eq!(vec![question.clone()], world.sent_lines());
    assert!(contains(&question, b"elicitation/create"));
    assert_eq!(world.status(1), "PENDING");
    let answer = r#"{ "jsonrpc":"2.0", "id":1, "result":{"action":"accept"} }"#;
    proxy.send(answer);
    assert_done(&proxy.recv_id(1));
    let last = world.upstream_lines().pop().unwrap();
    assert_eq!(last, format!("{answer}\n").into_bytes());
    proxy.stop();
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.effects_of("ask"), 1);
}

#[test]
fn a_cancellation_follows_its_call_and_the_upstream_lives_on() {
    let world = World::new();
    // No answer will ever come, so the end of input would wait for one.
    let flags = ["--drain-timeout", "200ms"];
    let mut proxy = world.proxy().flags(flags).start();
    let script = json!({"hold_after": "h", "on_cancel": "silent"});
    let both = Call::charge(1).seq(1).script(script).line()
        + "\n"
        + r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#
        + "\n";
    proxy.send_raw(both.as_bytes());
    proxy.assert_ping();
    world.wait_held("h");
    let lines: Vec<u8> = world.upstream_lines().concat();
    let place = |part: &[u8]| lines.windows(part.len()).position(|w| w == part);
    assert!(place(b"tools/call").unwrap() < place(b"notifications/cancelled").unwrap());
    world.release("h");
    proxy.await_quiet();
    assert!(
        proxy.recv_id_within(1, std::time::Duration::ZERO).is_none(),
        "we answered a cancelled call"
    );
    assert_done(&proxy.call(&Call::new(2, "refund", json!({}))));
    assert_eq!(world.status(1), "PENDING");
    proxy.stop();
    assert_eq!(world.entry(1)["in_doubt"], true);
    let mut proxy = world.proxy().start();
    assert_refused(&proxy.call(&Call::charge(3).seq(1)), "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

/// Case C50.
#[test]
fn a_late_answer_to_a_cancelled_call_settles_its_entry() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.cancel(1);
    proxy.assert_ping();
    world.release("h");
    proxy.await_quiet();
    assert_done(&proxy.call(&Call::new(2, "refund", json!({}))));
    let entry = world.entry(1);
    assert_eq!(entry["status"], "COMPLETED", "{entry}");
    assert_eq!(entry["delivered_at"], Value::Null, "{entry}");
    assert_done(&proxy.call(&Call::charge(3).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn an_error_that_answers_a_cancelled_call_is_no_outcome() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let script = json!({"hold_after": "h", "on_cancel": "error"});
    proxy.send_call(&Call::charge(1).seq(1).script(script));
    world.wait_held("h");
    proxy.cancel(1);
    proxy.assert_ping();
    world.release("h");
    proxy.await_quiet();
    assert_done(&proxy.call(&Call::new(2, "refund", json!({}))));
    assert_eq!(world.status(1), "PENDING");
    let answer = proxy.call(&Call::charge(3).seq(1));
    assert_refused(&answer, "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.entry(1)["in_doubt"], true);
    assert_eq!(world.effects_of("charge"), 1);
}

fn cancellations_at_upstream(world: &World) -> usize {
    world
        .upstream_lines()
        .iter()
        .filter(|line| contains(line, b"notifications/cancelled"))
        .count()
}

#[test]
fn a_cancellation_of_what_the_upstream_never_got_is_not_forwarded() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    // Joined.
    proxy.send_call(&Call::charge(2).seq(1));
    proxy.assert_ping();
    proxy.cancel(2);
    proxy.assert_ping();
    assert_eq!(cancellations_at_upstream(&world), 0);
    world.release("h");
    assert_done(&proxy.recv_id(1));
    // Replayed, and refused.
    assert_done(&proxy.call(&Call::charge(3).seq(1)));
    proxy.cancel(3);
    proxy.call(&Call::charge(4).seq(0));
    proxy.cancel(4);
    proxy.assert_ping();
    assert_eq!(cancellations_at_upstream(&world), 0);
    // One for an id that the upstream has answered is the upstream's to ignore.
    proxy.cancel(1);
    // One for an id that nobody knows is no business of ours.
    proxy.cancel("stranger");
    proxy.assert_ping();
    assert_eq!(cancellations_at_upstream(&world), 2);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn an_owners_cancellation_waits_while_another_caller_does() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let script = json!({"hold_after": "h", "on_cancel": "error"});
    proxy.send_call(&Call::charge(1).seq(1).script(script));
    world.wait_held("h");
    proxy.send_call(&Call::charge(2).seq(1));
    proxy.assert_ping();
    proxy.cancel(1);
    proxy.assert_ping();
    assert_eq!(cancellations_at_upstream(&world), 0);
    world.release("h");
    assert_done(&proxy.recv_id(2));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.status(1), "COMPLETED");
}

#[test]
fn other_traffic_passes_while_a_call_runs() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    for id in 10..30 {
        let answer = proxy.request(id, "x/echo", json!({"n": id}));
        assert_eq!(answer["result"]["n"], id);
    }
    world.release("h");
    assert_done(&proxy.recv_id(1));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn both_handshakes_pass() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {}});
        let answer = proxy.request(1, "initialize", params);
        assert_eq!(answer["result"]["protocolVersion"], version);
        assert_done(&proxy.call(&Call::charge(2)));
        proxy.stop();
        assert_eq!(world.effects_of("charge"), 1);
    }
    let world = World::new();
    let mut proxy = world.proxy().start();
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    let answer = proxy.request(1, "server/discover", json!({"_meta": meta}));
    assert_eq!(answer["result"]["supportedVersions"], json!(["2026-07-28"]));
    assert_done(&proxy.call(&Call::charge(2).modern()));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn nothing_reaches_the_upstream_before_the_clients_first_line() {
    let world = World::new();
    let proxy = world.proxy().start();
    world.pid_of("upstream", 1);
    proxy.stop();
    assert_eq!(world.upstream_lines().len(), 0);
    assert!(!world.journal().exists(), "a start alone records nothing");
}
