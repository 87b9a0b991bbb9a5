//! Calls in the making, and what their answers say.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A `tools/call` in the making.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) id: Value,
    tool: String,
    arguments: Value,
    meta: serde_json::Map<String, Value>,
    params: serde_json::Map<String, Value>,
}

impl Call {
    pub(crate) fn new(id: impl Into<Value>, tool: &str, arguments: Value) -> Call {
        Call {
            id: id.into(),
            tool: tool.to_owned(),
            arguments,
            meta: serde_json::Map::new(),
            params: serde_json::Map::new(),
        }
    }

    /// The usual charge.
    pub(crate) fn charge(id: impl Into<Value>) -> Call {
        Call::new(id, "charge", json!({"order_id": "A-1", "amount": 100}))
    }

    pub(crate) fn seq(self, seq: impl Into<Value>) -> Call {
        self.meta("checkpoint_seq", seq)
    }

    pub(crate) fn meta(mut self, name: &str, value: impl Into<Value>) -> Call {
        self.meta.insert(name.to_owned(), value.into());
        self
    }

    /// What the upstream is to do with it; no part of the signature.
    pub(crate) fn script(self, script: Value) -> Call {
        self.meta("script", script)
    }

    pub(crate) fn param(mut self, name: &str, value: impl Into<Value>) -> Call {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    /// The stateless revision's `_meta`.
    pub(crate) fn modern(self) -> Call {
        self.meta("io.modelcontextprotocol/protocolVersion", "2026-07-28")
            .meta(
                "io.modelcontextprotocol/clientCapabilities",
                json!({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}),
            )
            .meta(
                "io.modelcontextprotocol/clientInfo",
                json!({"name": "it", "version": "1"}),
            )
    }

    pub(crate) fn line(&self) -> String {
        let mut params = self.params.clone();
        params.insert("name".into(), json!(self.tool));
        params.insert("arguments".into(), self.arguments.clone());
        if !self.meta.is_empty() {
            params.insert("_meta".into(), json!(self.meta));
        }
        json!({"jsonrpc": "2.0", "id": self.id, "method": "tools/call", "params": params})
            .to_string()
    }
}

/// The refusal in an answer, whichever of its two shapes it has.
#[track_caller]
pub(crate) fn refusal(answer: &Value) -> &Value {
    let data = &answer["error"]["data"];
    if data["kind"].is_string() {
        return data;
    }
    let data = &answer["result"]["structuredContent"];
    assert!(data["kind"].is_string(), "no refusal: {answer}");
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    data
}

/// Asserts a refusal of this kind, and what it says of the effect.
#[track_caller]
pub(crate) fn assert_refused(answer: &Value, kind: &str, side_effect: &str) {
    let data = refusal(answer);
    assert_eq!(data["kind"], kind, "{answer}");
    assert_eq!(data["side_effect"], side_effect, "{answer}");
}

/// Asserts an ordinary result.
#[track_caller]
pub(crate) fn assert_done(answer: &Value) {
    assert_eq!(answer["result"]["isError"], false, "{answer}");
}

/// The bytes of the member `result` of a line.
#[track_caller]
pub(crate) fn result_bytes(line: &[u8]) -> String {
    member_bytes(line, "result")
}

/// The bytes of a top-level member of a line.
#[track_caller]
pub(crate) fn member_bytes(line: &[u8], name: &str) -> String {
    let members: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(line)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(line)));
    members
        .get(name)
        .unwrap_or_else(|| panic!("no {name}: {}", String::from_utf8_lossy(line)))
        .get()
        .to_owned()
}

pub(crate) fn is_answer_to(line: &[u8], id: &Value) -> bool {
    serde_json::from_slice::<Value>(line)
        .is_ok_and(|message| message["id"] == *id && message.get("method").is_none())
}
