//! Keys that are made from a call: `refund:{order_id}`.
//!
//! A key names an effect, so two calls share one only if every value in it is the same value:
//! `1` and `"1"` are two, and a separator inside a value is no separator. The text of a key,
//! version 1 (keys are stored, so it never changes):
//!
//! | part | text |
//! | --- | --- |
//! | literal text of the template | as it is, with `{` and `}` doubled |
//! | value | `{`, its text, `}` |
//! | `null`, `true`, `false` | themselves |
//! | number | its exact decimal: `17`, `15e-1`; `1`, `1.0` and `10e-1` are one |
//! | string | a JSON string; within it `{`, `}` and what a terminal obeys are escaped |
//! | array, object | `sha256:` and the digest of its canonical text |
//! | key `"args"` | `args:` and the call's signature |
//! | key `"call_id"` | `call_id:` and the client's id of the call |
//! | anything over [`ID_BYTES_MAX`] bytes | `sha256:` and the digest of the text |
//!
//! No text of a value holds a brace, so a text can be read back into its parts, and two templates
//! never give one key by accident either; only texts that go through SHA-256 rest on it.
//!
//! Must not: know in which window a key holds.

use std::fmt::{self, Write as _};

use sha2::{Digest, Sha256};

use super::Policy;
use super::pointer::Pointer;
use crate::json::{self, Kind};
use crate::rules::ids::ID_BYTES_MAX;
use crate::rules::signature::Signature;

/// What a policy makes a call's key from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// `"args"`: the call's signature, so that equal calls share a key.
    Arguments,
    /// `"call_id"`: the client's id of the call.
    CallId,
    /// A text with values of the arguments in it.
    Template(Template),
}

impl KeySource {
    /// Parses the value of `key`.
    ///
    /// # Errors
    ///
    /// What was expected. A template without a value would give one key to every call.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "args" => Ok(Self::Arguments),
            "call_id" => Ok(Self::CallId),
            _ => {
                let template = Template::parse(text)?;
                if template.has_values() {
                    Ok(Self::Template(template))
                } else {
                    Err(
                        "expected \"args\", \"call_id\", or a text with a {member} in it, \
                         since a constant would make one call of all"
                            .to_owned(),
                    )
                }
            }
        }
    }
}

impl KeySource {
    /// Returns whether the key tells something about the arguments, so that it is stored keyed
    /// where they are redacted.
    #[must_use]
    pub fn is_from_arguments(&self) -> bool {
        match self {
            Self::Arguments | Self::Template(_) => true,
            Self::CallId => false,
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments => f.write_str("args"),
            Self::CallId => f.write_str("call_id"),
            Self::Template(template) => template.fmt(f),
        }
    }
}

/// Text with places for values: `{member}`, `{/json/pointer}`; `{{` and `}}` are braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// Text with single braces.
    Literal(String),
    Value(Pointer),
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    ///
    /// What was expected, for a brace without its partner, an empty place, or a bad pointer.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                literal.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err("expected { before }, or }} for a brace".to_owned());
            }
            let (name, after) = rest
                .split_once('}')
                .ok_or("expected } after {, or {{ for a brace")?;
            let pointer = match name.chars().next() {
                None => return Err("expected a member's name between { and }".to_owned()),
                Some('/') => Pointer::parse(name)?,
                Some(_) if name.contains('{') => {
                    return Err("expected } after {, or {{ for a brace".to_owned());
                }
                Some(_) => Pointer::to_member(name),
            };
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(Part::Value(pointer));
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }

    /// Returns whether there is a place for a value.
    #[must_use]
    pub fn has_values(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Value(_)))
    }

    /// Returns the text of the key that these arguments give, of any length.
    fn key(&self, arguments: &[u8]) -> Result<String, InvalidKey> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(literal) => {
                    text.push_str(&literal.replace('{', "{{").replace('}', "}}"));
                }
                Part::Value(pointer) => {
                    let raw = pointer
                        .find(arguments)
                        .ok_or_else(|| InvalidKey::Missing(pointer.to_string()))?;
                    text.push('{');
                    push_value(raw, &mut text)?;
                    text.push('}');
                }
            }
        }
        Ok(text)
    }

    /// Returns the JSON value that these arguments give, on one line.
    ///
    /// A template that is one place gives the value itself with its type; else a string, in which
    /// strings, numbers, `true` and `false` stand as they read.
    ///
    /// # Errors
    ///
    /// A value is missing, or is one that has no place inside a text.
    pub fn fill(&self, arguments: &[u8]) -> Result<String, InvalidKey> {
        if let [Part::Value(pointer)] = &self.parts[..] {
            let raw = pointer
                .find(arguments)
                .ok_or_else(|| InvalidKey::Missing(pointer.to_string()))?;
            // In legal JSON a raw line end can only be white space.
            return std::str::from_utf8(raw)
                .map(|text| text.replace(['\n', '\r'], " "))
                .map_err(|_| InvalidKey::NoText(pointer.to_string()));
        }
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(literal) => text.push_str(literal),
                Part::Value(pointer) => {
                    let raw = pointer
                        .find(arguments)
                        .ok_or_else(|| InvalidKey::Missing(pointer.to_string()))?;
                    let value = match json::kind(raw) {
                        Kind::String => json::text(raw),
                        Kind::Number | Kind::True | Kind::False => {
                            std::str::from_utf8(raw).ok().map(Into::into)
                        }
                        Kind::Object | Kind::Array | Kind::Null | Kind::Odd => None,
                    };
                    let value = value.ok_or_else(|| InvalidKey::NoText(pointer.to_string()))?;
                    text.push_str(&value);
                }
            }
        }
        Ok(json::quote(&text))
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a call has no key although its tool's policy makes one: the call is refused `invalid_key`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The arguments have no value at that pointer.
    #[error("the policy's key needs the argument {0}, which the call does not have")]
    Missing(String),
    /// The key is the client's id of the call, and the call has none.
    #[error("the policy's key is the call's id, which the call does not have")]
    NoCallId,
    /// Two members of one object have the same name, so readers differ on the value.
    #[error("two members of the arguments are called {0}")]
    Duplicate(String),
    /// The value at that pointer has no place inside a text.
    #[error("the argument {0} can't stand inside a text")]
    NoText(String),
}

/// Returns the key that the policy makes for a call, `None` if it makes none.
///
/// `arguments` is checked JSON, absent for a call without; `signature` is the plain one;
/// `call_id` is the client's id of the call. The key is non-empty and at most [`ID_BYTES_MAX`]
/// bytes of one line.
///
/// # Errors
///
/// The call lacks what the key is made from.
pub fn derive_key(
    policy: &Policy,
    arguments: Option<&[u8]>,
    signature: &Signature,
    call_id: Option<&str>,
) -> Result<Option<String>, InvalidKey> {
    let text = match &policy.key {
        None => return Ok(None),
        Some(KeySource::Arguments) => format!("args:{signature}"),
        Some(KeySource::CallId) => {
            let call_id = call_id.filter(|id| !id.is_empty());
            format!("call_id:{}", call_id.ok_or(InvalidKey::NoCallId)?)
        }
        Some(KeySource::Template(template)) => template.key(arguments.unwrap_or(b"{}"))?,
    };
    Ok(Some(if text.len() > ID_BYTES_MAX {
        digest_text(text.as_bytes())
    } else {
        text
    }))
}

/// Returns whether two calls under one key are the same as far as the policy's `key_covers` goes,
/// by default in all of their arguments. Both are checked JSON, absent for a call without.
///
/// Equal means what it means for signatures. A pointer that neither call has a value at is equal.
/// That both are calls of one tool is not looked at here.
#[must_use]
pub fn covers_equal(policy: &Policy, left: Option<&[u8]>, right: Option<&[u8]>) -> bool {
    let (left, right) = (left.unwrap_or(b"{}"), right.unwrap_or(b"{}"));
    match &policy.key_covers {
        None => is_equal(left, right),
        Some(pointers) => {
            pointers
                .iter()
                .all(|pointer| match (pointer.find(left), pointer.find(right)) {
                    (Some(left), Some(right)) => is_equal(left, right),
                    (None, None) => true,
                    _ => false,
                })
        }
    }
}

fn is_equal(left: &[u8], right: &[u8]) -> bool {
    match (json::canonical_text(left), json::canonical_text(right)) {
        (Ok(left), Ok(right)) => left == right,
        // Readers differ on what such arguments mean, so they are equal to nothing.
        _ => false,
    }
}

/// Appends the text of a value; none of them holds a brace.
fn push_value(raw: &[u8], out: &mut String) -> Result<(), InvalidKey> {
    match json::kind(raw) {
        Kind::Null => out.push_str("null"),
        Kind::True => out.push_str("true"),
        Kind::False => out.push_str("false"),
        Kind::Number => push_number(raw, out),
        Kind::String => push_string(&json::string(raw), out),
        Kind::Object | Kind::Array | Kind::Odd => {
            let text = json::canonical_text(raw)
                .map_err(|duplicate| InvalidKey::Duplicate(duplicate.pointer))?;
            out.push_str(&digest_text(&text));
        }
    }
    Ok(())
}

/// Appends an integer of a usual size in digits, and any other number as [`json::number_key`].
fn push_number(raw: &[u8], out: &mut String) {
    const ZEROS_MAX: usize = 20;
    let key = String::from_utf8(json::number_key(raw)).expect("numbers are ASCII");
    let zeros = key
        .split_once('e')
        .and_then(|(digits, power)| Some((digits, power.parse().ok()?)))
        .filter(|(_, zeros): &(_, usize)| *zeros <= ZEROS_MAX);
    match zeros {
        Some((digits, zeros)) => {
            out.push_str(digits);
            out.extend(std::iter::repeat_n('0', zeros));
        }
        None => out.push_str(&key),
    }
}

/// Appends WTF-8 `bytes` as a JSON string without braces; lone surrogates stay apart.
fn push_string(bytes: &[u8], out: &mut String) {
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        let quoted = json::quote(chunk.valid());
        let inner = &quoted[1..quoted.len() - 1];
        out.push_str(&inner.replace('{', "\\u007b").replace('}', "\\u007d"));
        // What is not UTF-8 in WTF-8 are surrogates, three bytes each, reported in pieces.
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
}

fn digest_text(text: &[u8]) -> String {
    let mut out = String::from("sha256:");
    for byte in Sha256::digest(text) {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

#[cfg(test)]
mod tests;
