//! What the tests of this room share: a journal in a file, with calls made through the guard.

use std::collections::BTreeSet;

use rusqlite::Connection;

use super::verify::verify;
use super::{
    Admission, AdmissionVerdict, Answer, Call, Done, Guard, Op, Options, Settlement, Surroundings,
    Ticket,
};
use crate::journal::place::JournalPath;
use crate::journal::sqlite::SqliteJournal;
use crate::journal::{RoundKey, Session, TaskKey, filesystem, place, schema};
use crate::rules::entry::{GaveUp, Status, outcome_digest};
use crate::rules::ids::{Fence, Micros, Seq, SessionId, WorkflowId};
use crate::rules::policy::Policy;
use crate::rules::signature::{Signature, signature};

/// A folder with a journal.
pub(crate) struct World {
    _folder: tempfile::TempDir,
    pub(crate) path: JournalPath,
}

/// Surroundings in which only the guard's own session lives, unless others are named.
#[derive(Default)]
pub(crate) struct Alone {
    pub(crate) live: BTreeSet<SessionId>,
    /// Their proxies are gone, and their upstreams are not.
    pub(crate) orphans: BTreeSet<SessionId>,
    drawn: u8,
}

impl Surroundings for Alone {
    fn take_session(&mut self, id: SessionId) -> std::io::Result<bool> {
        Ok(self.live.insert(id))
    }

    fn is_live(&mut self, id: SessionId) -> std::io::Result<bool> {
        Ok(self.live.contains(&id) || self.orphans.contains(&id))
    }

    fn is_attended(&mut self, id: SessionId) -> std::io::Result<bool> {
        Ok(self.live.contains(&id))
    }

    fn has_room(&mut self) -> bool {
        true
    }

    fn raise_mark(&mut self, _fence: Fence) {}

    fn random(&mut self) -> [u8; 16] {
        self.drawn += 1;
        [self.drawn; 16]
    }

    fn is_upstream_alive(&mut self, _session: &Session, _is_live: bool) -> Option<bool> {
        None
    }

    fn uptime(&mut self) -> (String, u64) {
        ("boot".into(), 0)
    }
}

/// What an upstream asks.
pub(crate) const QUESTION: &str = r#"{"inputRequests":{"name":{}},"requestState":"s"}"#;

/// Returns what stands for its state.
pub(crate) fn state() -> [u8; 32] {
    outcome_digest(b"s")
}

pub(crate) type TestGuard = Guard<SqliteJournal, Alone>;

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = JournalPath::new(folder.path().join("run.db")).unwrap();
        let own = WorkflowId("own".into());
        let image = schema::empty_image([9; 16], &own, Micros(1)).unwrap();
        let filesystem = filesystem::kind(path.folder()).unwrap();
        place::create(&path, &image, &filesystem).unwrap();
        Self {
            _folder: folder,
            path,
        }
    }

    /// Opens the file as an operator with `sqlite3` would.
    pub(crate) fn sql(&self) -> Connection {
        Connection::open(self.path.as_path()).unwrap()
    }

    pub(crate) fn journal(&self) -> SqliteJournal {
        let path = self.path.as_path().to_owned();
        let connect = move || Ok(Connection::open(&path).unwrap());
        SqliteJournal::open(Box::new(connect), Box::new(|| Ok(()))).unwrap()
    }

    /// Stands a new session's guard before the journal.
    pub(crate) fn guard(&self) -> TestGuard {
        self.guard_with(Options::default())
    }

    /// Stands a new session's guard before the journal, with these options.
    pub(crate) fn guard_with(&self, options: Options) -> TestGuard {
        let row = Session {
            host: "h".into(),
            ..Session::default()
        };
        Guard::new(self.journal(), Alone::default(), options, row)
    }
}

/// Returns a call of `charge`.
pub(crate) fn call(seq: Option<u64>, arguments: &str) -> Call {
    Call {
        tool: "charge".into(),
        signature: signature("charge", Some(arguments.as_bytes()), false).unwrap(),
        arguments: Some(arguments.as_bytes().to_vec().into()),
        workflow: None,
        seq: seq.map(Seq),
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

/// Admits a call that runs.
pub(crate) fn reserve(guard: &mut TestGuard, call: Call, at: i64) -> Ticket {
    match admit(guard, call, at) {
        AdmissionVerdict::Run(ticket, _) => ticket,
        other => panic!("it does not run: {other:?}"),
    }
}

pub(crate) fn admit(guard: &mut TestGuard, call: Call, at: i64) -> AdmissionVerdict {
    admission(guard, call, at).verdict
}

pub(crate) fn admission(guard: &mut TestGuard, call: Call, at: i64) -> Admission {
    let done = guard.run(&[Op::Admit(Box::new(call))], Micros(at)).unwrap();
    match done.into_iter().next() {
        Some(Done::Admitted(admission)) => *admission,
        other => panic!("no admission: {other:?}"),
    }
}

pub(crate) fn settle(guard: &mut TestGuard, ticket: Ticket, answer: Answer, at: i64) {
    let settlement = Settlement::Answered {
        first_wins: false,
        may_rerun: false,
        ticket,
        signature: Signature([0; 32]),
        answer,
    };
    guard.run(&[Op::Settle(settlement)], Micros(at)).unwrap();
}

pub(crate) fn deliver(guard: &mut TestGuard, ticket: Ticket, at: i64) {
    guard.run(&[Op::Deliver(ticket)], Micros(at)).unwrap();
}

pub(crate) fn answer(status: Status, body: &str) -> Answer {
    Answer {
        status,
        is_error: false,
        body: body.as_bytes().to_vec().into(),
        is_kept: true,
        round: (status == Status::InputRequired).then(|| RoundKey {
            state: Some(state()),
            inputs: "name".into(),
        }),
        task: (status == Status::Accepted).then(|| TaskKey {
            id: "t-1".into(),
            created_at: "then".into(),
        }),
    }
}

/// Makes calls of every sort, one after the other, from time 1,000 on; returns the guard.
///
/// Seqs: 1 COMPLETED and delivered, 2 FAILED and delivered, 3 PENDING with its caller gone,
/// 4 VOIDED and then COMPLETED, 5 INPUT_REQUIRED, 6 a task that ended, 7 ACCEPTED, 10 COMPLETED
/// and undelivered (8 and 9 are a gap), 11 a later round that was voided, 12 VOIDED.
pub(crate) fn calls_of_every_sort(world: &World) -> TestGuard {
    let mut guard = world.guard();
    let now = 1_000;
    let one = reserve(&mut guard, call(Some(1), "{\"n\":1}"), now);
    settle(
        &mut guard,
        one,
        answer(Status::Completed, "{\"r\":1}"),
        now + 1,
    );
    deliver(&mut guard, one, now + 2);
    let two = reserve(&mut guard, call(Some(2), "{\"n\":2}"), now);
    settle(
        &mut guard,
        two,
        answer(Status::Failed, "{\"code\":2}"),
        now + 1,
    );
    deliver(&mut guard, two, now + 2);
    let three = reserve(&mut guard, call(Some(3), "{\"n\":3}"), now);
    guard
        .run(&[Op::GiveUp(three, GaveUp::Gone)], Micros(now + 1))
        .unwrap();
    let four = reserve(&mut guard, call(Some(4), "{\"n\":4}"), now);
    void(&mut guard, four, now + 1);
    let four = reserve(&mut guard, call(Some(4), "{\"n\":44}"), now + 2);
    settle(
        &mut guard,
        four,
        answer(Status::Completed, "{\"r\":4}"),
        now + 3,
    );
    deliver(&mut guard, four, now + 4);
    let five = reserve(&mut guard, call(Some(5), "{\"n\":5}"), now);
    settle(
        &mut guard,
        five,
        answer(Status::InputRequired, QUESTION),
        now + 1,
    );
    deliver(&mut guard, five, now + 2);
    for seq in [6, 7] {
        let arguments = format!("{{\"n\":{seq}}}");
        let ticket = reserve(&mut guard, call(Some(seq), &arguments), now);
        let mut accepted = answer(Status::Accepted, "{\"task\":{}}");
        accepted.task = Some(TaskKey {
            id: format!("t-{seq}"),
            created_at: "then".into(),
        });
        settle(&mut guard, ticket, accepted, now + 1);
        deliver(&mut guard, ticket, now + 2);
    }
    let end = Op::TaskEnd {
        task_id: "t-6".into(),
        created_at: Some("then".into()),
        answer: answer(Status::Completed, "{\"r\":6}"),
    };
    guard.run(&[end], Micros(now + 3)).unwrap();
    let ten = reserve(&mut guard, call(Some(10), "{\"n\":10}"), now);
    settle(
        &mut guard,
        ten,
        answer(Status::Completed, "{\"r\":10}"),
        now + 1,
    );
    let eleven = reserve(&mut guard, call(Some(11), "{\"n\":11}"), now);
    settle(
        &mut guard,
        eleven,
        answer(Status::InputRequired, QUESTION),
        now + 1,
    );
    let mut second = call(Some(11), "{\"n\":11}");
    second.round = Some(super::Round {
        state: Some(state()),
        inputs: "name".into(),
    });
    let round = reserve(&mut guard, second, now + 2);
    void(&mut guard, round, now + 3);
    let twelve = reserve(&mut guard, call(Some(12), "{\"n\":12}"), now);
    void(&mut guard, twelve, now + 1);
    guard
}

pub(crate) fn void(guard: &mut TestGuard, ticket: Ticket, at: i64) {
    let settlement = Settlement::Void {
        ticket,
        detail: "{}".into(),
    };
    guard.run(&[Op::Settle(settlement)], Micros(at)).unwrap();
}

/// What `verify` finds wrong in a world's journal.
pub(crate) fn findings(world: &World) -> Vec<String> {
    let mut found = Vec::new();
    verify(
        &world.path,
        &mut |finding| found.push(finding.what),
        &mut |_| {},
    )
    .unwrap();
    found
}
