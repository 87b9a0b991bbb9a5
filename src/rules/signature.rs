//! The signature of a call: what makes two calls the same.
//!
//! SHA-256 over a versioned text of the tool's name, its arguments and whether a task was asked
//! for. Two calls that a JSON reader must take for the same have the same signature; two that
//! differ never do. The id, `_meta`, `inputResponses` and `requestState` are no part of it: they
//! change from one attempt to the next.
//!
//! Signatures are stored, so the text never changes under its name; another text is another
//! [`Scheme`]. This module must not know where a signature or its key is kept.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::json::{self, Duplicate};

/// The first bytes under every digest: two texts of different purposes never meet.
const SIGNATURE_DOMAIN: &[u8] = b"checkpoint signature 1\n";
const KEYED_DOMAIN: &[u8] = b"checkpoint keyed signature 1\n";
const TAG_DOMAIN: &[u8] = b"checkpoint keyed text 1\n";
const FINGERPRINT_DOMAIN: &[u8] = b"checkpoint key fingerprint 1\n";

/// The digest that stands for a call's tool, arguments and task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature(pub [u8; 32]);

impl fmt::Display for Signature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Signature({self})")
    }
}

/// A text is no signature: it must be 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a signature is 64 lower-case hexadecimal digits")]
pub struct NotASignature;

impl FromStr for Signature {
    type Err = NotASignature;

    fn from_str(text: &str) -> Result<Self, NotASignature> {
        parse_hex(text).map(Self).ok_or(NotASignature)
    }
}

/// How an entry's signature was made. Look-ups try every scheme that is present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// SHA-256 of the canonical text.
    Plain,
    /// HMAC-SHA-256 of the plain digest under the key beside the journal: arguments of few
    /// possible values can't be guessed from a copied journal.
    Keyed,
}

impl Scheme {
    /// Every scheme that this version reads.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Keyed];

    /// Returns the name that is stored with an entry.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "s1",
            Self::Keyed => "h1",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A scheme that this version does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the signature's scheme is not one of s1, h1")]
pub struct UnknownScheme;

impl FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(text: &str) -> Result<Self, UnknownScheme> {
        Self::ALL
            .into_iter()
            .find(|scheme| scheme.name() == text)
            .ok_or(UnknownScheme)
    }
}

/// Returns the plain signature of a call. `arguments` is checked JSON.
///
/// Absent arguments and `{}` are one; `null` is another.
///
/// # Errors
///
/// Two members of one object in the arguments have the same name, so readers differ on what they
/// mean.
pub fn signature(
    name: &str,
    arguments: Option<&[u8]>,
    has_task: bool,
) -> Result<Signature, Duplicate> {
    let mut digest = Sha256::new_with_prefix(SIGNATURE_DOMAIN);
    digest.update(if has_task { b"task\n" } else { b"call\n" });
    digest.update(name.len().to_string());
    digest.update(b":");
    digest.update(name);
    json::canonical(arguments.unwrap_or(b"{}"), &mut |piece| {
        if !crate::seeded::has(crate::seeded::Bug::SignatureWithoutArguments) {
            digest.update(piece)
        }
    })?;
    Ok(Signature(digest.finalize().into()))
}

/// Returns the signature under [`Scheme::Keyed`] for a plain one.
pub fn keyed(plain: &Signature, key: &SignatureKey) -> Signature {
    Signature(key.mac(KEYED_DOMAIN, &plain.0))
}

/// The secret under which signatures and argument-derived keys are kept when arguments are redacted.
#[derive(Clone, PartialEq, Eq)]
pub struct SignatureKey(pub [u8; 32]);

impl SignatureKey {
    /// Returns what identifies this key in a journal without telling it: 32 hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        let digest = self.mac(FINGERPRINT_DOMAIN, b"");
        digest[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// Returns a keyed digest of any text, for keys that are made from arguments.
    pub fn tag(&self, text: &[u8]) -> [u8; 32] {
        self.mac(TAG_DOMAIN, text)
    }

    fn mac(&self, domain: &[u8], text: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("any length of key is taken");
        mac.update(domain);
        mac.update(text);
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for SignatureKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SignatureKey({})", self.fingerprint())
    }
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for &digit in pair {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            *byte = *byte << 4 | value;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const GOLDEN: &str = include_str!("../../fixtures/signatures/v1.tsv");

    /// The rows of the golden file: class, plain signature, task, tool, arguments if any.
    fn golden() -> impl Iterator<Item = (&'static str, &'static str, bool, String, Option<String>)>
    {
        GOLDEN
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(|line| {
                let fields: Vec<_> = line.split('\t').collect();
                let [class, signature, task, tool, arguments] = fields[..] else {
                    panic!("five fields: {line}")
                };
                let tool = json::text(tool.as_bytes())
                    .expect("a tool name")
                    .into_owned();
                let arguments = (arguments != "-").then(|| expand(arguments));
                (class, signature, task == "task", tool, arguments)
            })
    }

    /// Writes out `<text*count>`, which keeps the long cases of the file readable.
    fn expand(arguments: &str) -> String {
        let mut out = String::new();
        let mut rest = arguments;
        while let Some((before, after)) = rest.split_once("<<") {
            let (inside, tail) = after.split_once(">>").expect("a closed repetition");
            let (text, count) = inside.rsplit_once('*').expect("a count");
            out.push_str(before);
            out.push_str(&text.repeat(count.parse().expect("a number")));
            rest = tail;
        }
        out + rest
    }

    fn of(tool: &str, arguments: Option<&str>, has_task: bool) -> Signature {
        signature(tool, arguments.map(str::as_bytes), has_task).expect("no duplicates")
    }

    #[test]
    fn the_golden_file_holds() {
        let mut wrong = Vec::new();
        for (class, expected, has_task, tool, arguments) in golden() {
            if let Some(arguments) = &arguments {
                assert_eq!(json::check(arguments.as_bytes()), Ok(()), "{arguments:.80}");
            }
            let found = of(&tool, arguments.as_deref(), has_task).to_string();
            if found != expected {
                wrong.push(format!("{class} {found}"));
            }
        }
        assert!(
            wrong.is_empty(),
            "signatures are stored and never change:\n{}",
            wrong.join("\n")
        );
        assert!(golden().count() >= 60);
    }

    #[test]
    fn a_class_is_one_signature_and_a_signature_one_class() {
        let mut classes = BTreeMap::new();
        let mut signatures = BTreeMap::new();
        for (class, signature, ..) in golden() {
            assert_eq!(
                *classes.entry(class).or_insert(signature),
                signature,
                "{class}"
            );
            assert_eq!(
                *signatures.entry(signature).or_insert(class),
                class,
                "{class}"
            );
        }
    }

    #[test]
    fn equal_members_are_an_error() {
        let error = signature("t", Some(br#"{"a":{"b":1,"\u0062":1}}"#), false);
        assert_eq!(error.expect_err("a duplicate").pointer, "/a/b");
    }

    #[test]
    fn the_name_cannot_run_into_the_arguments() {
        assert_ne!(of("a{}", None, false), of("a", Some("{}"), false));
        assert_ne!(of("", Some("\"a\""), false), of("a", Some("\"\""), false));
    }

    #[test]
    fn keyed_signatures_are_pinned() {
        let key = SignatureKey([7; 32]);
        let other = SignatureKey([8; 32]);
        let plain = of("charge", Some(r#"{"amount":100}"#), false);
        let hidden = keyed(&plain, &key);
        assert_ne!(hidden, plain);
        assert_eq!(format!("{hidden:?}"), format!("Signature({hidden})"));
        assert_eq!(
            format!("{key:?}"),
            format!("SignatureKey({FINGERPRINT_GOLDEN})")
        );
        assert_eq!(
            (hidden.to_string().as_str(), key.fingerprint().as_str()),
            (KEYED_GOLDEN, FINGERPRINT_GOLDEN)
        );
        assert_ne!(hidden, keyed(&plain, &SignatureKey([8; 32])));
        assert_ne!(key.tag(&plain.0), hidden.0);
        assert_ne!(key.tag(b"a"), key.tag(b"b"));
        assert_ne!(key.tag(b"a"), other.tag(b"a"));
        assert_eq!(key.tag(b"a"), key.tag(b"a"));
        assert!(!format!("{key:?}").contains("07070707"));
    }

    const KEYED_GOLDEN: &str = "425d6f00c199c16bdad35fe90ec115838efd9eb376e836472d2565279eea35b9";
    const FINGERPRINT_GOLDEN: &str = "361d41686c115946b5477d4d598c7777";

    #[test]
    fn signatures_and_schemes_read_back() {
        let plain = of("t", None, false);
        assert_eq!(plain.to_string().parse(), Ok(plain));
        for text in ["", "00", &"g".repeat(64), &"A".repeat(64), &"é".repeat(32)] {
            assert_eq!(text.parse::<Signature>(), Err(NotASignature));
        }
        for scheme in Scheme::ALL {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
        assert_eq!("s2".parse::<Scheme>(), Err(UnknownScheme));
    }
}
