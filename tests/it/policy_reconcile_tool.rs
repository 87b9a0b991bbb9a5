//! `reconcile` by a tool of the upstream: a call of our own, which the client never hears of.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused};
use crate::proxy::Proxy;
use crate::world::{DEADLINE, World, contains, is_alive, run};

/// What the ids of our own calls begin with, on the wire.
const OWN: &[u8] = b"\"checkpoint-";

/// The two ways in which a client and an upstream meet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Era {
    Initialize,
    Stateless,
}

const ERAS: [Era; 2] = [Era::Initialize, Era::Stateless];

impl Era {
    fn start(self, world: &World, policy: &str) -> Proxy {
        let mut proxy = world.proxy().policy(policy).start();
        if self == Era::Initialize {
            proxy.initialize();
        }
        proxy
    }

    fn charge(self, id: i64) -> Call {
        let arguments = json!({"order_id": 4711, "amount": 100});
        let call = Call::new(id, "charge", arguments).seq(1);
        match self {
            Era::Initialize => call,
            Era::Stateless => call.modern(),
        }
    }

    /// Leaves a charge in doubt that was carried out.
    fn lose(self, world: &World) {
        let mut proxy = self.start(world, "");
        let call = self.charge(1).script(json!({"die": "after_effect"}));
        assert_refused(&proxy.call(&call), "outcome_unknown", "unknown");
        assert_eq!(proxy.wait_code(), 69);
    }
}

/// Returns a value as TOML in which no string has a place.
fn toml(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let members: Vec<_> = members
                .iter()
                .map(|(name, value)| format!("{name} = {}", toml(value)))
                .collect();
            format!("{{ {} }}", members.join(", "))
        }
        Value::String(text) => json!(text.replace('{', "{{").replace('}', "}}")).to_string(),
        other => other.to_string(),
    }
}

/// A policy whose tool does as the script says.
fn policy(script: &Value, more: &str) -> String {
    format!(
        "[tools.charge.reconcile]\ntool = \"find\"\narguments = {{ order_id = \"{{order_id}}\", \
         note = \"o-{{order_id}}\", script = {} }}\ncompleted_when = \"/structuredContent/found\"\n{more}\n",
        toml(script)
    )
}

const NO: &str = "not_executed_when = \"/structuredContent/never\"";
const RESULT: &str = "result = \"/structuredContent/result\"";
const SHORT: &str = "timeout = \"300ms\"";

/// A script that answers with this `structuredContent`.
fn says(content: &Value) -> Value {
    let result = json!({"content": [], "structuredContent": content, "resultType": "complete"});
    json!({"result": result.to_string()})
}

/// The questions that reached an upstream.
fn questions(world: &World) -> Vec<Value> {
    world
        .upstream_lines()
        .iter()
        .filter(|line| contains(line, OWN))
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

fn event_kinds(world: &World) -> Vec<String> {
    let events = world.show_json(1)["events"].clone();
    let kinds = events.as_array().unwrap().iter();
    kinds
        .map(|event| event["kind"].as_str().unwrap().to_owned())
        .collect()
}

/// Ends the client; nothing that it was sent may tell of a question.
fn end(mut proxy: Proxy) {
    proxy.close_stdin();
    assert_eq!(proxy.wait_code(), 0);
    while let Some(line) = proxy.next_line() {
        assert!(!contains(&line, OWN), "{}", String::from_utf8_lossy(&line));
    }
}

#[test]
fn a_call_that_was_executed_is_answered_with_what_the_tool_found() {
    for era in ERAS {
        let world = World::new();
        era.lose(&world);
        let result = json!({"content": [{"type": "text", "text": "refunded"}]});
        let script = says(&json!({"found": true, "result": result}));
        let policy = policy(&script, RESULT);
        let mut proxy = era.start(&world, &policy);
        for id in 2..4 {
            let answer = proxy.call(&era.charge(id));
            let text = &answer["result"]["content"][0]["text"];
            assert_eq!(text, "refunded", "{answer}");
            let is_marked = answer["result"]["resultType"] == "complete";
            assert_eq!(is_marked, era == Era::Stateless, "{answer}");
        }
        assert_eq!(world.effects_of("charge"), 1);
        assert_eq!(world.effects_of("find"), 1);
        let asked = questions(&world);
        assert_eq!(asked.len(), 1);
        let params = &asked[0]["params"];
        assert_eq!(params["name"], "find");
        assert_eq!(params["arguments"]["order_id"], 4711, "a number stays one");
        assert_eq!(params["arguments"]["note"], "o-4711");
        match era {
            Era::Initialize => assert_eq!(params.get("_meta"), None),
            Era::Stateless => assert_eq!(
                params["_meta"],
                json!({
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientCapabilities": {},
                    "io.modelcontextprotocol/clientInfo": {"name": "it", "version": "1"},
                })
            ),
        }
        // It took no place of the client's: the next new call has the next one.
        assert_done(&proxy.call(&Call::new(9, "refund", json!({}))));
        end(proxy);
        assert_eq!(world.entries().len(), 2);
        assert_eq!(world.entry(2)["tool"], "refund");
        let shown = world.show_json(1);
        assert_eq!(shown["attempts"][0]["provenance"], "prober", "{shown}");
        let events = shown["events"].to_string();
        assert!(events.contains("refunded"), "the answer is kept: {events}");
        let kinds = event_kinds(&world);
        let place = |kind: &str| kinds.iter().position(|one| one == kind).unwrap();
        assert!(place("reconciling") < place("resolved"), "{kinds:?}");
        run(&world, 0, &["verify"]);
    }
}

#[test]
fn without_a_result_the_replay_is_a_text_that_says_so() {
    for era in ERAS {
        let world = World::new();
        era.lose(&world);
        let policy = policy(&says(&json!({"found": true})), "");
        let mut proxy = era.start(&world, &policy);
        let answer = proxy.call(&era.charge(2));
        let result = &answer["result"];
        assert_eq!(result["_meta"]["checkpoint"]["synthetic"], true, "{answer}");
        assert_eq!(result["isError"], false, "{answer}");
        let is_marked = result["resultType"] == "complete";
        assert_eq!(is_marked, era == Era::Stateless, "{answer}");
        end(proxy);
        assert_eq!(world.effects_of("charge"), 1);
        let shown = world.show_json(1);
        assert_eq!(shown["attempts"][0]["provenance"], "synthetic", "{shown}");
    }
}

#[test]
fn a_call_that_was_not_executed_runs() {
    for era in ERAS {
        let world = World::new();
        era.lose(&world);
        let policy = policy(&says(&json!({"found": false, "never": true})), NO);
        let mut proxy = era.start(&world, &policy);
        assert_done(&proxy.call(&era.charge(2)));
        end(proxy);
        assert_eq!(world.effects_of("charge"), 2);
        assert_eq!(world.effects_of("find"), 1);
        assert_eq!(world.entry(1)["attempt"], 2);
        run(&world, 0, &["verify"]);
    }
}

#[test]
fn a_killed_proxys_call_is_asked_about_by_the_next_one() {
    for era in ERAS {
        let world = World::new();
        let mut proxy = era.start(&world, "");
        proxy.send_call(&era.charge(1).script(json!({"hold_after": "h"})));
        let upstream = world.wait_held("h");
        proxy.kill9();
        world.wait_gone(upstream, DEADLINE);
        let policy = policy(&says(&json!({"found": true})), NO);
        let mut proxy = era.start(&world, &policy);
        let answer = proxy.call(&era.charge(2));
        assert_eq!(answer["result"]["_meta"]["checkpoint"]["seq"], 1);
        end(proxy);
        assert_eq!(world.effects_of("charge"), 1);
        assert_eq!(world.effects_of("find"), 1);
    }
}

#[test]
fn what_is_not_clear_stays_in_doubt_and_is_kept() {
    let found = says(&json!({"found": true}));
    let raw = |text: &str| json!({"raw": text});
    for (script, why) in [
        (says(&json!({"found": false})), "does not say"),
        (says(&json!({"found": "true", "never": 1})), "does not say"),
        (says(&json!({"found": true, "never": true})), "says both"),
        (
            json!({"error": {"code": -32602, "message": "what?"}}),
            "with an error",
        ),
        (
            json!({"result": r#"{"structuredContent":{"never":true},"isError":true}"#}),
            "isError",
        ),
        (
            json!({"result": r#"{"structuredContent":{"never":true},"resultType":"task"}"#}),
            "not complete",
        ),
        (
            raw(
                r#"{"jsonrpc":"2.0","id":$ID,"result":{"structuredContent":{"never":true},"x":NaN}}"#,
            ),
            "no JSON",
        ),
        (raw(r#"{"jsonrpc":"2.0","id":$ID}"#), "can't be read"),
        (
            raw(
                r#"{"jsonrpc":"2.0","id":$ID,"result":{"structuredContent":{"never":true,"never":true}}}"#,
            ),
            "same name",
        ),
    ] {
        assert_ne!(script, found);
        let world = World::new();
        Era::Initialize.lose(&world);
        let mut proxy = Era::Initialize.start(&world, &policy(&script, NO));
        let answer = proxy.call(&Era::Initialize.charge(2));
        assert_refused(&answer, "in_doubt", "unknown");
        end(proxy);
        assert_eq!(world.effects_of("charge"), 1, "{script}");
        assert_eq!(world.entry(1)["in_doubt"], true);
        let events = world.show_json(1)["events"].to_string();
        let is_kept = events.contains("still unknown") && events.contains(why);
        assert!(is_kept, "{script}: {events}");
    }
}

#[test]
fn a_late_answer_counts_for_nothing_and_reaches_nobody() {
    for era in ERAS {
        let world = World::new();
        era.lose(&world);
        let mut script = says(&json!({"never": true}));
        script["hold_after"] = json!("h");
        script["answer_twice"] = json!(true);
        let policy = policy(&script, &format!("{NO}\n{SHORT}"));
        let mut proxy = era.start(&world, &policy);
        proxy.send_call(&era.charge(2));
        world.wait_held("h");
        // Other traffic passes meanwhile.
        proxy.assert_ping();
        assert_refused(&proxy.recv_id(2), "in_doubt", "unknown");
        world.release("h");
        proxy.await_quiet();
        end(proxy);
        assert_eq!(world.effects_of("charge"), 1);
        assert_eq!(world.entry(1)["in_doubt"], true);
        let events = world.show_json(1)["events"].to_string();
        assert!(events.contains("did not answer in time"), "{events}");
    }
}

#[test]
fn an_upstream_that_ends_instead_of_answering_leaves_the_doubt() {
    for era in ERAS {
        let world = World::new();
        era.lose(&world);
        let policy = policy(&json!({"die": "before_effect"}), NO);
        let mut proxy = era.start(&world, &policy);
        let answer = proxy.call(&era.charge(2));
        assert_refused(&answer, "in_doubt", "unknown");
        assert_eq!(proxy.wait_code(), 69);
        assert_eq!(world.effects_of("charge"), 1);
        let events = world.show_json(1)["events"].to_string();
        assert!(events.contains("ended by signal 9"), "{events}");
        // The next run may ask again.
        let policy = self::policy(&says(&json!({"found": true})), NO);
        let mut proxy = era.start(&world, &policy);
        let answer = proxy.call(&era.charge(3));
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        end(proxy);
        assert_eq!(world.effects_of("charge"), 1);
    }
}

/// A proxy whose call 2 has met a doubt, and whose question the upstream holds at "h".
fn asking(world: &World, era: Era) -> Proxy {
    era.lose(world);
    let mut script = says(&json!({"found": true}));
    script["hold_before"] = json!("h");
    let mut proxy = era.start(world, &policy(&script, ""));
    proxy.send_call(&era.charge(2));
    world.wait_held("h");
    proxy
}

#[test]
fn the_journal_knows_of_the_question_before_the_upstream_does() {
    let world = World::new();
    let era = Era::Initialize;
    let mut proxy = asking(&world, era);
    let asked = questions(&world);
    let id = asked[0]["id"].as_str().unwrap();
    let events = world.show_json(1)["events"].to_string();
    assert!(
        events.contains("reconciling") && events.contains(id),
        "{events}"
    );
    // Killed now, the next run finds the doubt as it was, and may ask again.
    proxy.kill9();
    assert_eq!(world.entry(1)["status"], "PENDING");
    let mut proxy = era.start(&world, &policy(&says(&json!({"found": true})), ""));
    assert_eq!(proxy.call(&era.charge(3))["result"]["isError"], false);
    end(proxy);
    assert_eq!(world.effects_of("charge"), 1);
    run(&world, 0, &["verify"]);
}

#[test]
fn nobody_is_asked_before_the_session_has_settled() {
    let world = World::new();
    let era = Era::Initialize;
    era.lose(&world);
    let policy = policy(&says(&json!({"found": true})), "");
    // No handshake at all: there is no session to ask in.
    let mut proxy = world.proxy().policy(&policy).start();
    assert_refused(&proxy.call(&era.charge(2)), "in_doubt", "unknown");
    end(proxy);
    assert_eq!(questions(&world).len(), 0);
    // A handshake under way: the question waits for its end.
    let mut proxy = world.proxy().policy(&policy).start();
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "it", "version": "1"}});
    proxy.request("init", "initialize", params);
    proxy.send_call(&era.charge(3));
    proxy.await_decided();
    proxy.assert_ping();
    assert_eq!(questions(&world).len(), 0);
    proxy.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    assert_eq!(proxy.recv_id(3)["result"]["isError"], false);
    end(proxy);
    let lines = world.upstream_lines();
    let place = |part: &[u8]| lines.iter().rposition(|line| contains(line, part)).unwrap();
    assert!(place(b"notifications/initialized") < place(OWN));
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(questions(&world).len(), 1);
}

#[test]
fn a_handshake_that_never_ends_does_not_keep_the_call() {
    let world = World::new();
    let era = Era::Initialize;
    era.lose(&world);
    let policy = policy(&says(&json!({"found": true})), SHORT);
    let mut proxy = world.proxy().policy(&policy).start();
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
    proxy.request("init", "initialize", params);
    assert_refused(&proxy.call(&era.charge(2)), "in_doubt", "unknown");
    end(proxy);
    assert_eq!(questions(&world).len(), 0);
}

#[test]
fn one_question_serves_all_that_wait_also_after_a_cancellation() {
    let world = World::new();
    let era = Era::Initialize;
    let mut proxy = asking(&world, era);
    proxy.cancel(2);
    for id in 3..6 {
        proxy.send_call(&era.charge(id));
    }
    proxy.await_decided();
    world.release("h");
    for id in 3..6 {
        assert_eq!(proxy.recv_id(id)["result"]["isError"], false);
    }
    // A cancelled call is not answered, and its cancellation was not the upstream's business.
    assert_eq!(proxy.recv_id_within(2, std::time::Duration::ZERO), None);
    end(proxy);
    assert_eq!(questions(&world).len(), 1);
    assert_eq!(world.effects_of("charge"), 1);
    assert!(
        !world
            .upstream_lines()
            .iter()
            .any(|line| contains(line, b"cancelled"))
    );
}

#[test]
fn a_client_that_goes_away_meanwhile_does_not_hold_the_end_up() {
    for is_gone in [true, false] {
        let world = World::new();
        let era = Era::Stateless;
        era.lose(&world);
        let mut script = says(&json!({"never": true}));
        script["hold_before"] = json!("h");
        let policy = policy(&script, &format!("{NO}\ntimeout = \"60s\""));
        let setup = world.proxy().policy(&policy);
        let mut proxy = setup.flags(["--drain-timeout", "300ms"]).start();
        proxy.send_call(&era.charge(2));
        world.wait_held("h");
        if is_gone {
            proxy.drop_client();
        } else {
            proxy.close_stdin();
            assert_refused(&proxy.recv_id(2), "in_doubt", "unknown");
        }
        proxy.wait();
        assert_eq!(world.effects_of("charge"), 1);
        assert_eq!(world.entry(1)["in_doubt"], true);
        run(&world, 0, &["verify"]);
    }
}

/// A dead proxy's upstream may still do it: nobody can say that it did not.
#[test]
fn nobody_is_asked_while_the_recorded_upstream_lives() {
    let world = World::new();
    let era = Era::Stateless;
    let deaf = ["--on-eof", "ignore", "--ignore-sigterm", "--grandchild"];
    let mut proxy = world.proxy().upstream(&deaf).start();
    proxy.send_call(&era.charge(1).script(json!({"hold_before": "h"})));
    let upstream = world.wait_held("h");
    proxy.kill9();
    let policy = policy(&says(&json!({"never": true})), NO);
    let mut proxy = era.start(&world, &policy);
    let answer = proxy.call(&era.charge(2));
    let was_gone = !is_alive(upstream);
    let is_doubted = answer["error"]["data"]["kind"].is_string();
    // Either it was gone by then and the verdict counts, or nobody was asked.
    assert!(is_doubted || was_gone, "{answer}");
    world.wait_gone(upstream, DEADLINE);
    if is_doubted {
        assert_eq!(questions(&world).len(), 0);
        assert_eq!(world.effects_of("charge"), 0);
    }
    end(proxy);
}

/// The upstream that was told to stop may yet do it, and would say today that it did not.
#[test]
fn nobody_is_asked_while_the_session_of_the_doubt_lives() {
    let world = World::new();
    let era = Era::Initialize;
    let policy = policy(&says(&json!({"never": true})), NO);
    let mut owner = era.start(&world, &policy);
    let script = json!({"hold_before": "h", "on_cancel": "error"});
    owner.send_call(&era.charge(1).script(script));
    world.wait_held("h");
    owner.cancel(1);
    owner.await_decided();
    let mut other = era.start(&world, &policy);
    for proxy in [&mut owner, &mut other] {
        assert_refused(&proxy.call(&era.charge(2)), "in_doubt", "unknown");
    }
    assert_eq!(questions(&world).len(), 0);
    assert_eq!(world.effects_of("charge"), 0);
    world.release("h");
    end(owner);
    end(other);
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(questions(&world).len(), 0);
}

/// A seq in doubt that another tool's call asks for is still a doubt about the first tool.
#[test]
fn the_policy_of_the_doubtful_tool_speaks() {
    let world = World::new();
    let era = Era::Stateless;
    era.lose(&world);
    let other = policy(&says(&json!({"never": true})), NO).replace("charge", "refund");
    let policy = policy(&says(&json!({"found": true})), NO) + &other.replace("find", "find_refund");
    let mut proxy = era.start(&world, &policy);
    let refund = Call::new(2, "refund", json!({"order_id": 1}))
        .modern()
        .seq(1);
    assert_refused(&proxy.call(&refund), "divergence", "not_started");
    end(proxy);
    assert_eq!(
        (world.effects_of("find"), world.effects_of("find_refund")),
        (1, 0)
    );
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.effects_of("refund"), 0);
}

#[test]
fn a_tool_is_not_asked_about_itself_nor_for_what_the_journal_does_not_hold() {
    let era = Era::Stateless;
    for (tool, redacts) in [("charge", false), ("find", true)] {
        let world = World::new();
        let setup = world.proxy();
        let setup = if redacts {
            setup.flags(["--redact-args-in-journal"])
        } else {
            setup
        };
        let mut proxy = setup.start();
        proxy.call(&era.charge(1).script(json!({"die": "after_effect"})));
        proxy.wait();
        let policy = policy(&says(&json!({"found": true})), "")
            .replace("[tools.charge.", "[tools.\"c*\".")
            .replace("\"find\"", &format!("{tool:?}"));
        let setup = world.proxy().policy(&policy);
        let setup = if redacts {
            setup.flags(["--redact-args-in-journal"])
        } else {
            setup
        };
        let mut proxy = setup.start();
        assert_refused(&proxy.call(&era.charge(2)), "in_doubt", "unknown");
        end(proxy);
        assert_eq!(questions(&world).len(), 0, "{tool}");
        assert_eq!(world.effects_of("charge"), 1);
        let events = world.show_json(1)["events"].to_string();
        assert_eq!(
            events.contains("are not in the journal"),
            redacts,
            "{events}"
        );
    }
}

#[test]
fn without_a_proxy_there_is_nobody_to_ask() {
    let world = World::new();
    Era::Initialize.lose(&world);
    let policy = policy(&says(&json!({"found": true})), "");
    let file = world.policy_file(&policy).display().to_string();
    for more in [&[][..], &["--dry-run"]] {
        let words = [&["resolve", "--auto", "--policy", &file, "1"], more].concat();
        let said = run(&world, 1, &words);
        assert!(said.contains("only by a running proxy"), "{said}");
    }
    assert_eq!(world.entry(1)["in_doubt"], true);
    assert_eq!(
        event_kinds(&world)
            .iter()
            .filter(|kind| *kind == "resolved")
            .count(),
        0
    );
    assert_eq!(world.effects_of("find"), 0);
}
