//! Black-box tests: the real binary between a scripted client and the scripted upstream.
//!
//! One file a subject. The oracle for "it ran once" is the upstream's effects log, the oracle for
//! "unchanged" are the bytes that it received and sent; the journal is asked last, by the
//! operator's commands. `fixture.rs` proves the oracle itself, without a proxy.
//!
//! Run with `cargo test --features test-fakes --test it`. For trying things out:
//! `CHECKPOINT_IT_PROGRAM` names another build to test, `CHECKPOINT_IT_DIRECT` leaves the proxy out,
//! `CHECKPOINT_IT_SEED` and `CHECKPOINT_IT_KILLS` repeat or lengthen the random kills.
//! `durability.rs` needs `strace`, `policy_clocks.rs` needs `faketime`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test's own helpers fail loudly; clippy knows only the test functions themselves"
)]

mod annotate;
mod arrays;
mod bench;
mod call;
mod cancel;
mod desk_absent;
mod desk_adopt;
mod desk_decide;
mod desk_errors;
mod desk_fork;
mod desk_late;
mod desk_open;
mod desk_output;
mod desk_read;
mod desk_reopen;
mod desk_resolve;
mod desk_tail;
mod desk_terminal;
mod desk_words;
mod durability;
mod ends;
mod ends_in_time;
mod entry;
mod fixture;
mod flags;
mod guarantee;
mod guard;
mod join;
mod journal;
mod lines;
mod malformed;
mod ops_doctor;
mod ops_export;
mod ops_gc;
mod ops_verify;
mod ops_wrap;
mod passing;
mod policy_clocks;
mod policy_delivery;
mod policy_fork;
mod policy_keys;
mod policy_leases;
mod policy_many;
mod policy_pass_key;
mod policy_reconcile;
mod policy_reconcile_tool;
mod policy_resume;
mod policy_runs;
mod pressure;
mod proxy;
mod refusals;
mod relay;
mod replay;
mod rounds;
mod setup;
mod tasks;
mod world;
