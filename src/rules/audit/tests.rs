use super::*;
use crate::rules::entry::outcome_digest;

const UID: [u8; 16] = [3; 16];

fn step(fence: u64, attempt: u32, round: u32, previous: Option<u64>) -> Step {
    Step {
        fence: Fence(fence),
        branch: BranchId(1),
        seq: Seq(7),
        attempt,
        round,
        previous: previous.map(Fence),
        session: SessionId(1),
        started_at: Micros(10),
        scheme: Scheme::Plain,
        signature: Signature([1; 32]),
        arguments: Body::Holds,
        outcome: None,
        task_end: None,
        is_voided: false,
        is_reopened: false,
        is_retried: false,
        is_fenced: false,
        is_retracted: false,
    }
}

fn ending(status: Status) -> Ending {
    Ending {
        status,
        is_error: false,
        provenance: Provenance::Upstream,
        at: Micros(20),
        digest: outcome_digest(status.name().as_bytes()),
        body: Body::Holds,
    }
}

/// Returns the row that an untouched history leads to.
fn row(steps: &[Step]) -> Entry {
    let first = &steps[0];
    let seed = lifecycle::reserve_new(Reservation {
        branch: first.branch,
        seq: first.seq,
        tool: "charge".into(),
        scheme: first.scheme,
        signature: first.signature,
        fence: first.fence,
        session: first.session,
        at: first.started_at,
        key: None,
        call_id: None,
    })
    .entry;
    let history = History {
        entry: seed,
        checksum: [0; 16],
        steps: steps.to_vec(),
        missing: None,
    };
    replay(&history, &mut Faults(Vec::new()))
}

fn sealed(entry: Entry, steps: Vec<Step>) -> History {
    History {
        checksum: entry.checksum(&UID),
        entry,
        steps,
        missing: None,
    }
}

fn kinds(history: &History) -> Vec<FaultKind> {
    audit(history, &UID)
        .into_iter()
        .map(|fault| fault.kind)
        .collect()
}

/// Histories that the product writes, one for each way through the lifecycle.
fn sound() -> Vec<Vec<Step>> {
    let with = |mut step: Step, status| {
        step.outcome = Some(ending(status));
        step
    };
    let mut task = with(step(1, 1, 0, None), Status::Accepted);
    task.task_end = Some(ending(Status::Failed));
    let mut voided = step(1, 1, 0, None);
    voided.is_voided = true;
    let mut reopened = with(step(1, 1, 0, None), Status::Completed);
    reopened.is_reopened = true;
    let mut tool_error = with(step(1, 1, 0, None), Status::Completed);
    tool_error.outcome.as_mut().unwrap().is_error = true;
    let mut fenced = step(1, 1, 0, None);
    fenced.is_fenced = true;
    let mut void_after = step(2, 1, 0, Some(1));
    void_after.is_voided = true;
    let mut taken_back = void_after.clone();
    taken_back.is_retracted = true;
    let mut ruled = step(2, 1, 0, Some(1));
    ruled.outcome = Some(Ending {
        provenance: Provenance::Operator,
        ..ending(Status::Failed)
    });
    ruled.is_retracted = true;
    let adopted = with(step(3, 1, 0, Some(2)), Status::Completed);
    vec![
        vec![fenced.clone(), taken_back, adopted.clone()],
        vec![fenced.clone(), ruled, adopted],
        vec![fenced.clone(), step(2, 1, 0, Some(1))],
        vec![
            fenced.clone(),
            with(step(2, 1, 0, Some(1)), Status::Completed),
        ],
        vec![fenced, void_after, step(3, 2, 0, Some(2))],
        vec![step(1, 1, 0, None)],
        vec![with(step(1, 1, 0, None), Status::Completed)],
        vec![with(step(1, 1, 0, None), Status::Failed)],
        vec![with(step(1, 1, 0, None), Status::InputRequired)],
        vec![with(step(1, 1, 0, None), Status::Accepted)],
        vec![task],
        vec![voided.clone()],
        vec![voided, with(step(5, 2, 0, Some(1)), Status::Completed)],
        vec![reopened.clone()],
        vec![reopened, step(2, 2, 0, Some(1))],
        vec![tool_error, with(step(2, 2, 0, Some(1)), Status::Completed)],
        vec![
            with(step(1, 1, 0, None), Status::Failed),
            with(step(2, 2, 0, Some(1)), Status::Failed),
            step(9, 3, 0, Some(2)),
        ],
        vec![
            with(step(1, 1, 0, None), Status::InputRequired),
            with(step(3, 1, 1, Some(1)), Status::InputRequired),
            with(step(4, 1, 2, Some(3)), Status::Completed),
        ],
    ]
}

#[test]
fn what_the_product_writes_holds() {
    for steps in sound() {
        let history = sealed(row(&steps), steps);
        assert_eq!(audit(&history, &UID), [], "{history:?}");
    }
}

#[test]
fn every_change_to_a_row_is_found() {
    let changes: [fn(&mut Entry); 9] = [
        |entry| {
            entry.status = match entry.status {
                Status::Pending => Status::Completed,
                _ => Status::Pending,
            }
        },
        |entry| entry.attempt += 1,
        |entry| entry.round += 1,
        |entry| entry.tool.push('x'),
        |entry| entry.digest = Some([9; 32]),
        |entry| entry.is_error = !entry.is_error,
        |entry| entry.is_tombstone = !entry.is_tombstone,
        |entry| entry.signature = Signature([8; 32]),
        |entry| entry.provenance = Some(Provenance::Prober),
    ];
    for steps in sound() {
        for (index, change) in changes.iter().enumerate() {
            let mut history = sealed(row(&steps), steps.clone());
            change(&mut history.entry);
            let found = kinds(&history);
            assert!(
                found.contains(&FaultKind::Checksum),
                "change {index}: {found:?}"
            );
        }
    }
}

#[test]
fn a_row_with_a_fresh_checksum_is_still_compared_with_its_history() {
    let mut done = step(1, 1, 0, None);
    done.outcome = Some(ending(Status::Completed));
    let changes: [fn(&mut Entry); 6] = [
        |entry| entry.status = Status::Voided,
        |entry| entry.attempt = 2,
        |entry| entry.digest = Some([9; 32]),
        |entry| entry.is_error = true,
        |entry| entry.provenance = Some(Provenance::Operator),
        |entry| entry.completed_at = None,
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut entry = row(std::slice::from_ref(&done));
        change(&mut entry);
        let found = kinds(&sealed(entry, vec![done.clone()]));
        assert_eq!(found, [FaultKind::Row], "change {index}");
    }
}

#[test]
fn a_completed_call_that_ran_again_is_found() {
    let mut first = step(1, 1, 0, None);
    first.outcome = Some(ending(Status::Completed));
    let steps = vec![first, step(2, 2, 0, Some(1))];
    let history = sealed(row(&steps), steps);
    let faults = audit(&history, &UID);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(faults[0].kind, FaultKind::Transition);
    assert_eq!(faults[0].fence, Some(Fence(2)));
}

#[test]
fn a_call_in_doubt_runs_again_only_where_a_policy_is_recorded() {
    let mut steps = vec![step(1, 1, 0, None), step(2, 2, 0, Some(1))];
    assert_eq!(
        kinds(&sealed(row(&steps), steps.clone())),
        [FaultKind::Transition]
    );
    steps[1].is_retried = true;
    assert_eq!(kinds(&sealed(row(&steps), steps)), []);
}

#[test]
fn an_attempt_stands_under_another_fence_only_where_its_owner_was_fenced() {
    let mut steps = vec![step(1, 1, 0, None), step(2, 1, 0, Some(1))];
    assert_ne!(kinds(&sealed(row(&steps), steps.clone())), []);
    steps[0].is_fenced = true;
    assert_eq!(kinds(&sealed(row(&steps), steps.clone())), []);
    steps[1].outcome = Some(ending(Status::Completed));
    assert_eq!(kinds(&sealed(row(&steps), steps)), []);
}

/// A verdict can be taken back, the upstream's own answer can't, whatever an event says.
#[test]
fn a_verdict_is_taken_back_only_where_one_was_given_and_it_is_recorded() {
    for (provenance, is_retracted, holds) in [
        (Provenance::Operator, true, true),
        (Provenance::Synthetic, true, true),
        (Provenance::Operator, false, false),
        (Provenance::Upstream, true, false),
    ] {
        let mut first = step(1, 1, 0, None);
        first.outcome = Some(Ending {
            provenance,
            ..ending(Status::Completed)
        });
        first.is_retracted = is_retracted;
        let mut second = step(2, 1, 0, Some(1));
        second.outcome = Some(ending(Status::Completed));
        let steps = vec![first, second];
        let found = kinds(&sealed(row(&steps), steps));
        assert_eq!(found.is_empty(), holds, "{provenance:?} {is_retracted}");
    }
}

#[test]
fn impossible_changes_are_found() {
    let mut denied_round = step(1, 1, 0, None);
    denied_round.outcome = Some(ending(Status::Failed));
    let steps = vec![denied_round, step(2, 1, 1, Some(1))];
    assert!(kinds(&sealed(row(&steps), steps)).contains(&FaultKind::Transition));

    let mut twice = step(1, 1, 0, None);
    twice.outcome = Some(ending(Status::Failed));
    twice.task_end = Some(ending(Status::Completed));
    let steps = vec![twice];
    assert!(kinds(&sealed(row(&steps), steps)).contains(&FaultKind::Transition));

    let mut asked = step(1, 1, 0, None);
    asked.outcome = Some(ending(Status::Accepted));
    let steps = vec![asked, step(2, 2, 0, Some(1))];
    assert!(kinds(&sealed(row(&steps), steps)).contains(&FaultKind::Transition));
}

#[test]
fn the_chain_is_whole_its_own_and_rises() {
    let mut failed = step(5, 1, 0, None);
    failed.outcome = Some(ending(Status::Failed));
    let steps = vec![failed.clone(), step(4, 2, 0, Some(5))];
    assert!(kinds(&sealed(row(&steps), steps)).contains(&FaultKind::Fence));

    let mut strange = step(6, 2, 0, Some(5));
    strange.seq = Seq(8);
    let steps = vec![failed.clone(), strange];
    assert_eq!(kinds(&sealed(row(&steps), steps)), [FaultKind::Attempt]);

    // Nobody was fenced, so the same attempt can't stand under two fences.
    let steps = vec![failed.clone(), step(6, 1, 0, Some(5))];
    assert!(kinds(&sealed(row(&steps), steps)).contains(&FaultKind::Attempt));

    let steps = vec![failed, step(6, 3, 0, Some(5))];
    let found = kinds(&sealed(row(&steps), steps));
    assert_eq!(found, [FaultKind::Attempt]);

    let steps = vec![step(6, 2, 0, Some(5))];
    let mut history = sealed(row(&steps), steps);
    let only_fault = |history: &History| {
        let faults = audit(history, &UID);
        let [fault] = &faults[..] else {
            panic!("{faults:?}");
        };
        assert_eq!(fault.kind, FaultKind::Attempt);
        fault.what.clone()
    };
    history.missing = Some(Fence(5));
    assert_eq!(
        only_fault(&history),
        "an earlier attempt of it, with fence 5, is not there"
    );
    history.steps.clear();
    history.missing = Some(history.entry.fence);
    assert_eq!(
        only_fault(&history),
        "its attempt with fence 6 is not there"
    );
}

#[test]
fn bytes_are_there_unless_buried() {
    for (body, is_tombstone, expected) in [
        (Body::Holds, false, vec![]),
        (Body::Gone, true, vec![]),
        (Body::Gone, false, vec![FaultKind::Payload]),
        (Body::Holds, true, vec![FaultKind::Payload]),
        (Body::Differs, false, vec![FaultKind::Digest]),
    ] {
        let mut done = step(1, 1, 0, None);
        done.outcome = Some(Ending {
            body,
            ..ending(Status::Completed)
        });
        let mut entry = row(std::slice::from_ref(&done));
        entry.is_tombstone = is_tombstone;
        assert_eq!(kinds(&sealed(entry, vec![done])), expected, "{body:?}");
    }
}
