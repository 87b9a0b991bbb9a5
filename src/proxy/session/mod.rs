//! The session: from lines to effects, without I/O.
//!
//! A [`Session`] is told what came (a line, an end, the time, what the journal did) and says what
//! is to be done: bytes for either side ([`Session::to_upstream`], [`Session::to_client`]), ops
//! for the journal ([`Session::take_ops`]), and how far the run has come ([`Session::phase`]).
//! The driver carries it out and asks again.
//!
//! Invariants, each the reason for a queue below: a call's bytes come out only after
//! [`crate::guard::Done::Admitted`] said that its reservation is durable; an answer's bytes come out only after
//! its outcome is; lines of one direction keep their order, but for a call that waits for its
//! reservation, which lets others pass; ids and bytes are the sender's.
//!
//! Must not: read a clock, a file or a pipe, decide what an entry leads to (that is the guard's),
//! or log arguments or results.

mod answers;
mod array;
mod client;
mod ends;
mod journaled;
mod known;
mod probes;
mod queue;
mod unwritten;
mod upstream;
mod waiters;

pub use ends::{Evidence, Phase, RunEnd, UpstreamEnd};
pub use known::Known;
pub use queue::Outgoing;
use queue::Place;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::reconcile::{Heard, Probe};
use crate::guard::{Call, Op, Settlement, Ticket};
use crate::mcp::call::CallIdFrom;
use crate::mcp::capability::Capabilities;
use crate::mcp::frame::{IdKey, RawId};
use crate::mcp::reply::RefusalKind;
use crate::rules::entry::GaveUp;
use crate::rules::ids::{BranchId, Fence, Micros, Seq, WorkflowId};
use crate::rules::policy::{Policy, PolicySet};
use crate::rules::signature::Signature;
use crate::seeded::{self, Bug};

/// In which shape a refusal reaches the client (contract, section 3, `--refusals`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalShape {
    /// An error for a call with a seq or a key, a result for one without.
    Auto,
    /// A JSON-RPC error.
    Error,
    /// A tool result with `isError: true`.
    Result,
}

/// What holds for the whole run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Calls are journaled; without it all but malformed lines pass.
    pub is_journaled: bool,
    /// How the journal is named in the operator's commands.
    pub journal_shown: String,
    /// Tools whose `readOnlyHint` is `true` pass without an entry.
    pub trusts_annotations: bool,
    /// The name and version shown to the client; `None` keeps the upstream's.
    pub identity: Option<(String, String)>,
    /// The shape of refusals.
    pub refusals: RefusalShape,
    /// Every answer of a journaled call carries `_meta["checkpoint"]`.
    pub annotates: bool,
    /// `--call-timeout`.
    pub call_timeout: Option<Duration>,
    /// `--drain-timeout`.
    pub drain_timeout: Duration,
    /// `--call-id-from`.
    pub call_id_from: CallIdFrom,
    /// The first in-doubt refusal ends the run.
    pub ends_on_doubt: bool,
    /// What may differ from tool to tool.
    pub policies: Arc<PolicySet>,
    /// What the ids of our own requests begin with: unlike any that a client makes.
    pub own_id_start: String,
}

/// How long an answer that is being made durable may hold back what came after it from the
/// upstream. Order is kept where it costs nothing; a stuck disk must not stop the other traffic.
const HOLD_BACK_MAX: Duration = Duration::from_millis(100);

/// How long requests that are not journaled may finish after the client's end. A server that
/// stops at end of input would lose their answers.
const PASSING_DRAIN_MAX: Duration = Duration::from_millis(300);

/// How long calls may go on after a signal: hosts wait 2 s before they kill.
const SIGNAL_DRAIN_MAX: Duration = Duration::from_secs(1);

/// How long a refusal may wait until it is durable that its call will not be answered: it must
/// reach its caller within a second of the upstream's end.
const TELL_MAX: Duration = Duration::from_millis(500);

/// What a call is doing.
#[derive(Debug)]
enum Stage {
    /// Its admission has been asked of the journal. The line waits here.
    Admitting,
    /// It was reserved a while ago, and the journal is asked whether it is still ours.
    Confirming {
        /// The attempt.
        ticket: Ticket,
        /// The stable part of a key for the upstream.
        place: ([u8; 16], u32),
    },
    /// It waits for another session's call, or for one of ours.
    Joining {
        /// The running attempt.
        ticket: Ticket,
        /// When to look again.
        look_at: Instant,
        /// When to stop waiting.
        until: Option<Instant>,
    },
    /// Its entry is in doubt, and somebody is asked what became of it.
    Probing {
        /// The entry's place.
        place: (BranchId, Seq),
    },
    /// The upstream has it, or has its bytes in its pipe.
    Forwarded(Forwarded),
    /// Its answer is being made durable.
    Settling(Settling),
}

#[derive(Debug)]
struct Forwarded {
    ticket: Ticket,
    /// Where its bytes lie in the stream to the upstream.
    bytes: Range<u64>,
    at: Instant,
    /// When it is answered `outcome_unknown`.
    overdue_at: Option<Instant>,
    /// When it is asked whether it is still ours, and its lease renewed if it has one.
    beat_at: Instant,
}

/// Where a call was reserved, as a refusal tells it.
#[derive(Debug)]
struct Standing {
    workflow: String,
    branch: u32,
    elsewhere: Option<(WorkflowId, u32)>,
    letter: String,
    created_at: Micros,
}

#[derive(Debug)]
struct Settling {
    ticket: Ticket,
    /// The upstream's line, shared with the op that stores a part of it.
    line: Arc<Vec<u8>>,
    /// Where the answer stands in it: it is all of the line, or an element of an array.
    range: Range<usize>,
    /// Where the answer goes in the order of lines; `None`: nobody waits for it.
    slot: Option<Place>,
    /// The error means that the call was not executed: it passes, and is no outcome.
    is_void: bool,
}

impl Settling {
    /// Returns the answer's own bytes.
    fn answer(&self) -> &[u8] {
        &self.line[self.range.clone()]
    }
}

/// One `tools/call` that the client has sent and that is not over.
#[derive(Debug)]
struct Flight {
    /// The id's bytes as they came.
    id: Vec<u8>,
    /// The line, until it is forwarded. Shared with the op that stores its arguments.
    line: Option<Arc<Vec<u8>>>,
    /// What the guard is asked, kept while it may be asked again.
    call: Box<Call>,
    signature: Signature,
    policy: Arc<Policy>,
    /// Where it was reserved, once it has been.
    standing: Option<Standing>,
    /// It said a seq or a key.
    is_explicit: bool,
    /// The stateless revision's shapes are legal for it.
    is_stateless: bool,
    /// Its request declares the tasks extension.
    takes_tasks: bool,
    /// What its client says that it can be asked for.
    can_answer: Capabilities,
    stage: Stage,
    /// The number under which the journal is being asked about it.
    asked: Option<u64>,
    /// The client has cancelled it: it gets no answer.
    is_cancelled: bool,
    /// It has been answered by us: what comes is journaled and not forwarded.
    is_answered: bool,
    /// Somebody has been asked about its doubt.
    was_probed: bool,
    /// Cancellations that came before the call itself went out.
    held_back: Vec<Vec<u8>>,
}

impl Flight {
    fn raw_id(&self) -> Option<RawId<'_>> {
        RawId::new(&self.id)
    }

    fn waits(&self) -> bool {
        let is_cancelled = self.is_cancelled && !seeded::has(Bug::CancelledCallAnswered);
        !is_cancelled && !self.is_answered
    }

    /// Returns how a call is refused whose last reservation never left: the upstream may have had
    /// it under one before.
    fn not_sent(&self) -> RefusalKind {
        if self.call.was_forwarded {
            RefusalKind::OutcomeUnknown
        } else {
            RefusalKind::UpstreamUnavailable
        }
    }

    /// Returns the question that asks the journal what happens to the call, under the next number
    /// of `askings`: an answer to an earlier one no longer counts.
    fn admission(&mut self, key: &IdKey, askings: &mut u64) -> (Asked, Op) {
        *askings += 1;
        self.asked = Some(*askings);
        // Its reservation says so from the first: an equal call may come right after it.
        if self.is_cancelled {
            self.call.gave_up = Some(GaveUp::Cancelled);
        }
        let asked = Asked::Admission(key.clone(), *askings);
        (asked, Op::Admit(self.call.clone()))
    }
}

/// A call that another session took over while our upstream had it: its answer is stale, unless
/// the first finisher wins, and nobody here waits for it.
#[derive(Debug)]
struct Fenced {
    ticket: Ticket,
    signature: Signature,
    policy: Arc<Policy>,
    /// The upstream was told to stop.
    is_cancelled: bool,
}

/// A request of the client's that is not journaled.
#[derive(Debug)]
struct PassingRequest {
    id: Vec<u8>,
    kind: PassingKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PassingKind {
    /// `initialize` or `server/discover`: its answer carries the upstream's identity.
    Identity { is_handshake: bool },
    /// `tools/list`, its first page or a further one.
    ToolsList { is_first: bool },
    /// `tools/get` or `tools/cancel` of a task: its answer may tell the task's end.
    TaskGet,
    /// `tasks/result`: its answer is the task's end.
    TaskResult { task_id: String },
    /// `subscriptions/listen`: stays open, nobody waits for it.
    Listen,
    /// A `tools/call` that is not journaled.
    Call,
    /// Anything else.
    Other,
}

/// An op on its way through the journal, with who asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    /// A call, and the number of the asking: what answers an earlier one, or a call that had the
    /// id before, is not this call's.
    Admission(IdKey, u64),
    Settlement(IdKey),
    Confirmation(IdKey),
    Renewal(IdKey),
    /// A refusal that is to be told once it is durable that the call will not be answered.
    Telling(Place),
    Nobody,
}

/// One run of the proxy as a state machine.
#[derive(Debug)]
pub struct Session {
    options: Options,
    known: Known,
    /// Boxed: a map moves its values about.
    flights: BTreeMap<IdKey, Box<Flight>>,
    /// Every flight that waits for another call's outcome, and some that did.
    joining: BTreeSet<IdKey>,
    /// Which flight owns an attempt of ours.
    owners: BTreeMap<Fence, IdKey>,
    /// Calls that our upstream has and that are another session's by now.
    fenced: BTreeMap<IdKey, Fenced>,
    passing: BTreeMap<IdKey, PassingRequest>,
    /// Refusals that keep a place in `down`: until when, and the line.
    telling: BTreeMap<Place, (Instant, Vec<u8>)>,
    /// How far the stream to the upstream has been accepted by its pipe.
    up_written: u64,
    up: queue::UpQueue,
    down: queue::DownQueue,
    ops: Vec<(Asked, Op)>,
    /// Doubts about which somebody is to be asked.
    probes: Vec<Probe>,
    /// Where the asking about each doubt stands: one at a time.
    probing: BTreeMap<(BranchId, Seq), probes::Probing>,
    /// What the upstream said to questions of ours.
    heard: Vec<((BranchId, Seq), Heard)>,
    /// How many questions of our own have been given an id.
    own_ids: u64,
    /// How far the client and the upstream have come in meeting each other.
    handshake: probes::Handshake,
    /// The batch that the journal has.
    asked: Vec<Asked>,
    /// How often the journal has been asked about a call.
    askings: u64,
    /// When the journal got it.
    asked_at: Option<Instant>,
    /// Events that may wait for the next commit.
    lazy: Vec<Op>,
    lazy_since: Option<Instant>,
    /// Answers in the client's pipe: the stream's offset after each, and whose it is.
    undelivered: VecDeque<(u64, Ticket)>,
    delivered_offset: u64,
    phase: Phase,
    /// Calls that the upstream has answered: a second answer is dropped and recorded.
    settled: RecentIds,
    /// Calls that we have answered without the upstream: their cancellation is not its business.
    ours: RecentIds,
    /// The client's header framing was complained about.
    met_header: bool,
    /// The line before was a header: the empty line that ends it is none of the upstream's.
    after_header: bool,
    /// A call was asked about: from then on there is a session.
    met_call: bool,
    /// Set when the outcome of a call could not be written: no further call is taken.
    latched: Option<&'static str>,
    /// An in-doubt refusal was given.
    met_doubt: bool,
    /// Lines for the log: a level and a text without arguments.
    said: Vec<(Level, String)>,
    /// Lines of the upstream's that are no messages.
    noise: Vec<Vec<u8>>,
}

/// How loud a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something is lost or refused.
    Warn,
    /// Something noteworthy.
    Info,
    /// Everything.
    Debug,
}

/// How many ids of calls that are over are remembered.
const RECENT_MAX: usize = 4096;

/// Ids of calls that are over, the newest of them.
#[derive(Debug, Default)]
struct RecentIds {
    ids: BTreeSet<IdKey>,
    order: VecDeque<IdKey>,
}

impl RecentIds {
    fn add(&mut self, key: IdKey) {
        if self.ids.insert(key.clone()) {
            self.order.push_back(key);
        }
        while self.order.len() > RECENT_MAX {
            if let Some(old) = self.order.pop_front() {
                self.ids.remove(&old);
            }
        }
    }

    /// The id begins a new life. Its place in the order stays and is harmless.
    fn forget(&mut self, key: &IdKey) {
        self.ids.remove(key);
    }

    fn has(&self, key: &IdKey) -> bool {
        self.ids.contains(key)
    }
}

impl Session {
    /// Starts a run; nothing has come yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            known: Known::default(),
            flights: BTreeMap::new(),
            joining: BTreeSet::new(),
            owners: BTreeMap::new(),
            fenced: BTreeMap::new(),
            passing: BTreeMap::new(),
            telling: BTreeMap::new(),
            up_written: 0,
            up: queue::UpQueue::default(),
            down: queue::DownQueue::default(),
            ops: Vec::new(),
            probes: Vec::new(),
            probing: BTreeMap::new(),
            heard: Vec::new(),
            own_ids: 0,
            handshake: probes::Handshake::default(),
            asked: Vec::new(),
            askings: 0,
            asked_at: None,
            lazy: Vec::new(),
            lazy_since: None,
            undelivered: VecDeque::new(),
            delivered_offset: 0,
            phase: Phase::default(),
            settled: RecentIds::default(),
            ours: RecentIds::default(),
            met_header: false,
            after_header: false,
            met_call: false,
            latched: None,
            met_doubt: false,
            said: Vec::new(),
            noise: Vec::new(),
        }
    }

    /// Returns what has been learned of the two sides.
    #[must_use]
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Notes that what has been learned was written down.
    pub fn told_news(&mut self) {
        self.known.is_news = false;
    }

    /// Takes what is to be logged.
    pub fn take_said(&mut self) -> Vec<(Level, String)> {
        std::mem::take(&mut self.said)
    }

    /// Takes the upstream's lines that are no messages.
    pub fn take_noise(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.noise)
    }

    /// Takes the next bytes for the upstream, if any are ready. The driver reports with
    /// [`Session::pushed_up`] where in the stream they lie.
    pub fn to_upstream(&mut self) -> Option<(Vec<u8>, Option<IdKey>)> {
        self.up.pop()
    }

    /// Notes how far the stream to the upstream has been accepted by its pipe.
    pub fn wrote_up(&mut self, offset: u64) {
        self.up_written = offset;
    }

    /// Notes where in the stream to the upstream a call's bytes lie.
    pub fn pushed_up(&mut self, key: &IdKey, bytes: Range<u64>) {
        if let Some(flight) = self.flights.get_mut(key)
            && let Stage::Forwarded(forwarded) = &mut flight.stage
        {
            forwarded.bytes = bytes;
        }
    }

    /// Takes the next line for the client, if one is ready, with the attempt that it delivers.
    pub fn to_client(&mut self, now: Instant) -> Option<Outgoing> {
        self.down.pop(now)
    }

    /// Notes where in the stream to the client an answer ends.
    pub fn pushed_down(&mut self, ticket: Ticket, end: u64) {
        self.undelivered.push_back((end, ticket));
        if seeded::has(Bug::DeliveryBeforeWritten) {
            self.ops.push((Asked::Nobody, Op::Deliver(ticket)));
        }
    }

    /// Notes how far the stream to the client has been written: answers up to there have been
    /// delivered.
    pub fn wrote_down(&mut self, offset: u64) {
        self.delivered_offset = offset;
        while let Some((end, ticket)) = self.undelivered.front() {
            if *end > offset {
                break;
            }
            self.ops.push((Asked::Nobody, Op::Deliver(*ticket)));
            self.undelivered.pop_front();
        }
    }

    /// Returns when [`Session::tick`] is to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let flights = self
            .flights
            .values()
            .filter_map(|flight| match &flight.stage {
                Stage::Joining { look_at, until, .. } => Some(match until {
                    Some(until) => *look_at.min(until),
                    None => *look_at,
                }),
                Stage::Forwarded(forwarded) => {
                    let overdue_at = forwarded.overdue_at.filter(|_| !flight.is_answered);
                    Some(overdue_at.map_or(forwarded.beat_at, |at| at.min(forwarded.beat_at)))
                }
                Stage::Admitting
                | Stage::Confirming { .. }
                | Stage::Probing { .. }
                | Stage::Settling(_) => None,
            });
        flights
            .chain(self.down.deadline())
            .chain(self.lazy_since.map(|since| since + LAZY_MAX))
            .chain(self.telling.values().map(|(until, _)| *until))
            .chain(self.probing.values().filter_map(probes::Probing::deadline))
            .chain(self.phase.deadline())
            .min()
    }

    /// Returns whether a flight is still open: called and neither answered nor given up for good.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        !self.flights.is_empty() || !self.asked.is_empty() || !self.ops.is_empty()
    }

    /// Returns how many bytes of calls are held until their reservations are durable.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        if self.asked.is_empty() && self.ops.is_empty() {
            return 0;
        }
        let held = self.flights.values().map(|flight| &flight.line);
        held.flatten().map(|line| line.len()).sum()
    }

    fn say(&mut self, level: Level, text: impl Into<String>) {
        self.said.push((level, text.into()));
    }

    fn settle_op(&mut self, key: &IdKey, settlement: Settlement) {
        self.ops
            .push((Asked::Settlement(key.clone()), Op::Settle(settlement)));
    }

    /// Returns under which key a call or request with this id is in flight, if it is.
    fn in_flight(&self, id: RawId<'_>) -> Option<IdKey> {
        [id.spelling(), id.key()].into_iter().find(|key| {
            self.flights.contains_key(key)
                || self.passing.contains_key(key)
                || self.fenced.contains_key(key)
        })
    }

    /// Returns the key for a new call or request, `None` if its id is still in flight. `1` and
    /// `1.0` may be in flight together, since they go back as they came.
    fn free_key(&self, id: RawId<'_>) -> Option<IdKey> {
        let key = id.key();
        // The upstream may still answer under it.
        if self.fenced.contains_key(&key) || self.fenced.contains_key(&id.spelling()) {
            return None;
        }
        let holder = self
            .flights
            .get(&key)
            .map(|flight| &flight.id)
            .or_else(|| self.passing.get(&key).map(|request| &request.id));
        match holder {
            Some(_) if seeded::has(Bug::DuplicateIdTaken) => Some(key),
            None => Some(key),
            Some(held) if held == id.as_bytes() => None,
            Some(_) => {
                let key = id.spelling();
                let is_taken = self.flights.contains_key(&key) || self.passing.contains_key(&key);
                // Two spellings of one string are one id to everybody.
                (!is_taken && !id.as_bytes().starts_with(b"\"")).then_some(key)
            }
        }
    }
}

/// How long an event may wait for a commit to ride on.
const LAZY_MAX: Duration = Duration::from_millis(500);
