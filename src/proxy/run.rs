//! One run of the proxy, from its settings to its end.
//!
//! The order matters: what can be refused is refused before the upstream is started; the guardian
//! stands before there is anybody to guard; a journal that is there is opened and checked before
//! the upstream runs, one that is not is made with the first call.

use std::sync::{Arc, Mutex, PoisonError};

use super::books::{self, Books, FileGuard};
use super::child::{Upstream, UpstreamCommand};
use super::desk::{Desk, Guarded};
use super::driver::{Driver, Edges};
use super::group::boot_id;
use super::guardian::Guardian;
use super::pipe::{Sink, Source};
use super::session::{self, RunEnd, Session};
use super::signals::Signals;
use super::stderr::StderrSink;
use crate::guard;
use crate::journal::cannot_use::CannotUse;
use crate::journal::place::JournalPath;
use crate::journal::{self};

/// What a run needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The upstream.
    pub upstream: UpstreamCommand,
    /// The journal; `None`: a plain relay.
    pub journal: Option<JournalPath>,
    /// What the guard needs to know; its key is found with the journal.
    pub guard: guard::Options,
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
    let signals = Signals::install().map_err(system("signal handlers can't be installed"))?;
    let client_out = Sink::stdout().map_err(system("standard output can't be used"))?;
    if let Ok(sink) = Sink::stderr() {
        settings.stderr.queue_to(sink);
    }
    let guardian = Arc::new(Mutex::new(Guardian::absent()));
    let stand = || {
        let spawned = Guardian::spawn().unwrap_or_else(|error| {
            tracing::warn!(
                "no guardian: if checkpoint is killed, the upstream may outlive it: {error}"
            );
            Guardian::absent()
        });
        *guardian.lock().unwrap_or_else(PoisonError::into_inner) = spawned;
    };
    let mut guarded = match &settings.journal {
        None => {
            stand();
            tracing::warn!("no --journal: calls are relayed and not recorded");
            None
        }
        // Where there is none to open, a thread costs more than it saves.
        Some(path) if !path.as_path().exists() => {
            stand();
            Some(journal(path, &settings, &guardian)?)
        }
        // Neither needs the other, and a process takes half as long to start as a journal to open.
        Some(path) => std::thread::scope(|scope| {
            let beside = std::thread::Builder::new().spawn_scoped(scope, stand);
            if beside.is_err() {
                stand();
            }
            journal(path, &settings, &guardian)
        })
        .map(Some)?,
    };
    let upstream = {
        let mut guardian = guardian.lock().unwrap_or_else(PoisonError::into_inner);
        Upstream::spawn(&settings.upstream, &mut guardian)
    };
    if let Ok((process, _)) = &upstream {
        if let Some(error) = process.unguarded() {
            tracing::warn!("the guardian does not know the upstream: {error}");
        }
        let (pgid, ticks) = (process.pgid(), process.started_at_ticks());
        if let Some(guarded) = &mut guarded {
            guarded.describe(|row| {
                row.upstream_pgid = u32::try_from(pgid).ok();
                row.upstream_started_at = Some(ticks);
            });
        }
    }
    let upstream = upstream.map_err(|error| match &settings.upstream {
        // The program's name and no argument: those may hold secrets.
        UpstreamCommand::Argv(words) => {
            let program = words
                .first()
                .map(|word| word.to_string_lossy().into_owned());
            format!("{}: {error}", program.unwrap_or_default())
        }
        UpstreamCommand::Shell(_) => format!("/bin/sh: {error}"),
    });
    let desk = match guarded {
        None => None,
        Some(guarded) => {
            Some(Desk::new(guarded).map_err(system("the journal's thread can't be started"))?)
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

/// Opens the journal, or says how to make one that is not there yet.
fn journal(
    path: &JournalPath,
    settings: &Settings,
    guardian: &Arc<Mutex<Guardian>>,
) -> Result<Guarded, Failure> {
    let options = settings.guard.clone();
    let guardian = Arc::clone(guardian);
    let present = books::open_present(path, options.clone(), Arc::clone(&guardian), session_row());
    match present {
        Err(CannotUse::Absent { .. }) => books::prepare(path)?,
        present => return Ok(Guarded::Open(Box::new(warned(present?)))),
    }
    let path = path.clone();
    let open = move |row| {
        books::open(&path, options.clone(), Arc::clone(&guardian), row)
            .map(warned)
            .map_err(|error| books::unusable(&error))
    };
    Ok(Guarded::Later {
        open: Box::new(open),
        row: Box::new(session_row()),
    })
}

fn warned(books: Books) -> FileGuard {
    for warning in &books.warnings {
        tracing::warn!("{warning}");
    }
    books.guard
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
