//! From a doubt to the verdict of the one who was asked.
//!
//! The same steps for a running proxy and for `checkpoint resolve --auto`: look whether a verdict
//! could count at all (the recorded upstream must be dead), ask, and give the verdict, compared
//! with what was asked about. What is unclear is kept with the entry, and the doubt stays.
//!
//! Must not: decide who is asked, or hold the journal while it asks.

use std::time::{Duration, Instant};

use super::{Answer, EntryStory, Question, Verdict as Said, ask};
use crate::guard::story::Story;
use crate::guard::verdict::{Act, Deed, Refused, Ruling, Verdict};
use crate::journal::JournalError;
use crate::mcp::outcome;
use crate::rules::entry::Provenance;
use crate::rules::ids::{BranchId, Fence, Seq};
use crate::rules::policy::Reconcile;

/// How long a journal that others write to is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A doubt about which somebody is to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The entry's place.
    pub place: (BranchId, Seq),
    /// The attempt in doubt.
    pub fence: Fence,
    /// The command.
    pub command: Vec<String>,
    /// After which the answer is unknown.
    pub timeout: Duration,
    /// The largest result that is taken, in bytes.
    pub result_bytes_max: usize,
}

impl Probe {
    /// Returns the probe of an attempt in doubt.
    #[must_use]
    pub fn new(
        place: (BranchId, Seq),
        fence: Fence,
        command: &[String],
        reconcile: &Reconcile,
        result_bytes_max: usize,
    ) -> Self {
        Self {
            place,
            fence,
            command: command.to_vec(),
            timeout: reconcile.timeout,
            result_bytes_max,
        }
    }
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
    probe: &Probe,
    deed: &Deed,
) -> Result<Settled, JournalError> {
    let unknown = Act::Resolve {
        verdict: Verdict::StillUnknown,
        forces: false,
        open: None,
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
    let answer = ask(&Question {
        command: &probe.command,
        entry: &told(&story),
        timeout: probe.timeout,
        result_bytes_max: probe.result_bytes_max,
    });
    let deed = Deed {
        probe: Some(answer.evidence()),
        ..deed.clone()
    };
    let verdict = verdict(answer);
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
        open: None,
    };
    let ruling = patiently(|| ledger.rule(probe.place, &act, &deed, false))?;
    Ok(Settled::Ruled {
        verdict: name,
        ruling,
    })
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

fn verdict(answer: Answer) -> Verdict {
    match answer.verdict {
        Said::Completed { result } => Verdict::Completed {
            is_error: outcome::read_result(&result).is_error,
            body: result.into(),
            provenance: Provenance::Prober,
        },
        Said::NotExecuted => Verdict::NotExecuted,
        Said::Unknown(_) => Verdict::StillUnknown,
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
