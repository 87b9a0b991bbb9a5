use crate::guard::fixture::{
    QUESTION, TestGuard, World, admit, answer, call, findings, reserve, settle, state, void,
};
use crate::guard::verdict::{Act, Deed, Ruling, Verdict};
use crate::guard::{AdmissionVerdict, Answer, Call, Done, Op, Round, Settlement, Ticket, Why};
use crate::rules::decide::Decision;
use crate::rules::entry::{GaveUp, Status, Unanswered};
use crate::rules::ids::Micros;
use crate::rules::policy::{Delivery, OnFailure, Policy};
use crate::rules::signature::Signature;

/// Makes a task, under the policy of this record.
fn task(guard: &mut TestGuard, seq: u64, record: Option<&str>) {
    let mut made = call(Some(seq), "{}");
    made.policy_record = record.map(Into::into);
    let ticket = reserve(guard, made, 1_000);
    settle(
        guard,
        ticket,
        answer(Status::Accepted, "{\"task\":{}}"),
        1_001,
    );
}

/// Tells the end of the task; returns whether it was taken for one.
fn end(guard: &mut TestGuard, created_at: Option<&str>) -> bool {
    let end = Op::TaskEnd {
        task_id: "t-1".into(),
        created_at: created_at.map(Into::into),
        answer: answer(Status::Completed, "{\"r\":1}"),
    };
    let done = guard.run(&[end], Micros(1_002)).unwrap();
    matches!(done[..], [Done::Settled(_)])
}

#[test]
fn the_end_of_a_task_is_kept_as_its_own_policy_says() {
    for (record, is_kept) in [
        (None, true),
        (Some("max_result = \"7B\"\n"), true),
        (Some("max_result = \"6B\"\n"), false),
        (Some("store_result = false\n"), false),
    ] {
        let world = World::new();
        let mut guard = world.guard();
        task(&mut guard, 1, record);
        assert!(end(&mut guard, Some("then")));
        let sql = "SELECT body NOTNULL, (SELECT body NOTNULL FROM outcomes) FROM task_ends";
        let kept: (bool, bool) = world
            .sql()
            .query_row(sql, (), |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        assert_eq!(kept, (is_kept, true), "{record:?}");
    }
}

#[test]
fn a_task_is_ended_by_its_id_and_time_or_by_who_made_it() {
    let world = World::new();
    let mut maker = world.guard();
    task(&mut maker, 1, None);
    let mut other = world.guard();
    task(&mut other, 2, Some("max_attempts = 1\n"));
    let statuses = || -> Vec<String> {
        let db = world.sql();
        let mut rows = db
            .prepare("SELECT status FROM entries ORDER BY seq")
            .unwrap();
        let read = rows.query_map((), |row| row.get(0)).unwrap();
        read.map(Result::unwrap).collect()
    };
    assert!(!end(&mut maker, Some("another time")));
    assert!(!end(&mut world.guard(), None));
    assert_eq!(statuses(), ["ACCEPTED", "ACCEPTED"]);
    assert!(end(&mut maker, None));
    assert_eq!(statuses(), ["COMPLETED", "ACCEPTED"]);
    assert!(!end(&mut maker, None));
    assert!(end(&mut other, None));
    assert_eq!(statuses(), ["COMPLETED", "COMPLETED"]);
}

/// A call that runs again after a loss and after a failure.
fn untiring() -> Call {
    Call {
        policy: Policy {
            delivery: Delivery::AtLeastOnce,
            on_failure: OnFailure::Retry,
            attempts_max: 9,
            ..Policy::default()
        }
        .into(),
        ..call(Some(1), "{}")
    }
}

fn retry(guard: &mut TestGuard, at: i64, by: char) -> Ticket {
    match admit(guard, untiring(), at) {
        AdmissionVerdict::Run(ticket, letter) if letter.0 == by => ticket,
        other => panic!("no retry by {by}: {other:?}"),
    }
}

fn lose(guard: &mut TestGuard, ticket: Ticket, at: i64) {
    let lost = Settlement::Lost {
        ticket,
        reason: Unanswered::UpstreamExited,
        detail: "{}".into(),
    };
    guard.run(&[Op::Settle(lost)], Micros(at)).unwrap();
}

/// The one before may have run, which is what the doubt was about; a failure before it is known.
#[test]
fn a_retry_that_never_ran_leaves_the_doubt_about_the_attempt_right_before_it_and_no_other() {
    for (ends, by, status) in [
        ("L", 'L', "PENDING"),
        ("F", 'G', "VOIDED"),
        // The doubt about the first one was over when the second one failed.
        ("LF", 'G', "VOIDED"),
        ("FL", 'L', "PENDING"),
    ] {
        let world = World::new();
        let mut guard = world.guard();
        let mut ticket = reserve(&mut guard, untiring(), 1_000);
        let mut at = 1_000;
        let mut again = ' ';
        for end in ends.chars() {
            at += 10;
            if again != ' ' {
                ticket = retry(&mut guard, at, again);
            }
            if end == 'L' {
                lose(&mut guard, ticket, at + 1);
                again = 'L';
            } else {
                settle(&mut guard, ticket, answer(Status::Failed, "{}"), at + 1);
                again = 'G';
            }
        }
        let last = retry(&mut guard, 2_000, by);
        assert_eq!(last.attempt as usize, ends.len() + 1);
        void(&mut guard, last, 2_001);
        let sql = "SELECT status, unanswered IS NOT NULL FROM entries";
        let stands: (String, bool) = world
            .sql()
            .query_row(sql, (), |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        assert_eq!(stands, (status.to_owned(), status == "PENDING"), "{ends}");
    }
}

/// Gives a verdict on the entry at seq 1, in the name of a guard.
fn rule(guard: &mut TestGuard, act: &Act) {
    let place = (crate::rules::ids::BranchId(1), crate::rules::ids::Seq(1));
    let ruling = guard.rule(place, act, &Deed::default(), Micros(1_500), false);
    assert!(matches!(ruling, Ok(Ruling::Done { .. })), "{ruling:?}");
}

/// What a world's journal holds of answers that came too late: how often each was told.
fn stale(world: &World) -> Vec<(String, i64)> {
    let db = world.sql();
    let sql = "SELECT detail, count FROM events WHERE kind = 'stale_result' ORDER BY id";
    let mut rows = db.prepare(sql).unwrap();
    let read = rows.query_map((), |row| Ok((row.get(0)?, row.get(1)?)));
    read.unwrap().map(Result::unwrap).collect()
}

fn end_with(guard: &mut TestGuard, created_at: Option<&str>, body: &str) {
    let end = Op::TaskEnd {
        task_id: "t-1".into(),
        created_at: created_at.map(Into::into),
        answer: answer(Status::Completed, body),
    };
    let done = guard.run(&[end], Micros(1_600)).unwrap();
    assert!(matches!(done[..], [Done::Noted]), "{done:?}");
}

#[test]
fn the_end_of_a_task_that_was_taken_away_is_kept_once_for_each_that_was_seen() {
    let world = World::new();
    let mut maker = world.guard();
    task(&mut maker, 1, None);
    let fence = crate::rules::ids::Fence(1);
    rule(
        &mut maker,
        &Act::Resolve {
            verdict: Verdict::NotExecuted,
            forces: true,
            seen: Some(fence),
        },
    );
    // By its id and time, whoever sees it; by its id alone only who made it.
    end_with(&mut world.guard(), None, "{\"r\":1}");
    end_with(&mut maker, Some("another time"), "{\"r\":1}");
    assert_eq!(stale(&world), []);
    for _ in 0..3 {
        end_with(&mut world.guard(), Some("then"), "{\"r\":1}");
    }
    end_with(&mut maker, None, "{\"r\":2}");
    let told = stale(&world);
    let counts: Vec<i64> = told.iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, [3, 1], "{told:?}");
    // Whoever has the entry now, the task was its maker's.
    reserve(&mut world.guard(), call(Some(1), "{}"), 1_700);
    end_with(&mut maker, None, "{\"r\":3}");
    assert_eq!(stale(&world).len(), 3);
    assert!(told[0].0.contains("{\\\"r\\\":1}") && told[1].0.contains("{\\\"r\\\":2}"));
}

/// Two tasks of one id and one time are two, and so are the ends of both.
#[test]
fn equal_ends_of_two_tasks_that_were_taken_away_are_two() {
    let world = World::new();
    let mut maker = world.guard();
    for attempt in 1..=2 {
        task(&mut maker, 1, None);
        rule(
            &mut maker,
            &Act::Resolve {
                verdict: Verdict::NotExecuted,
                forces: true,
                seen: Some(crate::rules::ids::Fence(attempt * 2 - 1)),
            },
        );
        end_with(&mut maker, Some("then"), "{\"r\":1}");
    }
    let counts: Vec<i64> = stale(&world).into_iter().map(|(_, count)| count).collect();
    assert_eq!(counts.len(), 2, "{counts:?}");
}

#[test]
fn the_end_of_a_task_that_had_ended_before_it_was_reopened_is_no_news() {
    let world = World::new();
    let mut maker = world.guard();
    task(&mut maker, 1, None);
    assert!(end(&mut maker, Some("then")));
    rule(&mut maker, &Act::Reopen);
    let ticket = reserve(&mut maker, call(Some(1), "{}"), 1_550);
    assert_eq!(ticket.attempt, 2);
    end_with(&mut maker, Some("then"), "{\"r\":1}");
    assert_eq!(stale(&world), []);
}

/// Under `fence_results = false` whoever finishes first settles the entry, also from an attempt
/// that was taken over, but only the call that the entry holds.
#[test]
fn the_first_finisher_wins_only_for_the_arguments_that_the_entry_has() {
    for (again, status, wins) in [("{}", "COMPLETED", true), ("{\"n\":2}", "PENDING", false)] {
        let world = World::new();
        let mut guard = world.guard();
        let first = reserve(&mut guard, call(Some(1), "{}"), 1_000);
        void(&mut guard, first, 1_001);
        let second = reserve(&mut guard, call(Some(1), again), 1_002);
        assert_ne!(first.fence, second.fence);
        let late = Settlement::Answered {
            ticket: first,
            signature: Signature([0; 32]),
            first_wins: true,
            may_rerun: false,
            answer: answer(Status::Completed, "{\"r\":1}"),
        };
        let done = guard.run(&[Op::Settle(late)], Micros(1_003)).unwrap();
        assert_eq!(matches!(done[..], [Done::Settled(_)]), wins, "{done:?}");
        let found: String = world
            .sql()
            .query_row("SELECT status FROM entries", (), |row| row.get(0))
            .unwrap();
        assert_eq!(found, status);
    }
}

/// A round that did not run leads back to its question, whose bytes need not be kept: it is no
/// damage that they are not there.
#[test]
fn a_voided_round_leads_back_to_its_question_kept_or_not() {
    for is_kept in [true, false] {
        let world = World::new();
        let mut guard = world.guard();
        let ticket = reserve(&mut guard, call(Some(1), "{}"), 1_000);
        let question = Answer {
            is_kept,
            ..answer(Status::InputRequired, QUESTION)
        };
        settle(&mut guard, ticket, question, 1_001);
        let mut second = call(Some(1), "{}");
        second.round = Some(Round {
            state: Some(state()),
            inputs: "name".into(),
        });
        let round = reserve(&mut guard, second, 1_002);
        void(&mut guard, round, 1_003);
        match admit(&mut guard, call(Some(1), "{}"), 1_004) {
            AdmissionVerdict::Replay(replay) if is_kept => {
                assert_eq!(replay.outcome.body.as_deref(), Some(QUESTION.as_bytes()));
            }
            AdmissionVerdict::Refuse(refused) if !is_kept => {
                assert_eq!(refused.why, Why::Table(Decision::Expired));
            }
            other => panic!("{is_kept}: {other:?}"),
        }
        assert_eq!(findings(&world), [""; 0]);
    }
}

/// Who was answered by an older attempt has told of it under the fence that it knows.
#[test]
fn what_an_older_attempt_finished_is_delivered_and_given_up_under_its_own_fence() {
    for (op, column) in [
        (Op::Deliver as fn(Ticket) -> Op, "delivered_at"),
        (|ticket| Op::GiveUp(ticket, GaveUp::Cancelled), "gave_up"),
    ] {
        let world = World::new();
        let mut guard = world.guard();
        let first = reserve(&mut guard, call(Some(1), "{}"), 1_000);
        void(&mut guard, first, 1_001);
        reserve(&mut guard, call(Some(1), "{}"), 1_002);
        let late = Settlement::Answered {
            ticket: first,
            signature: Signature([0; 32]),
            first_wins: true,
            may_rerun: false,
            answer: answer(Status::Completed, "{\"r\":1}"),
        };
        guard.run(&[Op::Settle(late)], Micros(1_003)).unwrap();
        guard.run(&[op(first)], Micros(1_004)).unwrap();
        let is_set: bool = world
            .sql()
            .query_row(
                &format!("SELECT {column} IS NOT NULL FROM entries"),
                (),
                |row| row.get(0),
            )
            .unwrap();
        assert!(is_set, "{column}");
    }
}
