//! A `tools/call` of our own, and what makes it legal beside the client's.
//!
//! There is one reason for it: a policy names a tool that knows what became of a call in doubt.
//!
//! Must not: say anything in the client's name that the client has not said.

use super::refusal::Object;
use crate::json;

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Returns the line of a call of our own. The raw `arguments` are an object on one line, and `meta`
/// is what [`own_meta`] made, where the revision asks for it.
pub fn own_call(id: &str, tool: &str, arguments: &[u8], meta: Option<&[u8]>) -> Vec<u8> {
    let mut params = Object::default();
    params.text("name", tool);
    params.raw("arguments", &String::from_utf8_lossy(arguments));
    if let Some(meta) = meta {
        params.raw("_meta", &String::from_utf8_lossy(meta));
    }
    let mut call = Object::default();
    call.text("jsonrpc", "2.0");
    call.text("id", id);
    call.text("method", "tools/call");
    call.raw("params", &params.finish());
    let mut line = call.finish().into_bytes();
    line.push(b'\n');
    line
}

/// Returns the raw `_meta` of a call of our own beside a client's call with this raw `_meta`:
/// nothing where that carries no protocol revision, as before 2026-07-28.
///
/// Revision and client are the client's own. Its capabilities are not: nobody would answer a
/// question that the upstream asked of us, so we declare none. There is no progress token.
///
/// Source: MCP 2026-07-28, `basic/index` (`_meta`).
pub fn own_meta(meta: &[u8]) -> Option<Vec<u8>> {
    let raw = |name| {
        let member = json::last_member(meta, name)?;
        std::str::from_utf8(member.value).ok()
    };
    let mut own = Object::default();
    own.raw(VERSION, raw(VERSION)?);
    own.raw(CAPABILITIES, "{}");
    if let Some(info) = raw(CLIENT_INFO) {
        own.raw(CLIENT_INFO, info);
    }
    Some(own.finish().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_one_line() {
        let line = own_call("a\"\n", "find", br#"{"n":1.0}"#, None);
        assert_eq!(
            String::from_utf8(line).unwrap(),
            "{\"jsonrpc\":\"2.0\",\"id\":\"a\\\"\\n\",\"method\":\"tools/call\",\
             \"params\":{\"name\":\"find\",\"arguments\":{\"n\":1.0}}}\n"
        );
    }

    #[test]
    fn the_stateless_revision_is_told_what_it_asks_for_and_no_more() {
        let meta =
            br#"{"progressToken":1,"io.modelcontextprotocol/clientInfo":{"name":"c", "x":1.0},
            "io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"checkpoint_seq":7,
            "io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
        assert_eq!(
            String::from_utf8(own_meta(meta).unwrap()).unwrap(),
            r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"c", "x":1.0}}"#
        );
        assert_eq!(own_meta(br#"{"progressToken":1}"#), None);
    }
}
