//! Who is asked what became of a call in doubt: a command, or a reading tool of the upstream.
//!
//! Nothing here asks; the questions are made and the answers of tools are read. Anything that is
//! not clear is unknown: a wrong verdict would repeat an effect or hide that one is missing.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use super::pointer::Pointer;
use super::template::{InvalidKey, Template};
use crate::json::{self, Kind};

/// How long an answer is waited for where the policy does not say.
pub const RECONCILE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);

/// Who is asked, and for how long an answer is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reconcile {
    /// Who is asked.
    pub by: ReconcileBy,
    /// After which the answer is unknown; never zero.
    pub timeout: Duration,
}

/// Who is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReconcileBy {
    /// A command: the program and its arguments; the program's name is not empty.
    Command(Vec<String>),
    /// A tool of the same upstream that the policy's author knows to be safe to call.
    Tool(ReconcileTool),
}

/// A reading tool, what it is asked, and where its answer says what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileTool {
    /// The tool's name.
    pub tool: String,
    /// Its arguments, in the order of their names.
    pub arguments: Vec<(String, Shape)>,
    /// When the effect has happened.
    pub completed_when: Condition,
    /// When it has not; `None`: the tool can never say so.
    pub not_executed_when: Option<Condition>,
    /// Where the tool's result holds that of the call in doubt; `None`: nowhere.
    pub result: Option<Pointer>,
}

/// A boolean of a tool's result: `/found` holds where it is `true`, `!/found` where it is `false`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pointer: Pointer,
    expects: bool,
}

impl Condition {
    /// Parses a condition.
    ///
    /// # Errors
    ///
    /// What was expected.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (text, expects) = match text.strip_prefix('!') {
            Some(rest) => (rest, false),
            None => (text, true),
        };
        Ok(Self {
            pointer: Pointer::parse(text)?,
            expects,
        })
    }

    /// Returns whether it holds of a checked result. What is missing, or no boolean, does not.
    fn holds(&self, result: &[u8]) -> bool {
        let expected = if self.expects {
            Kind::True
        } else {
            Kind::False
        };
        self.pointer.find(result).map(json::kind) == Some(expected)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.expects {
            f.write_str("!")?;
        }
        self.pointer.fmt(f)
    }
}

/// A value of the tool's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A string of the policy, in which values of the call in doubt may stand.
    Text(Template),
    /// A number or a boolean of the policy.
    Fixed(Value),
    /// An array of such values.
    List(Vec<Shape>),
    /// An object of such values, in the order of their names.
    Table(Vec<(String, Shape)>),
}

/// What the answer of a reading tool says about the call in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolVerdict<'a> {
    /// Its effect happened.
    Completed {
        /// The raw result of the call, where the policy says where it stands.
        result: Option<&'a [u8]>,
    },
    /// It did not.
    NotExecuted,
    /// The answer does not say: why, as half a sentence.
    Unknown(&'static str),
}

impl ReconcileTool {
    /// Returns the raw `arguments` to call the tool with, on one line, for a call in doubt that
    /// had the checked arguments `of`.
    ///
    /// # Errors
    ///
    /// The call in doubt lacks a value: the tool can't be asked, the doubt stays.
    pub fn arguments_for(&self, of: Option<&[u8]>) -> Result<Vec<u8>, InvalidKey> {
        let mut out = String::new();
        push_table(&self.arguments, of.unwrap_or(b"{}"), &mut out)?;
        Ok(out.into_bytes())
    }

    /// Reads the tool's raw result. It says nothing where it is not clear: with `isError`, where
    /// it asks for input or is a task, where both conditions hold or neither does, and where the
    /// result of the call should stand in it and does not.
    #[must_use]
    pub fn verdict<'a>(&self, answer: &'a [u8]) -> ToolVerdict<'a> {
        let answer = json::trim(answer);
        if json::check(answer).is_err() || !json::is_object(answer) {
            return ToolVerdict::Unknown("its result is no JSON object");
        }
        if json::find_duplicate(answer).is_some() {
            return ToolVerdict::Unknown("two members of its result have the same name");
        }
        let is_error = json::member(answer, "isError")
            .is_some_and(|raw| !matches!(json::kind(raw), Kind::False | Kind::Null));
        if is_error {
            return ToolVerdict::Unknown("its result says isError");
        }
        if !is_complete(answer) {
            return ToolVerdict::Unknown("its result is not complete");
        }
        let is_completed = self.completed_when.holds(answer);
        let is_not_executed = self
            .not_executed_when
            .as_ref()
            .is_some_and(|condition| condition.holds(answer));
        match (is_completed, is_not_executed) {
            (true, true) => ToolVerdict::Unknown("its result says both"),
            (false, false) => ToolVerdict::Unknown("its result does not say"),
            (false, true) => ToolVerdict::NotExecuted,
            (true, false) => match &self.result {
                None => ToolVerdict::Completed { result: None },
                Some(pointer) => match pointer.find(answer).filter(|raw| is_result(raw)) {
                    Some(raw) => ToolVerdict::Completed { result: Some(raw) },
                    None => ToolVerdict::Unknown("the result of the call does not stand in it"),
                },
            },
        }
    }
}

/// Returns whether a result is one to rely on: no question and no task.
fn is_complete(result: &[u8]) -> bool {
    json::member(result, "resultType")
        .is_none_or(|raw| json::text(raw).as_deref() == Some("complete"))
}

/// Returns whether a client takes this for the result of a call.
///
/// Source: MCP 2025-11-25, `server/tools` (`CallToolResult`).
fn is_result(raw: &[u8]) -> bool {
    let is_kind = |name, kinds: &[Kind]| {
        json::member(raw, name).is_none_or(|value| kinds.contains(&json::kind(value)))
    };
    json::is_object(raw)
        && json::member(raw, "content").map(json::kind) == Some(Kind::Array)
        && is_kind("isError", &[Kind::True, Kind::False])
        && is_complete(raw)
}

fn push_table(members: &[(String, Shape)], of: &[u8], out: &mut String) -> Result<(), InvalidKey> {
    out.push('{');
    for (place, (name, shape)) in members.iter().enumerate() {
        if place > 0 {
            out.push(',');
        }
        out.push_str(&json::quote(name));
        out.push(':');
        push_shape(shape, of, out)?;
    }
    out.push('}');
    Ok(())
}

/// Appends a value. It recurses, no deeper than the policy file nests, which its parser limits.
fn push_shape(shape: &Shape, of: &[u8], out: &mut String) -> Result<(), InvalidKey> {
    match shape {
        Shape::Text(template) => out.push_str(&template.fill(of)?),
        Shape::Fixed(value) => out.push_str(&value.to_string()),
        Shape::List(elements) => {
            out.push('[');
            for (place, element) in elements.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                push_shape(element, of, out)?;
            }
            out.push(']');
        }
        Shape::Table(members) => push_table(members, of, out)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{PolicySet, ReconcileBy, ThreadId};
    use super::*;

    fn tool(more: &str) -> ReconcileTool {
        let text = format!(
            r#"[tools.t]
            reconcile = {{ tool = "find", arguments = {{ id = "{{order_id}}", q = ["o-{{order_id}}", 1, true, {{ x = 0.5 }}] }}, completed_when = "/structuredContent/found"{more} }}"#
        );
        let set = PolicySet::parse(&text, ThreadId::Unasked).unwrap();
        match set.for_tool("t").reconcile.clone().unwrap().by {
            ReconcileBy::Tool(tool) => tool,
            ReconcileBy::Command(_) => panic!("a tool"),
        }
    }

    #[test]
    fn the_question_is_made_from_the_call() {
        let asked = |arguments: &str| {
            let raw = tool("").arguments_for(Some(arguments.as_bytes())).unwrap();
            String::from_utf8(raw).unwrap()
        };
        assert_eq!(
            asked(r#"{"order_id":"a\"1"}"#),
            r#"{"id":"a\"1","q":["o-a\"1",1,true,{"x":0.5}]}"#
        );
        // A value keeps its type and its digits.
        for id in ["4711", "9007199254740993", "1.0"] {
            assert_eq!(
                asked(&format!(r#"{{"order_id":{id}}}"#)),
                format!(r#"{{"id":{id},"q":["o-{id}",1,true,{{"x":0.5}}]}}"#)
            );
        }
        assert_eq!(
            tool("").arguments_for(None),
            Err(InvalidKey::Missing("/order_id".to_owned()))
        );
    }

    fn said(tool: &ReconcileTool, answer: &str) -> String {
        match tool.verdict(answer.as_bytes()) {
            ToolVerdict::Completed { result: None } => "completed".into(),
            ToolVerdict::Completed { result: Some(raw) } => {
                format!("completed {}", std::str::from_utf8(raw).unwrap())
            }
            ToolVerdict::NotExecuted => "not_executed".into(),
            ToolVerdict::Unknown(_) => "unknown".into(),
        }
    }

    #[test]
    fn only_a_clear_answer_is_a_verdict() {
        let only_yes = tool("");
        let both = tool(", not_executed_when = \"!/structuredContent/found\"");
        for (answer, by_one, by_both) in [
            (r#"{"found":true}"#, "completed", "completed"),
            (r#"{"found":false}"#, "unknown", "not_executed"),
            (r#"{"found":"true"}"#, "unknown", "unknown"),
            (r#"{"found":1}"#, "unknown", "unknown"),
            (r#"{"found":null}"#, "unknown", "unknown"),
            ("{}", "unknown", "unknown"),
            (r#"{"found":true,"found":false}"#, "unknown", "unknown"),
        ] {
            let answer = format!(r#"{{"content":[],"structuredContent":{answer}}}"#);
            assert_eq!(said(&only_yes, &answer), by_one, "{answer}");
            assert_eq!(said(&both, &answer), by_both, "{answer}");
        }
        for (more, expected) in [
            (r#""isError":false"#, "completed"),
            (r#""resultType":"complete""#, "completed"),
            (r#""isError":true"#, "unknown"),
            (r#""isError":"yes""#, "unknown"),
            (r#""resultType":"task""#, "unknown"),
            (r#""resultType":"input_required""#, "unknown"),
            (r#""resultType":1"#, "unknown"),
        ] {
            let answer = format!(r#"{{{more},"structuredContent":{{"found":true}}}}"#);
            assert_eq!(said(&both, &answer), expected, "{answer}");
        }
        for answer in [
            "{}",
            "null",
            "{",
            "",
            r#"{"structuredContent":{"found":true}} {}"#,
        ] {
            assert_eq!(said(&both, answer), "unknown", "{answer}");
        }
    }

    #[test]
    fn a_tool_that_says_both_says_nothing() {
        let tool = tool(", not_executed_when = \"/structuredContent/never\"");
        for (answer, expected) in [
            (r#"{"found":true,"never":true}"#, "unknown"),
            (r#"{"found":true,"never":false}"#, "completed"),
            (r#"{"found":false,"never":true}"#, "not_executed"),
            (r#"{"never":true}"#, "not_executed"),
            (r#"{"found":false,"never":false}"#, "unknown"),
        ] {
            let answer = format!(r#"{{"structuredContent":{answer}}}"#);
            assert_eq!(said(&tool, &answer), expected, "{answer}");
        }
    }

    #[test]
    fn the_result_of_the_call_stands_where_the_policy_says() {
        let tool = tool(", result = \"/structuredContent/result\"");
        for (result, expected) in [
            (
                r#"{"content":[], "n": 1.0}"#,
                r#"completed {"content":[], "n": 1.0}"#,
            ),
            (
                r#"{"content":[],"isError":true}"#,
                r#"completed {"content":[],"isError":true}"#,
            ),
            (r#"{"content":[],"isError":1}"#, "unknown"),
            (r#"{"content":[],"resultType":"task"}"#, "unknown"),
            (r#"{"content":{}}"#, "unknown"),
            ("{}", "unknown"),
            ("[]", "unknown"),
            ("null", "unknown"),
        ] {
            let answer = format!(r#"{{"structuredContent":{{"found":true,"result":{result}}}}}"#);
            assert_eq!(said(&tool, &answer), expected, "{answer}");
        }
        let nothing = r#"{"structuredContent":{"found":true}}"#;
        assert_eq!(said(&tool, nothing), "unknown");
    }

    #[test]
    fn conditions_are_shown_as_written() {
        for text in ["/a/b", "!/a~1b"] {
            assert_eq!(Condition::parse(text).unwrap().to_string(), text);
        }
        for bad in ["", "!", "a", "!!/a", "! /a"] {
            assert!(Condition::parse(bad).is_err(), "{bad}");
        }
    }
}
