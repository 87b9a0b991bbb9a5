//! The rules: what a call means and what may happen to its entry.
//!
//! Everything here is a pure function or a plain value. The room must not read a clock, a file,
//! a socket or an environment, must not log, and must not know SQL or JSON-RPC. Times, ids and
//! randomness come in as arguments, so that each rule can be tested over the whole product of
//! its facts and driven by a simulation.
//!
//! Reading order: [`entry`] (what is stored), [`decide`] (THE TABLE), [`lifecycle`] (every
//! change to an entry), [`policy`] (what may differ from tool to tool).

pub mod audit;
pub mod decide;
pub mod entry;
pub mod flight;
pub mod ids;
pub mod lifecycle;
pub mod policy;
pub mod retention;
pub mod ruling;
pub mod shell;
pub mod signature;
pub mod units;
