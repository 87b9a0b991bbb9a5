//! What an upstream's answer means for the entry of its call.
//!
//! Read tolerantly and from the last of equal members, as most clients do.

use crate::json::{self, Kind};

/// What a `result` says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResultView<'a> {
    /// Whether `isError` is `true`: the tool ran and failed.
    pub is_error: bool,
    /// `resultType`, as it came.
    pub result_type: Option<String>,
    /// The handle, where the answer is a task of either generation.
    pub task: Option<TaskHandle>,
    /// The raw `requestState` of an answer that asks for input.
    pub request_state: Option<&'a [u8]>,
    /// The names in `inputRequests`, sorted; lone surrogates become U+FFFD.
    pub input_request_keys: Vec<String>,
    /// What `structuredContent` is: only an object is legal before 2026-07-28.
    pub structured_content: Option<Kind>,
    /// Whether `result` is an object at all.
    pub is_object: bool,
}

impl ResultView<'_> {
    /// Returns whether this asks for input, and so is no outcome.
    ///
    /// Source: MCP 2026-07-28, multi round-trip requests.
    pub fn is_input_required(&self) -> bool {
        self.result_type.as_deref() == Some("input_required")
    }
}

/// A task that an answer names. It is the same task only if both members are the same: upstreams
/// count from 1 again after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskHandle {
    /// `taskId`
    pub task_id: String,
    /// `createdAt`, as it came.
    pub created_at: Option<String>,
}

/// The state of a task, as `tasks/get` or a notice tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskView<'a> {
    /// Which task.
    pub handle: TaskHandle,
    /// `working`, `input_required`, `completed`, `failed`, `cancelled`, or what a later one adds.
    pub status: Option<String>,
    /// The raw final `result`, which only the 2026 extension sends here.
    pub result: Option<&'a [u8]>,
    /// The raw final `error`, likewise.
    pub error: Option<&'a [u8]>,
}

/// What an `error` says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ErrorView {
    /// `code`, if it is an integer.
    pub code: Option<i64>,
    /// `message`; lone surrogates become U+FFFD.
    pub message: String,
}

impl ErrorView {
    /// Returns whether the protocol defines this error as 'mend and send again': the call was not
    /// executed.
    ///
    /// Source: MCP 2026-07-28, error codes (-32020 to -32022); MCP 2025-11-25, elicitation (-32042).
    pub fn is_not_executed(&self) -> bool {
        matches!(self.code, Some(-32020 | -32021 | -32022 | -32042))
    }

    /// Returns whether this is the code that SDKs give a connection that was closed under a call.
    pub fn is_connection_closed(&self) -> bool {
        self.code == Some(-32000)
    }
}

/// Reads a raw `result`.
pub fn read_result(raw: &[u8]) -> ResultView<'_> {
    let mut view = ResultView {
        is_object: json::is_object(raw),
        ..ResultView::default()
    };
    let mut legacy_task = None;
    let mut has_content = false;
    for member in json::Members::new(raw) {
        match &*member.key {
            b"isError" => view.is_error = json::kind(member.value) == Kind::True,
            b"resultType" => view.result_type = text(member.value),
            b"task" => legacy_task = read_handle(member.value),
            b"content" => has_content = true,
            b"requestState" => {
                view.request_state =
                    (json::kind(member.value) != Kind::Null).then_some(member.value);
            }
            b"inputRequests" => {
                view.input_request_keys = json::Members::new(member.value)
                    .map(|request| String::from_utf8_lossy(&request.key).into_owned())
                    .collect();
                view.input_request_keys.sort_unstable();
            }
            b"structuredContent" => view.structured_content = Some(json::kind(member.value)),
            _ => {}
        }
    }
    view.task = match view.result_type.as_deref() {
        Some("task") => read_handle(raw),
        // A tool's own result may have a member of that name, a task's handle has no content.
        None => legacy_task.filter(|_| !has_content),
        Some(_) => None,
    };
    view
}

/// Reads the state of a task: the raw `result` of `tasks/get` or `tasks/cancel`, or the raw
/// `params` of a task's notice.
pub fn read_task(raw: &[u8]) -> Option<TaskView<'_>> {
    let handle = read_handle(raw)?;
    let last = |name| json::last_member(raw, name).map(|member| member.value);
    Some(TaskView {
        handle,
        status: last("status").and_then(text),
        result: last("result"),
        error: last("error"),
    })
}

/// Returns the `taskId` in the raw `params` of a `tasks/*` request.
pub fn task_id(params: &[u8]) -> Option<String> {
    json::last_member(params, "taskId").and_then(|member| text(member.value))
}

/// Reads a raw `error`.
pub fn read_error(raw: &[u8]) -> ErrorView {
    let mut view = ErrorView::default();
    for member in json::Members::new(raw) {
        match &*member.key {
            b"code" => view.code = read_code(member.value),
            b"message" => view.message = text(member.value).unwrap_or_default(),
            _ => {}
        }
    }
    view
}

fn read_handle(raw: &[u8]) -> Option<TaskHandle> {
    let created_at = json::last_member(raw, "createdAt").and_then(|member| text(member.value));
    Some(TaskHandle {
        task_id: task_id(raw)?,
        created_at,
    })
}

/// Reads an integer by its value: `-32602.0` is one.
fn read_code(raw: &[u8]) -> Option<i64> {
    if json::kind(raw) != Kind::Number {
        return None;
    }
    let key = json::number_key(raw);
    let key = std::str::from_utf8(&key).ok()?;
    let Some((digits, power)) = key.split_once('e') else {
        return (key == "0").then_some(0);
    };
    let power = power.parse::<u32>().ok()?;
    digits
        .parse::<i64>()
        .ok()?
        .checked_mul(10_i64.checked_pow(power)?)
}

fn text(raw: &[u8]) -> Option<String> {
    (json::kind(raw) == Kind::String)
        .then(|| String::from_utf8_lossy(&json::string(raw)).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tools_own_member_called_task_is_no_handle() {
        let own = br#"{"content":[],"task":{"taskId":"T-1","createdAt":"today"}}"#;
        assert_eq!(read_result(own).task, None);
    }

    #[test]
    fn complete_results() {
        let view = read_result(br#"{"content":[],"isError":true,"structuredContent":[1]}"#);
        assert!(view.is_error && view.is_object && !view.is_input_required());
        assert_eq!((view.result_type, view.task), (None, None));
        assert_eq!(view.structured_content, Some(Kind::Array));
        assert!(!read_result(br#"{"isError":"true"}"#).is_error);
        assert!(!read_result(b"7").is_object);
        assert_eq!(
            read_result(br#"{"resultType":"odd"}"#)
                .result_type
                .as_deref(),
            Some("odd")
        );
    }

    #[test]
    fn questions() {
        let raw = br#"{"resultType":"input_required","inputRequests":{"b":{},"a":{}},"requestState":"s"}"#;
        let view = read_result(raw);
        assert!(view.is_input_required());
        assert_eq!(view.input_request_keys, ["a", "b"]);
        assert_eq!(view.request_state, Some(&br#""s""#[..]));
        let view = read_result(br#"{"resultType":"input_required","requestState":null}"#);
        assert_eq!(view.request_state, None);
    }

    #[test]
    fn tasks_of_both_generations() {
        let handle = Some(TaskHandle {
            task_id: "1".into(),
            created_at: Some("z".into()),
        });
        let legacy = br#"{"task":{"taskId":"1","status":"working","createdAt":"z"}}"#;
        assert_eq!(read_result(legacy).task, handle);
        let modern = br#"{"resultType":"task","taskId":"1","status":"working","createdAt":"z"}"#;
        assert_eq!(read_result(modern).task, handle);
        for none in [
            &br#"{"taskId":"1","createdAt":"z"}"#[..],
            br#"{"resultType":"complete","task":{"taskId":"1"}}"#,
            br#"{"task":{"taskId":7}}"#,
            br#"{"task":null}"#,
        ] {
            assert_eq!(read_result(none).task, None);
        }
        let raw = br#"{"resultType":"complete","taskId":"1","createdAt":"z","status":"failed","error":{"code":1}}"#;
        let view = read_task(raw).expect("a task");
        assert_eq!(Some(view.handle), handle);
        assert_eq!(view.status.as_deref(), Some("failed"));
        assert_eq!(
            (view.result, view.error),
            (None, Some(&br#"{"code":1}"#[..]))
        );
        assert_eq!(task_id(br#"{"taskId":"\u0031"}"#).as_deref(), Some("1"));
        assert_eq!(read_task(b"{}"), None);
    }

    #[test]
    fn errors() {
        for (raw, expected) in [
            (r#"{"code":-32602,"message":"m"}"#, Some(-32602)),
            (r#"{"code":-32602.0}"#, Some(-32602)),
            (r#"{"code":0}"#, Some(0)),
            (r#"{"code":1e3}"#, Some(1000)),
            (r#"{"code":1.5}"#, None),
            (r#"{"code":1e400}"#, None),
            (r#"{"code":"-1"}"#, None),
            ("null", None),
        ] {
            assert_eq!(read_error(raw.as_bytes()).code, expected, "{raw}");
        }
        let error = |code| ErrorView {
            code: Some(code),
            message: String::new(),
        };
        for code in [-32020, -32021, -32022, -32042] {
            assert!(error(code).is_not_executed());
        }
        for code in [-32602, -32603, -32000, 7702] {
            assert!(!error(code).is_not_executed());
        }
        assert!(error(-32000).is_connection_closed());
        assert!(!error(-32001).is_connection_closed() && !error(32000).is_connection_closed());
        assert_eq!(read_error(br#"{"message":"a\u0062"}"#).message, "ab");
    }
}
