//! Bytes that pass, both ways, whatever the call beside them does.

use serde_json::json;

use crate::call::{Call, assert_done, member_bytes, result_bytes};
use crate::world::{World, contains, cpu_ticks};

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
        "2.0",
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
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    let kept = "SELECT detail FROM events WHERE kind = 'dropped_answer'";
    let kept: String = db.query_row(kept, [], |row| row.get(0)).unwrap();
    assert_eq!(kept, r#"{"what":"a second answer to a call"}"#);
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
}

#[test]
fn calls_are_forwarded_in_the_order_in_which_they_came() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let lines: Vec<String> = (1..=200).map(|id| Call::charge(id).line() + "\n").collect();
    proxy.send_raw(lines.concat().as_bytes());
    for id in 1..=200 {
        assert_done(&proxy.recv_id(id));
    }
    proxy.stop();
    assert_eq!(world.upstream_lines().concat(), lines.concat().as_bytes());
    assert_eq!(world.effects_of("charge"), 200);
}

#[test]
fn a_slow_reader_spins_no_core() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let size = 4 << 20;
    proxy
        .send_call(&Call::new(1, "big", json!({"bytes": size})).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.while_paused(|proxy| {
        world.release("h");
        // By then the answer stands before a full pipe.
        let limit = std::time::Duration::from_millis(700);
        assert_eq!(proxy.recv_id_within(1, limit), None);
        let before = cpu_ticks(proxy.pid());
        assert_eq!(proxy.recv_id_within(1, limit), None);
        let ticks = cpu_ticks(proxy.pid()) - before;
        assert!(ticks < 15, "{ticks} ticks while nobody reads");
    });
    assert!(result_bytes(&proxy.recv_id_line(&json!(1))).len() > size);
    proxy.stop();
    assert_eq!(world.effects_of("big"), 1);
}
