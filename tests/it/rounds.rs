//! Calls that are answered in rounds, and calls that are answered with a task.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, result_bytes};
use crate::world::World;

fn ask(id: u32) -> Call {
    Call::new(id, "ask", json!({"order_id": "A-1"})).modern()
}

/// The next round: what the question asked for, and the state that it gave.
fn round(id: u32, state: &str) -> Call {
    ask(id).param("requestState", state).param(
        "inputResponses",
        json!({"answer": {"action": "accept", "content": {}}}),
    )
}

/// Case C11.
#[test]
fn a_question_is_no_outcome_and_its_answer_goes_on_with_the_same_entry() {
    for seq in [Some(1), None] {
        let world = World::new();
        let with_seq = |call: Call| match seq {
            Some(seq) => call.seq(seq),
            None => call,
        };
        let mut proxy = world.proxy().start();
        let question = proxy.call(&with_seq(ask(1)));
        assert_eq!(question["result"]["resultType"], "input_required");
        assert_eq!(world.status(1), "INPUT_REQUIRED");
        assert_eq!(world.effects_of("ask"), 0);
        let done = proxy.call_line(&with_seq(round(2, "state-1")));
        assert!(result_bytes(&done).contains(r#""resultType":"complete""#));
        assert_eq!(world.status(1), "COMPLETED");
        if let Some(seq) = seq {
            let replay = proxy.call_line(&ask(3).seq(seq));
            assert_eq!(result_bytes(&replay), result_bytes(&done));
        }
        proxy.stop();
        assert_eq!(world.entries().len(), 1, "{seq:?}");
        assert_eq!(world.effects_of("ask"), 1);
        assert_eq!(world.calls_at_upstream(), 2);
    }
}

#[test]
fn a_crash_between_the_rounds_lets_the_next_round_through() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let question = proxy.call_line(&ask(1).seq(1));
    proxy.kill9();
    let mut proxy = world.proxy().start();
    // A first round again is asked the same question, without the upstream.
    let again = proxy.call_line(&ask(2).seq(1));
    assert_eq!(result_bytes(&again), result_bytes(&question));
    assert_eq!(world.calls_at_upstream(), 1);
    let wrong = proxy.call(&round(3, "state-7").seq(1));
    assert_refused(&wrong, "divergence", "not_started");
    assert_done(&proxy.call(&round(4, "state-1").seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("ask"), 1);
    assert_eq!(world.calls_at_upstream(), 2);
}

#[test]
fn a_crash_in_a_round_leaves_the_whole_call_in_doubt() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.call(&ask(1).seq(1));
    let answer = proxy.call(
        &round(2, "state-1")
            .seq(1)
            .script(json!({"die": "after_effect"})),
    );
    assert_refused(&answer, "outcome_unknown", "unknown");
    assert_eq!(proxy.wait_code(), 69);
    let mut proxy = world.proxy().start();
    assert_refused(&proxy.call(&ask(3).seq(1)), "in_doubt", "unknown");
    let again = proxy.call(&round(4, "state-1").seq(1));
    assert_refused(&again, "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.effects_of("ask"), 1);
}

/// Case C105: a lost handle is found again, and no second task is made.
#[test]
fn a_lost_task_handle_is_found_again() {
    for is_modern in [true, false] {
        let world = World::new();
        let call = |id: u32| {
            let call = Call::new(id, "task", json!({"polls": 2})).seq(1);
            if is_modern {
                call.modern()
            } else {
                call.param("task", json!({"ttl": 60000}))
            }
        };
        let mut proxy = world.proxy().start();
        let handle = proxy.call_line(&call(1));
        assert_eq!(world.status(1), "ACCEPTED");
        let again = proxy.call_line(&call(2));
        assert_eq!(result_bytes(&again), result_bytes(&handle));
        // Task traffic always passes.
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
        let meta = if is_modern { meta } else { json!({}) };
        let params = json!({"taskId": "task-1", "_meta": meta});
        let mut state = Value::Null;
        for id in 10..=11 {
            state = proxy.request(id, "tasks/get", params.clone());
        }
        assert_eq!(state["result"]["status"], "completed", "{state}");
        if !is_modern {
            proxy.request(12, "tasks/result", params);
        }
        let replay = proxy.call(&call(3));
        proxy.stop();
        if is_modern {
            let text = &replay["result"]["content"][0]["text"];
            assert_eq!(text, "the task is done", "{replay}");
            assert_eq!(replay["result"]["resultType"], "complete", "{replay}");
        } else {
            assert_eq!(replay["result"]["task"]["taskId"], "task-1", "{replay}");
        }
        assert_eq!(world.status(1), "COMPLETED");
        assert_eq!(world.effects_of("task"), 1);
        assert_eq!(world.calls_at_upstream(), 1);
    }
}

#[test]
fn a_result_of_the_older_revisions_is_made_legal_for_the_stateless_one() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let legacy = proxy.call(&Call::charge(1).seq(1));
    assert_eq!(legacy["result"].get("resultType"), None);
    let modern = proxy.call(&Call::charge(2).seq(1).modern());
    assert_eq!(modern["result"]["resultType"], "complete", "{modern}");
    assert_eq!(modern["result"]["content"], legacy["result"]["content"]);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_question_is_not_replayable_to_the_older_revisions() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.call(&ask(1).seq(1));
    let legacy = Call::new(2, "ask", json!({"order_id": "A-1"})).seq(1);
    let answer = proxy.call(&legacy);
    assert_refused(&answer, "not_replayable", "unknown");
    assert_eq!(answer["error"]["code"], 7711);
    proxy.stop();
    assert_eq!(world.effects_of("ask"), 0);
    assert_eq!(world.calls_at_upstream(), 1);
}
