//! What is no call and yet has a story: probes of the era, lists in pages, open subscriptions.

use serde_json::{Value, json};

use crate::call::Call;
use crate::proxy::Proxy;
use crate::world::World;

/// An upstream that answers each method as the arms of a shell's `case` say, with `$id` the id.
fn answering(arms: &str) -> String {
    format!(
        r#"while read -r line; do id=${{line#*'"id":'}}; id=${{id%%,*}}
            say() {{ printf '{{"jsonrpc":"2.0","id":%s,%s}}\n' "$id" "$1"; }}
            case $line in {arms}
        esac; done"#
    )
}

fn ask(proxy: &mut Proxy, id: u32, method: &str, params: &Value) -> Value {
    // The id comes first, where the upstream looks for it.
    proxy.send(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
    ));
    proxy.recv_id(id)
}

/// MCP 2026-07-28, versioning: whatever is answered to the probe, a client that knows both eras goes
/// on with the handshake, also where nothing is.
#[test]
fn a_probe_of_the_era_is_answered_by_the_upstream_alone() {
    for answer in [
        Some(r#""error":{"code":-32601,"message":"Method not found"}"#),
        Some(r#""error":{"code":-32602,"message":"Invalid request parameters","data":""}"#),
        Some(r#""error":{"code":-32022,"message":"x","data":{"supported":["2027-01-01"]}}"#),
        None,
    ] {
        let probe = answer.map_or(String::new(), |answer| format!("say '{answer}'"));
        let arms = format!(
            r#"*server/discover*) {probe};;
            *initialize*) say '"result":{{"protocolVersion":"2025-11-25","capabilities":{{}}}}';;"#
        );
        let world = World::new();
        let mut proxy = world.proxy().shell(&answering(&arms)).start();
        let discover = r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}}"#;
        proxy.send(discover);
        if let Some(answer) = answer {
            let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,{answer}}}\n");
            assert_eq!(String::from_utf8_lossy(&proxy.recv_line()), line);
        }
        let answer = ask(
            &mut proxy,
            2,
            "initialize",
            &json!({"protocolVersion": "2025-11-25"}),
        );
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
        proxy.stop();
    }
}

/// An upstream whose list comes in two pages; the second says of `read` what `hint` says.
fn paged(hint: &str) -> String {
    let page = |tools: &str, next: &str| format!(r#"say '"result":{{"tools":[{tools}]{next}}}'"#);
    let first = page(
        r#"{"name":"other","annotations":{"readOnlyHint":true}}"#,
        r#","nextCursor":"","ttlMs":5"#,
    );
    let second = page(&format!(r#"{{"name":"read","annotations":{hint}}}"#), "");
    answering(&format!(
        r#"*tools/list*cursor*) {second};;
        *tools/list*) {first};;
        *x/change*) echo '{{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}}'
            say '"result":{{}}';;
        *tools/call*) echo effect >> "$EFFECTS"; say '"result":{{"content":[]}}';;"#
    ))
}

/// All pages count, and a notice of change takes back what they said.
#[test]
fn a_hint_is_known_from_any_page_until_the_list_changes() {
    for (hint, journaled) in [
        (r#"{"readOnlyHint":true}"#, 0),
        (r#"{"readOnlyHint":false}"#, 2),
    ] {
        let world = World::new();
        let setup = world
            .proxy()
            .flags(["--trust-annotations"])
            .shell(&paged(hint));
        let mut proxy = setup.env("EFFECTS", world.path("told")).start();
        let call = |proxy: &mut Proxy, id: u32, tool: &str| {
            let answer = ask(
                proxy,
                id,
                "tools/call",
                &json!({"name": tool, "arguments": {}}),
            );
            assert_eq!(answer["result"]["content"], json!([]), "{answer}");
        };
        // Unknown tools change the world.
        call(&mut proxy, 1, "read");
        assert_eq!(world.entries().len(), 1);
        let first = ask(&mut proxy, 2, "tools/list", &json!({}));
        assert_eq!(first["result"]["nextCursor"], "", "{first}");
        assert_eq!(first["result"]["ttlMs"], 5);
        ask(&mut proxy, 3, "tools/list", &json!({"cursor": ""}));
        call(&mut proxy, 4, "read");
        call(&mut proxy, 5, "other");
        call(&mut proxy, 6, "read");
        assert_eq!(world.entries().len(), 1 + journaled, "{hint}");
        ask(&mut proxy, 7, "x/change", &json!({}));
        call(&mut proxy, 8, "read");
        assert_eq!(world.entries().len(), 2 + journaled, "{hint}");
        proxy.stop();
        let effects = std::fs::read_to_string(world.path("told")).unwrap();
        assert_eq!(effects.lines().count(), 5);
    }
}

/// A subscription is open for ever: no timeout ends it, its notices pass, and its request is told of
/// the upstream's end like any other. That nobody waits for it is a story of the simulation's.
#[test]
fn an_open_subscription_holds_up_no_end() {
    let notice = |method: &str| {
        let key = "io.modelcontextprotocol/subscriptionId";
        json!({"jsonrpc": "2.0", "method": method, "params": {"_meta": {key: 1}}}).to_string()
    };
    let acknowledged = notice("notifications/subscriptions/acknowledged");
    let changed = notice("notifications/resources/updated");
    let arms = format!(
        r#"*subscriptions/listen*) echo '{acknowledged}';;
        *ping*) echo '{changed}'; say '"result":{{}}';;"#
    );
    let world = World::new();
    let flags = ["--call-timeout", "50ms"];
    let mut proxy = world.proxy().flags(flags).shell(&answering(&arms)).start();
    proxy.send(r#"{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{}}"#);
    assert_eq!(proxy.recv_line(), (acknowledged + "\n").as_bytes());
    proxy.send(r#"{"jsonrpc":"2.0","id":2,"method":"ping","params":{}}"#);
    assert_eq!(proxy.recv_line(), (changed + "\n").as_bytes());
    assert_eq!(proxy.recv()["id"], 2);
    proxy.close_stdin();
    assert_eq!(proxy.wait_code(), 0);
    let end = proxy.recv();
    assert_eq!(
        (&end["id"], &end["error"]["code"]),
        (&json!(1), &json!(-32603)),
        "{end}"
    );
    assert_eq!(proxy.next_line(), None);
}

/// What differs from one attempt to the next is no part of a call.
#[test]
fn nothing_of_meta_makes_a_call_another_one() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let first = Call::charge(1).seq(1).modern();
    let live = proxy.call(&first);
    let others = [
        (
            "io.modelcontextprotocol/clientInfo",
            json!({"name": "other", "version": "2"}),
        ),
        (
            "io.modelcontextprotocol/clientCapabilities",
            json!({"roots": {}}),
        ),
        ("io.modelcontextprotocol/logLevel", json!("debug")),
        ("progressToken", json!(7)),
        (
            "traceparent",
            json!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ),
        ("baggage", json!("a=b")),
        ("com.example/any", json!({"x": 1})),
    ];
    for (id, (name, value)) in (2..).zip(others) {
        let mut call = first.clone().meta(name, value);
        call.id = json!(id);
        assert_eq!(proxy.call(&call)["result"], live["result"], "{name}");
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
}
