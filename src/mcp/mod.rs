//! The wire as data: what a line is, what a call says, what an answer means, what we answer.
//!
//! Invariants: bytes that pass are never copied, changed or judged beyond what telling a
//! `tools/call` apart takes; a line that two parsers may read differently where we decide is never
//! taken for harmless; ids are kept as the bytes that came.
//!
//! Must not: do I/O, read a clock, know the journal or decide what happens to a call.

pub mod call;
pub mod capability;
pub mod frame;
pub mod id;
pub mod identity;
pub mod listing;
pub mod outcome;
pub mod own_call;
pub mod pass_key;
pub mod refusal;
pub mod reply;
pub mod upstream;
