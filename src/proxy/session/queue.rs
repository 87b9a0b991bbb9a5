//! The two orders of lines.
//!
//! To the client, an answer that is being made durable keeps its place and holds back what came
//! after it, for a moment at most. To the upstream, a call that waits for its reservation has no
//! place yet: others pass.
//!
//! Must not: look into a line.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::HOLD_BACK_MAX;
use super::array::Array;
use super::client::unshare;
use crate::guard::Ticket;
use crate::mcp::frame::IdKey;
use crate::seeded::{self, Bug};

/// What goes to the upstream, in order.
#[derive(Debug, Default)]
pub(super) struct UpQueue(VecDeque<(Vec<u8>, Option<IdKey>)>);

impl UpQueue {
    pub(super) fn push(&mut self, line: Vec<u8>) {
        self.0.push_back((line, None));
    }

    pub(super) fn push_call(&mut self, line: Vec<u8>, key: IdKey) {
        self.0.push_back((line, Some(key)));
    }

    pub(super) fn pop(&mut self) -> Option<(Vec<u8>, Option<IdKey>)> {
        if seeded::has(Bug::LinesReordered) {
            return self.0.pop_back();
        }
        self.0.pop_front()
    }
}

/// A line on its way to the client.
#[derive(Debug)]
pub struct Outgoing {
    /// The line, its `\n` included.
    pub line: Vec<u8>,
    /// Whose delivery it is: of an array, as many as it answers.
    pub tickets: Vec<Ticket>,
    /// We answer ourselves. Only of these may a client that reads nothing cause any number.
    pub is_ours: bool,
}

/// Where a line that is not ready goes, or an element of an array that is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    token: u64,
    /// Which of the array's parts it is; `None`: a line of its own.
    part: Option<usize>,
}

#[derive(Debug)]
struct Slot {
    /// Its number among all that there ever were.
    token: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Ready(Outgoing),
    Waiting { since: Instant },
    Dropped,
}

/// What goes to the client, in order.
#[derive(Debug, Default)]
pub(super) struct DownQueue {
    /// Ordered by their tokens.
    slots: VecDeque<Slot>,
    next_token: u64,
    waiting: usize,
    /// Arrays that wait for some of their elements.
    arrays: BTreeMap<u64, Array>,
}

impl DownQueue {
    /// Adds a line of the upstream's.
    pub(super) fn pass(&mut self, line: Vec<u8>) {
        self.add(Content::Ready(Outgoing {
            line,
            tickets: Vec::new(),
            is_ours: false,
        }));
    }

    /// Adds a line of our own.
    pub(super) fn push(&mut self, line: Vec<u8>, ticket: Option<Ticket>) {
        self.add(Content::Ready(Outgoing {
            line,
            tickets: ticket.into_iter().collect(),
            is_ours: true,
        }));
    }

    /// Keeps a place for a line that is not ready.
    pub(super) fn reserve(&mut self, since: Instant) -> Place {
        self.waiting += 1;
        let token = self.add(Content::Waiting { since });
        Place { token, part: None }
    }

    fn add(&mut self, content: Content) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.slots.push_back(Slot { token, content });
        token
    }

    /// Keeps a place for an array of the upstream's: it goes out once it was said to be read, and
    /// all of its parts are ready.
    pub(super) fn reserve_array(&mut self, line: Arc<Vec<u8>>, since: Instant) -> Place {
        let place = self.reserve(since);
        self.arrays.insert(place.token, Array::new(line));
        place
    }

    /// Keeps a place for an element of an array.
    pub(super) fn reserve_part(&mut self, array: Place, element: Range<usize>) -> Option<Place> {
        let part = self.arrays.get_mut(&array.token)?.reserve(element);
        Some(Place {
            part: Some(part),
            ..array
        })
    }

    /// Replaces an element of an array, or takes it out. What is neither replaced, taken out nor
    /// waited for stays as it came.
    pub(super) fn edit(&mut self, array: Place, element: Range<usize>, bytes: Option<Vec<u8>>) {
        if let Some(array) = self.arrays.get_mut(&array.token) {
            array.edit(element, bytes);
        }
    }

    /// All of the array has been read: no further part of it comes.
    pub(super) fn end_array(&mut self, array: Place) {
        if let Some(array) = self.arrays.get_mut(&array.token) {
            array.end();
        }
        self.finish_array(array.token);
    }

    /// Puts the line in its place, or at the end if the place was given up; an element in its array.
    pub(super) fn fill(&mut self, place: Place, line: Vec<u8>, ticket: Option<Ticket>) {
        if let Some(part) = place.part {
            self.settle_part(place.token, |array| array.replace(part, line, ticket));
        } else {
            self.put(place.token, line, ticket.into_iter().collect());
        }
    }

    /// Lets the line, or the element that is in this place, out as it came.
    pub(super) fn keep(&mut self, place: Place, line: Arc<Vec<u8>>, ticket: Option<Ticket>) {
        if let Some(part) = place.part {
            drop(line);
            self.settle_part(place.token, |array| array.keep(part, ticket));
        } else {
            self.put(place.token, unshare(line), ticket.into_iter().collect());
        }
    }

    /// Gives up a place.
    pub(super) fn drop_slot(&mut self, place: Place) {
        if let Some(part) = place.part {
            self.settle_part(place.token, |array| array.drop_part(part));
        } else if let Some(content) = self.place(place.token) {
            *content = Content::Dropped;
            self.waiting -= 1;
        }
    }

    fn settle_part(&mut self, token: u64, settle: impl FnOnce(&mut Array)) {
        if let Some(array) = self.arrays.get_mut(&token) {
            settle(array);
        }
        self.finish_array(token);
    }

    fn finish_array(&mut self, token: u64) {
        if !self.arrays.get(&token).is_some_and(Array::is_ready) {
            return;
        }
        let Some(array) = self.arrays.remove(&token) else {
            return;
        };
        match array.finish() {
            Some((line, tickets)) => self.put(token, line, tickets),
            None => self.drop_slot(Place { token, part: None }),
        }
    }

    fn put(&mut self, token: u64, line: Vec<u8>, tickets: Vec<Ticket>) {
        let ready = Content::Ready(Outgoing {
            line,
            tickets,
            is_ours: false,
        });
        if let Some(content) = self.place(token) {
            *content = ready;
            self.waiting -= 1;
        } else {
            self.add(ready);
        }
    }

    /// Returns a place that is still kept.
    fn place(&mut self, token: u64) -> Option<&mut Content> {
        let index = self
            .slots
            .binary_search_by_key(&token, |slot| slot.token)
            .ok()?;
        let content = &mut self.slots[index].content;
        matches!(content, Content::Waiting { .. }).then_some(content)
    }

    /// Takes the next line that may go out.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Outgoing> {
        let mut index = 0;
        while index < self.slots.len() {
            match &self.slots[index].content {
                Content::Dropped => {
                    self.slots.remove(index);
                }
                Content::Waiting { since } => {
                    if now.saturating_duration_since(*since) < HOLD_BACK_MAX {
                        return None;
                    }
                    index += 1;
                }
                Content::Ready(_) => {
                    return match self.slots.remove(index)?.content {
                        Content::Ready(outgoing) => Some(outgoing),
                        Content::Waiting { .. } | Content::Dropped => None,
                    };
                }
            }
        }
        None
    }

    /// Returns when the oldest place stops holding others back.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.waiting == self.slots.len() {
            return None;
        }
        self.slots.iter().find_map(|slot| match slot.content {
            Content::Waiting { since } => Some(since + HOLD_BACK_MAX),
            Content::Ready(_) | Content::Dropped => None,
        })
    }

    /// Throws all lines away: nobody reads them. Places stay, so that they can be given up.
    pub(super) fn clear(&mut self) -> Vec<Ticket> {
        let mut lost = Vec::new();
        for array in self.arrays.values_mut() {
            lost.append(&mut array.clear());
        }
        self.slots.retain_mut(|slot| match &mut slot.content {
            Content::Ready(outgoing) => {
                lost.append(&mut outgoing.tickets);
                false
            }
            Content::Dropped => false,
            Content::Waiting { .. } => true,
        });
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_keeps_its_place_until_it_is_durable() {
        let now = Instant::now();
        let mut queue = DownQueue::default();
        queue.pass(b"a".to_vec());
        let token = queue.reserve(now);
        queue.pass(b"c".to_vec());
        assert_eq!(queue.pop(now).unwrap().line, b"a");
        assert!(queue.pop(now).is_none());
        queue.fill(token, b"b".to_vec(), None);
        assert_eq!(queue.pop(now).unwrap().line, b"b");
        assert_eq!(queue.pop(now).unwrap().line, b"c");
        assert!(queue.pop(now).is_none());
    }

    #[test]
    fn a_stuck_answer_lets_others_pass_after_a_moment() {
        let now = Instant::now();
        let mut queue = DownQueue::default();
        let token = queue.reserve(now);
        queue.pass(b"c".to_vec());
        assert_eq!(queue.deadline(), Some(now + HOLD_BACK_MAX));
        assert!(queue.pop(now).is_none());
        assert_eq!(queue.pop(now + HOLD_BACK_MAX).unwrap().line, b"c");
        queue.fill(token, b"b".to_vec(), None);
        assert_eq!(queue.pop(now).unwrap().line, b"b");
    }
}
