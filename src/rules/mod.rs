//! Room `rules`.

pub mod signature;
