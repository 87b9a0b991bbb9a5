//! Calls that another proxy took over, or an operator took away.

use super::*;

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
