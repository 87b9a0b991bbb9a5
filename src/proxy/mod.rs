//! The proxy: bytes in, bytes out, and the processes at both ends.
//!
//! [`session`] decides, without I/O; `driver` reads and writes; [`child`], [`guardian`] and
//! [`ladder`] are about the upstream's life and end; [`books`] opens the journal and `desk` hands
//! it batches. [`reconcile`] asks whom a policy names about a call in doubt.
//!
//! Must not: write to stdout anything but what the session says, or look at arguments and results
//! beyond what the session does.

pub mod books;
pub mod child;
mod desk;
mod driver;
pub mod group;
pub mod guardian;
pub mod ladder;
pub mod pipe;
mod pre_exec;
pub mod reconcile;
mod run;
pub mod session;
pub mod signals;
pub mod stderr;

pub use run::{Failure, Settings, run};
