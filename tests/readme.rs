//! What the documents show is what happens: every console block is run, every configuration read.
//!
//! A `console` block is a session in a POSIX shell. `$ ` begins a command and `> ` continues it;
//! what follows is what it prints, stdout first, then stderr. `[..]` stands for any text within a
//! line and a line `...` for any lines; `? N` right after a command says that it ends with code N
//! instead of 0. The blocks of one document share a folder, in their order, so they tell a story.
//!
//! A runner of its own, since a story over several blocks in one folder is what trycmd does not do.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends at the first thing that can't be done"
)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Returns every document: README.md and its like, and those under docs/.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for folder in [root.to_owned(), root.join("docs")] {
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A fenced block of one language.
struct Block {
    /// The line in the document of its first line, from 1.
    line: usize,
    lines: Vec<String>,
}

fn blocks(document: &Path, language: &str) -> Vec<Block> {
    let text = std::fs::read_to_string(document).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<(bool, Block)> = None;
    for (index, line) in text.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(info)) => {
                let block = Block {
                    line: index + 2,
                    lines: Vec::new(),
                };
                open = Some((info.trim() == language, block));
            }
            (Some(_), Some(_)) => {
                let (is_wanted, block) = open.take().unwrap();
                if is_wanted {
                    blocks.push(block);
                }
            }
            (Some((_, block)), None) => block.lines.push(line.to_owned()),
            (None, None) => {}
        }
    }
    assert!(
        open.is_none(),
        "{}: a block is not closed",
        document.display()
    );
    blocks
}

/// One command of a console block, and what it is to print.
struct Step {
    line: usize,
    script: String,
    code: i32,
    expected: Vec<String>,
}

fn steps(block: &Block) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (index, line) in block.lines.iter().enumerate() {
        let is_fresh = steps.last().is_some_and(|step| step.expected.is_empty());
        if let Some(script) = line.strip_prefix("$ ") {
            steps.push(Step {
                line: block.line + index,
                script: script.to_owned(),
                code: 0,
                expected: Vec::new(),
            });
            continue;
        }
        let step = steps
            .last_mut()
            .unwrap_or_else(|| panic!("line {}: a console block begins with '$ '", block.line));
        if let (true, Some(more)) = (is_fresh, line.strip_prefix("> ")) {
            step.script.push('\n');
            step.script.push_str(more);
        } else if let (true, Some(code)) = (is_fresh, line.strip_prefix("? ")) {
            step.code = code.parse().unwrap();
        } else {
            step.expected.push(line.clone());
        }
    }
    steps
}

/// Tells whether one line is what a pattern with `[..]` says.
fn fits_line(pattern: &str, line: &str) -> bool {
    match pattern.split_once("[..]") {
        None => pattern == line,
        Some((start, rest)) => line.strip_prefix(start).is_some_and(|line| {
            let mut ends = (0..=line.len()).filter(|end| line.is_char_boundary(*end));
            ends.any(|end| fits_line(rest, &line[end..]))
        }),
    }
}

/// Tells whether lines are what patterns say, `...` being any number of them.
fn fits(patterns: &[String], lines: &[&str]) -> bool {
    match patterns.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=lines.len()).any(|skipped| fits(rest, &lines[skipped..]))
        }
        Some((first, rest)) => lines
            .split_first()
            .is_some_and(|(line, lines)| fits_line(first, line) && fits(rest, lines)),
    }
}

/// A folder in which a document's commands are run.
struct Sandbox(tempfile::TempDir);

impl Sandbox {
    fn shell(&self, script: &str) -> Command {
        let program = assert_cmd::cargo::cargo_bin!("checkpoint");
        let mut path = OsString::from(program.parent().unwrap());
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script])
            .current_dir(self.0.path())
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.0.path())
            .env("TMPDIR", self.0.path())
            .env("USER", "ann")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, document: &Path, step: &Step) {
        let place = format!("{}:{}: $ {}", document.display(), step.line, step.script);
        let ran = self.shell(&step.script).output().unwrap();
        let mut text = String::from_utf8(ran.stdout).unwrap();
        text.push_str(&String::from_utf8(ran.stderr).unwrap());
        assert_eq!(ran.status.code(), Some(step.code), "{place}\n{text}");
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert!(
            fits(&step.expected, &lines),
            "{place}\nshould print\n{}\nbut prints\n{text}",
            step.expected.join("\n"),
        );
    }
}

#[test]
fn every_console_block_does_what_it_shows() {
    let mut count = 0;
    for document in documents() {
        let sandbox = Sandbox(tempfile::tempdir().unwrap());
        for block in blocks(&document, "console") {
            for step in steps(&block) {
                sandbox.run(&document, &step);
                count += 1;
            }
        }
    }
    assert!(count >= 10, "only {count} commands were found");
}

#[test]
fn every_configuration_is_json_whose_flags_are_known() {
    let sandbox = Sandbox(tempfile::tempdir().unwrap());
    let mut count = 0;
    for document in documents() {
        for block in blocks(&document, "json") {
            let place = format!("{}:{}", document.display(), block.line);
            let value: Value = serde_json::from_str(&block.lines.join("\n"))
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            count += check_commands(&value, &sandbox, &place);
        }
    }
    assert!(count >= 3, "only {count} configurations were found");
}

/// Asks the binary whether it knows the flags of each `checkpoint` command in a configuration.
fn check_commands(value: &Value, sandbox: &Sandbox, place: &str) -> usize {
    let inner = match value {
        Value::Object(members) => members.values().collect(),
        Value::Array(elements) => elements.iter().collect(),
        _ => Vec::new(),
    };
    let count: usize = inner
        .into_iter()
        .map(|inner| check_commands(inner, sandbox, place))
        .sum();
    if value["command"] != "checkpoint" {
        return count;
    }
    let words: Vec<&str> = value["args"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|word| word.as_str().unwrap())
        .collect();
    // With `--version` everything is parsed and nothing is started.
    let ran = sandbox
        .shell("checkpoint --version \"$@\"")
        .arg("sh")
        .args(words)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{place}: {ran:?}");
    count + 1
}

#[test]
fn links_lead_somewhere() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for part in text.split("](").skip(1) {
            let target = part.split([')', '#']).next().unwrap();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let path = document.parent().unwrap().join(target);
            assert!(path.exists(), "{}: no {target}", document.display());
        }
    }
}

#[test]
fn patterns() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(fits_line("a[..]c[..]", "abbbcd"));
    assert!(!fits_line("a[..]c", "abcd"));
    assert!(fits(&lines("a\n...\nd"), &["a", "b", "c", "d"]));
    assert!(fits(&lines("...\na"), &["a"]));
    assert!(!fits(&lines("a\n..."), &["b"]));
}
