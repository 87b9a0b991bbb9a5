//! The suite that each back-end must pass.
