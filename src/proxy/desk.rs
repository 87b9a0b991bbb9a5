//! Between the loop and the journal: a batch goes in, its result comes out, here or on a thread.
//!
//! As long as commits are quick they are made where they are asked for: a hand-over to a thread
//! and back costs more than the work itself. As soon as one was slow (a stuck disk, a stall), the
//! next ones go to the journal's thread, so that the loop can move other traffic meanwhile. The
//! first one goes there, too: it opens the session and nobody knows the disk yet.
//!
//! Must not: try again or give up; that is the driver's.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::books::{FileGuard, now};
use super::reconcile::{self, Heard, Ledger, Probe, Settled, ToolQuestion, Upstream};
use crate::guard::story::Story;
use crate::guard::verdict::{Act, Deed, Ruling};
use crate::guard::{Done, Op, Settlement};
use crate::journal::{Journal as _, JournalError, Session};
use crate::rules::ids::{BranchId, Seq};

/// An entry's branch and seq.
type Place = (BranchId, Seq);

/// A commit that takes longer sends the next ones to the thread.
const SLOW: Duration = Duration::from_millis(5);

/// So many quick commits on the thread bring the next ones back.
const QUICK_RUN: u32 = 8;

/// After so many batches with outcomes the journal's log is made long once (see
/// `SqliteJournal::grow_log`): a run that only probes the upstream, makes a call or two, or waits
/// for another proxy's call does not pay for it, nor do others wait for its lock meanwhile.
const LOG_GROWS_AFTER: u32 = 4;

/// How long the log is made, in pages: what it holds before a commit moves it into the journal.
const LOG_PAGES: u32 = 4096;

/// After so many pages the log is moved into the journal as soon as no call is in flight, so that
/// none has to wait for it later. Fewer are not worth their syncs.
const LOG_MOVES_AFTER: usize = 800;

/// What a batch adds to the log beside its payloads, in pages, for a call at a time.
const PAGES_OF_A_BATCH: usize = 4;

/// How long no batch has come when the log is moved.
const LOG_RESTS: Duration = Duration::from_millis(50);

/// How long an outcome that was told waits for a reservation to be synced with, before it gets a
/// sync of its own. The help of `--durability` says it.
const OUTCOME_RESTS: Duration = Duration::from_millis(20);

/// What came of a batch, with its ops for whoever must try again.
pub(super) struct Answer {
    /// The batch.
    pub(super) ops: Vec<Op>,
    /// What became of it.
    pub(super) result: Result<Vec<Done>, JournalError>,
    /// Outcomes are told that may not be durable yet.
    owes_sync: bool,
}

/// The guard, or how to get one: a journal that does not exist is made with the first batch, since
/// some clients start a proxy only to probe the upstream.
pub(super) enum Guarded {
    /// The journal is open.
    Open(Box<FileGuard>),
    /// It is not there yet.
    Later {
        /// Makes and opens it.
        open: Opener,
        /// What is known of the run so far.
        row: Box<Session>,
    },
}

/// Makes and opens a journal.
pub(super) type Opener = Box<dyn FnMut(Session) -> Result<FileGuard, JournalError> + Send>;

impl Guarded {
    fn guard(&mut self) -> Result<&mut FileGuard, JournalError> {
        if let Self::Later { open, row } = self {
            let guard = open(row.as_ref().clone())?;
            *self = Self::Open(Box::new(guard));
        }
        match self {
            Self::Open(guard) => Ok(guard),
            Self::Later { .. } => Err(JournalError::Failed("the journal is not open".into())),
        }
    }

    /// Changes what is known of this run.
    pub(super) fn describe(&mut self, change: impl FnOnce(&mut Session)) {
        match self {
            Self::Open(guard) => guard.describe(change),
            Self::Later { row, .. } => change(row),
        }
    }
}

struct Batch {
    ops: Vec<Op>,
    reconnects: bool,
}

enum Work {
    Batch(Batch),
    Chore(Chore),
}

/// What the thread does for nobody who waits.
enum Chore {
    /// Do what the first batch would have to wait for.
    CheckPlace,
    /// Make the journal's log long.
    GrowLog,
    /// Move the log into the journal.
    MoveLog,
    /// Make durable what was committed without a sync.
    SyncLog,
}

/// About how many pages a batch writes to the log.
fn pages_of(ops: &[Op]) -> usize {
    let payload_bytes = |op: &Op| match op {
        Op::Admit(call) => call
            .arguments
            .as_ref()
            .map_or(0, |arguments| arguments.len()),
        Op::Settle(Settlement::Answered { answer, .. }) | Op::TaskEnd { answer, .. }
            if answer.is_kept =>
        {
            answer.body.len()
        }
        _ => 0,
    };
    PAGES_OF_A_BATCH + ops.iter().map(payload_bytes).sum::<usize>() / 4096
}

/// What a probe has to say.
enum News {
    /// It has a question for the upstream, and waits for what comes of it.
    Asks(ToolQuestion, Sender<Heard>),
    /// It is done.
    Done(Place),
}

/// What a probe wants of the session.
pub(super) enum ProbeNews {
    /// The upstream is to be asked.
    Asks(ToolQuestion),
    /// The calls that wait for it may go on.
    Done(Place),
}

/// Where batches are handed in.
pub(super) struct Desk {
    guard: Arc<Mutex<Guarded>>,
    to_thread: Sender<Work>,
    from_thread: Receiver<(Answer, Duration)>,
    bell: UnixStream,
    /// Where probes say what they have to say, and where they ring for it.
    news: (Sender<News>, Receiver<News>),
    news_ring: UnixStream,
    news_bell: UnixStream,
    /// Probes that are not done.
    probes: usize,
    /// Who waits for the answer to a question.
    asking: BTreeMap<Place, Sender<Heard>>,
    /// The thread has a batch, or its result has not been taken.
    is_away: bool,
    is_slow: bool,
    quick: u32,
    with_outcomes: u32,
    /// About how many pages have gone to the log since it was moved into the journal by us, and
    /// when the last batch was.
    unmoved: usize,
    last: Instant,
    /// Since when outcomes are told that may not be durable.
    owes_since: Option<Instant>,
}

impl Desk {
    /// Starts the journal's thread.
    ///
    /// # Errors
    ///
    /// No thread or no socket pair can be had.
    pub(super) fn new(guard: Guarded) -> std::io::Result<Self> {
        let (to_thread, work) = channel::<Work>();
        if matches!(guard, Guarded::Open(_)) {
            // The receiver is in scope.
            let _ = to_thread.send(Work::Chore(Chore::CheckPlace));
        }
        let guard = Arc::new(Mutex::new(guard));
        let (answers, from_thread) = channel();
        let (bell, mut ring) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ring.set_nonblocking(true)?;
        let (news_bell, news_ring) = UnixStream::pair()?;
        news_bell.set_nonblocking(true)?;
        news_ring.set_nonblocking(true)?;
        let shared = Arc::clone(&guard);
        std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || {
                while let Ok(work) = work.recv() {
                    let batch = match work {
                        Work::Batch(batch) => batch,
                        Work::Chore(chore) => {
                            do_chore(&shared, &chore);
                            continue;
                        }
                    };
                    let (answer, took) = {
                        let mut guard = shared.lock().unwrap_or_else(PoisonError::into_inner);
                        run(&mut guard, batch)
                    };
                    if answers.send((answer, took)).is_err() {
                        return;
                    }
                    // A full bell has rung already.
                    let _ = ring.write(&[1]);
                }
            })?;
        Ok(Self {
            guard,
            to_thread,
            from_thread,
            bell,
            news: channel(),
            news_ring,
            news_bell,
            probes: 0,
            asking: BTreeMap::new(),
            is_away: false,
            is_slow: true,
            quick: 0,
            with_outcomes: 0,
            unmoved: 0,
            last: Instant::now(),
            owes_since: None,
        })
    }

    /// Hands a batch in. Returns its result if it was done here; else the bell rings later.
    pub(super) fn submit(&mut self, ops: Vec<Op>, reconnects: bool) -> Option<Answer> {
        self.unmoved = self.unmoved.saturating_add(pages_of(&ops));
        self.last = Instant::now();
        let has_outcome = ops.iter().any(|op| matches!(op, Op::Settle(_)));
        let batch = Batch { ops, reconnects };
        // Held by the thread while it makes the log long: the loop must not wait for that.
        let shared = Arc::clone(&self.guard);
        let guard = match (self.is_slow, shared.try_lock()) {
            (true, _) | (false, Err(TryLockError::WouldBlock)) => None,
            (false, Ok(guard)) => Some(guard),
            (false, Err(TryLockError::Poisoned(poisoned))) => Some(poisoned.into_inner()),
        };
        let answer = match guard {
            None => self.hand_over(batch),
            Some(mut guard) => {
                let (answer, took) = run(&mut guard, batch);
                if took > SLOW {
                    self.is_slow = true;
                    self.quick = 0;
                }
                self.look_for_debts(&answer);
                Some(answer)
            }
        };
        self.with_outcomes = self.with_outcomes.saturating_add(has_outcome.into());
        if has_outcome && self.with_outcomes == LOG_GROWS_AFTER {
            // After the batch, and if the thread has ended there is no hurry any more.
            let _ = self.to_thread.send(Work::Chore(Chore::GrowLog));
        }
        answer
    }

    fn hand_over(&mut self, batch: Batch) -> Option<Answer> {
        match self.to_thread.send(Work::Batch(batch)) {
            Ok(()) => {
                self.is_away = true;
                None
            }
            // The thread is gone only if it panicked; then nothing is known any more.
            Err(SendError(work)) => Some(Answer {
                ops: match work {
                    Work::Batch(batch) => batch.ops,
                    Work::Chore(_) => Vec::new(),
                },
                result: Err(JournalError::Failed(
                    "the journal's thread has ended".into(),
                )),
                owes_sync: false,
            }),
        }
    }

    /// Returns when [`Desk::rest`] is worth a call, if no batch comes until then.
    pub(super) fn rests_at(&self) -> Option<Instant> {
        (self.unmoved >= LOG_MOVES_AFTER).then(|| self.last + LOG_RESTS)
    }

    /// No call is in flight: does on the thread what would hold one up.
    pub(super) fn rest(&mut self, now: Instant) {
        if self.rests_at().is_some_and(|at| now >= at) {
            self.unmoved = 0;
            // If the thread has ended, the next batch tells.
            let _ = self.to_thread.send(Work::Chore(Chore::MoveLog));
        }
    }

    /// Notes since when what was told is owed a sync.
    fn look_for_debts(&mut self, answer: &Answer) {
        self.owes_since = match (answer.owes_sync, self.owes_since) {
            (false, _) => None,
            (true, Some(since)) => Some(since),
            (true, None) => Some(Instant::now()),
        };
    }

    /// Returns when [`Desk::sync`] is due, if no reservation comes until then.
    pub(super) fn syncs_at(&self) -> Option<Instant> {
        self.owes_since.map(|since| since + OUTCOME_RESTS)
    }

    /// Has the thread sync what is owed a sync, if that is due.
    pub(super) fn sync(&mut self, now: Instant) {
        if self.syncs_at().is_some_and(|at| now >= at) {
            self.owes_since = None;
            // If the thread has ended, the next batch tells.
            let _ = self.to_thread.send(Work::Chore(Chore::SyncLog));
        }
    }

    /// Takes a result that the thread has ready.
    pub(super) fn take(&mut self) -> Option<Answer> {
        if !self.is_away {
            return None;
        }
        let mut rung = [0; 64];
        while matches!(self.bell.read(&mut rung), Ok(count) if count > 0) {}
        let (answer, took) = self.from_thread.try_recv().ok()?;
        self.is_away = false;
        self.quick = if took < SLOW { self.quick + 1 } else { 0 };
        // A new journal's first commit also makes its log; what follows is what counts.
        if self.quick >= QUICK_RUN || (self.quick > 0 && took < SLOW / 2) {
            self.is_slow = false;
        }
        self.look_for_debts(&answer);
        Some(answer)
    }

    /// Has somebody asked about a doubt, on a thread of its own; the bell for news rings when it
    /// wants something and when it is done.
    pub(super) fn probe(&mut self, probe: Probe) {
        let place = probe.place;
        let teller = self.news_ring.try_clone().map(|ring| Teller {
            news: self.news.0.clone(),
            ring,
        });
        let mut ledger = SharedGuard(Arc::clone(&self.guard));
        let started = teller.and_then(|mut teller| {
            std::thread::Builder::new()
                .name("probe".into())
                .spawn(move || {
                    let deed = Deed {
                        by: "reconcile".into(),
                        ..Deed::default()
                    };
                    match reconcile::settle(&mut ledger, &mut teller, &probe, &deed) {
                        Ok(Settled::Ruled { verdict, .. }) => {
                            tracing::info!("who was asked says {verdict} of seq {}", place.1);
                        }
                        Ok(Settled::NotAsked(_)) => {
                            tracing::info!("no verdict on seq {} could count yet", place.1);
                        }
                        Err(error) => tracing::warn!("no verdict on seq {}: {error}", place.1),
                    }
                    teller.tell(News::Done(place));
                })
        });
        self.probes += 1;
        if let Err(error) = started {
            tracing::warn!("nobody can be asked about seq {}: {error}", place.1);
            let _ = self.news.0.send(News::Done(place));
            let _ = self.news_ring.write(&[1]);
        }
    }

    /// Takes what a probe has to say. Its bell is silenced first.
    pub(super) fn take_news(&mut self) -> Option<ProbeNews> {
        if self.probes == 0 {
            return None;
        }
        let mut rung = [0; 64];
        while matches!(self.news_bell.read(&mut rung), Ok(count) if count > 0) {}
        match self.news.1.try_recv().ok()? {
            News::Asks(question, answer) => {
                self.asking.insert(question.place, answer);
                Some(ProbeNews::Asks(question))
            }
            News::Done(place) => {
                self.probes -= 1;
                self.asking.remove(&place);
                Some(ProbeNews::Done(place))
            }
        }
    }

    /// Hands on what came of a question.
    pub(super) fn hand_back(&mut self, place: Place, heard: Heard) {
        if let Some(waiting) = self.asking.remove(&place) {
            // It waits for nothing else.
            let _ = waiting.send(heard);
        }
    }

    /// Waits for the result of a batch that the thread has, no longer than `limit`. For the end.
    pub(super) fn wait(&mut self, limit: Duration) -> Option<Answer> {
        let (answer, _) = self.from_thread.recv_timeout(limit).ok()?;
        self.is_away = false;
        Some(answer)
    }

    /// Returns what becomes readable when the thread has a result.
    #[must_use]
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Returns what becomes readable when a probe has news; nothing while none is at work.
    pub(super) fn news_bell(&self) -> Option<BorrowedFd<'_>> {
        (self.probes > 0).then(|| self.news_bell.as_fd())
    }

    /// Changes what is known of this run, unless the thread has the guard just now. Returns
    /// whether it did.
    pub(super) fn describe(&mut self, change: impl FnOnce(&mut Session)) -> bool {
        match self.guard.try_lock() {
            Ok(mut guard) => {
                guard.describe(change);
                true
            }
            Err(_) => false,
        }
    }

    /// Closes the journal, which moves its log into it. Not if the thread is still at work.
    pub(super) fn close(self) {
        let Self {
            guard, to_thread, ..
        } = self;
        drop(to_thread);
        if let Ok(mut guard) = guard.try_lock() {
            *guard = Guarded::Later {
                open: Box::new(|_| Err(JournalError::Failed("the run is over".into()))),
                row: Box::default(),
            };
        }
    }
}

/// How a probe speaks to the loop.
struct Teller {
    news: Sender<News>,
    ring: UnixStream,
}

impl Teller {
    fn tell(&mut self, news: News) {
        let _ = self.news.send(news);
        // A full bell has rung already.
        let _ = self.ring.write(&[1]);
    }
}

impl Upstream for Teller {
    fn ask(&mut self, question: ToolQuestion) -> Heard {
        let (answer, heard) = channel();
        self.tell(News::Asks(question, answer));
        // The session lets no question stay open; only the end of the run does.
        heard
            .recv()
            .unwrap_or_else(|_| Heard::Nothing("checkpoint is ending".into()))
    }
}

/// The run's guard, held for one transaction at a time.
struct SharedGuard(Arc<Mutex<Guarded>>);

impl Ledger for SharedGuard {
    fn story(&mut self, place: Place) -> Result<Option<Story>, JournalError> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        guard.guard()?.story(place)
    }

    fn rule(
        &mut self,
        place: Place,
        act: &Act,
        deed: &Deed,
        is_trial: bool,
    ) -> Result<Ruling, JournalError> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        guard.guard()?.rule(place, act, deed, now(), is_trial)
    }
}

fn do_chore(guard: &Mutex<Guarded>, chore: &Chore) {
    let mut guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
    let Guarded::Open(guard) = &mut *guard else {
        return;
    };
    match chore {
        Chore::CheckPlace => {
            if let Err(error) = guard.journal().check_place() {
                // The first batch is refused with it, if it is still so then.
                tracing::debug!("the journal is not ready: {error}");
            }
        }
        Chore::GrowLog => {
            if let Err(error) = guard.journal().grow_log(LOG_PAGES) {
                tracing::debug!("the journal's log could not be made longer: {error}");
            }
        }
        Chore::MoveLog => {
            if let Err(error) = guard.journal().move_log() {
                // If it is final, the next batch is refused with it.
                tracing::debug!("the journal's log could not be moved: {error}");
            }
        }
        Chore::SyncLog if guard.owes_sync() => match guard.journal().sync_log() {
            Ok(()) => guard.synced(),
            // If it is final, the next batch is refused with it.
            Err(error) => tracing::warn!("outcomes may not be durable: {error}"),
        },
        Chore::SyncLog => {}
    }
}

fn run(guard: &mut Guarded, work: Batch) -> (Answer, Duration) {
    let start = Instant::now();
    let result = guard.guard().and_then(|guard| {
        if work.reconnects {
            guard.journal().reconnect()?;
        }
        guard.run(&work.ops, now())
    });
    let owes_sync = matches!(guard, Guarded::Open(guard) if guard.owes_sync());
    (
        Answer {
            ops: work.ops,
            result,
            owes_sync,
        },
        start.elapsed(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Answer;
    use crate::journal::Payload;
    use crate::rules::entry::Status;

    #[test]
    fn a_large_payload_is_worth_a_move_after_a_few() {
        let end = |bytes: usize, is_kept| Op::TaskEnd {
            task_id: "t".into(),
            created_at: None,
            answer: Answer {
                status: Status::Completed,
                is_error: false,
                body: Payload::from(vec![b'1'; bytes]),
                is_kept,
                round: None,
                task: None,
            },
        };
        assert_eq!(pages_of(&[end(10, true)]), PAGES_OF_A_BATCH);
        let large = pages_of(&[end(1_000_000, true)]);
        assert!((240..260).contains(&large), "{large}");
        assert_eq!(pages_of(&[end(1_000_000, false)]), PAGES_OF_A_BATCH);
    }
}
