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
        let pattern = &self.0;
        let (mut at, mut rest) = (0, name.chars());
        // Where to go on if what follows the last star does not fit: the star takes one more.
        let mut back = None;
        loop {
            if pattern.get(at) == Some(&'*') {
                back = Some((at, rest.clone()));
                at += 1;
                continue;
            }
            let mut ahead = rest.clone();
            match (pattern.get(at), ahead.next()) {
                (None, None) => return true,
                (Some(&wanted), Some(found)) if wanted == '?' || wanted == found => {
                    at += 1;
                    rest = ahead;
                }
                // The name is at its end, so no star can take more of it.
                (Some(_), None) => return false,
                (_, Some(_)) => {
                    let Some((star, taken)) = &mut back else {
                        return false;
                    };
                    taken.next();
                    (at, rest) = (*star + 1, taken.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    /// The plain definition, slow but easy to believe.
    fn fits_slowly(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], rest) => rest.is_empty(),
            (['*', after @ ..], _) => {
                (0..=name.len()).any(|from| fits_slowly(after, &name[from..]))
            }
            (['?', after @ ..], [_, rest @ ..]) => fits_slowly(after, rest),
            ([wanted, after @ ..], [found, rest @ ..]) => {
                wanted == found && fits_slowly(after, rest)
            }
            (_, []) => false,
        }
    }

    proptest! {
        #[test]
        fn it_fits_as_defined(pattern in "([ab?]|\\*[ab?]){0,5}\\*?", name in "[ab]{0,8}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            let fits = Glob::parse(&pattern).unwrap().fits(&name);
            prop_assert_eq!(fits, fits_slowly(&chars(&pattern), &chars(&name)));
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
