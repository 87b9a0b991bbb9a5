//! Lays JSON text out over lines without reading its values.
//!
//! A value passed through a parser could come back changed (20-digit integers, `1.0`, duplicate
//! members, lone surrogates); an operator who decides about a doubt must see what was stored. So
//! only white space between tokens is changed. Text that is no JSON comes out with its characters
//! in order. Pure.

/// Returns `json` with one member or element a line, indented by two spaces a level, at most 32.
#[must_use]
pub(super) fn pretty(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                text.push(c);
                while let Some(c) = chars.next() {
                    text.push(c);
                    match c {
                        '"' => break,
                        '\\' => text.extend(chars.next()),
                        _ => {}
                    }
                }
            }
            '{' | '[' => {
                text.push(c);
                skip_blanks(&mut chars);
                let close = if c == '{' { '}' } else { ']' };
                if chars.next_if_eq(&close).is_some() {
                    text.push(close);
                } else {
                    depth += 1;
                    new_line(&mut text, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut text, depth);
                text.push(c);
            }
            ',' => {
                text.push(c);
                new_line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            c if is_blank(c) => {}
            c => text.push(c),
        }
    }
    text
}

fn new_line(text: &mut String, depth: usize) {
    /// Deeper levels stay here, so that 300 of them don't grow the text by their square.
    const LEVELS_MAX: usize = 32;
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth.min(LEVELS_MAX)));
}

fn skip_blanks(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while chars.next_if(|c| is_blank(*c)).is_some() {}
}

/// Source: RFC 8259, section 2.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_as_they_are() {
        let json = r#" {"a":[1.0,12345678901234567890 , {}],"b" : "x: {\"y\", \\","c":[ ] }"#;
        let expected = "{\n  \"a\": [\n    1.0,\n    12345678901234567890,\n    {}\n  ],\n  \
                        \"b\": \"x: {\\\"y\\\", \\\\\",\n  \"c\": []\n}";
        assert_eq!(pretty(json), expected);
    }

    #[test]
    fn what_is_no_json_does_no_harm() {
        for text in ["", "}}]]", "\"open", "\"\\", "[[[", "NaN,", "{"] {
            let kept: String = pretty(text).chars().filter(|c| !is_blank(*c)).collect();
            assert_eq!(kept, text);
        }
        let deep = "[".repeat(10_000);
        assert!(pretty(&deep).len() < 10_000 * 70);
    }
}
