//! Changes to a text as replacements of ranges, and the lines that they change.
//!
//! Pure. Only what a change is about is ever shown: of the lines that it touches, all but the
//! ranges that the caller names is left out, since it may hold secrets.

use std::ops::Range;

/// A range of a text and what takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edit {
    pub(super) range: Range<usize>,
    pub(super) text: String,
}

impl Edit {
    pub(super) fn new(range: Range<usize>, text: impl Into<String>) -> Self {
        Self {
            range,
            text: text.into(),
        }
    }
}

/// Edits of one server, what of the lines may be shown, and what they are headed by.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) heading: String,
    /// Sorted, and none overlaps another one.
    pub(super) edits: Vec<Edit>,
    pub(super) shown: Vec<Range<usize>>,
}

/// Returns the text with the edits made, which are sorted and do not overlap.
pub(super) fn apply<'e>(text: &str, edits: impl IntoIterator<Item = &'e Edit>) -> String {
    apply_within(text, 0..text.len(), edits)
}

fn apply_within<'e>(
    text: &str,
    within: Range<usize>,
    edits: impl IntoIterator<Item = &'e Edit>,
) -> String {
    let mut changed = String::with_capacity(within.len() + 128);
    let mut at = within.start;
    for edit in edits {
        changed.push_str(&text[at..edit.range.start]);
        changed.push_str(&edit.text);
        at = edit.range.end;
    }
    changed.push_str(&text[at..within.end]);
    changed
}

/// Changed lines in the form of a unified diff without context.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hunk {
    /// `@@ -5,2 +5,2 @@ mcpServers.files`
    pub(super) heading: String,
    pub(super) removed: Vec<String>,
    pub(super) added: Vec<String>,
}

/// Returns the changed lines, from the top of the text down. The changes are sorted.
pub(super) fn hunks(text: &str, changes: &[Change]) -> Vec<Hunk> {
    let mut hunks = Vec::new();
    // How many lines there are more in the new text, before the hunk.
    let mut shift = 0_isize;
    for block in blocks(text, changes) {
        let shown = merged(
            block
                .edits
                .iter()
                .map(|edit| edit.range.clone())
                .chain(block.shown.iter().cloned()),
        );
        let masks = masks(text, &block.range, &shown);
        let old = apply_within(text, block.range.clone(), &masks);
        let mut both: Vec<&Edit> = masks.iter().chain(&block.edits).collect();
        // What is put in at a place stands before what is hidden from that place on.
        both.sort_by_key(|edit| (edit.range.start, edit.range.end));
        let new = apply_within(text, block.range.clone(), both);
        let mut removed: Vec<String> = lines(&old);
        let mut added: Vec<String> = lines(&new);
        let first = line_of(text, block.range.start);
        let same = common(removed.iter().zip(&added));
        removed.drain(..same);
        added.drain(..same);
        let tail = common(removed.iter().rev().zip(added.iter().rev()));
        removed.truncate(removed.len() - tail);
        added.truncate(added.len() - tail);
        let start = first + same;
        let place = |start: isize, count: usize| {
            // Where nothing stands, the line before is named, as diff(1) does.
            let start = if count == 0 { start - 1 } else { start };
            format!("{start},{count}")
        };
        let old_start = isize::try_from(start).unwrap_or(isize::MAX);
        hunks.push(Hunk {
            heading: format!(
                "@@ -{} +{} @@ {}",
                place(old_start, removed.len()),
                place(old_start.saturating_add(shift), added.len()),
                block.headings.join(", ")
            ),
            removed,
            added,
        });
        let hunk = &hunks[hunks.len() - 1];
        shift += hunk.added.len().cast_signed() - hunk.removed.len().cast_signed();
    }
    hunks
}

fn common<'l>(pairs: impl Iterator<Item = (&'l String, &'l String)>) -> usize {
    pairs.take_while(|(one, other)| one == other).count()
}

fn lines(text: &str) -> Vec<String> {
    let line = |line: &str| line.trim_end_matches('\r').to_owned();
    text.split('\n').map(line).collect()
}

/// Whole lines that edits touch.
struct Block<'c> {
    range: Range<usize>,
    /// Of the servers that it is about.
    headings: Vec<&'c str>,
    edits: Vec<Edit>,
    shown: Vec<Range<usize>>,
}

/// Returns the lines that edits touch; neighbouring lines are one block.
fn blocks<'c>(text: &str, changes: &'c [Change]) -> Vec<Block<'c>> {
    let mut blocks: Vec<Block<'c>> = Vec::new();
    for change in changes {
        for edit in &change.edits {
            let range = whole_lines(text, &edit.range);
            match blocks.last_mut() {
                Some(block) if range.start <= block.range.end + 1 => {
                    block.range.end = block.range.end.max(range.end);
                    block.edits.push(edit.clone());
                    if block.headings.last() != Some(&&*change.heading) {
                        block.headings.push(&change.heading);
                    }
                    block.shown.extend(change.shown.iter().cloned());
                }
                _ => blocks.push(Block {
                    range,
                    headings: vec![&change.heading],
                    edits: vec![edit.clone()],
                    shown: change.shown.clone(),
                }),
            }
        }
    }
    blocks
}

/// Returns the range of the whole lines of a range, without the last one's end.
fn whole_lines(text: &str, range: &Range<usize>) -> Range<usize> {
    let start = text[..range.start].rfind('\n').map_or(0, |at| at + 1);
    let end = text[range.end..]
        .find('\n')
        .map_or(text.len(), |at| range.end + at);
    start..end
}

fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

fn merged(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut sorted: Vec<Range<usize>> = ranges.collect();
    sorted.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns edits that hide all of a block but the ranges that may be shown.
fn masks(text: &str, block: &Range<usize>, shown: &[Range<usize>]) -> Vec<Edit> {
    let mut masks = Vec::new();
    let mut at = block.start;
    let mut hide = |from: usize, to: usize| {
        if from < to {
            masks.push(Edit::new(from..to, masked(&text[from..to])));
        }
    };
    for range in shown {
        let range = range.start.max(block.start)..range.end.min(block.end);
        if range.start > range.end {
            continue;
        }
        hide(at, range.start);
        at = at.max(range.end);
    }
    hide(at, block.end);
    masks
}

/// Returns what is shown of text that is hidden: its lines, the brackets and blanks around it.
fn masked(text: &str) -> String {
    let is_plain = |c: char| c.is_whitespace() || ",{}[]".contains(c);
    let line = |line: &str| {
        let inner = line.trim_matches(is_plain);
        if inner.is_empty() {
            return line.to_owned();
        }
        let start = line.len() - line.trim_start_matches(is_plain).len();
        format!("{}…{}", &line[..start], &line[start + inner.len()..])
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(edit: Edit, shown: Range<usize>) -> Change {
        Change {
            heading: "h".to_owned(),
            edits: vec![edit],
            shown: std::iter::once(shown).collect(),
        }
    }

    #[test]
    fn only_what_changes_is_shown() {
        let text = "{\n  \"a\": {\"command\": \"x\", \"env\": {\"K\": \"sk-1\"}} // sk-2\n}\n";
        let at = text.find("\"x\"").unwrap();
        let key = text.find("\"command\"").unwrap();
        let edit = Edit::new(at..at + 3, "\"checkpoint\"");
        let hunks = hunks(text, &[change(edit, key..at + 3)]);
        assert_eq!(
            hunks,
            [Hunk {
                heading: "@@ -2,1 +2,1 @@ h".to_owned(),
                removed: vec!["  … {\"command\": \"x\", …".to_owned()],
                added: vec!["  … {\"command\": \"checkpoint\", …".to_owned()],
            }]
        );
    }

    #[test]
    fn lines_that_come_and_go_are_counted() {
        let text = "a\nb\nc\nd\n";
        let two = [
            change(Edit::new(2..2, "x\ny\n"), 0..8),
            change(Edit::new(5..6, ""), 0..8),
        ];
        let edits = two.iter().flat_map(|change| &change.edits);
        assert_eq!(apply(text, edits), "a\nx\ny\nb\ncd\n");
        let said = hunks(text, &two[..1]);
        assert_eq!(said[0].heading, "@@ -1,0 +2,2 @@ h");
        assert_eq!(said[0].added, ["x", "y"]);
        let text = "a\nb\nc\nd\ne\nf\n";
        let two = [
            change(Edit::new(0..1, "a1\na2"), 0..12),
            change(Edit::new(8..10, ""), 0..12),
        ];
        let headings: Vec<_> = hunks(text, &two)
            .into_iter()
            .map(|hunk| (hunk.heading, hunk.removed.len(), hunk.added.len()))
            .collect();
        assert_eq!(
            headings,
            [
                ("@@ -1,1 +1,2 @@ h".to_owned(), 1, 2),
                ("@@ -5,1 +5,0 @@ h".to_owned(), 1, 0),
            ]
        );
    }

    #[test]
    fn hidden_text_keeps_its_lines() {
        assert_eq!(masked(" \"a\": {\n\"b\": 1,\n"), " … {\n…,\n");
        assert_eq!(masked("}, "), "}, ");
    }
}
