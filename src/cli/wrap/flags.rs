//! The proxy's flags that go into a configuration, checked as the proxy itself will check them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::place::absolute;
use crate::cli::error::CliError;
use crate::cli::logging::{LogLevel, LogSettings};
use crate::cli::proxy_args::PRINT_VERSION;
use crate::cli::{parse_proxy, settings};

/// Flags for a configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ProxyFlags {
    /// As they are to stand there.
    pub(super) words: Vec<String>,
    /// Whether `--resume` is among them.
    pub(super) resumes: bool,
}

const HINT: &str = "after '--' come flags of the proxy, such as --policy FILE; servers are named \
                    before it";

/// Checks flags, and makes the path of a policy absolute, as clients start servers anywhere.
///
/// # Errors
///
/// A usage error for what the proxy would refuse, and for what `wrap` itself puts there.
pub(super) fn check(flags: &[OsString]) -> Result<ProxyFlags, CliError> {
    let refused = |why: &str| {
        CliError::usage("the flags after '--' can't be used")
            .because(why)
            .hint(HINT)
    };
    let line = std::iter::once("checkpoint".into()).chain(flags.iter().cloned());
    let run = parse_proxy(line).map_err(|error| {
        let said = error.to_string();
        let first = said.lines().next().unwrap_or_default();
        refused(first.trim_start_matches("error: "))
    })?;
    let mut proxy = run.proxy;
    if proxy.journal.is_some() {
        return Err(refused("--journal is a flag of `wrap`, before the '--'"));
    }
    if proxy.upstream_cmd.is_some() || !proxy.program.is_empty() {
        return Err(refused("the upstream is the server's own command"));
    }
    if proxy.version.as_deref() == Some(PRINT_VERSION) {
        return Err(refused("--version without a value starts no proxy"));
    }
    let resumes = proxy.resume;
    // What every server will have.
    proxy.journal = Some(PathBuf::from("journal"));
    proxy.program = vec!["upstream".into()];
    let log = LogSettings {
        level: run.log.log.unwrap_or(LogLevel::default()),
        format: run.log.log_format,
    };
    settings::resolve(proxy, log, &|_| None)?;
    let mut words = Vec::new();
    let mut is_policy = false;
    for flag in flags {
        let word = flag.to_str().ok_or_else(|| refused("expected UTF-8"))?;
        let path = match (is_policy, word.strip_prefix("--policy=")) {
            (true, _) => Some(("", word)),
            (false, Some(path)) => Some(("--policy=", path)),
            (false, None) => None,
        };
        words.push(match path {
            Some((lead, path)) => {
                let path = absolute(Path::new(path)).map_err(|why| refused(&why))?;
                format!("{lead}{path}")
            }
            None => word.to_owned(),
        });
        // No flag takes this for its value.
        is_policy = !is_policy && word == "--policy";
    }
    Ok(ProxyFlags { words, resumes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(flags: &[&str]) -> Result<ProxyFlags, String> {
        let flags: Vec<OsString> = flags.iter().map(OsString::from).collect();
        check(&flags).map_err(|error| error.to_string())
    }

    #[test]
    fn what_the_proxy_takes_is_taken() {
        let flags = checked(&["--refusals", "result", "--resume", "--log=info"]).unwrap();
        assert_eq!(
            flags.words,
            ["--refusals", "result", "--resume", "--log=info"]
        );
        assert!(flags.resumes);
        assert_eq!(checked(&[]), Ok(ProxyFlags::default()));
    }

    #[test]
    fn what_it_refuses_is_refused() {
        for (flags, words) in [
            (&["--no-such"][..], "--no-such"),
            (&["npx"], "npx"),
            (&["--journal", "x"], "--journal is a flag of `wrap`"),
            (&["--upstream-cmd", "x"], "own command"),
            (&["--annotate", "--", "x"], "own command"),
            (&["--version"], "starts no proxy"),
            (&["--help"], "--help"),
            (&["--call-timeout", "soon"], "soon"),
            (&["--max-calls", "0"], "0"),
            (&["--keep-identity", "--name", "x"], "--keep-identity"),
            (&["--policy", "no-such.toml"], "no-such.toml"),
        ] {
            let said = checked(flags).unwrap_err();
            assert!(said.contains(words), "{flags:?}: {said}");
        }
    }

    #[test]
    fn a_policy_is_found_from_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.toml");
        std::fs::write(&path, "[tools.charge]\n").unwrap();
        let here = std::env::current_dir().unwrap();
        let up = "../".repeat(here.components().count() - 1);
        let relative = format!("{up}{}", path.strip_prefix("/").unwrap().display());
        let relative = relative.as_str();
        let whole = format!("{}/{relative}", here.display());
        assert_eq!(
            checked(&["--policy", relative]).unwrap().words,
            ["--policy", &*whole]
        );
        assert_eq!(
            checked(&[&format!("--policy={relative}")]).unwrap().words,
            [format!("--policy={whole}")]
        );
    }
}
