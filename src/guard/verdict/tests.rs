use super::*;
use crate::journal::memory::MemoryJournal;
use crate::rules::entry::Unanswered;
use crate::rules::ids::WorkflowId;
use crate::rules::lifecycle::Reservation;
use crate::rules::signature::{Scheme, Signature};

const GONE: Owner = Owner {
    is_live: false,
    upstream_alive: Some(false),
};
const LIVE: Owner = Owner {
    is_live: true,
    upstream_alive: Some(true),
};

fn reservation(branch: BranchId, seq: u64, fence: Fence) -> Reservation {
    Reservation {
        branch,
        seq: Seq(seq),
        tool: "charge".into(),
        scheme: Scheme::Plain,
        signature: Signature([5; 32]),
        fence,
        session: SessionId(1),
        at: Micros(10),
        key: None,
        call_id: None,
    }
}

fn attempt(entry: &Entry, previous: Option<Fence>) -> Attempt {
    Attempt {
        fence: entry.fence,
        branch: entry.branch,
        seq: entry.seq,
        attempt: entry.attempt,
        round: entry.round,
        previous,
        session: entry.session,
        started_at: Micros(10),
        scheme: entry.scheme,
        signature: entry.signature,
        arguments: Some(br#"{"a":1.0}"#.to_vec().into()),
        arguments_bytes: 9,
        is_redacted: false,
        protocol_version: Some("2025-11-25".into()),
        tool_revision: None,
        policy: None,
        traceparent: None,
    }
}

/// A journal with one workflow, a session with an upstream, and a PENDING entry at seq 1.
fn doubt() -> (MemoryJournal, Entry) {
    let mut journal = MemoryJournal::new([7; 16], WorkflowId("own".into()));
    let mut tx = journal.begin(Durability::Power).unwrap();
    let workflow = tx
        .create_workflow(&WorkflowId("own".into()), [1; 16], Micros(1))
        .unwrap();
    let session = Session {
        upstream_pgid: Some(77),
        ..Session::default()
    };
    tx.put_session(SessionId(1), &session).unwrap();
    let transition = lifecycle::reserve_new(reservation(workflow.active.id, 1, Fence(1)));
    let entry = transition.entry.clone();
    put(&mut tx, transition, Some(attempt(&entry, None)), None);
    tx.commit().unwrap();
    (journal, entry)
}

fn put(
    tx: &mut impl Transaction,
    transition: Transition,
    attempt: Option<Attempt>,
    outcome: Option<Outcome>,
) -> Applied {
    let write = Write {
        checksum: transition.entry.checksum(&[7; 16]),
        transition,
        attempt,
        outcome,
        event: None,
    };
    tx.apply(&write).unwrap()
}

fn completed() -> Verdict {
    Verdict::Completed {
        body: br#"{"content":[]}"#.to_vec().into(),
        is_error: false,
        provenance: Provenance::Operator,
    }
}

fn deed() -> Deed {
    Deed {
        by: "ann".into(),
        reason: Some("seen \"it\"".into()),
        evidence: None,
        ..Deed::default()
    }
}

fn act(journal: &mut MemoryJournal, entry: &Entry, act: &Act, owner: Owner) -> Ruling {
    let place = (entry.branch, entry.seq);
    rule(
        journal,
        place,
        act,
        &deed(),
        Micros(50),
        &mut |_, _| owner,
        false,
    )
    .unwrap()
}

fn resolve(verdict: Verdict) -> Act {
    Act::Resolve {
        verdict,
        forces: false,
    }
}

fn forced(verdict: Verdict) -> Act {
    Act::Resolve {
        verdict,
        forces: true,
    }
}

fn stored(journal: &mut MemoryJournal, entry: &Entry) -> Stored {
    let mut tx = journal.begin(Durability::Power).unwrap();
    tx.entry(entry.branch, entry.seq).unwrap().unwrap()
}

fn events(journal: &mut MemoryJournal, entry: &Entry) -> Vec<(String, String)> {
    let mut tx = journal.begin(Durability::Power).unwrap();
    let events = tx.events(entry.branch, entry.seq).unwrap();
    events
        .into_iter()
        .map(|row| (row.event.kind, row.event.detail.unwrap_or_default()))
        .collect()
}

#[track_caller]
fn done(ruling: Ruling) -> Entry {
    match ruling {
        Ruling::Done { after, .. } => *after,
        Ruling::Refused(refused) => panic!("{refused}"),
    }
}

#[test]
fn a_verdict_settles_a_doubt_once_with_who_and_why() {
    for (verdict, status) in [
        (completed(), Status::Completed),
        (
            Verdict::Failed {
                body: br#"{"code":1,"message":"no"}"#.to_vec().into(),
                provenance: Provenance::Operator,
            },
            Status::Failed,
        ),
        (Verdict::NotExecuted, Status::Voided),
        (Verdict::StillUnknown, Status::Pending),
    ] {
        let (mut journal, entry) = doubt();
        let name = verdict.name();
        let after = done(act(&mut journal, &entry, &resolve(verdict.clone()), GONE));
        assert_eq!(after.status, status);
        let stored = stored(&mut journal, &entry);
        assert_eq!(stored.entry, after);
        assert_eq!(stored.checksum, after.checksum(&[7; 16]));
        let events = events(&mut journal, &entry);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].0, "resolved");
        for words in [name, "\"by\":\"ann\"", "seen \\\"it\\\"", "PENDING"] {
            assert!(events[0].1.contains(words), "{events:?}");
        }
        if status == Status::Pending {
            continue;
        }
        let again = act(&mut journal, &entry, &resolve(verdict), GONE);
        assert!(
            matches!(again, Ruling::Refused(Refused::NotNow { .. })),
            "{again:?}"
        );
    }
}

#[test]
fn whoever_may_still_act_is_a_reason_to_refuse_unless_fenced() {
    for (owner, is_live) in [
        (LIVE, true),
        (
            Owner {
                is_live: false,
                upstream_alive: Some(true),
            },
            false,
        ),
        (
            Owner {
                is_live: false,
                upstream_alive: None,
            },
            false,
        ),
    ] {
        let (mut journal, entry) = doubt();
        let ruling = act(&mut journal, &entry, &resolve(completed()), owner);
        let Ruling::Refused(refused) = ruling else {
            panic!("{ruling:?}")
        };
        assert!(refused.is_forcible(), "{refused}");
        assert_eq!(matches!(refused, Refused::Live { .. }), is_live);
        assert_eq!(events(&mut journal, &entry), []);

        let late = lifecycle::settle(
            &entry,
            Settlement {
                status: Status::Completed,
                is_error: false,
                provenance: Provenance::Upstream,
                digest: [1; 32],
                is_tombstone: false,
                at: Micros(60),
            },
        )
        .unwrap();
        let after = done(act(&mut journal, &entry, &forced(completed()), owner));
        assert_eq!((after.status, after.fence), (Status::Completed, Fence(2)));
        let mut tx = journal.begin(Durability::Power).unwrap();
        assert_eq!(put(&mut tx, late, None, None), Applied::Lost);
        assert_eq!(
            tx.next_fence().unwrap(),
            Fence(3),
            "a fence is never reused"
        );
        let attempt = tx.attempt(Fence(2)).unwrap().unwrap();
        assert_eq!((attempt.attempt, attempt.previous), (1, Some(Fence(1))));
        drop(tx);
        let kinds: Vec<String> = events(&mut journal, &entry)
            .into_iter()
            .map(|(kind, _)| kind)
            .collect();
        assert_eq!(kinds, ["fenced", "resolved"]);
    }
}

#[test]
fn forcing_where_nobody_owns_it_fences_nobody() {
    let (mut journal, entry) = doubt();
    let after = done(act(&mut journal, &entry, &forced(completed()), GONE));
    assert_eq!(after.fence, Fence(1));
}

#[test]
fn a_fenced_entry_that_stays_unknown_is_in_doubt() {
    let (mut journal, entry) = doubt();
    let after = done(act(
        &mut journal,
        &entry,
        &forced(Verdict::StillUnknown),
        LIVE,
    ));
    assert_eq!(after.status, Status::Pending);
    assert_eq!(after.unanswered, Some(Unanswered::Fenced));
}

#[test]
fn a_trial_writes_nothing() {
    let (mut journal, entry) = doubt();
    let place = (entry.branch, entry.seq);
    let mut ask = |_: SessionId, _: Option<&Session>| GONE;
    let act = resolve(completed());
    let ruling = rule(
        &mut journal,
        place,
        &act,
        &deed(),
        Micros(50),
        &mut ask,
        true,
    )
    .unwrap();
    assert_eq!(done(ruling).status, Status::Completed);
    assert_eq!(stored(&mut journal, &entry).entry, entry);
    assert_eq!(events(&mut journal, &entry), []);
}

#[test]
fn what_does_not_hold_is_never_ruled_on() {
    let (mut journal, entry) = doubt();
    let mut tx = journal.begin(Durability::Power).unwrap();
    let transition = lifecycle::give_up(&entry, crate::rules::entry::GaveUp::Gone).unwrap();
    let write = Write {
        checksum: [0; 16],
        transition,
        attempt: None,
        outcome: None,
        event: None,
    };
    tx.apply(&write).unwrap();
    tx.commit().unwrap();
    for what in [forced(completed()), Act::Reopen, Act::Deliver] {
        let ruling = act(&mut journal, &entry, &what, GONE);
        assert_eq!(ruling, Ruling::Refused(Refused::Quarantined), "{what:?}");
    }
}

#[test]
fn a_settled_entry_is_reopened_and_keeps_its_outcome_with_its_attempt() {
    let (mut journal, entry) = doubt();
    let pending = act(&mut journal, &entry, &Act::Reopen, GONE);
    assert!(matches!(pending, Ruling::Refused(Refused::NotNow { .. })));
    done(act(&mut journal, &entry, &resolve(completed()), GONE));
    let after = done(act(&mut journal, &entry, &Act::Reopen, GONE));
    assert_eq!((after.status, after.attempt), (Status::Voided, 1));
    let mut tx = journal.begin(Durability::Power).unwrap();
    let kept = tx.outcome(Fence(1)).unwrap().unwrap();
    assert_eq!(kept.body.as_deref(), Some(&br#"{"content":[]}"#[..]));
    let next = lifecycle::reserve_again(&after, reservation(entry.branch, 1, Fence(2))).unwrap();
    assert_eq!(next.entry.attempt, 2);
}

#[test]
fn an_outcome_is_delivered_by_other_means_once() {
    let (mut journal, entry) = doubt();
    let early = act(&mut journal, &entry, &Act::Deliver, GONE);
    assert!(matches!(early, Ruling::Refused(Refused::NotNow { .. })));
    done(act(&mut journal, &entry, &resolve(completed()), GONE));
    let after = done(act(&mut journal, &entry, &Act::Deliver, GONE));
    assert_eq!(after.delivered_at, Some(Micros(50)));
    assert_eq!(stored(&mut journal, &entry).entry, after);
    let again = act(&mut journal, &entry, &Act::Deliver, GONE);
    assert!(matches!(again, Ruling::Refused(Refused::NotNow { .. })));
}

/// A round that was not executed leads back to its question, also where its owner was fenced.
#[test]
fn a_later_round_goes_back_to_its_question() {
    for owner in [GONE, LIVE] {
        let (mut journal, entry) = doubt();
        let mut tx = journal.begin(Durability::Power).unwrap();
        let settlement = Settlement {
            status: Status::InputRequired,
            is_error: false,
            provenance: Provenance::Upstream,
            digest: outcome_digest(b"{}"),
            is_tombstone: false,
            at: Micros(20),
        };
        let transition = lifecycle::settle(&entry, settlement).unwrap();
        let asked = transition.entry.clone();
        let outcome = Outcome {
            fence: Fence(1),
            status: Status::InputRequired,
            is_error: false,
            provenance: Provenance::Upstream,
            at: Micros(20),
            digest: settlement.digest,
            body: Some(b"{}".to_vec().into()),
            round: None,
            task: None,
        };
        put(&mut tx, transition, None, Some(outcome));
        let second = lifecycle::reserve_round(&asked, reservation(entry.branch, 1, Fence(2)));
        let second = second.unwrap();
        let row = attempt(&second.entry, Some(Fence(1)));
        put(&mut tx, second, Some(row), None);
        tx.commit().unwrap();
        let after = done(act(
            &mut journal,
            &entry,
            &forced(Verdict::NotExecuted),
            owner,
        ));
        assert_eq!((after.status, after.round), (Status::InputRequired, 0));
        assert_eq!(after.fence, Fence(1));
    }
}
