//! Command lines that an operator can copy.
//!
//! They name the same journal and the same entry as the command that prints them, quoted for a
//! POSIX shell, so that copying one can't run anything else, whatever a path holds.

use std::path::{Path, PathBuf};

use super::settings::Env;
use super::view::EntryView;
pub(super) use crate::rules::shell::quote;

/// One entry of one journal, as arguments of further commands.
#[derive(Clone, Debug)]
pub(super) struct Target {
    journal: PathBuf,
    seq: u64,
    /// Workflow and branch, where the seq alone would name another entry.
    place: Option<(String, u64)>,
}

impl Target {
    pub(super) fn new(journal: &Path, entry: &EntryView, env: Env<'_>) -> Self {
        // The variable would lead a command that names no workflow elsewhere.
        let is_short = entry.is_named_by_seq && env("CHECKPOINT_WORKFLOW_ID").is_none();
        Self {
            journal: journal.to_owned(),
            seq: entry.seq,
            place: (!is_short).then(|| (entry.workflow_id.clone(), entry.branch)),
        }
    }

    /// Returns `checkpoint NAME SEQ MORE` and where the entry is.
    pub(super) fn command(&self, name: &str, more: &str) -> String {
        self.line(&format!("{name} {}", self.seq), more)
    }

    /// Returns `checkpoint NAME` for the whole journal.
    pub(super) fn journal_line(&self, name: &str) -> String {
        let journal = self.journal.to_string_lossy();
        format!("checkpoint {name} --journal {}", quote(&journal))
    }

    /// Returns `checkpoint START MORE` and the entry's workflow: for a call, which goes to the
    /// active branch whatever branch the entry is on.
    pub(super) fn workflow_line(&self, start: &str, more: &str) -> String {
        let line = self.line(start, more);
        match line.rfind(" --branch ") {
            Some(end) if self.place.is_some() => line[..end].to_owned(),
            Some(_) | None => line,
        }
    }

    /// Returns `checkpoint START MORE` and where the entry is.
    pub(super) fn line(&self, start: &str, more: &str) -> String {
        let mut line = format!("checkpoint {start}");
        if !more.is_empty() {
            line = format!("{line} {more}");
        }
        let journal = self.journal.to_string_lossy();
        line = format!("{line} --journal {}", quote(&journal));
        if let Some((workflow_id, branch)) = &self.place {
            line = format!(
                "{line} --workflow-id {} --branch {branch}",
                quote(workflow_id)
            );
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::entry;
    use super::*;

    #[test]
    fn a_target_says_where_it_is() {
        let mut entry = entry(8);
        let path = Path::new("my run.db");
        let short = "checkpoint show 8 --journal 'my run.db'";
        let long = format!("{short} --workflow-id /w/run.db --branch 2");
        entry.branch = 2;
        let shown = |entry: &EntryView, env| Target::new(path, entry, env).command("show", "");
        assert_eq!(shown(&entry, &|_| None), short);
        assert_eq!(shown(&entry, &|_| Some("w".into())), long);
        entry.is_named_by_seq = false;
        assert_eq!(shown(&entry, &|_| None), long);
    }
}
