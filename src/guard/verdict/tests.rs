mod adopting;

use super::asking::{Asking, asking};
use super::*;
use crate::guard::Op;
use crate::guard::fixture::{World, answer, call, calls_of_every_sort, findings, reserve};
use crate::guard::stale::Stale;
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
pub(crate) fn doubt() -> (MemoryJournal, Entry) {
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
        seen: None,
    }
}

fn forced(verdict: Verdict) -> Act {
    Act::Resolve {
        verdict,
        forces: true,
        seen: None,
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
fn a_question_is_announced_only_where_a_verdict_could_count() {
    let (mut journal, entry) = doubt();
    let after = done(act(&mut journal, &entry, &Act::Ask(Turn::First), GONE));
    assert_eq!(after, entry);
    assert_eq!(events(&mut journal, &entry)[0].0, "reconciling");
    let alive = Owner {
        is_live: false,
        upstream_alive: Some(true),
    };
    for owner in [LIVE, alive] {
        let refused = act(&mut journal, &entry, &Act::Ask(Turn::First), owner);
        assert!(matches!(refused, Ruling::Refused(_)), "{refused:?}");
    }
    done(act(&mut journal, &entry, &resolve(completed()), GONE));
    let refused = act(&mut journal, &entry, &Act::Ask(Turn::First), GONE);
    assert!(
        matches!(refused, Ruling::Refused(Refused::NotNow { .. })),
        "{refused:?}"
    );
    assert_eq!(events(&mut journal, &entry).len(), 2);
}

/// Who asks, who else is live, and whether this one has waited: whose turn it is.
#[test]
fn one_session_asks_at_a_time_and_its_word_is_the_word_of_all_who_waited() {
    let (mut journal, entry) = doubt();
    let live = std::cell::RefCell::new(vec![SessionId(2), SessionId(3)]);
    let mut ask_as = |session: Option<u64>, act: &Act| {
        let deed = Deed {
            session: session.map(SessionId),
            ..Deed::default()
        };
        let mut ask = |id: SessionId, _: Option<&Session>| Owner {
            is_live: live.borrow().contains(&id),
            ..GONE
        };
        let place = (entry.branch, entry.seq);
        match rule(&mut journal, place, act, &deed, Micros(9), &mut ask, false).unwrap() {
            Ruling::Done { .. } => None,
            Ruling::Refused(refused) => Some(refused),
        }
    };
    let first = Act::Ask(Turn::First);
    let waiting = Act::Ask(Turn::Waiting);
    let by_second = Some(Refused::BeingAsked {
        session: SessionId(2),
    });
    let unknown = resolve(Verdict::StillUnknown);
    assert_eq!(ask_as(Some(2), &first), None);
    assert_eq!(ask_as(Some(3), &first), by_second);
    assert_eq!(ask_as(Some(3), &waiting), by_second);
    assert_eq!(ask_as(None, &first), by_second, "an operator waits, too");
    assert_eq!(ask_as(Some(2), &first), None, "its own calls do not");
    // There is a word, and it is that nothing is known.
    assert_eq!(ask_as(Some(2), &unknown), None);
    assert_eq!(ask_as(Some(3), &waiting), Some(Refused::JustAsked));
    // Who comes later asks anew.
    assert_eq!(ask_as(Some(3), &first), None);
    let by_third = Some(Refused::BeingAsked {
        session: SessionId(3),
    });
    assert_eq!(ask_as(Some(2), &waiting), by_third);
    // Nobody waits for ever, nor for one that is gone.
    assert_eq!(ask_as(Some(2), &Act::Ask(Turn::Over)), None);
    assert_eq!(ask_as(Some(3), &first), by_second);
    live.borrow_mut().clear();
    assert_eq!(ask_as(Some(3), &waiting), None);
    // Whether an operator's command still runs can't be told.
    assert_eq!(ask_as(None, &first), None);
    assert_eq!(ask_as(Some(3), &first), None);
}

/// What was said of an attempt before is nothing about the one in doubt now.
#[test]
fn only_the_asking_about_this_attempt_counts() {
    let (mut journal, entry) = doubt();
    let mut tx = journal.begin(Durability::Power).unwrap();
    for (kind, fence) in [("reconciling", 7), ("resolved", 7), ("reconciling", 8)] {
        tx.event(&Event {
            at: Micros(9),
            kind: kind.into(),
            entry: Some((entry.branch, entry.seq)),
            fence: Some(Fence(fence)),
            session: Some(SessionId(2)),
            letter: None,
            detail: None,
            merge_key: None,
        })
        .unwrap();
    }
    let events = tx.events(entry.branch, entry.seq).unwrap();
    let of = |fence| asking(&events, Fence(fence));
    assert_eq!(of(6), Asking::Nobody);
    assert_eq!(of(7), Asking::Ended);
    assert_eq!(of(8), Asking::Begun(Some(SessionId(2))));
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

fn by_force(verdict: Verdict, fence: Fence) -> Act {
    Act::Resolve {
        verdict,
        forces: true,
        seen: Some(fence),
    }
}

fn at(seq: u64) -> (BranchId, Seq) {
    (BranchId(1), Seq(seq))
}

/// Acts on a journal in a file, with nobody else there.
fn act_on(world: &World, seq: u64, act: &Act) -> Ruling {
    let mut ask = |_: SessionId, _: Option<&Session>| GONE;
    let mut journal = world.journal();
    rule(
        &mut journal,
        at(seq),
        act,
        &deed(),
        Micros(9_000),
        &mut ask,
        false,
    )
    .unwrap()
}

/// Seq 5 is a question, seq 7 a task, in a history that `verify` walks through the lifecycle.
#[test]
fn what_is_open_is_taken_by_name_and_force_and_its_history_holds() {
    let failed = Verdict::Failed {
        body: br#"{"code":1,"message":"no"}"#.to_vec().into(),
        provenance: Provenance::Operator,
    };
    for (verdict, status) in [
        (completed(), Status::Completed),
        (failed, Status::Failed),
        (Verdict::NotExecuted, Status::Voided),
    ] {
        for (seq, was) in [(5, Status::InputRequired), (7, Status::Accepted)] {
            let world = World::new();
            let mut guard = calls_of_every_sort(&world);
            let fence = {
                let mut journal = world.journal();
                let mut tx = journal.begin(Durability::Process).unwrap();
                let before = tx.entry(at(seq).0, at(seq).1).unwrap().unwrap().entry;
                assert_eq!(before.status, was);
                before.fence
            };
            for (act, is_forcible) in [
                (resolve(verdict.clone()), false),
                (forced(verdict.clone()), false),
                (by_force(verdict.clone(), Fence(fence.0 + 1)), false),
                (
                    Act::Resolve {
                        verdict: verdict.clone(),
                        forces: false,
                        seen: Some(fence),
                    },
                    true,
                ),
            ] {
                let Ruling::Refused(refused) = act_on(&world, seq, &act) else {
                    panic!("{act:?}")
                };
                assert_eq!(refused.is_forcible(), is_forcible, "{refused}");
            }
            let ruling = act_on(&world, seq, &by_force(verdict.clone(), fence));
            assert!(
                matches!(&ruling, Ruling::Done { was_fenced: true, before, .. }
                    if before.status == was),
                "{ruling:?}"
            );
            let after = done(ruling);
            assert_eq!((after.status, after.attempt), (status, 1));
            assert!(after.fence > fence);
            // The task's end comes after all: once for each time that it is asked for.
            for at in [9_100, 9_200] {
                let end = Op::TaskEnd {
                    task_id: "t-7".into(),
                    created_at: Some("then".into()),
                    answer: answer(Status::Completed, "{\"late\":1.0}"),
                };
                guard.run(&[end], Micros(at)).unwrap();
            }
            let mut journal = world.journal();
            let mut tx = journal.begin(Durability::Process).unwrap();
            let now = tx.entry(at(seq).0, at(seq).1).unwrap().unwrap().entry;
            assert_eq!(now, after);
            let events = tx.events(at(seq).0, at(seq).1).unwrap();
            let told: Vec<(&str, u64)> = events
                .iter()
                .map(|row| (row.event.kind.as_str(), row.count))
                .collect();
            let mut expected = vec![("fenced", 1), ("resolved", 1)];
            if was == Status::Accepted {
                expected.push(("stale_result", 2));
                let row = events.last().unwrap();
                assert_eq!(row.event.fence, Some(fence));
                let stale = Stale::of(&row.event).unwrap();
                assert_eq!(stale.answer.as_deref(), Some(&b"{\"late\":1.0}"[..]));
            }
            assert_eq!(told, expected);
            drop(tx);
            assert_eq!(findings(&world), [""; 0], "{status:?} on {was:?}");
            if status == Status::Voided {
                reserve(&mut guard, call(Some(seq), "{\"anew\":1}"), 9_300);
                assert_eq!(findings(&world), [""; 0]);
            }
        }
    }
}

/// A note changes nothing, so the next round is still the question's, and the task's end counts.
#[test]
fn a_note_on_what_is_open_takes_it_from_nobody() {
    let world = World::new();
    let mut guard = calls_of_every_sort(&world);
    let entry = |seq: u64| {
        let mut journal = world.journal();
        let mut tx = journal.begin(Durability::Process).unwrap();
        tx.entry(at(seq).0, at(seq).1).unwrap().unwrap().entry
    };
    for seq in [5, 7] {
        let before = entry(seq);
        let note = by_force(Verdict::StillUnknown, before.fence);
        assert_eq!(done(act_on(&world, seq, &note)), before);
        assert_eq!(entry(seq), before);
    }
    let end = Op::TaskEnd {
        task_id: "t-7".into(),
        created_at: Some("then".into()),
        answer: answer(Status::Failed, "{}"),
    };
    guard.run(&[end], Micros(9_100)).unwrap();
    assert_eq!(entry(7).status, Status::Failed);
    assert_eq!(findings(&world), [""; 0]);
}

/// A round that was not executed leads back to its question, also where its owner was fenced
/// and where the question's bytes are not kept.
#[test]
fn a_later_round_goes_back_to_its_question() {
    for (owner, is_kept) in [(GONE, true), (LIVE, true), (GONE, false), (LIVE, false)] {
        let (mut journal, entry) = doubt();
        let mut tx = journal.begin(Durability::Power).unwrap();
        let settlement = Settlement {
            status: Status::InputRequired,
            is_error: false,
            provenance: Provenance::Upstream,
            digest: outcome_digest(b"{}"),
            is_tombstone: !is_kept,
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
            body: is_kept.then(|| b"{}".to_vec().into()),
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
        assert_eq!(after.is_tombstone, !is_kept);
    }
}
