//! Keeps the key by which a redacted journal's signatures can't be guessed.
//!
//! A plain digest of a short argument (a PIN, yes or no) is found by trying all of them. So with
//! redaction signatures are keyed, and the key stands beside the journal, not in it: who copies
//! the journal can't guess.
//!
//! Invariants: the key is made once, whole, durable and with mode 0600, before the journal first
//! holds its fingerprint; it is never made anew or overwritten after that, as nothing recorded
//! would match any more. Its bytes appear in no message, log or debug output.
//!
//! It must not know what is signed.
//!
//! Format of `<journal>-key`: one line of 83 bytes, `checkpoint-key-1: `, 64 lower-case
//! hexadecimal digits, a newline.

use std::fmt;
use std::io;

use sha2::{Digest, Sha256};

use super::cannot_use::CannotUse;
use super::pinned::read_start;
use super::place::{Companion, JournalPath};
use super::whole_file;

const PREFIX: &str = "checkpoint-key-1: ";
const KEY_BYTES: usize = 32;
const FILE_BYTES: usize = PREFIX.len() + 2 * KEY_BYTES + 1;

/// By what a journal knows its key: SHA-256 over a fixed text and the key.
pub type Fingerprint = [u8; 32];

/// The key of a redacted journal, 256 random bits.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    bytes: [u8; KEY_BYTES],
}

impl Key {
    /// Returns the key for a journal that holds no fingerprint yet; makes it where there is none.
    ///
    /// The key is durable on return, so the caller may store its fingerprint now. One that is
    /// there already was made by a process that did not come so far, or that is at it just now,
    /// and is taken.
    ///
    /// # Errors
    ///
    /// [`CannotUse::KeyMismatch`] if the file there is no key; [`CannotUse::Symlink`],
    /// [`CannotUse::Io`].
    pub fn make_or_adopt(journal: &JournalPath) -> Result<Self, CannotUse> {
        let path = journal.companion(Companion::Key);
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|error| CannotUse::io("make", &path, io::Error::other(error)))?;
        let key = Self { bytes };
        let made = whole_file::make(&path, key.to_text().as_bytes())
            .map_err(|error| CannotUse::io("make", &path, error))?;
        if made { Ok(key) } else { Self::read(journal) }
    }

    /// Returns the key whose fingerprint the journal holds.
    ///
    /// # Errors
    ///
    /// [`CannotUse::KeyMissing`] if there is no key file, [`CannotUse::KeyMismatch`] if it is no
    /// key or another; [`CannotUse::Symlink`], [`CannotUse::Io`].
    pub fn load(journal: &JournalPath, expected: &Fingerprint) -> Result<Self, CannotUse> {
        let key = Self::read(journal)?;
        if key.fingerprint() != *expected {
            return Err(CannotUse::KeyMismatch {
                path: journal.companion(Companion::Key),
                why: "its fingerprint is another",
            });
        }
        Ok(key)
    }

    /// Returns by what the journal knows this key. It tells nothing about the key.
    pub fn fingerprint(&self) -> Fingerprint {
        Sha256::new()
            .chain_update(b"checkpoint key fingerprint 1\0")
            .chain_update(self.bytes)
            .finalize()
            .into()
    }

    /// Returns the key itself, for a keyed digest.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }

    fn read(journal: &JournalPath) -> Result<Self, CannotUse> {
        let path = journal.companion(Companion::Key);
        let Some(file) = whole_file::open_existing(&path, false)
            .map_err(|error| CannotUse::io("open", &path, error))?
        else {
            return Err(CannotUse::KeyMissing { path });
        };
        // One more than a key has, so that what is longer is seen.
        let mut bytes = [0; FILE_BYTES + 1];
        let count =
            read_start(&file, &mut bytes).map_err(|error| CannotUse::io("read", &path, error))?;
        Self::from_text(&bytes[..count]).ok_or(CannotUse::KeyMismatch {
            path,
            why: "it is not a key file",
        })
    }

    fn to_text(&self) -> String {
        use fmt::Write;
        let mut text = String::with_capacity(FILE_BYTES);
        text.push_str(PREFIX);
        for byte in self.bytes {
            write!(text, "{byte:02x}").expect("a String takes what is written");
        }
        text.push('\n');
        text
    }

    fn from_text(text: &[u8]) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX.as_bytes())?.strip_suffix(b"\n")?;
        let (pairs, rest) = digits.as_chunks::<2>();
        if pairs.len() != KEY_BYTES || !rest.is_empty() {
            return None;
        }
        let mut bytes = [0; KEY_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(pairs) {
            *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
        }
        Some(Self { bytes })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key(hidden)")
    }
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn world() -> (tempfile::TempDir, JournalPath) {
        let folder = tempfile::tempdir().unwrap();
        let journal = JournalPath::new(folder.path().join("run.db")).unwrap();
        (folder, journal)
    }

    #[test]
    fn a_key_is_made_once_and_found_again() {
        let (_folder, journal) = world();
        let made = Key::make_or_adopt(&journal).unwrap();
        assert_eq!(made, Key::make_or_adopt(&journal).unwrap());
        assert_eq!(made, Key::load(&journal, &made.fingerprint()).unwrap());
        let file = journal.companion(Companion::Key);
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(std::fs::read(&file).unwrap().len(), FILE_BYTES);
        assert_ne!(made.as_bytes(), &[0; KEY_BYTES]);
    }

    #[test]
    fn a_missing_key_is_not_made_anew() {
        let (_folder, journal) = world();
        let reason = Key::load(&journal, &[0; 32]).unwrap_err();
        assert!(matches!(reason, CannotUse::KeyMissing { .. }), "{reason}");
        assert!(!journal.companion(Companion::Key).exists());
    }

    #[test]
    fn another_key_and_what_is_no_key_are_told() {
        let (_folder, journal) = world();
        let key = Key::make_or_adopt(&journal).unwrap();
        let reason = Key::load(&journal, &[7; 32]).unwrap_err();
        assert!(matches!(reason, CannotUse::KeyMismatch { .. }), "{reason}");
        let good = key.to_text();
        for bad in [
            String::new(),
            good.replace("key-1", "key-2"),
            good.trim_end().to_owned(),
            format!("{good}\n"),
            good.to_uppercase(),
            good.replacen(": ", ": 0", 1),
        ] {
            std::fs::write(journal.companion(Companion::Key), &bad).unwrap();
            for result in [
                Key::load(&journal, &key.fingerprint()),
                Key::make_or_adopt(&journal),
            ] {
                let reason = result.unwrap_err();
                assert!(matches!(reason, CannotUse::KeyMismatch { .. }), "{reason}");
            }
            let found = std::fs::read_to_string(journal.companion(Companion::Key)).unwrap();
            assert_eq!(found, bad);
        }
    }

    #[test]
    fn a_link_is_not_followed() {
        let (folder, journal) = world();
        let elsewhere = folder.path().join("elsewhere");
        std::fs::write(&elsewhere, "x").unwrap();
        std::os::unix::fs::symlink(&elsewhere, journal.companion(Companion::Key)).unwrap();
        for result in [Key::load(&journal, &[0; 32]), Key::make_or_adopt(&journal)] {
            let reason = result.unwrap_err();
            assert!(matches!(reason, CannotUse::Symlink { .. }), "{reason}");
        }
    }

    #[test]
    fn eight_makers_at_once_get_one_key() {
        let (_folder, journal) = world();
        let keys: Vec<Key> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| Key::make_or_adopt(&journal).unwrap()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
    }

    #[test]
    fn debug_output_hides_the_key() {
        let key = Key {
            bytes: [0xab; KEY_BYTES],
        };
        assert_eq!(format!("{key:?}"), "Key(hidden)");
    }
}
