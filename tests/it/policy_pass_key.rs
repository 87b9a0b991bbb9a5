//! `pass_key`: what is added to the forwarded call, and that nothing else is.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused};
use crate::world::World;

const ARGUMENTS: &str = r#"
[tools.charge]
delivery = "at-least-once"
pass_key = { argument = "idempotency_key", attempt_argument = "attempt", fence_argument = "fence" }
"#;

const META: &str = "[tools.charge]\ndelivery = \"at-least-once\"\npass_key = { meta = true }\n";

/// The calls of this tool that reached an upstream, as text.
fn calls(world: &World) -> Vec<String> {
    let lines = world.upstream_lines().into_iter();
    lines
        .map(|line| String::from_utf8(line).unwrap())
        .filter(|line| line.contains("\"charge\""))
        .collect()
}

fn passed<'a>(line: &'a Value, policy: &str) -> [&'a Value; 3] {
    if policy == META {
        let passed = &line["params"]["_meta"]["checkpoint"];
        ["idempotency_key", "attempt", "fence"].map(|name| &passed[name])
    } else {
        let passed = &line["params"]["arguments"];
        ["idempotency_key", "attempt", "fence"].map(|name| &passed[name])
    }
}

#[test]
fn the_key_is_stable_over_attempts_and_the_fence_rises() {
    for policy in [ARGUMENTS, META] {
        let world = World::new();
        let mut proxy = world.proxy().policy(policy).start();
        let call = Call::charge(1)
            .seq(7)
            .script(json!({"die": "after_effect"}));
        assert_refused(&proxy.call(&call), "outcome_unknown", "unknown");
        proxy.wait();
        let mut proxy = world.proxy().policy(policy).start();
        assert_done(&proxy.call(&Call::charge(2).seq(7)));
        // Its signature is that of the client's own call.
        assert_done(&proxy.call(&Call::charge(3).seq(7)));
        assert_done(&proxy.call(&Call::charge(4).seq(8)));
        proxy.stop();
        let lines: Vec<Value> = calls(&world)
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 3);
        let [key, attempt, fence] = passed(&lines[0], policy);
        let [key_2, attempt_2, fence_2] = passed(&lines[1], policy);
        let [other, ..] = passed(&lines[2], policy);
        assert_eq!(key, key_2);
        assert_ne!(key, other);
        assert_eq!((attempt, attempt_2), (&json!(1), &json!(2)));
        assert!(fence.as_u64().unwrap() < fence_2.as_u64().unwrap());
        let key = key.as_str().unwrap();
        let parts: Vec<_> = key.split('/').collect();
        assert_eq!(parts.len(), 3, "{key}");
        assert_eq!(parts[0].len(), 32, "{key}");
        assert_eq!(parts[2], "7", "{key}");
    }
}

#[test]
fn nothing_but_the_members_is_added() {
    for (policy, added_from, added_to) in [
        (ARGUMENTS, r#","idempotency_key":"#, "}"),
        (META, r#","checkpoint":{"#, "}"),
    ] {
        let world = World::new();
        let mut proxy = world.proxy().policy(policy).start();
        let line = r#"{ "jsonrpc":"2.0",  "method" : "tools/call","params":{"_meta":{"checkpoint_seq":1 , "x":1.0},"name":"charge", "arguments" : {"order_id":"\u0041","n":1e2 }}, "id": 1 }"#;
        proxy.send(line);
        assert_done(&proxy.recv_id(1));
        proxy.stop();
        let sent = calls(&world).remove(0);
        let start = sent.find(added_from).unwrap_or_else(|| panic!("{sent}"));
        let end = start + sent[start..].find(added_to).unwrap();
        let end = if policy == META { end + 1 } else { end };
        let without = format!("{}{}", &sent[..start], &sent[end..]);
        // The white space before the closing bracket may stand on either side of what was added.
        let squeeze = |text: &str| text.replace(' ', "");
        assert_eq!(squeeze(without.trim_end()), squeeze(line), "{sent}");
        assert!(
            sent.contains(r#"{ "jsonrpc":"2.0",  "method" : "#),
            "{sent}"
        );
    }
}

#[test]
fn an_argument_that_the_client_sent_stays_its_own() {
    let world = World::new();
    let mut proxy = world.proxy().policy(ARGUMENTS).start();
    let own = Call::new(
        1,
        "charge",
        json!({"idempotency_key": "mine", "attempt": 9}),
    );
    assert_done(&proxy.call(&own.seq(1)));
    proxy.stop();
    let sent: Value = serde_json::from_str(&calls(&world)[0]).unwrap();
    let arguments = &sent["params"]["arguments"];
    assert_eq!(arguments["idempotency_key"], "mine");
    assert_eq!(arguments["attempt"], 9);
    assert!(arguments["fence"].is_u64(), "{sent}");
}

/// A key that holds in the whole journal: another workflow's call continues the first one's entry,
/// and the provider must see the same key.
#[test]
fn the_key_is_the_entrys_own_whoever_runs_its_next_attempt() {
    let world = World::new();
    let policy = "[tools.charge]\nkey = \"args\"\nwindow = \"journal\"\ndelivery = \"at-least-once\"\npass_key = { meta = true }\n";
    let mut proxy = world
        .proxy()
        .policy(policy)
        .flags(["--workflow-id", "one"])
        .start();
    proxy.call(&Call::charge(1).script(json!({"die": "after_effect"})));
    proxy.wait();
    let mut proxy = world
        .proxy()
        .policy(policy)
        .flags(["--workflow-id", "two"])
        .start();
    assert_done(&proxy.call(&Call::charge(2)));
    proxy.stop();
    let lines: Vec<Value> = calls(&world)
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(passed(&lines[0], META)[0], passed(&lines[1], META)[0]);
}

#[test]
fn two_journals_never_make_the_same_key() {
    let keys: Vec<Value> = (0..2)
        .map(|_| {
            let world = World::new();
            let mut proxy = world.proxy().policy(META).start();
            assert_done(&proxy.call(&Call::charge(1).seq(1)));
            proxy.stop();
            let line: Value = serde_json::from_str(&calls(&world)[0]).unwrap();
            passed(&line, META)[0].clone()
        })
        .collect();
    assert_ne!(keys[0], keys[1]);
}
