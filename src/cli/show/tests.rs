use std::path::Path;

use super::super::golden::assert_golden;
use super::super::output::{Look, Times};
use super::super::view::tests::{MOMENT, entry};
use super::super::view::{Status, Time};
use super::*;

/// An entry in doubt about which all is known that can be, some of it hostile.
fn doubt() -> Detail {
    let mut entry = entry(8);
    entry.status = Status::Pending;
    entry.in_doubt = true;
    entry.completed_at = None;
    entry.delivered_at = None;
    entry.is_error = None;
    entry.provenance = None;
    entry.attempt = 2;
    entry.fence = 12;
    entry.key = Some("refund:A-100".to_owned());
    entry.window = Some("journal".to_owned());
    let attempt = |attempt, status| AttemptView {
        attempt,
        fence: 10 + attempt,
        session: Some("1".to_owned()),
        started_at: MOMENT,
        ended_at: None,
        status,
        bytes_written: Some(131),
        round: 0,
        provenance: None,
        outcome: Payload::Absent,
        note: None,
    };
    Detail {
        arguments: Payload::Stored(
            br#"{"order_id":"A-100","amount":5.00,"memo":"\u001b[2J"}"#.to_vec(),
        ),
        outcome: Payload::Absent,
        attempts: vec![attempt(1, Status::Voided), attempt(2, Status::Pending)],
        session: Some(SessionView {
            id: "1".to_owned(),
            live: false,
            host: "host-a".to_owned(),
            pid: 4121,
            started_at: MOMENT,
            ended_at: None,
            upstream: Some("payments 3.1".to_owned()),
            client: Some("agent 1.0".to_owned()),
            protocol: Some("2025-11-25".to_owned()),
        }),
        evidence: EvidenceView {
            bytes_written: Some(131),
            exit_status: Some("signal 9".to_owned()),
            elapsed_ms: Some(1_530),
            upstream_group: Some(4_122),
            upstream_alive: Some(false),
            stderr_tail: Some("charging\u{1b}[31m\r\n\nNext\n  rm -rf".to_owned()),
            note: None,
        },
        stale_results: Vec::new(),
        events: vec![
            EventView {
                at: MOMENT,
                last_at: None,
                count: 1,
                kind: "resolved".to_owned(),
                attempt: Some(1),
                session: None,
                letter: None,
                by: Some("ann".to_owned()),
                reason: Some("no charge\nseen".to_owned()),
                detail: None,
            },
            EventView {
                at: MOMENT,
                last_at: Some(Time(MOMENT.0 + 60_000_000)),
                count: 3,
                kind: "refused".to_owned(),
                attempt: None,
                session: Some("1".to_owned()),
                letter: Some("@E".to_owned()),
                by: None,
                reason: None,
                detail: Some("in_doubt".to_owned()),
            },
        ],
        protocol: Some("2025-11-25".to_owned()),
        policy: None,
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned()),
        forked_from: None,
        entry,
    }
}

fn next(detail: &Detail) -> Vec<String> {
    let target = Target::new(Path::new("pay.db"), &detail.entry, &|_| None);
    next::legal_commands(detail, &target, |_| true)
}

#[test]
fn a_doubt_for_pipes() {
    let detail = doubt();
    let text = render::render(&detail, &next(&detail), &Look::PIPE);
    assert_golden("cli/show-in-doubt.txt", &text);
}

#[test]
fn a_doubt_for_a_terminal() {
    let detail = doubt();
    let look = Look {
        colour: true,
        width: Some(80),
        times: Times::Since(Time(MOMENT.0 + 200_000_000)),
    };
    let text = render::render(&detail, &next(&detail), &look);
    let plain = anstream::adapter::strip_str(&text).to_string();
    assert!(
        plain.contains("started    2026-11-29T18:01:12.304511Z (3m ago)"),
        "{plain}"
    );
    // Every escape sequence is one of ours: they only ever set a style.
    assert!(text.split('\u{1b}').skip(1).all(|rest| {
        rest.starts_with('[') && rest[1..].starts_with(|c: char| c.is_ascii_digit())
    }));
    assert!(!plain.contains('\u{1b}'));
}

#[test]
fn a_doubt_for_programs() {
    let detail = doubt();
    let next = next(&detail);
    let text = serde_json::to_string_pretty(&document(&detail, &next)).unwrap() + "\n";
    assert_golden("cli/show-in-doubt.json", &text);
}

#[test]
fn payloads_keep_their_bytes() {
    let json = |payload: Payload| serde_json::to_string(&payload).unwrap();
    for bytes in [
        r#"[1.0,12345678901234567890,1e400]"#,
        r#"{"b":"\ud800","b":1}"#,
    ] {
        assert_eq!(
            json(Payload::Stored(bytes.into())),
            format!(
                r#"{{"state":"stored","json":{bytes},"size_bytes":{}}}"#,
                bytes.len()
            )
        );
    }
    assert_eq!(
        json(Payload::Stored(b"[NaN,\xff]".to_vec())),
        "{\"state\":\"stored\",\"text\":\"[NaN,\u{fffd}]\",\"size_bytes\":7}"
    );
    assert_eq!(json(Payload::Gone), r#"{"state":"gone"}"#);
    let redacted = Payload::Redacted {
        size_bytes: Some(9),
    };
    assert_eq!(json(redacted), r#"{"state":"redacted","size_bytes":9}"#);
    let deep = "[".repeat(300) + &"]".repeat(300);
    assert!(json(Payload::Stored(deep.clone().into())).contains(&format!("\"json\":{deep}")));
}

#[test]
fn payloads_for_people() {
    let with = |payload| {
        let mut detail = doubt();
        detail.outcome = payload;
        let text = render::render(&detail, &[], &Look::PIPE);
        let from = text.find("\nOutcome\n").unwrap() + "\nOutcome\n".len();
        let until = from + text[from..].find("\n\nEvidence").unwrap();
        text[from..until].to_owned()
    };
    assert_eq!(with(Payload::Absent), "  none");
    assert_eq!(with(Payload::Redacted { size_bytes: None }), "  redacted");
    let huge = with(Payload::Stored(vec![b'1'; 70_000]));
    assert!(huge.ends_with("  … 4464 bytes more; --json has them"));
    // A cut inside a character does no harm.
    with(Payload::Stored("é".repeat(50_000).into_bytes()));
    with(Payload::Stored(
        ("x".to_owned() + &"é".repeat(50_000)).into_bytes(),
    ));
}

#[test]
fn what_is_known_follows_from_the_facts() {
    let known = |change: fn(&mut Detail)| {
        let mut detail = doubt();
        change(&mut detail);
        detail.knowledge()
    };
    assert_eq!(known(|_| ()), Knowledge::SentUnanswered);
    assert_eq!(
        known(|d| d.entry.quarantined = true),
        Knowledge::Quarantined
    );
    assert_eq!(known(|d| d.entry.running = true), Knowledge::Running);
    assert_eq!(
        known(|d| d.evidence.bytes_written = None),
        Knowledge::SentUnanswered
    );
    assert_eq!(
        known(|d| d.evidence.bytes_written = Some(0)),
        Knowledge::SentUnanswered
    );
    let unsent = |d: &mut Detail| {
        d.evidence.bytes_written = Some(0);
        d.entry.attempt = 1;
    };
    assert_eq!(known(unsent), Knowledge::NeverSent);
    assert_eq!(
        known(|d| d.entry.status = Status::Voided),
        Knowledge::NotExecuted
    );
    assert_eq!(
        known(|d| d.entry.status = Status::Accepted),
        Knowledge::Accepted
    );
    assert_eq!(
        known(|d| d.entry.status = Status::InputRequired),
        Knowledge::InputRequired
    );
    assert_eq!(
        known(|d| d.entry.status = Status::Failed),
        Knowledge::AnsweredUndelivered
    );
    let delivered = |d: &mut Detail| {
        d.entry.status = Status::Completed;
        d.entry.delivered_at = Some(MOMENT);
    };
    assert_eq!(known(delivered), Knowledge::Delivered);
}

#[test]
fn only_legal_commands_that_exist_are_named() {
    let mut detail = doubt();
    let target = Target::new(Path::new("pay.db"), &detail.entry, &|_| None);
    let names = |detail: &Detail, exists: fn(&str) -> bool| -> Vec<String> {
        next::legal_commands(detail, &target, exists)
            .iter()
            .map(|line| line.split(' ').nth(1).unwrap().to_owned())
            .collect()
    };
    let resolve = vec!["resolve"; 4];
    assert_eq!(names(&detail, |name| name == "resolve"), resolve);
    assert_eq!(names(&detail, |_| false), [""; 0]);
    detail.entry.running = true;
    detail.entry.in_doubt = false;
    assert_eq!(names(&detail, |_| true), ["decide"]);
    detail.entry.running = false;
    detail.entry.status = Status::Completed;
    assert_eq!(names(&detail, |_| true), ["delivered", "reopen", "decide"]);
    detail.entry.delivered_at = Some(MOMENT);
    assert_eq!(names(&detail, |_| true), ["reopen", "decide"]);
    for open in [Status::InputRequired, Status::Accepted] {
        detail.entry.status = open;
        assert_eq!(names(&detail, |name| name == "resolve"), resolve);
        let lines = next::legal_commands(&detail, &target, |name| name == "resolve");
        for line in lines {
            // What changes something is by force; a note is not.
            assert_ne!(line.contains("--force"), line.contains("--still-unknown"));
        }
    }
    // `decide` can't be told that a call asked for a task, which is part of it.
    assert_eq!(names(&detail, |name| name == "decide"), [""; 0]);
    detail.entry.quarantined = true;
    assert_eq!(names(&detail, |_| true), ["verify", "fork"]);
    detail.entry.status = Status::Completed;
    assert_eq!(names(&detail, |_| true), ["verify", "fork", "decide"]);
}
