//! How the values of a policy's fields are read from TOML and shown as TOML.
//!
//! Must not: know which fields there are.

use std::ops::Range;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toml::Spanned;
use toml::de::DeValue;

use super::reconcile::{
    Condition, RECONCILE_TIMEOUT_DEFAULT, Reconcile, ReconcileBy, ReconcileTool, Shape,
};
use super::template::{KeySource, Template};
use super::{
    Delivery, InDoubtScope, OnCancel, OnFailure, OnInFlight, OnLostLease, OnRevisionChange,
    PassKey, Pointer,
};
use crate::json::quote;
use crate::rules::ids::Window;
use crate::rules::units;

/// A value that can't be used.
#[derive(Debug)]
pub(super) struct Wrong {
    /// What follows the field's name: `.argument`, `[1]`.
    pub(super) within: String,
    /// Where it stands, where that is not the field's value.
    pub(super) span: Option<Range<usize>>,
    /// What was expected.
    pub(super) why: String,
}

impl Wrong {
    fn new(why: impl Into<String>) -> Self {
        Self {
            within: String::new(),
            span: None,
            why: why.into(),
        }
    }

    fn expected(what: &str, found: &DeValue<'_>) -> Self {
        Self::new(format!("expected {what}, not {}", shown(found)))
    }

    fn inside(mut self, within: &str, span: Range<usize>) -> Self {
        self.within.insert_str(0, within);
        self.span.get_or_insert(span);
        self
    }
}

/// The words of a choice and what they mean.
pub(super) type Names<T> = &'static [(&'static str, T)];

pub(super) const WINDOWS: Names<Window> = &[
    ("run", Window::Run),
    ("thread", Window::Thread),
    ("journal", Window::Journal),
    ("cross-run", Window::Journal),
];
pub(super) const DELIVERIES: Names<Delivery> = &[
    ("at-most-once", Delivery::AtMostOnce),
    ("at-least-once", Delivery::AtLeastOnce),
];
pub(super) const ON_FAILURES: Names<OnFailure> =
    &[("replay", OnFailure::Replay), ("retry", OnFailure::Retry)];
pub(super) const ON_IN_FLIGHTS: Names<OnInFlight> =
    &[("join", OnInFlight::Join), ("refuse", OnInFlight::Refuse)];
pub(super) const ON_CANCELS: Names<OnCancel> =
    &[("forward", OnCancel::Forward), ("shield", OnCancel::Shield)];
pub(super) const ON_CHANGES: Names<OnRevisionChange> = &[
    ("note", OnRevisionChange::Note),
    ("ignore", OnRevisionChange::Ignore),
    ("diverge", OnRevisionChange::Diverge),
];
pub(super) const SCOPES: Names<InDoubtScope> = &[
    ("signature", InDoubtScope::Signature),
    ("call", InDoubtScope::Call),
];
pub(super) const ON_LOST_LEASES: Names<OnLostLease> = &[
    ("cancel", OnLostLease::Cancel),
    ("finish", OnLostLease::Finish),
];

pub(super) fn set<T>(place: &mut T, value: Result<T, Wrong>) -> Result<(), Wrong> {
    *place = value?;
    Ok(())
}

pub(super) fn text<'a>(value: &'a Spanned<DeValue<'_>>) -> Result<&'a str, Wrong> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text),
        other => Err(Wrong::expected("a string", other)),
    }
}

pub(super) fn key(value: &Spanned<DeValue<'_>>) -> Result<KeySource, Wrong> {
    KeySource::parse(text(value)?).map_err(Wrong::new)
}

pub(super) fn boolean(value: &Spanned<DeValue<'_>>) -> Result<bool, Wrong> {
    match value.get_ref() {
        DeValue::Boolean(boolean) => Ok(*boolean),
        other => Err(Wrong::expected("true or false", other)),
    }
}

pub(super) fn choice<T: Copy>(
    value: &Spanned<DeValue<'_>>,
    names: &[(&str, T)],
) -> Result<T, Wrong> {
    let found = match value.get_ref() {
        DeValue::String(text) => names.iter().find(|(name, _)| name == text),
        _ => None,
    };
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = names.iter().map(|(name, _)| quote(name)).collect();
        let (last, rest) = names.split_last().expect("a choice has words");
        Wrong::expected(&format!("{} or {last}", rest.join(", ")), value.get_ref())
    })
}

pub(super) fn attempts(value: &Spanned<DeValue<'_>>) -> Result<u32, Wrong> {
    const EXPECTED: &str = "a number from 1 to 4294967295";
    integer(value.get_ref())
        .and_then(|count| u32::try_from(count).ok())
        .filter(|count| *count >= 1)
        .ok_or_else(|| Wrong::expected(EXPECTED, value.get_ref()))
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    match value {
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix()).ok(),
        _ => None,
    }
}

pub(super) fn duration(value: &Spanned<DeValue<'_>>) -> Result<Duration, Wrong> {
    match value.get_ref() {
        DeValue::String(text) => units::parse_duration(text)
            .map_err(|why| Wrong::new(format!("{why}, not {}", shown(value.get_ref())))),
        other => Err(Wrong::expected(
            "a string like \"250ms\", \"30s\" or \"5m\"",
            other,
        )),
    }
}

/// Reads a duration that is longer than nothing.
pub(super) fn some_duration(value: &Spanned<DeValue<'_>>) -> Result<Duration, Wrong> {
    match duration(value)? {
        Duration::ZERO => Err(Wrong::new("expected more than zero")),
        some => Ok(some),
    }
}

pub(super) fn size(value: &Spanned<DeValue<'_>>) -> Result<u64, Wrong> {
    let DeValue::String(text) = value.get_ref() else {
        let expected = "a string like \"64KiB\" or \"1MiB\"";
        return Err(Wrong::expected(expected, value.get_ref()));
    };
    match units::parse_size(text) {
        Ok(0) => Err(Wrong::new(
            "expected more than zero; store_result = false keeps no result at all",
        )),
        Ok(size) => Ok(u64::try_from(size).unwrap_or(u64::MAX)),
        Err(why) => Err(Wrong::new(format!("{why}, not {}", shown(value.get_ref())))),
    }
}

pub(super) fn pointers(value: &Spanned<DeValue<'_>>) -> Result<Vec<Pointer>, Wrong> {
    let DeValue::Array(elements) = value.get_ref() else {
        let expected = "an array of JSON pointers like [\"/order_id\"]";
        return Err(Wrong::expected(expected, value.get_ref()));
    };
    let mut pointers = Vec::new();
    for (place, element) in elements.iter().enumerate() {
        let within = format!("[{place}]");
        let pointer = text(element)
            .and_then(|text| Pointer::parse(text).map_err(Wrong::new))
            .map_err(|wrong| wrong.inside(&within, element.span()))?;
        pointers.push(pointer);
    }
    Ok(pointers)
}

/// The members of a table, each of which must be taken.
struct Members<'t, 'i> {
    table: &'t toml::de::DeTable<'i>,
    known: &'static [&'static str],
}

impl<'t, 'i> Members<'t, 'i> {
    /// Returns the members of a table that has none but `known`.
    fn of(value: &'t Spanned<DeValue<'i>>, known: &'static [&'static str]) -> Result<Self, Wrong> {
        let DeValue::Table(table) = value.get_ref() else {
            let expected = format!("a table with {}", known.join(", "));
            return Err(Wrong::expected(&expected, value.get_ref()));
        };
        for key in table.keys() {
            if !known.contains(&&**key.get_ref()) {
                let why = format!("unknown; the members are {}", known.join(", "));
                return Err(Wrong::new(why).inside(&format!(".{}", key.get_ref()), key.span()));
            }
        }
        Ok(Self { table, known })
    }

    fn get<T>(
        &self,
        name: &str,
        read: impl FnOnce(&'t Spanned<DeValue<'i>>) -> Result<T, Wrong>,
    ) -> Result<Option<T>, Wrong> {
        debug_assert!(self.known.contains(&name));
        let Some(value) = self.table.get(name) else {
            return Ok(None);
        };
        read(value)
            .map(Some)
            .map_err(|wrong| wrong.inside(&format!(".{name}"), value.span()))
    }
}

fn argument_name(value: &Spanned<DeValue<'_>>) -> Result<String, Wrong> {
    match text(value)? {
        "" => Err(Wrong::new("expected the name of an argument")),
        name => Ok(name.to_owned()),
    }
}

pub(super) fn pass_key(value: &Spanned<DeValue<'_>>) -> Result<PassKey, Wrong> {
    let known = &["argument", "attempt_argument", "fence_argument", "meta"];
    let members = Members::of(value, known)?;
    let key = members.get("argument", argument_name)?;
    let attempt = members.get("attempt_argument", argument_name)?;
    let fence = members.get("fence_argument", argument_name)?;
    let is_meta = members.get("meta", boolean)? == Some(true);
    let names: Vec<_> = [&key, &attempt, &fence].into_iter().flatten().collect();
    if is_meta && !names.is_empty() {
        return Err(Wrong::new("expected arguments or meta = true, not both"));
    }
    for (place, name) in names.iter().enumerate() {
        if names[..place].contains(name) {
            let why = format!(
                "expected arguments of different names, not {} twice",
                quote(name)
            );
            return Err(Wrong::new(why));
        }
    }
    match (key, is_meta) {
        (Some(key), _) => Ok(PassKey::Arguments {
            key,
            attempt,
            fence,
        }),
        (None, true) => Ok(PassKey::Meta),
        (None, false) => Err(Wrong::new("expected argument = \"NAME\", or meta = true")),
    }
}

pub(super) fn show_pass_key(pass_key: &PassKey) -> Value {
    match pass_key {
        PassKey::Meta => json!({ "meta": true }),
        PassKey::Arguments {
            key,
            attempt,
            fence,
        } => {
            let mut shown = Map::new();
            shown.insert("argument".to_owned(), json!(key));
            for (name, value) in [("attempt_argument", attempt), ("fence_argument", fence)] {
                if let Some(value) = value {
                    shown.insert(name.to_owned(), json!(value));
                }
            }
            Value::Object(shown)
        }
    }
}

pub(super) fn reconcile(value: &Spanned<DeValue<'_>>) -> Result<Reconcile, Wrong> {
    let known = &[
        "command",
        "tool",
        "arguments",
        "completed_when",
        "not_executed_when",
        "result",
        "timeout",
    ];
    let members = Members::of(value, known)?;
    let command = members.get("command", command)?;
    let tool = members.get("tool", |value| match text(value)? {
        "" => Err(Wrong::new("expected the name of a tool")),
        name => Ok(name.to_owned()),
    })?;
    let arguments = members.get("arguments", |value| match value.get_ref() {
        DeValue::Table(_) => match shape(value)? {
            Shape::Table(members) => Ok(members),
            _ => Err(Wrong::new("expected a table")),
        },
        other => Err(Wrong::expected("a table", other)),
    })?;
    let completed_when = members.get("completed_when", condition)?;
    let not_executed_when = members.get("not_executed_when", condition)?;
    let result = members.get("result", |value| {
        Pointer::parse(text(value)?).map_err(Wrong::new)
    })?;
    let timeout = members.get("timeout", some_duration)?;
    let by = match (command, tool) {
        (Some(command), None) => {
            let strays = [
                ("arguments", arguments.is_some()),
                ("completed_when", completed_when.is_some()),
                ("not_executed_when", not_executed_when.is_some()),
                ("result", result.is_some()),
            ];
            if let Some((name, _)) = strays.into_iter().find(|(_, is_there)| *is_there) {
                let why = format!("expected no {name} beside a command: it is a tool's");
                return Err(Wrong::new(why));
            }
            ReconcileBy::Command(command)
        }
        (None, Some(tool)) => {
            let completed_when = completed_when.ok_or_else(|| {
                Wrong::new("expected completed_when = \"/json/pointer\" beside a tool")
            })?;
            if not_executed_when.as_ref() == Some(&completed_when) {
                return Err(Wrong::new(
                    "expected a not_executed_when that is another than completed_when",
                ));
            }
            ReconcileBy::Tool(ReconcileTool {
                tool,
                arguments: arguments.unwrap_or_default(),
                completed_when,
                not_executed_when,
                result,
            })
        }
        _ => {
            return Err(Wrong::new(
                "expected either command = [\"PROGRAM\"] or tool = \"NAME\"",
            ));
        }
    };
    Ok(Reconcile {
        by,
        timeout: timeout.unwrap_or(RECONCILE_TIMEOUT_DEFAULT),
    })
}

fn condition(value: &Spanned<DeValue<'_>>) -> Result<Condition, Wrong> {
    Condition::parse(text(value)?).map_err(Wrong::new)
}

fn command(value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, Wrong> {
    const EXPECTED: &str = "an array of strings, the program first";
    let DeValue::Array(elements) = value.get_ref() else {
        return Err(Wrong::expected(EXPECTED, value.get_ref()));
    };
    let mut words = Vec::new();
    for (place, element) in elements.iter().enumerate() {
        let word = text(element)
            .and_then(|word| {
                if word.contains('\0') {
                    return Err(Wrong::new("expected a string without NUL"));
                }
                Ok(word.to_owned())
            })
            .map_err(|wrong| wrong.inside(&format!("[{place}]"), element.span()))?;
        words.push(word);
    }
    match words.first() {
        None => Err(Wrong::new(format!("expected {EXPECTED}"))),
        Some(program) if program.trim().is_empty() => {
            Err(Wrong::new("expected a program's name, not \"\"").inside("[0]", elements[0].span()))
        }
        Some(_) => Ok(words),
    }
}

/// Reads a value of a tool's arguments. It recurses, no deeper than the parser of TOML allows.
fn shape(value: &Spanned<DeValue<'_>>) -> Result<Shape, Wrong> {
    Ok(match value.get_ref() {
        DeValue::String(text) => Shape::Text(Template::parse(text).map_err(Wrong::new)?),
        DeValue::Boolean(boolean) => Shape::Fixed(json!(boolean)),
        DeValue::Integer(_) => {
            let integer = integer(value.get_ref())
                .ok_or_else(|| Wrong::new("expected an integer of 64 bits"))?;
            Shape::Fixed(json!(integer))
        }
        DeValue::Float(float) => {
            let number = float.as_str().parse().ok();
            let number = number.and_then(serde_json::Number::from_f64);
            Shape::Fixed(Value::Number(number.ok_or_else(|| {
                Wrong::expected("a number that JSON knows", value.get_ref())
            })?))
        }
        DeValue::Datetime(_) => {
            return Err(Wrong::expected("a value that JSON knows", value.get_ref()));
        }
        DeValue::Array(elements) => {
            let mut list = Vec::new();
            for (place, element) in elements.iter().enumerate() {
                list.push(
                    shape(element)
                        .map_err(|wrong| wrong.inside(&format!("[{place}]"), element.span()))?,
                );
            }
            Shape::List(list)
        }
        DeValue::Table(table) => {
            let mut members = Vec::new();
            for (name, value) in table {
                let name = name.get_ref().to_string();
                let shape = shape(value)
                    .map_err(|wrong| wrong.inside(&format!(".{name}"), value.span()))?;
                members.push((name, shape));
            }
            Shape::Table(members)
        }
    })
}

pub(super) fn show_reconcile(reconcile: &Reconcile) -> Value {
    let mut shown = match &reconcile.by {
        ReconcileBy::Command(command) => json!({ "command": command }),
        ReconcileBy::Tool(tool) => {
            let mut shown = json!({
                "tool": tool.tool,
                "arguments": show_members(&tool.arguments),
                "completed_when": tool.completed_when.to_string(),
            });
            if let Some(condition) = &tool.not_executed_when {
                shown["not_executed_when"] = json!(condition.to_string());
            }
            if let Some(pointer) = &tool.result {
                shown["result"] = json!(pointer.to_string());
            }
            shown
        }
    };
    shown["timeout"] = show_duration(reconcile.timeout);
    shown
}

fn show_members(members: &[(String, Shape)]) -> Value {
    members
        .iter()
        .map(|(name, shape)| (name.clone(), show_shape(shape)))
        .collect()
}

fn show_shape(shape: &Shape) -> Value {
    match shape {
        Shape::Text(template) => json!(template.to_string()),
        Shape::Fixed(value) => value.clone(),
        Shape::List(elements) => elements.iter().map(show_shape).collect(),
        Shape::Table(members) => show_members(members),
    }
}

pub(super) fn show_duration(duration: Duration) -> Value {
    json!(units::duration_text(duration))
}

pub(super) fn name_of<T: PartialEq>(value: T, names: &[(&str, T)]) -> Option<Value> {
    let name = names.iter().find(|(_, named)| *named == value);
    name.map(|(name, _)| json!(name))
}

/// Returns a value of the file as a sentence can hold it.
fn shown(value: &DeValue<'_>) -> String {
    const CHARACTERS_MAX: usize = 40;
    match value {
        DeValue::String(text) if text.chars().count() > CHARACTERS_MAX => {
            let head: String = text.chars().take(CHARACTERS_MAX).collect();
            quote(&format!("{head}…"))
        }
        DeValue::String(text) => quote(text),
        DeValue::Integer(integer) => integer.to_string(),
        DeValue::Float(float) => float.to_string(),
        DeValue::Boolean(boolean) => boolean.to_string(),
        DeValue::Datetime(datetime) => datetime.to_string(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// Returns a value as TOML on one line. Its strings are JSON's, all of whose escapes TOML has.
///
/// Source: TOML 1.0, string. A solidus needs no escape in either.
pub(super) fn toml_text(value: &Value) -> String {
    match value {
        Value::String(text) => quote(text),
        Value::Array(elements) => {
            let elements: Vec<_> = elements.iter().map(toml_text).collect();
            format!("[{}]", elements.join(", "))
        }
        Value::Object(members) if members.is_empty() => "{}".to_owned(),
        Value::Object(members) => {
            let is_bare = |name: &str| {
                let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
                !name.is_empty() && name.chars().all(is_fine)
            };
            let members: Vec<_> = members
                .iter()
                .map(|(name, value)| {
                    let name = if is_bare(name) {
                        name.clone()
                    } else {
                        quote(name)
                    };
                    format!("{name} = {}", toml_text(value))
                })
                .collect();
            format!("{{ {} }}", members.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}
