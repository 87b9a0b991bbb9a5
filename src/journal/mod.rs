//! Room `journal`.

pub mod cannot_use;
pub mod connection;
pub mod filesystem;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod header;
pub mod key;
pub mod locks;
pub mod mark;
pub(crate) mod pinned;
pub mod place;
pub(crate) mod whole_file;
