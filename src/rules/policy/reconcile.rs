//! Who is asked what became of a call in doubt: a command, or a reading tool of the upstream.
//!
//! Nothing here asks; the questions are made and the answers of tools are read. Anything that is
//! not clear is unknown: a wrong verdict would repeat an effect or hide that one is missing.

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

/// A reading tool, what it is asked, and where its answer says yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileTool {
    /// The tool's name.
    pub tool: String,
    /// Its arguments, in the order of their names.
    pub arguments: Vec<(String, Shape)>,
    /// Where its result says whether the effect happened.
    pub completed_when: Pointer,
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
pub enum ToolVerdict {
    /// Its effect happened.
    Completed,
    /// It did not.
    NotExecuted,
    /// The answer does not say.
    Unknown,
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

    /// Reads the tool's raw result: `true` where `completed_when` points is completed, `false` is
    /// not executed, and anything else is unknown, as is a result with `isError` or one that asks
    /// for input.
    #[must_use]
    pub fn verdict(&self, result: &[u8]) -> ToolVerdict {
        if json::check(result).is_err()
            || !json::is_object(result)
            || json::find_duplicate(result).is_some()
        {
            return ToolVerdict::Unknown;
        }
        let is_error = json::member(result, "isError")
            .is_some_and(|raw| !matches!(json::kind(raw), Kind::False | Kind::Null));
        let is_complete = json::member(result, "resultType")
            .is_none_or(|raw| json::text(raw).as_deref() == Some("complete"));
        if is_error || !is_complete {
            return ToolVerdict::Unknown;
        }
        match self.completed_when.find(result).map(json::kind) {
            Some(Kind::True) => ToolVerdict::Completed,
            Some(Kind::False) => ToolVerdict::NotExecuted,
            _ => ToolVerdict::Unknown,
        }
    }
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

    fn tool() -> ReconcileTool {
        let set = PolicySet::parse(
            r#"[tools.t]
            reconcile = { tool = "find", arguments = { id = "{order_id}", q = ["o-{order_id}", 1, true, { x = 0.5 }] }, completed_when = "/structuredContent/found" }"#,
            ThreadId::Unasked,
        );
        match set.unwrap().for_tool("t").reconcile.clone().unwrap().by {
            ReconcileBy::Tool(tool) => tool,
            ReconcileBy::Command(_) => panic!("a tool"),
        }
    }

    #[test]
    fn the_question_is_made_from_the_call() {
        let arguments = tool()
            .arguments_for(Some(br#"{"order_id":"a\"1"}"#))
            .unwrap();
        assert_eq!(
            String::from_utf8(arguments).unwrap(),
            r#"{"id":"a\"1","q":["o-a\"1",1,true,{"x":0.5}]}"#
        );
        assert_eq!(
            tool().arguments_for(None),
            Err(InvalidKey::Missing("/order_id".to_owned()))
        );
    }

    #[test]
    fn only_a_clear_answer_is_a_verdict() {
        for (result, expected) in [
            (
                r#"{"structuredContent":{"found":true}}"#,
                ToolVerdict::Completed,
            ),
            (
                r#"{"structuredContent":{"found":false},"isError":false}"#,
                ToolVerdict::NotExecuted,
            ),
            (
                r#"{"structuredContent":{"found":true},"resultType":"complete"}"#,
                ToolVerdict::Completed,
            ),
            (
                r#"{"structuredContent":{"found":false},"isError":true}"#,
                ToolVerdict::Unknown,
            ),
            (
                r#"{"structuredContent":{"found":true},"isError":"yes"}"#,
                ToolVerdict::Unknown,
            ),
            (
                r#"{"structuredContent":{"found":"true"}}"#,
                ToolVerdict::Unknown,
            ),
            (r#"{"structuredContent":{"found":1}}"#, ToolVerdict::Unknown),
            (r#"{"structuredContent":{}}"#, ToolVerdict::Unknown),
            (
                r#"{"structuredContent":{"found":true,"found":false}}"#,
                ToolVerdict::Unknown,
            ),
            (
                r#"{"structuredContent":{"found":true},"resultType":"task"}"#,
                ToolVerdict::Unknown,
            ),
            ("{}", ToolVerdict::Unknown),
            ("null", ToolVerdict::Unknown),
            ("{", ToolVerdict::Unknown),
        ] {
            assert_eq!(tool().verdict(result.as_bytes()), expected, "{result}");
        }
    }
}
