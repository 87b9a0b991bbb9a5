//! `checkpoint policy` and `--policy` from outside, and the page about policies.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends at the first thing that can't be done"
)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use checkpoint::rules::policy::{FIELDS, Policy, PolicySet, ThreadId};

const PAGE: &str = include_str!("../docs/policies.md");

/// What a run of the binary did.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn run(args: &[&str]) -> Ran {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("checkpoint"))
        .args(args)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Ran {
        code: output.status.code().expect("no signal ended it"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A policy file in a folder of its own.
struct Fixture {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Fixture {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.toml");
        std::fs::write(&path, text).unwrap();
        Self { folder, path }
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

/// Compares with `fixtures/help/NAME.txt`; `CHECKPOINT_BLESS=1` writes it instead.
#[track_caller]
fn assert_help(name: &str, args: &[&str]) {
    let ran = run(args);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/help")
        .join(name)
        .with_extension("txt");
    if std::env::var_os("CHECKPOINT_BLESS").is_some() {
        std::fs::write(&path, &ran.stdout).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        ran.stdout, golden,
        "fixtures/help/{name}.txt differs; CHECKPOINT_BLESS=1 rewrites it"
    );
}

#[test]
fn help_texts() {
    assert_help("policy-check", &["policy", "check", "--help"]);
    assert_help("policy-schema", &["policy", "schema", "--help"]);
}

#[test]
fn a_good_file_is_ok() {
    let file = Fixture::new("[defaults]\nmax_attempts = 2\n[tools.\"read_*\"]\njournal = false\n");
    let ran = run(&["policy", "check", file.path()]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(
        ran.stdout,
        format!("{}: ok, 1 table of tools\n", file.path())
    );
}

#[test]
fn the_merged_policy_of_a_tool_can_be_put_back_into_a_file() {
    let file = Fixture::new(
        "[defaults]\nmax_attempts = 2\n[tools.pay]\nkey = \"p:{id}\"\nwindow = \"journal\"\n",
    );
    let ran = run(&["policy", "check", file.path(), "--tool", "pay"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let (head, lines) = ran.stdout.split_once("by [tools.pay]:\n").unwrap();
    assert!(head.ends_with("\npay, "), "{head}");
    let again = PolicySet::parse(&format!("[tools.pay]\n{lines}"), ThreadId::Given).unwrap();
    let text = std::fs::read_to_string(&file.path).unwrap();
    let first = PolicySet::parse(&text, ThreadId::Given).unwrap();
    assert_eq!(again.for_tool("pay"), first.for_tool("pay"));

    let ran = run(&["policy", "check", file.path(), "--tool", "other", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(ran.stdout.starts_with("{\n  \"schema_version\": 1"));
    assert_eq!(json["tool"]["table"], serde_json::Value::Null);
    assert_eq!(json["tool"]["policy"]["max_attempts"], 2);
    assert_eq!(json["tables"], serde_json::json!(["pay"]));
}

#[test]
fn a_bad_file_is_a_usage_error_that_names_all_that_is_wrong() {
    let file = Fixture::new("[tools.pay]\nkey = \"args\"\n\nmax-attempts = 1\ntimeout = 60\n");
    let path = file.path();
    let lines = [
        format!("checkpoint: error: {path}:2: tools.pay.key: expected window = \"run\", "),
        format!(
            "      {path}:4: tools.pay.max-attempts: unknown field; did you mean max_attempts?"
        ),
        format!("      {path}:5: tools.pay.timeout: expected a string like \"250ms\", "),
    ];
    // The proxy refuses it as the check does, and starts nothing.
    let started = file.folder.path().join("started");
    let upstream = format!("touch {}", started.display());
    let journal = file.folder.path().join("run.db");
    for args in [
        &["policy", "check", path][..],
        &[
            "--policy",
            path,
            "--journal",
            journal.to_str().unwrap(),
            "--upstream-cmd",
            &upstream,
        ],
    ] {
        let ran = run(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args:?}");
        for line in &lines {
            let is_there = ran
                .stderr
                .lines()
                .any(|shown| shown.starts_with(line.as_str()));
            assert!(is_there, "no {line} in {}", ran.stderr);
        }
    }
    assert!(!started.exists() && !journal.exists());
}

#[test]
fn a_file_that_can_not_be_read_is_a_usage_error() {
    let file = Fixture::new("");
    let folder = file.folder.path().to_str().unwrap().to_owned();
    let none = format!("{folder}/none.toml");
    std::fs::write(file.folder.path().join("binary"), b"\xff\xfe").unwrap();
    let binary = format!("{folder}/binary");
    std::fs::write(file.folder.path().join("large"), vec![b'#'; (1 << 20) + 1]).unwrap();
    let large = format!("{folder}/large");
    for path in [&none, &folder, &binary, &large] {
        let ran = run(&["policy", "check", path]);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{path}");
        let head = format!("checkpoint: error: the policy file {path} can't be read: ");
        assert!(ran.stderr.starts_with(&head), "{}", ran.stderr);
    }
    assert_eq!(run(&["policy", "check"]).code, 2);
    assert_eq!(run(&["policy"]).code, 2);
    assert_eq!(run(&["policy", "check", ""]).code, 2);
}

#[test]
fn a_journals_tools_without_a_table_are_listed() {
    let file = Fixture::new("[tools.pay]\ntimeout = \"1s\"\n");
    let journal = file.folder.path().join("run.db");
    let journal = journal.to_str().unwrap();
    let ledger = file.folder.path().join("ledger");
    let binary = assert_cmd::cargo::cargo_bin!("checkpoint");
    let mut proxy = Command::new(binary)
        .args(["--journal", journal, "--"])
        .arg(binary)
        .args(["demo", "upstream"])
        .arg(&ledger)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let call = |id: u32, tool: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}"}}}}"#
        )
    };
    let calls = [
        call(1, "wipe"),
        call(2, "pay"),
        call(3, "charge"),
        call(4, "wipe"),
    ];
    let mut stdin = proxy.stdin.take().unwrap();
    stdin
        .write_all((calls.join("\n") + "\n").as_bytes())
        .unwrap();
    drop(stdin);
    assert!(proxy.wait().unwrap().success());

    let ran = run(&["policy", "check", file.path(), "--journal", journal]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(
        ran.stdout,
        format!(
            "{}: ok, 1 table of tools\n\nTools in the journal that no table speaks for:\n  \
             charge\n  wipe\n",
            file.path()
        )
    );
    let none = format!("{journal}.none");
    let ran = run(&["policy", "check", file.path(), "--journal", &none]);
    assert_eq!((ran.code, ran.stdout.as_str()), (5, ""), "{}", ran.stderr);
    assert!(!Path::new(&none).exists());
}

#[test]
fn the_schema_is_printed_as_it_is() {
    let ran = run(&["policy", "schema"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let schema: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let fields = &schema["definitions"]["policy"]["properties"];
    assert_eq!(fields.as_object().unwrap().len(), FIELDS.len());
}

/// The blocks of the page that are policy files.
fn examples() -> Vec<&'static str> {
    PAGE.split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

#[test]
fn the_examples_of_the_page_are_policies() {
    assert!(examples().len() >= 9);
    for example in examples() {
        if let Err(errors) = PolicySet::parse(example, ThreadId::Given) {
            panic!("{errors:?} in\n{example}");
        }
    }
}

#[test]
fn the_page_has_every_field_with_its_default() {
    for field in FIELDS {
        let default = match (field.show)(&Policy::default()) {
            None => "none".to_owned(),
            Some(value) => format!("`{value}`"),
        };
        let row = format!("\n| `{}` | {default} | ", field.name);
        assert!(PAGE.contains(&row), "docs/policies.md has no row {row}");
        // Every word that a field takes is explained.
        let at = PAGE.find(&row).unwrap();
        let line = PAGE[at + 1..].lines().next().unwrap();
        for word in field.words {
            let is_there = line.contains(&format!("\"{word}\"")) || field.name == "on_tool_error";
            assert!(is_there, "{}: {word} is not on {line}", field.name);
        }
    }
}

#[test]
fn the_names_of_verdicts_on_the_page_are_those_that_are_read() {
    use checkpoint::proxy::reconcile::{Unclear, Verdict, read_verdict};
    let shown: Vec<_> = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("    {\"verdict\""))
        .map(|rest| read_verdict(format!("{{\"verdict\"{rest}").as_bytes()))
        .collect();
    assert!(matches!(
        &shown[..],
        [
            Verdict::Completed { .. },
            Verdict::NotExecuted,
            Verdict::Unknown(Unclear::Said)
        ]
    ));
}
