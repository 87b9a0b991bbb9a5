//! The tools that a `tools/list` answer names, with the hints that a policy may trust.

use std::borrow::Cow;

use crate::json::{self, Kind};

/// One page of a tools list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing<'a> {
    /// The tools that have a name, in their order.
    pub tools: Vec<ToolDefinition<'a>>,
    /// Whether more pages follow; an empty cursor is one.
    pub has_next_cursor: bool,
}

/// One tool as the upstream defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolDefinition<'a> {
    /// The tool's name.
    pub name: Cow<'a, str>,
    /// The definition's own bytes, for telling whether it changed.
    pub raw: &'a [u8],
    /// `annotations.readOnlyHint`, where it is a boolean. A hint may lie.
    pub read_only_hint: Option<bool>,
    /// `annotations.idempotentHint`, likewise.
    pub idempotent_hint: Option<bool>,
    /// Whether there is an `outputSchema`, to which a client may hold `structuredContent`.
    pub has_output_schema: bool,
}

/// Reads the raw result of a `tools/list`.
///
/// Source: MCP 2025-11-25, tools, tool annotations; utilities, pagination.
pub fn read_listing(result: &[u8]) -> Listing<'_> {
    let mut listing = Listing::default();
    for member in json::Members::new(result) {
        match &*member.key {
            b"tools" => {
                listing.tools = json::Elements::new(member.value)
                    .filter_map(read_tool)
                    .collect();
            }
            b"nextCursor" => listing.has_next_cursor = json::kind(member.value) == Kind::String,
            _ => {}
        }
    }
    listing
}

fn read_tool(raw: &[u8]) -> Option<ToolDefinition<'_>> {
    let name = json::text(json::last_member(raw, "name")?.value)?;
    let annotations = json::last_member(raw, "annotations").map_or(&b"{}"[..], |found| found.value);
    let hint = |name| match json::kind(json::last_member(annotations, name)?.value) {
        Kind::True => Some(true),
        Kind::False => Some(false),
        _ => None,
    };
    Some(ToolDefinition {
        name,
        raw,
        read_only_hint: hint("readOnlyHint"),
        idempotent_hint: hint("idempotentHint"),
        has_output_schema: json::last_member(raw, "outputSchema")
            .is_some_and(|found| json::is_object(found.value)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_and_their_hints_are_read() {
        let result = br#"{"tools":[
            {"name":"read","annotations":{"readOnlyHint":true,"idempotentHint":false}},
            {"name":"pay","inputSchema":{"type":"object"}},
            {"name":"odd","annotations":{"readOnlyHint":"true"}},
            {"title":"nameless"}, 7], "nextCursor":""}"#;
        let listing = read_listing(result);
        let tools: Vec<_> = listing
            .tools
            .iter()
            .map(|tool| (&*tool.name, tool.read_only_hint, tool.idempotent_hint))
            .collect();
        assert_eq!(
            tools,
            [
                ("read", Some(true), Some(false)),
                ("pay", None, None),
                ("odd", None, None)
            ]
        );
        assert!(listing.has_next_cursor);
        assert!(listing.tools[1].raw.starts_with(br#"{"name":"pay""#));
    }

    #[test]
    fn odd_results_have_no_tools() {
        for result in [
            "{}",
            "[]",
            "null",
            r#"{"tools":{}}"#,
            r#"{"tools":[],"nextCursor":null}"#,
        ] {
            assert_eq!(
                read_listing(result.as_bytes()),
                Listing::default(),
                "{result}"
            );
        }
    }
}
