use super::fixture::{TestGuard, World, answer, call, deliver, reserve, settle};
use super::verdict::{Act, Deed, Refused, Ruling, Verdict};
use super::{Answer, Done, Note, Op, Options, Settlement, Ticket};
use crate::journal::Durability;
use crate::rules::entry::{GaveUp, Status, Unanswered};
use crate::rules::ids::{Fence, Micros, SessionId};
use crate::rules::signature::Signature;

fn note(merges: bool) -> Op {
    Op::Note(Note {
        kind: "joined",
        entry: None,
        letter: None,
        detail: None,
        merges,
    })
}

fn lost(ticket: Ticket) -> Op {
    Op::Settle(Settlement::Lost {
        ticket,
        reason: Unanswered::UpstreamExited,
        detail: "{}".into(),
    })
}

/// What is waited for by nobody may be lost with the power; each sync costs all that waits.
#[test]
fn a_batch_is_synced_where_something_in_it_must_survive_a_power_cut() {
    let world = World::new();
    let mut guard = world.guard();
    let ticket = reserve(&mut guard, call(Some(1), "{}"), 1_000);
    let ttl = std::time::Duration::from_secs(1);
    let lazy = [
        Op::Deliver(ticket),
        Op::Keep(ticket),
        Op::Renew(ticket, ttl),
        Op::Confirm(ticket),
        note(true),
    ];
    let firm = [
        Op::Admit(Box::new(call(Some(2), "{}"))),
        answered(ticket, answer(Status::Completed, "{}"), false),
        lost(ticket),
        Op::GiveUp(ticket, GaveUp::Gone),
        note(false),
        Op::EndSession,
    ];
    assert_eq!(guard.durability(&lazy), Durability::Process);
    for op in &firm {
        let batch = [lazy.as_slice(), std::slice::from_ref(op)].concat();
        assert_eq!(guard.durability(&batch), Durability::Power, "{op:?}");
    }
}

fn answered(ticket: Ticket, answer: Answer, may_rerun: bool) -> Op {
    Op::Settle(Settlement::Answered {
        ticket,
        signature: Signature([0; 32]),
        first_wins: false,
        may_rerun,
        answer,
    })
}

fn deferring() -> Options {
    Options {
        defers: true,
        ..Options::default()
    }
}

/// Only what is over and can't run again may wait for a sync; whoever goes on from an answer
/// (a question, a task, "it was not executed") finds it after a power cut.
#[test]
fn only_a_final_outcome_is_deferred_and_only_where_that_was_asked_for() {
    for (options, expected) in [
        (Options::default(), Durability::Power),
        (deferring(), Durability::Process),
    ] {
        let world = World::new();
        let mut guard = world.guard_with(options);
        let ticket = reserve(&mut guard, call(None, "{}"), 1_000);
        let settles = |status, may_rerun| answered(ticket, answer(status, "{}"), may_rerun);
        for status in [Status::Completed, Status::Failed] {
            let batch = [settles(status, false), Op::Deliver(ticket), note(true)];
            assert_eq!(guard.durability(&batch), expected, "{status:?}");
        }
        let void = Op::Settle(Settlement::Void {
            ticket,
            detail: "{}".into(),
        });
        let overdue = Op::Settle(Settlement::Overdue {
            ticket,
            detail: "{}".into(),
        });
        for op in [
            settles(Status::InputRequired, false),
            settles(Status::Accepted, false),
            settles(Status::Completed, true),
            settles(Status::Failed, true),
            lost(ticket),
            void,
            overdue,
            Op::TaskEnd {
                task_id: "t-1".into(),
                created_at: None,
                answer: answer(Status::Completed, "{}"),
            },
            Op::Admit(Box::new(call(None, "{\"n\":2}"))),
            Op::GiveUp(ticket, GaveUp::Gone),
            note(false),
            Op::EndSession,
        ] {
            let batch = [settles(Status::Completed, false), op.clone()];
            assert_eq!(guard.durability(&batch), Durability::Power, "{op:?}");
        }
    }
}

/// A commit that writes nothing is not synced, so that it pays no debt.
#[test]
fn a_deferred_outcome_is_owed_a_sync_until_a_reservation_is_committed() {
    let world = World::new();
    let mut guard = world.guard_with(deferring());
    let first = reserve(&mut guard, call(Some(1), "{}"), 1_000);
    assert!(!guard.owes_sync());
    settle(&mut guard, first, answer(Status::Completed, "{}"), 2_000);
    assert!(guard.owes_sync());
    deliver(&mut guard, first, 3_000);
    let replay = Op::Admit(Box::new(call(Some(1), "{}")));
    guard.run(&[replay], Micros(4_000)).unwrap();
    assert!(guard.owes_sync(), "nothing was reserved");
    let second = reserve(&mut guard, call(Some(2), "{}"), 5_000);
    assert!(!guard.owes_sync());
    settle(&mut guard, second, answer(Status::Failed, "{}"), 6_000);
    assert!(guard.owes_sync());
    guard.journal().sync_log().unwrap();
    guard.synced();
    assert!(!guard.owes_sync());
    let third = reserve(&mut guard, call(Some(3), "{}"), 7_000);
    settle(&mut guard, third, answer(Status::Accepted, "{}"), 8_000);
    assert!(!guard.owes_sync(), "a task's handle was synced");
}

/// A verdict of the guard's own: who gave it, and whether it was given.
fn rule(guard: &mut TestGuard, ticket: Ticket) -> Ruling {
    let act = Act::Resolve {
        verdict: Verdict::NotExecuted,
        forces: false,
        seen: None,
    };
    let place = (ticket.branch, ticket.seq);
    let deed = Deed {
        by: "prober".into(),
        ..Deed::default()
    };
    guard
        .rule(place, &act, &deed, Micros(2_000), false)
        .unwrap()
}

#[test]
fn a_verdict_of_a_session_is_given_on_what_nobody_owns_and_tells_the_session() {
    // The owner is this session, which lives; another one that lives; another one that is gone.
    for (is_own, is_live) in [(true, false), (false, true), (false, false)] {
        let world = World::new();
        let mut owner = world.guard();
        let ticket = reserve(&mut owner, call(Some(1), "{}"), 1_000);
        let mut other = world.guard();
        reserve(&mut other, call(Some(2), "{}"), 1_001);
        assert_eq!(
            (owner.session(), other.session()),
            (Some(SessionId(1)), Some(SessionId(2)))
        );
        if is_live {
            other.surroundings.live.insert(SessionId(1));
        } else {
            // What the lock of its own session says is nothing that it has to ask.
            owner.surroundings.live.clear();
        }
        let judge = if is_own { &mut owner } else { &mut other };
        let judged = rule(judge, ticket);
        if is_own || is_live {
            let session = SessionId(1);
            assert_eq!(judged, Ruling::Refused(Refused::Live { session }));
            continue;
        }
        assert!(matches!(judged, Ruling::Done { .. }), "{judged:?}");
        let sql = "SELECT session_id FROM events WHERE kind = 'resolved'";
        let by: Option<i64> = world.sql().query_row(sql, (), |row| row.get(0)).unwrap();
        assert_eq!(by, Some(2));
    }
}

#[test]
fn a_session_s_row_tells_what_was_learned_and_when_it_ended() {
    let world = World::new();
    let mut guard = world.guard();
    assert!(matches!(
        guard.run(&[Op::EndSession], Micros(900)).unwrap()[..],
        [Done::Noted]
    ));
    reserve(&mut guard, call(Some(1), "{}"), 1_000);
    guard.describe(|session| session.upstream_name = Some("u".into()));
    guard.run(&[Op::EndSession], Micros(3_000)).unwrap();
    let sql = "SELECT host, upstream_name, ended_at FROM sessions";
    let rows: (String, Option<String>, Option<i64>) = world
        .sql()
        .query_row(sql, (), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap();
    assert_eq!(rows, ("h".into(), Some("u".into()), Some(3_000)));
}

/// Who was fenced is told so before a byte goes out, and renews no lease.
#[test]
fn a_ticket_is_confirmed_only_while_it_is_the_entry_s() {
    let world = World::new();
    let mut guard = world.guard();
    let ticket = reserve(&mut guard, call(Some(1), "{}"), 1_000);
    let stale = Ticket {
        fence: Fence(ticket.fence.0 + 1),
        ..ticket
    };
    let ttl = std::time::Duration::from_secs(1);
    for (ticket, is_its) in [(ticket, true), (stale, false)] {
        for op in [Op::Confirm(ticket), Op::Renew(ticket, ttl)] {
            let done = guard.run(std::slice::from_ref(&op), Micros(1_001)).unwrap();
            assert_eq!(matches!(done[..], [Done::Noted]), is_its, "{op:?}");
            assert_eq!(matches!(done[..], [Done::Stale]), !is_its, "{op:?}");
        }
    }
}

/// A journal that was restored from an older copy counts its sessions from there again.
#[test]
fn a_session_s_number_that_another_process_holds_is_passed_over() {
    let world = World::new();
    let mut guard = world.guard();
    let held = [SessionId(1), SessionId(2)];
    guard.surroundings.live.extend(held);
    reserve(&mut guard, call(Some(1), "{}"), 1_000);
    assert_eq!(guard.session(), Some(SessionId(3)));
}
