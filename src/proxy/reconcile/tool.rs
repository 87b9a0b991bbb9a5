//! A policy's reconcile tool: the upstream itself is asked what became of a call in doubt.
//!
//! The question is a `tools/call` of our own. What it says is made here and what its answer means
//! is read here; when it may go out, under which id, and that its answer never reaches the client
//! is the session's.
//!
//! Must not: write to a pipe, or take anything but a clear answer for a verdict.

use std::time::{Duration, Instant};

use super::EVIDENCE_BYTES_MAX;
use super::settle::{Probe, Word, completed};
use crate::guard::story::Story;
use crate::guard::verdict::Verdict;
use crate::json;
use crate::mcp::own_call::own_call;
use crate::mcp::reply::synthetic_result;
use crate::rules::entry::{Entry, Provenance};
use crate::rules::ids::{BranchId, Seq};
use crate::rules::policy::{InvalidKey, ReconcileTool, ToolVerdict};

/// A question for the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolQuestion {
    /// The entry in doubt.
    pub place: (BranchId, Seq),
    /// The call's id.
    pub id: String,
    /// The call, its `\n` included.
    pub line: Vec<u8>,
    /// After which nothing was heard.
    pub timeout: Duration,
}

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The raw `result`, as it came: it need not be JSON.
    Result(Vec<u8>),
    /// The raw `error`.
    Error(Vec<u8>),
    /// Nothing, or nothing that could be read: why.
    Nothing(String),
}

/// The upstream, as far as a prober needs it.
pub trait Upstream {
    /// Sends a question and returns what came of it. Blocks for as long as it takes.
    fn ask(&mut self, question: ToolQuestion) -> Heard;
}

/// No upstream: where none runs, none is asked.
#[derive(Debug)]
pub struct NoUpstream;

impl Upstream for NoUpstream {
    fn ask(&mut self, _: ToolQuestion) -> Heard {
        Heard::Nothing("no upstream runs here".into())
    }
}

/// Returns the question about a call in doubt.
///
/// # Errors
///
/// Why it can't be asked.
pub(super) fn question(
    probe: &Probe,
    (tool, id, meta): (&ReconcileTool, &str, Option<&[u8]>),
    story: &Story,
) -> Result<ToolQuestion, String> {
    let arguments = tool.arguments_for(story.arguments.as_deref());
    let arguments = arguments.map_err(|invalid| match invalid {
        InvalidKey::Missing(_) if story.is_redacted => {
            "the arguments of the call in doubt are not in the journal".to_owned()
        }
        InvalidKey::Missing(pointer) => {
            format!("the call in doubt does not have the argument {pointer}")
        }
        InvalidKey::NoText(_) | InvalidKey::NoCallId | InvalidKey::Duplicate(_) => {
            invalid.to_string()
        }
    })?;
    Ok(ToolQuestion {
        place: probe.place,
        id: id.to_owned(),
        line: own_call(id, &tool.tool, &arguments, meta),
        timeout: probe.timeout,
    })
}

/// Returns what the journal is told before the question goes out: which call will be seen at the
/// upstream. No arguments: they are those of the call in doubt, or the policy's.
pub(super) fn announcement(tool: &ReconcileTool, id: &str) -> String {
    format!(
        r#"{{"tool":{},"id":{}}}"#,
        json::quote(&tool.tool),
        json::quote(id)
    )
}

/// Asks, and reads the answer.
pub(super) fn ask(
    upstream: &mut dyn Upstream,
    question: ToolQuestion,
    probe: &Probe,
    tool: &ReconcileTool,
    entry: &Entry,
) -> Word {
    let began = Instant::now();
    let id = question.id.clone();
    let heard = upstream.ask(question);
    read(
        &heard,
        tool,
        &id,
        entry,
        probe.result_bytes_max,
        began.elapsed(),
    )
}

/// Returns the word on a question that was not asked.
pub(super) fn unasked(tool: &ReconcileTool, why: &str) -> Word {
    let evidence = format!(
        r#"{{"verdict":"unknown","why":{},"tool":{}}}"#,
        json::quote(why),
        json::quote(&tool.tool)
    );
    Word {
        verdict: Verdict::StillUnknown,
        evidence,
    }
}

fn read(
    heard: &Heard,
    tool: &ReconcileTool,
    id: &str,
    entry: &Entry,
    result_bytes_max: usize,
    elapsed: Duration,
) -> Word {
    let (raw, said) = match heard {
        Heard::Result(raw) => (Some(("result", raw)), tool.verdict(raw)),
        Heard::Error(raw) => (
            Some(("error", raw)),
            ToolVerdict::Unknown("it answered with an error"),
        ),
        Heard::Nothing(_) => (None, ToolVerdict::Unknown("it did not answer")),
    };
    let (verdict, why) = match said {
        ToolVerdict::Completed { result: Some(raw) } if raw.len() > result_bytes_max => (
            Verdict::StillUnknown,
            Some("the result of the call is larger than max_result"),
        ),
        ToolVerdict::Completed { result: Some(raw) } => (completed(raw.to_vec()), None),
        ToolVerdict::Completed { result: None } => {
            let who = "its policy's reconcile tool has found";
            let verdict = Verdict::Completed {
                body: synthetic_result(&entry.tool, entry.seq.0, who).into(),
                is_error: false,
                provenance: Provenance::Synthetic,
            };
            (verdict, None)
        }
        ToolVerdict::NotExecuted => (Verdict::NotExecuted, None),
        ToolVerdict::Unknown(why) => (Verdict::StillUnknown, Some(why)),
    };
    let why = match heard {
        Heard::Nothing(why) => Some(why.as_str()),
        Heard::Result(_) | Heard::Error(_) => why,
    };
    let name = match verdict {
        Verdict::Completed { .. } => "completed",
        Verdict::NotExecuted => "not_executed",
        Verdict::Failed { .. } | Verdict::StillUnknown => "unknown",
    };
    let mut evidence = format!(r#"{{"verdict":"{name}""#);
    if let Some(why) = why {
        evidence += &format!(r#","why":{}"#, json::quote(why));
    }
    evidence += &format!(
        r#","tool":{},"id":{}"#,
        json::quote(&tool.tool),
        json::quote(id)
    );
    if let Some((member, raw)) = raw {
        let kept = &raw[..raw.len().min(EVIDENCE_BYTES_MAX)];
        evidence += &format!(r#","{member}":{}"#, json::quote_bytes(kept));
    }
    evidence += &format!(r#","elapsed_ms":{}}}"#, elapsed.as_millis());
    Word { verdict, evidence }
}
