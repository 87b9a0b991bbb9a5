//! Calls that another proxy took over, or an operator took away.

use super::*;
use checkpoint::guard::verdict::{self, Act, Deed, Owner, Ruling, Verdict};

/// Two proxies of one call: the first is silent for longer than it may be, and the second takes it
/// over.
fn taken_over(store: &Store, policy: Promise) -> (Proxy, Proxy) {
    let set = |plan: &mut Plan| plan.promise = policy;
    let (mut one, mut two) = (Proxy::with(store, set), Proxy::with(store, set));
    for proxy in [&mut one, &mut two] {
        proxy.call(1, SEQ_1);
        proxy.journal();
        assert!(proxy.sent().contains("tools/call"));
        store.borrow_mut().uptime += Duration::from_secs(60);
    }
    (one, two)
}

#[test]
fn an_outcome_of_an_attempt_before_counts_as_delivered_once_its_caller_has_it() {
    let store = store();
    let first_wins = Promise {
        fences_results: false,
        ..AT_LEAST_ONCE
    };
    let (mut one, _two) = taken_over(&store, first_wins);
    one.answer(1, "done");
    one.journal();
    assert_eq!(entry(&store).status, Status::Completed);
    assert_eq!(entry(&store).delivered_at, None);
    assert!(one.told().contains("done"));
    one.written();
    one.journal();
    assert!(entry(&store).delivered_at.is_some());
}

#[test]
fn who_cancels_while_the_answer_to_an_attempt_before_is_written_is_known_to_have_given_up() {
    let store = store();
    let first_wins = Promise {
        fences_results: false,
        ..AT_LEAST_ONCE
    };
    let (mut one, _two) = taken_over(&store, first_wins);
    one.answer(1, "done");
    let done = one.one_batch();
    one.cancel(1);
    one.session.journal_done(done, one.now);
    one.journal();
    assert_eq!(entry(&store).status, Status::Completed);
    assert!(entry(&store).gave_up.is_some());
}

#[test]
fn the_cancellation_of_a_shielded_call_that_was_taken_over_is_not_forwarded() {
    let store = store();
    let shielded = Promise {
        shields: true,
        finishes_lost: true,
        ..AT_LEAST_ONCE
    };
    let set = |plan: &mut Plan| {
        plan.promise = shielded;
        plan.call_timeout = Some(Duration::from_secs(1));
    };
    let (mut one, mut two) = (Proxy::with(&store, set), Proxy::with(&store, set));
    one.call(1, SEQ_1);
    one.journal();
    assert!(one.sent().contains("tools/call"));
    store.borrow_mut().uptime += Duration::from_secs(60);
    two.call(1, SEQ_1);
    two.journal();
    // Its caller is told that nobody knows, and then it is known that the call is another's.
    one.later(Duration::from_secs(2));
    one.journal();
    one.later(Duration::from_secs(2));
    one.journal();
    one.cancel(1);
    assert_eq!(one.sent(), "");
}

/// An operator does something to the only entry, whoever may act on it.
fn rule(store: &Store, verdict: Verdict) {
    let entry = entry(store);
    let act = Act::Resolve {
        verdict,
        forces: true,
        seen: Some(entry.fence),
    };
    let mut journal = SimJournal::new(store);
    let lives = Owner {
        is_live: true,
        upstream_alive: Some(true),
    };
    let ruling = verdict::rule(
        &mut journal,
        (entry.branch, entry.seq),
        &act,
        &Deed::default(),
        Micros(2_000_000),
        &mut |_, _| lives,
        false,
    );
    journal.give_back();
    assert!(matches!(ruling, Ok(Ruling::Done { .. })), "{ruling:?}");
}

#[test]
fn a_round_that_did_not_run_leaves_a_question_that_is_not_kept_as_one() {
    for by_operator in [false, true] {
        let store = store();
        let mut one = Proxy::with(&store, |plan| plan.promise.stores_results = false);
        one.call(1, SEQ_1);
        one.journal();
        one.sent();
        let asks =
            "{\"id\":1,\"result\":{\"resultType\":\"input_required\",\"requestState\":\"s\"}}\n";
        one.session.upstream_line(asks.as_bytes().to_vec(), one.now);
        one.journal();
        one.told();
        one.call(2, &format!("{SEQ_1},\"requestState\":\"s\""));
        one.journal();
        assert_eq!(entry(&store).round, 1);
        if by_operator {
            rule(&store, Verdict::NotExecuted);
        } else {
            one.session
                .upstream_ended(UpstreamEnd::default(), 0, one.now);
            one.journal();
        }
        assert_eq!(entry(&store).status, Status::InputRequired);
        let mut two = Proxy::with(&store, |plan| plan.promise.stores_results = false);
        two.call(1, SEQ_1);
        two.journal();
        let told = two.told();
        assert!(told.contains("\"result_expired\""), "{told}");
    }
}

#[test]
fn what_a_key_covers_is_told_of_a_call_that_was_sent_and_taken_away() {
    let store = store();
    let covers = |plan: &mut Plan| plan.promise.covers = true;
    let (mut one, mut two) = (Proxy::with(&store, covers), Proxy::with(&store, covers));
    let call = |w: u8| {
        format!("\"arguments\":{{\"v\":1,\"w\":{w}}},\"_meta\":{{\"checkpoint_key\":\"k\"}}")
    };
    one.call(1, &call(1));
    one.journal();
    one.sent();
    rule(&store, Verdict::NotExecuted);
    two.call(1, &call(2));
    two.journal();
    assert!(two.sent().contains("\"w\":2"));
    one.answer(1, "late");
    one.journal();
    assert_eq!(one.told(), "", "it waits for the call that has its key");
    two.answer(1, "done");
    two.journal();
    one.later(Duration::from_secs(1));
    one.journal();
    assert!(one.told().contains("done"));
}

#[test]
fn a_call_that_was_sent_and_taken_away_is_told_of_no_difference_that_is_none() {
    let store = store();
    let (mut one, mut two) = (Proxy::new(&store), Proxy::new(&store));
    let call =
        |a: u8| format!("\"arguments\":{{\"a\":{a},\"b\":0}},\"_meta\":{{\"checkpoint_seq\":1}}");
    one.call(1, &call(1));
    one.journal();
    one.sent();
    rule(&store, Verdict::NotExecuted);
    two.call(1, &call(2));
    two.journal();
    two.sent();
    one.answer(1, "late");
    one.journal();
    let told = one.told();
    assert!(told.contains("\"in_flight\""), "{told}");
    assert!(!told.contains("/b"), "{told}");
}

#[test]
fn a_second_answer_does_not_answer_a_replay_under_the_same_id_once_more() {
    let store = store();
    let mut one = Proxy::new(&store);
    one.call(1, SEQ_1);
    one.journal();
    one.sent();
    one.answer(1, "first");
    one.journal();
    assert!(one.told().contains("first"));
    // The id is used again, and the call is answered without the upstream.
    one.call(1, SEQ_1);
    one.journal();
    assert!(one.told().contains("first"));
    one.answer(1, "second");
    assert_eq!(one.told(), "");
}
