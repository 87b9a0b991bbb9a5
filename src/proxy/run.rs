//! One run of the proxy, from its settings to its end.
//!
//! The order matters: what can be refused is refused before the upstream is started; the guardian
//! stands before there is anybody to guard; the journal is made while the upstream starts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::books;
use super::child::{Upstream, UpstreamCommand};
use super::desk::Desk;
use super::driver::{Driver, Edges};
use super::group::boot_id;
use super::guardian::Guardian;
use super::pipe::{Sink, Source};
use super::session::{self, RunEnd, Session};
use super::signals::Signals;
use super::stderr::StderrSink;
use crate::journal::cannot_use::CannotUse;
use crate::journal::place::JournalPath;
use crate::journal::{self};
use crate::rules::ids::WorkflowId;

/// What a run needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The upstream.
    pub upstream: UpstreamCommand,
    /// The journal; `None`: a plain relay.
    pub journal: Option<JournalPath>,
    /// `--workflow-id`.
    pub workflow: Option<WorkflowId>,
    /// `--redact-args-in-journal`.
    pub redacts: bool,
    /// `--max-message-bytes`.
    pub line_bytes_max: usize,
    /// What the session needs to know.
    pub session: session::Options,
    /// Our own stderr, to which the log goes as well.
    pub stderr: StderrSink,
}

/// Why a run did not begin.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The journal can't be used.
    #[error(transparent)]
    Journal(#[from] CannotUse),
    /// The system refused something that a proxy can't do without.
    #[error("{what}: {source}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// What it said.
        source: std::io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Failure {
    move |source| Failure::System { what, source }
}

/// Runs the proxy until its client or its upstream ends.
///
/// Call from the main thread, before others exist.
///
/// # Errors
///
/// The run did not begin: the journal can't be used, or the system refused. Nothing was sent to
/// an upstream.
pub fn run(settings: Settings) -> Result<RunEnd, Failure> {
    if let Some(journal) = &settings.journal {
        books::check(journal)?;
    }
    let signals = Signals::install().map_err(system("signal handlers can't be installed"))?;
    let client_out = Sink::stdout().map_err(system("standard output can't be used"))?;
    if let Ok(sink) = Sink::stderr() {
        settings.stderr.queue_to(sink);
    }
    let mut guardian = Guardian::spawn().unwrap_or_else(|error| {
        tracing::warn!(
            "no guardian: if checkpoint is killed, the upstream may outlive it: {error}"
        );
        Guardian::absent()
    });
    // An existing journal that can't be used is refused before the upstream runs; a new one is
    // made while it starts.
    let is_new = settings
        .journal
        .as_ref()
        .is_some_and(|journal| !journal.as_path().exists());
    let guardian_first = if is_new || settings.journal.is_none() {
        None
    } else {
        Some(())
    };
    let mut upstream = None;
    if guardian_first.is_none() {
        upstream = Some(Upstream::spawn(&settings.upstream, &mut guardian));
    }
    let guardian = Arc::new(Mutex::new(guardian));
    let opened = match &settings.journal {
        None => None,
        Some(path) => {
            let row = session_row();
            match books::open(
                path,
                settings.workflow.clone(),
                settings.redacts,
                Arc::clone(&guardian),
                row,
            ) {
                Ok(books) => Some(books),
                Err(error) => {
                    end_unused(upstream);
                    return Err(error.into());
                }
            }
        }
    };
    let upstream = match upstream {
        Some(upstream) => upstream,
        None => {
            let mut guardian = guardian
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            Upstream::spawn(&settings.upstream, &mut guardian)
        }
    };
    if let Ok((process, _)) = &upstream
        && let Some(error) = process.unguarded()
    {
        tracing::warn!("the guardian does not know the upstream: {error}");
    }
    let desk = match opened {
        None => {
            tracing::warn!("no --journal: calls are relayed and not recorded");
            None
        }
        Some(mut books) => {
            for warning in &books.warnings {
                tracing::warn!("{warning}");
            }
            if let Ok((process, _)) = &upstream {
                let (pgid, ticks) = (process.pgid(), process.started_at_ticks());
                books.guard.describe(|row| {
                    row.upstream_pgid = u32::try_from(pgid).ok();
                    row.upstream_started_at = Some(ticks);
                });
            }
            Some(Desk::new(books.guard).map_err(system("the journal's thread can't be started"))?)
        }
    };
    let session = Session::new(settings.session);
    let edges = Edges {
        client_in: Source::stdin(),
        client_out,
        signals,
        stderr: settings.stderr,
        line_bytes_max: settings.line_bytes_max,
    };
    let session = Driver::new(session, edges, upstream, guardian, desk).run();
    Ok(session.run_end())
}

/// Ends an upstream that was started for nothing: its journal could not be made.
fn end_unused(upstream: Option<std::io::Result<(Upstream, super::child::Pipes)>>) {
    let Some(Ok((mut process, pipes))) = upstream else {
        return;
    };
    drop(pipes);
    let _ = process.signal_group(nix::sys::signal::Signal::SIGKILL);
    let deadline = std::time::Instant::now() + Duration::from_secs(1);
    while process.group_alive() && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn session_row() -> journal::Session {
    journal::Session {
        host: nix::unistd::gethostname()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default(),
        boot_id: boot_id().unwrap_or_default(),
        pid: std::process::id(),
        started_at: books::now().0,
        ..journal::Session::default()
    }
}
