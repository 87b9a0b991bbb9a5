//! The name and version that the client sees in `initialize` and `server/discover`.
//!
//! Only the two values are replaced; a title, an icon, a description stay the upstream's. Nothing
//! is added where the upstream says nothing.

use crate::json;

/// Where revisions of the protocol keep the identity inside an answer.
///
/// Source: MCP 2025-11-25, lifecycle; MCP 2026-07-28, base protocol, `_meta`, and its drafts.
const PLACES: [&[&str]; 2] = [
    &["result", "serverInfo"],
    &["result", "_meta", "io.modelcontextprotocol/serverInfo"],
];

/// Returns the answer with the identity's `name` and `version` replaced and no other byte changed,
/// or nothing if it names no identity.
pub fn rewrite(line: &[u8], name: &str, version: &str) -> Option<Vec<u8>> {
    let mut rewritten: Option<Vec<u8>> = None;
    for place in PLACES {
        for (member, value) in [("name", name), ("version", version)] {
            let path = [place, &[member]].concat();
            let line = rewritten.as_deref().unwrap_or(line);
            if let Some(line) = json::replace(line, &path, json::quote(value).as_bytes()) {
                rewritten = Some(line);
            }
        }
    }
    rewritten
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> Option<String> {
        rewrite(line.as_bytes(), "n\"", "9").map(|line| String::from_utf8(line).expect("UTF-8"))
    }

    #[test]
    fn only_name_and_version_change() {
        let legacy = r#"{"result":{ "serverInfo" : {"name":"x","title":"T","version" : "1"} ,"y":1},"id":1}"#;
        let expected = r#"{"result":{ "serverInfo" : {"name":"n\"","title":"T","version" : "9"} ,"y":1},"id":1}"#;
        assert_eq!(rewritten(legacy).as_deref(), Some(expected));
        let modern = r#"{"id":1,"result":{"_meta":{"io.modelcontextprotocol/serverInfo":{"version":"1","name":"x"}}}}"#;
        let expected = r#"{"id":1,"result":{"_meta":{"io.modelcontextprotocol/serverInfo":{"version":"9","name":"n\""}}}}"#;
        assert_eq!(rewritten(modern).as_deref(), Some(expected));
    }

    #[test]
    fn nothing_is_added() {
        for line in [
            r#"{"id":1,"result":{}}"#,
            r#"{"id":1,"result":{"serverInfo":{}}}"#,
            r#"{"id":1,"result":{"serverInfo":"x"}}"#,
            r#"{"id":1,"error":{"code":1}}"#,
            "[]",
        ] {
            assert_eq!(rewritten(line), None, "{line}");
        }
        let line = r#"{"result":{"serverInfo":{"name":"x"}}}"#;
        assert_eq!(
            rewritten(line).as_deref(),
            Some(r#"{"result":{"serverInfo":{"name":"n\""}}}"#)
        );
    }
}
