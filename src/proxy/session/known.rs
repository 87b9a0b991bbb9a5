//! What passes by tells about the two sides: names, versions, revisions, tools.
//!
//! Nothing here decides whether a call runs, but for a tool's hint where `--trust-annotations`
//! says so, and then an unknown tool counts as one that changes the world.
//!
//! Must not: ask the upstream anything.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::json;
use crate::mcp::capability::Capabilities;
use crate::mcp::listing::read_listing;
use crate::mcp::outcome::TaskHandle;

/// What has been learned.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The client's name and version.
    pub client: Option<(String, String)>,
    /// The upstream's name and version.
    pub upstream: Option<(String, String)>,
    /// The protocol revision of the handshake.
    pub protocol_version: Option<String>,
    /// What the client has declared in the handshake; requests of the stateless revision declare
    /// it themselves.
    pub(super) client_capabilities: Capabilities,
    /// It changed since it was last asked for.
    pub is_news: bool,
    tools: BTreeMap<String, Tool>,
    /// When the tasks were created that this upstream has been asked after.
    tasks: BTreeMap<String, String>,
}

/// How many tasks are remembered; more are a caller's that asks after all it can think of.
const TASKS_MAX: usize = 4096;

#[derive(Clone, Debug)]
struct Tool {
    digest: [u8; 32],
    is_read_only: bool,
    has_output_schema: bool,
    idempotent_hint: Option<bool>,
}

impl Known {
    /// Reads the params of `initialize`, or the `_meta` of a request of the stateless revision.
    pub(super) fn read_client_info(&mut self, info: &[u8]) {
        if self.client.is_none()
            && let Some(read) = name_and_version(info)
        {
            self.client = Some(read);
            self.is_news = true;
        }
    }

    /// Reads the result of `initialize` or `server/discover`.
    pub(super) fn read_identity(&mut self, result: &[u8]) {
        if !json::is_object(result) {
            return;
        }
        let meta = json::last_member(result, "_meta").map(|member| member.value);
        let info = json::last_member(result, "serverInfo")
            .map(|member| member.value)
            .or_else(|| {
                let meta = meta.filter(|meta| json::is_object(meta))?;
                json::last_member(meta, "io.modelcontextprotocol/serverInfo")
                    .map(|member| member.value)
            });
        if let Some(read) = info.and_then(name_and_version) {
            self.upstream = Some(read);
            self.is_news = true;
        }
        if let Some(version) =
            json::last_member(result, "protocolVersion").and_then(|member| json::text(member.value))
        {
            self.protocol_version = Some(version.into_owned());
            self.is_news = true;
        }
    }

    /// Remembers which task this upstream means by an id.
    pub(super) fn note_task(&mut self, task: &TaskHandle) {
        let Some(created_at) = &task.created_at else {
            return;
        };
        if self.tasks.len() >= TASKS_MAX {
            self.tasks.clear();
        }
        self.tasks.insert(task.task_id.clone(), created_at.clone());
    }

    /// Returns when the task was created that this upstream means by an id, if it has said so.
    pub(super) fn task_created_at(&self, task_id: &str) -> Option<String> {
        self.tasks.get(task_id).cloned()
    }

    /// Reads a page of the tools' list. The first page replaces what was known.
    pub(super) fn read_tools(&mut self, result: &[u8], is_first: bool) {
        if is_first {
            self.tools.clear();
        }
        for tool in read_listing(result).tools {
            let known = Tool {
                digest: Sha256::digest(tool.raw).into(),
                is_read_only: tool.read_only_hint == Some(true),
                has_output_schema: tool.has_output_schema,
                idempotent_hint: tool.idempotent_hint,
            };
            match self.tools.entry(tool.name.into_owned()) {
                // Two definitions of one name: whatever one of them promises is not trusted.
                std::collections::btree_map::Entry::Occupied(mut twice) => {
                    let tool = twice.get_mut();
                    tool.is_read_only = tool.is_read_only && known.is_read_only;
                    tool.digest = known.digest;
                    tool.has_output_schema |= known.has_output_schema;
                    tool.idempotent_hint = tool
                        .idempotent_hint
                        .filter(|hint| known.idempotent_hint == Some(*hint));
                }
                std::collections::btree_map::Entry::Vacant(first) => {
                    first.insert(known);
                }
            }
        }
    }

    /// The upstream said that its tools have changed: nothing is known of them any more.
    pub(super) fn forget_tools(&mut self) {
        self.tools.clear();
    }

    /// Returns whether the last list said that the tool changes nothing.
    pub(super) fn is_read_only(&self, tool: &str) -> bool {
        self.tools.get(tool).is_some_and(|tool| tool.is_read_only)
    }

    /// Returns the last list's `idempotentHint` of the tool.
    pub(super) fn idempotent_hint(&self, tool: &str) -> Option<bool> {
        self.tools.get(tool)?.idempotent_hint
    }

    /// Returns whether a client may hold the tool's `structuredContent` to a schema.
    pub(super) fn has_output_schema(&self, tool: &str) -> bool {
        self.tools
            .get(tool)
            .is_some_and(|tool| tool.has_output_schema)
    }

    /// Returns a short hash of the tool's definition and the upstream's version, where seen.
    pub(super) fn tool_revision(&self, tool: &str) -> Option<String> {
        use std::fmt::Write as _;
        let tool = self.tools.get(tool)?;
        let mut revision = tool.digest[..8]
            .iter()
            .fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            });
        if let Some((_, version)) = &self.upstream {
            revision.push('@');
            revision.push_str(version);
        }
        Some(revision)
    }
}

/// The most characters of a name or version that are kept.
const SHOWN_MAX: usize = 200;

fn name_and_version(info: &[u8]) -> Option<(String, String)> {
    if !json::is_object(info) {
        return None;
    }
    let text = |name| {
        json::last_member(info, name)
            .and_then(|member| json::text(member.value))
            .map(|text| text.chars().take(SHOWN_MAX).collect::<String>())
    };
    Some((text("name")?, text("version").unwrap_or_default()))
}
