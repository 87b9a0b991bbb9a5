//! One line from the client, told apart without changing it.
//!
//! Read strictly, as an upstream may execute what we could not read: whatever two parsers may take
//! for two things is refused where it decides.

use std::borrow::Cow;

use super::call::Call;
pub use super::id::{IdKey, RawId};
use super::refusal::RefusalKind;
pub use super::upstream::{
    Answer, Raw, UpstreamLine, batch_elements, cancelled_request_id, read_upstream,
};
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

/// The members of an envelope that decide; a variant of their case is refused.
const ENVELOPE: [&str; 3] = ["method", "id", "params"];

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

/// Folds a name's case, and ends it where a reader of C strings does; nothing for names too long
/// to be ours.
fn fold(key: &[u8]) -> Option<Vec<u8>> {
    let key = until_nul(key);
    if key.len() > 64 {
        return None;
    }
    Some(fold_text(&String::from_utf8_lossy(key)).into_bytes())
}

/// Returns what a reader sees that keeps strings as C does.
fn until_nul(text: &[u8]) -> &[u8] {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    &text[..end]
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
    let method = String::from_utf8_lossy(until_nul(method));
    let trimmed = method.trim_matches(|character: char| {
        character.is_whitespace()
            || character.is_control()
            || matches!(character, '\u{feff}' | '\u{200b}'..='\u{200d}' | '\u{2060}')
    });
    trimmed.chars().count() == "tools/call".len() && fold_text(trimmed) == "tools/call"
}

#[cfg(test)]
mod tests;
