//! Telling the upstream a call's key, attempt and fence: the one place where the forwarded call is
//! not the client's bytes.
//!
//! Members are added and no other byte changes. The call's signature stays that of the client's
//! line: what is added here was never asked for by the client, and differs from one attempt to the
//! next.
//!
//! Must not: decide whether a tool is told, or make a key.

use std::borrow::Cow;

use crate::json::{self, Kind};

/// Where the upstream looks for the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPlace<'a> {
    /// In arguments of these names, each left alone where the client sent one.
    Arguments {
        /// Gets the key, as a string.
        key: &'a str,
        /// Gets the attempt, as a number.
        attempt: Option<&'a str>,
        /// Gets the fence, as a number.
        fence: Option<&'a str>,
    },
    /// In `_meta.checkpoint`, all three. One that the client sent is replaced: an upstream that
    /// compares fences must never get a client's.
    Meta,
}

/// What the upstream is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassedKey<'a> {
    /// Names the effect, stable over attempts.
    pub idempotency_key: &'a str,
    /// The attempt, from 1.
    pub attempt: u64,
    /// The fence of the attempt; it rises and is never reused.
    pub fence: u64,
}

/// Returns the line of a `tools/call` with the key in its place, or the line itself where the
/// client's arguments have all of it already.
///
/// `line` is a line that was read as a call. Absent or `null` arguments become an object.
///
/// Returns nothing if the line has no place for it: `params`, `arguments` or `_meta` is there and
/// no object. Such a line is refused before a policy is asked.
#[must_use]
pub fn pass_key<'l>(
    line: &'l [u8],
    place: &KeyPlace<'_>,
    passed: &PassedKey<'_>,
) -> Option<Cow<'l, [u8]>> {
    let params = json::last_member(json::remove_byte_order_mark(line), "params")?.value;
    let key = json::quote(passed.idempotency_key);
    match *place {
        KeyPlace::Meta => {
            let value = format!(
                r#"{{"idempotency_key":{key},"attempt":{},"fence":{}}}"#,
                passed.attempt, passed.fence
            );
            json::set(line, &["params", "_meta", "checkpoint"], value.as_bytes()).map(Cow::Owned)
        }
        KeyPlace::Arguments {
            key: name,
            attempt,
            fence,
        } => {
            let arguments = arguments(params)?;
            let mut out = Cow::Borrowed(line);
            let wanted = [
                Some((name, key)),
                attempt.map(|name| (name, passed.attempt.to_string())),
                fence.map(|name| (name, passed.fence.to_string())),
            ];
            for (name, value) in wanted.into_iter().flatten() {
                if json::last_member(arguments, name).is_none() {
                    let path = ["params", "arguments", name];
                    out = Cow::Owned(json::set(&out, &path, value.as_bytes())?);
                }
            }
            Some(out)
        }
    }
}

/// Returns the call's raw arguments, an empty object for absent ones; nothing if they can't take a
/// member.
fn arguments(params: &[u8]) -> Option<&[u8]> {
    match json::last_member(params, "arguments") {
        None => json::is_object(params).then_some(&b"{}"[..]),
        Some(found) => match json::kind(found.value) {
            Kind::Object => Some(found.value),
            Kind::Null => Some(b"{}"),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSED: PassedKey<'_> = PassedKey {
        idempotency_key: "u\"1/0/7",
        attempt: 2,
        fence: 31,
    };
    const ALL: KeyPlace<'_> = KeyPlace::Arguments {
        key: "idempotency_key",
        attempt: Some("attempt"),
        fence: Some("fence"),
    };
    const KEY: KeyPlace<'_> = KeyPlace::Arguments {
        key: "idempotency_key",
        attempt: None,
        fence: None,
    };

    fn passed(line: &str, place: &KeyPlace<'_>) -> Option<String> {
        pass_key(line.as_bytes(), place, &PASSED)
            .map(|line| String::from_utf8(line.into_owned()).expect("UTF-8"))
    }

    #[test]
    fn arguments_are_added_and_nothing_else_changes() {
        for (place, line, expected) in [
            (
                KEY,
                r#"{"id":1,"params":{"name":"t","arguments":{"a":1}},"method":"tools/call"}"#,
                r#"{"id":1,"params":{"name":"t","arguments":{"a":1,"idempotency_key":"u\"1/0/7"}},"method":"tools/call"}"#,
            ),
            (
                ALL,
                " {\"params\" : { \"arguments\" :\t{ } , \"name\":\"t\" } }\r",
                " {\"params\" : { \"arguments\" :\t{\"idempotency_key\":\"u\\\"1/0/7\",\"attempt\":2,\"fence\":31 } , \"name\":\"t\" } }\r",
            ),
            (
                KEY,
                r#"{"params":{"name":"t"}}"#,
                r#"{"params":{"name":"t","arguments":{"idempotency_key":"u\"1/0/7"}}}"#,
            ),
            (
                KEY,
                r#"{"params":{"name":"t","arguments":null}}"#,
                r#"{"params":{"name":"t","arguments":{"idempotency_key":"u\"1/0/7"}}}"#,
            ),
            (
                KEY,
                r#"{"params":{"\u0061rguments":{"x":"\ud800 \/","n":1e400}}}"#,
                r#"{"params":{"\u0061rguments":{"x":"\ud800 \/","n":1e400,"idempotency_key":"u\"1/0/7"}}}"#,
            ),
        ] {
            assert_eq!(passed(line, &place).as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn what_the_client_sent_stays() {
        let line = r#"{"params":{"arguments":{"idempotency_\u006bey":null}}}"#;
        let out = pass_key(line.as_bytes(), &KEY, &PASSED).expect("a call");
        assert!(matches!(out, Cow::Borrowed(same) if same == line.as_bytes()));
        assert_eq!(
            passed(
                r#"{"params":{"arguments":{"attempt":"mine","idempotency_key":"k"}}}"#,
                &ALL
            )
            .as_deref(),
            Some(r#"{"params":{"arguments":{"attempt":"mine","idempotency_key":"k","fence":31}}}"#)
        );
        // A member of another depth or another case is another member.
        assert_eq!(
            passed(
                r#"{"params":{"arguments":{"a":{"idempotency_key":1},"Idempotency_key":2}}}"#,
                &KEY
            )
            .as_deref(),
            Some(
                r#"{"params":{"arguments":{"a":{"idempotency_key":1},"Idempotency_key":2,"idempotency_key":"u\"1/0/7"}}}"#
            )
        );
    }

    #[test]
    fn meta_says_all_three() {
        let ours = r#"{"idempotency_key":"u\"1/0/7","attempt":2,"fence":31}"#;
        for (line, expected) in [
            (
                r#"{"params":{"name":"t","_meta":{"checkpoint_seq":7}}}"#,
                format!(
                    r#"{{"params":{{"name":"t","_meta":{{"checkpoint_seq":7,"checkpoint":{ours}}}}}}}"#
                ),
            ),
            (
                r#"{"params":{"name":"t"}}"#,
                format!(r#"{{"params":{{"name":"t","_meta":{{"checkpoint":{ours}}}}}}}"#),
            ),
            (
                r#"{"params":{"_meta":{"checkpoint": {"fence":99} ,"a":1}}}"#,
                format!(r#"{{"params":{{"_meta":{{"checkpoint": {ours} ,"a":1}}}}}}"#),
            ),
        ] {
            assert_eq!(passed(line, &KeyPlace::Meta), Some(expected), "{line}");
        }
    }

    #[test]
    fn what_has_no_place_is_left_alone() {
        for line in [
            "[]",
            "{}",
            r#"{"params":[]}"#,
            r#"{"params":{"arguments":[]}}"#,
            r#"{"params":{"arguments":"x"}}"#,
        ] {
            assert_eq!(passed(line, &ALL), None, "{line}");
        }
        for line in [r#"{"params":{"_meta":7}}"#, r#"{"params":[]}"#, "{}"] {
            assert_eq!(passed(line, &KeyPlace::Meta), None, "{line}");
        }
    }

    proptest! {
        /// What was added can be taken out again, and what is left are the client's bytes.
        #[test]
        fn the_line_is_still_there(value in r#"[ab:,"{}\\]{0,8}"#, space in "[ \t]{0,2}", key in any::<String>()) {
            let line = format!(
                r#"{{"id":1,{space}"params":{space}{{"name":"t","arguments":{{"v":{}}}}}}}"#,
                json::quote(&value)
            );
            let passed = PassedKey { idempotency_key: &key, attempt: 1, fence: 2 };
            let out = pass_key(line.as_bytes(), &KEY, &passed).expect("a call");
            prop_assert_eq!(json::check(&out), Ok(()));
            let added = format!(r#","idempotency_key":{}"#, json::quote(&key));
            let out = String::from_utf8(out.into_owned()).expect("UTF-8");
            prop_assert_eq!(out.replacen(&added, "", 1), line);
        }
    }
}
