//! Which calls were in flight together, told without a clock.
//!
//! Fences rise through the whole journal, over all processes. So they are a time that nobody can
//! step: whatever has a lower fence was reserved before. An outcome tells the fence that was next
//! when it was written, and with that it has its place in the same time.
//!
//! Must not: know where a fence comes from, or what is done about two calls that were.

use super::ids::Fence;

/// An attempt or round of a call, from its reservation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// Its fence.
    pub fence: Fence,
    /// The fence that was next when its outcome became durable; `None` if it has no outcome.
    pub next: Option<Fence>,
}

/// Returns whether an attempt of one call was in flight while one of the other was. Both
/// histories are whole, the newest attempt first.
///
/// An attempt without an outcome (lost, taken away or not executed) is in flight until the one
/// after it is reserved; the last one for ever.
#[must_use]
pub fn were_together(one: &[Flight], other: &[Flight]) -> bool {
    spans(one).any(|(from, until)| {
        spans(other).any(|(other_from, other_until)| from < other_until && other_from < until)
    })
}

/// Returns whether an attempt with this fence was reserved when all of a call's had their end.
#[must_use]
pub fn is_after(fence: Fence, history: &[Flight]) -> bool {
    spans(history).all(|(_, until)| until <= fence.0)
}

/// Each attempt's fence, and the first one of an attempt that it was not in flight with.
fn spans(history: &[Flight]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let newer = std::iter::once(u64::MAX).chain(history.iter().map(|flight| flight.fence.0));
    history.iter().zip(newer).map(|(flight, newer)| {
        let until = flight.next.map_or(newer, |next| next.0);
        (flight.fence.0, until)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(flights: &[(u64, Option<u64>)]) -> Vec<Flight> {
        let flight = |&(fence, next): &(u64, Option<u64>)| Flight {
            fence: Fence(fence),
            next: next.map(Fence),
        };
        flights.iter().rev().map(flight).collect()
    }

    fn together(one: &[(u64, Option<u64>)], other: &[(u64, Option<u64>)]) -> bool {
        let (one, other) = (history(one), history(other));
        let told = were_together(&one, &other);
        assert_eq!(told, were_together(&other, &one), "it has no direction");
        told
    }

    #[test]
    fn a_call_was_in_flight_until_its_outcome() {
        // Reserved before the outcome, right after it, later.
        assert!(together(&[(1, Some(3))], &[(2, Some(3))]));
        assert!(!together(&[(1, Some(3))], &[(3, Some(4))]));
        assert!(!together(&[(1, Some(3))], &[(7, None)]));
        // One that begins and ends within another.
        assert!(together(&[(1, Some(9))], &[(4, Some(5))]));
    }

    #[test]
    fn a_call_without_an_outcome_is_in_flight_still() {
        assert!(together(&[(1, None)], &[(2, Some(3))]));
        assert!(together(&[(1, None)], &[(900, None)]));
        // What had ended before it began was not.
        assert!(!together(&[(5, None)], &[(2, Some(5))]));
    }

    #[test]
    fn every_attempt_counts_and_nothing_between_two_of_them_does() {
        let twice = [(1, Some(3)), (6, Some(7))];
        assert!(together(&twice, &[(2, Some(4))]));
        assert!(!together(&twice, &[(3, Some(5))]));
        assert!(!together(&twice, &[(4, Some(6))]));
        assert!(together(&twice, &[(4, Some(7))]));
        assert!(!together(&twice, &[(7, Some(8))]));
    }

    #[test]
    fn an_attempt_without_an_outcome_lasts_until_the_next_one() {
        let again = [(1, None), (4, Some(5))];
        assert!(together(&again, &[(3, Some(4))]));
        assert!(together(&again, &[(2, Some(6))]));
        assert!(!together(&again, &[(5, Some(6))]));
    }

    #[test]
    fn what_is_not_known_was_not_in_flight() {
        assert!(!together(&[], &[(1, None)]));
    }

    #[test]
    fn a_fence_after_all_ends_is_after_the_call() {
        let twice = history(&[(1, Some(3)), (6, Some(8))]);
        let after: Vec<u64> = (1..12).filter(|at| is_after(Fence(*at), &twice)).collect();
        assert_eq!(after, [8, 9, 10, 11]);
        assert!(!is_after(Fence(99), &history(&[(1, None)])));
    }
}
