//! The shapes in which providers take tool results; pure: outcomes in, text out.
//!
//! What an upstream sent is spliced in as raw JSON, so that each number, escape and lone surrogate
//! stays as it came. Whatever a format has no place for (an image in a text-only message) is named
//! in words instead of being dropped without one.
//!
//! Must not: read a journal, or decide whether an entry may be exported.
//!
//! Source: MCP "Tools" (`CallToolResult`); OpenAI API reference, "Chat completions" (tool message)
//! and "Responses" (`function_call_output`), OpenAI guides "Images and vision" and "File inputs";
//! Anthropic API reference, "Messages" (`tool_result`). `tests/peers/export.rs` holds what is
//! written to the types in the providers' own packages.

use crate::json::{self, Kind};

/// What an entry came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// A result, as the upstream's bytes.
    Result(Vec<u8>),
    /// Something else, told as an error object.
    Failure(Failure),
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The code, as JSON.
    pub(super) code: String,
    /// The message, as JSON.
    pub(super) message: String,
    /// `not_started`, `unknown` or `completed`.
    pub(super) side_effect_state: &'static str,
    /// Whose word it is, where it is not the upstream's.
    pub(super) provenance: Option<&'static str>,
}

impl Failure {
    /// Returns `{"error": {…}}`.
    fn json(&self) -> String {
        let provenance = self
            .provenance
            .map(|whose| format!(",\"provenance\":\"{whose}\""))
            .unwrap_or_default();
        format!(
            "{{\"error\":{{\"code\":{},\"message\":{},\"side_effect_state\":\"{}\"{provenance}}}}}",
            self.code, self.message, self.side_effect_state
        )
    }
}

/// One entry, ready to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// The place.
    pub(super) seq: u64,
    /// The workflow.
    pub(super) workflow_id: String,
    /// The tool.
    pub(super) tool: String,
    /// The provider's id of the call.
    pub(super) call_id: Option<String>,
    /// Whose outcome it is.
    pub(super) provenance: String,
    /// What it came to.
    pub(super) came: Came,
}

impl Item {
    fn call_id(&self) -> String {
        json::quote(self.call_id.as_deref().unwrap_or_default())
    }
}

/// Returns an MCP `CallToolResult`: the stored one, with `_meta.checkpoint` to tell it by.
pub(super) fn mcp(item: &Item) -> String {
    let meta = format!(
        "{{\"seq\":{},\"call_id\":{},\"workflow_id\":{},\"tool\":{},\"provenance\":{}{}}}",
        item.seq,
        item.call_id
            .as_deref()
            .map_or_else(|| "null".to_owned(), json::quote),
        json::quote(&item.workflow_id),
        json::quote(&item.tool),
        json::quote(&item.provenance),
        match &item.came {
            Came::Result(_) => String::new(),
            Came::Failure(failure) =>
                format!(",\"side_effect_state\":\"{}\"", failure.side_effect_state),
        }
    );
    match &item.came {
        Came::Result(body) => {
            let marked = json::set(body, &["_meta", "checkpoint"], meta.as_bytes());
            match marked {
                Some(marked) => one_line(&marked),
                // What is no object is no legal result; it is shown as the text that it is.
                None => format!(
                    "{{\"content\":[{}],\"isError\":false,\"_meta\":{{\"checkpoint\":{meta}}}}}",
                    text_block(&json::quote_bytes(body))
                ),
            }
        }
        Came::Failure(failure) => {
            let told = failure.json();
            format!(
                "{{\"content\":[{}],\"structuredContent\":{told},\"isError\":true,\
                 \"_meta\":{{\"checkpoint\":{meta}}}}}",
                text_block(&json::quote(&told))
            )
        }
    }
}

/// Returns a tool message of OpenAI's chat completions.
pub(super) fn openai_chat(item: &Item) -> String {
    // Such a message takes text only.
    format!(
        "{{\"role\":\"tool\",\"tool_call_id\":{},\"content\":{}}}",
        item.call_id(),
        plain(&item.came)
    )
}

/// Returns a `function_call_output` of OpenAI's responses.
pub(super) fn openai_responses(item: &Item) -> String {
    let output = match &item.came {
        Came::Result(body) if blocks(body).iter().any(Block::is_media) => {
            let parts: Vec<String> = blocks(body).iter().map(responses_block).collect();
            format!("[{}]", parts.join(","))
        }
        came => plain(came),
    };
    format!(
        "{{\"type\":\"function_call_output\",\"call_id\":{},\"output\":{output}}}",
        item.call_id()
    )
}

fn responses_block(block: &Block) -> String {
    match block {
        Block::Image { media_type, data } => format!(
            "{{\"type\":\"input_image\",\"image_url\":\"data:{media_type};base64,{}\"}}",
            inside(data)
        ),
        Block::Document { name, data } => format!(
            "{{\"type\":\"input_file\",\"filename\":{},\
             \"file_data\":\"data:application/pdf;base64,{}\"}}",
            json::quote(name),
            inside(data)
        ),
        text @ Block::Text(_) => {
            format!("{{\"type\":\"input_text\",\"text\":{}}}", text.text())
        }
    }
}

/// Returns a `tool_result` block of Anthropic's messages.
pub(super) fn anthropic(item: &Item) -> String {
    let (content, is_error) = match &item.came {
        Came::Failure(failure) => (json::quote(&failure.json()), true),
        Came::Result(body) => {
            let is_error =
                json::last_member(body, "isError").is_some_and(|member| member.value == b"true");
            let blocks = blocks(body);
            let content = if blocks.iter().any(Block::is_media) {
                let parts: Vec<String> = blocks.iter().filter_map(anthropic_block).collect();
                format!("[{}]", parts.join(","))
            } else {
                plain(&item.came)
            };
            (content, is_error)
        }
    };
    format!(
        "{{\"type\":\"tool_result\",\"tool_use_id\":{},\"content\":{content}{}}}",
        item.call_id(),
        if is_error { ",\"is_error\":true" } else { "" }
    )
}

fn anthropic_block(block: &Block) -> Option<String> {
    match block {
        Block::Image { media_type, data } => Some(format!(
            "{{\"type\":\"image\",\"source\":{{\"type\":\"base64\",\"media_type\":\"{media_type}\",\
             \"data\":{data}}}}}"
        )),
        Block::Document { data, .. } => Some(format!(
            "{{\"type\":\"document\",\"source\":{{\"type\":\"base64\",\
             \"media_type\":\"application/pdf\",\"data\":{data}}}}}"
        )),
        text @ Block::Text(_) => {
            let text = text.text();
            // An empty text block is refused there.
            (text != "\"\"").then(|| text_block(&text))
        }
    }
}

fn text_block(text: &str) -> String {
    format!("{{\"type\":\"text\",\"text\":{text}}}")
}

/// Returns a type of images, if it is one that both providers take.
fn image_type(media_type: &str) -> Option<&'static str> {
    ["image/jpeg", "image/png", "image/gif", "image/webp"]
        .into_iter()
        .find(|known| *known == media_type)
}

/// Returns all of it as one JSON string.
fn plain(came: &Came) -> String {
    match came {
        Came::Failure(failure) => json::quote(&failure.json()),
        Came::Result(body) => {
            let mut text = String::from("\"");
            for (index, block) in blocks(body).iter().enumerate() {
                if index > 0 {
                    text.push_str("\\n");
                }
                text.push_str(inside(&block.text()));
            }
            text.push('"');
            text
        }
    }
}

/// One block of a result's content; texts and data are raw JSON strings.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Block {
    Text(String),
    /// An image of a type that the providers take.
    Image {
        media_type: &'static str,
        data: String,
    },
    /// A PDF.
    Document {
        name: String,
        data: String,
    },
}

impl Block {
    fn is_media(&self) -> bool {
        matches!(self, Self::Image { .. } | Self::Document { .. })
    }

    /// Returns the block as a raw JSON string, in words where it is no text.
    fn text(&self) -> String {
        match self {
            Self::Text(raw) => raw.clone(),
            Self::Image { media_type, data } => named("image", media_type, data),
            Self::Document { data, .. } => named("document", PDF, data),
        }
    }
}

const PDF: &str = "application/pdf";

/// Returns what stands in the place of something that a text can't carry.
fn named(what: &str, media_type: &str, data: &str) -> String {
    let bytes = inside(data).len();
    json::quote(&format!(
        "[{what} of type {media_type}, {bytes} characters of base64, left out]"
    ))
}

/// Returns the blocks of a raw result. One without content is what its structured content says.
fn blocks(body: &[u8]) -> Vec<Block> {
    let last = |name| json::last_member(body, name).map(|member| member.value);
    let blocks: Vec<Block> = last("content")
        .map(|content| json::Elements::new(content).map(block).collect())
        .unwrap_or_default();
    if !blocks.is_empty() {
        return blocks;
    }
    match last("structuredContent") {
        Some(structured) => vec![Block::Text(json::quote_bytes(structured))],
        None if json::is_object(body) && last("content").is_some() => Vec::new(),
        None => vec![Block::Text(json::quote_bytes(body))],
    }
}

fn block(raw: &[u8]) -> Block {
    let member = |object: &[u8], name: &str| {
        json::last_member(object, name)
            .filter(|member| json::kind(member.value) == Kind::String)
            .and_then(|member| String::from_utf8(member.value.to_vec()).ok())
    };
    let whole = || Block::Text(json::quote_bytes(raw));
    let kind = json::last_member(raw, "type").and_then(|member| json::text(member.value));
    match kind.as_deref() {
        Some("text") => member(raw, "text").map_or_else(whole, Block::Text),
        Some("image") => match (media_type(raw), member(raw, "data")) {
            (Some(media_type), Some(data)) => media("image", &media_type, data),
            _ => whole(),
        },
        Some("audio") => match (media_type(raw), member(raw, "data")) {
            (Some(media_type), Some(data)) => Block::Text(named("audio", &media_type, &data)),
            _ => whole(),
        },
        Some("resource") => {
            let Some(resource) = json::last_member(raw, "resource") else {
                return whole();
            };
            let media_type = media_type(resource.value).unwrap_or_default();
            match (
                member(resource.value, "text"),
                member(resource.value, "blob"),
            ) {
                (Some(text), _) => Block::Text(text),
                (None, Some(data)) if media_type == PDF => Block::Document {
                    name: file_name(resource.value),
                    data,
                },
                (None, Some(data)) => media("resource", &media_type, data),
                (None, None) => whole(),
            }
        }
        // A link, or what a later revision adds: its own JSON says most.
        _ => whole(),
    }
}

/// Returns a block's or a resource's type; it may be spelled with escapes, as some write each
/// slash as `\/`.
fn media_type(object: &[u8]) -> Option<String> {
    let member = json::last_member(object, "mimeType")?;
    Some(json::text(member.value)?.into_owned())
}

/// Returns an image, or its name in words where it is of a type that is not taken.
fn media(what: &str, media_type: &str, data: String) -> Block {
    match image_type(media_type) {
        Some(media_type) => Block::Image { media_type, data },
        None => Block::Text(named(what, media_type, &data)),
    }
}

/// Returns the last part of a resource's URI, as the name of a file.
fn file_name(resource: &[u8]) -> String {
    json::last_member(resource, "uri")
        .and_then(|uri| json::text(uri.value))
        .and_then(|uri| uri.rsplit('/').next().map(str::to_owned))
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "document.pdf".to_owned())
}

/// Returns the inside of a raw JSON string.
fn inside(raw: &str) -> &str {
    raw.strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(raw)
}

/// Returns bytes as text on one line; what is not UTF-8 becomes U+FFFD.
fn one_line(bytes: &[u8]) -> String {
    // Between tokens a line end means nothing, and inside a string it can't stand.
    String::from_utf8_lossy(bytes).replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests;
