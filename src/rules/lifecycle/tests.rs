use super::*;

fn entry(status: Status) -> Entry {
    let mut entry = pending(reservation(1), 1, 0);
    entry.status = status;
    entry
}

fn reservation(fence: u64) -> Reservation {
    Reservation {
        branch: BranchId(1),
        seq: Seq(7),
        tool: "charge".into(),
        scheme: Scheme::Plain,
        signature: Signature([1; 32]),
        fence: Fence(fence),
        session: SessionId(1),
        at: Micros(10),
        key: None,
        call_id: None,
    }
}

fn settlement(status: Status) -> Settlement {
    Settlement {
        status,
        is_error: false,
        provenance: Provenance::Upstream,
        digest: [2; 32],
        is_tombstone: false,
        at: Micros(20),
    }
}

#[test]
fn only_a_pending_or_accepted_entry_is_settled() {
    for from in Status::ALL {
        for to in Status::ALL {
            let legal = match from {
                Status::Pending => matches!(
                    to,
                    Status::Completed | Status::Failed | Status::InputRequired | Status::Accepted
                ),
                Status::Accepted => matches!(to, Status::Completed | Status::Failed),
                _ => false,
            };
            assert_eq!(
                settle(&entry(from), settlement(to)).is_ok(),
                legal,
                "{from:?} to {to:?}"
            );
        }
    }
}

#[test]
fn an_outcome_is_all_that_a_settled_entry_tells() {
    let mut task = entry(Status::Accepted);
    task.provenance = Some(Provenance::Operator);
    task.delivered_at = Some(Micros(4));
    let end = Settlement {
        is_error: true,
        is_tombstone: true,
        ..settlement(Status::Failed)
    };
    let mut told = entry(Status::Failed);
    told.is_error = true;
    told.provenance = Some(Provenance::Upstream);
    told.digest = Some([2; 32]);
    told.is_tombstone = true;
    told.completed_at = Some(Micros(20));
    assert_eq!(settle(&task, end).unwrap().entry, told);
}

#[test]
fn what_did_not_run_was_given_up_by_nobody() {
    let mut open = entry(Status::Pending);
    open.gave_up = Some(GaveUp::Gone);
    open.unanswered = Some(Unanswered::UpstreamExited);
    let told = void(&open, Micros(9), None).unwrap().entry;
    assert_eq!((told.gave_up, told.unanswered), (None, None));
    assert_eq!(told.status, Status::Voided);
}

#[test]
fn notes_and_voiding_apply_to_pending_entries_only() {
    for status in Status::ALL {
        let pending = status == Status::Pending;
        let entry = entry(status);
        assert_eq!(give_up(&entry, GaveUp::Gone).is_ok(), pending);
        assert_eq!(lose(&entry, Unanswered::UpstreamExited).is_ok(), pending);
        assert_eq!(void(&entry, Micros(1), None).is_ok(), pending);
    }
}

#[test]
fn only_a_pending_entry_is_ruled_on_and_only_a_settled_one_reopened() {
    for status in Status::ALL {
        let is_pending = status == Status::Pending;
        let entry = entry(status);
        let is_open = is_pending || matches!(status, Status::InputRequired | Status::Accepted);
        assert_eq!(take_away(&entry, Fence(9)).is_ok(), is_open, "{status:?}");
        for provenance in [Provenance::Upstream, Provenance::Operator] {
            let mut entry = entry.clone();
            entry.provenance = Some(provenance);
            let is_ruled = match status {
                Status::Voided => true,
                Status::Completed | Status::Failed => provenance == Provenance::Operator,
                _ => false,
            };
            let taken = take_back(&entry, Fence(9));
            assert_eq!(taken.is_ok(), is_ruled, "{status:?} {provenance:?}");
            if let Ok(taken) = taken {
                let taken = taken.entry;
                assert_eq!((taken.status, taken.fence), (Status::Pending, Fence(9)));
                assert_eq!((taken.provenance, taken.digest), (None, None));
                assert_eq!((taken.attempt, taken.round), (entry.attempt, entry.round));
            }
        }
        for to in Status::ALL {
            let legal = is_pending && matches!(to, Status::Completed | Status::Failed);
            assert_eq!(rule(&entry, settlement(to)).is_ok(), legal, "{to:?}");
        }
        let settled = matches!(status, Status::Completed | Status::Failed | Status::Denied);
        assert_eq!(reopen(&entry, Micros(9)).is_ok(), settled, "{status:?}");
    }
}

#[test]
fn only_what_is_settled_is_buried() {
    for status in Status::ALL {
        let buried = bury(&entry(status)).map(|transition| transition.entry);
        match status {
            Status::Completed | Status::Failed => assert!(buried.unwrap().is_tombstone),
            Status::Voided | Status::Denied => assert_eq!(buried.unwrap(), entry(status)),
            Status::Pending | Status::InputRequired | Status::Accepted => {
                assert!(buried.is_err());
            }
        }
    }
}

#[test]
fn an_owner_that_was_fenced_loses_by_comparison() {
    let owned = entry(Status::Pending);
    let late = settle(&owned, settlement(Status::Completed)).unwrap();
    let taken = take_away(&owned, Fence(9)).unwrap().entry;
    let Expect::At { fence, .. } = late.expect else {
        panic!("an outcome expects an entry");
    };
    assert_ne!(fence, taken.fence);
    assert_eq!(taken.unanswered, Some(Unanswered::Fenced));
    let ruled = rule(&taken, settlement(Status::Completed)).unwrap().entry;
    assert_eq!((ruled.fence, ruled.unanswered), (Fence(9), None));
    assert_eq!(ruled.gave_up, Some(GaveUp::Gone));
}

/// What is left in the row is that of a call without an outcome, whose next answer is its
/// first: the question or the handle stays where it was given.
#[test]
fn a_question_or_a_task_that_is_taken_away_is_pending_and_clean() {
    for status in [Status::InputRequired, Status::Accepted] {
        let mut open = entry(status);
        open.digest = Some([7; 32]);
        open.provenance = Some(Provenance::Upstream);
        open.completed_at = Some(Micros(3));
        open.delivered_at = Some(Micros(4));
        open.is_error = true;
        open.is_tombstone = true;
        let end = settle(&entry(Status::Accepted), settlement(Status::Completed)).unwrap();
        let taken = take_away(&open, Fence(9)).unwrap();
        assert_eq!(taken.expect, expect(&open));
        let mut clean = entry(Status::Pending);
        clean.fence = Fence(9);
        clean.unanswered = Some(Unanswered::Fenced);
        clean.gave_up = Some(GaveUp::Gone);
        assert_eq!(taken.entry, clean);
        assert_ne!(end.expect, expect(&clean));
        let voided = void(&clean, Micros(9), None).unwrap().entry;
        assert_eq!(voided.status, Status::Voided);
    }
}

#[test]
fn a_reopened_entry_starts_its_next_attempt_clean() {
    let mut done = entry(Status::Completed);
    done.digest = Some([7; 32]);
    done.provenance = Some(Provenance::Upstream);
    done.is_tombstone = true;
    done.is_error = true;
    done.gave_up = Some(GaveUp::Gone);
    done.unanswered = Some(Unanswered::UpstreamExited);
    let open = reopen(&done, Micros(9)).unwrap().entry;
    let mut clean = entry(Status::Voided);
    clean.completed_at = Some(Micros(9));
    clean.delivered_at = Some(Micros(9));
    assert_eq!(open, clean);
    assert!(!open.is_undelivered());
    let next = reserve_again(&open, reservation(2)).unwrap().entry;
    assert_eq!((next.attempt, next.status), (2, Status::Pending));
}

#[test]
fn a_new_attempt_expects_the_old_one_and_starts_clean() {
    let mut old = entry(Status::Failed);
    old.attempt = 2;
    old.digest = Some([9; 32]);
    old.delivered_at = Some(Micros(3));
    let next = reserve_again(&old, reservation(9)).unwrap();
    assert_eq!(
        next.expect,
        Expect::At {
            status: Status::Failed,
            attempt: 2,
            fence: Fence(1)
        }
    );
    assert_eq!(next.entry.attempt, 3);
    assert_eq!(next.entry.fence, Fence(9));
    assert_eq!(next.entry.digest, None);
    assert_eq!(next.entry.delivered_at, None);
}

#[test]
fn no_attempt_starts_beside_a_question_a_task_or_a_denial() {
    for status in [Status::InputRequired, Status::Accepted, Status::Denied] {
        assert!(reserve_again(&entry(status), reservation(2)).is_err());
    }
    assert!(reserve_round(&entry(Status::InputRequired), reservation(2)).is_ok());
    assert!(reserve_round(&entry(Status::Completed), reservation(2)).is_err());
}

#[test]
fn a_voided_later_round_goes_back_to_its_question() {
    let mut second = entry(Status::Pending);
    second.round = 1;
    second.fence = Fence(2);
    second.gave_up = Some(GaveUp::Gone);
    second.unanswered = Some(Unanswered::UpstreamExited);
    let asked = Asked {
        fence: Fence(1),
        digest: [4; 32],
        is_tombstone: true,
        at: Micros(5),
        delivered_at: Some(Micros(6)),
    };
    let back = void(&second, Micros(9), Some(asked)).unwrap().entry;
    let mut question = entry(Status::InputRequired);
    question.provenance = Some(Provenance::Upstream);
    question.digest = Some([4; 32]);
    question.is_tombstone = true;
    question.completed_at = Some(Micros(5));
    question.delivered_at = Some(Micros(6));
    assert_eq!(back, question);
}
