//! The default command: runs the proxy.
//!
//! The only place where the command line meets room `proxy`.

use std::sync::Arc;
use std::time::Duration;

use crate::guard;
use crate::journal::place::JournalPath;
use crate::mcp::call;
use crate::proxy::child;
use crate::proxy::session::{self, RefusalShape, RunEnd};
use crate::proxy::stderr::StderrSink;
use crate::proxy::{self, Failure};
use crate::rules::ids::WorkflowId;
use crate::rules::policy;
use crate::rules::shell::quote;

use super::error::{CliError, Kind};
use super::exit::Exit;
use super::logging;
use super::settings::{
    CallIdFrom, Durability, OnDivergence, OnInDoubt, ProxySettings, Refusals, UpstreamCommand,
};

/// For how long a caller waits for a call whose own caller gave up, where no timeout is set
/// (contract, section 5).
const JOIN_MAX: Duration = Duration::from_secs(30);

/// Runs the proxy until its client or its upstream ends.
pub(super) fn run(settings: ProxySettings) -> Result<Exit, CliError> {
    let stderr = StderrSink::direct();
    logging::init(settings.log, stderr.clone());
    let journal = match &settings.journal {
        Some(path) => Some(JournalPath::new(path).map_err(|error| {
            CliError::new(Kind::Journal, "the journal can't be used").because(error)
        })?),
        None => None,
    };
    let shown = journal
        .as_ref()
        .map(|path| quote(&path.as_path().to_string_lossy()).into_owned())
        .unwrap_or_default();
    let run = proxy::run(proxy::Settings {
        upstream: match settings.upstream {
            UpstreamCommand::Shell(text) => child::UpstreamCommand::Shell(text),
            UpstreamCommand::Argv(words) => child::UpstreamCommand::Argv(words),
        },
        guard: guard::Options {
            workflow: settings.workflow_id.map(WorkflowId),
            redacts: settings.redact_args,
            join_max: settings.call_timeout.unwrap_or(JOIN_MAX),
            run_id: settings.run_id,
            thread_id: settings.thread_id,
            calls_max: settings.max_calls,
            supersedes: settings.supersede,
            resumes: settings.resume,
            on_divergence: match settings.on_divergence {
                OnDivergence::Strict => policy::OnDivergence::Strict,
                OnDivergence::Fork => policy::OnDivergence::Fork,
            },
            defers: settings.durability == Durability::Deferred,
            key: None,
        },
        line_bytes_max: settings.max_message_bytes,
        session: session::Options {
            is_journaled: journal.is_some(),
            journal_shown: shown,
            trusts_annotations: settings.trust_annotations,
            identity: settings
                .identity
                .map(|identity| (identity.name, identity.version)),
            refusals: match settings.refusals {
                Refusals::Auto => RefusalShape::Auto,
                Refusals::Error => RefusalShape::Error,
                Refusals::Result => RefusalShape::Result,
            },
            annotates: settings.annotate,
            call_timeout: settings.call_timeout,
            drain_timeout: settings.drain_timeout,
            call_id_from: match settings.call_id_from {
                CallIdFrom::Auto => call::CallIdFrom::Auto,
                CallIdFrom::None => call::CallIdFrom::None,
                CallIdFrom::Key(key) => call::CallIdFrom::Key(key),
            },
            ends_on_doubt: settings.on_in_doubt == OnInDoubt::Exit,
            policies: Arc::new(settings.policies),
            own_id_start: own_id_start(),
        },
        journal,
        stderr,
    });
    match run {
        Ok(RunEnd::Well) => Ok(Exit::Ok),
        Ok(RunEnd::InDoubt) => Ok(Exit::InDoubt),
        Ok(RunEnd::Upstream) => Ok(Exit::Upstream),
        Err(Failure::Journal(error)) => {
            Err(CliError::new(Kind::Journal, "the journal can't be used").because(error))
        }
        Err(error @ Failure::System { .. }) => Err(CliError::new(Kind::Failure, error.to_string())),
    }
}

/// Returns what the ids of our own requests begin with in this run: no client guesses it.
fn own_id_start() -> String {
    let bits = u128::from_le_bytes(proxy::books::random());
    format!("checkpoint-{bits:032x}")
}
