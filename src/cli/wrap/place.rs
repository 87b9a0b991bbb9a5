//! Where things are: the configuration in the working directory, a server's journal, and this
//! program as a configuration is to name it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::cli::error::{CliError, Kind};
use crate::cli::settings::Env;
use crate::cli::values;

/// Files in which projects keep their servers.
const PROJECT_FILES: [&str; 5] = [
    ".mcp.json",
    ".cursor/mcp.json",
    ".vscode/mcp.json",
    ".codex/config.toml",
    ".gemini/settings.json",
];

/// Bytes of a server's name in the name of its journal; file systems take 255, and SQLite adds to
/// them.
const STEM_BYTES_MAX: usize = 200;

/// Returns the file that is meant where none was named: the only usual one in the working
/// directory.
///
/// # Errors
///
/// A usage error where there is none, or more than one.
pub(super) fn project_file() -> Result<PathBuf, CliError> {
    let found: Vec<&str> = PROJECT_FILES
        .into_iter()
        .filter(|path| Path::new(path).is_file())
        .collect();
    match found[..] {
        [path] => Ok(path.into()),
        [] => Err(CliError::usage("no configuration was given")
            .because(format!("none of {} is here", PROJECT_FILES.join(", ")))
            .hint("say which file: checkpoint wrap --file FILE")),
        _ => Err(
            CliError::usage("it is not clear which configuration is meant")
                .because(format!("here are {}", found.join(", ")))
                .hint(format!(
                    "say which one: checkpoint wrap --file {}",
                    found[0]
                )),
        ),
    }
}

/// Where journals of servers go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Journals {
    /// One in this folder for each.
    Folder(String),
    /// This one, for the only server.
    File(String),
}

impl Journals {
    /// Resolves `--journal`; without it, the folder for state of this user.
    ///
    /// # Errors
    ///
    /// A usage error where the path can't name a journal, or no folder is known.
    pub(super) fn new(flag: Option<&Path>, env: Env<'_>) -> Result<Self, CliError> {
        let Some(path) = flag else {
            return default_folder(env).map(Self::Folder);
        };
        let shown = path.to_string_lossy();
        let invalid = |why: &str| {
            CliError::usage(format!("invalid value '{shown}' for '--journal <PATH>'")).because(why)
        };
        values::parse_journal(path.to_owned()).map_err(|why| invalid(&why))?;
        let is_folder = path.is_dir() || shown.ends_with('/');
        let path = absolute(path).map_err(|why| invalid(&why))?;
        Ok(if is_folder {
            Self::Folder(path)
        } else {
            Self::File(path)
        })
    }

    /// Returns the journal of a server with this name.
    pub(super) fn of(&self, name: &str) -> String {
        match self {
            Self::Folder(folder) => {
                format!("{}/{}.db", folder.trim_end_matches('/'), stem(name))
            }
            Self::File(path) => path.clone(),
        }
    }
}

/// Source: XDG Base Directory Specification, which tells to ignore relative paths.
fn default_folder(env: Env<'_>) -> Result<String, CliError> {
    let given = |name: &str| {
        let path = PathBuf::from(env(name)?);
        path.is_absolute().then_some(path)
    };
    let state = given("XDG_STATE_HOME")
        .or_else(|| Some(given("HOME")?.join(".local/state")))
        .ok_or_else(|| {
            CliError::usage("it is not known where journals go")
                .because("neither XDG_STATE_HOME nor HOME is an absolute path")
                .hint("say where: --journal PATH")
        })?;
    absolute(&state.join("checkpoint")).map_err(|why| {
        CliError::usage("the folder for journals can't be used")
            .because(why)
            .hint("say where: --journal PATH")
    })
}

/// Returns a server's name as a file's: letters, digits, `.`, `_` and `-`.
fn stem(name: &str) -> String {
    let safe = |c: char| match c {
        c if c.is_ascii_alphanumeric() || "._-".contains(c) => c,
        _ => '_',
    };
    let mut stem: String = name.chars().map(safe).take(STEM_BYTES_MAX).collect();
    // Neither hidden, nor `..`, nor nothing.
    if stem.is_empty() || stem.starts_with('.') {
        stem.insert(0, '_');
    }
    stem
}

/// Returns a path from the root, as text, which a configuration is.
///
/// # Errors
///
/// Why it has no such form.
pub(super) fn absolute(path: &Path) -> Result<String, String> {
    std::path::absolute(path)
        .map_err(|error| error.to_string())?
        .into_os_string()
        .into_string()
        .map_err(|_| "expected UTF-8".to_owned())
}

/// Returns how a configuration is to name this program, which was started as `argv0`: by that name
/// alone where the search path leads to it, else by its path.
///
/// # Errors
///
/// A failure where this program has no path, or none in UTF-8.
pub(super) fn own_program(argv0: Option<&OsStr>, env: Env<'_>) -> Result<String, CliError> {
    let failed = |why: String| {
        CliError::new(Kind::Failure, "the path of this program is not known")
            .because(why)
            .hint("start it by its whole path")
    };
    let own = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let is_own = |path: &Path| {
        path.canonicalize()
            .is_ok_and(|path| own.canonicalize().is_ok_and(|own| path == own))
    };
    let started = argv0.map(Path::new);
    match started {
        Some(name) if name.components().count() == 1 && name.is_relative() => {
            let search = env("PATH").unwrap_or_default();
            let found = std::env::split_paths(&search)
                .map(|folder| folder.join(name))
                .find(|path| path.is_file());
            if let (Some(found), Some(name)) = (found, name.to_str())
                && is_own(&found)
                && !name.contains('/')
            {
                return Ok(name.to_owned());
            }
        }
        Some(path) if is_own(path) => return absolute(path).map_err(failed),
        _ => {}
    }
    absolute(&own).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn names_of_journals_are_names_of_files() {
        for (name, expected) in [
            ("files", "files"),
            ("@org/my server", "_org_my_server"),
            ("..", "_.."),
            ("", "_"),
            ("../../etc/x", "_.._.._etc_x"),
            ("größe", "gr__e"),
        ] {
            assert_eq!(stem(name), expected);
        }
        assert!(stem(&"x".repeat(999)).len() <= STEM_BYTES_MAX);
    }

    #[test]
    fn journals_have_absolute_places() {
        let vars = |pairs: &'static [(&str, &str)]| {
            move |name: &str| -> Option<OsString> {
                let found = pairs.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            }
        };
        let of = |env: Env<'_>| Journals::new(None, env).map(|journals| journals.of("a b"));
        assert_eq!(
            of(&vars(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")])),
            Ok("/s/checkpoint/a_b.db".to_owned())
        );
        assert_eq!(
            of(&vars(&[("XDG_STATE_HOME", "s"), ("HOME", "/h")])),
            Ok("/h/.local/state/checkpoint/a_b.db".to_owned())
        );
        assert!(of(&vars(&[("HOME", "")])).is_err());
        let given = |path: &str| Journals::new(Some(Path::new(path)), &vars(&[])).unwrap();
        assert_eq!(given("/j/").of("a"), "/j/a.db");
        assert_eq!(given("/no-such/x.db").of("a"), "/no-such/x.db");
        let Journals::File(path) = given("x.db") else {
            panic!("a file is no folder");
        };
        assert!(path.starts_with('/') && path.ends_with("/x.db"));
        assert!(Journals::new(Some(Path::new(":memory:")), &vars(&[])).is_err());
    }
}
