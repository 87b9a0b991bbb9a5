//! What is done to a journal while the power may go, and what must hold afterwards.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use checkpoint::guard::{
    AdmissionVerdict, Answer, Call, Done, Guard, Op, Options, Settlement, Surroundings, Ticket,
};
use checkpoint::journal::filesystem::{self, Filesystem};
use checkpoint::journal::place::{self, Companion, JournalPath};
use checkpoint::journal::sqlite::SqliteJournal;
use checkpoint::journal::{Journal as _, JournalError, Session, Transaction as _, schema};
use checkpoint::proxy::books;
use checkpoint::rules::entry::{Status, Unanswered};
use checkpoint::rules::ids::{BranchId, Fence, Micros, Seq, SessionId, WorkflowId};
use checkpoint::rules::policy::Policy;
use checkpoint::rules::signature::signature;

use crate::disk::Files;
use crate::vfs;

/// What was acknowledged, and at which operation: the outcome's body, or that it was reserved.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    Reserved,
    Completed(String),
    Failed(String),
    Voided,
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) struct Ack {
    /// Operations before it.
    pub(crate) at: usize,
    pub(crate) seq: u64,
    pub(crate) said: Said,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// A first open, one call.
    FirstOpen,
    /// Reservations in groups, half of them settled.
    Reserve,
    /// Calls one after the other with their deliveries.
    Settle,
    /// Errors, lost answers and voids.
    Fail,
    /// A verdict on what an earlier run left, and the next attempt.
    Reopen,
    /// Large results and a log that is moved into the journal again and again.
    Checkpoint,
    /// Deliveries, which are committed without a sync, between calls.
    Deliver,
}

impl Scenario {
    pub(crate) const ALL: [Self; 7] = [
        Self::FirstOpen,
        Self::Reserve,
        Self::Settle,
        Self::Fail,
        Self::Reopen,
        Self::Checkpoint,
        Self::Deliver,
    ];
}

/// How the journal is opened: as it ships, or in a way that must fail this test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Ships,
    /// As it ships, with `--durability deferred`.
    Deferred,
    Normal,
    Off,
}

/// Surroundings without locks: whoever asks, all other sessions are over.
#[derive(Default)]
pub(crate) struct Alone {
    mark: Rc<RefCell<u64>>,
}

impl Surroundings for Alone {
    fn take_session(&mut self, _id: SessionId) -> std::io::Result<bool> {
        Ok(true)
    }
    fn is_live(&mut self, _id: SessionId) -> std::io::Result<bool> {
        Ok(false)
    }
    fn is_attended(&mut self, _id: SessionId) -> std::io::Result<bool> {
        Ok(false)
    }
    fn has_room(&mut self) -> bool {
        true
    }
    fn raise_mark(&mut self, fence: Fence) {
        let mut mark = self.mark.borrow_mut();
        *mark = (*mark).max(fence.0);
    }
    fn random(&mut self) -> [u8; 16] {
        [9; 16]
    }
    fn is_upstream_alive(&mut self, _session: &Session, _is_live: bool) -> Option<bool> {
        None
    }
    fn uptime(&mut self) -> (String, u64) {
        (String::new(), 0)
    }
}

pub(crate) struct Run {
    guard: Guard<SqliteJournal, Alone>,
    pub(crate) acks: Vec<Ack>,
    now: i64,
}

fn local() -> Filesystem {
    // The folder is on a memory file system, which SQLite's log can be kept on.
    filesystem::kind(&std::env::temp_dir()).unwrap_or_else(|error| panic!("{error}"))
}

/// Makes an empty journal and returns its files.
pub(crate) fn fresh(folder: &Path) -> Files {
    let path = JournalPath::new(folder.join("run.db")).unwrap();
    let own = WorkflowId("own".into());
    let image = schema::empty_image([5; 16], &own, Micros(1)).unwrap();
    place::create(&path, &image, &local()).unwrap();
    let mut files = Files::new();
    files.insert(
        path.as_path().to_string_lossy().into_owned(),
        std::fs::read(path.as_path()).unwrap(),
    );
    files
}

impl Run {
    /// Opens the journal in the folder as a proxy does.
    pub(crate) fn open(folder: &Path, mode: Mode) -> Result<Self, String> {
        let path = JournalPath::new(folder.join("run.db")).unwrap();
        // The mark is no part of this; a journal without log and mark is waited for, as another
        // proxy may just be making it.
        std::fs::write(path.companion(Companion::Mark), "").map_err(|error| error.to_string())?;
        let (mut journal, _) =
            books::open_sqlite(&path, &local()).map_err(|error| error.to_string())?;
        let pragma = match mode {
            Mode::Ships | Mode::Deferred => None,
            Mode::Normal => Some("PRAGMA synchronous=NORMAL"),
            Mode::Off => Some("PRAGMA synchronous=OFF"),
        };
        if let Some(pragma) = pragma {
            journal.connection().execute_batch(pragma).unwrap();
        }
        journal
            .begin(checkpoint::journal::Durability::Power)
            .map_err(|e| e.to_string())?;
        let options = Options {
            defers: mode == Mode::Deferred,
            ..Options::default()
        };
        Ok(Self {
            guard: Guard::new(journal, Alone::default(), options, Session::default()),
            acks: Vec::new(),
            now: 1_000_000,
        })
    }

    fn run(&mut self, ops: &[Op]) -> Result<Vec<Done>, JournalError> {
        self.now += 1000;
        self.guard.run(ops, Micros(self.now))
    }

    fn ack(&mut self, seq: u64, said: Said) {
        self.acks.push(Ack {
            at: vfs::count(),
            seq,
            said,
        });
    }

    pub(crate) fn admit(&mut self, seqs: &[u64]) -> Result<Vec<Option<Ticket>>, JournalError> {
        let ops: Vec<Op> = seqs
            .iter()
            .map(|seq| Op::Admit(Box::new(call(*seq))))
            .collect();
        let done = self.run(&ops)?;
        let mut tickets = Vec::new();
        for (seq, done) in seqs.iter().zip(done) {
            let Done::Admitted(admission) = done else {
                panic!("an admission that is none")
            };
            if let AdmissionVerdict::Run(ticket, _) = admission.verdict {
                self.ack(*seq, Said::Reserved);
                tickets.push(Some(ticket));
            } else {
                tickets.push(None);
            }
        }
        Ok(tickets)
    }

    pub(crate) fn answer(&mut self, ticket: Ticket, said: &Said) -> Result<(), JournalError> {
        let answered = |status, body: &str| Settlement::Answered {
            ticket,
            first_wins: false,
            may_rerun: false,
            signature: signature("t", Some(b"{}"), false).unwrap(),
            answer: Answer {
                status,
                is_error: false,
                body: body.as_bytes().to_vec().into(),
                is_kept: true,
                round: None,
                task: None,
            },
        };
        let settlement = match said {
            Said::Completed(body) => answered(Status::Completed, body),
            Said::Failed(body) => answered(Status::Failed, body),
            Said::Voided => Settlement::Void {
                ticket,
                detail: "{}".into(),
            },
            Said::Unknown | Said::Reserved => Settlement::Lost {
                ticket,
                reason: Unanswered::UpstreamExited,
                detail: "{}".into(),
            },
        };
        let done = self.run(&[Op::Settle(settlement)])?;
        assert!(matches!(done[0], Done::Settled(_)), "{done:?}");
        self.ack(ticket.seq.0, said.clone());
        Ok(())
    }

    pub(crate) fn play(&mut self, scenario: Scenario) -> Result<(), JournalError> {
        let body = |seq: u64| format!("{{\"n\":{seq}}}");
        match scenario {
            Scenario::FirstOpen => {
                for ticket in self.admit(&[1])?.into_iter().flatten() {
                    self.answer(ticket, &Said::Completed(body(1)))?;
                }
            }
            Scenario::Reserve => {
                for group in [[1, 2, 3], [4, 5, 6], [9, 10, 12]] {
                    let tickets = self.admit(&group)?;
                    for ticket in tickets.into_iter().flatten().step_by(2) {
                        self.answer(ticket, &Said::Completed(body(ticket.seq.0)))?;
                    }
                }
            }
            Scenario::Settle => {
                for seq in 1..=5 {
                    for ticket in self.admit(&[seq])?.into_iter().flatten() {
                        self.answer(ticket, &Said::Completed(body(seq)))?;
                    }
                }
            }
            Scenario::Fail => {
                for (seq, said) in [
                    (1, Said::Failed("{\"code\":-1}".into())),
                    (2, Said::Unknown),
                    (3, Said::Voided),
                    (3, Said::Completed(body(3))),
                    (4, Said::Unknown),
                ] {
                    for ticket in self.admit(&[seq])?.into_iter().flatten() {
                        self.answer(ticket, &said)?;
                    }
                }
            }
            Scenario::Reopen => {
                for ticket in self.admit(&[1, 2])?.into_iter().flatten() {
                    self.answer(ticket, &Said::Voided)?;
                }
                for ticket in self.admit(&[1, 2])?.into_iter().flatten() {
                    self.answer(ticket, &Said::Completed(body(ticket.seq.0)))?;
                }
            }
            Scenario::Checkpoint => {
                for seq in 1..=4 {
                    for ticket in self.admit(&[seq])?.into_iter().flatten() {
                        let large = format!("{{\"n\":{seq},\"x\":\"{}\"}}", "y".repeat(20_000));
                        self.answer(ticket, &Said::Completed(large))?;
                    }
                    let journal = self.guard.journal();
                    if seq % 2 == 0 {
                        journal.move_log()?;
                    } else {
                        let db = journal.connection();
                        let _ = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()));
                    }
                }
            }
            Scenario::Deliver => {
                for seq in 1..=4 {
                    for ticket in self.admit(&[seq])?.into_iter().flatten() {
                        self.answer(ticket, &Said::Completed(body(seq)))?;
                        self.run(&[Op::Deliver(ticket)])?;
                    }
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn call(seq: u64) -> Call {
    let arguments = format!("{{\"n\":{seq}}}");
    Call {
        tool: "t".into(),
        signature: signature("t", Some(arguments.as_bytes()), false).unwrap(),
        arguments: Some(arguments.into_bytes().into()),
        workflow: None,
        seq: Some(Seq(seq)),
        key: None,
        call_id: None,
        round: None,
        protocol_version: None,
        tool_revision: None,
        traceparent: None,
        policy: Policy::default().into(),
        policy_record: None,
        joined: None,
        was_forwarded: false,
        gave_up: None,
    }
}

/// Whether the outcome that was acknowledged at this place may be lost: it is deferred, and nothing
/// that is synced was acknowledged since.
fn may_be_lost(acks: &[&Ack], seq: u64) -> bool {
    let told = acks.iter().rposition(|ack| ack.seq == seq);
    told.is_some_and(|told| {
        let mut later = acks[told..].iter();
        later.all(|ack| matches!(ack.said, Said::Completed(_) | Said::Failed(_)))
    })
}

/// Opens what a power cut left, and compares it with what had been acknowledged before, as far as
/// the mode promises it.
pub(crate) fn verify(folder: &Path, acks: &[&Ack], mode: Mode) -> Result<Run, String> {
    let mut run = Run::open(folder, Mode::Ships).map_err(|error| format!("refused: {error}"))?;
    let mut last: BTreeMap<u64, &Said> = BTreeMap::new();
    for ack in acks {
        last.insert(ack.seq, &ack.said);
    }
    let rows = {
        let journal = run.guard.journal();
        let broken: String = journal
            .connection()
            .query_row("PRAGMA quick_check", (), |row| row.get(0))
            .map_err(|error| format!("corrupt: {error}"))?;
        if broken != "ok" {
            return Err(format!("corrupt: {broken}"));
        }
        let uid = journal.identity().uid;
        let mut tx = journal
            .begin(checkpoint::journal::Durability::Power)
            .map_err(|error| error.to_string())?;
        let mut rows = Vec::new();
        for (seq, said) in &last {
            let stored = tx
                .entry(BranchId(1), Seq(*seq))
                .map_err(|error| error.to_string())?;
            let outcome = match &stored {
                Some(stored) => tx
                    .outcome(stored.entry.fence)
                    .map_err(|error| error.to_string())?,
                None => None,
            };
            rows.push((*seq, (*said).clone(), stored, outcome));
        }
        for (seq, _, stored, _) in &rows {
            if let Some(stored) = stored
                && stored.checksum != stored.entry.checksum(&uid)
            {
                return Err(format!("seq {seq}: its checksum does not hold"));
            }
        }
        rows
    };
    let mut voided = Vec::new();
    for (seq, said, stored, outcome) in rows {
        let Some(stored) = stored else {
            return Err(format!("seq {seq} is lost, acknowledged as {said:?}"));
        };
        let entry = stored.entry;
        if entry.status == Status::Voided {
            voided.push(seq);
        }
        let body = outcome
            .and_then(|outcome| outcome.body)
            .map(|body| String::from_utf8_lossy(&body).into_owned());
        // What was on its way when the power went may be there or not.
        let holds = match &said {
            Said::Reserved => true,
            Said::Completed(expected) => {
                entry.status == Status::Completed && body.as_ref() == Some(expected)
            }
            Said::Failed(expected) => {
                entry.status == Status::Failed && body.as_ref() == Some(expected)
            }
            Said::Voided => entry.status != Status::Pending || entry.attempt > 1,
            Said::Unknown => entry.status == Status::Pending && entry.unanswered.is_some(),
        };
        let is_doubt = entry.status == Status::Pending && entry.unanswered.is_none();
        let is_lost = mode == Mode::Deferred && is_doubt && may_be_lost(acks, seq);
        if !holds && !is_lost {
            return Err(format!("seq {seq} is {entry:?}, acknowledged as {said:?}"));
        }
    }
    // No acknowledged call runs again, and the journal goes on.
    for (seq, said) in last {
        let again = run
            .guard
            .run(&[Op::Admit(Box::new(call(seq)))], Micros(9_000_000))
            .map_err(|error| error.to_string())?;
        let Done::Admitted(admission) = &again[0] else {
            return Err("an admission that is none".into());
        };
        let runs = matches!(admission.verdict, AdmissionVerdict::Run(..));
        if runs && *said != Said::Voided && !voided.contains(&seq) {
            return Err(format!("seq {seq} runs again after {said:?}"));
        }
    }
    Ok(run)
}
