use serde_json::{Value, json};

use super::*;

const FORMATS: [fn(&Item) -> String; 4] = [mcp, openai_chat, openai_responses, anthropic];

fn item(came: Came) -> Item {
    Item {
        seq: 7,
        workflow_id: "w".into(),
        tool: "charge".into(),
        call_id: Some("call_\"1\"".into()),
        provenance: "upstream".into(),
        came,
    }
}

fn result(body: &str) -> Item {
    item(Came::Result(body.as_bytes().to_vec()))
}

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_text_is_what_each_provider_documents() {
    let item =
        result(r#"{"content":[{"type":"text","text":"done: \u00e9 \"x\""}],"isError":false}"#);
    let text = "done: é \"x\"";
    assert_eq!(
        read(&openai_chat(&item)),
        json!({"role": "tool", "tool_call_id": "call_\"1\"", "content": text})
    );
    assert_eq!(
        read(&openai_responses(&item)),
        json!({"type": "function_call_output", "call_id": "call_\"1\"", "output": text})
    );
    assert_eq!(
        read(&anthropic(&item)),
        json!({"type": "tool_result", "tool_use_id": "call_\"1\"", "content": text})
    );
    assert_eq!(
        read(&mcp(&item)),
        json!({
            "content": [{"type": "text", "text": text}],
            "isError": false,
            "_meta": {"checkpoint": {"seq": 7, "call_id": "call_\"1\"", "workflow_id": "w",
                "tool": "charge", "provenance": "upstream"}}
        })
    );
}

#[test]
fn is_error_stands_only_where_it_is_true() {
    let fails = result(r#"{"content":[{"type":"text","text":"no"}],"isError":true}"#);
    assert_eq!(read(&anthropic(&fails))["is_error"], true);
    let works = result(r#"{"content":[{"type":"text","text":"no"}]}"#);
    assert!(read(&anthropic(&works)).get("is_error").is_none());
    assert!(read(&anthropic(&works)).get("isError").is_none());
    assert_eq!(read(&openai_chat(&fails))["content"], "no");
}

#[test]
fn an_image_is_a_block_where_there_are_blocks() {
    let item = result(
        r#"{"content":[{"type":"text","text":"see"},{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"text","text":""}]}"#,
    );
    assert_eq!(
        read(&anthropic(&item))["content"],
        json!([
            {"type": "text", "text": "see"},
            {"type": "image", "source":
                {"type": "base64", "media_type": "image/png", "data": "aGk="}}
        ])
    );
    assert_eq!(
        read(&openai_responses(&item))["output"],
        json!([
            {"type": "input_text", "text": "see"},
            {"type": "input_image", "image_url": "data:image/png;base64,aGk="},
            {"type": "input_text", "text": ""}
        ])
    );
    let told = "see\n[image of type image/png, 4 characters of base64, left out]\n";
    assert_eq!(read(&openai_chat(&item))["content"], told);
    assert_eq!(read(&mcp(&item))["content"][1]["data"], "aGk=");
    // A type that is not taken is named, and one that is spelled oddly is not.
    let odd = result(r#"{"content":[{"type":"image","data":"aGk=","mimeType":"image/tiff"}]}"#);
    let told = "[image of type image/tiff, 4 characters of base64, left out]";
    assert_eq!(read(&anthropic(&odd))["content"], told);
    assert_eq!(read(&openai_responses(&odd))["output"], told);
    let php = result(r#"{"content":[{"type":"image","data":"a\/k=","mimeType":"image\/png"}]}"#);
    assert_eq!(
        read(&anthropic(&php))["content"][0]["source"],
        json!({"type": "base64", "media_type": "image/png", "data": "a/k="})
    );
    assert_eq!(
        read(&openai_responses(&php))["output"][0]["image_url"],
        "data:image/png;base64,a/k="
    );
}

#[test]
fn resources_links_and_what_comes_later_lose_nothing() {
    let item = result(
        r#"{"content":[{"type":"resource","resource":{"uri":"f:/a","text":"inside"}},
        {"type":"resource_link","uri":"f:/b","name":"b"},
        {"type":"audio","data":"QQ==","mimeType":"audio/wav"},
        {"type":"hologram","depth":3}]}"#,
    );
    let content = read(&openai_chat(&item))["content"].clone();
    let lines: Vec<&str> = content.as_str().unwrap().lines().collect();
    assert_eq!(lines[0], "inside");
    assert_eq!(read(lines[1])["uri"], "f:/b");
    assert!(lines[2].contains("audio/wav"));
    assert_eq!(read(lines[3]), json!({"type": "hologram", "depth": 3}));
    let pdf = result(
        r#"{"content":[{"type":"resource","resource":{"uri":"f:/a","mimeType":"application/pdf","blob":"JVBE"}}]}"#,
    );
    assert_eq!(
        read(&anthropic(&pdf))["content"][0]["source"]["data"],
        "JVBE"
    );
    assert_eq!(
        read(&openai_responses(&pdf))["output"],
        json!([{"type": "input_file", "filename": "a",
            "file_data": "data:application/pdf;base64,JVBE"}])
    );
}

#[test]
fn structured_content_stands_in_where_there_is_no_other() {
    let item =
        result(r#"{"content":[],"structuredContent":{"n":1.0,"big":12345678901234567890123}}"#);
    let told = r#"{"n":1.0,"big":12345678901234567890123}"#;
    assert_eq!(read(&openai_chat(&item))["content"], told);
    assert!(mcp(&item).contains(told));
    let empty = result(r#"{"content":[]}"#);
    assert_eq!(read(&openai_chat(&empty))["content"], "");
}

#[test]
fn what_a_strict_parser_would_change_stays_as_it_came() {
    let body = r#"{"content":[{"type":"text","text":"\ud800 1e400 \u0061"}],"x":1.0,"y":1e400}"#;
    for format in FORMATS {
        let text = format(&result(body));
        assert!(text.contains(r"\ud800 1e400 \u0061"), "{text}");
        assert!(!text.contains('\n'));
    }
    assert!(mcp(&result(body)).contains(r#""x":1.0,"y":1e400"#));
}

#[test]
fn a_failure_is_an_error_object_in_each_format() {
    let error = json!({"error": {"code": -32603, "message": "lost \"it\"",
        "side_effect_state": "unknown"}});
    let item = item(Came::Failure(Failure {
        code: "-32603".into(),
        message: json::quote("lost \"it\""),
        side_effect_state: "unknown",
        provenance: None,
    }));
    let inner = |text: &Value| read(text.as_str().unwrap());
    assert_eq!(inner(&read(&openai_chat(&item))["content"]), error);
    assert_eq!(inner(&read(&openai_responses(&item))["output"]), error);
    let told = read(&anthropic(&item));
    assert_eq!(
        (inner(&told["content"]), &told["is_error"]),
        (error.clone(), &json!(true))
    );
    let told = read(&mcp(&item));
    assert_eq!(inner(&told["content"][0]["text"]), error);
    assert_eq!(
        (&told["structuredContent"], &told["isError"]),
        (&error, &json!(true))
    );
    assert_eq!(told["_meta"]["checkpoint"]["side_effect_state"], "unknown");
}

#[test]
fn a_result_that_is_no_object_is_still_told() {
    for format in FORMATS {
        let text = format(&result("[1,2]"));
        read(&text);
        assert!(text.contains("[1,2]"), "{text}");
    }
}
