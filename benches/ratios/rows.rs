//! The product's own journal behind the bare relay: the same rows in the same transactions, and
//! nothing else of the product. Nobody reads JSON, makes a signature or decides.
//!
//! What a journaled call costs over it is the proxy's own work; what it costs over one bare table
//! is what the schema costs.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use checkpoint::journal::place::{self, JournalPath};
use checkpoint::journal::sqlite::SqliteJournal;
use checkpoint::journal::{
    Attempt, Durability, Journal as _, Outcome, Transaction as _, Write, filesystem, schema,
};
use checkpoint::proxy::books;
use checkpoint::rules::entry::{Entry, Provenance, Status};
use checkpoint::rules::ids::{BranchId, Fence, Micros, Seq, SessionId, WorkflowId};
use checkpoint::rules::lifecycle::{self, Reservation, Settlement, Transition};
use checkpoint::rules::signature::{Scheme, Signature};

/// What the journal's rows are told by.
const UID: [u8; 16] = [7; 16];

/// How long the log is made, as by the product.
const LOG_PAGES: u32 = 4096;

/// A journal, and the calls that run.
pub(crate) struct Rows {
    journal: SqliteJournal,
    branch: BranchId,
    next: u64,
    running: VecDeque<Entry>,
    /// Answers that went out since the last transaction: the first, and how many.
    delivered: Option<((BranchId, Seq, Fence), u64)>,
}

impl Rows {
    /// Makes a journal at `path`.
    pub(crate) fn make(path: &Path) -> io::Result<Self> {
        let path = JournalPath::new(path).map_err(io::Error::other)?;
        let filesystem = filesystem::kind(path.folder()).map_err(io::Error::other)?;
        let own = WorkflowId("own".into());
        let image = schema::empty_image(UID, &own, Micros(1)).map_err(io::Error::other)?;
        place::create(&path, &image, &filesystem).map_err(io::Error::other)?;
        let opened = books::open_sqlite(&path, &filesystem);
        let (mut journal, _) = opened.map_err(io::Error::other)?;
        let mut tx = journal.begin(Durability::Power).map_err(io::Error::other)?;
        let made = tx.create_workflow(&own, UID, Micros(1));
        let branch = made.map_err(io::Error::other)?.active.id;
        tx.commit().map_err(io::Error::other)?;
        journal.grow_log(LOG_PAGES).map_err(io::Error::other)?;
        Ok(Self {
            journal,
            branch,
            next: 1,
            running: VecDeque::new(),
            delivered: None,
        })
    }

    /// Writes down what came in one read; on return it is durable.
    pub(crate) fn put(&mut self, lines: &[u8], is_answer: bool) -> io::Result<()> {
        // What is no call and answers none passes, as it does there.
        let is_ours = match is_answer {
            true => !self.running.is_empty(),
            false => memchr::memmem::find(lines, b"tools/call").is_some(),
        };
        if is_ours {
            let lines = lines.split_inclusive(|byte| *byte == b'\n');
            let written = match is_answer {
                true => self.settle(lines),
                false => self.reserve(lines),
            };
            written.map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn reserve<'a>(
        &mut self,
        lines: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), checkpoint::journal::JournalError> {
        let mut tx = self.journal.begin(Durability::Power)?;
        if let Some((first, count)) = self.delivered.take() {
            tx.deliver_run(first, count, Micros(2))?;
        }
        for line in lines {
            let mut signature = [0; 32];
            signature[..8].copy_from_slice(&self.next.wrapping_mul(0x9e37_79b9).to_le_bytes());
            let transition = lifecycle::reserve_new(Reservation {
                branch: self.branch,
                seq: Seq(self.next),
                tool: "echo".into(),
                scheme: Scheme::Plain,
                signature: Signature(signature),
                fence: tx.next_fence()?,
                session: SessionId(1),
                at: Micros(1_790_000_000_000_000),
                key: None,
                call_id: None,
            });
            let entry = transition.entry.clone();
            let mut write = write(transition);
            write.attempt = Some(Attempt {
                fence: entry.fence,
                branch: entry.branch,
                seq: entry.seq,
                attempt: entry.attempt,
                round: entry.round,
                previous: None,
                session: entry.session,
                started_at: entry.created_at,
                scheme: entry.scheme,
                signature: entry.signature,
                arguments: Some(line.to_vec().into()),
                arguments_bytes: line.len() as u64,
                is_redacted: false,
                protocol_version: Some("2025-06-18".into()),
                tool_revision: None,
                policy: None,
                traceparent: None,
            });
            tx.apply(&write)?;
            self.running.push_back(entry);
            self.next += 1;
        }
        tx.commit()
    }

    fn settle<'a>(
        &mut self,
        lines: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), checkpoint::journal::JournalError> {
        let mut tx = self.journal.begin(Durability::Power)?;
        let mut run: Option<((BranchId, Seq, Fence), u64)> = None;
        for line in lines {
            let Some(entry) = self.running.pop_front() else {
                break;
            };
            let outcome = Outcome {
                fence: entry.fence,
                status: Status::Completed,
                is_error: false,
                provenance: Provenance::Upstream,
                at: Micros(1_790_000_000_000_001),
                digest: entry.signature.0,
                body: Some(line.to_vec().into()),
                round: None,
                task: None,
            };
            let settled = lifecycle::settle(
                &entry,
                Settlement {
                    status: outcome.status,
                    is_error: outcome.is_error,
                    provenance: outcome.provenance,
                    digest: outcome.digest,
                    is_tombstone: false,
                    at: outcome.at,
                },
            );
            // It runs, so it can be settled.
            let Ok(transition) = settled else { break };
            let mut write = write(transition);
            write.outcome = Some(outcome);
            tx.apply(&write)?;
            run.get_or_insert(((entry.branch, entry.seq, entry.fence), 0))
                .1 += 1;
        }
        self.delivered = run;
        tx.commit()
    }
}

fn write(transition: Transition) -> Write {
    Write {
        // The digest under it is the proxy's work.
        checksum: [0; 16],
        attempt: None,
        outcome: None,
        event: None,
        transition,
    }
}
