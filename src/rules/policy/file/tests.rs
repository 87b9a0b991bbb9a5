use std::time::Duration;

use proptest::prelude::*;

use super::super::{
    Delivery, InDoubtScope, KeySource, OnCancel, OnFailure, OnInFlight, OnLostLease,
    OnRevisionChange, PassKey, Pointer, ReconcileBy,
};
use super::*;

fn set(text: &str) -> PolicySet {
    PolicySet::parse(text, ThreadId::Given).unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// The first error, as it is shown.
fn error(text: &str) -> String {
    let errors = PolicySet::parse(text, ThreadId::Absent).expect_err("it was accepted");
    errors[0].to_string()
}

#[test]
fn no_file_is_the_defaults() {
    for text in ["", "# nothing\n", "[defaults]", "[tools]", "[tools.charge]"] {
        let set = set(text);
        assert_eq!(**set.for_tool("charge"), Policy::default(), "{text}");
        assert_eq!(set.is_explicit("charge"), text.contains("charge"));
    }
    assert_eq!(set(""), PolicySet::default());
}

/// The first block of contract 9, which shows the defaults.
#[test]
fn the_defaults_are_those_of_the_contract() {
    let set = set(r#"
        [defaults]
        delivery = "at-most-once"
        max_attempts = 3
        on_failure = "replay"
        on_tool_error = "replay"
        on_in_flight = "join"
        on_cancel = "forward"
        on_revision_change = "note"
        in_doubt_scope = "signature"
        redeliver_within = "15m"
        lease_ttl = "15s"
        heartbeat = "5s"
        wait_poll = "500ms"
        on_lost_lease = "cancel"
        fence_results = true
        trust_idempotent_hint = false
        store_result = true
        max_result = "64MiB"
        "#);
    assert_eq!(*set.defaults(), Policy::default());
}

#[test]
fn every_field_is_read() {
    let policy = set(r#"
        [tools.t]
        key = "refund:{order_id}"
        window = "cross-run"
        key_covers = ["/order_id", "/a/0"]
        pass_key = { argument = "k", attempt_argument = "n", fence_argument = "f" }
        delivery = "at-least-once"
        max_attempts = 0x10
        on_failure = "retry"
        on_tool_error = "retry"
        on_in_flight = "refuse"
        on_cancel = "shield"
        on_revision_change = "diverge"
        in_doubt_scope = "call"
        redeliver_within = "0s"
        timeout = "60s"
        lease_ttl = "2s"
        heartbeat = "1s"
        wait_poll = "10ms"
        on_lost_lease = "finish"
        fence_results = false
        trust_idempotent_hint = true
        store_result = false
        max_result = "1KiB"
        reconcile = { command = ["./did-it-send", "-v"] }
        "#)
    .for_tool("t")
    .as_ref()
    .clone();
    let expected = Policy {
        is_journaled: true,
        key: Some(KeySource::parse("refund:{order_id}").unwrap()),
        window: Some(Window::Journal),
        key_covers: Some(vec![
            Pointer::parse("/order_id").unwrap(),
            Pointer::parse("/a/0").unwrap(),
        ]),
        pass_key: Some(PassKey::Arguments {
            key: "k".to_owned(),
            attempt: Some("n".to_owned()),
            fence: Some("f".to_owned()),
        }),
        delivery: Delivery::AtLeastOnce,
        attempts_max: 16,
        on_failure: OnFailure::Retry,
        on_tool_error: OnFailure::Retry,
        on_in_flight: OnInFlight::Refuse,
        on_cancel: OnCancel::Shield,
        on_revision_change: OnRevisionChange::Diverge,
        in_doubt_scope: InDoubtScope::Call,
        redeliver_within: Duration::ZERO,
        timeout: Some(Duration::from_secs(60)),
        lease_ttl: Duration::from_secs(2),
        heartbeat: Duration::from_secs(1),
        wait_poll: Duration::from_millis(10),
        on_lost_lease: OnLostLease::Finish,
        fences_results: false,
        trusts_idempotent_hint: true,
        store_result: false,
        result_bytes_max: 1024,
        reconcile: policy.reconcile.clone(),
    };
    assert_eq!(policy, expected);
    let reconcile = policy.reconcile.clone().unwrap();
    assert_eq!(reconcile.timeout, Duration::from_secs(20));
    let words = ["./did-it-send", "-v"].map(str::to_owned).to_vec();
    assert_eq!(reconcile.by, ReconcileBy::Command(words));
    // What is shown and what is recorded reads back.
    assert_eq!(Policy::from_record(&policy.to_toml()), Ok(policy.clone()));
    assert_eq!(
        Policy::from_record(&policy.record().unwrap()),
        Ok(policy.clone())
    );
    assert_eq!(Policy::default().record(), None);
    assert_eq!(Policy::from_record(""), Ok(Policy::default()));
    // Every field but `journal`, which stands alone, is in the text above.
    let shown = policy.to_toml();
    for field in FIELDS {
        assert!(
            shown.contains(&format!("{} = ", field.name)),
            "{}",
            field.name
        );
    }
    assert!(!set("[tools.t]\njournal = false").for_tool("t").is_journaled);
}

#[test]
fn a_value_is_written_as_plainly_as_toml_allows() {
    let value = serde_json::json!({
        "a-b_C9": ["x", 1, true],
        "a b": {},
        "": "\n",
    });
    assert_eq!(
        crate::rules::policy::values::toml_text(&value),
        r#"{ "" = "\n", "a b" = {}, a-b_C9 = ["x", 1, true] }"#
    );
}

#[test]
fn odd_names_read_back() {
    let text = r#"[tools.t]
        pass_key = { meta = true }
        reconcile = { tool = "a\"\u0001", arguments = { "x y" = "{/p~1q}", z = [1.5, -2, {}, "é{{}}"] }, completed_when = "!/a b", not_executed_when = "/c\"", result = "/~0" }
        "#;
    let policy = set(text).for_tool("t").as_ref().clone();
    assert_eq!(policy.pass_key, Some(PassKey::Meta));
    assert_eq!(Policy::from_record(&policy.record().unwrap()), Ok(policy));
}

#[test]
fn one_table_speaks_for_a_tool() {
    let set = set(r#"
        [defaults]
        max_attempts = 9
        [tools."*"]
        timeout = "1s"
        [tools."read_*"]
        journal = false
        [tools."*_file"]
        timeout = "2s"
        [tools.read_and_charge]
        delivery = "at-least-once"
        [tools."read_f?le"]
        timeout = "3s"
        [tools."read_fi?e"]
        timeout = "4s"
        "#);
    let table = |tool: &str| set.table_of(tool).map(str::to_owned);
    for (tool, expected) in [
        ("read_and_charge", "read_and_charge"),
        ("read_x", "read_*"),
        ("delete_file", "*_file"),
        // As long as `read_f?le`, which stands first; both are longer than `read_*`.
        ("read_file", "read_f?le"),
        ("charge", "*"),
        ("Read_x", "*"),
    ] {
        assert_eq!(table(tool).as_deref(), Some(expected), "{tool}");
    }
    // An exact name takes nothing from the pattern that it beats, only from the defaults.
    let exact = set.for_tool("read_and_charge");
    assert!(exact.is_journaled && exact.timeout.is_none() && exact.attempts_max == 9);
    assert_eq!(set.for_tool("read_x").attempts_max, 9);
    assert_eq!(set.tables().count(), 6);
    // `read_*` and `*_file` are equally long as well: the first in the file.
    assert!(!set.for_tool("read_x_file").is_journaled);
}

#[test]
fn a_hint_counts_only_where_nothing_else_was_said() {
    let set = set(r#"
        [defaults]
        trust_idempotent_hint = true
        [tools.charge]
        delivery = "at-most-once"
        [tools.put]
        delivery = "at-most-once"
        trust_idempotent_hint = true
        "#);
    let least = Delivery::AtLeastOnce;
    for (tool, expected) in [
        ("other", least),
        ("charge", Delivery::AtMostOnce),
        ("put", least),
    ] {
        let in_force = set.in_force(tool, Some(true));
        assert_eq!(in_force.policy.delivery, expected, "{tool}");
        let record = in_force.record.as_deref().unwrap_or_default();
        assert_eq!(
            Policy::from_record(record).unwrap().delivery,
            expected,
            "{tool}"
        );
        for hint in [None, Some(false)] {
            let delivery = set.in_force(tool, hint).policy.delivery;
            assert_eq!(delivery, Delivery::AtMostOnce);
        }
    }
    let none = PolicySet::default();
    assert_eq!(
        none.in_force("x", Some(true)).policy.delivery,
        Delivery::AtMostOnce
    );
    assert_eq!(none.in_force("x", Some(true)).record, None);
}

/// A hint that lies must not take the journal from a tool that the file wants journaled.
#[test]
fn what_the_file_says_of_the_journal_outweighs_annotations() {
    let set = set(r#"
        [tools.charge]
        journal = true
        [tools.search]
        journal = false
        [tools.other]
        timeout = "1s"
        "#);
    for (tool, is_hinted, expected) in [
        ("charge", true, true),
        ("charge", false, true),
        ("search", false, false),
        ("search", true, false),
        ("other", false, true),
        ("other", true, false),
        ("unknown", true, false),
        ("unknown", false, true),
    ] {
        let in_force = set.in_force(tool, None);
        assert_eq!(
            in_force.is_journaled(is_hinted),
            expected,
            "{tool} {is_hinted}"
        );
    }
    let set = self::set("[defaults]\njournal = true\n[tools.x]\ntimeout = \"1s\"");
    assert!(set.in_force("x", None).is_journaled(true));
    assert!(set.in_force("y", None).is_journaled(true));
}

#[test]
fn client_keys_hold_in_the_run_unless_told_otherwise() {
    assert_eq!(Policy::default().client_key_window(), Window::Run);
    let set = set("[tools.t]\nwindow = \"journal\"");
    assert_eq!(set.for_tool("t").client_key_window(), Window::Journal);
}

#[test]
fn errors_name_the_line_the_field_and_what_was_expected() {
    let rows: &[(&str, &str)] = &[
        (
            "[defaults]\ndelivery = \"exactly-once\"",
            "2: defaults.delivery: expected \"at-most-once\" or \"at-least-once\", not \"exactly-once\"",
        ),
        // A value is shown as far as 40 characters.
        (
            "[defaults]\ndelivery = \"éééééééééééééééééééééééééééééééééééééééé\"",
            "2: defaults.delivery: expected \"at-most-once\" or \"at-least-once\", not \
             \"éééééééééééééééééééééééééééééééééééééééé\"",
        ),
        (
            "[defaults]\ndelivery = \"ééééééééééééééééééééééééééééééééééééééééx\"",
            "2: defaults.delivery: expected \"at-most-once\" or \"at-least-once\", not \
             \"éééééééééééééééééééééééééééééééééééééééé…\"",
        ),
        (
            "[defaults]\n\n\non_revision_change = true",
            "4: defaults.on_revision_change: expected \"note\", \"ignore\" or \"diverge\", not true",
        ),
        (
            "[tools.charge]\nmax-attempts = 3",
            "2: tools.charge.max-attempts: unknown field; did you mean max_attempts?",
        ),
        (
            "[tool.charge]\nkey = \"args\"",
            "1: tool: unknown; expected [defaults] or [tools.NAME]",
        ),
        ("defaults = 3", "1: defaults: expected a table"),
        ("tools = []", "1: tools: expected a table"),
        (
            "[tools]\ncharge = \"args\"",
            "2: tools.charge: expected a table",
        ),
        (
            "[defaults]\nmax_attempts = 0",
            "2: defaults.max_attempts: expected a number from 1 to 4294967295, not 0",
        ),
        (
            "[defaults]\nmax_attempts = 4294967296",
            "2: defaults.max_attempts: expected a number from 1 to 4294967295, not 4294967296",
        ),
        (
            "[defaults]\nmax_attempts = \"3\"",
            "2: defaults.max_attempts: expected a number from 1 to 4294967295, not \"3\"",
        ),
        (
            "[defaults]\ntimeout = 60",
            "2: defaults.timeout: expected a string like \"250ms\", \"30s\" or \"5m\", not 60",
        ),
        (
            "[defaults]\ntimeout = \"60\"",
            "2: defaults.timeout: expected digits and a unit: 250ms, 30s, 5m, 2h, 7d, not \"60\"",
        ),
        (
            "[defaults]\ntimeout = \"0s\"",
            "2: defaults.timeout: expected more than zero",
        ),
        (
            "[defaults]\nmax_result = \"1MB\"",
            "2: defaults.max_result: expected digits and a unit: 512B, 64KiB, 1MiB, not \"1MB\"",
        ),
        (
            "[defaults]\nstore_result = \"no\"",
            "2: defaults.store_result: expected true or false, not \"no\"",
        ),
        (
            "[tools.t]\nkey = \"args\"",
            "2: tools.t.key: expected window = \"run\", \"thread\" or \"journal\" beside it: how far the key holds",
        ),
        (
            "[tools.t]\nkey = \"refund\"\nwindow = \"run\"",
            "2: tools.t.key: expected \"args\", \"call_id\", or a text with a {member} in it, since a constant would make one call of all",
        ),
        (
            "[tools.t]\nkey = \"a{b\"\nwindow = \"run\"",
            "2: tools.t.key: expected } after {, or {{ for a brace",
        ),
        (
            "[tools.t]\nkey = 7\nwindow = \"run\"",
            "2: tools.t.key: expected a string, not 7",
        ),
        (
            "[tools.t]\nwindow = \"workflow\"",
            "2: tools.t.window: expected \"run\", \"thread\", \"journal\" or \"cross-run\", not \"workflow\"",
        ),
        (
            "[tools.t]\nwindow = \"thread\"",
            "2: tools.t.window: expected a thread id for \"thread\": --thread-id ID, or CHECKPOINT_THREAD_ID",
        ),
        (
            "[tools.t]\nheartbeat = \"15s\"",
            "2: tools.t.heartbeat: expected a heartbeat below the lease_ttl, not 15s of 15s",
        ),
        (
            "[tools.t]\nlease_ttl = \"4s\"",
            "2: tools.t.lease_ttl: expected a heartbeat below the lease_ttl, not 5s of 4s",
        ),
        (
            "[tools.\"[a-z]*\"]",
            "1: tools.\"[a-z]*\": expected no other special characters than * and ? in a pattern",
        ),
        ("[tools.\"\"]", "1: tools.\"\": expected a tool's name"),
        (
            "[tools.t]\nkey_covers = [\"/a\", \"b\"]",
            "2: tools.t.key_covers[1]: expected a JSON pointer that begins with /",
        ),
        (
            "[tools.t]\nkey_covers = \"/a\"",
            "2: tools.t.key_covers: expected an array of JSON pointers like [\"/order_id\"], not \"/a\"",
        ),
        (
            "[tools.t]\npass_key = {}",
            "2: tools.t.pass_key: expected argument = \"NAME\", or meta = true",
        ),
        (
            "[tools.t]\npass_key = { argument = \"k\", meta = true }",
            "2: tools.t.pass_key: expected arguments or meta = true, not both",
        ),
        (
            "[tools.t]\npass_key = { argument = \"k\", attempt_argument = \"n\", fence_argument = \"k\" }",
            "2: tools.t.pass_key: expected arguments of different names, not \"k\" twice",
        ),
        (
            "[tools.t]\npass_key = { attempt_argument = \"k\" }",
            "2: tools.t.pass_key: expected argument = \"NAME\", or meta = true",
        ),
        (
            "[tools.t.pass_key]\nmeta = true\n\nargumnt = \"k\"",
            "4: tools.t.pass_key.argumnt: unknown; the members are argument, attempt_argument, fence_argument, meta",
        ),
        (
            "[tools.t]\nreconcile = { command = [] }",
            "2: tools.t.reconcile.command: expected an array of strings, the program first",
        ),
        (
            "[tools.t]\nreconcile = { command = [\"\"] }",
            "2: tools.t.reconcile.command[0]: expected a program's name, not \"\"",
        ),
        (
            "[tools.t]\nreconcile = { command = \"./x\" }",
            "2: tools.t.reconcile.command: expected an array of strings, the program first, not \"./x\"",
        ),
        (
            "[tools.t]\nreconcile = { timeout = \"1s\" }",
            "2: tools.t.reconcile: expected either command = [\"PROGRAM\"] or tool = \"NAME\"",
        ),
        (
            "[tools.t]\nreconcile = { tool = \"find\" }",
            "2: tools.t.reconcile: expected completed_when = \"/json/pointer\" beside a tool",
        ),
        (
            "[tools.t.reconcile]\ntool = \"find\"\ncompleted_when = \"/x\"\n[tools.t.reconcile.arguments]\na = [1, { b = \"{\" }]",
            "5: tools.t.reconcile.arguments.a[1].b: expected } after {, or {{ for a brace",
        ),
        (
            "[tools.t]\nreconcile = { tool = \"f\", completed_when = \"/x\", arguments = { a = nan } }",
            "2: tools.t.reconcile.arguments.a: expected a number that JSON knows, not nan",
        ),
        (
            "[tools.t]\nreconcile = { tool = \"f\", completed_when = \"/x\", arguments = { a = 2026-11-29 } }",
            "2: tools.t.reconcile.arguments.a: expected a value that JSON knows, not 2026-11-29",
        ),
        (
            "[tools.t]\nreconcile = { command = [\"x\"], completed_when = \"/x\" }",
            "2: tools.t.reconcile: expected no completed_when beside a command: it is a tool's",
        ),
        (
            "[tools.t]\nreconcile = { command = [\"x\"], result = \"/x\" }",
            "2: tools.t.reconcile: expected no result beside a command: it is a tool's",
        ),
        (
            "[tools.t]\nreconcile = { tool = \"f\", completed_when = \"x\" }",
            "2: tools.t.reconcile.completed_when: expected a JSON pointer that begins with /",
        ),
        (
            "[tools.t]\nreconcile = { tool = \"f\", completed_when = \"/x\", not_executed_when = true }",
            "2: tools.t.reconcile.not_executed_when: expected a string, not true",
        ),
        (
            "[tools.t]\nreconcile = { tool = \"f\", completed_when = \"/x\", not_executed_when = \"/x\" }",
            "2: tools.t.reconcile: expected a not_executed_when that is another than completed_when",
        ),
        (
            "[tools.t]\nreconcile = { tool = \"f\", completed_when = \"/x\", result = \"\" }",
            "2: tools.t.reconcile.result: expected a JSON pointer that begins with /",
        ),
        (
            "[tools.t]\n\nreconcile = { tool = \"t\", completed_when = \"/x\" }",
            "3: tools.t.reconcile.tool: expected another tool, one that only reads; asking this one could do it again",
        ),
        (
            "[tools.t]\njournal = false\ndelivery = \"at-least-once\"",
            "3: tools.t.delivery: expected no other field beside journal = false: nothing else has an effect",
        ),
    ];
    for (text, expected) in rows {
        assert_eq!(&error(text), expected, "{text}");
    }
    let dotted = error("[tools.files.read]\njournal = false");
    assert!(dotted.starts_with("1: tools.files.read: unknown field; the fields are journal, key,"));
    assert!(dotted.ends_with("(a tool's name with a dot in it is quoted: [tools.\"files.read\"])"));
    for no_tool in ["[tools.files]\nread = 1", "[defaults.read]\nkey = \"args\""] {
        assert!(!error(no_tool).contains("with a dot"), "{no_tool}");
    }
    for (text, line) in [
        ("[defaults]\ndelivery =", 2),
        ("[tools.t]\na = 1\na = 2", 3),
        ("[tools.read_*]\n", 1),
        ("\n\n\u{0}", 3),
    ] {
        let shown = error(text);
        assert!(shown.starts_with(&format!("{line}: not TOML: ")), "{shown}");
    }
}

#[test]
fn a_file_is_checked_whole() {
    let errors = PolicySet::parse(
        "[defaults]\nmax_attempts = 0\nheartbeat = \"1h\"\n[tools.a]\nx = 1\n[tools.b]\ntimeout = 1\n",
        ThreadId::Unasked,
    );
    let lines: Vec<_> = errors.unwrap_err().iter().map(|error| error.line).collect();
    assert_eq!(lines, [2, 3, 5, 7]);
}

#[test]
fn a_thread_window_needs_a_thread_only_where_there_is_a_run() {
    let text = "[defaults]\nwindow = \"thread\"\n[tools.t]\nkey = \"args\"";
    assert_eq!(
        PolicySet::parse(text, ThreadId::Absent).unwrap_err().len(),
        1
    );
    PolicySet::parse(text, ThreadId::Unasked).unwrap();
    PolicySet::parse(text, ThreadId::Given).unwrap();
}

#[test]
fn defaults_may_leave_out_the_journal_for_all_but_some() {
    let set = set("[defaults]\njournal = false\nmax_attempts = 2\n[tools.t]\njournal = true");
    assert!(!set.for_tool("x").is_journaled && set.for_tool("t").is_journaled);
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[\\[\\]{}=\"a-c.*\n0-9 ]{0,60}", head in any::<bool>()) {
        let text = if head { format!("[tools.t]\n{text}") } else { text };
        let _ = PolicySet::parse(&text, ThreadId::Absent);
    }

    /// What is shown and what is recorded reads back as the same policy.
    #[test]
    fn texts_read_back(lines in prop::collection::vec(line(), 0..8)) {
        let mut seen = std::collections::BTreeSet::new();
        let text: String = lines
            .into_iter()
            .filter(|line| seen.insert(line.split(' ').next().unwrap_or_default().to_owned()))
            .map(|line| line + "\n")
            .collect();
        if let Ok(set) = PolicySet::parse(&format!("[defaults]\n{text}"), ThreadId::Given) {
            let policy = set.defaults();
            prop_assert_eq!(&Policy::from_record(&policy.to_toml()).unwrap(), policy);
            let record = policy.record().unwrap_or_default();
            prop_assert_eq!(&Policy::from_record(&record).unwrap(), policy);
        }
    }
}

/// One line of a table, mostly a good one.
fn line() -> impl Strategy<Value = String> {
    let names = FIELDS.iter().map(|field| field.name).collect::<Vec<_>>();
    let word = prop::sample::select(
        FIELDS
            .iter()
            .flat_map(|field| field.words.iter().map(|word| (field.name, *word)))
            .collect::<Vec<_>>(),
    );
    prop_oneof![
        word.prop_map(|(name, word)| format!("{name} = {}", quote(word))),
        (prop::sample::select(names), "(true|false|[0-9]{1,5})")
            .prop_map(|(name, value)| format!("{name} = {value}")),
        (
            prop::sample::select(vec![
                "redeliver_within",
                "timeout",
                "lease_ttl",
                "heartbeat",
                "wait_poll"
            ]),
            0_u32..100_000,
            prop::sample::select(vec!["ms", "s", "m"])
        )
            .prop_map(|(name, count, unit)| format!("{name} = \"{count}{unit}\"")),
        (1_u32..100_000, prop::sample::select(vec!["", "B", "KiB"]))
            .prop_map(|(count, unit)| format!("max_result = \"{count}{unit}\"")),
        any::<String>()
            .prop_map(|text| format!("key = {}", quote(&(text.replace(['{', '}'], "") + "{a}")))),
        any::<String>().prop_map(|text| format!("pass_key = {{ argument = {} }}", quote(&text))),
        (any::<String>(), any::<String>()).prop_map(|(name, text)| format!(
            "reconcile = {{ tool = {}, completed_when = \"/a\", arguments = {{ {} = {} }} }}",
            quote(&(name.clone() + "t")),
            quote(&name),
            quote(&text.replace(['{', '}'], ""))
        )),
        any::<Vec<String>>().prop_map(|words| format!(
            "reconcile = {{ command = [{}] }}",
            words
                .iter()
                .map(|word| quote(word))
                .collect::<Vec<_>>()
                .join(", ")
        )),
    ]
}
