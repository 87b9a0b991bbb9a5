use crate::guard::AdmissionVerdict;
use crate::guard::Call;
use crate::guard::fixture::{World, admit, answer, call, deliver, reserve, settle};
use crate::rules::decide::Decision;
use crate::rules::entry::{Status, outcome_digest};

use super::Why;

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
