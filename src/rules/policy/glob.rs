//! Tool names with `*` and `?`.

/// A pattern for whole tool names: `*` stands for any characters, also none, `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Vec<char>);

impl Glob {
    /// Returns whether a table's name is a pattern at all; else it is a tool's exact name.
    #[must_use]
    pub fn is_one(name: &str) -> bool {
        name.contains(['*', '?'])
    }

    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// What was expected, for characters that mean something in other dialects.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.contains(['[', ']', '{', '}', '\\', '!']) {
            return Err("expected no other special characters than * and ? in a pattern");
        }
        if text.contains("**") {
            return Err("expected one * where two stand together");
        }
        Ok(Self(text.chars().collect()))
    }

    /// Returns the number of characters: a longer pattern beats a shorter one.
    #[must_use]
    pub fn length(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the whole of `name` fits, byte for byte and case for case.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        let (pattern, name) = (&self.0, name.chars().collect::<Vec<_>>());
        let (mut at, mut in_name) = (0, 0);
        // Where to go on if what follows the last star does not fit: the star takes one more.
        let mut back = None;
        while in_name < name.len() {
            match pattern.get(at) {
                Some('*') => {
                    back = Some((at, in_name));
                    at += 1;
                }
                Some(&wanted) if wanted == '?' || wanted == name[in_name] => {
                    at += 1;
                    in_name += 1;
                }
                _ => {
                    let Some((star, taken)) = back else {
                        return false;
                    };
                    back = Some((star, taken + 1));
                    at = star + 1;
                    in_name = taken + 1;
                }
            }
        }
        pattern[at..].iter().all(|&left| left == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_or_not() {
        for (pattern, name, expected) in [
            ("read_*", "read_file", true),
            ("read_*", "read_", true),
            ("read_*", "Read_file", false),
            ("read_*", "thread_x", false),
            ("*", "", true),
            ("*_read", "a_read_read", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?", "é", true),
            ("?", "", false),
            ("get_?", "get_ab", false),
            ("*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(
                Glob::parse(pattern).unwrap().fits(name),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn other_dialects_are_refused() {
        for bad in ["[a-z]*", "{a,b}*", "!*", "a\\*", "**"] {
            assert!(Glob::parse(bad).is_err(), "{bad}");
        }
        assert!(Glob::is_one("a?") && !Glob::is_one("a[b]"));
    }
}
