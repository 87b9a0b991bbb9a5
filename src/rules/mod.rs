//! Room `rules`.
