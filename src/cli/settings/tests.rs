use clap::{Args as _, FromArgMatches as _};

use super::*;
use crate::cli::exit::Exit;

/// Resolves a command line (without the program's name) under the given variables.
fn given(args: &[&str], env: &[(&str, &str)]) -> Result<ProxySettings, CliError> {
    with(resolve, args, env)
}

/// As [`given`], with flags that this version reads and does not act on yet.
fn given_all(args: &[&str], env: &[(&str, &str)]) -> Result<ProxySettings, CliError> {
    with(resolve, args, env)
}

fn with(
    resolve: fn(ProxyArgs, LogSettings, Env<'_>) -> Result<ProxySettings, CliError>,
    args: &[&str],
    env: &[(&str, &str)],
) -> Result<ProxySettings, CliError> {
    let command = ProxyArgs::augment_args(clap::Command::new("checkpoint"))
        .disable_version_flag(true)
        .no_binary_name(true);
    let matches = command
        .try_get_matches_from(args)
        .unwrap_or_else(|error| panic!("clap refuses: {error}"));
    let args = ProxyArgs::from_arg_matches(&matches).unwrap();
    resolve(args, LogSettings::default(), &|name: &str| {
        let set = env.iter().find(|(key, _)| *key == name);
        set.map(|(_, value)| OsString::from(value))
    })
}

fn refused(args: &[&str], env: &[(&str, &str)]) -> String {
    let error = given(args, env).expect_err("it was accepted");
    assert_eq!(error.exit(), Exit::Usage);
    error.to_string()
}

/// A command line, variables, and what is said about them.
type Row = (
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
    &'static str,
);

#[test]
fn defaults() {
    let settings = given(&["--", "npx", "-y", "s", "--version"], &[]).unwrap();
    assert_eq!(
        settings,
        ProxySettings {
            upstream: UpstreamCommand::Argv(
                ["npx", "-y", "s", "--version"].map(OsString::from).to_vec()
            ),
            journal: None,
            workflow_id: None,
            run_id: None,
            thread_id: None,
            policies: PolicySet::default(),
            on_divergence: OnDivergence::Strict,
            resume: false,
            max_calls: None,
            supersede: false,
            trust_annotations: false,
            durability: Durability::Full,
            redact_args: false,
            identity: Some(Identity {
                name: "checkpoint".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            }),
            refusals: Refusals::Auto,
            annotate: false,
            call_timeout: None,
            drain_timeout: Duration::from_secs(30),
            max_message_bytes: 64 << 20,
            call_id_from: CallIdFrom::Auto,
            on_in_doubt: OnInDoubt::Continue,
            log: LogSettings::default(),
        }
    );
}

#[test]
fn everything_set() {
    let settings = given(
        &[
            "--upstream-cmd",
            "a && b",
            "--journal",
            "d/run.db",
            "--workflow-id",
            "w",
            "--trust-annotations",
            "--redact-args-in-journal",
            "--on-divergence",
            "strict",
            "--name",
            "n",
            "--version=9.9",
            "--refusals",
            "result",
            "--annotate",
            "--call-timeout",
            "250ms",
            "--drain-timeout",
            "0s",
            "--max-message-bytes",
            "1MiB",
            "--call-id-from",
            "vscode.requestId",
            "--on-in-doubt",
            "exit",
        ],
        &[],
    )
    .unwrap();
    assert_eq!(
        settings.upstream,
        UpstreamCommand::Shell("a && b".to_owned())
    );
    assert_eq!(settings.journal, Some("d/run.db".into()));
    assert_eq!(settings.workflow_id.as_deref(), Some("w"));
    assert!(settings.trust_annotations && settings.redact_args && settings.annotate);
    let identity = settings.identity.unwrap();
    assert_eq!(
        (identity.name.as_str(), identity.version.as_str()),
        ("n", "9.9")
    );
    assert_eq!(settings.refusals, Refusals::Result);
    assert_eq!(settings.call_timeout, Some(Duration::from_millis(250)));
    assert_eq!(settings.drain_timeout, Duration::ZERO);
    assert_eq!(settings.max_message_bytes, 1 << 20);
    assert_eq!(
        settings.call_id_from,
        CallIdFrom::Key("vscode.requestId".to_owned())
    );
    assert_eq!(settings.on_in_doubt, OnInDoubt::Exit);
}

#[test]
fn the_environment_is_second() {
    let env = [
        ("CHECKPOINT_UPSTREAM_CMD", "from env"),
        ("CHECKPOINT_JOURNAL", "env.db"),
        ("CHECKPOINT_WORKFLOW_ID", "env-w"),
    ];
    let settings = given(&[], &env).unwrap();
    assert_eq!(
        settings.upstream,
        UpstreamCommand::Shell("from env".to_owned())
    );
    assert_eq!(settings.journal, Some("env.db".into()));
    assert_eq!(settings.workflow_id.as_deref(), Some("env-w"));

    let settings = given(
        &["--journal", "arg.db", "--workflow-id", "arg-w", "--", "p"],
        &env,
    )
    .unwrap();
    assert_eq!(settings.upstream, UpstreamCommand::Argv(vec!["p".into()]));
    assert_eq!(settings.journal, Some("arg.db".into()));
    assert_eq!(settings.workflow_id.as_deref(), Some("arg-w"));

    // What loses is not looked at.
    given(&["--", "p"], &[("CHECKPOINT_UPSTREAM_CMD", "")]).unwrap();
    let log = log_level(Some(LogLevel::Info), &|_: &str| Some("loud".into())).unwrap();
    assert_eq!(log, LogLevel::Info);
}

#[test]
fn refusals_name_the_place_the_value_and_what_was_expected() {
    let long = "x".repeat(513);
    let rows: &[Row] = &[
        (
            &[],
            &[],
            "no upstream was given: neither '--upstream-cmd <CMD>' nor '-- <PROGRAM>'",
        ),
        (
            &["--upstream-cmd", "a", "--", "b"],
            &[],
            "'--upstream-cmd <CMD>' can't be used with '-- <PROGRAM>'",
        ),
        (&["--", ""], &[], "the program after '--' is empty"),
        (
            &["--upstream-cmd", " "],
            &[],
            "invalid value ' ' for '--upstream-cmd <CMD>': expected a command that is not empty",
        ),
        (
            &[],
            &[("CHECKPOINT_UPSTREAM_CMD", "")],
            "invalid value '' of the environment variable CHECKPOINT_UPSTREAM_CMD: \
             expected a command that is not empty",
        ),
        (
            &["--journal", "", "--", "p"],
            &[],
            "invalid value '' for '--journal <PATH>': expected the path of a file",
        ),
        (
            &["--", "p"],
            &[("CHECKPOINT_JOURNAL", ":memory:")],
            "invalid value ':memory:' of the environment variable CHECKPOINT_JOURNAL: \
             expected the path of a file, not an SQLite name or URI",
        ),
        (
            &["--workflow-id", "", "--", "p"],
            &[],
            "invalid value '' for '--workflow-id <ID>': expected an id that is not empty",
        ),
        (
            &["--redact-args-in-journal", "--", "p"],
            &[],
            "--redact-args-in-journal needs a journal",
        ),
        (
            &["--version", "ls", "--", "p"],
            &[],
            "invalid value 'ls' for '--version <VERSION>': that is a command, not a version",
        ),
        (
            &["--version", "", "--", "p"],
            &[],
            "invalid value '' for '--version <VERSION>': expected text that is not empty",
        ),
        (
            &["--keep-identity", "--name", "n", "--", "p"],
            &[],
            "--keep-identity can't be used with --name",
        ),
        (
            &["--keep-identity", "--version", "1", "--", "p"],
            &[],
            "--keep-identity can't be used with --version",
        ),
    ];
    for (args, env, expected) in rows {
        assert_eq!(&refused(args, env), expected);
    }
    let refusal = refused(&["--workflow-id", &long, "--", "p"], &[]);
    assert!(
        refusal.ends_with("expected at most 512 bytes, not 513"),
        "{refusal}"
    );
    let error = log_level(None, &|_: &str| Some("loud".into())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid value 'loud' of the environment variable CHECKPOINT_LOG: \
         expected off, error, warn, info, debug or trace"
    );
}

#[test]
fn the_upstreams_own_identity_can_be_kept() {
    assert_eq!(
        given(&["--keep-identity", "--", "p"], &[])
            .unwrap()
            .identity,
        None
    );
}

#[test]
fn policies_runs_and_limits_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    std::fs::write(&path, "[tools.pay]\nkey = \"args\"\nwindow = \"thread\"\n").unwrap();
    let path = path.to_str().unwrap();
    let settings = given_all(
        &[
            "--journal",
            "j",
            "--policy",
            path,
            "--run-id",
            "r",
            "--thread-id",
            "t",
            "--max-calls",
            "3",
            "--supersede",
            "--resume",
            "--on-divergence",
            "fork",
            "--",
            "p",
        ],
        &[],
    )
    .unwrap();
    assert!(settings.policies.is_explicit("pay") && !settings.policies.is_explicit("x"));
    assert_eq!(settings.run_id.as_deref(), Some("r"));
    assert_eq!(settings.thread_id.as_deref(), Some("t"));
    assert_eq!(settings.max_calls, Some(3));
    assert!(settings.supersede && settings.resume);
    assert_eq!(settings.on_divergence, OnDivergence::Fork);

    let env = [
        ("CHECKPOINT_POLICY", path),
        ("CHECKPOINT_RUN_ID", "r"),
        ("CHECKPOINT_THREAD_ID", "t"),
    ];
    let settings = given_all(&["--", "p"], &env).unwrap();
    assert!(settings.policies.is_explicit("pay"));
    assert_eq!(settings.run_id.as_deref(), Some("r"));
    // What loses is not looked at.
    let args = ["--policy", path, "--thread-id", "t", "--", "p"];
    given_all(&args, &[("CHECKPOINT_POLICY", "/none")]).unwrap();

    let shown = |args: &[&str], env: &[(&str, &str)]| given_all(args, env).unwrap_err().to_string();
    assert_eq!(
        shown(&["--policy", path, "--", "p"], &[]),
        format!(
            "{path}:3: tools.pay.window: expected a thread id for \"thread\": --thread-id ID, \
             or CHECKPOINT_THREAD_ID"
        )
    );
    assert!(
        shown(&["--", "p"], &[("CHECKPOINT_POLICY", "/none/p.toml")])
            .starts_with("the policy file /none/p.toml can't be read: ")
    );
    assert_eq!(
        shown(&["--policy", "", "--", "p"], &[]),
        "expected the path of a policy file, not ''"
    );
    assert_eq!(
        shown(&["--run-id", "", "--", "p"], &[]),
        "invalid value '' for '--run-id <ID>': expected an id that is not empty"
    );
    assert_eq!(
        shown(&["--", "p"], &[("CHECKPOINT_THREAD_ID", "")]),
        "invalid value '' of the environment variable CHECKPOINT_THREAD_ID: \
         expected an id that is not empty"
    );
}

#[test]
fn a_flag_about_durability_wins_over_the_variable() {
    let settings = |args: &[&str], value: &'static str| {
        let args = [args, &["--journal", "j", "--", "p"]].concat();
        given(&args, &[("CHECKPOINT_DURABILITY", value)])
    };
    let durability = |args: &[&str], value| settings(args, value).unwrap().durability;
    assert_eq!(durability(&[], "deferred"), Durability::Deferred);
    assert_eq!(durability(&[], "full"), Durability::Full);
    let full: &[&str] = &["--durability", "full"];
    assert_eq!(durability(full, "deferred"), Durability::Full);
    let deferred: &[&str] = &["--durability", "deferred"];
    assert_eq!(durability(deferred, "neither"), Durability::Deferred);
    assert_eq!(
        settings(&[], "Deferred").unwrap_err().to_string(),
        "invalid value 'Deferred' of the environment variable CHECKPOINT_DURABILITY: \
         expected full or deferred"
    );
}

#[test]
fn what_needs_a_journal_says_so() {
    let flags: &[&[&str]] = &[
        &["--durability", "deferred"],
        &["--redact-args-in-journal"],
        &["--resume"],
        &["--on-divergence", "fork"],
        &["--max-calls", "3"],
        &["--supersede"],
    ];
    for flag in flags {
        let refusal = given_all(&[flag, &["--", "p"][..]].concat(), &[]).unwrap_err();
        let name = match flag[0] {
            "--durability" => "--durability deferred",
            "--on-divergence" => "--on-divergence fork",
            name => name,
        };
        assert_eq!(refusal.to_string(), format!("{name} needs a journal"));
        given_all(
            &[flag, &["--", "p"][..]].concat(),
            &[("CHECKPOINT_JOURNAL", "j")],
        )
        .unwrap();
    }
    given_all(&["--on-divergence", "strict", "--", "p"], &[]).unwrap();
}
