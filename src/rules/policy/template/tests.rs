use proptest::prelude::*;

use super::*;
use crate::rules::signature;

fn policy(key: &str) -> Policy {
    Policy {
        key: Some(KeySource::parse(key).unwrap()),
        ..Policy::default()
    }
}

fn derived(
    key: &str,
    arguments: Option<&str>,
    call_id: Option<&str>,
) -> Result<String, InvalidKey> {
    let arguments = arguments.map(str::as_bytes);
    let signature = signature::signature("t", arguments, false).unwrap();
    derive_key(&policy(key), arguments, &signature, call_id).map(|key| key.expect("a key"))
}

fn key(template: &str, arguments: &str) -> String {
    derived(template, Some(arguments), None).unwrap()
}

#[test]
fn the_text_is_pinned() {
    let all = r#"{"s":"A-1","n":17,"big":1200,"f":1.50,"huge":1e400,"t":true,"z":null,
        "b":"a{b}:\n\ud800","o":{"x":[1.0]},"d":{"e/f":[7]}}"#;
    for (template, expected) in [
        ("refund:{s}", r#"refund:{"A-1"}"#),
        ("{n}", "{17}"),
        ("{big}", "{1200}"),
        ("{f}", "{15e-1}"),
        ("{huge}", "{1e400}"),
        ("{t}{z}", "{true}{null}"),
        ("{b}", r#"{"a\u007bb\u007d:\n\xed\xa0\x80"}"#),
        ("{/d/e~1f/0}:{{x}}", "{7}:{{x}}"),
    ] {
        assert_eq!(key(template, all), expected, "{template}");
    }
    let digest = key("{o}", all);
    assert_eq!(
        digest,
        "{sha256:a4d4d183347b51db5b82b5c8c00005c0271a9fb839464c5b8f8e21e2fde236f3}"
    );
    assert_eq!(digest, key("{o}", r#"{"o":{"x":[1]}}"#));
}

#[test]
fn signatures_and_call_ids_are_keys() {
    let args = derived("args", Some(r#"{"a":1,"b":2}"#), None).unwrap();
    assert_eq!(
        args,
        derived("args", Some(r#"{"b":2.0,"a":1}"#), None).unwrap()
    );
    assert!(args.starts_with("args:") && args.len() == 69);
    assert_eq!(
        derived("args", None, None),
        derived("args", Some("{}"), None)
    );
    assert_eq!(
        derived("call_id", None, Some("toolu_1")).as_deref(),
        Ok("call_id:toolu_1")
    );
    assert_eq!(derived("call_id", None, None), Err(InvalidKey::NoCallId));
    assert_eq!(
        derived("call_id", None, Some("")),
        Err(InvalidKey::NoCallId)
    );
    let signature = signature::signature("t", None, false).unwrap();
    assert_eq!(
        derive_key(&Policy::default(), None, &signature, Some("x")),
        Ok(None)
    );
}

#[test]
fn what_is_missing_is_no_key() {
    let missing = |pointer: &str| Err(InvalidKey::Missing(pointer.to_owned()));
    for arguments in [None, Some("null"), Some("{}"), Some(r#"{"Order_id":1}"#)] {
        assert_eq!(
            derived("r:{order_id}", arguments, None),
            missing("/order_id")
        );
    }
    assert_eq!(
        derived("{/a/1}", Some(r#"{"a":[0]}"#), None),
        missing("/a/1")
    );
    // A null is a value that the caller gave.
    assert_eq!(key("{a}", r#"{"a":null}"#), "{null}");
    let twice = r#"{"a":{"b":[{"c":1,"c":2}]}}"#;
    assert_eq!(
        derive_key(
            &policy("{a}"),
            Some(twice.as_bytes()),
            &Signature([0; 32]),
            None
        ),
        Err(InvalidKey::Duplicate("/b/0/c".to_owned()))
    );
}

#[test]
fn long_keys_are_digests() {
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(508));
    assert_eq!(key("{a}", &long).len(), ID_BYTES_MAX);
    let longer = format!(r#"{{"a":"{}"}}"#, "x".repeat(509));
    assert!(key("{a}", &longer).starts_with("sha256:"));
    assert_ne!(key("{a}", &longer), key("{a}", &longer.replace("xx", "xy")));
    let id = "i".repeat(512);
    assert_eq!(derived("call_id", None, Some(&id)).unwrap().len(), 71);
}

#[test]
fn spelling_does_not_count() {
    for (left, right) in [
        (r#"{"a":1}"#, r#"{ "\u0061" : 10e-1 }"#),
        (r#"{"a":"é/"}"#, r#"{"a":"\u00e9\/"}"#),
        (r#"{"a":{"x":1,"y":2}}"#, r#"{"a":{"y":2,"x":1.0}}"#),
        (r#"{"a":-0}"#, r#"{"a":0}"#),
    ] {
        assert_eq!(key("k:{a}", left), key("k:{a}", right));
    }
}

#[test]
fn values_that_look_alike_do_not_share_a_key() {
    let values = [
        "1",
        "\"1\"",
        "[1]",
        "{\"1\":1}",
        "null",
        "\"null\"",
        "true",
        "\"true\"",
        "0",
        "\"\"",
        "[]",
        "{}",
        "9007199254740993",
        "9007199254740992",
        "1e400",
        "1e401",
        "\"é\"",
        "\"e\u{301}\"",
        r#""\ud800""#,
        r#""\ud801""#,
        "\"\u{fffd}\"",
        r#""\\ud800""#,
        r#""\\xed\\xa0\\x80""#,
        "\"a:b\"",
        "\"a+b\"",
        "\"}\"",
        "\"{\"",
        r#""\\u007b""#,
        "\"\\u0000\"",
        "10",
        "100",
        "\"sha256:\"",
    ];
    let mut seen = std::collections::BTreeMap::new();
    for value in values {
        let made = key("k:{a}", &format!(r#"{{"a":{value}}}"#));
        assert!(made.len() <= ID_BYTES_MAX && !made.contains('\n'));
        if let Some(other) = seen.insert(made, value) {
            panic!("{value} and {other} share a key");
        }
    }
    // A separator inside a value is no separator.
    let two = |x: &str, y: &str| key("{x}:{y}", &format!(r#"{{"x":{x},"y":{y}}}"#));
    assert_ne!(two("\"a:b\"", "\"c\""), two("\"a\"", "\"b:c\""));
    assert_ne!(
        two("\"a\\\"}:{\\\"b\"", "\"c\""),
        two("\"a\"", "\"b\\\"}:{\\\"c\"")
    );
    let next = |x: &str, y: &str| key("{x}{y}", &format!(r#"{{"x":{x},"y":{y}}}"#));
    assert_ne!(next("1", "23"), next("12", "3"));
}

#[test]
fn templates_that_can_not_be_read_are_refused() {
    for bad in [
        "", "refund", "{", "}", "a}", "{}", "{a", "{a{b}", "{/~2}", "a}b", "{{", "{{a}}",
    ] {
        assert!(KeySource::parse(bad).is_err(), "{bad:?} was accepted");
    }
    for good in [
        "{a}", "{{}}{a}", "x{/a/b}y", "{a b}", "args", "call_id", "args:{a}",
    ] {
        let source = KeySource::parse(good).unwrap();
        assert_eq!(source.to_string(), good);
        assert_eq!(source.is_from_arguments(), good != "call_id");
    }
}

#[test]
fn what_a_key_covers() {
    let equal = |covers: Option<&[&str]>, left: &str, right: &str| {
        let pointers =
            covers.map(|all| all.iter().map(|one| Pointer::parse(one).unwrap()).collect());
        let policy = Policy {
            key_covers: pointers,
            ..Policy::default()
        };
        covers_equal(&policy, Some(left.as_bytes()), Some(right.as_bytes()))
    };
    assert!(equal(None, r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1.0}"#));
    assert!(!equal(None, r#"{"a":1}"#, r#"{"a":1,"note":"x"}"#));
    let covers = Some(&["/order_id", "/items/0/sku"][..]);
    assert!(equal(
        covers,
        r#"{"order_id":1,"note":"x"}"#,
        r#"{"note":"y","order_id":1.0}"#
    ));
    assert!(!equal(covers, r#"{"order_id":1}"#, r#"{"order_id":"1"}"#));
    assert!(!equal(covers, r#"{"order_id":1}"#, "{}"));
    assert!(!equal(
        covers,
        r#"{"items":[{"sku":1}]}"#,
        r#"{"items":[{"sku":2}]}"#
    ));
    assert!(equal(Some(&[]), r#"{"a":1}"#, r#"{"a":2}"#));
    let policy = Policy::default();
    assert!(covers_equal(&policy, None, Some(b"{}")));
    assert!(!covers_equal(&policy, Some(b"null"), Some(b"{}")));
}

#[test]
fn arguments_of_a_reconcile_call_keep_their_types() {
    let fill = |template: &str, arguments: &str| {
        Template::parse(template)
            .unwrap()
            .fill(arguments.as_bytes())
    };
    let arguments = r#"{"id":17,"s":"a\"b","o":{"x":
        [1.0]},"z":null,"h":"\ud800"}"#;
    assert_eq!(fill("{id}", arguments).as_deref(), Ok("17"));
    assert_eq!(fill("{s}", arguments).as_deref(), Ok(r#""a\"b""#));
    assert_eq!(fill("{h}", arguments).as_deref(), Ok(r#""\ud800""#));
    assert_eq!(
        fill("{o}", arguments).as_deref(),
        Ok("{\"x\":         [1.0]}")
    );
    assert_eq!(
        fill("id-{id}/{s}", arguments).as_deref(),
        Ok(r#""id-17/a\"b""#)
    );
    assert_eq!(fill("plain {{}}", arguments).as_deref(), Ok("\"plain {}\""));
    for no_text in ["x{o}", "x{z}", "x{h}"] {
        assert!(matches!(
            fill(no_text, arguments),
            Err(InvalidKey::NoText(_))
        ));
    }
    assert_eq!(
        fill("{x}", arguments),
        Err(InvalidKey::Missing("/x".into()))
    );
}

/// A JSON scalar, as text.
fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        "[{}:\"\\\\ab1,e\u{e9}]{0,6}".prop_map(|text| json::quote(&text)),
        "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{1,2})?([eE]-?[0-9]{1,2})?",
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just(r#""\ud800""#.to_owned()),
        "[0-9]{1,2}".prop_map(|digits| format!("[{digits}]")),
    ]
}

/// A template over the members `a`, `b` and `c`, in any order, with any text between them.
fn template() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[:1+\"a]{0,2}",
        Just("{{".to_owned()),
        Just("}}".to_owned()),
        Just("{a}".to_owned()),
        Just("{b}".to_owned()),
        Just("{c}".to_owned()),
    ];
    prop::collection::vec(part, 0..5).prop_map(|parts| parts.concat() + "{a}{b}{c}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// One template: two keys are equal exactly if all values are.
    #[test]
    fn a_template_is_injective(
        template in template(),
        left in prop::array::uniform3(scalar()),
        right in prop::array::uniform3(scalar()),
        same in prop::array::uniform3(any::<bool>()),
    ) {
        let right = [0, 1, 2].map(|at| if same[at] { left[at].clone() } else { right[at].clone() });
        let arguments = |values: &[String; 3]| {
            format!(r#"{{"a":{},"b":{},"c":{}}}"#, values[0], values[1], values[2])
        };
        let (left, right) = (arguments(&left), arguments(&right));
        let is_one = json::canonical_text(left.as_bytes()) == json::canonical_text(right.as_bytes());
        prop_assert_eq!(key(&template, &left) == key(&template, &right), is_one);
    }

    /// Two templates: a key says which literal texts and which values it was made from.
    #[test]
    fn templates_do_not_meet(
        one in template(),
        other in template(),
        values in prop::array::uniform3(scalar()),
        others in prop::array::uniform3(scalar()),
    ) {
        let arguments = |values: &[String; 3]| {
            format!(r#"{{"a":{},"b":{},"c":{}}}"#, values[0], values[1], values[2])
        };
        // What each was made from, with the values in their canonical form.
        let made = |template: &str, values: &[String; 3]| -> Vec<Result<String, Vec<u8>>> {
            let arguments = arguments(values);
            Template::parse(template).unwrap().parts.into_iter().map(|part| match part {
                Part::Literal(text) => Ok(text),
                Part::Value(pointer) => {
                    Err(json::canonical_text(pointer.find(arguments.as_bytes()).unwrap()).unwrap())
                }
            }).collect()
        };
        let is_one = made(&one, &values) == made(&other, &others);
        let keys = [key(&one, &arguments(&values)), key(&other, &arguments(&others))];
        prop_assert_eq!(keys[0] == keys[1], is_one);
    }

    #[test]
    fn parsing_never_panics(text in "[{}/~ab]{0,12}", arguments in r#"\{"a":[0-9\[\]{},"]{0,8}\}"#) {
        if let Ok(template) = Template::parse(&text) {
            prop_assert_eq!(template.to_string(), text);
            let _ = template.key(arguments.as_bytes());
            let _ = template.fill(arguments.as_bytes());
        }
    }
}
