//! The oracle, proved without a proxy: what the other files take for granted of the upstream.

use serde_json::json;

use crate::call::{Call, assert_done};
use crate::world::{DEADLINE, World, is_alive};

#[test]
fn an_effect_is_logged_before_its_answer() {
    let world = World::new();
    let mut upstream = world.direct().start();
    upstream.initialize();
    upstream.send_call(&Call::charge(1).script(json!({"hold_after": "after"})));
    world.wait_held("after");
    assert_eq!(world.effects_of("charge"), 1);
    world.release("after");
    assert_done(&upstream.recv_id(1));
    upstream.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_hold_before_comes_before_the_effect() {
    let world = World::new();
    let mut upstream = world.direct().start();
    upstream.send_call(&Call::charge(1).script(json!({"hold_before": "before"})));
    world.wait_held("before");
    assert_eq!(world.effects_of("charge"), 0);
    world.release("before");
    assert_done(&upstream.recv_id(1));
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn received_and_sent_lines_are_kept_as_bytes() {
    let world = World::new();
    let mut upstream = world.direct().start();
    let line =
        "{ \"jsonrpc\":\"2.0\",\"id\":\"\\u0061\", \"method\":\"x/echo\",\"params\":{} }\r\n";
    upstream.send_raw(line.as_bytes());
    let answer = upstream.recv_line();
    assert_eq!(world.upstream_lines(), [line.as_bytes()]);
    assert_eq!(world.sent_lines(), [answer]);
}

#[test]
fn calls_run_at_once_and_end_in_any_order() {
    let world = World::new();
    let mut upstream = world.direct().start();
    for id in 1..=3 {
        let hold = json!({"hold_before": format!("h{id}")});
        upstream.send_call(&Call::charge(id).script(hold));
    }
    for id in [3, 1, 2] {
        world.wait_held(&format!("h{id}"));
        world.release(&format!("h{id}"));
        assert_eq!(upstream.recv()["id"], id);
    }
}

#[test]
fn it_dies_where_the_script_says() {
    for (place, effects) in [("before_effect", 0), ("after_effect", 1), ("mid_line", 1)] {
        let world = World::new();
        let mut upstream = world.direct().start();
        upstream.send_call(&Call::charge(1).script(json!({"die": place})));
        let rest = upstream.next_line();
        assert_eq!(rest.is_some(), place == "mid_line", "{rest:?}");
        assert!(!rest.unwrap_or_default().ends_with(b"\n"));
        assert_eq!(upstream.wait().code(), None, "{place}");
        assert_eq!(world.effects().len(), effects, "{place}");
    }
}

#[test]
fn the_end_of_input_does_what_the_option_says() {
    for (option, answers) in [("finish", 1), ("error", 1), ("abort", 0)] {
        let world = World::new();
        let mut upstream = world.direct().upstream(&["--on-eof", option]).start();
        upstream.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
        world.wait_held("h");
        upstream.close_stdin();
        if option == "finish" {
            world.release("h");
        }
        assert_eq!(upstream.wait_code(), 0);
        let line = upstream.next_line();
        assert_eq!(line.iter().count(), answers, "{option}: {line:?}");
        let line = String::from_utf8(line.unwrap_or_default()).unwrap();
        assert_eq!(line.contains("-32000"), option == "error", "{line}");
    }
}

#[test]
fn a_grandchild_outlives_its_parent_and_its_end_is_told() {
    let world = World::new();
    let mut upstream = world.direct().upstream(&["--grandchild"]).start();
    let grandchild = world.pid_of("grandchild", 1);
    upstream.kill9();
    assert!(is_alive(grandchild));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(grandchild),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    world.wait_gone(grandchild, DEADLINE);
}

#[test]
fn a_script_with_an_unknown_member_is_refused() {
    let world = World::new();
    let mut upstream = world.direct().start();
    let answer = upstream.call(&Call::charge(1).script(json!({"hold_befor": "x"})));
    assert_eq!(answer["error"]["code"], -32602);
    assert_eq!(world.effects().len(), 0);
}

#[test]
fn both_eras_ask_and_end_with_one_effect() {
    let world = World::new();
    let mut upstream = world.direct().start();
    let ask = Call::new(1, "ask", json!({"rounds": 2})).modern();
    let first = upstream.call(&ask);
    assert_eq!(first["result"]["resultType"], "input_required");
    assert_eq!(first["result"]["requestState"], "state-1");
    let answers = json!({"answer": {"action": "accept", "content": {}}});
    let mut round = ask.clone();
    for (id, state) in [(2, "state-1"), (3, "state-2")] {
        round.id = json!(id);
        round = round
            .param("requestState", state)
            .param("inputResponses", answers.clone());
        let answer = upstream.call(&round);
        let is_last = id == 3;
        let kind = if is_last {
            "complete"
        } else {
            "input_required"
        };
        assert_eq!(answer["result"]["resultType"], kind, "{answer}");
        assert_eq!(world.effects_of("ask"), usize::from(is_last));
    }
    upstream.send_call(&Call::new(4, "ask", json!({"ask_id": 4})));
    let question = upstream.recv();
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["id"], 4);
    upstream.send(json!({"jsonrpc": "2.0", "id": 4, "result": {"action": "accept"}}));
    assert_done(&upstream.recv_id(4));
    assert_eq!(world.effects_of("ask"), 2);
}

#[test]
fn kept_tasks_outlive_their_process() {
    let world = World::new();
    let path = world.path("tasks").display().to_string();
    let start = || world.direct().upstream(&["--tasks", &path]).start();
    let mut upstream = start();
    let call = Call::new(1, "task", json!({"polls": 2})).modern();
    let handle = upstream.call(&call)["result"].clone();
    upstream.kill9();
    for status in ["working", "completed"] {
        let mut upstream = start();
        let state = upstream.request(2, "tasks/get", json!({"taskId": handle["taskId"]}));
        assert_eq!(state["result"]["status"], status, "{state}");
        assert_eq!(state["result"]["createdAt"], handle["createdAt"]);
        upstream.kill9();
    }
    assert_eq!(world.effects_of("task"), 1);
}

#[test]
fn tasks_of_both_generations_end_by_being_asked() {
    let world = World::new();
    let mut upstream = world.direct().start();
    let modern = Call::new(1, "task", json!({"polls": 1})).modern();
    let handle = upstream.call(&modern);
    assert_eq!(handle["result"]["resultType"], "task");
    let legacy = Call::new(2, "charge", json!({"polls": 1})).param("task", json!({"ttl": 1}));
    let handle = upstream.call(&legacy);
    let id = handle["result"]["task"]["taskId"].clone();
    assert_eq!(id, "task-2");
    let state = upstream.request(3, "tasks/get", json!({"taskId": id}));
    assert_eq!(state["result"]["status"], "completed");
    let result = upstream.request(4, "tasks/result", json!({"taskId": id}));
    assert_eq!(
        result["result"]["content"][0]["text"], "the task is done",
        "{result}"
    );
    assert_eq!(world.effects().len(), 2);
}

#[test]
fn a_broken_output_is_told_from_an_ended_input() {
    let world = World::new();
    let mut upstream = world.direct().start();
    upstream.assert_ping();
    upstream.drop_output();
    upstream.send(json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
    upstream.send_call(&Call::charge(2).script(json!({"hold_before": "h"})));
    world.wait_held("h");
    world.release("h");
    upstream.close_stdin();
    assert_eq!(upstream.wait_code(), 0);
    assert_eq!(world.effects_of("charge"), 1);
}
