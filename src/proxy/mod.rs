//! Room `proxy`.

pub mod child;
pub mod group;
pub mod guardian;
pub mod ladder;
pub mod pipe;
mod pre_exec;
pub mod signals;
pub mod stderr;
pub mod session;
