//! The story, and the proof of each of its sentences.
//!
//! Invariant: what is told as a fact was looked up first, in the ledger (what really happened), in
//! what the agent was told, or in the journal as the operator's commands show it. What can differ
//! from one run to the next (times, process ids, the folder) is left out of the text.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output as Ran, Stdio};

use serde_json::Value;

use super::agent::{PLAN, Told};
use super::scene::{Incident, LOG, Scenes, without_our_variables};
use super::upstream::{receipt, text};
use super::{JOURNAL, LEDGER, broken, program};
use crate::cli::error::CliError;
use crate::cli::exit::Exit;
use crate::cli::output::Output;
use crate::cli::target::quote;

/// The file in which the operator puts the result of the call in doubt.
const RECEIPT: &str = "receipt.json";

/// Columns of the text.
const WIDTH: usize = 90;

/// Tells the whole story. Returns [`Exit::Failure`] if anything was not as it had to be.
pub(super) fn tell() -> Result<Exit, CliError> {
    let folder = new_folder()?;
    let mut story = Story {
        folder: &folder,
        output: Output::plain(),
        wrong: 0,
    };
    let told = story.acts();
    // Also where it broke off: what there is to look at is there.
    story.end(told.is_ok())?;
    told?;
    Ok(if story.wrong == 0 {
        Exit::Ok
    } else {
        Exit::Failure
    })
}

fn new_folder() -> Result<PathBuf, CliError> {
    let template = std::env::temp_dir().join("checkpoint-demo-XXXXXX");
    nix::unistd::mkdtemp(&template)
        .map_err(std::io::Error::from)
        .and_then(|folder| folder.canonicalize())
        .map_err(broken("no temporary folder can be made"))
}

struct Story<'a> {
    folder: &'a Path,
    output: Output,
    wrong: usize,
}

impl Story<'_> {
    fn acts(&mut self) -> Result<(), CliError> {
        let scenes = Scenes::open(self.folder)?;
        self.say(&format!(
            "An agent pays four orders. Its payments upstream charges whatever it is asked to, each\n\
             time it is asked. Between them stands checkpoint, and each call carries its place in the\n\
             agent's plan as _meta.checkpoint_seq:\n\
             \n\
             \x20 checkpoint --annotate --journal {JOURNAL} -- checkpoint demo upstream {LEDGER}\n"
        ))?;
        let first = self.agent_is_killed(&scenes)?;
        self.agent_comes_back(&scenes, &first)?;
        self.doubt_stays(&scenes)?;
        self.operator_looks()?;
        self.operator_settles(&scenes)
    }

    // ---- the acts ----

    fn agent_is_killed(&mut self, scenes: &Scenes<'_>) -> Result<Vec<Told>, CliError> {
        self.title("1. The agent is killed while its third charge runs")?;
        let told = scenes.play(Incident::AgentKilled(PLAN[2].0))?;
        self.tell_told(&told)?;
        self.say("  seq 3  charge A-102  charged; SIGKILL hit the agent before it was told\n")?;
        self.check("the agent was told of two charges", told.len() == 2)?;
        self.check_ledger(3)?;
        self.check_statuses(&["COMPLETED", "COMPLETED", "COMPLETED"])?;
        self.say(
            "  checkpoint waited for the running call and kept its outcome, though nobody was left\n\
             \x20 to be told.\n",
        )?;
        Ok(told)
    }

    fn agent_comes_back(&mut self, scenes: &Scenes<'_>, first: &[Told]) -> Result<(), CliError> {
        self.title(
            "2. The agent starts over; the upstream is killed while the fourth charge runs",
        )?;
        let told = scenes.play(Incident::UpstreamKilled(PLAN[3].0))?;
        self.tell_told(&told)?;
        self.check(
            "seq 1 to 3 were answered from the journal, with the first answers",
            are_replays(&told, 3) && first.iter().zip(&told).all(|(a, b)| a.text == b.text),
        )?;
        self.check(
            "the agent was told that nobody knows what became of seq 4",
            is_refused(&told, "outcome_unknown"),
        )?;
        self.check_ledger(4)
    }

    fn doubt_stays(&mut self, scenes: &Scenes<'_>) -> Result<(), CliError> {
        self.title("3. The agent starts over again; the call that was cut off does not run again")?;
        let told = scenes.play(Incident::None)?;
        self.tell_told(&told)?;
        self.check(
            "seq 4 is in doubt: neither claimed to have failed nor to have succeeded",
            are_replays(&told, 3) && is_refused(&told, "in_doubt"),
        )?;
        self.check_ledger(4)
    }

    fn operator_looks(&mut self) -> Result<(), CliError> {
        self.title("4. The operator looks (times and process ids are left out here)")?;
        let listed = self.command(&["ls", "--in-doubt", "--journal", JOURNAL])?;
        self.say(&(indented(&masked(&all_of(&listed))) + "\n"))?;
        let shown = self.command(&["show", "4", "--journal", JOURNAL])?;
        self.say(&(indented(&excerpt(&all_of(&shown))) + "\n"))?;
        self.check_statuses(&["COMPLETED", "COMPLETED", "COMPLETED", "in doubt"])
    }

    fn operator_settles(&mut self, scenes: &Scenes<'_>) -> Result<(), CliError> {
        self.title("5. The operator asks the only one who can know, and settles it")?;
        self.say(&format!("  $ cat {LEDGER}\n"))?;
        let ledger = self.ledger()?;
        self.say(&indented(&ledger))?;
        let (order, cents) = PLAN[3];
        let result = text(&receipt(4, order, cents), false).to_string();
        std::fs::write(self.folder.join(RECEIPT), result + "\n")
            .map_err(broken("the receipt can't be written"))?;
        let receipt = format!("@{RECEIPT}");
        let words = [
            "resolve",
            "4",
            "--completed",
            "--result",
            &receipt,
            "--reason",
            "the ledger has ch_4 for A-103",
            "--journal",
            JOURNAL,
        ];
        self.say("\n  The charge is there, with its receipt:\n")?;
        let resolved = self.command(&words)?;
        self.say(&indented(&masked(&all_of(&resolved))))?;
        self.check("the verdict was taken", resolved.status.success())?;

        self.title("6. The agent starts over once more and comes to its end")?;
        let told = scenes.play(Incident::None)?;
        self.tell_told(&told)?;
        self.check(
            "all four were answered from the journal",
            told.len() == PLAN.len() && are_replays(&told, PLAN.len()),
        )?;
        self.check_ledger(4)?;
        self.check_statuses(&["COMPLETED", "COMPLETED", "COMPLETED", "COMPLETED"])
    }

    fn end(&mut self, has_ended: bool) -> Result<(), CliError> {
        let folder = self.folder.to_string_lossy();
        let verdict = match self.wrong {
            _ if !has_ended => "The demo broke off.".to_owned(),
            0 => "Four orders, four charges, one agent started several times.".to_owned(),
            1 => "One thing was not as it had to be; see WRONG above.".to_owned(),
            many => format!("{many} things were not as they had to be; see WRONG above."),
        };
        self.say(&format!(
            "\n{verdict}\n\
             The journal ({JOURNAL}), the ledger ({LEDGER}) and what went to stderr ({LOG}) are in\n\
             \x20 {folder}\n\
             Look around:\n\
             \x20 cd {} && checkpoint ls --journal {JOURNAL}\n",
            quote(&folder),
        ))
    }

    // ---- telling ----

    fn say(&self, text: &str) -> Result<(), CliError> {
        self.output.data(text)
    }

    fn title(&self, text: &str) -> Result<(), CliError> {
        self.say(&format!("\n{text}\n\n"))
    }

    fn tell_told(&self, told: &[Told]) -> Result<(), CliError> {
        for one in told {
            let index = usize::try_from(one.seq)
                .unwrap_or(usize::MAX)
                .saturating_sub(1);
            let order = PLAN.get(index).map_or("?", |(order, _)| order);
            let start = format!("  seq {}  charge {order}  ", one.seq);
            let line = match &one.refused {
                Some(_) => wrapped(&start, &self.without_folder(&one.text)),
                None if one.replayed => format!("{start}from the journal: {}\n", one.text),
                None => format!("{start}{}\n", one.text),
            };
            self.say(&line)?;
        }
        Ok(())
    }

    /// Names files as seen from the demo's folder, so that each run tells the same.
    fn without_folder(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.folder.to_string_lossy()), "")
    }

    // ---- checking ----

    fn check(&mut self, fact: &str, holds: bool) -> Result<(), CliError> {
        if holds {
            self.say(&format!("  checked: {fact}\n"))
        } else {
            self.wrong += 1;
            self.say(&format!("  WRONG: it had to be so that {fact}\n"))
        }
    }

    /// Checks that the first `count` orders were charged, once each, and nothing else.
    fn check_ledger(&mut self, count: usize) -> Result<(), CliError> {
        let ledger = self.ledger()?;
        let charged: Vec<_> = ledger.lines().map(|line| line.split(' ').nth(1)).collect();
        let expected: Vec<_> = PLAN
            .iter()
            .take(count)
            .map(|(order, _)| Some(*order))
            .collect();
        let fact = format!("{LEDGER} has {count} charges, no order twice");
        self.check(&fact, charged == expected)
    }

    /// Checks where the entries stand, as `ls` tells it.
    fn check_statuses(&mut self, expected: &[&str]) -> Result<(), CliError> {
        let listed = self.silently(&["ls", "--json", "--journal", JOURNAL])?;
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        let found: Vec<&str> = listed["entries"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|entry| match entry["in_doubt"].as_bool() {
                Some(true) => "in doubt",
                _ => entry["status"].as_str().unwrap_or_default(),
            })
            .collect();
        let fact = format!("the journal says {}", expected.join(", "));
        self.check(&fact, found == expected)
    }

    fn ledger(&self) -> Result<String, CliError> {
        std::fs::read_to_string(self.folder.join(LEDGER))
            .map_err(broken("the ledger can't be read"))
    }

    /// Runs one of the operator's commands and shows what was typed.
    fn command(&self, words: &[&str]) -> Result<Ran, CliError> {
        self.say(&format!("  $ {}\n", command_line(words)))?;
        self.silently(words)
    }

    fn silently(&self, words: &[&str]) -> Result<Ran, CliError> {
        let mut command = Command::new(program()?);
        command
            .args(words)
            .current_dir(self.folder)
            .stdin(Stdio::null());
        without_our_variables(&mut command);
        command.output().map_err(broken("a command can't be run"))
    }
}

/// Returns what a command wrote, the data first.
fn all_of(ran: &Ran) -> String {
    [&ran.stdout, &ran.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat()
}

fn are_replays(told: &[Told], count: usize) -> bool {
    let start: Vec<_> = told.iter().take(count).collect();
    start.len() == count
        && start
            .iter()
            .all(|one| one.replayed && one.refused.is_none())
}

/// Whether the fourth call was the last one that was asked, and refused as `kind`.
fn is_refused(told: &[Told], kind: &str) -> bool {
    told.len() == PLAN.len()
        && told
            .last()
            .is_some_and(|one| one.refused.as_deref() == Some(kind))
}

fn command_line(words: &[&str]) -> String {
    let mut line = "checkpoint".to_owned();
    for word in words {
        let _ = write!(line, " {}", quote(word));
    }
    line
}

fn indented(text: &str) -> String {
    text.lines()
        .map(|line| format!("    {line}").trim_end().to_owned() + "\n")
        .collect()
}

/// Breaks `text` into lines after `start`, the further ones under the first.
fn wrapped(start: &str, text: &str) -> String {
    let margin = " ".repeat(start.len());
    let mut lines = String::new();
    let mut line = start.to_owned();
    for word in text.split(' ') {
        if line.len() + word.len() >= WIDTH && !line.trim().is_empty() && line.len() > start.len() {
            lines.push_str(line.trim_end());
            lines.push('\n');
            line.clone_from(&margin);
        }
        line.push_str(word);
        line.push(' ');
    }
    lines.push_str(line.trim_end());
    lines.push('\n');
    lines
}

/// Returns the head of `show`, its arguments and the commands that are legal now.
fn excerpt(shown: &str) -> String {
    let mut text = String::new();
    for (index, section) in shown.split("\n\n").enumerate() {
        let name = section.trim_start().lines().next().unwrap_or_default();
        if index == 0 || ["Arguments", "Next"].contains(&name) {
            text.push_str(section.trim_end());
            text.push_str("\n\n");
        } else if !text.ends_with("…\n\n") {
            text.push_str("…\n\n");
        }
    }
    let text = text.trim_end();
    masked(&format!("{text}\n"))
}

/// Blanks out times and process ids, and keeps the columns.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    for (index, word) in text.split(' ').enumerate() {
        if index > 0 {
            masked.push(' ');
        }
        let is_pid = masked.ends_with("process ") && word.starts_with(|c: char| c.is_ascii_digit());
        let bytes = word.as_bytes();
        let is_time = bytes.len() >= 20 && bytes[4] == b'-' && bytes[10] == b'T';
        if is_time {
            let (_, rest) = word.split_once('Z').unwrap_or((word, ""));
            let width = word.len() - rest.len();
            let _ = write!(masked, "{:width$}{rest}", "-");
        } else if is_pid {
            masked.push_str("NNN");
            masked.push_str(word.trim_start_matches(|c: char| c.is_ascii_digit()));
        } else {
            masked.push_str(word);
        }
    }
    masked
        .lines()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_run_to_run_is_masked() {
        let text = "  4  IN-DOUBT  2026-11-29T18:01:12.304511Z      -  process 4121 gone\nin 4 s\n";
        let expected = format!(
            "  4  IN-DOUBT  -{}      -  process NNN gone\nin 4 s\n",
            " ".repeat(26)
        );
        assert_eq!(masked(text), expected);
        assert_eq!(masked("2026-11-29T18:01:12.304511Z\nx\n"), "-\nx\n");
    }

    #[test]
    fn long_text_is_wrapped_under_its_start() {
        let text = wrapped("  seq 4  ", &"word ".repeat(30));
        for line in text.lines() {
            assert!(line.len() <= WIDTH && line.starts_with("  "), "{line:?}");
        }
        assert_eq!(
            text.split_whitespace()
                .filter(|word| *word == "word")
                .count(),
            30
        );
        assert_eq!(wrapped("x ", "y"), "x y\n");
    }

    #[test]
    fn of_show_what_matters_here_is_kept() {
        let shown = "seq 4\nSent.\n\nEntry\n  a  b\n\nArguments\n  {}\n\nOutcome\n  none\n\nEvents\n  x\n\nNext\n  do\n";
        assert_eq!(
            excerpt(shown),
            "seq 4\nSent.\n\n…\n\nArguments\n  {}\n\n…\n\nNext\n  do\n"
        );
    }
}
