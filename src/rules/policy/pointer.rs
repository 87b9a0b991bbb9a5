//! JSON pointers into a call's arguments or an answer.
//!
//! Source: RFC 6901.

use std::fmt;

use crate::json;

/// A pointer that was parsed; shown as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

impl Pointer {
    /// Parses a pointer to something inside a value: `/order_id`, `/items/0/sku`.
    ///
    /// # Errors
    ///
    /// What was expected. The empty pointer, which is the whole value, is refused too.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let Some(inner) = text.strip_prefix('/') else {
            return Err("expected a JSON pointer that begins with /");
        };
        let tokens = inner.split('/').map(unescape).collect::<Option<_>>();
        Ok(Self {
            text: text.to_owned(),
            tokens: tokens.ok_or("expected ~0 for ~ and ~1 for / in a JSON pointer")?,
        })
    }

    /// Returns the pointer to the member of that name.
    #[must_use]
    pub fn to_member(name: &str) -> Self {
        Self {
            text: format!("/{}", name.replace('~', "~0").replace('/', "~1")),
            tokens: vec![name.to_owned()],
        }
    }

    /// Returns the raw value that is pointed to in checked JSON, `None` if there is none.
    ///
    /// An index of an array is digits without a leading zero.
    #[must_use]
    pub fn find<'a>(&self, value: &'a [u8]) -> Option<&'a [u8]> {
        let mut value = value;
        for token in &self.tokens {
            value = match json::kind(value) {
                json::Kind::Object => json::last_member(value, token)?.value,
                json::Kind::Array => {
                    let index = json::plain_integer(token.as_bytes())?;
                    json::Elements::new(value).nth(usize::try_from(index).ok()?)?
                }
                _ => return None,
            };
        }
        Some(json::trim(value))
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn unescape(token: &str) -> Option<String> {
    let mut out = String::with_capacity(token.len());
    let mut characters = token.chars();
    while let Some(character) = characters.next() {
        out.push(match (character, character == '~') {
            (_, true) => match characters.next() {
                Some('0') => '~',
                Some('1') => '/',
                _ => return None,
            },
            (plain, false) => plain,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(pointer: &str, value: &'a str) -> Option<&'a str> {
        let found = Pointer::parse(pointer).unwrap().find(value.as_bytes());
        found.map(|raw| std::str::from_utf8(raw).unwrap())
    }

    #[test]
    fn values_are_found() {
        let value = r#" {"a": {"b/c": [1, {"~": "x"} ]}, "": null, "\u0064": 2} "#;
        assert_eq!(found("/a/b~1c/0", value), Some("1"));
        assert_eq!(found("/a/b~1c/1/~0", value), Some("\"x\""));
        assert_eq!(found("/", value), Some("null"));
        assert_eq!(found("/d", value), Some("2"));
        for nothing in [
            "/x",
            "/a/x",
            "/a/b~1c/2",
            "/a/b~1c/00",
            "/a/b~1c/-",
            "/d/x",
            "/a/b~1c/+1",
        ] {
            assert_eq!(found(nothing, value), None, "{nothing}");
        }
    }

    #[test]
    fn pointers_are_shown_as_written() {
        assert_eq!(Pointer::parse("/a~1b/0").unwrap().to_string(), "/a~1b/0");
        assert_eq!(Pointer::to_member("a/b~").to_string(), "/a~1b~0");
        assert_eq!(
            Pointer::parse("/a~1b~0").unwrap(),
            Pointer::to_member("a/b~")
        );
        for bad in ["", "a", "/~", "/~2"] {
            assert!(Pointer::parse(bad).is_err(), "{bad}");
        }
    }
}
