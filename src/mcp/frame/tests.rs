use super::*;
use proptest::prelude::*;

/// A short name of what a client's line was taken for.
fn told(line: &str) -> String {
    told_bytes(line.as_bytes())
}

fn told_bytes(line: &[u8]) -> String {
    match read_client(line) {
        ClientLine::Blank => "blank".into(),
        ClientLine::Header => "header".into(),
        ClientLine::Pass(Passing { is_batch: true, .. }) => "pass batch".into(),
        ClientLine::Pass(Passing {
            is_response: true, ..
        }) => "pass response".into(),
        ClientLine::Pass(_) => "pass".into(),
        ClientLine::Call(call) => format!("call {}", call.name),
        ClientLine::Refused(refusal) => {
            let id = refusal.id.map_or(&b"null"[..], RawId::as_bytes);
            format!("{} {}", refusal.kind.name(), String::from_utf8_lossy(id))
        }
    }
}

#[test]
fn calls_are_recognised_in_every_legal_spelling() {
    for line in [
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#,
        r#"{"params":{"name":"t","arguments":{}},"method":"tools\u002fcall","id":1}"#,
        r#" { "method" : "tools\/call" , "id" : "x" , "params" : { "name" : "\u0074" } } "#,
        r#"{"m\u0065thod":"tools/call","id":1,"params":{"name":"t","arguments":null}}"#,
        "{\"method\":\"tools/call\",\"id\":1.5,\"params\":{\"name\":\"t\",\"_meta\":null}}\r\n",
        r#"{"method":"tools/call","id":-1e400,"params":{"name":"t","arguments":{"a":"\ud800","n":1e400}}}"#,
        r#"{"method":"tools/call","id":"","params":{"name":"t"},"unknown":{"id":1,"id":2}}"#,
    ] {
        assert_eq!(told(line), "call t", "{line}");
    }
    let depth = 100_000;
    let (open, close) = ("[".repeat(depth), "]".repeat(depth));
    let line = format!(
        r#"{{"method":"tools/call","id":1,"params":{{"name":"t","arguments":{{"a":{open}{close}}}}}}}"#
    );
    assert_eq!(told(&line), "call t");
}

#[test]
fn whatever_else_is_legal_passes() {
    for (line, expected) in [
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#,
            "pass",
        ),
        (r#"{"method":"tools/list","id":1}"#, "pass"),
        (r#"{"method":"tools/calls","id":1}"#, "pass"),
        (r#"{"method":"x/tools/call","id":1}"#, "pass"),
        (
            r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#,
            "pass",
        ),
        (r#"{"method":"ping","id":null}"#, "pass"),
        (
            r#"{"method":"ping","params":{"name":1,"name":2,"Name":3}}"#,
            "pass",
        ),
        (
            r#"{"id":1,"result":{"a":1e400,"b":"\ud800"}}"#,
            "pass response",
        ),
        (
            r#"{"id":1,"error":{"code":-1,"message":"x"}}"#,
            "pass response",
        ),
        (r#"{"note":"tools/call"}"#, "pass"),
        (
            r#"{"id":1,"result":{"method":"tools/call","id":7}}"#,
            "pass response",
        ),
        ("{}", "pass"),
        ("{\"method\":\"x\u{2028}\u{2029}\u{85}\"}", "pass"),
        (r#"{"method":"\ud800"}"#, "pass"),
        ("", "blank"),
        (" \t\r\n", "blank"),
        ("Content-Length: 52\r", "header"),
        ("content-type: application/json", "header"),
    ] {
        assert_eq!(told(line), expected, "{line}");
    }
}

#[test]
fn a_passing_line_is_read_no_further_than_its_envelope() {
    let line = br#"{"method":"tasks/get","params":{"taskId":"x"},"id":"q"}"#;
    let ClientLine::Pass(passing) = read_client(line) else {
        panic!("it passes")
    };
    assert_eq!(passing.method.as_deref(), Some("tasks/get"));
    assert_eq!(passing.params, Some(&br#"{"taskId":"x"}"#[..]));
    assert_eq!(passing.id.map(RawId::as_bytes), Some(&br#""q""#[..]));
}

#[test]
fn what_strict_json_does_not_allow_is_a_parse_error() {
    for line in [
        &b"{"[..],
        b"hello",
        b"{} {}",
        b"{}{}",
        b"\xef\xbb\xbf{\"method\":\"ping\"}",
        br#"{"method":"tools/call","id":1,"params":{"name":"t","arguments":{"a":NaN}}}"#,
        br#"{"method":"tools/call","id":1,"params":{"name":"t","arguments":{"a":-Infinity}}}"#,
        b"{\"method\":\"tools/call\",\"id\":1,\"params\":{\"name\":\"t\",\"arguments\":{\"a\":\"\xff\"}}}",
        b"{\"method\":\"tools/call\",\"id\":1,\"params\":{\"name\":\"\xc0\xb4\"}}",
        b"{\"method\":\"tools/call\",\"id\":1,\"params\":{\"name\":\"t\0\"}}",
        br#"{"method":"tools/call","id":1,"params":{"name":"t"}"#,
        br#"{'method':'tools/call'}"#,
        b"NaN",
        b"[1,",
    ] {
        assert_eq!(told_bytes(line), "parse_error null", "{}", String::from_utf8_lossy(line));
    }
}

#[test]
fn a_reader_of_c_strings_sees_no_other_line() {
    for line in [
        r#"{"method\u0000":"tools/call","id":1,"method":"ping"}"#,
        r#"{"method":"tools/call\u0000/x","id":1}"#,
        r#"{"method":"tools/call","id":1,"params":{"name":"t","name\u0000x":"u"}}"#,
        r#"{"method":"tools/call","id":1,"params":{"name":"t","_meta":{"checkpoint_seq\u0000":1}}}"#,
    ] {
        assert_eq!(told(line), "invalid_request 1", "{line}");
    }
}

#[test]
fn members_that_decide_stand_once() {
    for (line, expected) in [
        (
            r#"{"method":"ping","method":"tools/call","id":1}"#,
            "duplicate_member 1",
        ),
        (
            r#"{"method":"tools/call","m\u0065thod":"ping","id":1}"#,
            "duplicate_member 1",
        ),
        (
            r#"{"method":"ping","id":1,"id":1}"#,
            "duplicate_member null",
        ),
        (
            r#"{"method":"ping","id":1,"params":{},"params":{}}"#,
            "duplicate_member 1",
        ),
        (r#"{"id":1,"result":{},"id":2}"#, "duplicate_member null"),
        (
            r#"{"jsonrpc":"2.0","jsonrpc":"2.0","method":"ping"}"#,
            "duplicate_member null",
        ),
    ] {
        assert_eq!(told(line), expected, "{line}");
    }
    for params in [
        r#"{"name":"a","name":"b"}"#,
        r#"{"name":"a","n\u0061me":"a"}"#,
        r#"{"name":"a","arguments":{},"arguments":{}}"#,
        r#"{"name":"a","_meta":{},"_meta":{}}"#,
        r#"{"name":"a","task":{},"task":{}}"#,
        r#"{"name":"a","idempotencyKey":"x","idempotencyKey":"x"}"#,
        r#"{"name":"a","requestState":"x","requestState":"x"}"#,
        r#"{"name":"a","inputResponses":{},"inputResponses":{}}"#,
        r#"{"name":"a","_meta":{"checkpoint_seq":1,"checkpoint_seq":1}}"#,
        r#"{"name":"a","_meta":{"checkpoint_seq":1,"checkpoint_s\u0065q":2}}"#,
        r#"{"name":"a","_meta":{"checkpoint_later":1,"checkpoint_later":2}}"#,
        r#"{"name":"a","checkpoint_seq":1,"checkpoint_seq":1}"#,
        r#"{"name":"a","arguments":{"x":1,"x":1}}"#,
        r#"{"name":"a","arguments":{"x":[{"y":{"z":1,"\u007a":2}}]}}"#,
    ] {
        let line = format!(r#"{{"id":7,"method":"tools/call","params":{params}}}"#);
        assert_eq!(told(&line), "duplicate_member 7", "{line}");
    }
    let line = br#"{"id":7,"method":"tools/call","params":{"name":"a","arguments":{"x":[{"y":1,"y":1}]}}}"#;
    let ClientLine::Refused(refusal) = read_client(line) else {
        panic!("it is refused")
    };
    assert_eq!(refusal.pointer.as_deref(), Some("/x/0/y"));
    assert_eq!(refusal.tool.as_deref(), Some("a"));
    assert!(refusal.is_call && !refusal.reason.contains('y'.to_string().repeat(2).as_str()));
}

#[test]
fn a_refusal_says_what_is_wrong_and_whether_a_call_is_refused() {
    for (line, reason, is_call) in [
        (
            r#"{"method":"tools/call","params":{"name":"t"}}"#,
            "a tools/call needs an id",
            true,
        ),
        (
            r#"{"method":"tools/call","id":null,"params":{"name":"t"}}"#,
            "the id of a tools/call is a string or a number",
            true,
        ),
        (
            r#"{"method":"tools/call","id":1}"#,
            "a tools/call needs params",
            true,
        ),
        (
            r#"[{"method":"tools/call","id":1,"params":{"name":"t"}}]"#,
            "a tools/call in an array of messages can't be journaled",
            true,
        ),
        (
            r#"[{"method":"tools/call","params":{"name":"t"}}]"#,
            "a message of the array is invalid: a tools/call needs an id",
            true,
        ),
        (
            r#"{"method":"tools/call","id":1,"id":1,"params":{"name":"t"}}"#,
            "the member id stands twice",
            true,
        ),
        (
            r#"[{"method":"ping","id":1,"id":1}]"#,
            "a message of the array is invalid: the member id stands twice",
            false,
        ),
    ] {
        let ClientLine::Refused(refusal) = read_client(line.as_bytes()) else {
            panic!("it is refused: {line}")
        };
        let LineRefusal {
            reason: told,
            is_call: told_call,
            ..
        } = *refusal;
        assert_eq!((&*told, told_call), (reason, is_call), "{line}");
    }
}

#[test]
fn case_variants_are_refused_where_we_decide() {
    for line in [
        r#"{"Method":"tools/call","id":7,"params":{"name":"t"}}"#,
        r#"{"METHOD":"ping","id":7}"#,
        r#"{"method":"ping","id":7,"ID":8}"#,
        r#"{"method":"ping","id":7,"Params":{}}"#,
        r#"{"method":"ping","id":7,"param\u017f":{}}"#,
        r#"{"method":"tools/call","id":7,"params":{"Name":"t"}}"#,
        r#"{"method":"tools/call","id":7,"params":{"name":"t","Arguments":{}}}"#,
        r#"{"method":"tools/call","id":7,"params":{"name":"t","argument\u017f":{}}}"#,
        r#"{"method":"tools/call","id":7,"params":{"name":"t","_Meta":{}}}"#,
        r#"{"method":"tools/call","id":7,"params":{"name":"t","idempotencykey":"x"}}"#,
        r#"{"method":"tools/call","id":7,"params":{"name":"t","tas\u212a":{}}}"#,
        r#"{"method":"tools/call","id":7,"params":{"name":"t","_meta":{"Checkpoint_Seq":1}}}"#,
        r#"{"method":"tools/call","id":7,"params":{"name":"t","_meta":{"checkpoint_Seq":1}}}"#,
        r#"{"method":"Tools/Call","id":7,"params":{"name":"t"}}"#,
        r#"{"method":"tools/call ","id":7,"params":{"name":"t"}}"#,
        r#"{"method":"\ttools/call\n","id":7,"params":{"name":"t"}}"#,
        r#"{"method":"\ufefftools/call\u0000","id":7,"params":{"name":"t"}}"#,
        r#"{"method":"tool\u017f/call","id":7,"params":{"name":"t"}}"#,
        "{\"method\":\"\u{a0}tools/CALL\u{3000}\",\"id\":7}",
    ] {
        assert_eq!(told(line), "invalid_request 7", "{line}");
    }
    for fine in [
        r#"{"method":"ping","id":7,"Name":1,"METHODS":2}"#,
        r#"{"method":"tools/call","id":7,"params":{"name":"t","arguments":{"Name":1,"name":2}}}"#,
        r#"{"method":"tools/call","id":7,"params":{"name":"t","_meta":{"Name":1,"ID":2}}}"#,
    ] {
        assert!(!told(fine).starts_with("invalid"), "{fine}");
    }
    // A name that is longer than any of ours is nobody's variant.
    for (length, is_variant) in [(63, true), (64, true), (65, false), (66, false)] {
        let name = format!("Checkpoint_{}", "x".repeat(length - "Checkpoint_".len()));
        let is_told = is_variant_of_prefix(name.as_bytes(), "checkpoint_");
        assert_eq!(is_told, is_variant, "{length}");
    }
}

#[test]
fn a_call_needs_a_usable_id_and_whole_params() {
    for (members, expected) in [
        (r#""params":{"name":"t"}"#, "invalid_request null"),
        (r#""id":null,"params":{"name":"t"}"#, "invalid_request null"),
        (r#""id":true,"params":{"name":"t"}"#, "invalid_request null"),
        (r#""id":[1],"params":{"name":"t"}"#, "invalid_request null"),
        (
            r#""id":{"a":1},"params":{"name":"t"}"#,
            "invalid_request null",
        ),
        (r#""id":3"#, "invalid_request 3"),
        (r#""id":3,"params":null"#, "invalid_request 3"),
        (r#""id":3,"params":["t",{}]"#, "invalid_request 3"),
        (r#""id":3,"params":{}"#, "invalid_request 3"),
        (r#""id":3,"params":{"name":7}"#, "invalid_request 3"),
        (r#""id":3,"params":{"name":null}"#, "invalid_request 3"),
        (r#""id":3,"params":{"name":"\ud800"}"#, "invalid_request 3"),
        (
            r#""id":3,"params":{"name":"t","arguments":[]}"#,
            "invalid_request 3",
        ),
        (
            r#""id":3,"params":{"name":"t","arguments":"{}"}"#,
            "invalid_request 3",
        ),
        (
            r#""id":3,"params":{"name":"t","arguments":1}"#,
            "invalid_request 3",
        ),
        (
            r#""id":3,"params":{"name":"t","_meta":"x"}"#,
            "invalid_request 3",
        ),
        (
            r#""id":3,"params":{"name":"t","_meta":{"checkpoint_call_id":5}}"#,
            "invalid_request 3",
        ),
    ] {
        let line = format!(r#"{{"method":"tools/call",{members}}}"#);
        assert_eq!(told(&line), expected, "{line}");
    }
    let line = |length: usize| {
        let id = "x".repeat(length - 2);
        format!(r#"{{"method":"tools/call","id":"{id}","params":{{"name":"t"}}}}"#)
    };
    assert_eq!(told(&line(4096)), "call t");
    assert_eq!(told(&line(ID_BYTES_MAX)), "call t");
    assert!(told(&line(ID_BYTES_MAX + 1)).starts_with("invalid_request"));
}

#[test]
fn other_invalid_messages_are_refused() {
    for line in [
        "7",
        "null",
        "\"tools/call\"",
        "true",
        r#"{"method":7}"#,
        r#"{"method":["tools/call"]}"#,
        r#"{"method":null}"#,
    ] {
        assert_eq!(told(line), "invalid_request null", "{line}");
    }
}

#[test]
fn arrays_pass_only_without_calls() {
    let call = r#"{"id":1,"method":"tools/call","params":{"name":"t"}}"#;
    for (line, expected) in [
        ("[]".to_owned(), "invalid_request null"),
        ("[1]".into(), "invalid_request null"),
        (r#"["tools/call",1]"#.into(), "invalid_request null"),
        (
            r#"[{"method":"ping","id":1},[]]"#.into(),
            "invalid_request null",
        ),
        (format!("[[{call}]]"), "invalid_request null"),
        (format!("[{call}]"), "invalid_request null"),
        (
            format!(r#"[{{"method":"ping","id":2}},{call}]"#),
            "invalid_request null",
        ),
        (
            r#"[{"method":"tools/call"}]"#.into(),
            "invalid_request null",
        ),
        (
            r#"[{"method":"TOOLS/call","id":1}]"#.into(),
            "invalid_request null",
        ),
        (
            r#"[{"method":"ping","method":"tools/call"}]"#.into(),
            "invalid_request null",
        ),
        (
            r#"[{"method":"ping","id":1},{"id":4,"result":{}}]"#.into(),
            "pass batch",
        ),
    ] {
        assert_eq!(told(&line), expected, "{line}");
    }
}

#[test]
fn no_depth_needs_a_deep_stack() {
    let small_stack = std::thread::Builder::new().stack_size(256 * 1024);
    let thread = small_stack.spawn(|| {
        let depth = 100_000;
        let deep = [r#"{"a":["#.repeat(depth), "]}".repeat(depth)].concat();
        let line = format!(
            r#"{{"method":"tools/call","id":1,"params":{{"name":"t","arguments":{deep}}}}}"#
        );
        assert_eq!(told(&line), "call t");
        assert_eq!(
            told(&["[".repeat(depth), "]".repeat(depth)].concat()),
            "invalid_request null"
        );
        assert!(json::canonical(deep.as_bytes(), &mut |_| {}).is_ok());
        assert!(json::diff(deep.as_bytes(), deep.as_bytes(), 1).is_empty());
    });
    thread.expect("a thread").join().expect("no overflow");
}

proptest! {
    #[test]
    fn no_line_panics(line in proptest::collection::vec(any::<u8>(), 0..80)) {
        told_bytes(&line);
    }

    #[test]
    fn no_likely_line_panics(line in r#"\{("id"|"method"|"params"|"result"|"tools/call"|[:,{}\[\]0-9" ]){0,14}\}?"#) {
        told(&line);
    }

    #[test]
    fn nothing_that_a_common_parser_takes_for_a_call_passes(
        method in r#"[ \t]?[tT]ools(/|\\/|\\u002[fF])cal[lL][ ]?"#,
        key in r#"(m|M|\\u006d)ethod"#,
        before in r#"("method":"ping",|"id":1,|"x":\{"method":"ping"\},)?"#,
    ) {
        let method = method.replace('\t', "\\t");
        let line = format!(r#"{{{before}"{key}":"{method}","params":{{"name":"t"}}}}"#);
        let told = told(&line);
        prop_assert!(!told.starts_with("pass"), "{} {}", line, told);
    }
}
