use std::time::Duration;

use crate::guard::fixture::{
    QUESTION, TestGuard, World, admission, admit, answer, call, deliver, reserve, settle, state,
    void,
};
use crate::guard::fork::{Fork, fork};
use crate::guard::verdict::Deed;
use crate::guard::{Admission, AdmissionVerdict, Call, CallKey, Note, Op, Options, Round, Ticket};
use crate::journal::RoundKey;
use crate::rules::decide::Decision;
use crate::rules::entry::{GaveUp, Status, outcome_digest};
use crate::rules::ids::{Micros, Seq, Window, WorkflowId};
use crate::rules::policy::{Delivery, OnDivergence, OnRevisionChange, Pointer, Policy};

use super::{Refused, Why};

/// Makes this call and gives it a result.
fn world_with(made: Call) -> World {
    let world = World::new();
    let mut guard = world.guard();
    let ticket = reserve(&mut guard, made, 1_000);
    settle(
        &mut guard,
        ticket,
        answer(Status::Completed, "{\"r\":1}"),
        1_001,
    );
    deliver(&mut guard, ticket, 1_002);
    world
}

#[test]
fn a_divergence_says_where_the_arguments_differ() {
    let none = || Call {
        arguments: None,
        ..call(Some(1), "")
    };
    for (made, asked, diff) in [
        (
            call(Some(1), "{\"a\":1,\"b\":2}"),
            call(Some(1), "{\"a\":1,\"b\":3}"),
            &["/b"][..],
        ),
        (none(), call(Some(1), "{\"a\":1}"), &["/a"]),
        (call(Some(1), "{\"a\":1}"), none(), &["/a"]),
        // What is no JSON can't be compared.
        (call(Some(1), "{\"a\":1}"), call(Some(1), "{"), &[]),
        (call(Some(1), "{"), call(Some(1), "{\"a\":1}"), &[]),
    ] {
        let world = world_with(made);
        let verdict = admit(&mut world.guard(), asked, 2_000);
        let AdmissionVerdict::Refuse(refused) = verdict else {
            panic!("it is no divergence: {verdict:?}")
        };
        assert_eq!(refused.why, Why::Table(Decision::Diverge));
        assert_eq!(refused.diff, diff);
    }
}

#[test]
fn arguments_that_are_buried_or_hidden_are_not_compared() {
    for change in [
        "UPDATE attempts SET arguments = NULL",
        "UPDATE attempts SET redacted = 1",
    ] {
        let world = world_with(call(Some(1), "{\"a\":1}"));
        world.sql().execute_batch(change).unwrap();
        let verdict = admit(&mut world.guard(), call(Some(1), "{\"a\":2}"), 2_000);
        let AdmissionVerdict::Refuse(refused) = verdict else {
            panic!("it is no divergence: {verdict:?}")
        };
        assert_eq!(refused.diff, [""; 0], "{change}");
    }
}

/// An outcome in whose place another one was put, sound in itself, is not the entry's.
#[test]
fn only_the_outcome_that_the_entry_knows_is_replayed() {
    let body = b"{\"r\":2}";
    for (digest, stored) in [(Some(outcome_digest(body)), &body[..]), (None, &body[..])] {
        let world = world_with(call(Some(1), "{\"a\":1}"));
        let again = call(Some(1), "{\"a\":1}");
        let verdict = admit(&mut world.guard(), again.clone(), 2_000);
        assert!(matches!(verdict, AdmissionVerdict::Replay(_)));
        let sql = "UPDATE outcomes SET body = ?1, digest = coalesce(?2, digest)";
        world.sql().execute(sql, (stored, digest)).unwrap();
        let verdict = admit(&mut world.guard(), again, 2_001);
        let AdmissionVerdict::Refuse(refused) = verdict else {
            panic!("it is served: {verdict:?}")
        };
        assert_eq!(refused.why, Why::Table(Decision::Quarantine));
    }
}

/// Three ask for one step and wait for its first attempt, which then did not run. A call with
/// other arguments has taken the place meanwhile, so the first of them opens a branch.
#[test]
fn who_waited_on_a_line_that_was_left_starts_nothing_on_it() {
    let world = World::new();
    let mut owner = world.guard_with(forking());
    for (step, asks) in [(1, Some(1)), (2, Some(2)), (3, None)] {
        let first = reserve(&mut owner, call(asks, "{\"a\":1}"), 1);
        assert_eq!(first.seq.0, step);
        let mut waits = call(asks, "{\"a\":1}");
        waits.joined = Some(first.into());
        void(&mut owner, first, 2);
        let other = reserve(&mut owner, call(Some(step), "{\"a\":2}"), 3);
        assert_eq!((other.branch, other.attempt), (first.branch, 2));
        settle(&mut owner, other, answer(Status::Completed, "{\"r\":2}"), 4);

        let opened = reserve(&mut owner, waits.clone(), 5);
        assert!(opened.branch > first.branch && opened.seq == first.seq);
        match admit(&mut owner, waits, 6) {
            AdmissionVerdict::Join { ticket, .. } => assert_eq!(ticket, opened, "{asks:?}"),
            other => panic!("{asks:?}: the same step twice: {other:?}"),
        }
        settle(
            &mut owner,
            opened,
            answer(Status::Completed, "{\"r\":3}"),
            7,
        );
        deliver(&mut owner, opened, 8);
    }
}

/// What did not run on the line that was left is a step of the one that is walked now.
#[test]
fn what_did_not_run_on_a_line_that_was_left_runs_on_the_one_that_is_walked() {
    let world = World::new();
    let mut owner = world.guard_with(forking());
    let first = reserve(&mut owner, call(Some(1), "{\"a\":1}"), 1);
    settle(&mut owner, first, answer(Status::Completed, "{\"r\":1}"), 2);
    let second = reserve(&mut owner, call(Some(2), "{\"b\":1}"), 3);
    let mut waits = call(Some(2), "{\"b\":1}");
    waits.joined = Some(second.into());
    void(&mut owner, second, 4);
    let opened = reserve(&mut owner, call(Some(1), "{\"a\":2}"), 5);
    assert!(opened.branch > first.branch);
    let runs = reserve(&mut owner, waits, 6);
    assert_eq!(
        (runs.branch, runs.seq, runs.attempt),
        (opened.branch, second.seq, 1)
    );
    // An outcome of that line is still its waiters'.
    let mut waited = call(Some(1), "{\"a\":1}");
    waited.joined = Some(first.into());
    match admit(&mut owner, waited, 7) {
        AdmissionVerdict::Replay(replay) => assert_eq!(replay.entry.branch, first.branch),
        other => panic!("{other:?}"),
    }
}

/// What is refused, and why.
fn refused(verdict: AdmissionVerdict) -> Refused {
    match verdict {
        AdmissionVerdict::Refuse(refused) => *refused,
        other => panic!("it is not refused: {other:?}"),
    }
}

fn forking() -> Options {
    Options {
        on_divergence: OnDivergence::Fork,
        ..Options::default()
    }
}

fn complete(guard: &mut TestGuard, made: Call, at: i64) -> Ticket {
    let ticket = reserve(guard, made, at);
    let result = answer(Status::Completed, "{\"r\":1}");
    settle(guard, ticket, result, at + 1);
    deliver(guard, ticket, at + 2);
    ticket
}

/// A call in this workflow whose key holds in the whole journal.
fn keyed(workflow: &str, seq: Option<u64>, key: &str, arguments: &str) -> Call {
    Call {
        workflow: Some(WorkflowId(workflow.into())),
        key: Some(CallKey {
            text: key.into(),
            is_derived: false,
        }),
        policy: Policy {
            window: Some(Window::Journal),
            ..Policy::default()
        }
        .into(),
        ..call(seq, arguments)
    }
}

/// The key that an upstream is told is made from the place, so it must stay that of the entry:
/// another one would be another effect to the upstream.
#[test]
fn a_call_whose_key_leads_into_another_workflow_keeps_the_place_of_the_entry() {
    let world = World::new();
    let mut guard = world.guard_with(forking());
    // Both workflows have a branch 1 of their own, so that its number alone tells nothing.
    for workflow in ["w1", "w2"] {
        for arguments in ["{\"a\":1}", "{\"a\":2}"] {
            let mut first = call(Some(1), arguments);
            first.workflow = Some(WorkflowId(workflow.into()));
            complete(&mut guard, first, 1_000);
        }
    }
    let made = admission(&mut guard, keyed("w1", None, "k", "{}"), 2_000);
    let AdmissionVerdict::Run(ticket, _) = made.verdict else {
        panic!("it does not run: {made:?}")
    };
    void(&mut guard, ticket, 2_001);
    let own = admission(&mut guard, keyed("w2", None, "other", "{}"), 2_002);
    let again = admission(&mut guard, keyed("w2", None, "k", "{}"), 2_003);
    let AdmissionVerdict::Run(other, _) = again.verdict else {
        panic!("it does not run: {again:?}")
    };
    assert_eq!(
        (other.branch, other.seq, other.attempt),
        (ticket.branch, ticket.seq, 2)
    );
    assert_eq!((again.place, again.branch), (made.place, made.branch));
    assert_ne!(own.place, made.place);
    // Its own calls have its own place.
    let mut third = call(Some(9), "{}");
    third.workflow = Some(WorkflowId("w2".into()));
    assert_eq!(admission(&mut guard, third, 2_004).place, own.place);
}

/// A workflow that was forked from another one by command, at this seq.
fn forked_workflow(world: &World, at: u64) {
    let what = Fork {
        from: WorkflowId("own".into()),
        branch: None,
        at: Seq(at),
        new: WorkflowId("forked".into()),
        uid: [77; 16],
    };
    let made = fork(
        &mut world.journal(),
        &what,
        &Deed::default(),
        Micros(5),
        false,
    );
    assert_eq!(made, Ok(Ok(())));
}

#[test]
fn a_gap_is_filled_where_it_is_shared_and_only_by_its_own_workflow() {
    let world = World::new();
    let mut guard = world.guard_with(forking());
    let one = complete(&mut guard, call(Some(1), "{\"a\":1}"), 1_000);
    complete(&mut guard, call(Some(5), "{\"a\":1}"), 1_010);
    let fifth = reserve(&mut guard, call(Some(5), "{\"a\":2}"), 1_020);
    assert_ne!(fifth.branch, one.branch, "it forks");
    // A seq before the fork is the past's, also one that nobody has used.
    let three = reserve(&mut guard, call(Some(3), "{\"a\":3}"), 1_030);
    assert_eq!((three.branch, three.attempt), (one.branch, 1));
    let six = reserve(&mut guard, call(Some(6), "{\"a\":6}"), 1_040);
    assert_eq!(six.branch, fifth.branch);
    forked_workflow(&world, 5);
    let in_forked = |seq| Call {
        workflow: Some(WorkflowId("forked".into())),
        ..call(Some(seq), "{\"a\":2}")
    };
    let refused = refused(admit(&mut guard, in_forked(2), 1_050));
    assert_eq!(
        (refused.why, refused.seq),
        (Why::Table(Decision::Diverge), Some(Seq(2)))
    );
    assert!(refused.reason.unwrap().contains("left it out"));
    let own = reserve(&mut guard, in_forked(5), 1_060);
    assert!(![one.branch, fifth.branch].contains(&own.branch));
}

#[test]
fn the_seq_at_which_a_branch_begins_is_the_branch_s() {
    let world = World::new();
    let mut guard = world.guard_with(forking());
    let first = complete(&mut guard, call(Some(1), "{\"a\":1}"), 1_000);
    complete(&mut guard, call(Some(2), "{\"a\":2}"), 1_010);
    let forked = complete(&mut guard, call(Some(2), "{\"a\":3}"), 1_020);
    for (seq, arguments, ticket) in [(2, "{\"a\":3}", forked), (1, "{\"a\":1}", first)] {
        let verdict = admit(&mut guard, call(Some(seq), arguments), 1_030);
        let AdmissionVerdict::Replay(replay) = verdict else {
            panic!("seq {seq} is no replay: {verdict:?}")
        };
        assert_eq!(Ticket::of(&replay.entry), ticket);
    }
    // What stood there before is not it any more.
    let back = reserve(&mut guard, call(Some(2), "{\"a\":2}"), 1_040);
    assert!(back.branch > forked.branch);
}

#[test]
fn an_entry_that_is_gone_is_damage_and_a_seq_that_was_never_used_is_new() {
    for lost in [1, 4] {
        let world = World::new();
        let mut guard = world.guard();
        for seq in [1, 4] {
            complete(&mut guard, call(Some(seq), "{}"), 1_000);
        }
        world
            .sql()
            .execute("DELETE FROM entries WHERE seq = ?1", [lost])
            .unwrap();
        let mut ask = |seq| admit(&mut guard, call(Some(seq), "{}"), 2_000);
        let refused = refused(ask(lost as u64));
        assert_eq!(refused.why, Why::Table(Decision::Quarantine));
        assert_eq!((refused.seq, refused.entry), (Some(Seq(lost as u64)), None));
        for seq in [2, 3, 5, 7] {
            let verdict = ask(seq);
            assert!(
                matches!(verdict, AdmissionVerdict::Run(ticket, _) if ticket.seq.0 == seq),
                "{verdict:?}"
            );
        }
    }
}

fn round(state: Option<u8>, seq: Option<u64>) -> Call {
    Call {
        round: Some(Round {
            state: state.map(|state| [state; 32]),
            inputs: "name".into(),
        }),
        ..call(seq, "{}")
    }
}

/// A journal in which a call has asked for input and given this state.
fn question(state: Option<u8>) -> (World, TestGuard) {
    let world = World::new();
    let mut guard = world.guard();
    let ticket = reserve(&mut guard, call(Some(1), "{}"), 1_000);
    let mut asked = answer(Status::InputRequired, QUESTION);
    asked.round = Some(RoundKey {
        state: state.map(|state| [state; 32]),
        inputs: "name".into(),
    });
    settle(&mut guard, ticket, asked, 1_001);
    deliver(&mut guard, ticket, 1_002);
    (world, guard)
}

#[test]
fn a_round_goes_on_only_under_the_state_that_was_given() {
    for (given, brought, goes_on) in [
        (Some(4), Some(4), true),
        (Some(4), Some(5), false),
        (Some(4), None, false),
        (None, None, true),
        (None, Some(5), false),
    ] {
        let (_world, mut guard) = question(given);
        let verdict = admit(&mut guard, round(brought, Some(1)), 2_000);
        match verdict {
            AdmissionVerdict::Run(ticket, letter) if goes_on => {
                assert_eq!((ticket.attempt, letter.0), (1, 'O'));
            }
            AdmissionVerdict::Refuse(refused) if !goes_on => {
                assert_eq!(
                    (refused.why, refused.letter.0),
                    (Why::Table(Decision::Diverge), 'R')
                );
            }
            other => panic!("{given:?} {brought:?}: {other:?}"),
        }
    }
}

/// Where the row is no longer what was written, nothing else of it is looked at.
#[test]
fn a_round_of_a_damaged_question_is_quarantined_also_where_its_outcome_can_t_be_read() {
    let (world, mut guard) = question(Some(4));
    world
        .sql()
        .execute_batch("UPDATE entries SET tool = 'x'; UPDATE outcomes SET status = 'NONSENSE'")
        .unwrap();
    let refused = refused(admit(&mut guard, round(Some(4), Some(1)), 2_000));
    assert_eq!(refused.why, Why::Table(Decision::Quarantine));
}

#[test]
fn another_revision_of_a_tool_means_what_the_policy_says() {
    let of = |revision: Option<&str>, on_revision_change| Call {
        tool_revision: revision.map(Into::into),
        policy: Policy {
            on_revision_change,
            ..Policy::default()
        }
        .into(),
        ..call(Some(1), "{}")
    };
    let [note, ignore, diverge] = [
        OnRevisionChange::Note,
        OnRevisionChange::Ignore,
        OnRevisionChange::Diverge,
    ];
    for (before, now, policy, is_noted, is_refused) in [
        (Some("r1"), Some("r2"), note, true, false),
        (Some("r1"), Some("r2"), ignore, false, false),
        (Some("r1"), Some("r2"), diverge, false, true),
        (Some("r1"), Some("r1"), note, false, false),
        (Some("r1"), Some("r1"), diverge, false, false),
        // Nothing is known of a listing that was not seen.
        (None, Some("r2"), diverge, false, false),
        (Some("r1"), None, diverge, false, false),
        (None, Some("r2"), note, false, false),
    ] {
        let world = World::new();
        let mut guard = world.guard();
        complete(&mut guard, of(before, policy), 1_000);
        let Admission { notes, verdict, .. } = admission(&mut guard, of(now, policy), 2_000);
        let case = format!("{before:?} {now:?} {policy:?}: {verdict:?}");
        let noted: Vec<_> = notes.iter().map(|note: &Note| note.kind).collect();
        assert_eq!(
            noted,
            ["revision_changed"][..usize::from(is_noted)],
            "{case}"
        );
        match verdict {
            AdmissionVerdict::Replay(_) => assert!(!is_refused, "{case}"),
            AdmissionVerdict::Refuse(refused) => {
                assert!(is_refused, "{case}");
                assert_eq!(
                    (refused.why, refused.letter.0),
                    (Why::Table(Decision::Diverge), 'C')
                );
            }
            AdmissionVerdict::Run(..) | AdmissionVerdict::Join { .. } => panic!("{case}"),
        }
    }
}

/// The upstream has had this request, so it must not get it again, unless the policy lets it; and
/// nothing that is told may say that it has not started.
#[test]
fn what_was_forwarded_and_then_fenced_is_not_run_again_under_at_most_once() {
    let sent = |delivery, was_forwarded, arguments| Call {
        was_forwarded,
        policy: Policy {
            delivery,
            ..Policy::default()
        }
        .into(),
        ..call(Some(1), arguments)
    };
    let [most, least] = [Delivery::AtMostOnce, Delivery::AtLeastOnce];
    // By a void that somebody else gave, by a question, and by a fork.
    for (status, asks_round, arguments) in [
        (Status::Voided, false, "{}"),
        (Status::InputRequired, true, "{}"),
        (Status::Completed, false, "{\"other\":1}"),
    ] {
        for (delivery, was_forwarded, runs) in [
            (most, true, false),
            (most, false, true),
            (least, true, true),
            (least, false, true),
        ] {
            let world = World::new();
            let mut guard = world.guard_with(forking());
            let ticket = reserve(&mut guard, call(Some(1), "{}"), 1_000);
            if status == Status::Voided {
                void(&mut guard, ticket, 1_001);
            } else {
                settle(&mut guard, ticket, answer(status, "{}"), 1_001);
            }
            let mut again = sent(delivery, was_forwarded, arguments);
            again.round = asks_round.then(|| Round {
                state: Some(state()),
                inputs: "name".into(),
            });
            let verdict = admit(&mut guard, again, 2_000);
            let case = format!("{status:?} {delivery:?} {was_forwarded}: {verdict:?}");
            match verdict {
                AdmissionVerdict::Run(..) => assert!(runs, "{case}"),
                AdmissionVerdict::Refuse(refused) => {
                    assert!(!runs, "{case}");
                    assert_eq!(refused.reason.as_deref(), Some("fenced"), "{case}");
                }
                AdmissionVerdict::Replay(_) | AdmissionVerdict::Join { .. } => panic!("{case}"),
            }
        }
    }
}

#[test]
fn who_joins_waits_without_limit_only_while_somebody_else_waits_as_well() {
    let with = |timeout| Call {
        policy: Policy {
            timeout,
            ..Policy::default()
        }
        .into(),
        ..call(Some(1), "{}")
    };
    let ten = Duration::from_secs(10);
    for (gave_up, is_orphan, timeout, limit) in [
        (false, false, Some(ten), None),
        (true, false, Some(ten), Some(ten)),
        (true, false, None, Some(Options::default().join_max)),
        (false, true, Some(ten), Some(ten)),
        (true, true, None, Some(Options::default().join_max)),
    ] {
        let world = World::new();
        let mut owner = world.guard();
        let ticket = reserve(&mut owner, call(Some(1), "{}"), 1_000);
        if gave_up {
            let op = Op::GiveUp(ticket, GaveUp::TimedOut);
            owner.run(&[op], Micros(1_001)).unwrap();
        }
        let session = owner.session().unwrap();
        let mut other = world.guard();
        if is_orphan {
            other.surroundings.orphans.insert(session);
        } else {
            other.surroundings.live.insert(session);
        }
        let verdict = admit(&mut other, with(timeout), 2_000);
        let AdmissionVerdict::Join {
            limit: told,
            is_ours,
            ..
        } = verdict
        else {
            panic!("it does not join: {verdict:?}")
        };
        assert_eq!((told, is_ours), (limit, false), "{gave_up} {is_orphan}");
    }
}

/// Who joined by its key waits for that entry, whatever seq it said besides: it is asked about
/// again as it was found.
#[test]
fn who_joined_by_a_key_beside_a_seq_is_found_by_the_key_again() {
    let world = World::new();
    let mut guard = world.guard();
    let covering = |seq, arguments| {
        let mut made = keyed("own", Some(seq), "k", arguments);
        made.policy = Policy {
            window: Some(Window::Journal),
            key_covers: Some(vec![Pointer::parse("/n").unwrap()]),
            ..Policy::default()
        }
        .into();
        made
    };
    let owner = reserve(&mut guard, covering(1, "{\"n\":1,\"v\":1}"), 1_000);
    let mut other = covering(5, "{\"n\":1,\"v\":2}");
    for at in [2_000, 2_001] {
        let verdict = admit(&mut guard, other.clone(), at);
        let AdmissionVerdict::Join { ticket, .. } = verdict else {
            panic!("it does not join: {verdict:?}")
        };
        assert_eq!(ticket, owner);
        other.joined = Some(ticket.into());
    }
    // Where the seq leads to the entry, all arguments count.
    let changed = covering(1, "{\"n\":1,\"v\":2}");
    let why = refused(admit(&mut guard, changed, 2_002)).why;
    assert_eq!(why, Why::Table(Decision::InFlight));
}
