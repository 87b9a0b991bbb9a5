//! One line from the upstream, told apart without changing it.
//!
//! Read tolerantly, as an outcome must not be lost over a bad byte: what a strict parser would
//! refuse is the client's to judge, but the call it answers is settled all the same.

use std::borrow::Cow;
use std::ops::Range;

use super::id::RawId;
use crate::json::{self, Kind, Member};

/// The payload of an answer: its raw bytes, or where they stand in the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raw<T> {
    /// The value of `result`.
    Result(T),
    /// The value of `error`.
    Error(T),
}

impl<T> Raw<T> {
    /// Returns the same member with what `change` makes of its value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Raw<U> {
        match self {
            Self::Result(value) => Raw::Result(change(value)),
            Self::Error(value) => Raw::Error(change(value)),
        }
    }
}

/// What an upstream's line is.
#[derive(Debug)]
pub enum UpstreamLine<'a> {
    /// Begins neither as an object nor as an array: a banner, a log line, nothing.
    Noise,
    /// Answers a request.
    Answer(Answer<'a>),
    /// A request or a notification.
    Message {
        /// The method.
        method: Cow<'a, str>,
        /// The id; without one this is a notification.
        id: Option<RawId<'a>>,
        /// The raw `params`.
        params: Option<&'a [u8]>,
    },
    /// An array of messages.
    Batch,
    /// Something else that is the client's to judge, such as an answer without a usable id.
    Other,
}

/// An answer from the upstream, found by a tolerant reading.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// The id that is answered; of equal members the last.
    pub id: RawId<'a>,
    /// The raw payload. Only where [`Self::is_strict`] is it sure to be JSON.
    pub outcome: Raw<&'a [u8]>,
    line: &'a [u8],
}

impl Answer<'_> {
    /// Returns whether the whole line is one JSON value and nothing else.
    ///
    /// This reads the line again, so it is only for answers that are ours.
    pub fn is_strict(&self) -> bool {
        json::check(self.line).is_ok()
    }

    /// Returns where the payload stands in the line that was read, for whoever keeps the line and
    /// would have to read all of it again.
    pub fn outcome_range(&self) -> Raw<Range<usize>> {
        self.outcome.map(|raw| range_in(self.line, raw))
    }
}

/// Walks over where the elements of an upstream's array stand in its line, as far as that is an
/// array. Each can be read as a line of its own.
pub fn batch_elements(line: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let body = json::remove_byte_order_mark(line);
    let start = body.iter().position(|byte| *byte == b'[');
    let start = line.len() - body.len() + start.unwrap_or(body.len());
    json::Elements::new(&line[start..]).map(move |element| range_in(line, element))
}

/// Returns where a part of a line stands in it.
fn range_in(line: &[u8], part: &[u8]) -> Range<usize> {
    let at = part.as_ptr() as usize - line.as_ptr() as usize;
    at..at + part.len()
}

/// Tells what an upstream's line is. The line end may be on it.
pub fn read_upstream(line: &[u8]) -> UpstreamLine<'_> {
    let body = json::remove_byte_order_mark(line);
    let start = body
        .iter()
        .position(|byte| !byte.is_ascii_whitespace() && *byte != 0x0b);
    match start.map(|start| body[start]) {
        Some(b'{') => {}
        Some(b'[') => return UpstreamLine::Batch,
        _ => return UpstreamLine::Noise,
    }
    let [mut id, mut method, mut params, mut result, mut error] = [None; 5];
    let object = json::trim(&body[start.unwrap_or(0)..]);
    for Member { key, value, range } in json::Members::new(object) {
        if range.end == object.len() && is_cut(value) {
            // No client can read this line, and an id may be the first half of another.
            return UpstreamLine::Other;
        }
        match &*key {
            b"id" => id = Some(value),
            b"method" if json::kind(value) == Kind::Null => {}
            b"method" => method = Some(value),
            b"params" => params = Some(value),
            b"result" => result = Some(value),
            b"error" => error = Some(value),
            _ => {}
        }
    }
    let id = id.and_then(RawId::new);
    if let Some(method) = method {
        return match json::text(method) {
            Some(method) => UpstreamLine::Message { method, id, params },
            None => UpstreamLine::Other,
        };
    }
    match (id, outcome(result, error)) {
        (Some(id), Some(outcome)) => UpstreamLine::Answer(Answer { id, outcome, line }),
        _ => UpstreamLine::Other,
    }
}

/// Returns whether the last value of a line that does not close its object is cut short, as far as
/// can be told.
fn is_cut(value: &[u8]) -> bool {
    match json::kind(value) {
        Kind::Object | Kind::Array | Kind::String => !json::is_whole(value),
        Kind::Number | Kind::True | Kind::False | Kind::Null | Kind::Odd => true,
    }
}

/// Some upstreams write both members, one of them `null`.
pub(super) fn outcome<'a>(
    result: Option<&'a [u8]>,
    error: Option<&'a [u8]>,
) -> Option<Raw<&'a [u8]>> {
    match (result, error) {
        (Some(result), Some(error)) if json::kind(error) == Kind::Null => Some(Raw::Result(result)),
        (_, Some(error)) => Some(Raw::Error(error)),
        (Some(result), None) => Some(Raw::Result(result)),
        (None, None) => None,
    }
}

/// Returns the id that a `notifications/cancelled` names.
///
/// Source: MCP 2025-11-25, cancellation.
pub fn cancelled_request_id(params: &[u8]) -> Option<RawId<'_>> {
    json::last_member(params, "requestId").and_then(|member| RawId::new(member.value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told_upstream(line: &[u8]) -> String {
        let lossy = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
        match read_upstream(line) {
            UpstreamLine::Noise => "noise".into(),
            UpstreamLine::Batch => "batch".into(),
            UpstreamLine::Other => "other".into(),
            UpstreamLine::Message { method, id, .. } => {
                format!(
                    "message {method} {}",
                    id.map_or("-".into(), |id| lossy(id.as_bytes()))
                )
            }
            UpstreamLine::Answer(answer) => {
                let (name, raw) = match answer.outcome {
                    Raw::Result(raw) => ("result", raw),
                    Raw::Error(raw) => ("error", raw),
                };
                let strict = if answer.is_strict() {
                    "strict"
                } else {
                    "loose"
                };
                format!(
                    "{} {name} {} {strict}",
                    lossy(answer.id.as_bytes()),
                    lossy(raw)
                )
            }
        }
    }

    #[test]
    fn answers_are_found_in_every_line_that_holds_one() {
        for (line, expected) in [
            (
                &br#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#[..],
                r#"1 result {"content":[]} strict"#,
            ),
            (
                br#"{"result":{"id":9,"method":"x"},"id":"q"}"#,
                r#""q" result {"id":9,"method":"x"} strict"#,
            ),
            (
                br#" {"id":1,"error":{"code":-1}} "#,
                r#"1 error {"code":-1} strict"#,
            ),
            (
                br#"{"id":1,"result":{"n":NaN}}"#,
                r#"1 result {"n":NaN} loose"#,
            ),
            (
                b"{\"id\":1,\"result\":{\"s\":\"\xff\"}}",
                "1 result {\"s\":\"\u{fffd}\"} loose",
            ),
            (b"\xef\xbb\xbf{\"id\":1,\"result\":{}}", "1 result {} loose"),
            (br#"{"id":1,"id":2,"result":{}}"#, "2 result {} strict"),
            (
                br#"{"id":1,"result":{"a":1,"a":2}}"#,
                r#"1 result {"a":1,"a":2} strict"#,
            ),
            (
                br#"{"id":1,"result":null,"error":{"code":1}}"#,
                r#"1 error {"code":1} strict"#,
            ),
            (
                br#"{"id":1,"result":{},"error":null}"#,
                "1 result {} strict",
            ),
            (br#"{"id":1,"result":{}} trailing"#, "1 result {} loose"),
            (br#"{"id":1,"result":{},}"#, "1 result {} loose"),
            (
                br#"{"id":1,"method":null,"result":{}}"#,
                "1 result {} strict",
            ),
            (
                br#"{"id":1,"result":"}{\"id\":5"}"#,
                r#"1 result "}{\"id\":5" strict"#,
            ),
            (br#"{"\u0069d":1,"r\u0065sult":1}"#, "1 result 1 strict"),
            (b"{\"id\":1,\"result\":{}}\r\n", "1 result {} strict"),
            // What does not close the line's object may still be whole itself.
            (br#"{"id":1,"result":{}"#, "1 result {} loose"),
            (br#"{"id":1,"result":["a"]"#, r#"1 result ["a"] loose"#),
            (br#"{"result":{},"id":"q""#, r#""q" result {} loose"#),
        ] {
            assert_eq!(
                told_upstream(line),
                expected,
                "{}",
                String::from_utf8_lossy(line)
            );
        }
    }

    #[test]
    fn other_lines_of_the_upstream() {
        for (line, expected) in [
            (&b"starting on port 1"[..], "noise"),
            (b"", "noise"),
            (b" \r", "noise"),
            (b"\xef\xbb\xbf", "noise"),
            (b"[1]", "batch"),
            (b"\xef\xbb\xbf [INFO] x", "batch"),
            (b"{}", "other"),
            (br#"{"id":null,"error":{}}"#, "other"),
            (br#"{"error":{}}"#, "other"),
            (br#"{"id":1}"#, "other"),
            (br#"{"id":1,"method":"x","result":{}}"#, "message x 1"),
            (
                br#"{"method":"notifications/progress","params":{}}"#,
                "message notifications/progress -",
            ),
            (
                br#"{"method":"sampling/createMessage","id":0}"#,
                "message sampling/createMessage 0",
            ),
            (br#"{"method":7,"id":0,"result":{}}"#, "other"),
            (b"{oops", "other"),
            (b"{\"result\":{\"s\":\"cut", "other"),
            (br#"{"id":1,"result":{"a":{}"#, "other"),
            (br#"{"id":1,"result":tru"#, "other"),
            (br#"{"result":{},"id":1"#, "other"),
            (br#"{"result":{},"id":"q"#, "other"),
        ] {
            assert_eq!(
                told_upstream(line),
                expected,
                "{}",
                String::from_utf8_lossy(line)
            );
        }
    }

    #[test]
    fn a_message_keeps_its_params() {
        let line = br#"{"method":"m","params":{"a":1}}"#;
        let UpstreamLine::Message { params, .. } = read_upstream(line) else {
            panic!("it is a message")
        };
        assert_eq!(params, Some(&br#"{"a":1}"#[..]));
    }

    #[test]
    fn the_elements_of_an_array_are_lines_of_their_own() {
        let told = |line: &[u8]| -> Vec<String> {
            let elements = batch_elements(line);
            elements.map(|range| told_upstream(&line[range])).collect()
        };
        for (line, expected) in [
            (
                &br#"[{"id":1,"result":{}},{"method":"m"} , {"id":2,"error":{}}]"#[..],
                &["1 result {} strict", "message m -", "2 error {} strict"][..],
            ),
            (
                b"\xef\xbb\xbf [ {\"id\":1,\"result\":[1]} ]\r\n",
                &["1 result [1] strict"],
            ),
            (
                br#"[7,[{"id":1,"result":{}}],"x"]"#,
                &["noise", "batch", "noise"],
            ),
            // An answer that is whole is one, though its array was cut.
            (
                br#"[{"id":1,"result":{}},{"id":2,"result":{"a":"#,
                &["1 result {} strict", "other"],
            ),
            (b"[INFO] x", &["noise"]),
            (b"[]", &[]),
            (b"[", &[]),
            (b"", &[]),
        ] {
            assert_eq!(told(line), expected, "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn a_cancellation_names_its_request() {
        let id =
            |params: &'static str| cancelled_request_id(params.as_bytes()).map(|id| id.as_bytes());
        assert_eq!(
            id(r#"{"requestId":"\u0061","reason":"x"}"#),
            Some(&br#""\u0061""#[..])
        );
        assert_eq!(id(r#"{"requestId":1e0}"#), Some(&b"1e0"[..]));
        assert_eq!(id(r#"{"requestId":null}"#), None);
        assert_eq!(id("[]"), None);
    }

    proptest! {
        #[test]
        fn no_line_panics(line in proptest::collection::vec(any::<u8>(), 0..80)) {
            told_upstream(&line);
            for range in batch_elements(&line) {
                told_upstream(&line[range]);
            }
        }

        #[test]
        fn no_likely_line_panics(line in r#"\{("id"|"method"|"result"|"error"|[:,{}\[\]0-9" ]){0,14}\}?"#) {
            told_upstream(line.as_bytes());
        }
    }
}
