//! The results and errors that an operator gives, checked before they are kept: a replay hands
//! them to a client as if the upstream had sent them.
//!
//! Source: MCP 2025-11-25, `server/tools` (`CallToolResult`); JSON-RPC 2.0, section 5.1.

use super::error::CliError;
use crate::json::{self, Kind};

const RESULT_EXAMPLE: &str =
    "for example {\"content\": [{\"type\": \"text\", \"text\": \"…\"}]}; @FILE reads a file";
const ERROR_EXAMPLE: &str =
    "for example {\"code\": -32000, \"message\": \"…\"}; @FILE reads a file";

/// Checks a tool's result and returns its bytes, and whether it says `isError: true`.
pub(super) fn result(given: &[u8]) -> Result<(Vec<u8>, bool), CliError> {
    let body = object("--result", RESULT_EXAMPLE, given)?;
    let member = |name: &str| json::member(&body, name);
    let refuse = |why: &str, hint: &str| {
        CliError::usage("--result is no tool's result")
            .because(why)
            .hint(hint)
    };
    if member("jsonrpc").is_some() || member("result").is_some() {
        let hint = "give the value of its member `result` alone";
        return Err(refuse("it is a whole answer", hint));
    }
    let is_kind = |name: &str, kind: Kind| member(name).is_none_or(|raw| json::kind(raw) == kind);
    if member("content").is_none() || !is_kind("content", Kind::Array) {
        return Err(refuse("it has no array `content`", RESULT_EXAMPLE));
    }
    let is_error = match member("isError") {
        None => false,
        Some(b"true") => true,
        Some(b"false") => false,
        Some(_) => {
            let hint = "write true if the tool failed, or leave `isError` out";
            return Err(refuse("its `isError` is neither true nor false", hint));
        }
    };
    Ok((body.clone(), is_error))
}

/// Checks a JSON-RPC error and returns its bytes.
pub(super) fn error(given: &[u8]) -> Result<Vec<u8>, CliError> {
    let body = object("--error", ERROR_EXAMPLE, given)?;
    let refuse = |why: &str| {
        CliError::usage("--error is no JSON-RPC error")
            .because(why)
            .hint(ERROR_EXAMPLE)
    };
    let code = json::member(&body, "code").and_then(|raw| std::str::from_utf8(raw).ok());
    if code.and_then(|code| code.parse::<i64>().ok()).is_none() {
        return Err(refuse("its `code` is no integer"));
    }
    if json::member(&body, "message").map(json::kind) != Some(Kind::String) {
        return Err(refuse("its `message` is no string"));
    }
    Ok(body)
}

/// Returns the one JSON object that was given.
fn object(flag: &str, example: &str, given: &[u8]) -> Result<Vec<u8>, CliError> {
    let body = json::trim(json::remove_byte_order_mark(given));
    let refuse = |why: String| {
        CliError::usage(format!("{flag} can't be used"))
            .because(why)
            .hint(example)
    };
    if let Err(invalid) = json::check(body) {
        return Err(refuse(format!("it is not JSON ({invalid})")));
    }
    if let Some(duplicate) = json::find_duplicate(body) {
        return Err(refuse(format!("{duplicate}")).hint("keep one of the two"));
    }
    if !json::is_object(body) {
        return Err(refuse("it is no JSON object".to_owned()));
    }
    Ok(body.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_kept_as_they_are_given() {
        let pretty = b"\xef\xbb\xbf{\n  \"content\": [],\n  \"x\": 1.0, \"isError\": true\n}\n";
        let (body, is_error) = result(pretty).unwrap();
        assert!(is_error && body.starts_with(b"{\n") && body.ends_with(b"}"));
        for bad in [
            &b""[..],
            b"[]",
            b"{}",
            b"{\"content\": {}}",
            b"{\"content\": [], \"content\": []}",
            b"{\"content\": [], \"isError\": 1}",
            b"{\"jsonrpc\": \"2.0\", \"id\": 1, \"result\": {\"content\": []}}",
            b"{\"content\": []} {}",
        ] {
            assert!(result(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn errors() {
        assert!(error(br#"{"code": -32000, "message": "no", "data": {}}"#).is_ok());
        for bad in [
            r#"{"code": 1.5, "message": "no"}"#,
            r#"{"code": 1}"#,
            "null",
        ] {
            assert!(error(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
