//! The default command: runs the proxy.
//!
//! The only place where the command line meets room `proxy`.

use super::error::{CliError, Kind};
use super::exit::Exit;
use super::settings::ProxySettings;

/// Runs the proxy until its client or its upstream ends.
pub(super) fn run(_settings: ProxySettings) -> Result<Exit, CliError> {
    // LEAD: `proxy::run(settings)` goes here, after
    // `logging::init(settings.log, <the proxy's own stderr sink>)`. Will be replaced.
    Err(CliError::new(
        Kind::Failure,
        "the proxy is not built into this version yet",
    ))
}
