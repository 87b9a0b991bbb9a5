//! What is to be changed in a configuration so that checkpoint stands before its servers, or no
//! longer does: the new text, and what becomes of each server.
//!
//! Invariants: only `command` and `args` of a server change, and each change is a replacement in
//! the text, so that all else stays as it is, to the byte. Whatever stood there moves as it was
//! spelled, so that what `wrap` did can be undone exactly; that is tried before a plan is given.
//! Pure: where journals are and what this program is called comes in.

use std::collections::BTreeMap;
use std::ops::Range;

use super::command::{self, Command, Judged, Upstream, judge};
use super::config::{Config, Fault, Member, Server, Syntax, Value};
use super::edit::{Change, Edit, apply};

/// What is asked for.
pub(super) struct Ask<'a> {
    /// The servers that are meant; all, if none is named.
    pub(super) names: &'a [String],
    /// This program, as a configuration is to name it.
    pub(super) program: &'a str,
    pub(super) deed: Deed<'a>,
}

/// Which way it goes.
pub(super) enum Deed<'a> {
    /// Checkpoint is put before servers.
    Wrap {
        /// Further flags of the proxy.
        flags: &'a [String],
        /// The journal of a server with this name.
        journal: &'a dyn Fn(&str) -> String,
    },
    /// It is taken away again.
    Undo,
}

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(super) struct CommandLine {
    pub(super) command: String,
    pub(super) args: Vec<String>,
}

/// What becomes of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Checkpoint is put before it.
    Wrapped,
    /// Checkpoint is taken away.
    Unwrapped,
    /// It is as it was asked for.
    Already,
    /// It is left alone.
    Skipped,
}

/// A server, and what becomes of it.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) holder: &'static str,
    pub(super) name: String,
    pub(super) state: State,
    /// Why it is left as it is.
    pub(super) reason: Option<String>,
    pub(super) before: Option<CommandLine>,
    pub(super) after: Option<CommandLine>,
    /// The journal that it gets, has or had.
    pub(super) journal: Option<String>,
    pub(super) edits: Vec<Edit>,
    shown: Vec<Range<usize>>,
}

/// What is to be done.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// The new text.
    pub(super) text: String,
    /// Whether a server of the text as it stands is wrapped.
    pub(super) is_wrapped_before: bool,
}

/// Why there is no plan.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoPlan {
    /// The text can't be read.
    Unreadable(Fault),
    /// No member of it holds servers.
    NoServers,
    /// No server has this name; these are there.
    Unknown { name: String, known: Vec<String> },
    /// Two servers would write to one journal.
    SharedJournal {
        one: String,
        other: String,
        journal: String,
    },
    /// The change would not be what it is meant to be.
    Unsafe,
}

impl Plan {
    /// Returns the changed servers, sorted by their places in the text.
    pub(super) fn changes(&self) -> Vec<Change> {
        let mut changes: Vec<Change> = self
            .steps
            .iter()
            .filter(|step| !step.edits.is_empty())
            .map(|step| Change {
                heading: format!("{}.{}", step.holder, step.name),
                edits: step.edits.clone(),
                shown: step.shown.clone(),
            })
            .collect();
        changes.sort_by_key(|change| change.edits[0].range.start);
        changes
    }
}

/// Plans what is asked for, in a text without its byte order mark.
///
/// # Errors
///
/// Why nothing can be planned.
pub(super) fn plan(text: &str, ask: &Ask<'_>) -> Result<Plan, NoPlan> {
    let plan = draft(text, ask)?;
    if !is_as_meant(text, &plan, ask) {
        return Err(NoPlan::Unsafe);
    }
    Ok(plan)
}

fn draft(text: &str, ask: &Ask<'_>) -> Result<Plan, NoPlan> {
    let config = Config::parse(text).map_err(NoPlan::Unreadable)?;
    if !config.has_holder {
        return Err(NoPlan::NoServers);
    }
    let known = |name: &String| config.servers.iter().any(|server| server.name == *name);
    if let Some(name) = ask.names.iter().find(|name| !known(name)) {
        return Err(NoPlan::Unknown {
            name: name.clone(),
            known: config.servers.iter().map(|s| s.name.clone()).collect(),
        });
    }
    let mut steps = Vec::new();
    let mut is_wrapped_before = false;
    let mut journals = BTreeMap::new();
    for server in &config.servers {
        let judged = judge(server, ask.program);
        if let Judged::Wrapped { journal, .. } = &judged {
            is_wrapped_before = true;
            if let Some(journal) = journal {
                journals.insert(journal.to_lowercase(), server.name.clone());
            }
        }
        if !ask.names.is_empty() && !ask.names.contains(&server.name) {
            continue;
        }
        let twice = |one: &&Server| one.name == server.name && one.holder == server.holder;
        let mut step = step(text, config.syntax, &server.name, &judged, ask);
        if config.servers.iter().filter(twice).count() > 1 && !step.edits.is_empty() {
            step = Step::left("its name stands twice");
        }
        step.holder = server.holder;
        step.name.clone_from(&server.name);
        steps.push(step);
    }
    if matches!(ask.deed, Deed::Wrap { .. }) {
        refuse_shared(&steps, journals)?;
    }
    let mut edits: Vec<&Edit> = steps.iter().flat_map(|step| &step.edits).collect();
    edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
    Ok(Plan {
        text: apply(text, edits),
        steps,
        is_wrapped_before,
    })
}

/// Refuses journals that two servers would write to, also where a file system takes no notice of
/// capitals.
fn refuse_shared(steps: &[Step], mut journals: BTreeMap<String, String>) -> Result<(), NoPlan> {
    for step in steps.iter().filter(|step| step.state == State::Wrapped) {
        let Some(journal) = &step.journal else {
            continue;
        };
        if let Some(one) = journals.insert(journal.to_lowercase(), step.name.clone()) {
            return Err(NoPlan::SharedJournal {
                one,
                other: step.name.clone(),
                journal: journal.clone(),
            });
        }
    }
    Ok(())
}

/// Tells whether the new text says what is meant, all else is as it was, and the way back leads to
/// the very text.
fn is_as_meant(text: &str, plan: &Plan, ask: &Ask<'_>) -> bool {
    let (Ok(old), Ok(new)) = (Config::parse(text), Config::parse(&plan.text)) else {
        return false;
    };
    if old.servers.len() != new.servers.len() {
        return false;
    }
    let line = |server: &Server| Some(command::of(server)?.line());
    let is_right = old.servers.iter().zip(&new.servers).all(|(was, is)| {
        let step = plan
            .steps
            .iter()
            .find(|step| step.holder == was.holder && step.name == was.name);
        let meant = match step {
            Some(step) if !step.edits.is_empty() => step.after.clone(),
            _ => line(was),
        };
        was.name == is.name && was.holder == is.holder && line(is) == meant
    });
    if !is_right || matches!(ask.deed, Deed::Undo) {
        return is_right;
    }
    let changed: Vec<String> = plan
        .steps
        .iter()
        .filter(|step| !step.edits.is_empty())
        .map(|step| step.name.clone())
        .collect();
    let back = Ask {
        names: &changed,
        program: ask.program,
        deed: Deed::Undo,
    };
    changed.is_empty() || draft(&plan.text, &back).is_ok_and(|back| back.text == text)
}

impl Step {
    fn left(reason: impl Into<String>) -> Self {
        Self {
            holder: "",
            name: String::new(),
            state: State::Skipped,
            reason: Some(reason.into()),
            before: None,
            after: None,
            journal: None,
            edits: Vec::new(),
            shown: Vec::new(),
        }
    }

    fn already(reason: &str, command: &Command<'_>) -> Self {
        Self {
            state: State::Already,
            before: Some(command.line()),
            ..Self::left(reason)
        }
    }
}

impl Command<'_> {
    fn line(&self) -> CommandLine {
        CommandLine {
            command: self.program.to_owned(),
            args: self.args.iter().map(|arg| (*arg).to_owned()).collect(),
        }
    }

    /// Where its two members stand, without comments among the arguments.
    fn shown(&self) -> Vec<Range<usize>> {
        let program = self.member.start..self.member.value.range.end;
        let mut shown: Vec<Range<usize>> = std::iter::once(program).collect();
        if let Some((list, elements)) = &self.list {
            let range = &list.value.range;
            shown.push(list.start..range.start + 1);
            shown.extend(elements.iter().map(|element| element.range.clone()));
            shown.push(range.end - 1..range.end);
        }
        shown
    }
}

fn step(text: &str, syntax: Syntax, name: &str, judged: &Judged<'_>, ask: &Ask<'_>) -> Step {
    match (judged, &ask.deed) {
        (Judged::Unfit(why), _) => Step::left(why),
        (Judged::Plain(command), Deed::Wrap { flags, journal }) => {
            let journal = journal(name);
            let mut lead = vec!["--journal".to_owned(), journal.clone()];
            lead.extend_from_slice(flags);
            lead.push("--".to_owned());
            let mut args = lead.clone();
            args.push(command.program.to_owned());
            args.extend(command.line().args);
            Step {
                state: State::Wrapped,
                reason: None,
                before: Some(command.line()),
                after: Some(CommandLine {
                    command: ask.program.to_owned(),
                    args,
                }),
                journal: Some(journal),
                edits: wrapping(text, syntax, command, ask.program, &lead),
                shown: command.shown(),
                ..Step::left("")
            }
        }
        (Judged::Wrapped { command, .. }, Deed::Wrap { .. }) => {
            Step::already("already wrapped", command)
        }
        (Judged::Plain(command), Deed::Undo) => Step::already("not wrapped", command),
        (
            Judged::Wrapped {
                command,
                upstream,
                journal,
            },
            Deed::Undo,
        ) => match upstream {
            Err(why) => Step::left(format!("{why}; take checkpoint out by hand")),
            Ok(upstream) => {
                let (edits, after) = unwrapping(text, syntax, command, upstream);
                Step {
                    state: State::Unwrapped,
                    reason: None,
                    before: Some(command.line()),
                    after: Some(after),
                    journal: journal.clone(),
                    edits,
                    shown: command.shown(),
                    ..Step::left("")
                }
            }
        },
    }
}

/// Returns the edits that put `program` and the arguments in `lead` before a command.
fn wrapping(
    text: &str,
    syntax: Syntax,
    command: &Command<'_>,
    program: &str,
    lead: &[String],
) -> Vec<Edit> {
    let place = &command.member.value.range;
    let mut items: Vec<String> = lead.iter().map(|arg| quoted(arg)).collect();
    items.push(text[place.clone()].to_owned());
    let own = Edit::new(place.clone(), quoted(program));
    let args = match &command.list {
        Some((_, elements)) if !elements.is_empty() => {
            let at = elements[0].range.start;
            let between = between_elements(text, at);
            let lead = items.join(&between) + &between;
            Edit::new(at..at, lead)
        }
        Some((member, _)) => {
            let at = member.value.range.start + 1;
            Edit::new(at..at, items.join(", "))
        }
        None => {
            let key = args_key(text, syntax, command.member);
            Edit::new(place.end..place.end, added_args(&key, &items.join(", ")))
        }
    };
    let mut edits = vec![own, args];
    edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
    edits
}

/// Returns arguments where there were none. The blanks within the brackets tell them from a list
/// that was empty, so that the way back is exact.
fn added_args(key: &str, items: &str) -> String {
    format!("{key}[ {items} ]")
}

/// Returns the edits that take the proxy away, and the command line that is then left.
fn unwrapping(
    text: &str,
    syntax: Syntax,
    command: &Command<'_>,
    upstream: &Upstream,
) -> (Vec<Edit>, CommandLine) {
    let place = &command.member.value.range;
    let (list, elements) = match &command.list {
        Some((member, elements)) => (&member.value, *elements),
        // A proxy without arguments has no upstream.
        None => return (Vec::new(), command.line()),
    };
    let (own, args, after) = match upstream {
        Upstream::Argv { dashes } => {
            let first = dashes + 1;
            let own = Edit::new(place.clone(), &text[elements[first].range.clone()]);
            let args = without(text, syntax, command, list, elements, first);
            let rest = command.args[first + 1..].iter();
            let after = CommandLine {
                command: command.args[first].to_owned(),
                args: rest.map(|arg| (*arg).to_owned()).collect(),
            };
            (own, args, after)
        }
        Upstream::Shell(shell) => {
            let mut words = command::words(shell);
            let program = words.remove(0);
            let items: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            let own = Edit::new(place.clone(), quoted(&program));
            let args = Edit::new(list.range.clone(), format!("[{}]", items.join(", ")));
            let after = CommandLine {
                command: program,
                args: words,
            };
            (own, args, after)
        }
    };
    let mut edits = vec![own, args];
    edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
    (edits, after)
}

/// Returns the edit that takes the arguments up to `last` away.
fn without(
    text: &str,
    syntax: Syntax,
    command: &Command<'_>,
    list: &Value,
    elements: &[Value],
    last: usize,
) -> Edit {
    let start = elements[0].range.start;
    if let Some(next) = elements.get(last + 1) {
        return Edit::new(start..next.range.start, "");
    }
    let end = elements[last].range.end;
    let place = &command.member.value.range;
    let items = &text[start..end];
    let added = added_args(&args_key(text, syntax, command.member), items);
    if text[place.end..].starts_with(&added) && place.end + added.len() == list.range.end {
        return Edit::new(place.end..list.range.end, "");
    }
    // A comma after the last one has nothing left to end.
    let after = text[end..].trim_start();
    let end = match after.strip_prefix(',') {
        Some(rest) => text.len() - rest.len(),
        None => end,
    };
    Edit::new(start..end, "")
}

/// Returns what separates elements of a list whose first one stands at `at`: a line each, if that
/// one has a line of its own.
fn between_elements(text: &str, at: usize) -> String {
    match own_line(text, at) {
        Some(indent) => format!(",{}{indent}", line_end(text)),
        None => ", ".to_owned(),
    }
}

/// Returns what stands between a command and the arguments that are put behind it.
fn args_key(text: &str, syntax: Syntax, command: &Member) -> String {
    let end = line_end(text);
    match (syntax, own_line(text, command.start)) {
        (Syntax::Jsonc, Some(indent)) => format!(",{end}{indent}\"args\": "),
        (Syntax::Jsonc, None) => ", \"args\": ".to_owned(),
        (Syntax::Toml, Some(indent)) => format!("{end}{indent}args = "),
        (Syntax::Toml, None) => {
            let start = text[..command.start].rfind('\n').map_or(0, |at| at + 1);
            let before = &text[start..command.start];
            if before.contains('{') {
                ", args = ".to_owned()
            } else {
                // `mcp_servers.files.command`
                format!("{end}{before}args = ")
            }
        }
    }
}

/// Returns the blanks before a place, if its line has nothing else before it.
fn own_line(text: &str, at: usize) -> Option<&str> {
    let start = text[..at].rfind('\n').map_or(0, |at| at + 1);
    let before = &text[start..at];
    let is_blank = before.chars().all(|c| c == ' ' || c == '\t');
    is_blank.then_some(before)
}

fn line_end(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

/// Returns a text in quotes, in a form that JSON and TOML have in common.
fn quoted(text: &str) -> String {
    let json = serde_json::to_string(text).expect("a text has a form in JSON");
    json.replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests;
