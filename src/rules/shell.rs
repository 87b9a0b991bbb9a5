//! Text for a POSIX shell.

use std::borrow::Cow;

/// Returns `text` as one word of a POSIX shell.
///
/// Source: POSIX.1-2024, Shell Command Language, section 2.2.2.
#[must_use]
pub fn quote(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
    }
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn quoting() {
        assert_eq!(quote("/a/run.db"), "/a/run.db");
        assert_eq!(quote(""), "''");
        assert_eq!(quote("it's $HOME; x"), r"'it'\''s $HOME; x'");
        assert_eq!(quote("~"), "'~'");
    }
}
