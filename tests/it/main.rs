//! Black-box tests: the real binary between a scripted client and the scripted upstream.
//!
//! One file a subject. The oracle for "it ran once" is the upstream's effects log, the oracle for
//! "unchanged" are the bytes that it received and sent; the journal is asked last, by the
//! operator's commands. `fixture.rs` proves the oracle itself, without a proxy.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test's own helpers fail loudly; clippy knows only the test functions themselves"
)]

mod annotate;
mod desk_read;
mod durability;
mod ends;
mod fixture;
mod flags;
mod guarantee;
mod guard;
mod journal;
mod refusals;
mod relay;
mod replay;
mod rounds;
mod world;
