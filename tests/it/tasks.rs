//! Calls that are answered with a task: the handle, its end, and whose end it is.

use serde_json::{Value, json};

use crate::call::{Call, assert_refused, result_bytes};
use crate::proxy::Proxy;
use crate::world::World;

/// A call that is answered with a task of either generation, which ends when it is first asked
/// after.
fn task(id: u32, seq: u64, is_modern: bool) -> Call {
    let call = Call::new(id, "task", json!({"polls": 1, "n": seq})).seq(seq);
    if is_modern {
        call.modern()
    } else {
        call.param("task", json!({"ttl": 60000}))
    }
}

fn task_params(task_id: &str, is_modern: bool) -> Value {
    let mut params = json!({"taskId": task_id});
    if is_modern {
        params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    }
    params
}

/// Starts a task and returns its handle's members.
fn start(proxy: &mut Proxy, call: &Call) -> Value {
    let answer = proxy.call(call);
    let result = &answer["result"];
    let handle = if result["task"].is_object() {
        &result["task"]
    } else {
        result
    };
    assert_eq!(handle["status"], "working", "{answer}");
    handle.clone()
}

/// Lets the upstream say a line of its own.
fn emit(proxy: &mut Proxy, line: &Value) {
    let params = json!({"lines": [line.to_string()]});
    proxy.request("emit", "x/emit", params);
}

#[test]
fn a_notice_that_passes_by_ends_the_task() {
    for (is_modern, status, expected) in [
        (true, "completed", "COMPLETED"),
        (true, "failed", "FAILED"),
        (true, "cancelled", "FAILED"),
        (true, "working", "ACCEPTED"),
        (true, "input_required", "ACCEPTED"),
        (false, "failed", "FAILED"),
        (false, "cancelled", "FAILED"),
        // Its result comes by `tasks/result` only.
        (false, "completed", "ACCEPTED"),
    ] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        let handle = start(&mut proxy, &task(1, 1, is_modern));
        let mut params = handle.clone();
        params["status"] = json!(status);
        if is_modern && status == "completed" {
            params["result"] = json!({"content": [], "isError": false});
        }
        if is_modern && status == "failed" {
            params["error"] = json!({"code": -32603, "message": "broken"});
        }
        let method = if is_modern {
            "notifications/tasks"
        } else {
            "notifications/tasks/status"
        };
        // One of another process's task says nothing.
        let mut foreign = params.clone();
        foreign["createdAt"] = json!("2025-01-01T00:00:00Z");
        for params in [foreign, params] {
            assert_eq!(world.status(1), "ACCEPTED", "{status}");
            emit(
                &mut proxy,
                &json!({"jsonrpc": "2.0", "method": method, "params": params}),
            );
            proxy.call(&Call::charge(2).seq(2));
        }
        assert_eq!(world.status(1), expected, "{is_modern} {status}");
        proxy.stop();
        assert_eq!(world.effects_of("task"), 1);
    }
}

/// The final result is for those who can't poll the handle; the handle stays for the others.
#[test]
fn an_ended_task_is_replayed_as_its_era_can_read_it() {
    for is_modern in [true, false] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        let live = proxy.call_line(&task(1, 1, is_modern));
        let params = task_params("task-1", is_modern);
        proxy.request(2, "tasks/get", params.clone());
        if !is_modern {
            assert_eq!(world.status(1), "ACCEPTED");
            proxy.request(3, "tasks/result", params);
        }
        let replay = proxy.call_line(&task(4, 1, is_modern));
        if is_modern {
            assert!(result_bytes(&replay).contains("the task is done"));
        } else {
            assert_eq!(result_bytes(&replay), result_bytes(&live));
        }
        assert_eq!(world.status(1), "COMPLETED");
        proxy.stop();
        assert_eq!(world.effects_of("task"), 1);
        assert_eq!(world.calls_at_upstream(), 1);
    }
}

/// Upstreams count from 1 again after a restart.
#[test]
fn another_task_of_the_same_id_ends_only_itself() {
    for is_modern in [true, false] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        let old = start(&mut proxy, &task(1, 1, is_modern));
        proxy.kill9();
        let mut proxy = world.proxy().start();
        // The old handle is found again, which makes no task of the new process its own.
        proxy.call(&task(2, 1, is_modern));
        let new = start(&mut proxy, &task(3, 2, is_modern));
        assert_eq!(old["taskId"], new["taskId"]);
        assert_ne!(old["createdAt"], new["createdAt"]);
        let params = task_params("task-1", is_modern);
        proxy.request(4, "tasks/get", params.clone());
        proxy.request(5, "tasks/result", params);
        proxy.call(&Call::charge(6).seq(3));
        assert_eq!(world.status(1), "ACCEPTED", "{is_modern}");
        assert_eq!(world.status(2), "COMPLETED", "{is_modern}");
        proxy.stop();
        assert_eq!(world.effects_of("task"), 2);
    }
}

/// An upstream that keeps its tasks: who asks after one in a later session learns its end.
#[test]
fn a_task_that_outlives_a_session_ends_in_a_later_one() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let handle = start(&mut proxy, &task(1, 1, false));
    proxy.kill9();
    // It stands in for an upstream that remembers the first one's task.
    let mut state = handle.clone();
    state["status"] = json!("completed");
    let upstream = format!(
        r#"while read -r line; do id=${{line#*'"id":'}}; id=${{id%%,*}}; case $line in
            *tasks/get*) printf '{{"jsonrpc":"2.0","id":%s,"result":%s}}\n' "$id" '{state}';;
            *tasks/result*) printf '{{"jsonrpc":"2.0","id":%s,"result":{{"content":[]}}}}\n' "$id";;
            *) printf '{{"jsonrpc":"2.0","id":%s,"result":{{}}}}\n' "$id";;
        esac; done"#
    );
    let mut proxy = world.proxy().shell(&upstream).start();
    let replay = proxy.call(&task(2, 1, false));
    assert_eq!(replay["result"]["task"]["taskId"], "task-1", "{replay}");
    let ask = |proxy: &mut Proxy, id: u32, method: &str| {
        proxy.send(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"taskId":"task-1"}}}}"#
        ));
        proxy.recv_id(id)
    };
    // Which task this is the result of, only `tasks/get` has told.
    ask(&mut proxy, 3, "tasks/result");
    proxy.call(&task(4, 1, false));
    assert_eq!(world.status(1), "ACCEPTED");
    assert_eq!(ask(&mut proxy, 5, "tasks/get")["result"], state);
    ask(&mut proxy, 6, "tasks/result");
    proxy.call(&task(7, 1, false));
    assert_eq!(world.status(1), "COMPLETED");
    proxy.stop();
    assert_eq!(world.effects_of("task"), 1);
}

#[test]
fn a_task_that_nobody_knows_any_more_stays_open() {
    for is_modern in [true, false] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        start(&mut proxy, &task(1, 1, is_modern));
        proxy.kill9();
        let mut proxy = world.proxy().start();
        let live = proxy.call(&task(2, 1, is_modern));
        for (id, method) in (3..).zip(["tasks/get", "tasks/result", "tasks/cancel"]) {
            let answer = proxy.request(id, method, task_params("task-1", is_modern));
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
        }
        let replay = proxy.call(&task(9, 1, is_modern));
        assert_eq!(replay["result"], live["result"]);
        proxy.stop();
        assert_eq!(world.status(1), "ACCEPTED");
        assert_eq!(world.effects_of("task"), 1);
    }
}

#[test]
fn a_handle_has_no_legal_form_in_the_other_era() {
    for is_modern in [true, false] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        start(&mut proxy, &task(1, 1, is_modern));
        // The same signature in the other era: `task` present as before.
        let call = Call::new(2, "task", json!({"polls": 1, "n": 1})).seq(1);
        let other = if is_modern {
            call
        } else {
            call.param("task", json!({})).modern()
        };
        assert_refused(&proxy.call(&other), "not_replayable", "unknown");
        proxy.stop();
        assert_eq!(world.effects_of("task"), 1);
    }
}

/// The same call from a client that does not say that it can follow a task.
fn undeclared(call: Call, id: u32) -> Call {
    let mut call = call.meta(
        "io.modelcontextprotocol/clientCapabilities",
        json!({"elicitation": {}}),
    );
    call.id = json!(id);
    call
}

/// In the stateless revision each request declares the extension, and a task may answer no other.
#[test]
fn a_handle_is_replayed_only_to_a_request_that_declares_the_extension() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    // What the upstream says, it says.
    let live = proxy.call_line(&undeclared(task(1, 1, true), 1));
    assert!(result_bytes(&live).contains(r#""resultType":"task""#));
    let refused = proxy.call(&undeclared(task(2, 1, true), 2));
    assert_refused(&refused, "not_replayable", "unknown");
    assert!(
        refused["error"]["data"]["reason"]
            .as_str()
            .unwrap()
            .contains("task")
    );
    let found = proxy.call_line(&task(3, 1, true));
    assert_eq!(result_bytes(&found), result_bytes(&live));
    // Once it has ended there is a result, which asks for no extension.
    proxy.request(4, "tasks/get", task_params("task-1", true));
    let ended = proxy.call(&undeclared(task(5, 1, true), 5));
    assert_eq!(ended["result"]["content"][0]["text"], "the task is done");
    proxy.stop();
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.effects_of("task"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
}

#[test]
fn who_joins_a_call_is_told_of_its_task_only_where_it_declares_the_extension() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&task(1, 1, true).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.send_call(&undeclared(task(2, 1, true), 2));
    proxy.send_call(&task(3, 1, true));
    proxy.await_decided();
    world.release("h");
    let handle = proxy.recv_id(1);
    assert_refused(&proxy.recv_id(2), "not_replayable", "unknown");
    assert_eq!(proxy.recv_id(3)["result"], handle["result"]);
    proxy.stop();
    assert_eq!(world.effects_of("task"), 1);
}

/// A refusal delivers nothing: what it refused still answers the next who asks, and is not run.
#[test]
fn a_handle_that_could_not_be_replayed_is_kept_for_who_can_take_it() {
    let world = World::new();
    let without_seq = |id: u32| Call::new(id, "task", json!({"polls": 1})).modern();
    let mut proxy = world.proxy().start();
    proxy.send_call(&without_seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.drop_client();
    world.release("h");
    assert_eq!(proxy.wait_code(), 0);
    assert_eq!(world.status(1), "ACCEPTED");
    let mut proxy = world.proxy().start();
    for id in 2..=4 {
        let refused = proxy.call(&undeclared(without_seq(id), id));
        assert_refused(&refused, "not_replayable", "unknown");
    }
    let found = proxy.call(&without_seq(5));
    assert_eq!(found["result"]["taskId"], "task-1", "{found}");
    assert_eq!(found["result"]["_meta"]["checkpoint"]["seq"], 1, "{found}");
    proxy.stop();
    assert_eq!(world.effects_of("task"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
}

/// A call with a task and one without are two: their answers have two shapes.
#[test]
fn a_task_asked_for_is_part_of_the_call() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    start(&mut proxy, &task(1, 1, false));
    let plain = Call::new(2, "task", json!({"polls": 1, "n": 1})).seq(1);
    assert_refused(&proxy.call(&plain), "divergence", "not_started");
    // Its time to live is none.
    let other = plain.param("task", json!({"ttl": 1}));
    let mut other_id = other;
    other_id.id = json!(3);
    assert_eq!(proxy.call(&other_id)["result"]["task"]["taskId"], "task-1");
    proxy.stop();
    assert_eq!(world.effects_of("task"), 1);
}
