//! Which commands are legal for an entry now.
//!
//! Only commands that this version has are named, so that none is copied in vain. Whether one is
//! then carried out is for `guard` to say: the entry may have changed since.

use crate::cli::detail::{Detail, Knowledge, Payload, StaleView};
use crate::cli::target::{Target, quote};
use crate::cli::view::Status;
use crate::guard::stale::DIGEST_SHOWN;

/// Returns the verdicts that the stale answers of the entry give, where they may be given.
fn adoptions(detail: &Detail) -> Vec<String> {
    let entry = &detail.entry;
    let force = match entry.status {
        _ if entry.quarantined || entry.running => return Vec::new(),
        Status::Completed | Status::Failed if entry.provenance.as_deref() == Some("upstream") => {
            return Vec::new();
        }
        Status::Denied | Status::Unreadable => return Vec::new(),
        Status::InputRequired | Status::Accepted => " --force",
        Status::Pending | Status::Completed | Status::Failed | Status::Voided => "",
    };
    let able: Vec<(&StaleView, &str)> = detail
        .stale_results
        .iter()
        .filter(|stale| stale.is_same_call && !stale.counts)
        .filter(|stale| matches!(stale.answer, Payload::Stored(_)))
        .filter_map(|stale| match stale.status {
            Some(Status::Completed) => Some((stale, "--completed --result-stale")),
            Some(Status::Failed) => Some((stale, "--failed --error-stale")),
            _ => None,
        })
        .collect();
    let mut lines: Vec<String> = able
        .iter()
        .map(|(stale, flags)| {
            // Said where there is more than one, so that the line does what its place says.
            let is_one_of_several = detail
                .stale_results
                .iter()
                .any(|other| other.status == stale.status && other.digest != stale.digest);
            let which = if is_one_of_several {
                format!("={}", &stale.digest[..stale.digest.len().min(DIGEST_SHOWN)])
            } else {
                String::new()
            };
            format!("{flags}{which}{force}")
        })
        .collect();
    lines.dedup();
    lines
}

/// Returns the command lines, the most likely first.
pub(super) fn legal_commands(
    detail: &Detail,
    target: &Target,
    exists: impl Fn(&str) -> bool,
) -> Vec<String> {
    const REASON: &str = "--reason 'WHY'";
    let entry = &detail.entry;
    let mut lines = Vec::new();
    let mut add = |name: &str, more: &str| {
        if exists(name) {
            lines.push(target.command(name, more));
        }
    };
    for more in adoptions(detail) {
        add("resolve", &format!("{more} {REASON}"));
    }
    match detail.knowledge() {
        Knowledge::SentUnanswered | Knowledge::NeverSent if entry.status == Status::Pending => {
            add(
                "resolve",
                &format!("--completed --result @result.json {REASON}"),
            );
            add("resolve", &format!("--failed --error @error.json {REASON}"));
            add("resolve", &format!("--not-executed {REASON}"));
            add("resolve", &format!("--still-unknown {REASON}"));
        }
        // Most will go on by themselves; these are for one that can't.
        Knowledge::InputRequired | Knowledge::Accepted => {
            add(
                "resolve",
                &format!("--completed --result @result.json {REASON} --force"),
            );
            add(
                "resolve",
                &format!("--failed --error @error.json {REASON} --force"),
            );
            add("resolve", &format!("--not-executed {REASON} --force"));
            add("resolve", &format!("--still-unknown {REASON}"));
        }
        Knowledge::AnsweredUndelivered => {
            add("delivered", "");
            add("reopen", REASON);
        }
        Knowledge::Delivered => add("reopen", REASON),
        Knowledge::Quarantined
        | Knowledge::NeverSent
        | Knowledge::Running
        | Knowledge::SentUnanswered
        | Knowledge::NotExecuted
        | Knowledge::Reopened => {}
    }
    if entry.quarantined && exists("verify") {
        lines.push(target.journal_line("verify"));
    }
    // Nothing may be said of what does not hold; a new workflow leaves it behind.
    if entry.quarantined && exists("fork") {
        let start = format!("fork --from {} --new-workflow NEW", entry.seq);
        lines.push(target.line(&start, REASON));
    }
    // Whether a task was asked for is part of a call, and `decide` can't be told of it.
    if exists("decide") && entry.status != Status::Accepted {
        let tool = quote(&entry.tool);
        let start = format!("decide --tool {tool} --seq {}", entry.seq);
        lines.push(target.workflow_line(&start, "--args @args.json"));
    }
    lines
}
