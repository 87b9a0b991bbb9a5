//! What must hold of any bytes. The random runs of this folder and the fuzz targets in `fuzz/`
//! call the same functions.

use std::collections::BTreeMap;

use checkpoint::cli::escape::{escape, escape_block, escape_json};
use checkpoint::json;
use checkpoint::mcp::frame::{ClientLine, Raw, UpstreamLine, read_client, read_upstream};
use checkpoint::mcp::id::RawId;
use checkpoint::mcp::outcome::{read_error, read_result, read_task};
use checkpoint::mcp::reply::{Annotation, annotate, answer, with_result_type};
use checkpoint::mcp::upstream::batch_elements;
use checkpoint::rules::signature::signature;

fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

/// Whether `part` is a piece of `line` itself, not a copy.
fn is_of(part: &[u8], line: &[u8]) -> bool {
    line.as_ptr_range().contains(&part.as_ptr())
        && line.as_ptr_range().end >= part.as_ptr_range().end
}

/// A client's line: what is a call keeps its bytes and can be signed; what passes is JSON in which
/// nobody who reads it as usual (the last of equal members counts) finds a call.
pub(crate) fn client_line(line: &[u8]) {
    match read_client(line) {
        ClientLine::Call(call) => {
            assert!(json::check(line).is_ok(), "{}", shown(line));
            assert!(is_of(call.id.as_bytes(), line), "{}", shown(line));
            if let Some(arguments) = call.arguments {
                assert!(is_of(arguments, line), "{}", shown(line));
            }
            assert!(signature(&call.name, call.arguments, call.has_task).is_ok());
        }
        ClientLine::Pass(_) => {
            assert!(json::check(line).is_ok(), "{}", shown(line));
            let Ok(value) = serde_json::from_slice::<serde_json::Value>(line) else {
                return;
            };
            let mut messages = value.as_array().into_iter().flatten().chain([&value]);
            let is_call = messages.any(|message| message["method"] == "tools/call");
            assert!(!is_call, "passes: {}", shown(line));
        }
        ClientLine::Refused(_) | ClientLine::Header | ClientLine::Blank => {}
    }
}

/// An upstream's line: whatever stands in it, an answer's parts are pieces of it, and a strict
/// reader who finds an answer there finds the one that we do.
pub(crate) fn upstream_line(line: &[u8]) {
    if let UpstreamLine::Answer(found) = read_upstream(line) {
        let (Raw::Result(body) | Raw::Error(body)) = found.outcome;
        assert!(
            is_of(found.id.as_bytes(), line) && is_of(body, line),
            "{}",
            shown(line)
        );
        match found.outcome {
            Raw::Result(raw) => {
                let _ = (read_result(raw), read_task(raw));
                let typed = with_result_type(raw);
                if json::check(raw).is_ok() {
                    assert!(json::check(&typed).is_ok(), "{}", shown(&typed));
                }
            }
            Raw::Error(raw) => drop(read_error(raw)),
        }
        if let (true, Ok(value)) = (
            found.is_strict(),
            serde_json::from_slice::<serde_json::Value>(line),
        ) {
            let id: serde_json::Value = serde_json::from_slice(found.id.as_bytes()).unwrap();
            assert_eq!(value["id"], id, "{}", shown(line));
        }
    }
    for place in batch_elements(line) {
        let _ = read_upstream(&line[place]);
    }
}

/// What we write in the place of an upstream's line, or add to it: a mark keeps the line one line
/// and what was JSON is JSON, under the same id; so does a payload that is given to another caller.
pub(crate) fn reply(line: &[u8]) {
    let ends = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
    let is_strict = json::check(line).is_ok();
    for mark in [Annotation::redelivered(3), Annotation::not_journaled(3)] {
        let marked = annotate(line, &mark);
        assert!(marked.len() >= line.len(), "{}", shown(line));
        assert_eq!(ends(&marked), ends(line), "{}", shown(line));
        if is_strict {
            assert!(json::check(&marked).is_ok(), "{}", shown(&marked));
            if let UpstreamLine::Answer(before) = read_upstream(line) {
                let UpstreamLine::Answer(after) = read_upstream(&marked) else {
                    panic!("no answer any more: {}", shown(&marked));
                };
                assert_eq!(before.id.as_bytes(), after.id.as_bytes());
            }
        }
    }
    if is_strict {
        for payload in [Raw::Result(line), Raw::Error(line)] {
            let id = RawId::new(br#""\u0061""#).unwrap();
            let whole = answer(Some(id), payload);
            assert!(json::check(&whole).is_ok(), "{}", shown(&whole));
            assert_eq!((ends(&whole), whole.last()), (1, Some(&b'\n')));
            let UpstreamLine::Answer(read) = read_upstream(&whole) else {
                panic!("no answer: {}", shown(&whole));
            };
            assert_eq!(read.id.as_bytes(), id.as_bytes());
        }
    }
}

/// Text for an operator's terminal: nothing in it moves the cursor or turns what is read, and a
/// document means what it meant.
pub(crate) fn rendering(text: &str) {
    let drives = |rune: &char| {
        rune.is_control()
            || matches!(rune, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
    };
    let line = escape(text);
    assert_eq!(line.chars().find(drives), None, "{line:?}");
    let block = escape_block(text);
    let bad = block
        .chars()
        .find(|rune| drives(rune) && !['\n', '\t'].contains(rune));
    assert_eq!(bad, None, "{block:?}");
    let document = escape_json(text);
    let bad = document
        .chars()
        .find(|rune| drives(rune) && !rune.is_ascii_whitespace());
    assert_eq!(bad, None, "{document:?}");
    if json::check(text.as_bytes()).is_ok() {
        assert!(json::check(document.as_bytes()).is_ok(), "{document:?}");
        let differ = json::diff(text.as_bytes(), document.as_bytes(), 10);
        assert!(differ.is_empty(), "{text:?} and {document:?}: {differ:?}");
    }
}

/// A row of a journal: no bytes in any column make a reader panic.
pub(crate) fn row(input: &[u8]) {
    checkpoint::journal::any_row::read(input);
}

/// Two texts have one signature if and only if an independent reader finds the same value in both;
/// another spelling of a text has its signature.
pub(crate) fn signatures(one: &[u8], other: &[u8]) {
    let sign = |text: &[u8]| signature("t", Some(text), false);
    let read = |text: &[u8]| {
        let is_told_apart = json::check(text).is_ok() && json::find_duplicate(text).is_none();
        is_told_apart.then(|| Value::read(text)).flatten()
    };
    let (Some(left), Some(right)) = (read(one), read(other)) else {
        return;
    };
    for (text, value) in [(one, &left), (other, &right)] {
        let respelled = value.respelled();
        assert!(json::check(respelled.as_bytes()).is_ok(), "{respelled}");
        let is_same = sign(text) == sign(respelled.as_bytes());
        assert!(is_same, "{} and {respelled}", shown(text));
    }
    assert_eq!(
        sign(one) == sign(other),
        left == right,
        "{} and {}",
        shown(one),
        shown(other)
    );
    let differ = json::diff(one, other, 10);
    assert_eq!(
        differ.is_empty(),
        left == right,
        "{} and {} differ at {differ:?}",
        shown(one),
        shown(other)
    );
}

/// Nesting up to which [`Value`] reads, as it calls itself.
const DEPTH_MAX: usize = 200;

/// A JSON value, read without anything of ours: numbers by their decimal digits, strings by their
/// UTF-16 units.
#[derive(Debug, PartialEq, Eq)]
enum Value {
    Word(&'static str),
    /// Sign, digits without zeros at either end, and the power of ten of the last one.
    Number(bool, String, i128),
    Text(Vec<u16>),
    List(Vec<Value>),
    Object(BTreeMap<Vec<u16>, Value>),
}

impl Value {
    /// Reads a text that is known to be JSON. `None` beyond the limits of this reader.
    fn read(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut rest = text;
        Self::next(&mut rest, 0)
    }

    fn next(rest: &mut &str, depth: usize) -> Option<Self> {
        if depth > DEPTH_MAX {
            return None;
        }
        skip(rest);
        for word in ["null", "true", "false"] {
            if let Some(after) = rest.strip_prefix(word) {
                *rest = after;
                return Some(Self::Word(word));
            }
        }
        match rest.as_bytes()[0] {
            b'"' => Some(Self::Text(Self::text(rest))),
            b'[' => {
                let mut list = Vec::new();
                while !is_closed(rest, ']') {
                    list.push(Self::next(rest, depth + 1)?);
                }
                Some(Self::List(list))
            }
            b'{' => {
                let mut object = BTreeMap::new();
                while !is_closed(rest, '}') {
                    skip(rest);
                    let name = Self::text(rest);
                    skip(rest);
                    *rest = &rest[1..];
                    object.insert(name, Self::next(rest, depth + 1)?);
                }
                Some(Self::Object(object))
            }
            _ => Self::number(rest),
        }
    }

    fn text(rest: &mut &str) -> Vec<u16> {
        let mut units = Vec::new();
        let mut runes = rest[1..].chars();
        while let Some(rune) = runes.next() {
            match rune {
                '"' => break,
                '\\' => units.push(match runes.next().unwrap() {
                    'u' => {
                        let digits = &runes.as_str()[..4];
                        runes = runes.as_str()[4..].chars();
                        u16::from_str_radix(digits, 16).unwrap()
                    }
                    'b' => 8,
                    'f' => 12,
                    'n' => 10,
                    'r' => 13,
                    't' => 9,
                    plain => plain as u16,
                }),
                rune => units.extend(rune.encode_utf16(&mut [0; 2]).iter()),
            }
        }
        *rest = runes.as_str();
        units
    }

    fn number(rest: &mut &str) -> Option<Self> {
        let is_part = |rune: char| rune.is_ascii_digit() || "+-.eE".contains(rune);
        let size = rest.find(|rune| !is_part(rune)).unwrap_or(rest.len());
        let (number, after) = rest.split_at(size);
        *rest = after;
        let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
        let is_negative = mantissa.starts_with('-');
        let (whole, part) = mantissa
            .trim_start_matches('-')
            .split_once('.')
            .unwrap_or((mantissa.trim_start_matches('-'), ""));
        let digits = format!("{whole}{part}");
        let digits = digits.trim_start_matches('0');
        let short = digits.trim_end_matches('0');
        if short.is_empty() {
            return Some(Self::Number(false, String::new(), 0));
        }
        if exponent.len() > 30 {
            return None;
        }
        let exponent: i128 = exponent.parse().ok()?;
        let power = exponent - part.len() as i128 + (digits.len() - short.len()) as i128;
        Some(Self::Number(is_negative, short.to_owned(), power))
    }

    /// The same value in a spelling of its own: all units escaped, numbers with an exponent,
    /// members in another order, with space wherever it may stand.
    fn respelled(&self) -> String {
        let string = |units: &[u16]| {
            let escapes: String = units.iter().map(|unit| format!("\\u{unit:04X}")).collect();
            format!("\"{escapes}\"")
        };
        match self {
            Self::Word(word) => format!(" {word}\t"),
            Self::Number(_, digits, _) if digits.is_empty() => "-0.0e7".to_owned(),
            Self::Number(is_negative, digits, power) => {
                let sign = if *is_negative { "-" } else { "" };
                format!("{sign}0.{digits}E{:+}", power + digits.len() as i128)
            }
            Self::Text(units) => string(units),
            Self::List(list) => {
                let parts: Vec<String> = list.iter().map(Self::respelled).collect();
                format!("[ {} ]", parts.join("\r,"))
            }
            Self::Object(object) => {
                let parts: Vec<String> = object
                    .iter()
                    .rev()
                    .map(|(name, value)| format!("{}\t: {}", string(name), value.respelled()))
                    .collect();
                format!("{{ {} }}", parts.join(" ,"))
            }
        }
    }
}

fn skip(rest: &mut &str) {
    *rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
}

/// Steps over what stands before the next element; true if that is the end.
fn is_closed(rest: &mut &str, end: char) -> bool {
    skip(rest);
    let is_end = rest.starts_with(end);
    *rest = &rest[usize::from(is_end || rest.starts_with([',', '[', '{']))..];
    if is_end {
        return true;
    }
    skip(rest);
    if rest.starts_with(end) {
        *rest = &rest[1..];
        return true;
    }
    false
}
