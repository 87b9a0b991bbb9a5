//! `checkpoint` stands between an AI agent and an MCP server and makes tool calls safe to resume.

pub mod cli;
pub mod guard;
pub mod journal;
pub mod json;
pub mod mcp;
pub mod proxy;
pub mod rules;
#[doc(hidden)]
pub mod seeded;
