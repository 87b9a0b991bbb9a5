//! What was acknowledged, what an operator allowed, and what the effects log says to that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use serde_json::Value;

use super::plan::Step;
use crate::bench::outcome;

/// What came for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// An outcome, as the bytes that tell it from any other.
    Done(String),
    /// An outcome that the journal does not have.
    Unjournaled,
    Refused(String),
}

impl Answer {
    /// Reads an answer's line to a call of this step.
    pub(crate) fn read(line: &str, value: &Value, step: &Step) -> Result<Self, String> {
        if let Some(kind) = value["error"]["data"]["kind"].as_str() {
            return Ok(Self::Refused(kind.to_owned()));
        }
        let result = &value["result"];
        if result.is_null() {
            return Err(format!("{}: neither result nor refusal: {line}", step.name));
        }
        if !line.contains("receipt") {
            // The operator's verdict without the upstream's result.
            let mut result = result.clone();
            result.as_object_mut().unwrap().remove("_meta");
            return Ok(Self::Done(result.to_string()));
        }
        if result["content"][0]["text"] != step.name.as_str() {
            return Err(format!("{}: another call's outcome: {line}", step.name));
        }
        Ok(if line.contains("\"journaled\":false") {
            Self::Unjournaled
        } else {
            Self::Done(outcome(line).to_owned())
        })
    }
}

#[derive(Default)]
struct Known {
    acknowledged: BTreeMap<String, String>,
    /// Answered, be it without a place in the journal.
    answered: BTreeSet<String>,
    allowed: BTreeMap<String, usize>,
    bad: BTreeSet<String>,
    counts: BTreeMap<String, usize>,
}

/// One world's.
#[derive(Default)]
pub(crate) struct Oracle {
    known: Mutex<Known>,
}

impl Oracle {
    pub(crate) fn bad(&self, what: String) {
        self.known.lock().unwrap().bad.insert(what);
    }

    pub(crate) fn count(&self, what: &str, by: usize) {
        let mut known = self.known.lock().unwrap();
        *known.counts.entry(what.to_owned()).or_default() += by;
    }

    /// Whether the step's outcome was acknowledged to anybody.
    pub(crate) fn is_acknowledged(&self, step: &Step) -> bool {
        let known = self.known.lock().unwrap();
        known.acknowledged.contains_key(&step.name)
    }

    /// Whether the step was answered with an outcome to anybody.
    pub(crate) fn is_answered(&self, step: &Step) -> bool {
        self.known.lock().unwrap().answered.contains(&step.name)
    }

    /// Judges an answer to a call that was sent when the step was acknowledged, or was not.
    pub(crate) fn judge(&self, step: &Step, answer: &Answer, was_acknowledged: bool) {
        let mut known = self.known.lock().unwrap();
        let name = &step.name;
        let count = match answer {
            Answer::Done(now) => {
                known.answered.insert(name.clone());
                let first = known
                    .acknowledged
                    .entry(name.clone())
                    .or_insert_with(|| now.clone());
                let changed = (first != now).then(|| format!("{name}: {first} became {now}"));
                known.bad.extend(changed);
                if was_acknowledged { "replays" } else { "done" }.to_owned()
            }
            Answer::Unjournaled => {
                known.answered.insert(name.clone());
                if was_acknowledged {
                    let bad = format!("{name}: acknowledged, and then executed anew");
                    known.bad.insert(bad);
                }
                "unjournaled".to_owned()
            }
            Answer::Refused(kind) => {
                // An outcome may be out of reach for a while; it is never unknown again.
                let is_unreachable =
                    ["journal_unavailable", "upstream_unavailable"].contains(&&**kind);
                if was_acknowledged && !is_unreachable {
                    known
                        .bad
                        .insert(format!("{name}: acknowledged, and then {kind}"));
                }
                kind.clone()
            }
        };
        *known.counts.entry(count).or_default() += 1;
    }

    /// A verdict allows one more effect than there has been.
    pub(crate) fn allow(&self, name: &str) {
        let mut known = self.known.lock().unwrap();
        *known.allowed.entry(name.to_owned()).or_default() += 1;
    }

    /// Judges the effects at any time.
    pub(crate) fn judge_effects(&self, effects: &BTreeMap<String, usize>) {
        let mut known = self.known.lock().unwrap();
        for (name, count) in effects {
            let allowed = 1 + known.allowed.get(name).copied().unwrap_or(0);
            if *count > allowed {
                let bad = format!("{name}: ran {count} times, {allowed} allowed");
                known.bad.insert(bad);
            }
        }
    }

    /// Judges the end, when everybody has asked in peace: all steps are done, and were executed.
    pub(crate) fn judge_end(&self, steps: &[Step], effects: &BTreeMap<String, usize>) {
        self.judge_effects(effects);
        let mut known = self.known.lock().unwrap();
        for step in steps {
            if !known.answered.contains(&step.name) {
                known
                    .bad
                    .insert(format!("{}: never came to an end", step.name));
            } else if !effects.contains_key(&step.name) {
                known
                    .bad
                    .insert(format!("{}: answered, never ran", step.name));
            }
        }
    }

    pub(crate) fn into_parts(self) -> (BTreeMap<String, usize>, BTreeSet<String>) {
        let known = self.known.into_inner().unwrap();
        (known.counts, known.bad)
    }
}
