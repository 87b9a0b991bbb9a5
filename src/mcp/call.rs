//! A view of one `tools/call`: everything that its entry, its signature and its answer need.
//!
//! Reading never turns what is malformed into what is absent: a call with a bad
//! `checkpoint_seq` would else run again.

use std::borrow::Cow;

use super::frame::{LineRefusal, case_variant, is_variant_of_prefix};
use super::id::RawId;
use super::refusal::RefusalKind;
use crate::json::{self, Kind, Member};

/// Longest workflow id, key and call id, in bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// Largest `checkpoint_seq`: what every JSON reader keeps exactly.
pub const SEQ_MAX: u64 = (1 << 53) - 1;

/// The `_meta` keys in which hosts are known to send their tool-call id, the surest first.
const HOST_CALL_ID_KEYS: [&str; 4] = [
    "claudecode/toolUseId",
    "agent-tool-call-request-id",
    "vscode.requestId",
    "callId",
];

/// A `checkpoint_*` value that is there but not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// `invalid_seq`, `invalid_key` or `invalid_workflow`.
    pub kind: RefusalKind,
    /// Why, as a sentence without its full stop.
    pub reason: &'static str,
}

/// `checkpoint_seq`: a number from 1 to [`SEQ_MAX`], absent, or malformed.
pub type SeqField = Result<Option<u64>, Malformed>;
/// A key of 1 to [`NAME_BYTES_MAX`] bytes, absent, or malformed.
pub type KeyField<'a> = Result<Option<Cow<'a, str>>, Malformed>;
/// A workflow id of 1 to [`NAME_BYTES_MAX`] bytes, absent, or malformed.
pub type WorkflowField<'a> = Result<Option<Cow<'a, str>>, Malformed>;

/// One `tools/call` as the client sent it.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// The id to answer with.
    pub id: RawId<'a>,
    /// The tool's name, compared byte by byte.
    pub name: Cow<'a, str>,
    /// The raw `arguments`: an object or `null`, in which no object has equal members.
    pub arguments: Option<&'a [u8]>,
    /// Whether `task` is present, with any value.
    pub has_task: bool,
    /// The raw `inputResponses`, unless `null`.
    pub input_responses: Option<&'a [u8]>,
    /// The raw `requestState`, unless `null`.
    pub request_state: Option<&'a [u8]>,
    /// The raw `_meta`, an object.
    pub meta: Option<&'a [u8]>,
    /// `_meta.checkpoint_seq`.
    pub seq: SeqField,
    /// `_meta.checkpoint_key` or `params.idempotencyKey`.
    pub key: KeyField<'a>,
    /// `_meta.checkpoint_workflow`.
    pub workflow: WorkflowField<'a>,
    /// `_meta.checkpoint_call_id`.
    pub checkpoint_call_id: Option<Cow<'a, str>>,
    /// `_meta["io.modelcontextprotocol/protocolVersion"]`: present in the stateless revisions.
    pub protocol_version: Option<Cow<'a, str>>,
    /// The raw `_meta["io.modelcontextprotocol/clientCapabilities"]`.
    pub client_capabilities: Option<&'a [u8]>,
    /// `_meta.traceparent`.
    pub traceparent: Option<Cow<'a, str>>,
}

/// Where a call's provider id is looked for when the call has no `checkpoint_call_id`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CallIdFrom {
    /// The keys that hosts are known to send.
    #[default]
    Auto,
    /// Nowhere.
    None,
    /// This `_meta` key.
    Key(String),
}

/// The members of `params` that decide; each may stand once.
const RESERVED: [&str; 7] = [
    "name",
    "arguments",
    "_meta",
    "task",
    "inputResponses",
    "requestState",
    "idempotencyKey",
];

const PREFIX: &str = "checkpoint_";

impl<'a> Call<'a> {
    /// Reads the checked `params` of a `tools/call`.
    ///
    /// # Errors
    ///
    /// `invalid_request` or `duplicate_member`, if the call can't be decided or two readers may
    /// take it differently.
    pub(super) fn read(id: RawId<'a>, params: &'a [u8]) -> Result<Self, Box<LineRefusal<'a>>> {
        if !json::is_object(params) {
            return Err(Box::new(LineRefusal::invalid(
                "the params of a tools/call are an object",
            )));
        }
        let mut slots = [None; RESERVED.len()];
        let result = Self::read_params(params, &mut slots).and_then(|()| Self::build(id, slots));
        result.map_err(|mut refusal| {
            refusal.tool = slots[0].and_then(json::text).map(Cow::into_owned);
            Box::new(refusal)
        })
    }

    fn read_params(
        params: &'a [u8],
        slots: &mut [Option<&'a [u8]>; RESERVED.len()],
    ) -> Result<(), LineRefusal<'a>> {
        let mut result = Ok(());
        let mut ours = Ours::default();
        for Member { key, value, .. } in json::Members::new(params) {
            let found = match RESERVED.iter().position(|name| name.as_bytes() == &*key) {
                Some(slot) => match slots[slot].replace(value) {
                    Some(_) => Err(LineRefusal::twice(RESERVED[slot])),
                    None => Ok(()),
                },
                None => match case_variant(&key, &RESERVED) {
                    Some(name) => Err(LineRefusal::variant(name)),
                    None => ours.meet(&key),
                },
            };
            result = result.and(found);
        }
        result
    }

    fn build(
        id: RawId<'a>,
        slots: [Option<&'a [u8]>; RESERVED.len()],
    ) -> Result<Self, LineRefusal<'a>> {
        let [
            name,
            arguments,
            meta,
            task,
            input_responses,
            request_state,
            idempotency_key,
        ] = slots;
        let name = name.and_then(json::text).ok_or_else(|| {
            LineRefusal::invalid("the name of a tool is a string of whole characters")
        })?;
        if let Some(arguments) = arguments {
            if !matches!(json::kind(arguments), Kind::Object | Kind::Null) {
                return Err(LineRefusal::invalid(
                    "the arguments of a tools/call are an object",
                ));
            }
            if let Some(duplicate) = json::find_duplicate(arguments) {
                let mut refusal = LineRefusal::new(
                    RefusalKind::DuplicateMember,
                    "two members of one object in the arguments have the same name",
                );
                refusal.pointer = Some(duplicate.pointer);
                return Err(refusal);
            }
        }
        let not_null = |raw: Option<&'a [u8]>| raw.filter(|raw| json::kind(raw) != Kind::Null);
        let meta = not_null(meta);
        if meta.is_some_and(|meta| !json::is_object(meta)) {
            return Err(LineRefusal::invalid(
                "the _meta of a tools/call is an object",
            ));
        }
        let found = Meta::read(meta.unwrap_or(b"{}"))?;
        Ok(Self {
            id,
            name,
            arguments,
            has_task: task.is_some(),
            input_responses: not_null(input_responses),
            request_state: not_null(request_state),
            meta,
            seq: read_seq(found.seq),
            key: read_keys(found.key, idempotency_key),
            workflow: read_name(found.workflow, || Malformed {
                kind: RefusalKind::InvalidWorkflow,
                reason: "checkpoint_workflow is a string of 1 to 512 bytes",
            }),
            checkpoint_call_id: match found.call_id {
                None => None,
                Some(raw) => Some(
                    json::text(raw)
                        .filter(|id| id.len() <= NAME_BYTES_MAX)
                        .ok_or_else(|| {
                            LineRefusal::invalid(
                                "checkpoint_call_id is a string of at most 512 bytes",
                            )
                        })?,
                ),
            },
            protocol_version: found.protocol_version.and_then(json::text),
            client_capabilities: found.client_capabilities,
            traceparent: found.traceparent.and_then(json::text),
        })
    }

    /// Returns the provider's id of this call: `checkpoint_call_id`, or what `from` names, as a
    /// string or the text of a number of at most [`NAME_BYTES_MAX`] bytes.
    pub fn call_id(&self, from: &CallIdFrom) -> Option<Cow<'a, str>> {
        if let Some(id) = &self.checkpoint_call_id {
            return Some(id.clone());
        }
        let meta = self.meta?;
        let read = |key: &str| {
            let raw = json::last_member(meta, key)?.value;
            let id = match json::kind(raw) {
                Kind::Number => Cow::Borrowed(std::str::from_utf8(raw).ok()?),
                _ => json::text(raw)?,
            };
            (!id.is_empty() && id.len() <= NAME_BYTES_MAX).then_some(id)
        };
        match from {
            CallIdFrom::None => None,
            CallIdFrom::Key(key) => read(key),
            CallIdFrom::Auto => HOST_CALL_ID_KEYS.iter().find_map(|key| read(key)),
        }
    }

    /// Returns whether code, not a model, is calling: the call says which entry it means.
    pub fn is_explicit(&self) -> bool {
        !matches!((&self.seq, &self.key), (Ok(None), Ok(None)))
    }

    /// Returns whether the request declares the tasks extension, as the stateless revision asks for
    /// request by request: a task may answer no other.
    ///
    /// Source: MCP 2026-07-28, `basic/index` (`_meta`); the extension
    /// `io.modelcontextprotocol/tasks`.
    pub fn declares_tasks(&self) -> bool {
        let member = |object, name| json::last_member(object, name).map(|member| member.value);
        self.client_capabilities
            .and_then(|capabilities| member(capabilities, "extensions"))
            .and_then(|extensions| member(extensions, "io.modelcontextprotocol/tasks"))
            .is_some_and(json::is_object)
    }

    /// Returns whether this continues a call that asked for input.
    ///
    /// Source: MCP 2026-07-28, multi round-trip requests.
    pub fn is_further_round(&self) -> bool {
        self.input_responses.is_some() || self.request_state.is_some()
    }
}

/// The `checkpoint_*` names met in one object; none may stand twice.
#[derive(Default)]
struct Ours(Vec<Vec<u8>>);

impl Ours {
    fn meet(&mut self, key: &[u8]) -> Result<(), LineRefusal<'static>> {
        if is_variant_of_prefix(key, PREFIX)
            || (key.starts_with(PREFIX.as_bytes())
                && [
                    "checkpoint_seq",
                    "checkpoint_key",
                    "checkpoint_workflow",
                    "checkpoint_call_id",
                ]
                .iter()
                .any(|name| case_variant(key, &[name]).is_some()))
        {
            return Err(LineRefusal::variant("checkpoint_*"));
        }
        if key.starts_with(PREFIX.as_bytes()) {
            if self.0.iter().any(|met| met == key) {
                return Err(LineRefusal::twice("checkpoint_*"));
            }
            self.0.push(key.to_vec());
        }
        Ok(())
    }
}

/// The raw values in `_meta` that we read.
#[derive(Default)]
struct Meta<'a> {
    seq: Option<&'a [u8]>,
    key: Option<&'a [u8]>,
    workflow: Option<&'a [u8]>,
    call_id: Option<&'a [u8]>,
    protocol_version: Option<&'a [u8]>,
    client_capabilities: Option<&'a [u8]>,
    traceparent: Option<&'a [u8]>,
}

impl<'a> Meta<'a> {
    fn read(meta: &'a [u8]) -> Result<Self, LineRefusal<'a>> {
        let mut found = Self::default();
        let mut ours = Ours::default();
        for Member { key, value, .. } in json::Members::new(meta) {
            ours.meet(&key)?;
            let slot = match &*key {
                b"checkpoint_seq" => &mut found.seq,
                b"checkpoint_key" => &mut found.key,
                b"checkpoint_workflow" => &mut found.workflow,
                b"checkpoint_call_id" => &mut found.call_id,
                b"io.modelcontextprotocol/protocolVersion" => &mut found.protocol_version,
                b"io.modelcontextprotocol/clientCapabilities" => &mut found.client_capabilities,
                b"traceparent" => &mut found.traceparent,
                _ => continue,
            };
            *slot = Some(value);
        }
        Ok(found)
    }
}

fn read_seq(raw: Option<&[u8]>) -> SeqField {
    let Some(raw) = raw else { return Ok(None) };
    match json::plain_integer(raw) {
        Some(seq @ 1..=SEQ_MAX) => Ok(Some(seq)),
        _ => Err(Malformed {
            kind: RefusalKind::InvalidSeq,
            reason: "checkpoint_seq is an integer from 1 to 9007199254740991, written in digits only",
        }),
    }
}

fn read_keys<'a>(ours: Option<&'a [u8]>, theirs: Option<&'a [u8]>) -> KeyField<'a> {
    let malformed = |reason| Malformed {
        kind: RefusalKind::InvalidKey,
        reason,
    };
    let ours = read_name(ours, || {
        malformed("checkpoint_key is a string of 1 to 512 bytes")
    })?;
    let theirs = read_name(theirs, || {
        malformed("idempotencyKey is a string of 1 to 512 bytes")
    })?;
    match (ours, theirs) {
        (Some(ours), Some(theirs)) if ours != theirs => {
            Err(malformed("checkpoint_key and idempotencyKey differ"))
        }
        (ours, theirs) => Ok(ours.or(theirs)),
    }
}

fn read_name<'a>(
    raw: Option<&'a [u8]>,
    malformed: impl FnOnce() -> Malformed,
) -> Result<Option<Cow<'a, str>>, Malformed> {
    let Some(raw) = raw else { return Ok(None) };
    match json::text(raw) {
        Some(name) if (1..=NAME_BYTES_MAX).contains(&name.len()) => Ok(Some(name)),
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(params: &str) -> Call<'_> {
        Call::read(RawId::new(b"1").expect("an id"), params.as_bytes()).expect("a legal call")
    }

    fn with_meta(meta: &str) -> String {
        format!(r#"{{"name":"t","_meta":{{{meta}}}}}"#)
    }

    #[test]
    fn answers_or_a_state_make_a_further_round() {
        for (params, is_further) in [
            (r#"{"name":"t"}"#, false),
            (r#"{"name":"t","inputResponses":{}}"#, true),
            (r#"{"name":"t","requestState":"s"}"#, true),
            (
                r#"{"name":"t","inputResponses":{},"requestState":"s"}"#,
                true,
            ),
        ] {
            assert_eq!(call(params).is_further_round(), is_further, "{params}");
        }
    }

    #[test]
    fn a_call_is_read_whole() {
        let params = r#"{"name":"pay","arguments":{"a":1},"task":{},"inputResponses":{"k":{}},
            "requestState":"s","_meta":{"checkpoint_seq":7,"checkpoint_key":"k",
            "checkpoint_workflow":"w","checkpoint_call_id":"c","traceparent":"00-1",
            "io.modelcontextprotocol/protocolVersion":"2026-07-28","progressToken":1}}"#;
        let call = call(params);
        assert_eq!(call.name, "pay");
        assert_eq!(call.arguments, Some(&br#"{"a":1}"#[..]));
        assert!(call.has_task && call.is_further_round() && call.is_explicit());
        assert_eq!(call.input_responses, Some(&br#"{"k":{}}"#[..]));
        assert_eq!(call.request_state, Some(&br#""s""#[..]));
        assert_eq!(call.seq, Ok(Some(7)));
        assert_eq!(call.key, Ok(Some("k".into())));
        assert_eq!(call.workflow, Ok(Some("w".into())));
        assert_eq!(call.checkpoint_call_id.as_deref(), Some("c"));
        assert_eq!(call.protocol_version.as_deref(), Some("2026-07-28"));
        assert_eq!(call.traceparent.as_deref(), Some("00-1"));
    }

    #[test]
    fn what_is_absent_is_absent() {
        for params in [
            r#"{"name":"t"}"#,
            r#"{"name":"t","_meta":null,"requestState":null,"inputResponses":null}"#,
        ] {
            let call = call(params);
            assert_eq!(
                (&call.seq, &call.key, &call.workflow),
                (&Ok(None), &Ok(None), &Ok(None))
            );
            assert!(!call.is_explicit() && !call.is_further_round() && !call.has_task);
            assert_eq!(call.call_id(&CallIdFrom::Auto), None);
        }
        assert_eq!(call(r#"{"name":"t","checkpoint_seq":7}"#).seq, Ok(None));
    }

    #[test]
    fn tasks_are_declared_as_an_extension_of_the_client() {
        let declares = |capabilities: &str| {
            let key = r#""io.modelcontextprotocol/clientCapabilities""#;
            call(&with_meta(&format!("{key}:{capabilities}"))).declares_tasks()
        };
        for declared in [
            r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#,
            r#"{"roots":{},"extensions":{"a/b":{},"io.modelcontextprotocol\/tasks":{"x":1}}}"#,
        ] {
            assert!(declares(declared), "{declared}");
        }
        for none in [
            "{}",
            "null",
            "[]",
            r#"{"tasks":{}}"#,
            r#"{"extensions":{}}"#,
            r#"{"extensions":["io.modelcontextprotocol/tasks"]}"#,
            r#"{"extensions":{"io.modelcontextprotocol/tasks":null}}"#,
            r#"{"io.modelcontextprotocol/tasks":{}}"#,
        ] {
            assert!(!declares(none), "{none}");
        }
        assert!(!call(r#"{"name":"t"}"#).declares_tasks());
    }

    #[test]
    fn a_seq_is_an_integer_written_as_one() {
        for (raw, expected) in [
            ("1", 1),
            ("7", 7),
            ("9007199254740991", SEQ_MAX),
            (" 12 ", 12),
        ] {
            let params = with_meta(&format!(r#""checkpoint_seq":{raw}"#));
            assert_eq!(call(&params).seq, Ok(Some(expected)), "{raw}");
        }
        for raw in [
            "0",
            "-1",
            "-0",
            "1.5",
            "7.0",
            "7e0",
            "70e-1",
            "\"3\"",
            "true",
            "false",
            "null",
            "[]",
            "{}",
            "[7]",
            "9007199254740992",
            "9223372036854775808",
            "18446744073709551617",
            "1e400",
            "\"\"",
        ] {
            let params = with_meta(&format!(r#""checkpoint_seq":{raw}"#));
            let call = call(&params);
            assert_eq!(
                call.seq.clone().map_err(|bad| bad.kind),
                Err(RefusalKind::InvalidSeq),
                "{raw}"
            );
            assert!(call.is_explicit());
        }
    }

    #[test]
    fn keys_are_strings_of_1_to_512_bytes() {
        let long = "k".repeat(512);
        let too_long = "k".repeat(513);
        let wide = "é".repeat(257);
        for (params, expected) in [
            (r#"{"name":"t","idempotencyKey":"k"}"#.to_owned(), Some("k")),
            (with_meta(r#""checkpoint_key":"\u006b""#), Some("k")),
            (
                with_meta(&format!(r#""checkpoint_key":"{long}""#)),
                Some(long.as_str()),
            ),
            (
                r#"{"name":"t","idempotencyKey":"k","_meta":{"checkpoint_key":"\u006b"}}"#.into(),
                Some("k"),
            ),
            (
                r#"{"name":"t","idempotencyKey":"j","_meta":{"checkpoint_key":"k"}}"#.into(),
                None,
            ),
            (r#"{"name":"t","idempotencyKey":null}"#.into(), None),
            (
                r#"{"name":"t","idempotencyKey":7,"_meta":{"checkpoint_key":"k"}}"#.into(),
                None,
            ),
            (with_meta(r#""checkpoint_key":"""#), None),
            (with_meta(r#""checkpoint_key":null"#), None),
            (with_meta(r#""checkpoint_key":1"#), None),
            (with_meta(r#""checkpoint_key":"\ud800""#), None),
            (
                with_meta(&format!(r#""checkpoint_key":"{too_long}""#)),
                None,
            ),
            (with_meta(&format!(r#""checkpoint_key":"{wide}""#)), None),
        ] {
            let key = call(&params).key;
            match expected {
                Some(expected) => assert_eq!(key, Ok(Some(expected.into()))),
                None => assert_eq!(key.expect_err("malformed").kind, RefusalKind::InvalidKey),
            }
        }
    }

    #[test]
    fn a_workflow_is_a_string_of_1_to_512_bytes() {
        for raw in [r#""""#, "null", "7", "{}", r#""\udc00""#] {
            let params = with_meta(&format!(r#""checkpoint_workflow":{raw}"#));
            let workflow = call(&params).workflow;
            assert_eq!(
                workflow.expect_err("malformed").kind,
                RefusalKind::InvalidWorkflow,
                "{raw}"
            );
        }
    }

    #[test]
    fn the_call_id_is_found_where_hosts_put_it() {
        let auto = CallIdFrom::Auto;
        for (meta, from, expected) in [
            (
                r#""claudecode/toolUseId":"toolu_1""#,
                &auto,
                Some("toolu_1"),
            ),
            (
                r#""vscode.requestId":"r","vscode.conversationId":"c""#,
                &auto,
                Some("r"),
            ),
            (r#""agent-tool-call-request-id":"g""#, &auto, Some("g")),
            (r#""callId":"x""#, &auto, Some("x")),
            (
                r#""claudecode/toolUseId":"a","checkpoint_call_id":"b""#,
                &auto,
                Some("b"),
            ),
            (r#""checkpoint_call_id":"b""#, &CallIdFrom::None, Some("b")),
            (r#""claudecode/toolUseId":"a""#, &CallIdFrom::None, None),
            (
                r#""mine":17,"claudecode/toolUseId":"a""#,
                &CallIdFrom::Key("mine".into()),
                Some("17"),
            ),
            (
                r#""claudecode/toolUseId":"a""#,
                &CallIdFrom::Key("mine".into()),
                None,
            ),
            (r#""claudecode/toolUseId":{}"#, &auto, None),
            (
                r#""claudecode/toolUseId":"","callId":"x""#,
                &auto,
                Some("x"),
            ),
            (r#""progressToken":"p""#, &auto, None),
        ] {
            assert_eq!(
                call(&with_meta(meta)).call_id(from).as_deref(),
                expected,
                "{meta}"
            );
        }
        let long = with_meta(&format!(r#""callId":"{}""#, "x".repeat(513)));
        assert_eq!(call(&long).call_id(&auto), None);
    }
}
