//! Random policies, processes and schedules against a small model: what ran is counted outside of
//! the journal, and no attempt may start that the contract does not allow.
//!
//! Each case has one policy, some processes on one journal, and up to forty steps: calls, effects,
//! answers, losses, deliveries, ends of processes and of leases. The model knows each attempt and
//! how it ended; it does not know how the guard decides.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::fixture::{answer, call};
use super::{
    AdmissionVerdict, Answer, Call, CallKey, Done, Guard, Op, Options, Settlement, Surroundings,
    Ticket, Why,
};
use crate::journal::memory::MemoryJournal;
use crate::journal::{Journal as _, Session, Transaction as _};
use crate::rules::decide::Decision;
use crate::rules::entry::{GaveUp, Status, Unanswered};
use crate::rules::ids::{BranchId, Fence, Micros, Seq, SessionId, Window, WorkflowId};
use crate::rules::policy::{Delivery, InDoubtScope, OnDivergence, OnFailure, OnInFlight, Policy};
use crate::rules::signature::Signature;

const PROCESSES: usize = 3;
const LEASE: Duration = Duration::from_millis(100);

/// What the processes share.
#[derive(Default)]
pub(super) struct Machine {
    pub(super) live: BTreeSet<SessionId>,
    pub(super) uptime_ms: u64,
    random: u8,
}

pub(super) struct Around(pub(super) Rc<RefCell<Machine>>);

impl Surroundings for Around {
    fn take_session(&mut self, id: SessionId) -> std::io::Result<bool> {
        Ok(self.0.borrow_mut().live.insert(id))
    }

    fn is_live(&mut self, id: SessionId) -> std::io::Result<bool> {
        Ok(self.0.borrow().live.contains(&id))
    }

    fn is_attended(&mut self, id: SessionId) -> std::io::Result<bool> {
        Ok(self.0.borrow().live.contains(&id))
    }

    fn has_room(&mut self) -> bool {
        true
    }

    fn raise_mark(&mut self, _fence: Fence) {}

    fn random(&mut self) -> [u8; 16] {
        let mut machine = self.0.borrow_mut();
        machine.random += 1;
        [machine.random; 16]
    }

    fn is_upstream_alive(&mut self, _session: &Session, _is_live: bool) -> Option<bool> {
        None
    }

    fn uptime(&mut self) -> (String, u64) {
        ("boot".into(), self.0.borrow().uptime_ms)
    }
}

pub(super) type MemoryGuard = Guard<MemoryJournal, Around>;

/// How an attempt stands, as somebody sees it who watches the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Running,
    /// Nobody will answer it.
    Lost,
    /// It did not run.
    Void,
    Done(Status, bool),
}

#[derive(Clone, Debug)]
struct Run {
    process: usize,
    ticket: Ticket,
    arguments: String,
    lease_until_ms: u64,
    end: End,
    has_run: bool,
    body: String,
}

struct Model {
    journal: MemoryJournal,
    machine: Rc<RefCell<Machine>>,
    guards: Vec<MemoryGuard>,
    options: Options,
    policy: Policy,
    runs: Vec<Run>,
    /// Which arguments an entry was made for, by its last attempt.
    keys: BTreeMap<String, (BranchId, Seq)>,
    now: i64,
}

pub(super) fn nobody() -> MemoryJournal {
    MemoryJournal::new([0; 16], WorkflowId("none".into()))
}

impl Model {
    fn new(bits: [bool; 12], attempts_max: u32) -> Self {
        let policy = Policy {
            delivery: if bits[0] {
                Delivery::AtLeastOnce
            } else {
                Delivery::AtMostOnce
            },
            on_failure: if bits[1] {
                OnFailure::Retry
            } else {
                OnFailure::Replay
            },
            on_tool_error: if bits[2] {
                OnFailure::Retry
            } else {
                OnFailure::Replay
            },
            on_in_flight: if bits[3] {
                OnInFlight::Refuse
            } else {
                OnInFlight::Join
            },
            in_doubt_scope: if bits[4] {
                InDoubtScope::Call
            } else {
                InDoubtScope::Signature
            },
            redeliver_within: Duration::from_secs(if bits[5] { 0 } else { 900 }),
            window: Some(Window::Journal),
            fences_results: !bits[6],
            lease_ttl: LEASE,
            heartbeat: LEASE / 4,
            attempts_max,
            ..Policy::default()
        };
        let options = Options {
            on_divergence: if bits[7] {
                OnDivergence::Fork
            } else {
                OnDivergence::Strict
            },
            resumes: bits[8],
            calls_max: bits[9].then_some(5),
            ..Options::default()
        };
        let machine = Rc::new(RefCell::new(Machine::default()));
        let mut model = Self {
            journal: MemoryJournal::new([9; 16], WorkflowId("own".into())),
            machine,
            guards: Vec::new(),
            options,
            policy,
            runs: Vec::new(),
            keys: BTreeMap::new(),
            now: 1_000,
        };
        for _ in 0..PROCESSES {
            let guard = model.process();
            model.guards.push(guard);
        }
        model
    }

    fn process(&self) -> MemoryGuard {
        let options = self.options.clone();
        let around = Around(Rc::clone(&self.machine));
        Guard::new(nobody(), around, options, Session::default())
    }

    /// Lets a process do something to the journal, which all of them share.
    fn run(&mut self, process: usize, op: Op) -> Done {
        self.now += 1;
        std::mem::swap(&mut self.journal, &mut self.guards[process].journal);
        let done = self.guards[process].run(&[op], Micros(self.now));
        std::mem::swap(&mut self.journal, &mut self.guards[process].journal);
        done.unwrap().remove(0)
    }

    fn last(&self, place: (BranchId, Seq)) -> Option<&Run> {
        self.runs
            .iter()
            .filter(|run| (run.ticket.branch, run.ticket.seq) == place)
            .max_by_key(|run| run.ticket.fence)
    }

    fn call(&mut self, process: usize, seq: Option<u64>, key: Option<u8>, arguments: u8) {
        let arguments = format!("{{\"n\":{arguments}}}");
        let mut made = call(seq, &arguments);
        made.policy = self.policy.clone().into();
        made.key = key.map(|key| CallKey {
            text: format!("k{key}"),
            is_derived: false,
        });
        let is_guarded = seq.is_none() && key.is_none();
        self.admit(process, made, &arguments, is_guarded);
    }

    fn admit(&mut self, process: usize, made: Call, arguments: &str, is_guarded: bool) {
        let key = made.key.as_ref().map(|key| key.text.clone());
        let done = self.run(process, Op::Admit(Box::new(made)));
        let Done::Admitted(admission) = done else {
            panic!("no admission: {done:?}");
        };
        let max = self.policy.attempts_max;
        match admission.verdict {
            AdmissionVerdict::Run(ticket, letter) => {
                let place = (ticket.branch, ticket.seq);
                let highest = self.runs.iter().map(|run| run.ticket.fence).max();
                assert!(highest < Some(ticket.fence), "a fence that does not rise");
                match self.last(place) {
                    None => {
                        assert_eq!(
                            ticket.attempt, 1,
                            "a new entry begins with its first attempt"
                        );
                        if let Some(key) = &key {
                            let held = self.keys.get(key);
                            assert_eq!(held, None, "key {key} is held already");
                        }
                        if is_guarded && !self.options.resumes {
                            self.assert_nothing_guards(arguments, letter.0);
                        }
                        if let Some(limit) = self.options.calls_max {
                            let places: BTreeSet<_> = self
                                .runs
                                .iter()
                                .map(|run| (run.ticket.branch, run.ticket.seq))
                                .collect();
                            assert!((places.len() as u64) < limit, "more calls than allowed");
                        }
                    }
                    Some(last) => {
                        assert_eq!(ticket.attempt, last.ticket.attempt + 1);
                        let same = last.arguments == arguments;
                        let overdue = last.lease_until_ms <= self.machine.borrow().uptime_ms;
                        let at_least_once = self.policy.delivery == Delivery::AtLeastOnce;
                        let left = last.ticket.attempt < max;
                        let is_allowed = match last.end {
                            End::Void => true,
                            End::Lost => at_least_once && same && left,
                            End::Running => at_least_once && same && left && overdue,
                            End::Done(Status::Failed, _) => {
                                self.policy.on_failure == OnFailure::Retry && same && left
                            }
                            End::Done(_, is_error) => {
                                is_error
                                    && self.policy.on_tool_error == OnFailure::Retry
                                    && same
                                    && left
                            }
                        };
                        assert!(is_allowed, "attempt {ticket:?} ({letter}) after {last:?}");
                    }
                }
                if let Some(key) = key
                    && !self.keys.contains_key(&key)
                {
                    // An entry holds one key: its first, unless that one's call did not run.
                    let is_void = self.last(place).is_some_and(|last| last.end == End::Void);
                    if is_void {
                        self.keys.retain(|_, held| *held != place);
                    }
                    if !self.keys.values().any(|held| *held == place) {
                        self.keys.insert(key, place);
                    }
                }
                let lease_until_ms = self.machine.borrow().uptime_ms + LEASE.as_millis() as u64;
                self.runs.push(Run {
                    process,
                    ticket,
                    arguments: arguments.to_owned(),
                    lease_until_ms,
                    end: End::Running,
                    has_run: false,
                    body: String::new(),
                });
            }
            AdmissionVerdict::Replay(replay) => {
                let entry = &replay.entry;
                let run = self
                    .runs
                    .iter()
                    .find(|run| run.ticket.fence == entry.fence)
                    .expect("a replay has an attempt");
                assert_eq!(run.arguments, arguments, "the result of other arguments");
                assert!(matches!(run.end, End::Done(..)), "{run:?}");
                assert_eq!(replay.outcome.body.as_deref(), Some(run.body.as_bytes()));
            }
            AdmissionVerdict::Join { ticket, .. } => {
                let last = self.last((ticket.branch, ticket.seq)).unwrap();
                assert_eq!(last.ticket, ticket);
                assert_eq!(last.end, End::Running);
                assert_eq!(last.arguments, arguments);
                assert_eq!(self.policy.on_in_flight, OnInFlight::Join);
            }
            AdmissionVerdict::Refuse(refused) => {
                let last = refused
                    .entry
                    .as_ref()
                    .and_then(|entry| self.last((entry.branch, entry.seq)));
                match refused.why {
                    Why::Table(Decision::Quarantine) => panic!("nothing is damaged: {refused:?}"),
                    Why::Table(Decision::InDoubt | Decision::Abandon) => {
                        let last = last.expect("a doubt has an entry");
                        // A stalled owner may be doubted only where it may be taken over.
                        let is_overdue = self.policy.delivery == Delivery::AtLeastOnce
                            && last.lease_until_ms <= self.machine.borrow().uptime_ms;
                        assert!(
                            last.end == End::Lost || (last.end == End::Running && is_overdue),
                            "no doubt about {last:?}"
                        );
                    }
                    Why::Table(Decision::InFlight) => {
                        assert_eq!(last.map(|run| run.end), Some(End::Running));
                    }
                    Why::Table(Decision::Diverge) => {
                        assert_ne!(last.map(|run| run.arguments.as_str()), Some(arguments));
                    }
                    Why::LimitReached => assert!(self.options.calls_max.is_some()),
                    Why::StaleGeneration | Why::Table(_) => panic!("unexpected: {refused:?}"),
                }
            }
        }
    }

    /// A call without a seq or a key is new: no equal call whose caller gave up is in doubt on the
    /// way.
    fn assert_nothing_guards(&self, arguments: &str, letter: char) {
        if self.policy.in_doubt_scope == InDoubtScope::Call
            || self.options.on_divergence == OnDivergence::Fork
        {
            return;
        }
        let places: BTreeSet<_> = self
            .runs
            .iter()
            .map(|run| (run.ticket.branch, run.ticket.seq))
            .collect();
        for place in places {
            let last = self.last(place).unwrap();
            let doubts = last.end == End::Lost && last.arguments == arguments;
            assert!(!doubts, "({letter}) runs beside {last:?}");
        }
    }

    fn pick(&self, number: u8, is_wanted: impl Fn(&Run) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.runs.len())
            .filter(|place| is_wanted(&self.runs[*place]))
            .collect();
        (!found.is_empty()).then(|| found[usize::from(number) % found.len()])
    }

    fn is_current(&self, run: &Run) -> bool {
        self.last((run.ticket.branch, run.ticket.seq))
            .is_some_and(|last| last.ticket.fence == run.ticket.fence)
    }

    /// Whether a settlement of this attempt may count.
    fn counts(&self, run: &Run, is_answer: bool) -> bool {
        let last = self
            .last((run.ticket.branch, run.ticket.seq))
            .expect("it has an attempt");
        let is_open = matches!(last.end, End::Running | End::Lost);
        is_open && (self.is_current(run) || (is_answer && !self.policy.fences_results))
    }

    fn settle(&mut self, number: u8, how: u8) {
        let open = |run: &Run| run.end == End::Running;
        let Some(place) = self.pick(number, open) else {
            return;
        };
        let run = self.runs[place].clone();
        let ticket = run.ticket;
        let how = how % 6;
        let is_answer = how < 3;
        let body = format!("{{\"fence\":{}}}", ticket.fence);
        let (settlement, end) = match how {
            0..=2 => {
                let (status, is_error) = [
                    (Status::Completed, false),
                    (Status::Completed, true),
                    (Status::Failed, false),
                ][usize::from(how)];
                let settlement = Settlement::Answered {
                    ticket,
                    signature: Signature([0; 32]),
                    first_wins: !self.policy.fences_results,
                    may_rerun: false,
                    answer: Answer {
                        is_error,
                        ..answer(status, &body)
                    },
                };
                (settlement, End::Done(status, is_error))
            }
            3 if !run.has_run => (
                Settlement::Void {
                    ticket,
                    detail: "{}".into(),
                },
                End::Void,
            ),
            _ => (
                Settlement::Lost {
                    ticket,
                    reason: Unanswered::UpstreamExited,
                    detail: "{}".into(),
                },
                End::Lost,
            ),
        };
        let counts = self.counts(&run, is_answer);
        let done = self.run(run.process, Op::Settle(settlement));
        match done {
            Done::Settled(_) => assert!(counts, "{run:?} is nobody's to settle"),
            Done::Stale => assert!(!counts, "{run:?} could have been settled"),
            other => panic!("{other:?}"),
        }
        if !counts {
            // What the model knows of its end is nobody's business any more, unless it is current.
            if !self.is_current(&run) {
                self.runs[place].end = End::Lost;
            }
            return;
        }
        let is_current = self.is_current(&run);
        let current = self.last((ticket.branch, ticket.seq)).unwrap().ticket.fence;
        if !is_current {
            self.runs[place].end = End::Lost;
        }
        let earlier_lost = self.runs.iter().any(|earlier| {
            (earlier.ticket.branch, earlier.ticket.seq) == (ticket.branch, ticket.seq)
                && earlier.ticket.attempt + 1 == ticket.attempt
                && matches!(earlier.end, End::Lost | End::Running)
        });
        let target = self
            .runs
            .iter_mut()
            .find(|run| run.ticket.fence == current)
            .unwrap();
        target.body = body;
        // An attempt that did not run leaves the doubt about the one before it.
        target.end = if end == End::Void && earlier_lost {
            End::Lost
        } else {
            end
        };
    }

    fn step(&mut self, (what, a, b, c): (u8, u8, u8, u8)) {
        let process = usize::from(a) % PROCESSES;
        match what % 16 {
            0..=2 => self.call(process, Some(u64::from(b % 4) + 1), None, c % 3),
            3..=5 => self.call(process, None, None, c % 3),
            6..=7 => self.call(process, None, Some(b % 2), c % 2),
            8 => self.call(process, Some(u64::from(b % 4) + 1), Some(c % 2), c % 3),
            9 => {
                if let Some(place) = self.pick(b, |run| run.end == End::Running) {
                    self.runs[place].has_run = true;
                }
            }
            10..=11 => self.settle(b, c),
            12 => {
                let is_done = |run: &Run| matches!(run.end, End::Done(..));
                if let Some(place) = self.pick(b, is_done) {
                    let run = self.runs[place].clone();
                    self.run(run.process, Op::Deliver(run.ticket));
                }
            }
            13 => {
                if let Some(place) = self.pick(b, |run| run.end == End::Running) {
                    let run = self.runs[place].clone();
                    let reason = [GaveUp::TimedOut, GaveUp::Cancelled][usize::from(c % 2)];
                    self.run(run.process, Op::GiveUp(run.ticket, reason));
                }
            }
            14 => self.kill(process),
            _ => self.machine.borrow_mut().uptime_ms += u64::from(b),
        }
    }

    /// A process is killed, and another one starts in its place.
    fn kill(&mut self, process: usize) {
        if let Some(session) = self.guards[process].session() {
            self.machine.borrow_mut().live.remove(&session);
            for run in &mut self.runs {
                if run.process == process && run.end == End::Running {
                    run.end = End::Lost;
                }
            }
        }
        let guard = self.process();
        self.guards[process] = guard;
    }

    /// At the end the journal and the model tell the same story.
    fn compare(&mut self) {
        let places: BTreeSet<_> = self
            .runs
            .iter()
            .map(|run| (run.ticket.branch, run.ticket.seq))
            .collect();
        let uid = self.journal.identity().uid;
        let mut tx = self
            .journal
            .begin(crate::journal::Durability::Process)
            .unwrap();
        for place in places {
            let stored = tx.entry(place.0, place.1).unwrap().expect("it was made");
            assert_eq!(stored.checksum, stored.entry.checksum(&uid));
            let last = self
                .runs
                .iter()
                .filter(|run| (run.ticket.branch, run.ticket.seq) == place)
                .max_by_key(|run| run.ticket.fence)
                .unwrap();
            let expected = match last.end {
                End::Running | End::Lost => Status::Pending,
                End::Void => Status::Voided,
                End::Done(status, _) => status,
            };
            assert_eq!(stored.entry.status, expected, "{last:?}");
            assert_eq!(stored.entry.fence, last.ticket.fence);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn no_attempt_starts_that_the_contract_does_not_allow(
        bits in any::<[bool; 12]>(),
        attempts_max in 1u32..4,
        steps in vec(any::<(u8, u8, u8, u8)>(), 1..40),
    ) {
        let mut model = Model::new(bits, attempts_max);
        for step in steps {
            model.step(step);
        }
        model.compare();
    }
}
