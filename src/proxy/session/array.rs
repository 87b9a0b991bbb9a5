//! An array of the upstream's on its way to the client.
//!
//! It is one line and goes out as it came, once every answer in it is durable. What must not go out
//! (a second answer, one that comes after our own) is taken out of it, and no other byte changes.
//!
//! Must not: decide what becomes of an element.

use std::ops::Range;
use std::sync::Arc;

use super::client::unshare;
use crate::guard::Ticket;
use crate::mcp::frame::batch_elements;

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Its outcome is being made durable.
    Waiting,
    /// It goes out as it came.
    Kept,
    Replaced(Vec<u8>),
    Dropped,
}

/// One that waits for some of its elements. Only those that need not stay as they came have a part,
/// so that an array of nothing else costs no memory.
#[derive(Debug)]
pub(super) struct Array {
    line: Arc<Vec<u8>>,
    parts: Vec<(Range<usize>, State)>,
    waiting: usize,
    is_read: bool,
    is_lost: bool,
    tickets: Vec<Ticket>,
}

impl Array {
    pub(super) fn new(line: Arc<Vec<u8>>) -> Self {
        Self {
            line,
            parts: Vec::new(),
            waiting: 0,
            is_read: false,
            is_lost: false,
            tickets: Vec::new(),
        }
    }

    /// Adds an element that waits; they are added in their order. Returns its number.
    pub(super) fn reserve(&mut self, element: Range<usize>) -> usize {
        self.waiting += 1;
        self.parts.push((element, State::Waiting));
        self.parts.len() - 1
    }

    /// Adds an element that is replaced, or taken out.
    pub(super) fn edit(&mut self, element: Range<usize>, bytes: Option<Vec<u8>>) {
        let Some(bytes) = bytes else {
            self.take_out(element);
            return;
        };
        self.parts.push((element, State::Replaced(bytes)));
    }

    /// Neighbours are one part, however many they are.
    fn take_out(&mut self, element: Range<usize>) {
        if let Some((last, State::Dropped)) = self.parts.last_mut() {
            let between = &self.line[last.end..element.start];
            let mut between = between.iter();
            if between.all(|byte| *byte == b',' || byte.is_ascii_whitespace()) {
                last.end = element.end;
                return;
            }
        }
        self.parts.push((element, State::Dropped));
    }

    pub(super) fn end(&mut self) {
        self.is_read = true;
    }

    pub(super) fn is_ready(&self) -> bool {
        self.is_read && self.waiting == 0
    }

    pub(super) fn keep(&mut self, part: usize, ticket: Option<Ticket>) {
        self.settle(part, State::Kept, ticket);
    }

    pub(super) fn replace(&mut self, part: usize, bytes: Vec<u8>, ticket: Option<Ticket>) {
        self.settle(part, State::Replaced(bytes), ticket);
    }

    pub(super) fn drop_part(&mut self, part: usize) {
        self.settle(part, State::Dropped, None);
    }

    fn settle(&mut self, part: usize, state: State, ticket: Option<Ticket>) {
        if let Some((_, held)) = self.parts.get_mut(part)
            && *held == State::Waiting
        {
            *held = state;
            self.waiting -= 1;
            self.tickets.extend(ticket);
        }
    }

    /// Nobody reads the line any more: nothing of it is to go out. Returns whose answers are lost.
    pub(super) fn clear(&mut self) -> Vec<Ticket> {
        self.is_lost = true;
        std::mem::take(&mut self.tickets)
    }

    /// Returns the line, and whose answers it holds; nothing if nothing of it is left.
    pub(super) fn finish(self) -> Option<(Vec<u8>, Vec<Ticket>)> {
        if self.is_lost {
            return None;
        }
        if self.parts.iter().all(|(_, state)| *state == State::Kept) {
            return Some((unshare(self.line), self.tickets));
        }
        let line = &self.line;
        let mut edits = self.parts.iter().peekable();
        let mut out = Vec::with_capacity(line.len());
        let mut end = 0;
        let mut kept = 0;
        for element in batch_elements(line) {
            while edits
                .next_if(|(range, _)| range.end <= element.start)
                .is_some()
            {}
            let edit = edits
                .peek()
                .filter(|(range, _)| range.start <= element.start);
            let bytes = match edit.map(|(_, state)| state) {
                None | Some(State::Kept | State::Waiting) => &line[element.clone()],
                Some(State::Replaced(bytes)) => bytes,
                Some(State::Dropped) => &[],
            };
            // What stands between two elements goes with the second, what stands before the first
            // with the array.
            if end == 0 || (kept > 0 && !bytes.is_empty()) {
                out.extend_from_slice(&line[end..element.start]);
            }
            out.extend_from_slice(bytes);
            kept += usize::from(!bytes.is_empty());
            end = element.end;
        }
        out.extend_from_slice(&line[end..]);
        (kept > 0).then_some((out, self.tickets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::{BranchId, Fence, Seq};

    fn ticket(fence: u64) -> Ticket {
        Ticket {
            branch: BranchId(1),
            seq: Seq(fence),
            attempt: 1,
            fence: Fence(fence),
        }
    }

    /// What an array of four becomes where each is done with as a letter says: `k`ept, `r`eplaced,
    /// `d`ropped, as it came (`.`), or waited for and then kept, replaced or dropped (`K`, `R`, `D`).
    fn finished(line: &str, deeds: &str) -> Option<String> {
        let mut array = Array::new(Arc::new(line.as_bytes().to_vec()));
        let mut waiting = Vec::new();
        for (element, deed) in batch_elements(line.as_bytes()).zip(deeds.chars()) {
            match deed {
                'r' => array.edit(element, Some(b"new".to_vec())),
                'd' => array.edit(element, None),
                '.' => {}
                _ => waiting.push((array.reserve(element), deed)),
            }
        }
        array.end();
        // They end in any order.
        for (part, deed) in waiting.into_iter().rev() {
            assert!(!array.is_ready());
            match deed {
                'K' => array.keep(part, None),
                'R' => array.replace(part, b"new".to_vec(), None),
                _ => array.drop_part(part),
            }
        }
        assert!(array.is_ready());
        let (line, _) = array.finish()?;
        Some(String::from_utf8(line).unwrap())
    }

    #[test]
    fn what_is_taken_out_takes_one_comma_along() {
        let line = " [1, {}\t,\"a\",[2] ]\r\n";
        for (deeds, expected) in [
            ("....", line),
            ("K..K", line),
            ("d...", " [{}\t,\"a\",[2] ]\r\n"),
            ("...D", " [1, {}\t,\"a\" ]\r\n"),
            (".dD.", " [1,[2] ]\r\n"),
            ("Kr.D", " [1, new\t,\"a\" ]\r\n"),
            ("dRdd", " [new ]\r\n"),
            ("ddd.", " [[2] ]\r\n"),
            ("d.dd", " [{} ]\r\n"),
            ("ddK.", " [\"a\",[2] ]\r\n"),
        ] {
            assert_eq!(finished(line, deeds).as_deref(), Some(expected), "{deeds}");
        }
        assert_eq!(finished(line, "dDdD"), None);
        assert_eq!(finished(line, "dddd"), None);
    }

    #[test]
    fn it_delivers_to_those_whose_answers_it_holds() {
        let line = Arc::new(b"[1,2,3]".to_vec());
        let elements: Vec<_> = batch_elements(&line).collect();
        let mut array = Array::new(Arc::clone(&line));
        let parts: Vec<_> = elements.into_iter().map(|one| array.reserve(one)).collect();
        array.end();
        array.keep(parts[2], Some(ticket(3)));
        array.drop_part(parts[1]);
        array.replace(parts[0], b"4".to_vec(), Some(ticket(1)));
        // What was settled once is not settled again.
        array.drop_part(parts[0]);
        let (line, tickets) = array.finish().unwrap();
        assert_eq!(line, b"[4,3]");
        assert_eq!(tickets, [ticket(3), ticket(1)]);
    }

    #[test]
    fn an_array_that_nobody_reads_any_more_is_lost_whole() {
        let line = Arc::new(b"[1,2,3]".to_vec());
        let elements: Vec<_> = batch_elements(&line).collect();
        let mut array = Array::new(Arc::clone(&line));
        let first = array.reserve(elements[0].clone());
        let second = array.reserve(elements[1].clone());
        array.end();
        array.keep(first, Some(ticket(1)));
        assert_eq!(array.clear(), [ticket(1)]);
        array.drop_part(second);
        assert!(array.is_ready());
        assert_eq!(array.finish(), None);
    }
}
