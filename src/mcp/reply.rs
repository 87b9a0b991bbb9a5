//! Every line that we write ourselves, and the marks that we add to an upstream's.
//!
//! A mark is spliced in: no other byte of an answer changes.

use std::borrow::Cow;

use super::id::RawId;
use super::refusal::Object;
pub use super::refusal::{Journaled, Refusal, RefusalKind, SideEffect};
use super::upstream::{Raw, outcome};
use crate::json;

/// Returns the line that answers `id` with a stored payload. A line end inside it becomes a space,
/// which in JSON it can be everywhere it may stand. The payload must be JSON.
pub fn answer(id: Option<RawId<'_>>, payload: Raw<&[u8]>) -> Vec<u8> {
    let (name, payload) = match payload {
        Raw::Result(raw) => ("result", raw),
        Raw::Error(raw) => ("error", raw),
    };
    let id = id.map_or(&b"null"[..], RawId::as_bytes);
    let mut line = Vec::with_capacity(payload.len() + id.len() + 40);
    line.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    line.extend_from_slice(id);
    line.extend_from_slice(b",\"");
    line.extend_from_slice(name.as_bytes());
    line.extend_from_slice(b"\":");
    let start = line.len();
    line.extend_from_slice(payload);
    line[start..]
        .iter_mut()
        .filter(|byte| **byte == b'\n')
        .for_each(|byte| *byte = b' ');
    line.extend_from_slice(b"}\n");
    line
}

/// Returns the line that answers `id` with a refusal as a JSON-RPC error.
pub fn refusal_as_error(id: Option<RawId<'_>>, refusal: &Refusal) -> Vec<u8> {
    let mut error = Object::default();
    error.raw("code", &refusal.kind.code().to_string());
    error.text("message", &refusal.message());
    error.raw("data", &refusal.data());
    answer(id, Raw::Error(error.finish().as_bytes()))
}

/// Where a refusal's data stands in a tool's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPlace {
    /// In `structuredContent`, with the message: pydantic-ai shows a model this and not the text
    /// beside it.
    StructuredContent,
    /// In `_meta["checkpoint"]`: the tool has an output schema, and the TypeScript SDK before
    /// version 2 holds even a result with `isError` to it and hides our text behind its own error.
    Meta,
}

/// Returns the line that answers `id` with a refusal as a tool's result with `isError: true`.
///
/// `with_result_type` is for the stateless revisions, which need a `resultType`.
pub fn refusal_as_result(
    id: Option<RawId<'_>>,
    refusal: &Refusal,
    with_result_type: bool,
    place: DataPlace,
) -> Vec<u8> {
    let mut content = Object::default();
    content.text("type", "text");
    content.text("text", &refusal.message());
    let mut result = Object::default();
    if with_result_type {
        result.text("resultType", "complete");
    }
    result.raw("content", &format!("[{}]", content.finish()));
    match place {
        DataPlace::StructuredContent => {
            result.raw("structuredContent", &refusal.data_with_message());
        }
        DataPlace::Meta => {
            let mut meta = Object::default();
            meta.raw("checkpoint", &refusal.data());
            result.raw("_meta", &meta.finish());
        }
    }
    result.raw("isError", "true");
    answer(id, Raw::Result(result.finish().as_bytes()))
}

/// Returns the line that answers `id` with an error that is no refusal of a call.
pub fn plain_error(id: Option<RawId<'_>>, code: i32, message: &str) -> Vec<u8> {
    let mut error = Object::default();
    error.raw("code", &code.to_string());
    error.text("message", message);
    answer(id, Raw::Error(error.finish().as_bytes()))
}

/// Returns the notice that cancels a request of the client's at the upstream.
///
/// Source: MCP 2025-11-25, base protocol, cancellation.
pub fn cancellation(id: &[u8]) -> Vec<u8> {
    let mut params = Object::default();
    params.raw("requestId", &String::from_utf8_lossy(id));
    params.text("reason", "another run has taken this call over");
    let mut notice = Object::default();
    notice.text("jsonrpc", "2.0");
    notice.text("method", "notifications/cancelled");
    notice.raw("params", &params.finish());
    let mut line = notice.finish().into_bytes();
    line.push(b'\n');
    line
}

/// Returns the raw result that stands for one that was lost, marked as such. `who` says whose word
/// it is that the call was carried out, as in "an operator has confirmed".
pub fn synthetic_result(tool: &str, seq: u64, who: &str) -> Vec<u8> {
    let text = format!(
        "checkpoint: this call of {tool} was carried out, as {who}, but its own result was lost. \
         This text stands in its place. Do not repeat the call."
    );
    let mut content = Object::default();
    content.text("type", "text");
    content.text("text", &text);
    let mut mark = Object::default();
    mark.raw("seq", &seq.to_string());
    mark.raw("synthetic", "true");
    let mut meta = Object::default();
    meta.raw("checkpoint", &mark.finish());
    let mut result = Object::default();
    result.raw("content", &format!("[{}]", content.finish()));
    result.raw("isError", "false");
    result.raw("_meta", &meta.finish());
    result.finish().into_bytes()
}

/// What `_meta["checkpoint"]` says on an answer; what is `None` is left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Annotation {
    /// The call's place.
    pub seq: Option<u64>,
    /// The attempt that gave the outcome, from 1.
    pub attempt: Option<u64>,
    /// Whether the answer came from the journal.
    pub replayed: Option<bool>,
    /// When the outcome was settled, RFC 3339.
    pub completed_at: Option<String>,
    /// `false` where the outcome could not be made durable.
    pub journaled: Option<bool>,
}

impl Annotation {
    /// Returns the mark of an answer whose outcome could not be made durable.
    pub fn not_journaled(seq: u64) -> Self {
        Self {
            seq: Some(seq),
            journaled: Some(false),
            ..Self::default()
        }
    }

    /// Returns the mark of an answer that is delivered again to a caller who did not ask for it.
    pub fn redelivered(seq: u64) -> Self {
        Self {
            seq: Some(seq),
            replayed: Some(true),
            ..Self::default()
        }
    }

    fn text(&self) -> String {
        let mut text = Object::default();
        text.number("seq", self.seq);
        text.number("attempt", self.attempt);
        text.flag("replayed", self.replayed);
        text.optional("completed_at", self.completed_at.as_deref());
        text.flag("journaled", self.journaled);
        text.finish()
    }
}

/// Returns an answer with `_meta.checkpoint` set in its result, and no other byte changed.
///
/// An error gets it in `data._meta`, if it has no data or an object there. An answer that has no
/// place for it comes back as it is.
pub fn annotate<'a>(line: &'a [u8], annotation: &Annotation) -> Cow<'a, [u8]> {
    let [mut result, mut error] = [None; 2];
    for member in json::tolerant_members(line).into_iter().flatten() {
        match &*member.key {
            b"result" => result = Some(member.value),
            b"error" => error = Some(member.value),
            _ => {}
        }
    }
    let path = match outcome(result, error) {
        Some(Raw::Result(raw)) if json::is_object(raw) => &["result", "_meta", "checkpoint"][..],
        Some(Raw::Error(raw)) if json::is_object(raw) => &["error", "data", "_meta", "checkpoint"],
        _ => return Cow::Borrowed(line),
    };
    match json::set(line, path, annotation.text().as_bytes()) {
        Some(line) => Cow::Owned(line),
        None => Cow::Borrowed(line),
    }
}

/// Returns a raw result with `resultType: "complete"` added if it has no `resultType`.
///
/// Source: MCP 2026-07-28, base protocol, result type.
pub fn with_result_type(result: &[u8]) -> Cow<'_, [u8]> {
    if json::member(result, "resultType").is_some() {
        return Cow::Borrowed(result);
    }
    match json::set(result, &["resultType"], b"\"complete\"") {
        Some(result) => Cow::Owned(result),
        None => Cow::Borrowed(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::frame::{UpstreamLine, read_upstream};
    use crate::mcp::refusal::tests::whole;

    fn text(line: &[u8]) -> &str {
        std::str::from_utf8(line).expect("UTF-8")
    }

    fn id(raw: &str) -> Option<RawId<'_>> {
        RawId::new(raw.as_bytes())
    }

    #[test]
    fn lines_carry_the_caller_s_own_id() {
        let line = answer(id(r#""\u0061""#), Raw::Result(b"{\n\"a\":1}"));
        assert_eq!(
            text(&line),
            "{\"jsonrpc\":\"2.0\",\"id\":\"\\u0061\",\"result\":{ \"a\":1}}\n"
        );
        let line = answer(None, Raw::Error(b"{}"));
        assert_eq!(
            text(&line),
            "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{}}\n"
        );
        let line = plain_error(id("1.0"), -32000, "gone\n");
        assert_eq!(
            text(&line),
            "{\"jsonrpc\":\"2.0\",\"id\":1.0,\"error\":{\"code\":-32000,\"message\":\"gone\\n\"}}\n"
        );
    }

    #[test]
    fn a_cancellation_and_a_stand_in_are_pinned() {
        assert_eq!(
            String::from_utf8(cancellation(br#""\u0061""#)).unwrap(),
            "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":\
             {\"requestId\":\"\\u0061\",\"reason\":\"another run has taken this call over\"}}\n"
        );
        assert_eq!(
            String::from_utf8(synthetic_result("charge", 7, "an operator has confirmed")).unwrap(),
            "{\"content\":[{\"type\":\"text\",\"text\":\"checkpoint: this call of charge was carried \
             out, as an operator has confirmed, but its own result was lost. This text stands in \
             its place. Do not repeat the call.\"}],\"isError\":false,\
             \"_meta\":{\"checkpoint\":{\"seq\":7,\"synthetic\":true}}}"
        );
    }

    #[test]
    fn a_refusal_is_an_error_or_a_result() {
        let line = refusal_as_error(id("3"), &whole());
        let value: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(value["error"]["code"], 7702);
        assert_eq!(value["error"]["message"], whole().message());
        assert_eq!(value["error"]["data"]["seq"], 7);
        for with_result_type in [false, true] {
            let line = refusal_as_result(
                id("3"),
                &whole(),
                with_result_type,
                DataPlace::StructuredContent,
            );
            let value: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
            let result = &value["result"];
            assert_eq!(result["isError"], true);
            assert_eq!(result["content"][0]["text"], whole().message());
            assert_eq!(result["structuredContent"]["kind"], "in_doubt");
            assert_eq!(result["structuredContent"]["message"], whole().message());
            assert_eq!(result.get("resultType").is_some(), with_result_type);
        }
    }

    #[test]
    fn an_annotation_changes_nothing_else() {
        let full = Annotation {
            seq: Some(7),
            attempt: Some(2),
            replayed: Some(true),
            completed_at: Some("z".into()),
            journaled: None,
        };
        let mark = r#"{"seq":7,"attempt":2,"replayed":true,"completed_at":"z"}"#;
        for (before, after) in [
            (
                r#"{"id":1,"result":{ }}"#,
                r#"{"id":1,"result":{"_meta":{"checkpoint":#} }}"#,
            ),
            (
                r#"{"result":{"n":1e400,"_meta":{"x":1} },"id":1}"#,
                r#"{"result":{"n":1e400,"_meta":{"x":1,"checkpoint":#} },"id":1}"#,
            ),
            (
                r#"{"id":1,"result":{"_meta":{"checkpoint":[1],"x":1}}}"#,
                r#"{"id":1,"result":{"_meta":{"checkpoint":#,"x":1}}}"#,
            ),
            (
                r#"{"id":1,"error":{"code":1}}"#,
                r#"{"id":1,"error":{"code":1,"data":{"_meta":{"checkpoint":#}}}}"#,
            ),
            (
                r#"{"id":1,"error":{"code":1,"data":{"a":1}}}"#,
                r#"{"id":1,"error":{"code":1,"data":{"a":1,"_meta":{"checkpoint":#}}}}"#,
            ),
            (
                r#"{"id":1,"error":{"data":"text"}}"#,
                r#"{"id":1,"error":{"data":"text"}}"#,
            ),
            (r#"{"id":1,"result":null}"#, r#"{"id":1,"result":null}"#),
            (r#"{"id":1,"result":[]}"#, r#"{"id":1,"result":[]}"#),
            (r#"{"id":1,"error":null}"#, r#"{"id":1,"error":null}"#),
            (r#"{"id":1,"error":"text"}"#, r#"{"id":1,"error":"text"}"#),
            (
                r#"{"id":1,"result":{"_meta":7}}"#,
                r#"{"id":1,"result":{"_meta":7}}"#,
            ),
            ("noise", "noise"),
        ] {
            let (before, after) = (format!("{before}\r\n"), format!("{after}\r\n"));
            let after = after.replace('#', mark);
            assert_eq!(text(&annotate(before.as_bytes(), &full)), after);
        }
        let line = annotate(b"{\"id\":1,\"result\":{}}\n", &Annotation::not_journaled(3));
        assert_eq!(
            text(&line),
            "{\"id\":1,\"result\":{\"_meta\":{\"checkpoint\":{\"seq\":3,\"journaled\":false}}}}\n"
        );
        assert_eq!(
            Annotation::redelivered(3).text(),
            r#"{"seq":3,"replayed":true}"#
        );
        assert!(matches!(read_upstream(&line), UpstreamLine::Answer(answer) if answer.is_strict()));
    }

    #[test]
    fn a_result_type_is_added_and_never_changed() {
        assert_eq!(
            text(&with_result_type(b"{}")),
            r#"{"resultType":"complete"}"#
        );
        assert_eq!(
            text(&with_result_type(br#"{"content":[]}"#)),
            r#"{"content":[],"resultType":"complete"}"#
        );
        assert_eq!(
            text(&with_result_type(br#"{"resultType":"odd"}"#)),
            r#"{"resultType":"odd"}"#
        );
        assert_eq!(text(&with_result_type(b"[]")), "[]");
    }
}
