//! Refusals, and the one list of our error codes.
//!
//! A refusal must be understood by code (its data) and by a model that sees nothing but its text.
//! It never quotes arguments, and `side_effect` is always true.

use std::fmt::Write as _;

use super::frame::LineRefusal;
use crate::json;

/// Declares the kinds with their names, words, codes and usual side effects.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal $words:literal $code:literal $effect:ident,)*) => {
        /// Why a call or a line was refused. The codes lie outside JSON-RPC's and MCP's reserved
        /// range, except where the fault is the request's own form.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RefusalKind { $($(#[$doc])* $kind,)* }

        impl RefusalKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];

            /// Returns the name that stands in data, events and logs.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// Returns the name as it stands in messages.
            pub fn words(self) -> &'static str {
                match self { $(Self::$kind => $words,)* }
            }

            /// Returns the JSON-RPC error code.
            pub fn code(self) -> i32 {
                match self { $(Self::$kind => $code,)* }
            }

            /// Returns what is known of the side effect where nothing more is known.
            pub fn side_effect(self) -> SideEffect {
                match self { $(Self::$kind => SideEffect::$effect,)* }
            }
        }
    };
}

kinds! {
    /// Another signature at that entry.
    Divergence "divergence" "divergence" 7701 NotStarted,
    /// An attempt whose outcome nobody knows.
    InDoubt "in_doubt" "in-doubt" 7702 Unknown,
    /// This very call was forwarded and its answer will not come.
    OutcomeUnknown "outcome_unknown" "outcome-unknown" 7703 Unknown,
    /// The call is running.
    InFlight "in_flight" "in-flight" 7704 Unknown,
    /// No attempts are left.
    Abandoned "abandoned" "abandoned" 7705 Unknown,
    /// Only the tombstone is left.
    ResultExpired "result_expired" "result-expired" 7706 Completed,
    /// The reservation could not be made durable.
    JournalUnavailable "journal_unavailable" "journal-unavailable" 7707 NotStarted,
    /// The call was never forwarded.
    UpstreamUnavailable "upstream_unavailable" "upstream-unavailable" 7708 NotStarted,
    /// A malformed `checkpoint_seq`.
    InvalidSeq "invalid_seq" "invalid-seq" -32602 NotStarted,
    /// A malformed key.
    InvalidKey "invalid_key" "invalid-key" -32602 NotStarted,
    /// A malformed `checkpoint_workflow`.
    InvalidWorkflow "invalid_workflow" "invalid-workflow" -32602 NotStarted,
    /// A member stands twice where we decide.
    DuplicateMember "duplicate_member" "duplicate-member" -32602 NotStarted,
    /// The line is JSON but no valid request.
    InvalidRequest "invalid_request" "invalid-request" -32600 NotStarted,
    /// The line is not JSON.
    ParseError "parse_error" "parse-error" -32700 NotStarted,
    /// A policy or a person said no.
    Denied "denied" "denied" 7709 NotStarted,
    /// A line is over the limit.
    MessageTooLarge "message_too_large" "message-too-large" 7710 NotStarted,
    /// The stored result has no legal form for this client.
    NotReplayable "not_replayable" "not-replayable" 7711 Completed,
    /// The entry is damaged.
    Quarantined "quarantined" "quarantined" 7712 Unknown,
    /// The workflow may make no more calls.
    LimitReached "limit_reached" "limit-reached" 7713 NotStarted,
    /// A newer session has superseded this one.
    StaleGeneration "stale_generation" "stale-generation" 7714 NotStarted,
}

/// What is known of a call's effect on the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SideEffect {
    /// The upstream never saw the call.
    NotStarted,
    /// It may or may not have happened.
    Unknown,
    /// The upstream answered with a result.
    Completed,
}

impl SideEffect {
    /// Returns the name that stands in data.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::Unknown => "unknown",
            Self::Completed => "completed",
        }
    }
}

/// What the journal holds at the entry that a refused call meant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Journaled {
    /// The stored signature.
    pub signature: Option<String>,
    /// The stored status.
    pub status: String,
    /// When the entry was made, RFC 3339.
    pub created_at: String,
}

/// A refusal, with everything that its reader may need. What is not known is left out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub kind: RefusalKind,
    /// What is known of the effect; the kind's own unless more is known.
    pub side_effect: SideEffect,
    /// A word or sentence that tells cases of one kind apart; never holds arguments.
    pub reason: Option<String>,
    /// The workflow.
    pub workflow_id: Option<String>,
    /// The branch, from 0.
    pub branch: Option<u64>,
    /// The call's place.
    pub seq: Option<u64>,
    /// The tool.
    pub tool: Option<String>,
    /// The entry's attempt, from 1.
    pub attempt: Option<u64>,
    /// The row of the decision table.
    pub letter: Option<String>,
    /// The entry.
    pub journaled: Option<Journaled>,
    /// The refused call's signature.
    pub incoming_signature: Option<String>,
    /// The refused call's tool, where the entry's is another one.
    pub called_tool: Option<String>,
    /// JSON pointers to the arguments that differ.
    pub diff: Vec<String>,
    /// The operator's command.
    pub hint: Option<String>,
    /// More members of the data, as names and raw JSON values.
    pub more: Vec<(&'static str, String)>,
}

impl Refusal {
    /// Starts a refusal of which only the kind is known.
    pub fn new(kind: RefusalKind) -> Self {
        Self {
            kind,
            side_effect: kind.side_effect(),
            reason: None,
            workflow_id: None,
            branch: None,
            seq: None,
            tool: None,
            attempt: None,
            letter: None,
            journaled: None,
            incoming_signature: None,
            called_tool: None,
            diff: Vec::new(),
            hint: None,
            more: Vec::new(),
        }
    }

    /// Returns the refusal of a line that could not be read.
    pub fn of_line(line: &LineRefusal<'_>) -> Self {
        let mut refusal = Self::new(line.kind);
        refusal.reason = Some(line.reason.clone().into_owned());
        refusal.tool.clone_from(&line.tool);
        if let Some(pointer) = &line.pointer {
            refusal.more.push(("pointer", json::quote(pointer)));
        }
        refusal
    }

    /// Returns the text that stands alone: kind, place, what may have happened, what not to do,
    /// and the operator's command.
    pub fn message(&self) -> String {
        let mut text = format!("checkpoint: {}", self.kind.words());
        if let Some(seq) = self.seq {
            let _ = write!(text, " at seq {seq}");
        }
        if let Some(tool) = &self.tool {
            let _ = write!(text, ", tool {}", json::quote(clip(tool)));
        }
        let (what, advice) = self.sentences();
        let _ = write!(text, ": {what}");
        if let Some(reason) = &self.reason {
            let _ = write!(text, " ({reason})");
        }
        if !self.diff.is_empty() {
            let shown = self
                .diff
                .iter()
                .take(5)
                .map(|pointer| match pointer.as_str() {
                    "" => "the whole value",
                    pointer => pointer,
                });
            let more = if self.diff.len() > 5 { " and more" } else { "" };
            let _ = write!(
                text,
                "; differs at {}{more}",
                shown.collect::<Vec<_>>().join(", ")
            );
        }
        let _ = write!(text, ". {advice}");
        if let Some(hint) = &self.hint {
            let _ = write!(text, " Operator: {hint}");
        }
        text
    }

    /// Says what happened, and what the reader must do.
    fn sentences(&self) -> (&'static str, &'static str) {
        const VERIFY: &str =
            "Do not call it again, here or under another seq; verify first what happened.";
        const MEND: &str = "Nothing was run. Do not repeat it as it is; verify and mend it first.";
        let what = match (self.kind, self.side_effect) {
            (RefusalKind::Divergence, _) => {
                let advice = "Do not repeat it, here or under another seq; verify which of the \
                              two calls is meant.";
                return (
                    "another call is journaled at this place, so this one was not started",
                    advice,
                );
            }
            (RefusalKind::InDoubt, _) => {
                "the call was begun before and may or may not have taken effect; it was not run again"
            }
            (RefusalKind::OutcomeUnknown, _) => {
                "the call was forwarded and its answer will not come; it may or may not have taken \
                 effect"
            }
            (RefusalKind::InFlight, _) => {
                "a call is still running at this place and may or may not have taken effect; it \
                 was not run again"
            }
            (RefusalKind::Abandoned, _) => {
                "no attempts are left and none told its outcome; it may or may not have taken \
                 effect; it was not run again"
            }
            (RefusalKind::ResultExpired, SideEffect::Completed) => {
                "the call was completed before and its result is not kept; it was not run again"
            }
            (RefusalKind::ResultExpired, _) => {
                "the call failed before, which does not prove that nothing happened, and its \
                 error is not kept; it was not run again"
            }
            (RefusalKind::NotReplayable, SideEffect::Completed) => {
                "the call was completed before and its result has no form that is legal for this \
                 client; it was not run again"
            }
            (RefusalKind::NotReplayable, _) => {
                "the call was answered before, may or may not have taken effect, and its answer \
                 has no form that is legal for this client; it was not run again"
            }
            (RefusalKind::Quarantined, _) => {
                "the journal's record of this call is damaged; it may or may not have taken \
                 effect; it was not run again"
            }
            (RefusalKind::MessageTooLarge, SideEffect::NotStarted) => {
                return ("the message is over the limit and was not forwarded", MEND);
            }
            (RefusalKind::MessageTooLarge, _) => {
                "the answer is over the limit and is not delivered; the call may or may not have \
                 taken effect"
            }
            (RefusalKind::JournalUnavailable, _) => {
                let advice = "Nothing was run. Do not repeat it in a loop; the journal must be \
                              verified first.";
                return (
                    "the call could not be made durable in the journal, so it was not started",
                    advice,
                );
            }
            (RefusalKind::UpstreamUnavailable, _) => {
                let advice = "Nothing was run. Do not repeat it in a loop; verify first that the \
                              upstream runs.";
                return (
                    "the upstream is not there and the call was never forwarded",
                    advice,
                );
            }
            (RefusalKind::InvalidSeq, _) => return ("the call's seq is invalid", MEND),
            (RefusalKind::InvalidKey, _) => return ("the call's key is invalid", MEND),
            (RefusalKind::InvalidWorkflow, _) => return ("the call's workflow is invalid", MEND),
            (RefusalKind::DuplicateMember, _) => {
                return (
                    "a member stands twice where that decides, so nobody can tell what is meant",
                    MEND,
                );
            }
            (RefusalKind::InvalidRequest, _) => return ("the message is no valid request", MEND),
            (RefusalKind::ParseError, _) => {
                return ("the line can't be read as JSON and was not forwarded", MEND);
            }
            (RefusalKind::Denied, _) => {
                let advice = "Nothing was run. Do not repeat it; verify with the operator.";
                return ("a policy or a person said no to this call", advice);
            }
            (RefusalKind::LimitReached, _) => {
                let advice = "Nothing was run. Do not repeat it; verify with the operator.";
                return (
                    "this workflow has made all the calls that it may make",
                    advice,
                );
            }
            (RefusalKind::StaleGeneration, _) => {
                let advice = "Nothing was run. Do not repeat it; verify what the newer run does.";
                return (
                    "a newer run of this workflow has taken over from this one",
                    advice,
                );
            }
        };
        (what, VERIFY)
    }

    /// Returns the data as a raw JSON object.
    pub fn data(&self) -> String {
        self.data_after(Object::default())
    }

    /// Returns the data with the message in front, for a reader that may be shown nothing else.
    #[must_use]
    pub fn data_with_message(&self) -> String {
        let mut data = Object::default();
        data.text("message", &self.message());
        self.data_after(data)
    }

    fn data_after(&self, mut data: Object) -> String {
        data.text("kind", self.kind.name());
        data.text("side_effect", self.side_effect.name());
        data.raw("retryable", "false");
        data.optional("reason", self.reason.as_deref());
        data.optional("workflow_id", self.workflow_id.as_deref());
        data.number("branch", self.branch);
        data.number("seq", self.seq);
        data.optional("tool", self.tool.as_deref());
        data.number("attempt", self.attempt);
        data.optional("letter", self.letter.as_deref());
        if let Some(journaled) = &self.journaled {
            let mut inner = Object::default();
            inner.optional("signature", journaled.signature.as_deref());
            inner.text("status", &journaled.status);
            inner.text("created_at", &journaled.created_at);
            data.raw("journaled", &inner.finish());
        }
        if let Some(signature) = &self.incoming_signature {
            let mut inner = Object::default();
            inner.text("signature", signature);
            inner.optional("tool", self.called_tool.as_deref());
            data.raw("incoming", &inner.finish());
        }
        if !self.diff.is_empty() {
            let pointers: Vec<_> = self
                .diff
                .iter()
                .map(|pointer| json::quote(pointer))
                .collect();
            data.raw("diff", &format!("[{}]", pointers.join(",")));
        }
        for (name, value) in &self.more {
            data.raw(name, value);
        }
        data.optional("hint", self.hint.as_deref());
        data.finish()
    }
}

/// Returns the start of a name, so that a message stays readable.
fn clip(name: &str) -> &str {
    let end = name
        .char_indices()
        .nth(200)
        .map_or(name.len(), |(end, _)| end);
    &name[..end]
}

/// Writes a JSON object member by member.
#[derive(Default)]
pub(super) struct Object(String);

impl Object {
    pub(super) fn raw(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push_str(&json::quote(name));
        self.0.push(':');
        self.0.push_str(value);
    }

    pub(super) fn text(&mut self, name: &str, value: &str) {
        self.raw(name, &json::quote(value));
    }

    pub(super) fn optional(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    pub(super) fn number(&mut self, name: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.raw(name, &value.to_string());
        }
    }

    pub(super) fn flag(&mut self, name: &str, value: Option<bool>) {
        if let Some(value) = value {
            self.raw(name, if value { "true" } else { "false" });
        }
    }

    pub(super) fn finish(mut self) -> String {
        if self.0.is_empty() {
            self.0.push('{');
        }
        self.0.push('}');
        self.0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeMap;

    pub(in crate::mcp) fn whole() -> Refusal {
        Refusal {
            workflow_id: Some("w".into()),
            branch: Some(0),
            seq: Some(7),
            tool: Some("charge".into()),
            attempt: Some(1),
            letter: Some("@E".into()),
            journaled: Some(Journaled {
                signature: Some("aa".into()),
                status: "PENDING".into(),
                created_at: "2026-01-01T00:00:00Z".into(),
            }),
            incoming_signature: Some("bb".into()),
            called_tool: None,
            hint: Some("checkpoint resolve 7 --journal run.db".into()),
            ..Refusal::new(RefusalKind::InDoubt)
        }
    }

    #[test]
    fn the_list_of_codes_is_the_contract_s() {
        let list: BTreeMap<_, _> = RefusalKind::ALL
            .iter()
            .map(|kind| (kind.name(), (kind.code(), kind.side_effect().name())))
            .collect();
        let expected = BTreeMap::from([
            ("divergence", (7701, "not_started")),
            ("in_doubt", (7702, "unknown")),
            ("outcome_unknown", (7703, "unknown")),
            ("in_flight", (7704, "unknown")),
            ("abandoned", (7705, "unknown")),
            ("result_expired", (7706, "completed")),
            ("journal_unavailable", (7707, "not_started")),
            ("upstream_unavailable", (7708, "not_started")),
            ("denied", (7709, "not_started")),
            ("message_too_large", (7710, "not_started")),
            ("not_replayable", (7711, "completed")),
            ("quarantined", (7712, "unknown")),
            ("limit_reached", (7713, "not_started")),
            ("stale_generation", (7714, "not_started")),
            ("invalid_seq", (-32602, "not_started")),
            ("invalid_key", (-32602, "not_started")),
            ("invalid_workflow", (-32602, "not_started")),
            ("duplicate_member", (-32602, "not_started")),
            ("invalid_request", (-32600, "not_started")),
            ("parse_error", (-32700, "not_started")),
        ]);
        assert_eq!(list, expected);
        assert_eq!(RefusalKind::ALL.len(), expected.len());
        for kind in RefusalKind::ALL {
            assert_eq!(kind.words(), kind.name().replace('_', "-"));
        }
    }

    #[test]
    fn data_has_the_contract_s_shape() {
        assert_eq!(
            whole().data(),
            r#"{"kind":"in_doubt","side_effect":"unknown","retryable":false,"workflow_id":"w","branch":0,"seq":7,"tool":"charge","attempt":1,"letter":"@E","journaled":{"signature":"aa","status":"PENDING","created_at":"2026-01-01T00:00:00Z"},"incoming":{"signature":"bb"},"hint":"checkpoint resolve 7 --journal run.db"}"#
        );
        let mut refusal = Refusal::new(RefusalKind::Divergence);
        refusal.diff = vec!["/a".into(), "/b\"".into()];
        assert!(refusal.data().contains(r#""diff":["/a","/b\""]"#));
        let told = format!(
            "{{\"message\":{},{}",
            json::quote(&refusal.message()),
            &refusal.data()[1..]
        );
        assert_eq!(refusal.data_with_message(), told);
    }

    #[test]
    fn every_message_stands_alone() {
        for &kind in RefusalKind::ALL {
            for side_effect in [
                SideEffect::NotStarted,
                SideEffect::Unknown,
                SideEffect::Completed,
            ] {
                let message = Refusal {
                    kind,
                    side_effect,
                    ..whole()
                }
                .message();
                let start = format!("checkpoint: {} at seq 7, tool \"charge\": ", kind.words());
                assert!(message.starts_with(&start), "{message}");
                assert!(
                    message.contains("Do not ") && message.contains("verif"),
                    "{message}"
                );
                assert!(message.ends_with(" Operator: checkpoint resolve 7 --journal run.db"));
                assert!(!message.contains("  "), "{message}");
            }
        }
        assert!(
            Refusal::new(RefusalKind::ParseError)
                .message()
                .starts_with("checkpoint: parse-error: ")
        );
        let mut refusal = whole();
        refusal.kind = RefusalKind::Divergence;
        refusal.diff = (0..6).map(|place| format!("/{place}")).collect();
        assert!(
            refusal
                .message()
                .contains("; differs at /0, /1, /2, /3, /4 and more. ")
        );
        refusal.tool = Some("x".repeat(100_000));
        assert!(refusal.message().len() < 1000);
    }

    #[test]
    fn a_line_s_refusal_names_the_member_for_the_client_only() {
        let line =
            br#"{"id":1,"method":"tools/call","params":{"name":"t","arguments":{"a":1,"a":2}}}"#;
        let crate::mcp::frame::ClientLine::Refused(refused) = crate::mcp::frame::read_client(line)
        else {
            panic!("it is refused")
        };
        let refusal = Refusal::of_line(&refused);
        assert!(refusal.data().contains(r#""tool":"t","pointer":"/a""#));
        assert!(!refusal.message().contains("/a"));
    }
}
