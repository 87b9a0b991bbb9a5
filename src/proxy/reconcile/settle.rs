//! From a doubt to the verdict of the one who was asked.
//!
//! The same steps for a running proxy and for `checkpoint resolve --auto`: look whether a verdict
//! could count at all (the recorded upstream must be dead), wait for the word of another proxy that
//! is asking, ask, and give the verdict, compared with what was asked about. What is unclear is kept with the entry, and the doubt stays.
//!
//! Must not: decide who is asked, or hold the journal while it asks.

use std::time::{Duration, Instant};

use super::tool::{self, Upstream};
use super::{Answer, EntryStory, Question, Verdict as Said, ask};
use crate::guard::story::Story;
use crate::guard::verdict::{Act, Deed, Refused, Ruling, Turn, Verdict};
use crate::journal::JournalError;
use crate::json;
use crate::mcp::outcome;
use crate::rules::entry::Provenance;
use crate::rules::ids::{BranchId, Fence, Seq};
use crate::rules::policy::ReconcileTool;

/// How long a journal that others write to is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often it is looked whether another proxy has had a word.
const WORD_POLL: Duration = Duration::from_millis(100);

/// A doubt about which somebody is to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The entry's place.
    pub place: (BranchId, Seq),
    /// The attempt in doubt.
    pub fence: Fence,
    /// Who is asked.
    pub asks: Asks,
    /// After which the answer is unknown.
    pub timeout: Duration,
    /// The largest result that is taken, in bytes.
    pub result_bytes_max: usize,
}

/// Who is asked, with what asking takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asks {
    /// A command: the program and its arguments.
    Command(Vec<String>),
    /// A tool of the upstream.
    Tool {
        /// Which one, and what its answer means.
        tool: Box<ReconcileTool>,
        /// The id of the call, unlike any of the client's.
        id: String,
        /// The raw `_meta` that the client's protocol revision asks for.
        meta: Option<Vec<u8>>,
    },
}

/// What was said of a call in doubt, and what was seen of whoever said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The verdict.
    pub verdict: Verdict,
    /// A JSON object on one line, for the event.
    pub evidence: String,
}

/// The journal, as far as a prober needs it. Each call is one transaction.
pub trait Ledger {
    /// Returns what is known of the call in doubt.
    ///
    /// # Errors
    ///
    /// As the journal's.
    fn story(&mut self, place: (BranchId, Seq)) -> Result<Option<Story>, JournalError>;

    /// Gives a verdict, or tries what would come of it.
    ///
    /// # Errors
    ///
    /// As the journal's.
    fn rule(
        &mut self,
        place: (BranchId, Seq),
        act: &Act,
        deed: &Deed,
        is_trial: bool,
    ) -> Result<Ruling, JournalError>;
}

/// What came of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// There is a verdict, or it was recorded that there is none.
    Ruled {
        /// `completed`, `not_executed` or `still_unknown`.
        verdict: &'static str,
        /// What was done.
        ruling: Ruling,
    },
    /// No verdict could count, so nobody was asked.
    NotAsked(Ruling),
}

/// Asks about a doubt and gives the verdict. Blocks for as long as it takes.
///
/// # Errors
///
/// The journal can't be read or written; the doubt stays.
pub fn settle(
    ledger: &mut dyn Ledger,
    upstream: &mut dyn Upstream,
    probe: &Probe,
    deed: &Deed,
) -> Result<Settled, JournalError> {
    let unknown = Act::Resolve {
        verdict: Verdict::StillUnknown,
        forces: false,
        seen: None,
    };
    // Who could still act would make a lie of any verdict.
    let could = patiently(|| ledger.rule(probe.place, &unknown, deed, true))?;
    if let Ruling::Refused(_) = could {
        return Ok(Settled::NotAsked(could));
    }
    let Some(story) = patiently(|| ledger.story(probe.place))? else {
        return Ok(Settled::NotAsked(Ruling::Refused(Refused::Changed)));
    };
    if story.entry.fence != probe.fence {
        return Ok(Settled::NotAsked(Ruling::Refused(Refused::Changed)));
    }
    let word = match &probe.asks {
        Asks::Command(command) => {
            if let Some(not_asked) = announce(ledger, probe, deed, command_announcement(command))? {
                return Ok(not_asked);
            }
            said(ask(&Question {
                command,
                entry: &told(&story),
                timeout: probe.timeout,
                result_bytes_max: probe.result_bytes_max,
            }))
        }
        Asks::Tool { tool, id, meta } => {
            match tool::question(probe, (tool, id, meta.as_deref()), &story) {
                Err(why) => tool::unasked(tool, &why),
                Ok(question) => {
                    // A call is in the journal before the upstream may see it; this one, too.
                    let announcement = tool::announcement(tool, id);
                    if let Some(not_asked) = announce(ledger, probe, deed, announcement)? {
                        return Ok(not_asked);
                    }
                    tool::ask(upstream, question, probe, tool, &story.entry)
                }
            }
        }
    };
    let deed = Deed {
        probe: Some(word.evidence),
        ..deed.clone()
    };
    let verdict = word.verdict;
    let name = verdict.name();
    // Whoever has taken the entry meanwhile has a newer attempt; this verdict is not about it.
    let is_same = patiently(|| ledger.story(probe.place))?
        .is_some_and(|story| story.entry.fence == probe.fence);
    if !is_same {
        return Ok(Settled::NotAsked(Ruling::Refused(Refused::Changed)));
    }
    let act = Act::Resolve {
        verdict,
        forces: false,
        seen: None,
    };
    let ruling = patiently(|| ledger.rule(probe.place, &act, &deed, false))?;
    Ok(Settled::Ruled {
        verdict: name,
        ruling,
    })
}

/// Has it in the journal that somebody is about to be asked. Another proxy that is asking is
/// waited for; if its word settles nothing, or none comes in time, returns why nobody is asked, or
/// nothing, and then it is this one's turn.
fn announce(
    ledger: &mut dyn Ledger,
    probe: &Probe,
    deed: &Deed,
    announcement: String,
) -> Result<Option<Settled>, JournalError> {
    let deed = Deed {
        probe: Some(announcement),
        ..deed.clone()
    };
    let start = Instant::now();
    let mut turn = Turn::First;
    loop {
        let asked = patiently(|| ledger.rule(probe.place, &Act::Ask(turn), &deed, false))?;
        match asked {
            Ruling::Done { after, .. } if after.fence == probe.fence => return Ok(None),
            Ruling::Done { .. } => {
                return Ok(Some(Settled::NotAsked(Ruling::Refused(Refused::Changed))));
            }
            Ruling::Refused(Refused::BeingAsked { .. }) => {
                // Two questions are better than none: a verdict is compared in any case.
                turn = if start.elapsed() < probe.timeout {
                    Turn::Waiting
                } else {
                    Turn::Over
                };
                // Nothing tells when another process has its word.
                std::thread::sleep(WORD_POLL);
            }
            Ruling::Refused(_) => return Ok(Some(Settled::NotAsked(asked))),
        }
    }
}

/// Returns what the event before a command says of it: which one, and none of its arguments.
fn command_announcement(command: &[String]) -> String {
    let program = command.first().map_or("", String::as_str);
    format!(r#"{{"command":{}}}"#, json::quote(program))
}

fn told(story: &Story) -> Vec<u8> {
    use std::fmt::Write as _;
    let (workflow, uid) = &story.workflow;
    let mut key = String::new();
    for byte in uid {
        let _ = write!(key, "{byte:02x}");
    }
    let _ = write!(key, "/{}/{}", story.branch, story.entry.seq);
    EntryStory {
        workflow_id: &workflow.0,
        branch: story.branch,
        entry: &story.entry,
        idempotency_key: &key,
        arguments: story.arguments.as_deref(),
        is_redacted: story.is_redacted,
    }
    .to_json()
}

/// Returns a command's answer as a word.
fn said(answer: Answer) -> Word {
    let evidence = answer.evidence();
    let verdict = match answer.verdict {
        Said::Completed { result } => completed(result),
        Said::NotExecuted => Verdict::NotExecuted,
        Said::Unknown(_) => Verdict::StillUnknown,
    };
    Word { verdict, evidence }
}

/// Returns the verdict of a prober that gave the call's result.
pub(super) fn completed(result: Vec<u8>) -> Verdict {
    Verdict::Completed {
        is_error: outcome::read_result(&result).is_error,
        body: result.into(),
        provenance: Provenance::Prober,
    }
}

/// Tries again while somebody else writes.
fn patiently<T>(mut run: impl FnMut() -> Result<T, JournalError>) -> Result<T, JournalError> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match run() {
            Err(JournalError::Busy) if start.elapsed() < PATIENCE => {
                // Nothing tells when the other writer is done.
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}
