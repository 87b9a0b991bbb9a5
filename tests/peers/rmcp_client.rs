//! The official Rust SDK as a client, in a process of its own.
//!
//! The process is this very test binary, started with one test's name: it can be
//! killed like any other client, and needs no binary that would be installed.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use rmcp::model::{CallToolRequestParams, ProtocolVersion};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt as _, ServiceError};
use rmcp::transport::TokioChildProcess;
use serde_json::{Value, json};

/// Names the variable with the plan's path; it also says that this is a client and no test.
pub(crate) const PLAN: &str = "PEER_PLAN";

/// Returns this test binary, set up as a client that waits for its plan.
pub(crate) fn command() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a process knows its program"));
    command.args([
        "--exact",
        "rmcp_client::plays_a_plan_where_one_is_named",
        "--nocapture",
    ]);
    command
}

#[test]
fn plays_a_plan_where_one_is_named() {
    let Some(plan) = std::env::var_os(PLAN) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .expect("a runtime can be made")
        .block_on(play(Path::new(&plan)));
}

async fn play(plan: &Path) {
    let plan = std::fs::read_to_string(plan).expect("the plan exists");
    let plan: Value = serde_json::from_str(&plan).expect("the plan is JSON");
    let words = plan["command"].as_array().expect("the plan has a command");
    let mut words = words
        .iter()
        .map(|word| word.as_str().expect("a command is text"));
    let mut command = tokio::process::Command::new(words.next().expect("a command has a program"));
    command.args(words);
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    let lifecycle = match plan["mode"].as_str() {
        Some("legacy") => ClientLifecycleMode::Initialize,
        Some("modern") => ClientLifecycleMode::Discover { preferred_versions },
        _ => ClientLifecycleMode::Auto {
            preferred_versions,
            legacy_version: None,
        },
    };
    let transport = TokioChildProcess::new(command).expect("the command can be started");
    let client =
        ().serve_with_lifecycle(transport, lifecycle)
            .await
            .expect("the handshake succeeds");
    let revision = client.peer_info().map(|info| info.protocol_version.clone());
    say(&json!({"event": "connected", "revision": revision}));
    client
        .list_all_tools()
        .await
        .expect("an upstream lists its tools");
    for call in plan["calls"].as_array().expect("the plan has calls") {
        let seq = &call["seq"];
        say(&json!({"event": "sending", "seq": seq}));
        let name = call["name"].as_str().expect("a tool has a name").to_owned();
        let mut request = CallToolRequestParams::new(name);
        request.arguments = call["arguments"].as_object().cloned();
        request.meta =
            serde_json::from_value(json!({"checkpoint_seq": seq})).expect("_meta is an object");
        match client.call_tool(request).await {
            Ok(result) => say(&json!({"event": "result", "seq": seq, "result": result})),
            Err(ServiceError::McpError(error)) => say(&json!({
                "event": "error", "seq": seq,
                "code": error.code.0, "message": error.message, "data": error.data,
            })),
            Err(error) => panic!("call {seq}: {error}"),
        }
    }
    client.cancel().await.expect("the client ends");
    say(&json!({"event": "done"}));
}

fn say(event: &Value) {
    let mut stdout = std::io::stdout().lock();
    // The runner may have begun a line of its own.
    write!(stdout, "\n{event}\n")
        .and_then(|()| stdout.flush())
        .expect("somebody listens");
}
