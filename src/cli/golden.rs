//! Compares output whole with a file under `fixtures/`, for tests.

use std::path::Path;

/// Compares `text` with `fixtures/NAME`, or writes that file where `CHECKPOINT_BLESS` is set; the
/// change is then read in the diff.
#[track_caller]
pub(super) fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name);
    if std::env::var_os("CHECKPOINT_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, golden,
        "differs from fixtures/{name}; CHECKPOINT_BLESS=1 rewrites it"
    );
}
