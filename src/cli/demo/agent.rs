//! The agent: it pays four orders, in order, and knows nothing of what it did before.
//!
//! It is as simple as an agent can be that may be killed at any moment: each call has its place in
//! the plan as its `checkpoint_seq`, and each run starts over from the first. It starts the proxy
//! as any MCP host starts a server.
//!
//! Must not: remember anything between runs, or look at the journal or the ledger.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{JOURNAL, LEDGER, broken, program};
use crate::cli::error::{CliError, Kind};
use crate::cli::exit::Exit;

/// Run the agent of the demo
#[derive(Args, Debug)]
pub(super) struct AgentArgs {
    /// Socket that is handed on to the upstream
    #[arg(value_name = "SOCKET")]
    stage: PathBuf,
}

/// The orders to be paid, with their amounts in cents. The first has seq 1.
pub(super) const PLAN: [(&str, u64); 4] = [
    ("A-100", 2500),
    ("A-101", 1250),
    ("A-102", 900),
    ("A-103", 4200),
];

/// What the agent was told about one call; one line of JSON on its standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    /// The call's place in the plan.
    pub(super) seq: u64,
    /// The result's text, or the error's message.
    pub(super) text: String,
    /// A refusal's kind; `None`: it was a result.
    pub(super) refused: Option<String>,
    /// Whether the answer came from the journal.
    pub(super) replayed: bool,
}

/// Pays what the plan says and stops at the first answer that is no receipt.
pub(super) fn run(args: &AgentArgs) -> Result<Exit, CliError> {
    let mut proxy = Proxy::start(args)?;
    proxy.ask(
        0,
        "initialize",
        json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "demo-agent", "version": "1"},
        }),
    )?;
    proxy.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
    for (seq, (order, cents)) in (1..).zip(PLAN) {
        let answer = proxy.ask(
            seq,
            "tools/call",
            json!({
                "name": "charge",
                "arguments": {"order": order, "cents": cents},
                "_meta": {"checkpoint_seq": seq},
            }),
        )?;
        let told = read(seq, &answer);
        let line =
            serde_json::to_string(&told).map_err(|error| CliError::from(io::Error::from(error)))?;
        let mut output = io::stdout().lock();
        writeln!(output, "{line}")?;
        output.flush()?;
        if told.refused.is_some() {
            break;
        }
    }
    proxy.end()?;
    Ok(Exit::Ok)
}

fn read(seq: u64, answer: &Value) -> Told {
    let words = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match answer.get("error") {
        Some(error) => Told {
            seq,
            text: words(&error["message"]),
            refused: Some(words(&error["data"]["kind"])),
            replayed: false,
        },
        None => Told {
            seq,
            text: words(&answer["result"]["content"][0]["text"]),
            refused: None,
            replayed: answer["result"]["_meta"]["checkpoint"]["replayed"] == true,
        },
    }
}

/// The proxy as the agent sees it: a child with two pipes.
struct Proxy {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Proxy {
    fn start(args: &AgentArgs) -> Result<Self, CliError> {
        let program = program()?;
        let mut child = Command::new(&program)
            .args(["--annotate", "--journal", JOURNAL, "--"])
            .arg(&program)
            .args(["demo", "upstream", LEDGER, "--stage"])
            .arg(&args.stage)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(broken("the proxy can't be started"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(CliError::new(Kind::Failure, "the proxy has no pipes"));
        };
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    fn say(&mut self, message: &Value) -> Result<(), CliError> {
        writeln!(self.input, "{message}").map_err(broken("the proxy does not listen"))
    }

    /// Asks, and waits for the answer to it.
    fn ask(&mut self, id: u64, method: &str, params: Value) -> Result<Value, CliError> {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        loop {
            let mut line = String::new();
            let bytes = self
                .output
                .read_line(&mut line)
                .map_err(broken("the proxy can't be heard"))?;
            if bytes == 0 {
                return Err(
                    CliError::new(Kind::Failure, "the proxy ended without an answer")
                        .hint("its log, in the demo's folder, may say why"),
                );
            }
            match serde_json::from_str::<Value>(&line) {
                Ok(message) if message["id"] == id => return Ok(message),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Closes the proxy's input, as a host does, and waits for its end.
    fn end(self) -> Result<(), CliError> {
        let Self {
            mut child,
            input,
            output,
        } = self;
        drop((input, output));
        child
            .wait()
            .map(|_| ())
            .map_err(broken("the proxy's end can't be awaited"))
    }
}
