//! What each target does with its input. What must hold stands in the properties, which the
//! product's own tests call too.

#[path = "../../tests/parsers/properties.rs"]
mod properties;

/// Any line from either side is told apart, and its parts are its own bytes.
pub fn frame(line: &[u8]) {
    properties::client_line(line);
    properties::upstream_line(line);
}

/// Two texts, parted by the first line end, have one signature iff they are the same value.
pub fn signature(texts: &[u8]) {
    let mut parts = texts.splitn(2, |byte| *byte == b'\n');
    let one = parts.next().unwrap_or_default();
    properties::signatures(one, parts.next().unwrap_or(one));
}

/// What is added to a line, or made of one, is one line of JSON under the same id.
pub fn reply(line: &[u8]) {
    properties::reply(line);
}

/// No bytes in a journal's row make a reader panic.
pub fn row(input: &[u8]) {
    properties::row(input);
}

/// Nothing that an operator is shown drives the terminal.
pub fn rendering(text: &[u8]) {
    properties::rendering(&String::from_utf8_lossy(text));
}
