//! Room `mcp`.
