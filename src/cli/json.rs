//! JSON that is printed: documents, lists that may be longer than memory, lines.
//!
//! Must not: write but through [`Output`].

use std::io;

use serde::Serialize;

use super::error::CliError;
use super::escape::escape_json;
use super::output::{Output, SCHEMA_VERSION};

/// Lines are written in pieces of about this size, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Writes objects of one sort, each on a line of its own and with the version as its first member.
///
/// What is added is written in pieces, so that a hundred thousand lines are not as many writes;
/// the last of them only by [`JsonLines::flush`].
#[derive(Debug)]
pub struct JsonLines<'a> {
    output: &'a Output,
    piece: String,
}

impl<'a> JsonLines<'a> {
    pub(super) fn new(output: &'a Output) -> Self {
        Self {
            output,
            piece: String::new(),
        }
    }

    /// Adds a line. `item` must be an object without `schema_version`.
    ///
    /// # Errors
    ///
    /// As [`Output::data`].
    pub fn add(&mut self, item: &impl Serialize) -> Result<(), CliError> {
        #[derive(Serialize)]
        struct Versioned<'a, T> {
            schema_version: u32,
            #[serde(flatten)]
            item: &'a T,
        }
        self.piece.push_str(&json_line(&Versioned {
            schema_version: SCHEMA_VERSION,
            item,
        })?);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes what was added.
    ///
    /// # Errors
    ///
    /// As [`Output::data`].
    pub fn flush(&mut self) -> Result<(), CliError> {
        self.output.bytes(self.piece.as_bytes())?;
        self.piece.clear();
        Ok(())
    }
}

/// Writes a document of `schema_version`, a list, and what follows it, item by item.
#[derive(Debug)]
pub struct LongDocument<'a> {
    output: &'a Output,
    piece: String,
    is_empty: bool,
}

impl<'a> LongDocument<'a> {
    pub(super) fn new(output: &'a Output, list: &str) -> Self {
        Self {
            output,
            piece: format!("{{\n  \"schema_version\": {SCHEMA_VERSION},\n  \"{list}\": ["),
            is_empty: true,
        }
    }

    /// Adds an item to the list. It must hold nothing that is spliced in as it came: only then
    /// does a line's end always stand between two tokens.
    ///
    /// # Errors
    ///
    /// As [`Output::data`].
    pub fn add(&mut self, item: &impl Serialize) -> Result<(), CliError> {
        let text = pretty(item)?;
        if !std::mem::replace(&mut self.is_empty, false) {
            self.piece.push(',');
        }
        for line in escape_json(&text).lines() {
            self.piece.push_str("\n    ");
            self.piece.push_str(line);
        }
        if self.piece.len() >= PIECE_BYTES {
            self.output.bytes(self.piece.as_bytes())?;
            self.piece.clear();
        }
        Ok(())
    }

    /// Adds the last items, and ends the list and the document. `rest` must be an object with at least one member: what
    /// follows the list.
    ///
    /// # Errors
    ///
    /// As [`Output::data`].
    pub fn end_with(self, items: &[impl Serialize], rest: &impl Serialize) -> Result<(), CliError> {
        let output = self.output;
        output.bytes(self.last_piece(items, rest)?.as_bytes())
    }

    /// Returns what has not been written yet of the whole document.
    pub(super) fn last_piece(
        mut self,
        items: &[impl Serialize],
        rest: &impl Serialize,
    ) -> Result<String, CliError> {
        for item in items {
            self.add(item)?;
        }
        if !self.is_empty {
            self.piece.push_str("\n  ");
        }
        self.piece.push_str("],");
        let text = pretty(rest)?;
        self.piece
            .push_str(escape_json(&text).trim_start_matches('{'));
        self.piece.push('\n');
        Ok(self.piece)
    }
}

pub(super) fn pretty(document: &impl Serialize) -> Result<String, CliError> {
    serde_json::to_string_pretty(document).map_err(|error| CliError::from(io::Error::from(error)))
}

/// Returns a document on one line, with the line's end.
pub(super) fn json_line(document: &impl Serialize) -> Result<String, CliError> {
    let text =
        serde_json::to_string(document).map_err(|error| CliError::from(io::Error::from(error)))?;
    // A payload is spliced in as it came, and may have line ends between its tokens.
    let mut line = escape_json(&text).replace(['\n', '\r'], " ");
    line.push('\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_document_is_the_document() {
        #[derive(Serialize)]
        struct Whole<'a> {
            schema_version: u32,
            items: &'a [serde_json::Value],
            #[serde(flatten)]
            rest: &'a serde_json::Value,
        }
        let items = [
            serde_json::json!({"a": 1, "b": [], "c": {"d": ["x\u{1b}\n", null]}}),
            serde_json::json!({"a": {}}),
            serde_json::json!({}),
        ];
        let output = Output::plain();
        for count in 0..=items.len() {
            let rest = serde_json::json!({"counts": {"n": count}, "more": []});
            let mut long = output.long_document("items");
            let (early, late) = items[..count].split_at(count / 2);
            for item in early {
                long.add(item).unwrap();
            }
            let whole = Whole {
                schema_version: SCHEMA_VERSION,
                items: &items[..count],
                rest: &rest,
            };
            let whole = pretty(&whole).unwrap() + "\n";
            assert_eq!(long.last_piece(late, &rest).unwrap(), escape_json(&whole));
        }
    }
}
