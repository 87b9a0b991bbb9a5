//! A configuration on disk: read whole, replaced whole.
//!
//! Invariants: a reader sees the old text or the new one, whatever happens; the file keeps its
//! mode and its owner, and a link to it stays a link. What changed since it was read is not
//! written over.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use crate::cli::error::{CliError, Kind};
use crate::cli::policy_file;

/// The largest configuration, in bytes; Claude Code keeps more than its servers in one.
const FILE_BYTES_MAX: u64 = 64 << 20;

const BYTE_ORDER_MARK: &str = "\u{feff}";

/// A configuration as it was read.
#[derive(Debug)]
pub(super) struct ConfigFile {
    /// As it was named.
    path: PathBuf,
    /// Where a link leads.
    target: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// A failure where it can't be read, is too large, or is no UTF-8.
    pub(super) fn read(path: &Path) -> Result<Self, CliError> {
        let read = || {
            let target = path.canonicalize()?;
            let text = read_text(&target)?;
            Ok(Self {
                path: path.to_owned(),
                target,
                text,
            })
        };
        read().map_err(|error: io::Error| {
            CliError::new(
                Kind::Failure,
                format!("{} can't be read", path.to_string_lossy()),
            )
            .because(error)
            .hint("check the path, and that this user may read it; it is JSON or TOML in UTF-8")
        })
    }

    /// Returns the text without its byte order mark.
    pub(super) fn text(&self) -> &str {
        self.text
            .strip_prefix(BYTE_ORDER_MARK)
            .unwrap_or(&self.text)
    }

    /// Returns where what stands there is kept.
    pub(super) fn backup(&self) -> PathBuf {
        let mut path = self.target.clone().into_os_string();
        path.push(".bak");
        path.into()
    }

    /// Puts `text` in the place of what was read, and returns whether that is kept beside it: always
    /// if it `is_original`, else only where nothing was kept before.
    ///
    /// On return the new text is durable.
    ///
    /// # Errors
    ///
    /// A failure where the file changed since it was read, or can't be written; it is then as it
    /// was.
    pub(super) fn replace(&self, text: &str, is_original: bool) -> Result<bool, CliError> {
        let shown = self.path.to_string_lossy();
        let failed = |error: io::Error| {
            CliError::new(Kind::Failure, format!("{shown} can't be written"))
                .because(error)
                .hint("nothing was changed; check that this user may write to its folder")
        };
        let now = read_text(&self.target).map_err(failed)?;
        if now != self.text {
            return Err(
                CliError::new(Kind::Failure, format!("{shown} was not written"))
                    .because("it changed after it was read")
                    .hint("run the command again"),
            );
        }
        let start = &self.text[..self.text.len() - self.text().len()];
        let meta = fs::metadata(&self.target).map_err(failed)?;
        // What is wrapped is no good to go back to.
        let is_kept = is_original || !self.backup().exists();
        if is_kept {
            write(&self.backup(), &self.text, &meta).map_err(failed)?;
        }
        write(&self.target, &format!("{start}{text}"), &meta).map_err(failed)?;
        Ok(is_kept)
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    // Before it is opened: opening a pipe waits for its writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no regular file",
        ));
    }
    policy_file::read_text(path, FILE_BYTES_MAX)
}

/// Writes a file beside its place and moves it there.
fn write(path: &Path, text: &str, like: &fs::Metadata) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = folder.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = write_draft(&draft, text, like)
        .and_then(|()| fs::rename(&draft, path))
        .and_then(|()| File::open(folder)?.sync_all());
    if written.is_err() {
        // It is ours alone, and may hold secrets.
        let _ = fs::remove_file(&draft);
    }
    written
}

fn write_draft(path: &Path, text: &str, like: &fs::Metadata) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (like.uid(), like.gid()) {
        fchown(&file, Some(like.uid()), Some(like.gid()))?;
    }
    // After the owner, since a change of that takes bits away.
    file.set_permissions(Permissions::from_mode(like.mode() & 0o7777))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn file(&self, text: &str) -> ConfigFile {
            fs::write(self.path("c.json"), text).unwrap();
            ConfigFile::read(&self.path("c.json")).unwrap()
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.0.path()).unwrap();
            let mut names: Vec<String> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    #[test]
    fn mode_mark_and_link_are_kept() {
        let place = Place::new();
        let text = "\u{feff}{}\r\n";
        place.file(text);
        fs::set_permissions(place.path("c.json"), Permissions::from_mode(0o640)).unwrap();
        symlink("c.json", place.path("link")).unwrap();
        let file = ConfigFile::read(&place.path("link")).unwrap();
        assert_eq!(file.text(), "{}\r\n");
        assert!(file.replace("[]", true).unwrap());
        assert_eq!(place.names(), ["c.json", "c.json.bak", "link"]);
        assert!(place.path("link").is_symlink());
        for (name, expected) in [("c.json", "\u{feff}[]"), ("c.json.bak", text)] {
            let path = place.path(name);
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        }
    }

    #[test]
    fn what_is_no_original_is_kept_only_where_nothing_was_kept() {
        let place = Place::new();
        for (text, is_original, kept) in [
            ("one", false, "one"),
            ("two", false, "one"),
            ("three", true, "three"),
        ] {
            let file = place.file(text);
            assert_eq!(file.replace("", is_original).unwrap(), kept == text);
            assert_eq!(fs::read_to_string(file.backup()).unwrap(), kept);
        }
    }

    #[test]
    fn what_changed_meanwhile_is_not_written_over() {
        let place = Place::new();
        let file = place.file("one");
        fs::write(place.path("c.json"), "two").unwrap();
        let error = file.replace("three", true).unwrap_err();
        assert!(error.to_string().contains("it changed after it was read"));
        assert_eq!(fs::read_to_string(place.path("c.json")).unwrap(), "two");
        assert_eq!(place.names(), ["c.json"]);
    }

    #[test]
    fn what_is_no_text_file_is_refused() {
        let place = Place::new();
        fs::write(place.path("bin"), b"\xff").unwrap();
        nix::unistd::mkfifo(&place.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for name in ["", "bin", "none", "pipe"] {
            let error = ConfigFile::read(&place.path(name)).unwrap_err();
            assert!(error.to_string().contains("can't be read"), "{error}");
        }
    }
}
