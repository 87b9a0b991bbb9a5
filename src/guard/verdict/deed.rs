//! Who gave a verdict and why: what is kept with its event.
//!
//! Must not: say whether the verdict is given.

use crate::guard::stale::Kept;
use crate::json;
use crate::rules::entry::Status;
use crate::rules::ids::SessionId;

/// Who acts, and why; kept with the event for ever.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Deed {
    /// Who.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
    /// A file that shows it: its name, its size in bytes, its SHA-256 in hexadecimal.
    pub evidence: Option<(String, u64, String)>,
    /// Where more of it is found: a ticket, an address, a number in another system.
    pub reference: Option<String>,
    /// What a prober is asked, or what it said and was seen to do, as a JSON object.
    pub probe: Option<String>,
    /// The session that does it, where one does.
    pub session: Option<SessionId>,
}

impl Deed {
    /// Returns the event's detail.
    pub(super) fn detail(
        &self,
        verdict: Option<&str>,
        was: Status,
        is_forced: bool,
        adopted: Option<&Kept>,
    ) -> String {
        let mut members = Vec::new();
        let mut add = |name: &str, value: String| {
            members.push(format!("{}:{value}", json::quote(name)));
        };
        if let Some(verdict) = verdict {
            add("verdict", json::quote(verdict));
        }
        add("by", json::quote(&self.by));
        if let Some(reason) = &self.reason {
            add("reason", json::quote(reason));
        }
        add("was", json::quote(was.name()));
        if is_forced {
            add("forced", "true".to_owned());
        }
        if let Some(Kept { fence, stale, .. }) = adopted {
            add("stale_answer", json::quote(&stale.digest));
            add("stale_fence", fence.to_string());
        }
        if let Some((file, size_bytes, sha256)) = &self.evidence {
            add("evidence", json::quote(file));
            add("evidence_bytes", size_bytes.to_string());
            add("evidence_sha256", json::quote(sha256));
        }
        if let Some(reference) = &self.reference {
            add("reference", json::quote(reference));
        }
        if let Some(probe) = &self.probe {
            add("probe", probe.clone());
        }
        format!("{{{}}}", members.join(","))
    }
}
