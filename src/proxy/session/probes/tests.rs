use std::sync::Arc;

use super::*;
use crate::guard::fixture::{TestGuard, World, call, reserve};
use crate::guard::{Op, Settlement};
use crate::mcp::call::CallIdFrom;
use crate::proxy::session::{Options, RefusalShape, UpstreamEnd};
use crate::rules::entry::Unanswered;
use crate::rules::ids::Micros;
use crate::rules::policy::{PolicySet, ThreadId};

const POLICY: &str = r#"[tools.charge]
    reconcile = { tool = "find", completed_when = "/found", timeout = "10s" }"#;

const META: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#;

/// A session before a journal with one doubt, at seq 1, that a run before it has left.
struct Run {
    session: Session,
    guard: TestGuard,
    now: Instant,
    _world: World,
}

impl Run {
    fn new() -> Self {
        let world = World::new();
        let mut before = world.guard();
        let ticket = reserve(&mut before, call(Some(1), "{\"n\":1}"), 1);
        let lost = Settlement::Lost {
            ticket,
            reason: Unanswered::UpstreamExited,
            detail: "{}".into(),
        };
        before.run(&[Op::Settle(lost)], Micros(2)).unwrap();
        drop(before);
        let options = Options {
            is_journaled: true,
            journal_shown: "run.db".into(),
            trusts_annotations: false,
            identity: None,
            refusals: RefusalShape::Error,
            annotates: false,
            call_timeout: None,
            drain_timeout: Duration::from_secs(5),
            call_id_from: CallIdFrom::Auto,
            ends_on_doubt: false,
            policies: Arc::new(PolicySet::parse(POLICY, ThreadId::Unasked).unwrap()),
            own_id_start: "own-".into(),
        };
        Self {
            session: Session::new(options),
            guard: world.guard(),
            now: Instant::now(),
            _world: world,
        }
    }

    fn client(&mut self, line: &str) {
        self.session.client_line(format!("{line}\n").into_bytes());
        self.journal();
    }

    fn call(&mut self, id: u64, meta: &str) {
        self.client(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"charge","_meta":{{"checkpoint_seq":1{meta}}}}}}}"#
        ));
    }

    fn stateless_call(&mut self, id: u64) {
        self.call(id, &format!(",{META}"));
    }

    fn upstream(&mut self, line: &str) {
        self.session
            .upstream_line(format!("{line}\n").into_bytes(), self.now);
        self.journal();
    }

    fn later(&mut self, by: Duration) {
        self.now += by;
        self.session.tick(self.now);
        self.journal();
    }

    fn journal(&mut self) {
        while let Some(ops) = self.session.take_ops(self.now) {
            let done = self.guard.run(&ops, Micros(1_000)).unwrap();
            self.session.journal_done(done, self.now);
        }
    }

    /// Takes the one probe that there is, and its id and `_meta`.
    #[track_caller]
    fn probe(&mut self) -> (Probe, String, Option<String>) {
        let mut probes = self.session.take_probes();
        assert_eq!(probes.len(), 1);
        let probe = probes.remove(0);
        let Asks::Tool { id, meta, .. } = probe.asks.clone() else {
            panic!("{probe:?}");
        };
        (probe, id, meta.map(|raw| String::from_utf8(raw).unwrap()))
    }

    /// Hands the probe's question in, as a prober does.
    fn ask(&mut self, probe: &Probe, id: &str) {
        let question = ToolQuestion {
            place: probe.place,
            id: id.into(),
            line: b"the question\n".to_vec(),
            timeout: probe.timeout,
        };
        self.session.ask_upstream(question, self.now);
    }

    fn sent(&mut self) -> String {
        let mut all = String::new();
        while let Some((line, _)) = self.session.to_upstream() {
            all += &String::from_utf8(line).unwrap();
        }
        all
    }

    fn told(&mut self) -> String {
        let mut all = String::new();
        while let Some(outgoing) = self.session.to_client(self.now) {
            all += &String::from_utf8(outgoing.line).unwrap();
        }
        all
    }

    #[track_caller]
    fn heard(&mut self) -> Heard {
        let mut heard = self.session.take_heard();
        assert_eq!(heard.len(), 1);
        heard.remove(0).1
    }

    /// A run whose upstream has the question.
    fn asked() -> (Self, Probe, String) {
        let mut run = Self::new();
        run.stateless_call(7);
        let (probe, id, _) = run.probe();
        run.ask(&probe, &id);
        assert_eq!(run.sent(), "the question\n");
        assert_eq!(run.told(), "");
        (run, probe, id)
    }
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const ANSWER: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25"}}"#;

#[test]
fn a_question_waits_for_both_ends_of_the_handshake() {
    for is_answered_first in [true, false] {
        let mut run = Run::new();
        run.client(INITIALIZE);
        run.call(7, "");
        let steps: [fn(&mut Run); 2] = [|run| run.upstream(ANSWER), |run| run.client(INITIALIZED)];
        let order = if is_answered_first { [0, 1] } else { [1, 0] };
        for step in order {
            run.later(Duration::ZERO);
            assert_eq!(run.session.take_probes(), []);
            steps[step](&mut run);
        }
        run.later(Duration::ZERO);
        let (probe, id, meta) = run.probe();
        assert_eq!(meta, None);
        run.ask(&probe, &id);
        let sent = run.sent();
        assert!(
            sent.ends_with(&format!("{INITIALIZED}\nthe question\n")),
            "{sent}"
        );
    }
}

#[test]
fn without_a_session_nobody_is_asked() {
    // No handshake; one that failed; one that takes too long; a notice without a handshake.
    let mut run = Run::new();
    run.client(INITIALIZED);
    run.call(7, "");
    assert!(run.told().contains("in_doubt"));
    let mut run = Run::new();
    run.client(INITIALIZE);
    run.call(7, "");
    assert_eq!(run.told(), "");
    run.upstream(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}"#);
    run.later(Duration::ZERO);
    assert!(run.told().contains("in_doubt"));
    let mut run = Run::new();
    run.client(INITIALIZE);
    run.call(7, "");
    run.later(Duration::from_secs(9));
    assert_eq!(run.told(), "");
    run.later(Duration::from_secs(1));
    assert!(run.told().contains("in_doubt"));
    assert_eq!(run.session.take_probes(), []);
    assert!(run.session.probing.is_empty());
}

#[test]
fn a_held_question_ends_with_who_waits_for_it_and_with_the_upstream() {
    let mut run = Run::new();
    run.client(INITIALIZE);
    run.call(7, "");
    run.client(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#);
    run.upstream(ANSWER);
    run.client(INITIALIZED);
    run.later(Duration::ZERO);
    assert_eq!(run.session.take_probes(), []);
    let mut run = Run::new();
    run.client(INITIALIZE);
    run.call(7, "");
    run.session
        .upstream_ended(UpstreamEnd::default(), 0, run.now);
    run.journal();
    assert!(run.told().contains("in_doubt"));
}

#[test]
fn a_call_of_the_stateless_revision_lends_its_meta() {
    let mut run = Run::new();
    run.stateless_call(7);
    let (_, id, meta) = run.probe();
    assert!(id.starts_with("own-"));
    let meta = meta.unwrap();
    assert!(
        meta.contains(META) && !meta.contains("checkpoint_seq"),
        "{meta}"
    );
}

#[test]
fn an_answer_is_heard_once_and_reaches_no_client() {
    let (mut run, probe, id) = Run::asked();
    let answer = format!(
        r#"{{"jsonrpc":"2.0","id":"\u006f{}","result":{{"found":true}}}}"#,
        &id[1..]
    );
    run.upstream(&answer);
    assert_eq!(run.heard(), Heard::Result(br#"{"found":true}"#.to_vec()));
    // A second one, and one of another's making under an id like ours.
    run.upstream(&answer);
    run.upstream(r#"{"jsonrpc":"2.0","id":"own-99","result":{}}"#);
    run.upstream(r#"{"jsonrpc":"2.0","id":"own-99"}"#);
    assert_eq!(run.session.take_heard(), []);
    assert_eq!(run.told(), "");
    // The end waits a moment until what was heard is written, and no longer.
    assert!(!run.session.is_idle());
    run.later(TELL_MAX);
    assert!(run.session.is_idle());
    run.session.probed(probe.place);
    run.journal();
    assert!(run.told().contains("in_doubt"));
}

/// What is heard of a question, and what makes it so: told the run and the question's id.
type End = (&'static str, fn(&mut Run, &str));

#[test]
fn whatever_happens_the_question_ends() {
    let ends: [End; 6] = [
        ("in time", |run, _| run.later(Duration::from_secs(10))),
        ("ending", |run, _| {
            run.session.input_closed();
            run.later(Duration::ZERO);
        }),
        ("status 3", |run, _| {
            let end = UpstreamEnd {
                code: Some(3),
                ..UpstreamEnd::default()
            };
            run.session.upstream_ended(end, 0, run.now);
        }),
        ("no JSON", |run, id| {
            run.upstream(&format!(
                r#"{{"id":"{id}","result":{{"found":true}},"x":NaN}}"#
            ));
        }),
        ("can't be read", |run, id| {
            run.upstream(&format!(r#"{{"id":"{id}"}}"#))
        }),
        ("max-message-bytes", |run, id| {
            let start = format!(r#"{{"id":"{id}","result":{{"x":"aaa"#);
            let now = run.now;
            run.session
                .upstream_line_too_long(start.as_bytes(), b"aaa\"}}", 99, now);
        }),
    ];
    for (why, end) in ends {
        let (mut run, _, id) = Run::asked();
        run.later(Duration::from_secs(9));
        assert_eq!(run.session.take_heard(), []);
        end(&mut run, &id);
        let Heard::Nothing(said) = run.heard() else {
            panic!("{why}");
        };
        assert!(said.contains(why), "{said}");
        assert_eq!(run.told(), "", "{why}");
        // What comes now is too late.
        run.upstream(&format!(r#"{{"id":"{id}","result":{{"found":true}}}}"#));
        assert_eq!(run.session.take_heard(), []);
        assert_eq!(run.told(), "", "{why}");
    }
}

#[test]
fn a_question_that_comes_when_all_is_over_is_not_sent() {
    let mut run = Run::new();
    run.stateless_call(7);
    let (probe, id, _) = run.probe();
    run.session.stop(run.now, 1);
    run.ask(&probe, &id);
    assert_eq!(run.sent(), "");
    assert_eq!(run.heard(), Heard::Nothing("checkpoint is ending".into()));
}

#[test]
fn a_doubt_is_asked_about_once_at_a_time() {
    let (mut run, probe, _) = Run::asked();
    run.client(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#);
    run.stateless_call(8);
    run.stateless_call(9);
    assert_eq!(run.session.take_probes(), []);
    run.session.probed(probe.place);
    run.journal();
    let told = run.told();
    assert_eq!(told.matches("in_doubt").count(), 2, "{told}");
    assert_eq!(run.sent(), "");
    // A later call has somebody asked anew.
    run.stateless_call(10);
    assert_ne!(run.probe().0, probe, "under another id");
}
