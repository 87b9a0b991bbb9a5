use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::guard::story::Story;
use crate::guard::verdict::{Act, Deed, Owner, Ruling};
use crate::journal::{Durability, Journal as _, JournalError, Transaction as _};
use crate::proxy::group::group_alive_at;
use crate::rules::entry::Status;
use crate::rules::ids::{BranchId, Fence, HeldKey, Micros, Seq, SessionId, Window};
use crate::rules::policy::{PolicySet, ReconcileBy, ThreadId};
use crate::rules::signature::{Scheme, Signature};

const PATIENCE: Duration = Duration::from_secs(60);

fn asked(command: &[&str], entry: &[u8], timeout: Duration) -> Answer {
    let command: Vec<_> = command.iter().map(|&word| word.to_owned()).collect();
    ask(&Question {
        command: &command,
        entry,
        timeout,
        result_bytes_max: 1 << 20,
    })
}

fn shell(script: &str) -> Answer {
    asked(&["/bin/sh", "-c", script], b"{}", PATIENCE)
}

#[test]
fn verdicts_are_read_exactly() {
    let completed = |result: &str| Verdict::Completed {
        result: result.as_bytes().to_vec(),
    };
    for (printed, expected) in [
        (
            r#"{"verdict":"completed","result":{"content":[]}}"#,
            completed(r#"{"content":[]}"#),
        ),
        (
            " {\"result\": {\n \"n\": 1.0,\r\n\"big\": 12345678901234567890},\n\"verdict\": \"completed\", \"by\": 1 }\n",
            completed(r#"{  "n": 1.0,  "big": 12345678901234567890}"#),
        ),
        (r#"{"verdict":"not_executed"}"#, Verdict::NotExecuted),
        (
            r#"{"verdict":"not_executed","result":null}"#,
            Verdict::NotExecuted,
        ),
        (
            r#"{"verdict":"unknown","result":{}}"#,
            Verdict::Unknown(Unclear::Said),
        ),
    ] {
        assert_eq!(read_verdict(printed.as_bytes()), expected, "{printed}");
    }
    for unclear in [
        "",
        "not_executed",
        "\"not_executed\"",
        "[]",
        "{}",
        r#"{"verdict":"completed"}"#,
        r#"{"verdict":"completed","result":"done"}"#,
        r#"{"verdict":"completed","result":null}"#,
        r#"{"verdict":"not_executed","result":{}}"#,
        r#"{"verdict":"NOT_EXECUTED"}"#,
        r#"{"verdict":"not_executed "}"#,
        r#"{"Verdict":"not_executed"}"#,
        r#"{"verdict":true}"#,
        r#"{"verdict":"not_executed"} {"verdict":"completed"}"#,
        r#"{"verdict":"not_executed","verdict":"not_executed"}"#,
        r#"{"verdict":"not_executed","verdict":"completed","result":{}}"#,
        "log line\n{\"verdict\":\"not_executed\"}",
        "\u{feff}{\"verdict\":\"not_executed\"}",
        r#"{"verdict":"not_executed""#,
    ] {
        assert!(
            matches!(
                read_verdict(unclear.as_bytes()),
                Verdict::Unknown(Unclear::NoVerdict(_))
            ),
            "{unclear}"
        );
    }
}

#[test]
fn the_entry_comes_on_stdin_and_the_verdict_on_stdout() {
    let answer = asked(
        &[
            "/bin/sh",
            "-c",
            r#"read -r entry; echo looking >&2; printf '{"verdict":"completed","result":{"entry":%s}}' "$entry""#,
        ],
        b"{\"seq\":7}\n",
        PATIENCE,
    );
    assert_eq!(
        answer.verdict,
        Verdict::Completed {
            result: br#"{"entry":{"seq":7}}"#.to_vec()
        }
    );
    assert!(answer.status.unwrap().success());
    assert_eq!(answer.stderr, b"looking\n");
    let evidence: serde_json::Value = serde_json::from_str(&answer.evidence()).unwrap();
    assert_eq!(evidence["verdict"], "completed");
    assert_eq!(evidence["exit_code"], 0);
    assert_eq!(evidence["stderr"], "looking\n");
    assert!(evidence["stdout"].as_str().unwrap().contains("entry"));
}

#[test]
fn a_command_need_not_read_the_entry() {
    let entry = vec![b' '; 4 << 20];
    let answer = asked(
        &[
            "/bin/sh",
            "-c",
            "exec <&-; echo '{\"verdict\":\"not_executed\"}'",
        ],
        &entry,
        PATIENCE,
    );
    assert_eq!(answer.verdict, Verdict::NotExecuted);
    // One that reads all of it gets all of it, and prints while it reads.
    let answer = asked(&["cat"], &vec![b' '; 1 << 20], PATIENCE);
    assert_eq!(
        answer.verdict,
        Verdict::Unknown(Unclear::NoVerdict("it is not one JSON value"))
    );
    assert_eq!(answer.stdout.len(), EVIDENCE_BYTES_MAX);
}

#[test]
fn what_ends_badly_is_unknown_whatever_it_said() {
    let said = "echo '{\"verdict\":\"not_executed\"}';";
    let answer = shell(&format!("{said} exit 3"));
    assert_eq!(answer.status.unwrap().code(), Some(3));
    assert!(matches!(
        answer.verdict,
        Verdict::Unknown(Unclear::Ended(_))
    ));
    assert!(
        answer
            .evidence()
            .contains(r#""why":"the command ended with code 3","exit_code":3"#)
    );
    let answer = shell(&format!("{said} kill -KILL $$"));
    assert!(matches!(
        answer.verdict,
        Verdict::Unknown(Unclear::Ended(_))
    ));
    assert!(answer.evidence().contains(r#""signal":9"#));
    let answer = asked(&["/none/such"], b"{}", PATIENCE);
    assert!(matches!(
        answer.verdict,
        Verdict::Unknown(Unclear::NotStarted(_))
    ));
    assert_eq!(answer.status, None);
    assert!(matches!(
        asked(&[], b"{}", PATIENCE).verdict,
        Verdict::Unknown(Unclear::NotStarted(_))
    ));
}

/// Reads a process id that a script printed to its stderr.
fn pid_of(answer: &Answer) -> i32 {
    let text = String::from_utf8(answer.stderr.clone()).unwrap();
    text.trim().parse().unwrap_or_else(|_| panic!("{text:?}"))
}

#[test]
fn a_command_that_takes_too_long_is_killed_with_its_group() {
    // The verdict was said, but the command had not ended: it is not believed.
    let answer = asked(
        &[
            "/bin/sh",
            "-c",
            "trap '' TERM INT HUP; echo $$ >&2; echo '{\"verdict\":\"not_executed\"}'; \
             cat /dev/zero >/dev/null & wait; cat /dev/zero >/dev/null",
        ],
        b"{}",
        Duration::from_secs(1),
    );
    assert_eq!(answer.verdict, Verdict::Unknown(Unclear::TimedOut));
    assert_eq!(answer.status, None);
    assert!(answer.elapsed >= Duration::from_secs(1));
    assert!(!group_alive_at(pid_of(&answer), 0));
    assert!(
        answer
            .evidence()
            .contains(r#""stdout":"{\"verdict\":\"not_executed\"}\n""#)
    );
}

#[test]
fn what_it_leaves_behind_is_ended_and_not_waited_for() {
    // The background process holds the pipes open and would run for ever.
    let answer = shell(
        "cat /dev/zero >/dev/null & echo $$ >&2; echo '{\"verdict\":\"not_executed\"}'; exit 0",
    );
    assert_eq!(answer.verdict, Verdict::NotExecuted);
    assert!(answer.elapsed < PATIENCE);
    assert!(!group_alive_at(pid_of(&answer), 0));
}

#[test]
fn output_is_bounded() {
    let answer = asked(&["cat", "/dev/zero"], b"{}", PATIENCE);
    assert_eq!(answer.verdict, Verdict::Unknown(Unclear::TooMuch));
    assert_eq!(answer.stdout.len(), EVIDENCE_BYTES_MAX);
    // A flood of talk is read and forgotten, but for its end.
    let answer = shell(
        "dd if=/dev/zero bs=65536 count=64 >&2 2>/dev/null; printf end >&2; \
         echo '{\"verdict\":\"not_executed\"}'",
    );
    assert_eq!(answer.verdict, Verdict::NotExecuted);
    assert_eq!(answer.stderr.len(), EVIDENCE_BYTES_MAX);
    assert!(answer.stderr.ends_with(b"\0end"));
    // A large result that fits is taken whole.
    let answer = shell(
        "printf '{\"verdict\":\"completed\",\"result\":{\"x\":\"'; \
         dd if=/dev/zero bs=65536 count=15 2>/dev/null | tr '\\0' x; printf '\"}}'",
    );
    let Verdict::Completed { result } = answer.verdict else {
        panic!("{answer:?}")
    };
    assert_eq!(result.len(), 15 * 65536 + 8);
}

#[test]
fn none_of_our_descriptors_reach_it() {
    let file = tempfile::tempfile().unwrap();
    // As if a library of ours had forgotten to mark it.
    fcntl(&file, FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    let answer = shell("ls /proc/self/fd | tr '\\n' ' ' >&2; echo '{\"verdict\":\"unknown\"}'");
    assert_eq!(answer.verdict, Verdict::Unknown(Unclear::Said));
    // The fourth is what `ls` reads the folder with.
    assert_eq!(String::from_utf8_lossy(&answer.stderr), "0 1 2 3 ");
}

#[test]
fn the_story_of_an_entry() {
    let mut entry = Entry {
        branch: BranchId(9),
        seq: Seq(7),
        tool: "se\"nd".to_owned(),
        scheme: Scheme::Plain,
        signature: Signature([0xab; 32]),
        status: Status::Pending,
        attempt: 2,
        round: 0,
        fence: Fence(31),
        session: SessionId(3),
        created_at: Micros(1_796_000_000_000_001),
        completed_at: None,
        delivered_at: None,
        gave_up: None,
        unanswered: None,
        is_error: false,
        provenance: None,
        digest: None,
        is_tombstone: false,
        key: None,
        call_id: None,
    };
    let story = |entry: &Entry, arguments| {
        let json = EntryStory {
            workflow_id: "w",
            branch: 0,
            entry,
            idempotency_key: "u/0/7",
            arguments,
            is_redacted: false,
        }
        .to_json();
        String::from_utf8(json).unwrap()
    };
    let plain = story(&entry, Some(b"{\"to\":\r\n [1.0]}"));
    assert!(!plain.contains('\n'));
    assert!(
        plain.ends_with(r#""arguments":{"to":   [1.0]}}"#),
        "{plain}"
    );
    let read: serde_json::Value = serde_json::from_str(&plain).unwrap();
    assert_eq!(read["tool"], "se\"nd");
    assert_eq!(
        (&read["seq"], &read["attempt"], &read["fence"]),
        (&7.into(), &2.into(), &31.into())
    );
    assert_eq!(read["created_at"], "2026-11-30T00:53:20.000001Z");
    assert_eq!(read["idempotency_key"], "u/0/7");
    assert_eq!(read["key"], serde_json::Value::Null);
    entry.key = Some(HeldKey {
        key: "k".to_owned(),
        window: Window::Journal,
        window_id: String::new(),
    });
    entry.call_id = Some("toolu_1".to_owned());
    let read: serde_json::Value = serde_json::from_str(&story(&entry, None)).unwrap();
    assert_eq!(
        (&read["key"], &read["window"]),
        (&"k".into(), &"journal".into())
    );
    assert_eq!(read["call_id"], "toolu_1");
    assert_eq!(read["arguments"], serde_json::Value::Null);
}

/// A journal in memory with a doubt, and what was done in which order.
struct Notes {
    journal: crate::journal::memory::MemoryJournal,
    owner: Owner,
    steps: Rc<RefCell<Vec<String>>>,
}

struct Scripted {
    heard: Heard,
    steps: Rc<RefCell<Vec<String>>>,
}

impl Upstream for Scripted {
    fn ask(&mut self, question: ToolQuestion) -> Heard {
        let line = String::from_utf8(question.line).unwrap();
        self.steps.borrow_mut().push(format!("ask {line}"));
        self.heard.clone()
    }
}

impl Ledger for Notes {
    fn story(&mut self, place: (BranchId, Seq)) -> Result<Option<Story>, JournalError> {
        crate::guard::story::story(&mut self.journal, place)
    }

    fn rule(
        &mut self,
        place: (BranchId, Seq),
        act: &Act,
        deed: &Deed,
        is_trial: bool,
    ) -> Result<Ruling, JournalError> {
        let name = match act {
            Act::Ask(_) => "announce",
            Act::Resolve { verdict, .. } => verdict.name(),
            Act::Adopt { .. } | Act::Reopen | Act::Deliver => "?",
        };
        let trial = if is_trial { "try " } else { "" };
        self.steps.borrow_mut().push(format!("{trial}{name}"));
        let owner = self.owner;
        let mut ask = |_: SessionId, _: Option<&crate::journal::Session>| owner;
        let now = Micros(9);
        crate::guard::verdict::rule(&mut self.journal, place, act, deed, now, &mut ask, is_trial)
    }
}

/// Asks a tool about a doubt; returns what came of it, the steps and the events.
fn asked_of_a_tool(
    owner: Owner,
    fence: u64,
    policy: &str,
    heard: Heard,
) -> (Settled, Vec<String>, String) {
    let (journal, entry) = crate::guard::verdict::tests::doubt();
    let policy = format!(
        "[tools.t]\nreconcile = {{ tool = \"find\", completed_when = \"/yes\", not_executed_when = \"/no\", {policy} }}"
    );
    let set = PolicySet::parse(&policy, ThreadId::Unasked).unwrap();
    let Some(ReconcileBy::Tool(tool)) = set.for_tool("t").reconcile.clone().map(|one| one.by)
    else {
        panic!("a tool");
    };
    let probe = Probe {
        place: (entry.branch, entry.seq),
        fence: Fence(fence),
        asks: Asks::Tool {
            tool: Box::new(tool),
            id: "own-1".into(),
            meta: None,
        },
        timeout: PATIENCE,
        result_bytes_max: 64,
    };
    let steps = Rc::new(RefCell::new(Vec::new()));
    let mut notes = Notes {
        journal,
        owner,
        steps: Rc::clone(&steps),
    };
    let mut upstream = Scripted {
        heard,
        steps: Rc::clone(&steps),
    };
    let settled = settle(&mut notes, &mut upstream, &probe, &Deed::default()).unwrap();
    let mut tx = notes.journal.begin(Durability::Process).unwrap();
    let events = tx.events(entry.branch, entry.seq).unwrap();
    let events: Vec<_> = events
        .into_iter()
        .map(|row| {
            format!(
                "{} {}",
                row.event.kind,
                row.event.detail.unwrap_or_default()
            )
        })
        .collect();
    (settled, steps.take(), events.join("\n"))
}

const GONE: Owner = Owner {
    is_live: false,
    upstream_alive: Some(false),
};

#[test]
fn a_tool_is_asked_once_the_journal_knows_of_it() {
    let result = r#"{"yes":true,"r":{"content":[]}}"#;
    let heard = Heard::Result(result.into());
    let (_, steps, events) = asked_of_a_tool(
        GONE,
        1,
        "result = \"/r\", arguments = { a = \"{a}\" }",
        heard,
    );
    assert_eq!(
        steps,
        [
            "try still_unknown",
            "announce",
            "ask {\"jsonrpc\":\"2.0\",\"id\":\"own-1\",\"method\":\"tools/call\",\"params\":{\"name\":\"find\",\"arguments\":{\"a\":1.0}}}\n",
            "completed",
        ]
    );
    assert!(events.starts_with("reconciling "), "{events}");
    assert!(
        events.contains(r#""probe":{"tool":"find","id":"own-1"}"#),
        "{events}"
    );
}

#[test]
fn no_tool_is_asked_where_no_verdict_could_count() {
    let yes = || Heard::Result(br#"{"yes":true}"#.to_vec());
    let alive = Owner {
        upstream_alive: Some(true),
        ..GONE
    };
    let live = Owner {
        is_live: true,
        ..GONE
    };
    for (owner, fence) in [(alive, 1), (live, 1), (GONE, 2)] {
        let (settled, steps, events) = asked_of_a_tool(owner, fence, "timeout = \"1s\"", yes());
        assert!(matches!(settled, Settled::NotAsked(_)), "{settled:?}");
        assert_eq!(steps, ["try still_unknown"]);
        assert_eq!(events, "");
    }
}

#[test]
fn what_a_tool_says_is_a_verdict_only_if_it_is_clear() {
    let large = format!(r#"{{"yes":true,"r":{{"content":["{}"]}}}}"#, "x".repeat(64));
    let missing = "arguments = { a = \"{b}\" }";
    let result = |text: &str| Heard::Result(text.into());
    for (policy, heard, verdict, why) in [
        (
            "timeout = \"1s\"",
            result(r#"{"yes":true}"#),
            "completed",
            "completed",
        ),
        (
            "timeout = \"1s\"",
            result(r#"{"no":true}"#),
            "not_executed",
            "not_executed",
        ),
        (
            "timeout = \"1s\"",
            result("{}"),
            "still_unknown",
            "does not say",
        ),
        (
            "timeout = \"1s\"",
            Heard::Error(b"{}".to_vec()),
            "still_unknown",
            "with an error",
        ),
        (
            "timeout = \"1s\"",
            Heard::Nothing("gone".into()),
            "still_unknown",
            "gone",
        ),
        (
            "result = \"/r\"",
            result(&large),
            "still_unknown",
            "larger than max_result",
        ),
        (
            missing,
            result(r#"{"no":true}"#),
            "still_unknown",
            "the argument /b",
        ),
    ] {
        let (settled, steps, events) = asked_of_a_tool(GONE, 1, policy, heard);
        let Settled::Ruled { verdict: said, .. } = settled else {
            panic!("{settled:?}");
        };
        assert_eq!(said, verdict);
        assert!(events.contains(why), "{why}: {events}");
        let was_asked = steps.iter().any(|step| step.starts_with("ask"));
        assert_eq!(was_asked, policy != missing, "{steps:?}");
    }
}
