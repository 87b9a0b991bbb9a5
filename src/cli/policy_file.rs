//! Reads a policy file from disk, for the proxy and for the commands that look at one.
//!
//! What the text means is the business of [`crate::rules::policy`]; here it gets a file's name, and
//! its errors become words for a person. Nothing is started before it has been read whole.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use super::error::CliError;
use crate::rules::policy::{PolicySet, ThreadId};

/// The largest policy file, in bytes. A hundred tools with every field take a tenth of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How many errors are told at once.
const ERRORS_MAX: usize = 20;

/// Where it stands what a policy may say.
const SCHEMA: &str = "`checkpoint policy schema` prints every field and what it may be";

/// Reads and checks a policy file.
///
/// # Errors
///
/// A usage error that names the file, and the line and the field of each thing that is wrong.
pub(super) fn read(path: &Path, thread: ThreadId) -> Result<PolicySet, CliError> {
    let shown = path.to_string_lossy();
    if path.as_os_str().is_empty() {
        return Err(
            CliError::usage("expected the path of a policy file, not ''")
                .hint("give --policy FILE, or unset CHECKPOINT_POLICY"),
        );
    }
    let text = read_text(path, FILE_BYTES_MAX).map_err(|why| {
        CliError::usage(format!("the policy file {shown} can't be read"))
            .because(why)
            .hint("check the path, and that this user may read it; it is TOML in UTF-8")
    })?;
    let errors = match PolicySet::parse(&text, thread) {
        Ok(set) => return Ok(set),
        Err(errors) => errors,
    };
    let mut lines = errors.iter().map(|error| format!("{shown}:{error}"));
    let first = lines.next().unwrap_or_else(|| shown.clone().into_owned());
    let rest: Vec<_> = lines.by_ref().take(ERRORS_MAX - 1).collect();
    let error = CliError::usage(first);
    Err(match (rest.is_empty(), lines.count()) {
        (true, _) => error.hint(SCHEMA),
        (false, 0) => error.hint(format!("also\n{}\n{SCHEMA}", rest.join("\n"))),
        (false, more) => error.hint(format!(
            "also\n{}\nand {more} more\n{SCHEMA}",
            rest.join("\n")
        )),
    })
}

/// Returns a file's text of at most `bytes_max` bytes.
pub(super) fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?
        .take(bytes_max + 1)
        .read_to_string(&mut text)?;
    if read as u64 > bytes_max {
        let why = format!("it has more than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}
