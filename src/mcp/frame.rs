//! One line from either side, told apart without changing it.
//!
//! The client's lines are read strictly, as an upstream may execute what we could not read. The
//! upstream's lines are read tolerantly, as an outcome must not be lost over a bad byte.

use std::borrow::Cow;
use std::fmt;

use super::call::Call;
use super::reply::RefusalKind;
use crate::json::{self, Kind, Member};

/// Longest id of a `tools/call`, in bytes as it was sent.
pub const ID_BYTES_MAX: usize = 8 * 1024;

/// What a client's line is.
#[derive(Debug)]
pub enum ClientLine<'a> {
    /// Nothing but white space: no message.
    Blank,
    /// A header of `Content-Length` framing, which is not the stdio transport.
    Header,
    /// Not about a `tools/call`: passes as it is.
    Pass(Passing<'a>),
    /// A `tools/call` that can be decided.
    Call(Box<Call<'a>>),
    /// Must not reach the upstream.
    Refused(Box<LineRefusal<'a>>),
}

/// A line that passes unchanged, as far as it was read.
#[derive(Debug, Default)]
pub struct Passing<'a> {
    /// The method, where there is one that is text.
    pub method: Option<Cow<'a, str>>,
    /// The id, where there is one that is a string or a number.
    pub id: Option<RawId<'a>>,
    /// Whether this answers a request of the upstream's.
    pub is_response: bool,
    /// Whether this is an array of messages; then nothing else is filled in.
    pub is_batch: bool,
    /// The raw `params`.
    pub params: Option<&'a [u8]>,
}

/// Why a client's line is refused, and what the answer needs.
#[derive(Debug)]
pub struct LineRefusal<'a> {
    /// `parse_error`, `invalid_request` or `duplicate_member`; its code is `kind.code()`.
    pub kind: RefusalKind,
    /// Why, as a sentence without its full stop. Never quotes the line.
    pub reason: Cow<'static, str>,
    /// JSON pointer within `arguments` to the member that stands twice. It holds member names, so
    /// it is for the client and not for journals or logs.
    pub pointer: Option<String>,
    /// The id to answer with; `null` where there is none.
    pub id: Option<RawId<'a>>,
    /// Whether the line was a `tools/call`, as far as can be told.
    pub is_call: bool,
    /// The tool's name, where it could be read.
    pub tool: Option<String>,
}

impl<'a> LineRefusal<'a> {
    pub(super) fn new(kind: RefusalKind, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            reason: reason.into(),
            pointer: None,
            id: None,
            is_call: false,
            tool: None,
        }
    }

    pub(super) fn invalid(reason: &'static str) -> Self {
        Self::new(RefusalKind::InvalidRequest, reason)
    }

    pub(super) fn twice(name: &str) -> Self {
        Self::new(
            RefusalKind::DuplicateMember,
            format!("the member {name} stands twice"),
        )
    }

    pub(super) fn variant(name: &str) -> Self {
        Self::new(
            RefusalKind::InvalidRequest,
            format!("a member is called {name} but for its case, which readers take differently"),
        )
    }

    pub(super) fn of_call(mut self, id: Option<RawId<'a>>) -> Self {
        self.is_call = true;
        self.id = id;
        self
    }

    fn into_line(self) -> ClientLine<'a> {
        ClientLine::Refused(Box::new(self))
    }
}

/// An id as it was sent: a JSON string or number, never changed.
///
/// Source: MCP 2025-11-25, base protocol, requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawId<'a>(&'a [u8]);

impl<'a> RawId<'a> {
    /// Takes a raw value for an id, if it is a JSON string or number.
    pub fn new(raw: &'a [u8]) -> Option<Self> {
        let raw = json::trim(raw);
        let is_id = matches!(json::kind(raw), Kind::String | Kind::Number);
        (is_id && json::check(raw).is_ok()).then_some(Self(raw))
    }

    /// Returns the bytes that came.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns what this id equals: `"a"` and `"\u0061"` are one, `1`, `1.0` and `1e0` are one,
    /// `"1"` and `1` are two.
    pub fn key(self) -> IdKey {
        match json::kind(self.0) {
            Kind::String => IdKey {
                is_string: true,
                text: json::string(self.0).into(),
            },
            _ => IdKey {
                is_string: false,
                text: json::number_key(self.0).into(),
            },
        }
    }
}

impl fmt::Debug for RawId<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RawId({})", String::from_utf8_lossy(self.0))
    }
}

/// The identity of an id: equal for equal ids, however they are spelled.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdKey {
    is_string: bool,
    text: Box<[u8]>,
}

/// The raw payload of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raw<'a> {
    /// The value of `result`.
    Result(&'a [u8]),
    /// The value of `error`.
    Error(&'a [u8]),
}

/// Tells what a client's line is. The line end may be on it.
pub fn read_client(line: &[u8]) -> ClientLine<'_> {
    let body = json::trim(line);
    if body.is_empty() {
        return ClientLine::Blank;
    }
    if is_header(body) {
        return ClientLine::Header;
    }
    if let Err(invalid) = json::check(line) {
        let reason = format!("the line is not JSON: {invalid}");
        return LineRefusal::new(RefusalKind::ParseError, reason).into_line();
    }
    match json::kind(body) {
        Kind::Object => read_message(body),
        Kind::Array => read_batch(body),
        _ => LineRefusal::invalid("a message is a JSON object").into_line(),
    }
}

fn is_header(body: &[u8]) -> bool {
    ["content-length:", "content-type:"].iter().any(|header| {
        body.get(..header.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(header.as_bytes()))
    })
}

/// The members of an envelope that decide; each may stand once.
const ENVELOPE: [&str; 4] = ["jsonrpc", "method", "id", "params"];

fn read_message(object: &[u8]) -> ClientLine<'_> {
    let [mut method, mut id, mut params] = [None; 3];
    let mut jsonrpc = None;
    let mut has_outcome = false;
    let mut twice = None;
    let mut variant = None;
    for Member { key, value, .. } in json::Members::new(object) {
        let (slot, name) = match &*key {
            b"jsonrpc" => (&mut jsonrpc, "jsonrpc"),
            b"method" => (&mut method, "method"),
            b"id" => (&mut id, "id"),
            b"params" => (&mut params, "params"),
            b"result" | b"error" => {
                has_outcome = true;
                continue;
            }
            other => {
                variant = variant.or(case_variant(other, &ENVELOPE));
                continue;
            }
        };
        if slot.replace(value).is_some() {
            twice = twice.or(Some(name));
        }
    }
    let raw_id = id.and_then(RawId::new);
    let is_call = method.is_some_and(|method| is_call_like(&json::string(method)));
    let refusal = if let Some(name) = twice {
        LineRefusal::twice(name)
    } else if let Some(name) = variant {
        LineRefusal::variant(name)
    } else {
        match method.map(|method| (json::kind(method), json::string(method))) {
            Some((Kind::String, name)) if *name == *b"tools/call" => {
                return read_call(id, raw_id, params);
            }
            Some((Kind::String, _)) if is_call => {
                LineRefusal::invalid("the method is tools/call but for its case or white space")
            }
            Some((Kind::String, _)) | None => {
                return ClientLine::Pass(Passing {
                    method: method.and_then(json::text),
                    id: raw_id,
                    is_response: method.is_none() && has_outcome,
                    is_batch: false,
                    params,
                });
            }
            Some(_) => LineRefusal::invalid("the method is no string"),
        }
    };
    // Of two ids nobody knows which one the client waits for.
    let id = if twice == Some("id") { None } else { raw_id };
    LineRefusal {
        id,
        is_call,
        ..refusal
    }
    .into_line()
}

fn read_call<'a>(
    id: Option<&'a [u8]>,
    raw_id: Option<RawId<'a>>,
    params: Option<&'a [u8]>,
) -> ClientLine<'a> {
    let refusal = match (raw_id, params) {
        (None, _) if id.is_none() => LineRefusal::invalid("a tools/call needs an id"),
        (None, _) => LineRefusal::invalid("the id of a tools/call is a string or a number"),
        (Some(id), _) if id.as_bytes().len() > ID_BYTES_MAX => {
            LineRefusal::invalid("the id of a tools/call is over 8 KiB")
        }
        (_, None) => LineRefusal::invalid("a tools/call needs params"),
        (Some(id), Some(params)) => match Call::read(id, params) {
            Ok(call) => return ClientLine::Call(Box::new(call)),
            Err(refusal) => *refusal,
        },
    };
    refusal.of_call(raw_id).into_line()
}

fn read_batch(array: &[u8]) -> ClientLine<'_> {
    let mut is_empty = true;
    for element in json::Elements::new(array) {
        is_empty = false;
        if !json::is_object(element) {
            return LineRefusal::invalid("an array of messages holds only objects").into_line();
        }
        let refusal = match read_message(element) {
            ClientLine::Pass(_) | ClientLine::Blank | ClientLine::Header => continue,
            ClientLine::Call(_) => {
                let reason = "a tools/call in an array of messages can't be journaled";
                LineRefusal::invalid(reason).of_call(None)
            }
            ClientLine::Refused(refusal) => {
                let LineRefusal {
                    reason, is_call, ..
                } = *refusal;
                let reason = format!("a message of the array is invalid: {reason}");
                let refusal = LineRefusal::new(RefusalKind::InvalidRequest, reason);
                LineRefusal { is_call, ..refusal }
            }
        };
        return refusal.into_line();
    }
    if is_empty {
        return LineRefusal::invalid("an array of messages is empty").into_line();
    }
    ClientLine::Pass(Passing {
        is_batch: true,
        ..Passing::default()
    })
}

/// Returns which of `names` a member's name equals but for case, if it is not that very name.
///
/// Some parsers match names without regard to case, by Unicode's simple folding.
pub(super) fn case_variant(key: &[u8], names: &[&'static str]) -> Option<&'static str> {
    let folded = fold(key)?;
    names
        .iter()
        .copied()
        .find(|name| name.to_ascii_lowercase().as_bytes() == folded && name.as_bytes() != key)
}

/// Returns whether a name begins with `prefix` (in lower case) but for case, yet not exactly.
pub(super) fn is_variant_of_prefix(key: &[u8], prefix: &str) -> bool {
    !key.starts_with(prefix.as_bytes())
        && fold(key).is_some_and(|folded| folded.starts_with(prefix.as_bytes()))
}

/// Folds a name's case; nothing for names too long to be ours.
fn fold(key: &[u8]) -> Option<Vec<u8>> {
    if key.len() > 64 {
        return None;
    }
    Some(fold_text(&String::from_utf8_lossy(key)).into_bytes())
}

/// Folds ASCII letters and the characters beyond ASCII that fold into them.
fn fold_text(text: &str) -> String {
    text.chars()
        .map(|character| match character {
            '\u{17f}' => 's',
            '\u{212a}' => 'k',
            '\u{130}' | '\u{131}' => 'i',
            other => other.to_ascii_lowercase(),
        })
        .collect()
}

/// Returns whether a lenient upstream might take this method for `tools/call`.
fn is_call_like(method: &[u8]) -> bool {
    if method == b"tools/call" {
        return true;
    }
    let method = String::from_utf8_lossy(method);
    let trimmed = method.trim_matches(|character: char| {
        character.is_whitespace()
            || character.is_control()
            || matches!(character, '\u{feff}' | '\u{200b}'..='\u{200d}' | '\u{2060}')
    });
    trimmed.chars().count() == "tools/call".len() && fold_text(trimmed) == "tools/call"
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
    /// Something else that is the client's to judge: an array, an answer without a usable id.
    Other,
}

/// An answer from the upstream, found by a tolerant reading.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// The id that is answered; of equal members the last.
    pub id: RawId<'a>,
    /// The raw payload. Only where [`Self::is_strict`] is it sure to be JSON.
    pub outcome: Raw<'a>,
    line: &'a [u8],
}

impl Answer<'_> {
    /// Returns whether the whole line is one JSON value and nothing else.
    ///
    /// This reads the line again, so it is only for answers that are ours.
    pub fn is_strict(&self) -> bool {
        json::check(self.line).is_ok()
    }
}

/// Tells what an upstream's line is. The line end may be on it.
pub fn read_upstream(line: &[u8]) -> UpstreamLine<'_> {
    let body = json::remove_byte_order_mark(line);
    let start = body
        .iter()
        .position(|byte| !byte.is_ascii_whitespace() && *byte != 0x0b);
    match start.map(|start| body[start]) {
        Some(b'{') => {}
        Some(b'[') => return UpstreamLine::Other,
        _ => return UpstreamLine::Noise,
    }
    let [mut id, mut method, mut params, mut result, mut error] = [None; 5];
    for Member { key, value, .. } in json::Members::new(&body[start.unwrap_or(0)..]) {
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

/// Some upstreams write both members, one of them `null`.
pub(super) fn outcome<'a>(result: Option<&'a [u8]>, error: Option<&'a [u8]>) -> Option<Raw<'a>> {
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
