//! Thin proxies on others' SDKs, beside ours: what a proxy costs that parses each line.
//!
//! The one on the official Rust SDK is this program under another name. The others are scripts in
//! `fixtures/peers`, on the packages that `tests/peers` pins; where they can't be installed, the
//! rows say so.

use std::io;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt as _, Peer as Upstream, RequestContext, RoleClient,
    RoleServer, ServiceError,
};
use rmcp::transport::{TokioChildProcess, stdio, stdio_pipes};
use rmcp::{ErrorData, ServerHandler, ServiceExt as _};

use crate::Plan;
use crate::client::{Between, Load, Peer};
use crate::groups::{CALLS, journal, ratio, rounds};
use crate::install;
use crate::stats::{Goal, Spread, Table, p50};

/// How long the calls of one turn, one at a time, should take; slow peers make fewer of them.
const TURN: Duration = Duration::from_millis(100);

/// The fewest calls of a turn.
const CALLS_MIN: usize = 20;

/// How many are in flight where many are.
const WIDTH: usize = 64;

/// Plays a thin proxy on the Rust SDK in front of the command in `words`.
///
/// One thread: that takes less processor time than several do, as nothing is handed over.
/// `has_pipes`: on the SDK's non-blocking pipes, instead of tokio's standard input and output.
pub(crate) fn rust_proxy(words: &[String], has_pipes: bool) -> io::Result<()> {
    let (program, args) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = tokio::process::Command::new(program);
    command.args(args);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let upstream = ()
            .serve_with_lifecycle(
                TokioChildProcess::new(command)?,
                ClientLifecycleMode::Initialize,
            )
            .await
            .map_err(io::Error::other)?;
        let thin = Thin(upstream.peer().clone());
        let client = if has_pipes {
            thin.serve(stdio_pipes()).await
        } else {
            thin.serve(stdio()).await
        };
        let client = client.map_err(io::Error::other)?;
        client.waiting().await.map_err(io::Error::other)?;
        upstream.cancel().await.map_err(io::Error::other)?;
        Ok(())
    })
}

/// Passes calls on, and nothing else.
struct Thin(Upstream<RoleClient>);

impl ServerHandler for Thin {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.0.list_tools(request).await.map_err(told)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.0.call_tool_once(request).await.map_err(told)
    }
}

fn told(error: ServiceError) -> ErrorData {
    match error {
        ServiceError::McpError(error) => error,
        other => ErrorData::internal_error(other.to_string(), None),
    }
}

/// A peer's name in the table, whether the contract holds us to it, and its command.
type Contestant = (&'static str, bool, Result<Vec<String>, String>);

fn contestants() -> io::Result<[Contestant; 4]> {
    let me = install::text(&std::env::current_exe()?);
    let rust = |role: &str| Ok([&me, "--role", role].map(String::from).to_vec());
    let node = install::install_node()
        .map(|node| vec!["node".into(), install::text(&node.script("proxy-v1.js"))]);
    let fastmcp = install::interpreter("fastmcp").map(|python| {
        let script = install::fixture("python/proxy.py");
        vec![install::text(&python), install::text(&script)]
    });
    Ok([
        ("Rust SDK", true, rust("rust-sdk")),
        ("Rust SDK on tokio's stdio", false, rust("rust-sdk-stdio")),
        ("TypeScript SDK", false, node),
        ("FastMCP", false, fastmcp),
    ])
}

/// What one turn gave.
struct Turn {
    p50: f64,
    cpu: f64,
    rate: f64,
}

/// Someone who has turns, and how many calls make one.
struct Seat {
    peer: Peer,
    calls: usize,
}

impl Seat {
    fn new(between: &Between) -> io::Result<Self> {
        let mut peer = Peer::ready(between, None)?;
        let load = Load::of(100);
        peer.probe(load)?;
        peer.pipelined(load, 4 * WIDTH, WIDTH)?;
        let usual = p50(&peer.sequential(load, CALLS_MIN)?) / 1e6;
        let room = Duration::from_secs_f64(usual.max(1e-6));
        let calls = TURN.as_micros() / room.as_micros().max(1);
        let calls = usize::try_from(calls).unwrap_or(CALLS);
        Ok(Self {
            peer,
            calls: calls.clamp(CALLS_MIN, CALLS),
        })
    }

    fn turn(&mut self) -> io::Result<Turn> {
        let load = Load::of(100);
        let before = self.peer.cpu()?;
        let times = self.peer.sequential(load, self.calls)?;
        let cpu = self.peer.cpu()?.saturating_sub(before);
        let many = self.calls.max(4 * WIDTH);
        let took = self.peer.pipelined(load, many, WIDTH)?;
        Ok(Turn {
            p50: p50(&times),
            cpu: cpu.as_secs_f64() / self.calls as f64,
            rate: many as f64 / took.as_secs_f64(),
        })
    }
}

/// Where our own and the relay sit; the peers follow.
const RELAY: usize = 0;
const PASS: usize = 1;
const JOURNALED: usize = 2;

pub(crate) fn peers(plan: &Plan, table: &mut Table) -> io::Result<()> {
    let mut seats = Vec::new();
    for between in [Between::Relay, Between::Pass, journal(plan, "peers")] {
        seats.push(Seat::new(&between)?);
    }
    let mut names = Vec::new();
    for (name, is_goal, command) in contestants()? {
        let seat = match command {
            Ok(command) => Seat::new(&Between::Thin(command)).map_err(|error| error.to_string()),
            Err(reason) => {
                let first = reason.lines().next().unwrap_or_default().to_owned();
                Err(format!("not installed: {first}"))
            }
        };
        match seat {
            Ok(seat) => {
                seats.push(seat);
                names.push((name, is_goal));
            }
            Err(reason) => table.not_run(&format!("peer, {name}"), &reason),
        }
    }
    let found = rounds(plan.rounds, &mut seats, Seat::turn)?;
    let goal = |is_goal: bool, least: f64| match is_goal {
        true => Goal::Least(least),
        false => Goal::Shown,
    };
    for (place, (name, is_goal)) in names.into_iter().enumerate() {
        let seat = JOURNALED + 1 + place;
        let p50 = Spread::of(found[seat].iter().map(|turn| turn.p50));
        table.ratio(&format!("{name}, 100 B, p50"), "µs", Goal::Shown, p50);
        let cpu = Spread::of(found[seat].iter().map(|turn| turn.cpu * 1e6));
        let what = format!("{name}, 100 B, CPU of a call");
        table.ratio(&what, "µs", Goal::Shown, cpu);
        for (base, whose) in [(RELAY, "relay"), (PASS, "pass-through")] {
            let what = format!("{name}, 100 B, p50 / {whose}");
            let over = ratio(&found, seat, base, |turn| turn.p50);
            table.ratio(&what, "x", Goal::Shown, over);
        }
        // What even a proxy that does nothing leaves of it.
        let what = format!("{name}, 100 B, CPU / relay");
        let over = ratio(&found, seat, RELAY, |turn| turn.cpu);
        table.ratio(&what, "x", Goal::Shown, over);
        let what = format!("{name}, 100 B, CPU / pass-through");
        let over = ratio(&found, seat, PASS, |turn| turn.cpu);
        table.ratio(&what, "x", goal(is_goal, 6.0), over);
        let what = format!("64 in flight, pass-through, calls/s / {name}");
        let over = ratio(&found, PASS, seat, |turn| turn.rate);
        table.ratio(&what, "x", Goal::Shown, over);
        let what = format!("64 in flight, journaled, calls/s / {name}");
        let over = ratio(&found, JOURNALED, seat, |turn| turn.rate);
        table.ratio(&what, "x", goal(is_goal, 8.0), over);
    }
    Ok(())
}
