//! The cursor of `--resume`: a client that starts over from its first call without saying which
//! entry it means walks the journal from its first entry (contract, section 5.3).
//!
//! Calls that were in flight together may come in another order, which fences tell and no clock
//! ([`flight`]); a VOIDED entry is passed over where a later one is the call; past the end calls are new. An entry is passed once its call was
//! admitted, so that a refused call may come again.
//!
//! Must not: decide what happens to the call (that is the table's).

use std::collections::BTreeSet;

use super::admit::Call;
use super::{Surroundings, Visit};
use crate::journal::{Branch, JournalError, Stored, Transaction, Workflow};
use crate::rules::entry::{Entry, Status};
use crate::rules::flight::{self, Flight};
use crate::rules::ids::Seq;
use crate::seeded::{self, Bug};

/// Entries that were not in flight with the one at the cursor and are looked past, so that a call
/// that diverges costs no walk through a whole journal.
const APART_MAX: u32 = 256;

/// How far one workflow has been walked in this session.
#[derive(Clone, Debug, Default)]
pub(super) struct Cursor {
    /// All entries up to here are passed, claimed or not there.
    after: u64,
    /// Entries beyond that are passed, or a call named them by their seq.
    taken: BTreeSet<Seq>,
    /// There is nothing left to walk.
    is_over: bool,
}

impl Cursor {
    /// An entry's call was admitted, or a call named the entry by its seq: the walk skips it.
    pub(super) fn take(&mut self, seq: Seq) {
        if !self.is_over && seq.0 > self.after {
            self.taken.insert(seq);
            if seeded::has(Bug::CursorSkipsEntry) {
                self.taken.insert(Seq(seq.0 + 1));
            }
        }
    }

    /// The walk has come past this entry, which is taken or is not there.
    fn leave_behind(&mut self, seq: Seq) {
        self.after = self.after.max(seq.0);
        self.taken.remove(&seq);
    }
}

/// What the cursor found for a call.
pub(super) enum Walked {
    /// This entry is meant.
    Entry(Box<Stored>),
    /// An entry that should be there can't be read.
    Damaged(Seq),
    /// The end: the call is new. Whether it has just been reached.
    End { is_first: bool },
}

impl<T: Transaction, S: Surroundings> Visit<'_, T, S> {
    /// Finds the entry that the next call without a seq or a key means.
    pub(super) fn walk(
        &mut self,
        call: &Call,
        workflow: &Workflow,
    ) -> Result<Walked, JournalError> {
        let mut cursor = self.cursors.remove(&workflow.number).unwrap_or_default();
        let walked = self.walk_on(call, workflow, &mut cursor);
        self.cursors.insert(workflow.number, cursor);
        walked
    }

    fn walk_on(
        &mut self,
        call: &Call,
        workflow: &Workflow,
        cursor: &mut Cursor,
    ) -> Result<Walked, JournalError> {
        if cursor.is_over {
            return Ok(Walked::End { is_first: false });
        }
        let first = loop {
            match self.next_along(workflow.active, Seq(cursor.after)) {
                Ok(Some(next)) if cursor.taken.contains(&next.entry.seq) => {
                    cursor.leave_behind(next.entry.seq);
                }
                Ok(Some(next)) => break next,
                Ok(None) => {
                    cursor.is_over = true;
                    cursor.taken.clear();
                    return Ok(Walked::End { is_first: true });
                }
                Err(JournalError::Unreadable(_)) => {
                    return Ok(Walked::Damaged(Seq(cursor.after + 1)));
                }
                Err(error) => return Err(error),
            }
        };
        if self.is_same(&first.entry, call.signature) {
            return Ok(Walked::Entry(Box::new(first)));
        }
        // Others that were in flight while the first one was may come before it.
        let flights = self.flights(&first.entry)?;
        let is_voided = first.entry.status == Status::Voided;
        let mut after = first.entry.seq;
        let mut apart = 0;
        loop {
            let next = match self.next_along(workflow.active, after) {
                Ok(Some(next)) => next,
                // Nothing is known of one that can't be read, so it is not the call.
                Ok(None) | Err(JournalError::Unreadable(_)) => break,
                Err(error) => return Err(error),
            };
            after = next.entry.seq;
            if cursor.taken.contains(&after) {
                continue;
            }
            if self.is_same(&next.entry, call.signature) {
                let is_it = is_voided
                    || flight::were_together(&flights, &self.flights(&next.entry)?)
                    || seeded::has(Bug::CursorTakesAny);
                if is_it {
                    if is_voided {
                        cursor.take(first.entry.seq);
                    }
                    return Ok(Walked::Entry(Box::new(next)));
                }
            }
            if !is_voided && flight::is_after(next.entry.fence, &flights) {
                // One that was run again later may stand between two that were in flight together.
                apart += 1;
                if apart == APART_MAX {
                    break;
                }
            }
        }
        Ok(Walked::Entry(Box::new(first)))
    }

    /// Returns when the attempts of an entry were in flight. Of one whose attempts can't be read
    /// nothing is known.
    fn flights(&mut self, entry: &Entry) -> Result<Vec<Flight>, JournalError> {
        match self.tx.flights(entry.fence) {
            Err(JournalError::Unreadable(_)) => Ok(Vec::new()),
            flights => flights,
        }
    }

    /// Returns the first entry after a place, along the branch and those it came from.
    fn next_along(&mut self, active: Branch, after: Seq) -> Result<Option<Stored>, JournalError> {
        if let Some((parent, forked_at)) = active.parent
            && after.0 + 1 < forked_at.0
        {
            let parent = self
                .tx
                .branch(parent)?
                .ok_or_else(|| JournalError::Damaged("a branch without its parent".into()))?;
            if let Some(found) = self.next_along(parent, after)?
                && found.entry.seq < forked_at
            {
                return Ok(Some(found));
            }
            return self.tx.next_entry(active.id, Seq(forked_at.0 - 1));
        }
        self.tx.next_entry(active.id, after)
    }
}

#[cfg(test)]
mod tests;
