//! What the simulation found, each as a story of its own.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use checkpoint::guard::{Done, Guard, Op, Options as GuardOptions};
use checkpoint::journal::{
    Durability, Journal as _, JournalError, Session as Row, Transaction as _, Write,
};
use checkpoint::proxy::session::{Session, UpstreamEnd};
use checkpoint::rules::entry::{Entry, Status};
use checkpoint::rules::ids::Micros;
use checkpoint::rules::lifecycle;

use crate::plan::Plan;
use crate::promise::Promise;
use crate::store::{Alive, Around, Shared, SimJournal, Store};
use crate::world::World;

mod taken_over;

struct Proxy {
    session: Session,
    guard: Guard<SimJournal, Around>,
    now: Instant,
    told_bytes: u64,
}

fn store() -> Store {
    Rc::new(RefCell::new(Shared::new(World::memory_book())))
}

impl Proxy {
    fn new(store: &Store) -> Self {
        Self::with(store, |_| {})
    }

    fn with(store: &Store, change: impl FnOnce(&mut Plan)) -> Self {
        let mut plan = Plan::of(1);
        plan.call_timeout = None;
        plan.annotates = false;
        plan.refusals = checkpoint::proxy::session::RefusalShape::Error;
        change(&mut plan);
        let life = store.borrow().lives.len();
        store.borrow_mut().lives.push(Alive {
            proxy: true,
            group: true,
        });
        let around = Around {
            store: Rc::clone(store),
            life,
            drawn: 0,
        };
        let options = GuardOptions::default();
        Self {
            session: Session::new(plan.options()),
            guard: Guard::new(SimJournal::new(store), around, options, Row::default()),
            now: Instant::now(),
            told_bytes: 0,
        }
    }

    fn call(&mut self, id: u64, more: &str) {
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"t\",{more}}}}}\n"
        );
        self.session.client_line(line.into_bytes());
    }

    fn cancel(&mut self, id: u64) {
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{{\"requestId\":{id}}}}}\n"
        );
        self.session.client_line(line.into_bytes());
    }

    fn answer(&mut self, id: u64, text: &str) {
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[],\"x\":\"{text}\"}}}}\n"
        );
        self.session.upstream_line(line.into_bytes(), self.now);
    }

    fn run(&mut self, ops: &[Op]) -> Vec<Done> {
        let done = self.guard.run(ops, Micros(1_000_000)).unwrap();
        self.guard.journal().give_back();
        done
    }

    /// Lets the journal answer until nothing more is asked.
    fn journal(&mut self) {
        while let Some(ops) = self.session.take_ops(self.now) {
            let done = self.run(&ops);
            self.session.journal_done(done, self.now);
        }
    }

    /// Writes the next batch, of which the session has not been told yet.
    fn one_batch(&mut self) -> Vec<Done> {
        let ops = self.session.take_ops(self.now).unwrap();
        self.run(&ops)
    }

    /// Writes the next batch and tells the session, and leaves what comes of it.
    fn journal_once(&mut self) {
        let done = self.one_batch();
        self.session.journal_done(done, self.now);
    }

    /// The next batch is not written.
    fn journal_fails(&mut self, error: &JournalError) {
        let ops = self.session.take_ops(self.now).unwrap();
        self.session.journal_failed(ops, error, self.now);
    }

    fn later(&mut self, by: Duration) {
        self.now += by;
        self.session.tick(self.now);
    }

    fn sent(&mut self) -> String {
        let mut all = String::new();
        while let Some((line, key)) = self.session.to_upstream() {
            if let Some(key) = key {
                self.session.pushed_up(&key, 0..line.len() as u64);
            }
            all += &String::from_utf8(line).unwrap();
        }
        all
    }

    fn told(&mut self) -> String {
        let mut all = String::new();
        while let Some(outgoing) = self.session.to_client(self.now) {
            self.told_bytes += outgoing.line.len() as u64;
            for ticket in outgoing.tickets {
                self.session.pushed_down(ticket, self.told_bytes);
            }
            all += &String::from_utf8(outgoing.line).unwrap();
        }
        all
    }

    /// What was told has reached its client.
    fn written(&mut self) {
        self.session.wrote_down(self.told_bytes);
    }
}

fn entry(store: &Store) -> Entry {
    let shared = store.borrow();
    let memory = shared.memory().unwrap();
    memory.entries().next().unwrap().entry.clone()
}

/// An operator says of the only entry that it was not executed.
fn void(store: &Store) {
    let entry = entry(store);
    let mut shared = store.borrow_mut();
    let memory = shared.memory_mut().unwrap();
    let transition = lifecycle::void(&entry, Micros(5), None).unwrap();
    let checksum = transition.entry.checksum(&memory.identity().uid);
    let mut tx = memory.begin(Durability::Power).unwrap();
    tx.apply(&Write {
        transition,
        checksum,
        attempt: None,
        outcome: None,
        event: None,
    })
    .unwrap();
    tx.commit().unwrap();
}

const SEQ_1: &str = "\"arguments\":{\"a\":1},\"_meta\":{\"checkpoint_seq\":1}";
const SEQ_1_CHANGED: &str = "\"arguments\":{\"a\":2},\"_meta\":{\"checkpoint_seq\":1}";
const BARE: &str = "\"arguments\":{\"a\":1}";

#[test]
fn a_call_that_waits_is_asked_about_once_at_a_time_and_never_waits_for_itself() {
    let store = store();
    let (mut one, mut two) = (Proxy::new(&store), Proxy::new(&store));
    one.call(1, SEQ_1);
    one.journal();
    two.call(1, SEQ_1);
    two.journal();
    // Due twice before the journal has answered.
    two.later(Duration::from_secs(1));
    two.later(Duration::from_secs(1));
    one.session
        .upstream_ended(UpstreamEnd::default(), 0, one.now);
    one.journal();
    assert_eq!(entry(&store).status, Status::Voided);
    two.journal();
    assert!(two.sent().contains("tools/call"));
    two.answer(1, "done");
    two.journal();
    assert!(two.told().contains("done"));
    assert_eq!(entry(&store).status, Status::Completed);
}

#[test]
fn what_answers_a_cancelled_call_does_not_answer_the_next_one_of_its_id() {
    let store = store();
    let (mut one, mut two) = (Proxy::new(&store), Proxy::new(&store));
    one.call(1, SEQ_1);
    one.journal();
    two.call(7, SEQ_1);
    two.journal();
    one.sent();
    one.answer(1, "first");
    one.journal();
    // The journal has been asked, and its answer is on its way.
    two.later(Duration::from_secs(1));
    let done = two.one_batch();
    two.cancel(7);
    two.call(
        7,
        "\"arguments\":{\"b\":2},\"_meta\":{\"checkpoint_seq\":2}",
    );
    two.session.journal_done(done, two.now);
    assert_eq!(two.told(), "");
    two.journal();
    assert!(two.sent().contains("{\"b\":2}"));
    two.answer(7, "second");
    two.journal();
    assert!(two.told().contains("second"));
}

#[test]
fn a_call_that_was_sent_and_fenced_is_not_sent_again_nor_called_not_started() {
    let store = store();
    let (mut one, mut two) = (Proxy::new(&store), Proxy::new(&store));
    one.call(1, SEQ_1);
    one.journal();
    assert!(one.sent().contains("tools/call"));
    void(&store);
    one.answer(1, "late");
    one.journal();
    assert_eq!(one.sent(), "");
    let told = one.told();
    assert!(told.contains("\"outcome_unknown\""), "{told}");
    assert!(told.contains("\"side_effect\":\"unknown\""), "{told}");
    assert_eq!(entry(&store).status, Status::Voided);

    // The same where another call has taken the place in the meantime.
    one.call(2, SEQ_1);
    one.journal();
    one.sent();
    void(&store);
    two.call(1, SEQ_1_CHANGED);
    two.journal();
    two.sent();
    two.answer(1, "other");
    two.journal();
    one.answer(2, "late");
    one.journal();
    let told = one.told();
    assert!(told.contains("\"side_effect\":\"unknown\""), "{told}");
}

#[test]
fn a_sent_call_whose_journal_fails_afterwards_is_not_called_not_started() {
    let store = store();
    let mut one = Proxy::new(&store);
    one.call(1, SEQ_1);
    one.journal();
    one.sent();
    void(&store);
    one.answer(1, "late");
    one.journal_once();
    one.journal_fails(&JournalError::Failed("a fault".into()));
    let told = one.told();
    assert!(told.contains("\"side_effect\":\"unknown\""), "{told}");
}

#[test]
fn what_a_bad_disk_made_of_a_row_gets_no_new_checksum() {
    let store = store();
    let (mut one, mut two) = (Proxy::new(&store), Proxy::new(&store));
    one.call(1, SEQ_1);
    one.journal();
    one.sent();
    let place = (entry(&store).branch, entry(&store).seq);
    let mut spoil = |entry: &mut Entry| entry.signature.0[0] ^= 1;
    let mut shared = store.borrow_mut();
    let memory = shared.memory_mut().unwrap();
    memory.spoil_entry(place.0, place.1, Some(&mut spoil));
    drop(shared);
    one.cancel(1);
    one.answer(1, "done");
    one.journal();
    for call in [SEQ_1, SEQ_1_CHANGED] {
        two.call(1, call);
        two.journal();
        let told = two.told();
        assert!(told.contains("\"quarantined\""), "{told}");
    }
}

#[test]
fn an_equal_call_in_the_batch_of_a_cancelled_one_joins_it() {
    let store = store();
    let mut one = Proxy::new(&store);
    one.call(1, BARE);
    one.cancel(1);
    one.call(2, BARE);
    one.journal();
    let sent = one.sent();
    assert_eq!(sent.matches("tools/call").count(), 1, "{sent}");
    assert!(sent.contains("notifications/cancelled"), "{sent}");
}

#[test]
fn an_equal_call_after_a_cancellation_joins_the_one_that_was_being_reserved() {
    let store = store();
    let mut one = Proxy::new(&store);
    one.call(1, BARE);
    let done = one.one_batch();
    one.cancel(1);
    one.call(2, BARE);
    one.session.journal_done(done, one.now);
    one.journal();
    let sent = one.sent();
    assert_eq!(sent.matches("tools/call").count(), 1, "{sent}");
    one.answer(1, "done");
    one.journal();
    assert!(one.told().contains("\"id\":2"));
}

#[test]
fn who_waits_for_a_call_waits_no_longer_than_the_limit_once_its_caller_gave_up() {
    let store = store();
    let timeout = |plan: &mut Plan| plan.call_timeout = Some(Duration::from_secs(1));
    let mut one = Proxy::with(&store, timeout);
    one.call(1, SEQ_1);
    one.journal();
    one.sent();
    one.call(2, SEQ_1);
    one.journal();
    for _ in 0..80 {
        one.later(Duration::from_millis(500));
        one.journal();
    }
    let told = one.told();
    assert!(told.contains("\"id\":1,\"error\""), "{told}");
    assert!(told.contains("\"in_flight\""), "{told}");
}

#[test]
fn a_call_that_was_cancelled_while_its_lease_was_looked_at_is_known_to_have_been_given_up() {
    let store = store();
    let mut one = Proxy::new(&store);
    one.call(1, BARE);
    let done = one.one_batch();
    // So late that its fence is looked at again before it goes out.
    one.now += Duration::from_secs(60);
    one.cancel(1);
    one.session.journal_done(done, one.now);
    one.call(2, BARE);
    one.journal();
    let sent = one.sent();
    assert_eq!(sent.matches("tools/call").count(), 1, "{sent}");
}

#[test]
fn nobody_waits_for_a_call_that_could_not_be_confirmed() {
    let store = store();
    let (mut one, mut two) = (Proxy::new(&store), Proxy::new(&store));
    one.call(1, SEQ_1);
    let done = one.one_batch();
    one.now += Duration::from_secs(60);
    one.session.journal_done(done, one.now);
    one.journal_fails(&JournalError::Full);
    assert!(one.told().contains("\"not_started\""));
    one.journal();
    two.call(1, SEQ_1);
    two.journal();
    assert!(two.sent().contains("tools/call"));
}

#[test]
fn a_void_that_could_not_be_written_is_written_later() {
    let store = store();
    let (mut one, mut two) = (Proxy::new(&store), Proxy::new(&store));
    one.call(1, SEQ_1);
    one.journal();
    one.session
        .upstream_ended(UpstreamEnd::default(), 0, one.now);
    one.journal_fails(&JournalError::Full);
    one.later(Duration::from_secs(1));
    one.journal();
    two.call(1, SEQ_1);
    two.journal();
    assert!(two.sent().contains("tools/call"));
}

/// Two calls that are answered in one array.
fn answered_in_an_array(store: &Store, answers: &str) -> Proxy {
    let mut one = Proxy::new(store);
    for (id, seq) in [(1, 1), (2, 2)] {
        one.call(id, &format!("\"_meta\":{{\"checkpoint_seq\":{seq}}}"));
    }
    one.journal();
    one.sent();
    let line = format!("[{answers}]\n").into_bytes();
    one.session.upstream_line(line, one.now);
    assert_eq!(one.told(), "", "nothing of it is durable yet");
    one
}

#[test]
fn each_answer_in_an_array_is_marked_where_it_could_not_be_written() {
    let store = store();
    let answers = "{\"id\":1,\"result\":{}}, {\"id\":2,\"result\":{}}";
    let mut one = answered_in_an_array(&store, answers);
    one.journal_fails(&JournalError::Full);
    let told = one.told();
    assert_eq!(told.lines().count(), 1, "{told}");
    for seq in [1, 2] {
        let mark = format!("{{\"seq\":{seq},\"journaled\":false}}");
        assert!(told.contains(&mark), "{told}");
    }
}

#[test]
fn what_tells_no_outcome_is_told_apart_from_its_array() {
    let store = store();
    let mut one = Proxy::new(&store);
    one.call(1, SEQ_1);
    one.call(2, BARE);
    one.journal();
    one.sent();
    one.session.client_ended(one.now);
    one.session.input_closed();
    let line = b"[{\"id\":1,\"error\":{\"code\":-32000}},{\"id\":2,\"result\":{}}]\n";
    one.session.upstream_line(line.to_vec(), one.now);
    assert_eq!(one.told(), "");
    one.journal();
    let told = one.told();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "[{\"id\":2,\"result\":{}}]");
    assert!(lines[1].contains("\"outcome_unknown\""), "{told}");
    assert_eq!(lines.len(), 2, "{told}");
}

#[test]
fn an_array_goes_out_without_what_somebody_else_settled() {
    let store = store();
    let answers = "{\"id\":1,\"result\":{\"x\":\"late\"}},{\"id\":2,\"result\":{}}";
    let mut one = answered_in_an_array(&store, answers);
    // The operator was quicker with the first of the two.
    void(&store);
    one.journal();
    let told = one.told();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "[{\"id\":2,\"result\":{}}]");
    assert!(lines[1].contains("\"outcome_unknown\""), "{told}");
    assert!(!told.contains("late"), "{told}");
}

#[test]
fn an_array_that_nobody_reads_any_more_delivers_nothing() {
    let store = store();
    let answers = "{\"id\":1,\"result\":{}},{\"id\":2,\"result\":{}}";
    let mut one = answered_in_an_array(&store, answers);
    one.session.client_gone(one.now);
    one.journal();
    assert_eq!(one.told(), "");
    assert_eq!(entry(&store).status, Status::Completed);
    assert_eq!(entry(&store).delivered_at, None);
}

#[test]
fn an_outcome_that_was_found_for_a_cancelled_call_answers_the_next_one() {
    let store = store();
    let mut one = Proxy::new(&store);
    one.call(1, BARE);
    one.journal();
    one.sent();
    one.cancel(1);
    one.answer(1, "done");
    one.journal();
    // It is found for the second, which is cancelled before the journal has answered.
    one.call(2, BARE);
    let done = one.one_batch();
    one.cancel(2);
    one.session.journal_done(done, one.now);
    one.call(3, BARE);
    one.journal();
    let told = one.told();
    assert!(told.contains("\"id\":3") && told.contains("done"), "{told}");
    assert!(!one.sent().contains("tools/call"), "it ran again");
}

#[test]
fn an_end_waits_for_a_request_for_a_while_and_for_a_subscription_not_at_all() {
    for (method, waits) in [("ping", true), ("subscriptions/listen", false)] {
        let store = store();
        let mut one = Proxy::new(&store);
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\"}}\n");
        one.session.client_line(line.into_bytes());
        one.sent();
        one.session.client_ended(one.now);
        assert_eq!(one.session.wants_input_closed(one.now), !waits, "{method}");
        one.later(Duration::from_secs(1));
        assert!(one.session.wants_input_closed(one.now), "{method}");
    }
}

const AT_LEAST_ONCE: Promise = Promise {
    at_least_once: true,
    ..Promise::USUAL
};

#[test]
fn a_call_that_was_taken_over_is_not_called_not_started() {
    let store = store();
    let policy = |plan: &mut Plan| plan.promise = AT_LEAST_ONCE;
    let (mut one, mut two) = (Proxy::with(&store, policy), Proxy::with(&store, policy));
    one.call(1, SEQ_1);
    one.journal();
    assert!(one.sent().contains("tools/call"));
    // It is silent for longer than it may be.
    store.borrow_mut().uptime += Duration::from_secs(60);
    two.call(1, SEQ_1);
    two.journal();
    assert!(two.sent().contains("tools/call"));
    one.later(Duration::from_secs(60));
    one.journal_once();
    // It asks for the new owner's outcome, and the journal fails.
    one.journal_fails(&JournalError::ReadOnly("a fault".into()));
    let told = one.told();
    assert!(told.contains("\"side_effect\":\"unknown\""), "{told}");
}

#[test]
fn the_cancellation_of_a_call_that_the_journal_refused_is_not_forwarded() {
    let store = store();
    let mut one = Proxy::new(&store);
    one.call(1, SEQ_1);
    one.journal_fails(&JournalError::Full);
    one.cancel(1);
    assert!(one.told().contains("\"not_started\""));
    assert_eq!(one.sent(), "");
}

#[test]
fn who_joined_a_call_whose_outcome_could_not_be_written_is_told() {
    let store = store();
    let (mut one, mut two) = (Proxy::new(&store), Proxy::new(&store));
    one.call(1, SEQ_1);
    one.journal();
    one.sent();
    one.call(2, SEQ_1);
    one.journal();
    two.call(1, SEQ_1);
    two.journal();
    one.answer(1, "done");
    one.journal_fails(&JournalError::Full);
    assert!(one.told().contains("\"journaled\":false"));
    for proxy in [&mut one, &mut two] {
        for _ in 0..4 {
            proxy.later(Duration::from_secs(1));
            proxy.journal();
        }
        let told = proxy.told();
        assert!(told.contains("\"in_doubt\""), "{told}");
    }
    assert_eq!(entry(&store).status, Status::Pending);
}

#[test]
fn a_task_s_end_is_kept_no_longer_than_its_policy_says() {
    let store = store();
    let policy = |plan: &mut Plan| {
        plan.promise.stores_results = false;
    };
    let mut one = Proxy::with(&store, policy);
    one.call(1, SEQ_1);
    one.journal();
    one.sent();
    let handle = "\"taskId\":\"k1\",\"createdAt\":\"t1\",\"status\":";
    let line = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"task\":{{{handle}\"working\"}}}}}}\n"
    );
    one.session.upstream_line(line.into_bytes(), one.now);
    one.journal();
    let line = format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tasks\",\"params\":{{{handle}\"completed\",\"result\":{{\"content\":[\"secret\"]}}}}}}\n"
    );
    one.session.upstream_line(line.into_bytes(), one.now);
    one.journal();
    assert_eq!(entry(&store).status, Status::Completed);
    let fence = entry(&store).fence;
    let body = |store: &Store| {
        let shared = store.borrow();
        let end = shared.memory().unwrap().task_end(fence).unwrap();
        end.body.clone()
    };
    assert!(body(&store).is_none());
    one.told();
    one.call(2, SEQ_1);
    one.journal();
    let told = one.told();
    assert!(told.contains("\"result_expired\""), "{told}");
}

#[test]
fn a_cancelled_call_that_is_reserved_anew_is_known_to_have_been_given_up() {
    let store = store();
    let mut one = Proxy::new(&store);
    one.call(1, BARE);
    let done = one.one_batch();
    one.now += Duration::from_secs(60);
    one.session.journal_done(done, one.now);
    one.cancel(1);
    void(&store);
    // Its fence is gone, so that it is asked about anew.
    one.journal_once();
    let ops = one.session.take_ops(one.now).unwrap();
    one.run(&ops);
    assert_eq!(entry(&store).status, Status::Pending);
    assert!(entry(&store).gave_up.is_some());
}
