//! What the contract says of a call, stated a second time and without looking at how the guard
//! decides: sections 5 (seq, key, window, cursor, guard), 7 (the decisions, forks) and 9 (delivery,
//! attempts, retries). Random policies, processes and schedules are run through the guard, and each
//! call must get what is expected here. [`every_bug_of_keys_and_lines_is_caught`] proves that a
//! difference would show. `contract` holds what is expected; here are the world and the steps.
//!
//! `schedules` beside it asks less of each step (no attempt may start that is not allowed) and
//! settles more wildly: late, twice, by owners that have lost their fence.

mod contract;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::fixture::{answer, call};
use super::schedules::{Around, Machine, MemoryGuard, nobody};
use super::{AdmissionVerdict, Call, CallKey, Done, Guard, Op, Options, Settlement, Ticket, Why};
use crate::journal::Session;
use crate::journal::memory::MemoryJournal;
use crate::rules::decide::Decision;
use crate::rules::entry::{GaveUp, Status, Unanswered};
use crate::rules::ids::{BranchId, Micros, SessionId, Window, WorkflowId};
use crate::rules::policy::{
    Delivery, InDoubtScope, OnDivergence, OnFailure, OnInFlight, Pointer, Policy,
};
use crate::rules::signature::Signature;
use crate::seeded::{self, Bug};

const PROCESSES: usize = 3;
const LEASE_MS: u64 = 100;
const REDELIVER_US: u64 = 500;

/// How the last attempt of an entry stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// No answer will come.
    Lost,
    Completed,
    ToolError,
    Failed,
    Void,
}

/// What is known of one entry by somebody who has watched everything.
#[derive(Clone, Debug)]
struct Row {
    branch: BranchId,
    seq: u64,
    ticket: Ticket,
    what: What,
    key: Option<HeldBy>,
    session: SessionId,
    state: State,
    /// The attempt before this one was lost, so that voiding this one leaves that doubt.
    was_lost: bool,
    has_caller: bool,
    is_delivered: bool,
    lease_until_ms: u64,
    /// When each attempt was reserved and when its outcome came, in steps, which no clock moves.
    /// One without an outcome ends where the next one begins.
    flights: Vec<(u64, Option<u64>)>,
    completed_at: Option<i64>,
    body: String,
}

/// What is called: the tool and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct What {
    tool: u8,
    a: u8,
    b: u8,
}

/// A key within its window: the window's name and id, and the text.
type HeldBy = (&'static str, String, u8);

/// A call as the client makes it.
#[derive(Clone, Copy, Debug)]
struct Asked {
    workflow: usize,
    what: What,
    seq: Option<u64>,
    key: Option<u8>,
}

/// What the contract has a call get. Rows are named by their place in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    New { at: Option<(BranchId, u64)> },
    Again(usize),
    Fork { seq: u64 },
    Replay(usize),
    Join(usize),
    Refuse(Decision, usize),
}

/// How far `--resume` has come in one workflow.
#[derive(Clone, Default)]
struct Walk {
    passed: BTreeSet<u64>,
    /// What is made here or before by an explicit seq is behind the cursor.
    at: u64,
    is_over: bool,
}

struct Process {
    guard: MemoryGuard,
    options: Options,
    walks: [Walk; 2],
}

/// What differs from case to case.
#[derive(Clone, Debug)]
struct Setting {
    policy: Policy,
    /// Of the two tools.
    windows: [Option<Window>; 2],
    resumes: bool,
    forks: bool,
    has_run_id: bool,
}

struct Model {
    setting: Setting,
    journal: MemoryJournal,
    machine: Rc<RefCell<Machine>>,
    processes: Vec<Process>,
    rows: Vec<Row>,
    /// Each branch's parent and where it left it.
    parents: BTreeMap<BranchId, Option<(BranchId, u64)>>,
    active: [Option<BranchId>; 2],
    now: i64,
    steps: u64,
}

fn name(workflow: usize) -> WorkflowId {
    WorkflowId(["one", "two"][workflow].into())
}

impl Model {
    fn new(setting: Setting) -> Self {
        let mut model = Self {
            setting,
            journal: MemoryJournal::new([9; 16], WorkflowId("own".into())),
            machine: Rc::default(),
            processes: Vec::new(),
            rows: Vec::new(),
            parents: BTreeMap::new(),
            active: [None; 2],
            now: 1_000_000,
            steps: 0,
        };
        for number in 0..PROCESSES {
            let process = model.process(number);
            model.processes.push(process);
        }
        model
    }

    /// Processes differ in their thread and, if the case has one, in whether they have the run id.
    fn process(&self, number: usize) -> Process {
        let options = Options {
            resumes: self.setting.resumes,
            on_divergence: if self.setting.forks {
                OnDivergence::Fork
            } else {
                OnDivergence::Strict
            },
            run_id: (self.setting.has_run_id && number != 2).then(|| "run".to_owned()),
            thread_id: Some(format!("thread-{}", number % 2)),
            ..Options::default()
        };
        let around = Around(Rc::clone(&self.machine));
        Process {
            guard: Guard::new(nobody(), around, options.clone(), Session::default()),
            options,
            walks: Default::default(),
        }
    }

    fn run(&mut self, process: usize, op: Op) -> Done {
        self.now += 1;
        self.steps += 1;
        let guard = &mut self.processes[process].guard;
        std::mem::swap(&mut self.journal, guard.journal());
        let done = guard.run(&[op], Micros(self.now));
        std::mem::swap(&mut self.journal, guard.journal());
        done.unwrap().remove(0)
    }

    fn ask(&mut self, process: usize, asked: Asked) -> Result<(), TestCaseError> {
        let expected = self.expected(process, asked);
        let What { tool, a, b } = asked.what;
        let arguments = format!("{{\"a\":{a},\"b\":{b}}}");
        let mut made: Call = call(asked.seq, &arguments);
        made.tool = format!("tool-{tool}");
        made.signature = Signature([tool * 64 + a * 8 + b; 32]);
        made.workflow = Some(name(asked.workflow));
        made.key = asked.key.map(|key| CallKey {
            text: format!("k{key}"),
            is_derived: false,
        });
        made.policy = Policy {
            window: self.setting.windows[usize::from(tool)],
            ..self.setting.policy.clone()
        }
        .into();
        let done = self.run(process, Op::Admit(Box::new(made)));
        let Done::Admitted(admission) = done else {
            return Err(TestCaseError::fail(format!("no admission: {done:?}")));
        };
        let met = expected
            .iter()
            .find(|expected| self.is_met(asked, **expected, &admission.verdict));
        let Some(met) = met.copied() else {
            let rows: String = self.rows.iter().map(|row| format!("\n  {row:?}")).collect();
            return Err(TestCaseError::fail(format!(
                "process {process}, {asked:?}\nexpected {expected:?}\n     got {:?}\nof{rows}",
                admission.verdict
            )));
        };
        self.happened(process, asked, met, &admission.verdict);
        Ok(())
    }

    fn is_met(&self, asked: Asked, expected: Expected, verdict: &AdmissionVerdict) -> bool {
        let row = |place: usize| &self.rows[place];
        match (expected, verdict) {
            (Expected::New { at }, AdmissionVerdict::Run(ticket, _)) => {
                let found = (ticket.branch, ticket.seq.0);
                let highest = self.line(asked.workflow).keys().max().copied();
                let is_place = match (at, asked.seq) {
                    (Some(at), _) => at == found,
                    // The workflow's first call names its branch.
                    (None, Some(seq)) => seq == ticket.seq.0,
                    (None, None) => {
                        ticket.seq.0 == highest.unwrap_or(0) + 1
                            && self.active[asked.workflow].is_none_or(|here| here == ticket.branch)
                    }
                };
                is_place && ticket.attempt == 1
            }
            (Expected::Again(place), AdmissionVerdict::Run(ticket, _)) => {
                let before = row(place).ticket;
                (ticket.branch, ticket.seq) == (before.branch, before.seq)
                    && ticket.attempt == before.attempt + 1
                    && ticket.fence > before.fence
            }
            (Expected::Fork { seq }, AdmissionVerdict::Run(ticket, _)) => {
                !self.parents.contains_key(&ticket.branch)
                    && ticket.seq.0 == seq
                    && ticket.attempt == 1
            }
            (Expected::Replay(place), AdmissionVerdict::Replay(replay)) => {
                Ticket::of(&replay.entry) == row(place).ticket
                    && replay.outcome.body.as_deref() == Some(row(place).body.as_bytes())
            }
            (Expected::Join(place), AdmissionVerdict::Join { ticket, .. }) => {
                *ticket == row(place).ticket
            }
            (Expected::Refuse(decision, place), AdmissionVerdict::Refuse(refused)) => {
                let entry = refused.entry.as_ref().map(Ticket::of);
                refused.why == Why::Table(decision) && entry == Some(row(place).ticket)
            }
            _ => false,
        }
    }

    fn happened(
        &mut self,
        process: usize,
        asked: Asked,
        met: Expected,
        verdict: &AdmissionVerdict,
    ) {
        let session = self.processes[process].guard.session();
        let given = self.held_by(process, asked);
        let is_free = self.holder(given.as_ref()).is_none();
        let lease_until_ms = self.machine.borrow().uptime_ms + LEASE_MS;
        match (met, verdict) {
            (Expected::New { .. } | Expected::Fork { .. }, AdmissionVerdict::Run(ticket, _)) => {
                if let Expected::Fork { seq } = met {
                    let parent = self.active[asked.workflow].expect("it has entries");
                    self.parents.insert(ticket.branch, Some((parent, seq)));
                    self.active[asked.workflow] = Some(ticket.branch);
                } else {
                    self.parents.entry(ticket.branch).or_insert(None);
                    self.active[asked.workflow].get_or_insert(ticket.branch);
                }
                self.rows.push(Row {
                    branch: ticket.branch,
                    seq: ticket.seq.0,
                    ticket: *ticket,
                    what: asked.what,
                    key: given,
                    session: session.expect("it has reserved"),
                    state: State::Running,
                    was_lost: false,
                    has_caller: true,
                    is_delivered: false,
                    lease_until_ms,
                    flights: vec![(self.steps, None)],
                    completed_at: None,
                    body: String::new(),
                });
                self.pass(process, asked.workflow, self.rows.len() - 1);
            }
            (Expected::Again(place), AdmissionVerdict::Run(ticket, _)) => {
                let row = &mut self.rows[place];
                // An entry keeps its key, unless the call that it was made for did not run.
                let given = given.filter(|_| is_free);
                row.key = if row.state == State::Void {
                    given.or(row.key.take())
                } else {
                    row.key.take().or(given)
                };
                row.was_lost = matches!(row.state, State::Running | State::Lost);
                row.state = State::Running;
                row.ticket = *ticket;
                if let Some((_, end)) = row.flights.last_mut() {
                    end.get_or_insert(self.steps);
                }
                row.flights.push((self.steps, None));
                row.what = asked.what;
                row.session = session.expect("it has reserved");
                row.has_caller = true;
                row.is_delivered = false;
                row.completed_at = None;
                row.lease_until_ms = lease_until_ms;
                self.pass(process, asked.workflow, place);
            }
            (Expected::Replay(place) | Expected::Join(place), _) => {
                self.pass(process, asked.workflow, place);
                let ticket = self.rows[place].ticket;
                if matches!(met, Expected::Replay(_)) && asked.seq.is_none() {
                    // Its answer is written, so that an undelivered outcome is delivered once.
                    self.run(process, Op::Deliver(ticket));
                    self.rows[place].is_delivered = true;
                }
            }
            _ => {}
        }
    }

    /// A call that was admitted passes its entry, if that is on the line that is walked.
    fn pass(&mut self, process: usize, workflow: usize, place: usize) {
        let seq = self.rows[place].seq;
        if self.line(workflow).get(&seq) == Some(&place) {
            self.processes[process].walks[workflow].passed.insert(seq);
        }
    }

    fn pick(&self, number: u8, is_wanted: impl Fn(&Self, &Row) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.rows.len())
            .filter(|place| is_wanted(self, &self.rows[*place]))
            .collect();
        (!found.is_empty()).then(|| found[usize::from(number) % found.len()])
    }

    /// The process whose session owns the row, if it lives.
    fn owner(&self, row: &Row) -> Option<usize> {
        let owns = |process: &Process| process.guard.session() == Some(row.session);
        self.processes.iter().position(owns)
    }

    fn settle(&mut self, number: u8, how: u8) {
        let runs =
            |model: &Self, row: &Row| row.state == State::Running && model.owner(row).is_some();
        let Some(place) = self.pick(number, runs) else {
            return;
        };
        let row = self.rows[place].clone();
        let process = self.owner(&row).expect("it lives");
        let ticket = row.ticket;
        let body = format!("{{\"fence\":{}}}", ticket.fence);
        let (state, status) = match how % 8 {
            0..=2 => (State::Completed, Status::Completed),
            3 => (State::ToolError, Status::Completed),
            4 => (State::Failed, Status::Failed),
            5 => (State::Lost, Status::Pending),
            6 => (State::Void, Status::Voided),
            _ => {
                self.run(process, Op::GiveUp(ticket, GaveUp::TimedOut));
                self.rows[place].has_caller = false;
                return;
            }
        };
        let settlement = match state {
            State::Lost => Settlement::Lost {
                ticket,
                reason: Unanswered::UpstreamExited,
                detail: "{}".into(),
            },
            State::Void => Settlement::Void {
                ticket,
                detail: "{}".into(),
            },
            _ => Settlement::Answered {
                ticket,
                signature: Signature([0; 32]),
                first_wins: false,
                may_rerun: false,
                answer: super::Answer {
                    is_error: state == State::ToolError,
                    ..answer(status, &body)
                },
            },
        };
        let done = self.run(process, Op::Settle(settlement));
        assert!(matches!(done, Done::Settled(_)), "{done:?} of {row:?}");
        let (at, step) = (self.now, self.steps);
        let row = &mut self.rows[place];
        row.state = if state == State::Void && row.was_lost {
            State::Lost
        } else {
            state
        };
        if state != State::Lost && row.state != State::Lost {
            row.completed_at = Some(at);
        }
        if !matches!(state, State::Lost | State::Void)
            && let Some((_, end)) = row.flights.last_mut()
        {
            *end = Some(step);
        }
        row.body = body;
        // Most answers reach the caller that waits for them.
        let is_answer = !matches!(state, State::Lost | State::Void);
        if is_answer && row.has_caller && !number.is_multiple_of(4) {
            row.is_delivered = true;
            self.run(process, Op::Deliver(ticket));
        }
    }

    fn kill(&mut self, process: usize) {
        if let Some(session) = self.processes[process].guard.session() {
            self.machine.borrow_mut().live.remove(&session);
        }
        self.processes[process] = self.process(process);
    }

    fn step(&mut self, (what, a, b, c): (u8, u8, u8, u8)) -> Result<(), TestCaseError> {
        let process = usize::from(a) % PROCESSES;
        let asked = Asked {
            workflow: usize::from(a / 4 % 3 == 0),
            what: What {
                tool: u8::from(c % 5 == 0),
                a: c / 8 % 2,
                b: c / 16 % 2,
            },
            seq: None,
            key: None,
        };
        match what % 16 {
            0..=2 => {
                let seq = Some(u64::from(b % 5) + 1);
                return self.ask(process, Asked { seq, ..asked });
            }
            3..=5 => return self.ask(process, asked),
            6..=7 => {
                let key = Some(b % 2);
                return self.ask(process, Asked { key, ..asked });
            }
            8 => {
                let (seq, key) = (Some(u64::from(b % 5) + 1), Some(b / 8 % 2));
                return self.ask(process, Asked { seq, key, ..asked });
            }
            9..=12 => self.settle(b, c),
            13 => self.kill(process),
            14 => self.machine.borrow_mut().uptime_ms += u64::from(b),
            // The wall clock, which may be stepped back.
            _ => self.now += i64::from(b) * 4 - 256,
        }
        Ok(())
    }
}

prop_compose! {
    fn settings()(
        bits in any::<[bool; 10]>(),
        attempts_max in 1u32..4,
        windows in any::<[u8; 2]>(),
    ) -> Setting {
        let on = |retries: bool| if retries { OnFailure::Retry } else { OnFailure::Replay };
        let window = |number: u8| match number % 4 {
            0 => None,
            1 => Some(Window::Run),
            2 => Some(Window::Thread),
            _ => Some(Window::Journal),
        };
        let policy = Policy {
            delivery: if bits[0] { Delivery::AtLeastOnce } else { Delivery::AtMostOnce },
            on_failure: on(bits[1]),
            on_tool_error: on(bits[2]),
            on_in_flight: if bits[3] { OnInFlight::Refuse } else { OnInFlight::Join },
            in_doubt_scope: if bits[4] { InDoubtScope::Call } else { InDoubtScope::Signature },
            redeliver_within: Duration::from_micros(if bits[5] { 0 } else { REDELIVER_US }),
            key_covers: bits[6].then(|| vec![Pointer::parse("/a").unwrap()]),
            lease_ttl: Duration::from_millis(LEASE_MS),
            heartbeat: Duration::from_millis(LEASE_MS / 4),
            attempts_max,
            ..Policy::default()
        };
        Setting {
            policy,
            windows: windows.map(window),
            resumes: bits[7],
            forks: bits[8],
            has_run_id: bits[9],
        }
    }
}

/// Runs so many random cases; returns the first that did not go as the contract has it, made
/// small in so many steps.
fn search(cases: u32, shrinks: u32) -> Result<(), String> {
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: shrinks,
        ..Config::with_cases(cases)
    };
    let steps = vec(any::<(u8, u8, u8, u8)>(), 1..50);
    let mut runner = TestRunner::new(config);
    let result = runner.run(&(settings(), steps), |(setting, steps)| {
        let mut model = Model::new(setting);
        steps.into_iter().try_for_each(|step| model.step(step))
    });
    result.map_err(|error| error.to_string())
}

#[test]
fn every_call_gets_what_the_contract_says() {
    if let Err(error) = search(3000, 10_000) {
        panic!("{error}");
    }
}

#[test]
fn every_bug_of_keys_and_lines_is_caught() {
    let missed: Vec<&Bug> = Bug::OF_KEYS_AND_LINES
        .iter()
        .chain(&[Bug::AttemptsNotCounted])
        .filter(|bug| {
            seeded::choose(Some(**bug));
            let result = search(3000, 0);
            seeded::choose(None);
            result.is_ok()
        })
        .collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
