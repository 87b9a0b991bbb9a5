//! What is known of an event, in words: the same for `tail` and for `show`.
//!
//! A detail is a JSON object of which a later version, or a damaged journal, may have anything. What
//! is known is said as a person would say it, the most telling first; the rest as name and value.
//!
//! Must not: lay anything out, or tell what was answered or written to stderr, which have places
//! of their own.

use std::time::Duration;

use serde_json::{Map, Value};

use super::view::took;
use crate::guard::stale::{self, DIGEST_SHOWN};

/// Returns what an event's detail says, without the members in `told`, which the reader has been
/// told already.
pub(super) fn words(detail: &Value, told: &[&str]) -> Vec<String> {
    let Value::Object(members) = detail else {
        return match detail {
            Value::Null => Vec::new(),
            Value::String(text) => vec![text.clone()],
            other => vec![other.to_string()],
        };
    };
    let mut left = Members(members.clone());
    for name in told.iter().chain(&stale::MEMBERS).chain(&["stderr_tail"]) {
        left.take(name);
    }
    let mut parts = Vec::new();
    for phrase in PHRASES {
        parts.extend(phrase(&mut left));
    }
    parts.extend(left.0.iter().filter_map(|(name, value)| other(name, value)));
    parts
}

/// The members of a detail that have not been said yet.
struct Members(Map<String, Value>);

impl Members {
    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    fn number(&mut self, name: &str) -> Option<u64> {
        let value = self.take(name)?;
        match value.as_u64() {
            Some(number) => Some(number),
            None => self.keep(name, value),
        }
    }

    fn text(&mut self, name: &str) -> Option<String> {
        match self.take(name)? {
            Value::String(text) => Some(text),
            value => self.keep(name, value),
        }
    }

    /// Puts back what is none of what was expected: it is said as it is.
    fn keep<T>(&mut self, name: &str, value: Value) -> Option<T> {
        self.0.insert(name.to_owned(), value);
        None
    }
}

type Phrase = fn(&mut Members) -> Option<String>;

/// What is said of the members that are known, in this order. Each takes those that it says.
const PHRASES: [Phrase; 16] = [
    |left| left.text("verdict").map(spelled),
    |left| match left.take("forced")? {
        Value::Bool(true) => Some("by force".to_owned()),
        value => left.keep("forced", value),
    },
    // What the upstream's answer would have made of the entry.
    |left| left.text("status"),
    // The event's own name says it.
    |left| {
        left.text("kind")
            .filter(|kind| kind != "divergence")
            .map(spelled)
    },
    |left| {
        let after = left.text("after")?;
        Some(match after.as_str() {
            "timeout" => "after a timeout".to_owned(),
            "cancelled" => "after its cancellation".to_owned(),
            "gone" => "after its caller had gone".to_owned(),
            other => format!("after {}", spelled(other.to_owned())),
        })
    },
    // A person's reason is that person's, letter by letter; the others are words of ours.
    |left| {
        let by = left.text("by");
        match (by, left.text("reason")) {
            (Some(by), Some(reason)) => Some(format!("by {by}: {reason}")),
            (Some(by), None) => Some(format!("by {by}")),
            (None, reason) => reason.map(spelled),
        }
    },
    |left| {
        let branch = left.number("from_branch")?;
        let place = left
            .number("at")
            .map_or_else(String::new, |seq| format!("seq {seq} of "));
        let workflow = left.text("from_workflow").unwrap_or_default();
        let new = left.text("new_workflow").unwrap_or_default();
        Some(format!(
            "workflow {new} from {place}branch {branch} of {workflow}"
        ))
    },
    |left| {
        let (branch, parent) = (left.number("branch")?, left.number("parent"));
        let from = parent.map_or_else(String::new, |parent| format!(" from branch {parent}"));
        Some(format!("branch {branch}{from}"))
    },
    |left| match (left.number("bytes_written"), left.number("bytes")) {
        (Some(written), Some(bytes)) => Some(format!("{written} of {bytes} bytes sent")),
        (Some(written), None) => Some(format!("{written} bytes sent")),
        (None, Some(bytes)) => Some(format!("{bytes} bytes")),
        (None, None) => None,
    },
    |left| {
        let digest = left.text("digest")?;
        Some(format!("sha256 {}", start(&digest)))
    },
    |left| {
        let elapsed = Duration::from_millis(left.number("elapsed_ms")?);
        Some(match elapsed {
            Duration::ZERO => "after less than 1ms".to_owned(),
            elapsed => format!("after {}", took(elapsed)),
        })
    },
    |left| Some(format!("exit status {}", left.take("exit_code")?)),
    |left| {
        let file = left.text("evidence")?;
        let mut facts = Vec::new();
        facts.extend(
            left.number("evidence_bytes")
                .map(|bytes| format!("{bytes} bytes")),
        );
        facts.extend(
            left.text("evidence_sha256")
                .map(|hash| format!("sha256 {hash}")),
        );
        Some(match facts.is_empty() {
            true => format!("evidence {file}"),
            false => format!("evidence {file} ({})", facts.join(", ")),
        })
    },
    |left| {
        left.text("reference")
            .map(|text| format!("reference {text}"))
    },
    |left| {
        let digest = left.text("stale_answer")?;
        let fence = left.number("stale_fence");
        let of = fence.map_or_else(String::new, |fence| format!(" of fence {fence}"));
        Some(format!("stale answer {}{of}", start(&digest)))
    },
    |left| left.text("was").map(|status| format!("was {status}")),
];

/// Returns what is said of a member that has no words of its own.
fn other(name: &str, value: &Value) -> Option<String> {
    let name = spelled(name.to_owned());
    match value {
        Value::Null => None,
        Value::String(text) => Some(format!("{name} {text}")),
        value => Some(format!("{name} {value}")),
    }
}

/// Returns a word of ours as it is written.
fn spelled(word: String) -> String {
    word.replace('_', " ")
}

/// Returns so much of a digest as tells it from others.
fn start(digest: &str) -> String {
    digest.chars().take(DIGEST_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_detail_is_said_as_a_person_would() {
        let digest = "3afe5fdd5482c6c6c58e75b7ddca18af818eb8c55757a876913d3950d9ea3537";
        for (detail, expected) in [
            (json!(null), ""),
            (json!({}), ""),
            (json!("odd"), "odd"),
            (
                json!({"reason": "upstream_exited", "bytes_written": 145, "bytes": 200,
                    "elapsed_ms": 1530, "signal": 9, "stderr_tail": "secret"}),
                "upstream exited, 145 of 200 bytes sent, after 1.53s, signal 9",
            ),
            (
                json!({"reason": "timeout", "elapsed_ms": 0, "exit_code": 3}),
                "timeout, after less than 1ms, exit status 3",
            ),
            (json!({"error_code": -32042}), "error code -32042"),
            (json!({"kind": "in_doubt"}), "in doubt"),
            (json!({"kind": "divergence"}), ""),
            (json!({"after": "gone"}), "after its caller had gone"),
            (json!({"after": "cancelled"}), "after its cancellation"),
            (
                json!({"status": "COMPLETED", "digest": digest, "bytes": 155, "answer": "secret",
                    "answer_hex": "00"}),
                "COMPLETED, 155 bytes, sha256 3afe5fdd5482",
            ),
            (
                json!({"verdict": "not_executed", "by": "ann_b", "reason": "order_4711 is not there",
                    "was": "PENDING", "forced": true, "reference": "INC-4711"}),
                "not executed, by force, by ann_b: order_4711 is not there, reference INC-4711, \
                 was PENDING",
            ),
            (
                json!({"verdict": "completed", "by": "bob", "was": "VOIDED",
                    "stale_answer": digest, "stale_fence": 2,
                    "evidence": "proof", "evidence_bytes": 3, "evidence_sha256": "ba78"}),
                "completed, by bob, evidence proof (3 bytes, sha256 ba78), \
                 stale answer 3afe5fdd5482 of fence 2, was VOIDED",
            ),
            (
                json!({"by": "reconcile", "probe": {"stdout": "a\nb", "elapsed_ms": 7}}),
                r#"by reconcile, probe {"elapsed_ms":7,"stdout":"a\nb"}"#,
            ),
            (json!({"bytes": 186, "by": "root"}), "by root, 186 bytes"),
            (json!({"branch": 1, "parent": 0}), "branch 1 from branch 0"),
            (
                json!({"by": "root", "from_workflow": "/w/run.db", "from_branch": 0, "at": 3,
                    "new_workflow": "new", "reason": "start over"}),
                "by root: start over, workflow new from seq 3 of branch 0 of /w/run.db",
            ),
            // What is not as expected is not lost.
            (
                json!({"bytes": "many", "digest": 7, "forced": "no", "new_thing": [1]}),
                "bytes many, digest 7, forced no, new thing [1]",
            ),
        ] {
            assert_eq!(words(&detail, &[]).join(", "), expected, "{detail}");
        }
    }

    #[test]
    fn what_was_told_is_not_said_again() {
        let detail = json!({"by": "ann", "reason": "r", "verdict": "failed", "was": "PENDING"});
        assert_eq!(
            words(&detail, &["by", "reason"]).join(", "),
            "failed, was PENDING"
        );
    }
}
