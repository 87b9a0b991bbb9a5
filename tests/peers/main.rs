//! Real clients and real upstreams, run through the proxy.
//!
//! The other tests speak the protocol as we understand it. Here the official SDKs
//! and reference upstreams of both protocol eras speak it as they do, so that a
//! habit of theirs that we never thought of fails a test and not a user.
//!
//! - `install` installs the pinned peers under `target/peers`, once; `setup` skips without them.
//! - `world` is one test's folder, its upstreams and their counted effects.
//! - `client` runs a plan of calls with one client in a process that can be killed.
//! - `resume`, `rounds`, `refusals`, `agents`, `bytes` and `export` hold the tests.
//!
//! `PEERS_DIRECT=1` leaves the proxy out: it shows what a peer does by itself, and
//! ends each test where the journal would come in.
//!
//! A test whose runtime (node, python3) is missing says `SKIPPED` on stderr and
//! passes; under `CI=true` it fails. Nothing here may depend on the wall clock.

mod agents;
#[expect(
    dead_code,
    clippy::unwrap_used,
    reason = "it belongs to the black-box tests, which use all of it"
)]
#[path = "../it/bench.rs"]
mod bench;
mod bytes;
mod client;
mod export;
mod install;
mod refusals;
mod resume;
mod rmcp_client;
mod rounds;
mod setup;
mod world;
