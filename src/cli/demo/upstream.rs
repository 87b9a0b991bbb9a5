//! The sample upstream: a payments server over stdio whose ledger is the truth.
//!
//! It is as forgetful as most: it knows nothing of seqs, keys or journals, and charges whatever it
//! is asked to charge. So one line in the ledger is one charge that really happened.
//!
//! Must not: know of checkpoint, or make anything idempotent.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, Read as _, Seek as _, Write as _};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::broken;
use super::stage;
use crate::cli::error::CliError;
use crate::cli::exit::Exit;

/// Run the sample payments upstream: an MCP server on standard input and output
///
/// Its tool `charge` (order, cents) appends a line to LEDGER, `refuse` fails without a charge, and
/// `charges` tells what the ledger holds. It takes no precautions against being asked twice.
#[derive(Args, Debug)]
pub(super) struct UpstreamArgs {
    /// File of the charges that were made, one a line
    #[arg(value_name = "LEDGER")]
    ledger: PathBuf,

    /// Socket at which a charge waits, once it is made and before it is answered
    #[arg(long, value_name = "SOCKET", hide = true)]
    stage: Option<PathBuf>,
}

/// The revisions of the protocol that it speaks, the newest first.
const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

pub(super) fn run(args: &UpstreamArgs) -> Result<Exit, CliError> {
    let mut payments = Payments {
        ledger: OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&args.ledger)
            .map_err(broken("the ledger can't be opened"))?,
        stage: args.stage.clone(),
    };
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Some(answer) = payments.answer(&line) else {
            continue;
        };
        if writeln!(output, "{answer}")
            .and_then(|()| output.flush())
            .is_err()
        {
            break;
        }
    }
    Ok(Exit::Ok)
}

struct Payments {
    ledger: File,
    stage: Option<PathBuf>,
}

impl Payments {
    /// Returns the answer to one line; a notice has none.
    fn answer(&mut self, line: &str) -> Option<Value> {
        let message: Value = match serde_json::from_str(line) {
            Ok(message) => message,
            Err(_) => return Some(error(&Value::Null, -32700, "that is not JSON")),
        };
        let id = message.get("id")?;
        let params = &message["params"];
        let result = match message["method"].as_str()? {
            "initialize" => hello(params),
            "ping" => json!({}),
            "tools/list" => tools(),
            "tools/call" => match params["name"].as_str() {
                Some("charge") => self.charge(&params["arguments"]),
                Some("refuse") => text("the card was declined", true),
                Some("charges") => self.charges(),
                _ => return Some(error(id, -32602, "there is no such tool")),
            },
            _ => return Some(error(id, -32601, "there is no such method")),
        };
        Some(json!({"jsonrpc": "2.0", "id": id, "result": result}))
    }

    fn charge(&mut self, arguments: &Value) -> Value {
        let (Some(order), Some(cents)) = (arguments["order"].as_str(), arguments["cents"].as_u64())
        else {
            return text("a charge needs an order and an amount in cents", true);
        };
        let order: String = order.chars().filter(|c| !c.is_control()).collect();
        match self.record(&order, cents) {
            Ok(number) => {
                if let Some(stage) = &self.stage {
                    stage::report(stage, &order);
                }
                text(&receipt(number, &order, cents), false)
            }
            Err(error) => text(&format!("the ledger can't be written: {error}"), true),
        }
    }

    /// Makes a charge: after this it has happened, whatever becomes of anybody.
    fn record(&mut self, order: &str, cents: u64) -> io::Result<usize> {
        let number = self.lines()?.lines().count() + 1;
        writeln!(self.ledger, "ch_{number} {order} {cents}")?;
        self.ledger.sync_all()?;
        Ok(number)
    }

    fn charges(&mut self) -> Value {
        match self.lines() {
            Ok(lines) => text(&lines, false),
            Err(error) => text(&format!("the ledger can't be read: {error}"), true),
        }
    }

    fn lines(&mut self) -> io::Result<String> {
        self.ledger.rewind()?;
        let mut lines = String::new();
        self.ledger.read_to_string(&mut lines)?;
        Ok(lines)
    }
}

/// Returns what a charge is answered with.
pub(super) fn receipt(number: usize, order: &str, cents: u64) -> String {
    format!("charged {order}: {cents} cents, receipt ch_{number}")
}

/// Returns a tool result.
pub(super) fn text(text: &str, is_error: bool) -> Value {
    json!({"content": [{"type": "text", "text": text}], "isError": is_error})
}

fn hello(params: &Value) -> Value {
    let asked = params["protocolVersion"].as_str().unwrap_or_default();
    let revision = REVISIONS
        .into_iter()
        .find(|revision| *revision == asked)
        .unwrap_or(REVISIONS[0]);
    json!({
        "protocolVersion": revision,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "sample-payments", "version": "1"},
    })
}

fn tools() -> Value {
    let schema = json!({
        "type": "object",
        "properties": {"order": {"type": "string"}, "cents": {"type": "integer", "minimum": 0}},
        "required": ["order", "cents"],
    });
    json!({"tools": [
        {"name": "charge", "description": "Charges an order", "inputSchema": schema},
        {
            "name": "refuse",
            "description": "Fails, and charges nothing",
            "inputSchema": {"type": "object"},
        },
        {
            "name": "charges",
            "description": "Tells all charges",
            "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": true},
        },
    ]})
}

fn error(id: &Value, code: i32, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payments(ledger: &std::path::Path) -> Payments {
        let ledger = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(ledger);
        Payments {
            ledger: ledger.unwrap(),
            stage: None,
        }
    }

    fn call(name: &str, arguments: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}","arguments":{arguments}}}}}"#
        )
    }

    #[test]
    fn each_charge_that_is_asked_for_happens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let order = call("charge", r#"{"order":"A-1\n","cents":5}"#);
        for number in 1..=2 {
            let answer = payments(&path).answer(&order).unwrap();
            let told = answer["result"]["content"][0]["text"].as_str().unwrap();
            assert_eq!(told, receipt(number, "A-1", 5));
        }
        let ledger = std::fs::read_to_string(&path).unwrap();
        assert_eq!(ledger, "ch_1 A-1 5\nch_2 A-1 5\n");
    }

    #[test]
    fn what_is_no_charge_charges_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut payments = payments(&path);
        for arguments in ["{}", "null", r#"{"order":"A-1","cents":-1}"#] {
            let answer = payments.answer(&call("charge", arguments)).unwrap();
            assert_eq!(answer["result"]["isError"], true, "{arguments}");
        }
        let answer = payments.answer(&call("refuse", "{}")).unwrap();
        assert_eq!(answer["result"]["isError"], true);
        let codes = [
            (call("nothing", "{}"), -32602),
            (r#"{"id":1,"method":"server/discover"}"#.to_owned(), -32601),
            ("nonsense".to_owned(), -32700),
        ];
        for (line, code) in codes {
            assert_eq!(payments.answer(&line).unwrap()["error"]["code"], code);
        }
        assert!(
            payments
                .answer(r#"{"method":"notifications/initialized"}"#)
                .is_none()
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}
