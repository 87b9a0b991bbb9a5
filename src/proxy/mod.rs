//! Room `proxy`.

pub mod pipe;
