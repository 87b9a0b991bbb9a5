//! Buries settled entries: drops their payloads and keeps their tombstones, as
//! [`crate::rules::retention`] plans it.
//!
//! Invariants: no entry is ever deleted, so what ran once is still known to have run. An entry's
//! checksum and its payload's digests are checked in the transaction that buries it; what does not
//! hold is left as evidence. A batch is one transaction and is bounded in entries and bytes, so
//! that a proxy beside it waits for no longer than its own patience.
//!
//! Must not: decide which entries are buried, or know how a file gives its space back.

use std::collections::BTreeMap;

use super::stale::{self, Stale};
use crate::journal::{
    Applied, Durability, Event, Journal, JournalError, Stored, Transaction, Write,
};
use crate::json;
use crate::rules::entry::outcome_digest;
use crate::rules::ids::{BranchId, Fence, Micros, Seq};
use crate::rules::lifecycle;
use crate::rules::retention::{Fate, Reason, Retention, fate};

/// Entries looked at in one transaction.
const BATCH_ENTRIES_MAX: usize = 256;

/// Bytes of payload after which a transaction ends early.
const BATCH_BYTES_MAX: u64 = 8 << 20;

/// Attempts and rounds of one entry that are looked at; one with more is left as it is.
const ATTEMPTS_MAX: usize = 10_000;

/// Members of an event's detail that may hold what a payload held.
const EVIDENCE: [&str; 7] = [
    "stderr_tail",
    "body",
    "result",
    "error",
    "output",
    stale::MEMBERS[0],
    stale::MEMBERS[1],
];

/// What a sweep has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Entries that were buried.
    pub buried: u64,
    /// Bytes of payload that were dropped.
    pub dropped_bytes: u64,
    /// Entries that were left as they are, by reason.
    pub kept: BTreeMap<Reason, u64>,
    /// What was buried, by tool: entries and bytes.
    pub tools: BTreeMap<String, (u64, u64)>,
}

impl Swept {
    /// Returns how many entries were looked at.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.buried + self.kept.values().sum::<u64>()
    }

    fn add(&mut self, other: &Self) {
        self.buried += other.buried;
        self.dropped_bytes += other.dropped_bytes;
        for (reason, count) in &other.kept {
            *self.kept.entry(*reason).or_default() += count;
        }
        for (tool, (entries, bytes)) in &other.tools {
            let sum = self.tools.entry(tool.clone()).or_default();
            *sum = (sum.0 + entries, sum.1 + bytes);
        }
    }
}

/// A sweep through a journal, one batch at a time.
#[derive(Debug)]
pub struct Sweep {
    retention: Retention,
    now: Micros,
    by: String,
    is_dry: bool,
    after: Option<(BranchId, Seq)>,
    swept: Swept,
}

impl Sweep {
    /// Begins a sweep; nothing is read yet. `by` names who asked for it, for the events.
    #[must_use]
    pub fn new(retention: Retention, now: Micros, by: String) -> Self {
        Self {
            retention,
            now,
            by,
            is_dry: false,
            after: None,
            swept: Swept::default(),
        }
    }

    /// Makes it a rehearsal: all is looked at and counted, and nothing is kept.
    #[must_use]
    pub fn dry(mut self) -> Self {
        self.is_dry = true;
        self
    }

    /// Returns what has been done so far.
    #[must_use]
    pub fn swept(&self) -> &Swept {
        &self.swept
    }

    /// Buries the next batch; returns whether there is more. It is durable on return.
    ///
    /// # Errors
    ///
    /// As the journal's. Nothing of the batch was kept then (unless [`JournalError::is_final`]),
    /// and it may be tried again.
    pub fn step(&mut self, journal: &mut impl Journal) -> Result<bool, JournalError> {
        let uid = journal.identity().uid;
        let mut tx = journal.begin(Durability::Power)?;
        let places = tx.places_after(self.after, BATCH_ENTRIES_MAX)?;
        let mut batch = Swept::default();
        let mut last = None;
        for (branch, seq) in places {
            let outcome = self.one(&mut tx, &uid, branch, seq)?;
            last = Some((branch, seq));
            match outcome {
                Ok((tool, bytes)) => {
                    batch.buried += 1;
                    batch.dropped_bytes += bytes;
                    let sum = batch.tools.entry(tool).or_default();
                    *sum = (sum.0 + 1, sum.1 + bytes);
                }
                Err(reason) => *batch.kept.entry(reason).or_default() += 1,
            }
            if batch.dropped_bytes >= BATCH_BYTES_MAX {
                break;
            }
        }
        if batch.buried > 0 && !self.is_dry {
            tx.commit()?;
        }
        // Only now has anything happened.
        self.swept.add(&batch);
        let Some(last) = last else {
            return Ok(false);
        };
        self.after = Some(last);
        Ok(true)
    }

    /// Buries one entry; returns its tool and the bytes that were dropped, or why it was left.
    fn one(
        &self,
        tx: &mut impl Transaction,
        uid: &[u8; 16],
        branch: BranchId,
        seq: Seq,
    ) -> Result<Result<(String, u64), Reason>, JournalError> {
        let stored = match tx.entry(branch, seq) {
            Ok(Some(stored)) => stored,
            Ok(None) | Err(JournalError::Unreadable(_)) => return Ok(Err(Reason::Quarantined)),
            Err(error) => return Err(error),
        };
        // The cheap look first: what is open or young needs no second one.
        if let Fate::Keep(reason) = fate(&stored.entry, true, u64::MAX, self.retention, self.now) {
            return Ok(Err(reason));
        }
        let Some((fences, bytes, holds)) = look(tx, &stored, uid)? else {
            return Ok(Err(Reason::Quarantined));
        };
        match fate(&stored.entry, holds, bytes, self.retention, self.now) {
            Fate::Keep(reason) => Ok(Err(reason)),
            Fate::Bury if self.is_dry => Ok(Ok((stored.entry.tool, bytes))),
            Fate::Bury => self.bury(tx, &stored, uid, &fences, bytes),
        }
    }

    fn bury(
        &self,
        tx: &mut impl Transaction,
        stored: &Stored,
        uid: &[u8; 16],
        fences: &[Fence],
        bytes: u64,
    ) -> Result<Result<(String, u64), Reason>, JournalError> {
        let entry = &stored.entry;
        let Ok(transition) = lifecycle::bury(entry) else {
            return Ok(Err(Reason::Open));
        };
        let write = Write {
            checksum: transition.entry.checksum(uid),
            transition,
            attempt: None,
            outcome: None,
            event: Some(Event {
                kind: "purged".into(),
                at: self.now,
                entry: Some((entry.branch, entry.seq)),
                fence: Some(entry.fence),
                session: None,
                letter: None,
                detail: Some(format!(
                    "{{\"bytes\":{bytes},\"by\":{}}}",
                    json::quote(&self.by)
                )),
                merge_key: None,
            }),
        };
        if tx.apply(&write)? == Applied::Lost {
            // Nobody else writes in this transaction, so the row is not what was read.
            return Ok(Err(Reason::Quarantined));
        }
        for fence in fences {
            tx.drop_payload(*fence)?;
        }
        for row in tx.events(entry.branch, entry.seq)? {
            if let Some(detail) = row.event.detail.as_deref().and_then(without_evidence) {
                tx.put_detail(row.id, &detail)?;
            }
        }
        Ok(Ok((entry.tool.clone(), bytes)))
    }
}

/// Returns an entry's attempts, the size of their payloads (stale answers among them, which may
/// come after it was buried), and whether what they hold is what was
/// recorded. `None` if its chain can't be followed.
fn look(
    tx: &mut impl Transaction,
    stored: &Stored,
    uid: &[u8; 16],
) -> Result<Option<(Vec<Fence>, u64, bool)>, JournalError> {
    let entry = &stored.entry;
    let (mut fences, mut bytes, mut holds) = beside_the_chain(tx, stored)?;
    holds &= stored.checksum == entry.checksum(uid);
    let mut next = Some(entry.fence);
    while let Some(fence) = next {
        let attempt = match tx.attempt(fence) {
            Ok(Some(attempt)) if fences.len() < ATTEMPTS_MAX => attempt,
            Ok(_) | Err(JournalError::Unreadable(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        holds &= (attempt.branch, attempt.seq) == (entry.branch, entry.seq);
        next = attempt.previous.filter(|previous| *previous < fence);
        fences.push(fence);
    }
    fences.sort_unstable();
    fences.dedup();
    for fence in &fences {
        bytes += tx.payload_bytes(*fence)?;
        let (outcome, end) = match (tx.outcome(*fence), tx.task_end(*fence)) {
            (Ok(outcome), Ok(end)) => (outcome, end),
            (Err(JournalError::Unreadable(_)), _) | (_, Err(JournalError::Unreadable(_))) => {
                return Ok(None);
            }
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        if *fence == entry.fence {
            let current = end.as_ref().or(outcome.as_ref());
            let digest = current.map(|outcome| outcome.digest);
            // One that was reopened has the outcome that it had, and a row without one.
            holds &= entry.digest.is_none() || digest == entry.digest;
        }
        holds &= [outcome, end].iter().flatten().all(|outcome| {
            outcome
                .body
                .as_ref()
                .is_none_or(|body| outcome_digest(body) == outcome.digest)
        });
    }
    Ok(Some((fences, bytes, holds)))
}

/// Returns the rounds that were voided, which have left the chain and still hold their arguments,
/// the bytes of stale answers, and whether those are what was recorded.
fn beside_the_chain(
    tx: &mut impl Transaction,
    stored: &Stored,
) -> Result<(Vec<Fence>, u64, bool), JournalError> {
    let entry = &stored.entry;
    let mut fences = Vec::new();
    let mut bytes = 0;
    let mut holds = true;
    for row in tx.events(entry.branch, entry.seq)? {
        if let Some(stale) = Stale::of(&row.event) {
            bytes += stale
                .answer
                .as_ref()
                .map_or(0, |answer| answer.len() as u64);
            holds &= stale.holds();
        }
        let Some(fence) = row.event.fence else {
            continue;
        };
        let is_its = match tx.attempt(fence) {
            Ok(attempt) => attempt
                .is_some_and(|attempt| (attempt.branch, attempt.seq) == (entry.branch, entry.seq)),
            Err(JournalError::Unreadable(_)) => false,
            Err(error) => return Err(error),
        };
        if is_its {
            fences.push(fence);
        }
    }
    fences.sort_unstable();
    fences.dedup();
    Ok((fences, bytes, holds))
}

/// Returns an event's detail without what may hold a payload; `None` if it holds nothing of it.
fn without_evidence(detail: &str) -> Option<String> {
    let mut bytes = detail.as_bytes().to_vec();
    let mut is_other = false;
    for name in EVIDENCE {
        let holds = json::member(&bytes, name).is_some_and(|value| value != b"null");
        if holds && let Some(without) = json::replace(&bytes, &[name], b"null") {
            bytes = without;
            is_other = true;
        }
    }
    is_other.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::fixture::{
        QUESTION, World, answer, call, calls_of_every_sort, deliver, findings, reserve, settle,
        state, void,
    };
    use super::*;
    use crate::guard::Round;
    use crate::rules::entry::Status;

    const HOUR: Micros = Micros(3_600_000_000);

    fn sweep(world: &World, older_than: Duration, undelivered_too: bool) -> Swept {
        let retention = Retention {
            older_than,
            undelivered_too,
            future_too: false,
        };
        let mut sweep = Sweep::new(retention, HOUR, "tester".into());
        let mut journal = world.journal();
        while sweep.step(&mut journal).unwrap() {}
        sweep.swept().clone()
    }

    #[test]
    fn only_what_is_settled_is_buried_and_all_of_it_still_holds() {
        let world = World::new();
        drop(calls_of_every_sort(&world));
        let swept = sweep(&world, Duration::from_secs(1), false);
        // 1, 2, 4, 6 and 12; 3, 5, 7 and 11 are open, 10 is undelivered.
        assert_eq!((swept.buried, swept.looked_at()), (5, 10));
        assert!(swept.dropped_bytes > 0);
        let kept: Vec<_> = swept.kept.iter().map(|(reason, n)| (*reason, *n)).collect();
        assert_eq!(kept, [(Reason::Open, 4), (Reason::Undelivered, 1)]);
        assert_eq!(findings(&world).len(), 0);
        let db = world.sql();
        let left: i64 = db
            .query_row(
                "SELECT count(*) FROM entries e JOIN attempts a USING (branch_id, seq) \
                 LEFT JOIN outcomes o ON o.fence = a.fence LEFT JOIN task_ends t ON t.fence = a.fence \
                 WHERE e.seq IN (1, 2, 4, 6, 12) AND (a.arguments IS NOT NULL \
                 OR o.body IS NOT NULL OR t.body IS NOT NULL)",
                (),
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(left, 0);
        drop(db);
        // A second sweep finds nothing more to do.
        let again = sweep(&world, Duration::from_secs(1), false);
        assert_eq!((again.buried, again.kept[&Reason::Buried]), (0, 5));
        let rest = sweep(&world, Duration::from_secs(1), true);
        assert_eq!(rest.buried, 1);
        assert_eq!(findings(&world).len(), 0);
    }

    /// Counts the payloads that the journal still has.
    fn payloads(world: &World) -> i64 {
        let sql = "SELECT (SELECT count(arguments) FROM attempts) \
                   + (SELECT count(body) FROM outcomes) \
                   + (SELECT count(*) FROM events WHERE json_extract(detail, '$.answer') NOTNULL)";
        world.sql().query_row(sql, (), |row| row.get(0)).unwrap()
    }

    #[test]
    fn every_round_is_emptied_also_one_that_was_voided() {
        let world = World::new();
        let mut guard = world.guard();
        let first = reserve(&mut guard, call(Some(1), "{\"n\":1}"), 1_000);
        let question = answer(Status::InputRequired, QUESTION);
        settle(&mut guard, first, question, 1_001);
        let mut second = call(Some(1), "{\"n\":1}");
        second.round = Some(Round {
            state: Some(state()),
            inputs: "name".into(),
        });
        let voided = reserve(&mut guard, second.clone(), 1_002);
        void(&mut guard, voided, 1_003);
        let last = reserve(&mut guard, second, 1_004);
        settle(
            &mut guard,
            last,
            answer(Status::Completed, "{\"r\":1}"),
            1_005,
        );
        deliver(&mut guard, last, 1_006);
        drop(guard);
        assert_eq!(payloads(&world), 5);
        let swept = sweep(&world, Duration::from_secs(1), false);
        // The same arguments three times, the question and the result.
        let bytes = 4 * 7 + QUESTION.len() as u64;
        assert_eq!((swept.buried, swept.dropped_bytes), (1, bytes));
        assert_eq!(swept.tools["charge"], (1, bytes));
        assert_eq!(payloads(&world), 0);
        assert_eq!(findings(&world).len(), 0);
    }

    /// Makes a call with an outcome, and two further answers that came too late.
    fn answered_three_times() -> World {
        let world = World::new();
        let mut guard = world.guard();
        let one = reserve(&mut guard, call(Some(1), "{\"n\":1}"), 1_000);
        settle(
            &mut guard,
            one,
            answer(Status::Completed, "{\"r\":1}"),
            1_001,
        );
        deliver(&mut guard, one, 1_002);
        for body in ["{\"code\":2}", "{\"code\":3}"] {
            settle(&mut guard, one, answer(Status::Failed, body), 1_003);
        }
        drop(guard);
        world
    }

    #[test]
    fn stale_answers_are_counted_and_emptied() {
        let world = answered_three_times();
        assert_eq!(payloads(&world), 4);
        let swept = sweep(&world, Duration::from_secs(1), false);
        assert_eq!((swept.buried, swept.dropped_bytes), (1, 7 + 7 + 10 + 10));
        assert_eq!(payloads(&world), 0);
        assert_eq!(findings(&world).len(), 0);
    }

    #[test]
    fn an_entry_with_a_damaged_stale_answer_stays_as_it_is() {
        let world = answered_three_times();
        world
            .sql()
            .execute_batch(
                "UPDATE events SET detail = json_set(detail, '$.answer', '{\"code\":9}')
                 WHERE id = (SELECT min(id) FROM events WHERE kind = 'stale_result')",
            )
            .unwrap();
        let swept = sweep(&world, Duration::from_secs(1), false);
        assert_eq!((swept.buried, swept.kept[&Reason::Quarantined]), (0, 1));
        assert_eq!(payloads(&world), 4);
    }

    #[test]
    fn a_rehearsal_counts_the_same_and_keeps_nothing() {
        let world = World::new();
        drop(calls_of_every_sort(&world));
        let retention = Retention {
            older_than: Duration::from_secs(1),
            undelivered_too: false,
            future_too: false,
        };
        let mut journal = world.journal();
        let mut dry = Sweep::new(retention, HOUR, "tester".into()).dry();
        while dry.step(&mut journal).unwrap() {}
        drop(journal);
        let swept = sweep(&world, Duration::from_secs(1), false);
        assert_eq!(*dry.swept(), swept);
        assert_eq!(swept.tools["charge"].0, 5);
    }

    #[test]
    fn what_is_young_or_damaged_stays_as_it_is() {
        let world = World::new();
        drop(calls_of_every_sort(&world));
        let young = sweep(&world, Duration::from_secs(7_200), true);
        assert_eq!((young.buried, young.kept[&Reason::Young]), (0, 6));
        let db = world.sql();
        db.execute_batch(
            "UPDATE outcomes SET body = x'00' WHERE fence = 1;
             UPDATE entries SET tool = 'other' WHERE seq = 2;
             UPDATE entries SET status = 'DONE' WHERE seq = 4;",
        )
        .unwrap();
        drop(db);
        let swept = sweep(&world, Duration::from_secs(1), false);
        assert_eq!((swept.buried, swept.kept[&Reason::Quarantined]), (2, 3));
        let db = world.sql();
        let body: Option<Vec<u8>> = db
            .query_row("SELECT body FROM outcomes WHERE fence = 1", (), |row| {
                row.get(0)
            })
            .unwrap();
        assert_eq!(body, Some(vec![0]));
    }

    #[test]
    fn evidence_that_may_hold_a_payload_goes_with_it() {
        let told = r#"{"reason":"x","stderr_tail":"secret","bytes":4}"#;
        let left = without_evidence(told).unwrap();
        assert_eq!(left, r#"{"reason":"x","stderr_tail":null,"bytes":4}"#);
        assert_eq!(without_evidence(&left), None);
        assert_eq!(without_evidence("{}"), None);
        assert_eq!(without_evidence("no json"), None);
    }
}
