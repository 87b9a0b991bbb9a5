//! `checkpoint policy check FILE`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::cli::error::CliError;
use crate::cli::escape::escape;
use crate::cli::exit::Exit;
use crate::cli::output::{Output, SCHEMA_VERSION};
use crate::cli::{FormArgs, policy_file, proxy_args, reading, values};
use crate::rules::policy::{FIELDS, Policy, PolicySet, ThreadId};

/// Check a policy file whole, as the proxy does before it starts
///
/// Ends with code 2 if anything in it can't be used; each error has its line, its field and what
/// was expected. Nothing is started and no journal is changed.
#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// Policy file, in TOML
    #[arg(value_name = "FILE", value_parser = proxy_args::path())]
    file: PathBuf,

    /// Print the policy of this tool, merged with the defaults
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,

    /// List the tools in this journal that no table of the file speaks for
    #[arg(long, value_name = "PATH", value_parser = proxy_args::path())]
    journal: Option<PathBuf>,

    #[command(flatten)]
    form: FormArgs,
}

/// The JSON document of `policy check`.
#[derive(Serialize)]
struct Report {
    schema_version: u32,
    file: String,
    /// The names of the tables of tools, in the order in which they are tried.
    tables: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<ToolReport>,
    /// Tools of the journal that only `[defaults]` speaks for; `None` without a journal.
    #[serde(skip_serializing_if = "Option::is_none")]
    tools_without_table: Option<Vec<String>>,
}

#[derive(Serialize)]
struct ToolReport {
    name: String,
    /// The table that speaks for it; `None` for the defaults.
    table: Option<String>,
    policy: Map<String, Value>,
    #[serde(skip)]
    lines: String,
}

pub(super) fn run(args: &CheckArgs) -> Result<Exit, CliError> {
    let set = policy_file::read(&args.file, ThreadId::Unasked)?;
    let tools = match &args.journal {
        None => None,
        Some(path) => {
            let path = values::parse_journal(path.clone()).map_err(|why| {
                CliError::usage(format!(
                    "invalid value '{}' for '--journal'",
                    path.display()
                ))
                .because(why)
            })?;
            Some(reading::open(&path)?.tools().map_err(reading::unusable)?)
        }
    };
    let report = report(&args.file, &set, args.tool.as_deref(), tools);
    Output::plain().document(args.form.form(), &report, |_| text(&report))?;
    Ok(Exit::Ok)
}

fn report(
    file: &Path,
    set: &PolicySet,
    tool: Option<&str>,
    tools: Option<BTreeSet<String>>,
) -> Report {
    Report {
        schema_version: SCHEMA_VERSION,
        file: file.to_string_lossy().into_owned(),
        tables: set.tables().map(|(name, _)| name.to_owned()).collect(),
        tool: tool.map(|name| {
            let policy = set.for_tool(name);
            ToolReport {
                name: name.to_owned(),
                table: set.table_of(name).map(str::to_owned),
                policy: as_json(policy),
                lines: policy.to_toml(),
            }
        }),
        tools_without_table: tools.map(|tools| {
            tools
                .into_iter()
                .filter(|tool| !set.is_explicit(tool))
                .collect()
        }),
    }
}

fn as_json(policy: &Policy) -> Map<String, Value> {
    FIELDS
        .iter()
        .filter_map(|field| Some((field.name.to_owned(), (field.show)(policy)?)))
        .collect()
}

fn text(report: &Report) -> String {
    let mut text = match report.tables.len() {
        1 => format!("{}: ok, 1 table of tools\n", escape(&report.file)),
        count => format!("{}: ok, {count} tables of tools\n", escape(&report.file)),
    };
    if let Some(tool) = &report.tool {
        let by = match &tool.table {
            Some(table) => format!("[tools.{}]", key(table)),
            None => "[defaults]; no table speaks for it".to_owned(),
        };
        let _ = writeln!(text, "\n{}, by {by}:", escape(&tool.name));
        for line in tool.lines.lines() {
            let _ = writeln!(text, "  {line}");
        }
    }
    match report.tools_without_table.as_deref() {
        None => {}
        Some([]) => text.push_str("\nA table speaks for every tool in the journal.\n"),
        Some(tools) => {
            text.push_str("\nTools in the journal that no table speaks for:\n");
            for tool in tools {
                let _ = writeln!(text, "  {}", escape(tool));
            }
        }
    }
    text
}

/// Returns a table's name as it stands in the file.
fn key(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.chars().all(is_plain) {
        name.to_owned()
    } else {
        crate::json::quote(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> PolicySet {
        PolicySet::parse(
            "[defaults]\nmax_attempts = 2\n[tools.\"read_*\"]\njournal = false\n\
             [tools.charge]\nkey = \"c:{id}\"\nwindow = \"run\"",
            ThreadId::Unasked,
        )
        .unwrap()
    }

    fn shown(tool: Option<&str>, tools: Option<&[&str]>) -> String {
        let tools = tools.map(|tools| tools.iter().map(|&tool| tool.to_owned()).collect());
        text(&report(Path::new("p.toml"), &set(), tool, tools))
    }

    #[test]
    fn a_tool_is_shown_with_the_table_that_speaks_for_it() {
        let text = shown(Some("charge"), None);
        let head = "p.toml: ok, 2 tables of tools\n\ncharge, by [tools.charge]:\n  journal = true\n  \
                    key = \"c:{id}\"\n  window = \"run\"\n  delivery = \"at-most-once\"\n  \
                    max_attempts = 2\n";
        assert!(text.starts_with(head), "{text}");
        let text = shown(Some("read_x"), None);
        assert!(text.contains("\nread_x, by [tools.\"read_*\"]:\n  journal = false\n"));
        let text = shown(Some("a\u{1b}"), None);
        assert!(
            text.contains("\na\\u{1b}, by [defaults]; no table speaks for it:\n"),
            "{text}"
        );
    }

    #[test]
    fn tools_without_a_table_are_listed_once() {
        let tools = Some(&["send", "charge", "read_x", "delete", "send"][..]);
        assert_eq!(
            shown(None, tools),
            "p.toml: ok, 2 tables of tools\n\n\
             Tools in the journal that no table speaks for:\n  delete\n  send\n"
        );
        assert!(shown(None, Some(&["charge"])).ends_with("every tool in the journal.\n"));
    }

    #[test]
    fn the_document_names_fields_as_the_file_does() {
        let report = report(
            Path::new("p.toml"),
            &set(),
            Some("charge"),
            Some(BTreeSet::new()),
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["tables"], serde_json::json!(["charge", "read_*"]));
        assert_eq!(json["tool"]["table"], "charge");
        assert_eq!(json["tool"]["policy"]["key"], "c:{id}");
        assert_eq!(json["tool"]["policy"]["redeliver_within"], "15m");
        assert_eq!(json["tools_without_table"], serde_json::json!([]));
    }
}
