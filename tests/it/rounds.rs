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

/// The same call from a client that says that it can be asked for this and nothing else.
fn declaring(call: Call, id: u32, capabilities: Value) -> Call {
    let mut call = call.meta("io.modelcontextprotocol/clientCapabilities", capabilities);
    call.id = json!(id);
    call
}

/// MCP 8.4: the upstream must not ask for what was not declared, and neither do we in its place.
#[test]
fn a_question_is_asked_again_only_of_a_client_that_declares_what_it_needs() {
    for (kind, needs, lacks, has) in [
        (
            "elicitation",
            "elicitation.form",
            json!({"elicitation": {"url": {}}, "sampling": {}, "roots": {}}),
            json!({"elicitation": {}}),
        ),
        (
            "url",
            "elicitation.url",
            json!({"elicitation": {}, "sampling": {}, "roots": {}}),
            json!({"elicitation": {"url": {}}}),
        ),
        (
            "sampling",
            "sampling",
            json!({"elicitation": {}, "roots": {}}),
            json!({"sampling": {}}),
        ),
        (
            "sampling tools",
            "sampling.tools",
            json!({"elicitation": {}, "sampling": {}, "roots": {}}),
            json!({"sampling": {"tools": {}}}),
        ),
        (
            "roots",
            "roots",
            json!({"elicitation": {}, "sampling": {}}),
            json!({"roots": {"listChanged": true}}),
        ),
    ] {
        let world = World::new();
        let call = || {
            Call::new(0, "ask", json!({"kinds": [kind]}))
                .modern()
                .seq(1)
        };
        let mut proxy = world.proxy().start();
        // What the upstream says, it says.
        let live = proxy.call_line(&declaring(call(), 1, lacks.clone()));
        assert!(result_bytes(&live).contains("input_required"));
        for (id, capabilities) in [(2, lacks), (3, json!({})), (4, json!(null))] {
            let refused = proxy.call(&declaring(call(), id, capabilities));
            assert_refused(&refused, "not_replayable", "unknown");
            assert_eq!(refused["error"]["code"], 7711);
            let reason = refused["error"]["data"]["reason"].as_str().unwrap();
            let start = "a question that needs what the request does not declare: ";
            let told = reason.strip_prefix(start).unwrap();
            // Without any sampling there is none with tools.
            assert_eq!(told.strip_prefix("sampling, ").unwrap_or(told), needs);
            let message = refused["error"]["message"].as_str().unwrap();
            assert!(message.contains(reason), "{message}");
        }
        // It is kept for who can answer it, and goes on from there.
        assert_eq!(world.status(1), "INPUT_REQUIRED");
        let again = proxy.call_line(&declaring(call(), 5, has.clone()));
        assert_eq!(result_bytes(&again), result_bytes(&live), "{kind}");
        let answer = call()
            .param("requestState", "state-1")
            .param("inputResponses", json!({"answer": {}}));
        assert_done(&proxy.call(&declaring(answer, 6, has)));
        // Its outcome asks nothing of anybody.
        assert_done(&proxy.call(&declaring(call(), 7, json!({}))));
        proxy.stop();
        assert_eq!(world.entries().len(), 1, "{kind}");
        assert_eq!(world.effects_of("ask"), 1, "{kind}");
        assert_eq!(world.calls_at_upstream(), 2, "{kind}");
    }
}

/// A question that asks nothing, but to be called again with its state, needs nothing.
#[test]
fn a_question_that_asks_for_no_input_needs_no_capability() {
    let world = World::new();
    let call = |id: u32| Call::new(id, "ask", json!({"quiet": true})).modern();
    let bare = |id: u32| declaring(call(id).seq(1), id, json!({}));
    let mut proxy = world.proxy().start();
    let live = proxy.call_line(&bare(1));
    assert_eq!(
        result_bytes(&proxy.call_line(&bare(2))),
        result_bytes(&live)
    );
    assert_done(&proxy.call(&bare(3).param("requestState", "state-1")));
    proxy.stop();
    assert_eq!(world.effects_of("ask"), 1);
    assert_eq!(world.calls_at_upstream(), 2);
}

/// A charge that asks first, once it is let go.
fn held_question(id: u32) -> Call {
    let question = json!({"resultType": "input_required", "requestState": "s",
        "inputRequests": {"q": {"method": "elicitation/create", "params": {"message": "?"}}}});
    let script = json!({"hold_after": "h", "no_effect": true, "result": question.to_string()});
    Call::charge(id).modern().script(script)
}

/// Who waits for another's call is no better placed than who asks later.
#[test]
fn who_joins_a_call_is_asked_only_what_it_declares() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&held_question(1).seq(1));
    world.wait_held("h");
    let charge = |id: u32| Call::charge(id).modern().seq(1);
    proxy.send_call(&declaring(charge(0), 2, json!({"roots": {}})));
    proxy.send_call(&charge(3));
    proxy.await_decided();
    world.release("h");
    let question = proxy.recv_id(1);
    assert_eq!(question["result"]["resultType"], "input_required");
    assert_refused(&proxy.recv_id(2), "not_replayable", "unknown");
    assert_eq!(proxy.recv_id(3)["result"], question["result"]);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 0);
    // The charge, and what all waited for.
    assert_eq!(world.calls_at_upstream(), 2);
}

/// A refusal delivers nothing: the question that reached nobody is for the next who can answer.
#[test]
fn a_question_that_reached_nobody_waits_for_who_declares_what_it_needs() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let charge = |id: u32| Call::charge(id).modern();
    proxy.send_call(&held_question(1));
    world.wait_held("h");
    proxy.drop_client();
    world.release("h");
    assert_eq!(proxy.wait_code(), 0);
    assert_eq!(world.status(1), "INPUT_REQUIRED");
    let mut proxy = world.proxy().start();
    for id in 2..=3 {
        let refused = proxy.call(&declaring(charge(0), id, json!({})));
        assert_refused(&refused, "not_replayable", "unknown");
        // A model is calling: it is told in a result.
        let text = &refused["result"]["content"][0]["text"];
        assert!(
            text.as_str().unwrap().contains("elicitation.form"),
            "{text}"
        );
    }
    let found = proxy.call(&charge(4));
    assert_eq!(found["result"]["resultType"], "input_required", "{found}");
    assert_eq!(found["result"]["_meta"]["checkpoint"]["seq"], 1, "{found}");
    assert_done(&proxy.call(&charge(5).param("requestState", "s")));
    proxy.stop();
    assert_eq!(world.entries().len(), 1);
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 2);
}

/// Before the stateless revision a client declares for the whole connection what it can answer.
#[test]
fn an_older_client_declares_in_its_handshake_what_it_can_be_asked() {
    let world = World::new();
    let question = json!({"resultType": "input_required", "requestState": "s",
        "inputRequests": {"q": {"method": "roots/list"}}});
    let script = json!({"result": question.to_string()});
    let mut proxy = world.proxy().start();
    let live = proxy.call_line(&Call::charge(1).seq(1).script(script));
    assert_eq!(world.status(1), "INPUT_REQUIRED");
    let refused = proxy.call(&Call::charge(2).seq(1));
    assert_refused(&refused, "not_replayable", "unknown");
    let reason = refused["error"]["data"]["reason"].as_str().unwrap();
    assert!(reason.ends_with("in initialize: roots"), "{reason}");
    for (id, capabilities, can) in [
        (10, json!({"roots": {}}), true),
        (20, json!({"sampling": {}}), false),
    ] {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": {"name": "it", "version": "1"}});
        proxy.request(id, "initialize", params);
        let again = proxy.call_line(&Call::charge(id + 1).seq(1));
        if can {
            assert_eq!(result_bytes(&again), result_bytes(&live));
        } else {
            let again = serde_json::from_slice(&again).unwrap();
            assert_refused(&again, "not_replayable", "unknown");
        }
    }
    proxy.stop();
    assert_eq!(world.calls_at_upstream(), 1);
    assert_eq!(world.effects_of("charge"), 1);
}

/// Contract 7: it is found by its state over a restart, without seq or key.
#[test]
fn a_further_round_without_a_seq_is_found_by_its_state_over_a_restart() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_eq!(
        proxy.call(&ask(1))["result"]["resultType"],
        "input_required"
    );
    proxy.kill9();
    let mut proxy = world.proxy().start();
    let done = proxy.call_line(&round(2, "state-1"));
    assert!(result_bytes(&done).contains(r#""resultType":"complete""#));
    proxy.stop();
    assert_eq!(world.entries().len(), 1);
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.effects_of("ask"), 1);
}

fn stateless_ask(id: u32) -> Call {
    Call::new(id, "ask", json!({"order_id": "A-1", "stateless": true})).modern()
}

fn stateless_round(id: u32) -> Call {
    let answers = json!({"answer": {"action": "accept", "content": {}}});
    stateless_ask(id).param("inputResponses", answers)
}

#[test]
fn a_further_round_without_a_state_is_found_by_what_was_asked_in_this_session() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    // Two equal questions are open; the answers are for the oldest first.
    for id in 1..=2 {
        proxy.call(&stateless_ask(id));
    }
    // Answers to something else belong to neither.
    let strange = stateless_ask(3).param("inputResponses", json!({"other": {}}));
    proxy.call(&strange);
    assert_eq!(world.entries().len(), 3);
    for (id, seq) in [(4, 1), (5, 2)] {
        proxy.call(&stateless_round(id));
        assert_eq!(world.status(seq), "COMPLETED", "{seq}");
        assert_eq!(world.entries().len(), 3);
    }
    proxy.stop();
    // After a restart nothing tells whose answers these are.
    let mut proxy = world.proxy().start();
    proxy.call(&stateless_ask(6));
    proxy.kill9();
    let mut proxy = world.proxy().start();
    proxy.call(&stateless_round(7));
    proxy.stop();
    assert_eq!(world.status(4), "INPUT_REQUIRED");
    assert_eq!(world.entries().len(), 5);
}

#[test]
fn another_state_or_other_arguments_under_its_seq_diverge() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.call(&ask(1).seq(1));
    let answers = json!({"answer": {"action": "accept", "content": {}}});
    let without_state = ask(2).seq(1).param("inputResponses", answers.clone());
    let other_arguments = Call::new(3, "ask", json!({"order_id": "B-2"}))
        .modern()
        .seq(1)
        .param("requestState", "state-1")
        .param("inputResponses", answers);
    for wrong in [
        round(4, "state-2").seq(1),
        round(5, "State-1").seq(1),
        round(6, "").seq(1),
        without_state,
        other_arguments,
    ] {
        assert_refused(&proxy.call(&wrong), "divergence", "not_started");
    }
    assert_eq!(world.status(1), "INPUT_REQUIRED");
    // Escapes are no difference.
    let line = round(7, "STATE")
        .seq(1)
        .line()
        .replace("STATE", "\\u0073tate-1");
    proxy.send(line);
    assert_done(&proxy.recv_id(7));
    proxy.stop();
    assert_eq!(world.effects_of("ask"), 1);
    assert_eq!(world.calls_at_upstream(), 2);
}

/// MCP 16.35 and 16.36, over two questions and a restart between them.
#[test]
fn a_chain_of_rounds_is_one_entry_and_its_replay_asks_nothing() {
    let world = World::new();
    let call = |id: u32| Call::new(id, "ask", json!({"rounds": 2})).modern().seq(1);
    let answer = |id: u32, state: &str| {
        call(id)
            .param("requestState", state)
            .param("inputResponses", json!({"answer": {}}))
    };
    let mut proxy = world.proxy().start();
    proxy.call(&call(1));
    let second = proxy.call_line(&answer(2, "state-1"));
    assert!(result_bytes(&second).contains("state-2"));
    assert_eq!(world.status(1), "INPUT_REQUIRED");
    proxy.kill9();
    let mut proxy = world.proxy().start();
    // A first round again is asked what was asked last; the round before is no longer open.
    let again = proxy.call_line(&call(3));
    assert_eq!(result_bytes(&again), result_bytes(&second));
    let stale = proxy.call(&answer(4, "state-1"));
    assert_refused(&stale, "divergence", "not_started");
    let done = proxy.call_line(&answer(5, "state-2"));
    assert!(result_bytes(&done).contains("complete"));
    let replay = proxy.call_line(&call(6));
    assert_eq!(result_bytes(&replay), result_bytes(&done));
    // So is a round of it that was answered already.
    let replay = proxy.call_line(&answer(7, "state-2"));
    assert_eq!(result_bytes(&replay), result_bytes(&done));
    proxy.stop();
    assert_eq!(world.entries().len(), 1);
    assert_eq!(world.effects_of("ask"), 1);
    assert_eq!(world.calls_at_upstream(), 3);
}

/// An upstream that sheds load asks nothing and gives a state (MCP 2026-07-28).
#[test]
fn a_round_that_asks_nothing_goes_on_by_its_state() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let call = |id: u32| Call::new(id, "ask", json!({"quiet": true})).modern();
    let question = proxy.call(&call(1));
    assert_eq!(question["result"].get("inputRequests"), None);
    assert_done(&proxy.call(&call(2).param("requestState", "state-1")));
    proxy.stop();
    assert_eq!(world.entries().len(), 1);
    assert_eq!(world.effects_of("ask"), 1);
}

#[test]
fn voiding_a_later_round_returns_to_the_question() {
    for code in [-32020, -32021, -32022] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        let question = proxy.call_line(&ask(1).seq(1));
        let error = json!({"code": code, "message": "mend and send again"});
        let mending = json!({"error": error, "no_effect": true});
        let answer = proxy.call(&round(2, "state-1").seq(1).script(mending));
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert_eq!(world.status(1), "INPUT_REQUIRED", "{code}");
        // The question still stands, and so does its answer.
        let again = proxy.call_line(&ask(3).seq(1));
        assert_eq!(result_bytes(&again), result_bytes(&question));
        assert_done(&proxy.call(&round(4, "state-1").seq(1)));
        proxy.stop();
        assert_eq!(world.status(1), "COMPLETED");
        assert_eq!(world.effects_of("ask"), 1);
        assert_eq!(world.entries().len(), 1);
    }
}

/// MCP 16.41 and 16.42.
#[test]
fn mend_and_send_again_frees_the_seq_and_other_errors_do_not() {
    for (code, is_free) in [
        (-32020, true),
        (-32021, true),
        (-32022, true),
        (-32042, true),
        (-32602, false),
        (-32603, false),
        (-32000, false),
        (-32601, false),
    ] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        let error = json!({"code": code, "message": "x"});
        let script = json!({"error": error, "no_effect": true});
        let first = proxy.call(&Call::charge(1).seq(1).script(script));
        assert_eq!(first["error"]["code"], code);
        let mended = Call::new(2, "charge", json!({"order_id": "mended"})).seq(1);
        let answer = proxy.call(&mended);
        if is_free {
            assert_done(&answer);
            assert_eq!(world.status(1), "COMPLETED", "{code}");
        } else {
            assert_refused(&answer, "divergence", "not_started");
            let replay = proxy.call(&Call::charge(3).seq(1));
            assert_eq!(replay["error"], first["error"], "{code}");
            assert_eq!(world.status(1), "FAILED", "{code}");
        }
        proxy.stop();
        assert_eq!(world.effects_of("charge"), usize::from(is_free), "{code}");
    }
}

/// MCP 4.1: each era refuses a shape that the other has.
#[test]
fn what_has_no_legal_form_in_the_other_era_is_refused_there_and_only_there() {
    let array = r#"{"content":[],"structuredContent":[1,2]}"#;
    let modern_array = r#"{"resultType":"complete","content":[],"structuredContent":[1,2]}"#;
    let modern_object = r#"{"resultType":"complete","content":[],"structuredContent":{"a":1.0}}"#;
    let extension = r#"{"resultType":"x-vendor","content":[]}"#;
    for (result, is_modern, elsewhere) in [
        (array, false, true),
        (modern_array, true, false),
        (modern_object, true, true),
        (extension, true, true),
    ] {
        let world = World::new();
        let call = |id: u32, is_modern: bool| {
            let call = Call::charge(id).seq(1);
            if is_modern { call.modern() } else { call }
        };
        let mut proxy = world.proxy().start();
        let live = proxy.call_line(&call(1, is_modern).script(json!({"result": result})));
        assert_eq!(result_bytes(&live), result);
        let same = proxy.call_line(&call(2, is_modern));
        assert_eq!(result_bytes(&same), result, "its own era");
        let other = proxy.call(&call(3, !is_modern));
        if elsewhere {
            assert_eq!(other.get("error"), None, "{other}");
            if !is_modern {
                assert_eq!(other["result"]["resultType"], "complete", "{other}");
            }
        } else {
            assert_refused(&other, "not_replayable", "completed");
        }
        proxy.stop();
        assert_eq!(world.effects_of("charge"), 1);
    }
}
