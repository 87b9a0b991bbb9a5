//! THE TABLE: from what is known about an entry to what happens to a call that means it.
//!
//! One pure function, [`decide`], over plain facts; each row has a letter that also stands in log
//! lines, events and errors. The rows are those of the contract, section 7.
//!
//! Must not: look anything up, know the time, or change an entry. What a decision leads to is
//! [`super::lifecycle`]'s and the guard's.
//!
//! Two rules stand above all rows. First, damage: what does not hold is neither replayed nor run.
//! Second, time alone never makes a PENDING entry runnable: only its owner's end does, and under
//! at-most-once not even that.

use super::entry::Status;
use super::policy::{Delivery, OnDivergence, OnFailure, OnInFlight};
use crate::seeded::{self, Bug};

/// Whether the call's signature is the entry's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SignatureFact {
    /// Under the entry's own scheme they are equal.
    Same,
    /// They differ.
    Other,
}

/// Who runs a PENDING entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// This session or another one that is live, and an answer may still come.
    Live,
    /// The session has ended, or knows that no answer will come.
    Gone,
}

/// How a call stands to the rounds of an entry (contract, section 7; MCP 2026-07-28,
/// `basic/patterns/mrtr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoundFact {
    /// It carries neither `inputResponses` nor `requestState`.
    First,
    /// It carries the `requestState` that was given, or `inputResponses` where none was given.
    Continues,
    /// It carries another `requestState`.
    Foreign,
}

/// Whether the tool's definition or the upstream's version is the entry's, as far as a policy
/// wants it to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RevisionFact {
    /// It is, or nobody asked.
    Accepted,
    /// It is not, and the policy says `diverge`.
    Refused,
}

/// What the entry is, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryFacts {
    /// Where it stands.
    pub status: Status,
    /// Its checksum or story does not hold.
    pub is_damaged: bool,
    /// Its outcome's bytes are gone.
    pub is_tombstone: bool,
    /// Its outcome is a result with `isError: true`.
    pub is_error: bool,
    /// Who runs it. Counts for PENDING only.
    pub owner: Owner,
    /// The call's signature is the entry's.
    pub signature: SignatureFact,
    /// How the call stands to its rounds.
    pub round: RoundFact,
    /// Whether its tool is still the same one.
    pub revision: RevisionFact,
    /// Fewer attempts than the policy allows have been made.
    pub attempts_left: bool,
}

/// The part of a policy that the table asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PolicyFacts {
    /// Whether a lost call may run again.
    pub delivery: Delivery,
    /// For FAILED entries.
    pub on_failure: OnFailure,
    /// For COMPLETED entries with `isError`.
    pub on_tool_error: OnFailure,
    /// For PENDING entries with a live owner.
    pub on_in_flight: OnInFlight,
    /// For calls with another signature.
    pub on_divergence: OnDivergence,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Reserve, forward, settle, answer: a new entry, or a VOIDED one's next attempt.
    Proceed,
    /// Answer with what is stored; the upstream is not contacted.
    Replay,
    /// Refuse `divergence`.
    Diverge,
    /// Open a branch at this seq and proceed there.
    Fork,
    /// Wait for the running call's outcome and answer with it.
    Join,
    /// Refuse `in_flight`.
    InFlight,
    /// Refuse `in_doubt`.
    InDoubt,
    /// A new attempt with a new fence.
    Retry,
    /// Refuse `abandoned`.
    Abandon,
    /// The next round of the same call.
    NextRound,
    /// Refuse `denied`, as before.
    Deny,
    /// Refuse `quarantined`.
    Quarantine,
    /// Refuse `result_expired`.
    Expired,
}

/// A row's name: `@` and a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Letter(pub char);

impl std::fmt::Display for Letter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "@{}", self.0)
    }
}

/// All letters, with what each row says, in the order of the table.
pub const ROWS: [(char, &str); 23] = [
    ('A', "no entry: proceed"),
    ('B', "COMPLETED, same signature: replay"),
    ('C', "COMPLETED, other signature: diverge"),
    (
        'D',
        "COMPLETED with isError, policy retry, attempts left: retry",
    ),
    ('E', "PENDING, owner gone, at-most-once: in doubt"),
    ('F', "FAILED, same signature: replay the error"),
    (
        'G',
        "FAILED, same signature, policy retry, attempts left: retry",
    ),
    ('H', "FAILED, other signature: diverge"),
    ('I', "PENDING, same signature, owner live: join"),
    (
        'J',
        "PENDING, same signature, owner live, policy refuse: in flight",
    ),
    ('K', "PENDING, other signature, owner live: in flight"),
    (
        'L',
        "PENDING, same signature, owner gone, at-least-once, attempts left: retry",
    ),
    (
        'M',
        "PENDING, same signature, owner gone, at-least-once, none left: abandon",
    ),
    (
        'N',
        "PENDING, other signature, owner gone, at-least-once: in doubt",
    ),
    (
        'O',
        "INPUT_REQUIRED, same signature and state: the next round",
    ),
    (
        'P',
        "INPUT_REQUIRED, same signature, a first round again: replay the question",
    ),
    ('R', "INPUT_REQUIRED, other signature or state: diverge"),
    (
        'S',
        "ACCEPTED, same signature: replay the task handle or its end",
    ),
    ('T', "ACCEPTED, other signature: diverge"),
    ('V', "VOIDED: proceed, as a new attempt"),
    ('X', "DENIED: deny again (same) or diverge (other)"),
    ('Q', "damaged: quarantine"),
    ('Z', "payload gone, same signature: expired"),
];

/// Decides what happens to a call, and names the row.
///
/// `entry` is `None` where the call means no entry, so that it is new.
///
/// Source: contract, section 7; `fork` replaces each `diverge` where the policy says so, but for
/// a denial, which no branch may walk around.
#[must_use]
pub fn decide(entry: Option<EntryFacts>, policy: PolicyFacts) -> (Decision, Letter) {
    let Some(entry) = entry else {
        return (Decision::Proceed, Letter('A'));
    };
    // Above all rows: damage. Whatever else the row says can't be relied on.
    if entry.is_damaged {
        return (Decision::Quarantine, Letter('Q'));
    }
    // A tool that has become another one is another call, whatever its arguments.
    let same = entry.signature == SignatureFact::Same && entry.revision == RevisionFact::Accepted;
    let diverge = match policy.on_divergence {
        OnDivergence::Strict => Decision::Diverge,
        OnDivergence::Fork => Decision::Fork,
    };
    if let Some(wrong) = seeded_decision(entry, policy, same) {
        return wrong;
    }
    match entry.status {
        Status::Completed if !same => (diverge, Letter('C')),
        Status::Completed
            if entry.is_error
                && policy.on_tool_error == OnFailure::Retry
                && entry.attempts_left =>
        {
            (Decision::Retry, Letter('D'))
        }
        // Only the tombstone is left: it is never run again.
        Status::Completed if entry.is_tombstone => (Decision::Expired, Letter('Z')),
        Status::Completed => (Decision::Replay, Letter('B')),

        Status::Failed if !same => (diverge, Letter('H')),
        Status::Failed if policy.on_failure == OnFailure::Retry && entry.attempts_left => {
            (Decision::Retry, Letter('G'))
        }
        Status::Failed if entry.is_tombstone => (Decision::Expired, Letter('Z')),
        Status::Failed => (Decision::Replay, Letter('F')),

        Status::Pending => match (entry.owner, policy.delivery) {
            (Owner::Live, _) if entry.signature == SignatureFact::Other => {
                (Decision::InFlight, Letter('K'))
            }
            (Owner::Live, _) => match policy.on_in_flight {
                OnInFlight::Join => (Decision::Join, Letter('I')),
                OnInFlight::Refuse => (Decision::InFlight, Letter('J')),
            },
            // Nobody knows whether it ran; at most once means that it stays so.
            (Owner::Gone, Delivery::AtMostOnce) => (Decision::InDoubt, Letter('E')),
            (Owner::Gone, Delivery::AtLeastOnce) if !same => (Decision::InDoubt, Letter('N')),
            (Owner::Gone, Delivery::AtLeastOnce) if entry.attempts_left => {
                (Decision::Retry, Letter('L'))
            }
            (Owner::Gone, Delivery::AtLeastOnce) => (Decision::Abandon, Letter('M')),
        },

        Status::InputRequired if !same => (diverge, Letter('R')),
        Status::InputRequired => match entry.round {
            RoundFact::Continues => (Decision::NextRound, Letter('O')),
            RoundFact::First if entry.is_tombstone => (Decision::Expired, Letter('Z')),
            RoundFact::First => (Decision::Replay, Letter('P')),
            RoundFact::Foreign => (diverge, Letter('R')),
        },

        Status::Accepted if !same => (diverge, Letter('T')),
        Status::Accepted if entry.is_tombstone => (Decision::Expired, Letter('Z')),
        Status::Accepted => (Decision::Replay, Letter('S')),

        // It is known not to have run, so whatever comes next under this seq is its next attempt.
        Status::Voided => (Decision::Proceed, Letter('V')),

        Status::Denied if same => (Decision::Deny, Letter('X')),
        Status::Denied => (Decision::Diverge, Letter('X')),
    }
}

/// Returns what the bugs that are there on purpose make of an entry.
fn seeded_decision(
    entry: EntryFacts,
    policy: PolicyFacts,
    same: bool,
) -> Option<(Decision, Letter)> {
    let is_at_least_once = policy.delivery == Delivery::AtLeastOnce && entry.attempts_left;
    let runs_again = match entry.status {
        Status::Pending => entry.owner == Owner::Gone && seeded::has(Bug::PendingRunsAgain),
        Status::Failed => seeded::has(Bug::FailedRunsAgain),
        Status::Completed => {
            same && (seeded::has(Bug::CompletedRunsAgain)
                || is_at_least_once && seeded::has(Bug::RetryAfterSettled))
        }
        Status::InputRequired | Status::Accepted | Status::Voided | Status::Denied => false,
    };
    if runs_again {
        return Some((Decision::Retry, Letter('?')));
    }
    let is_question = entry.status == Status::InputRequired && same;
    if is_question && entry.round == RoundFact::First && seeded::has(Bug::QuestionAskedAnew) {
        return Some((Decision::NextRound, Letter('?')));
    }
    let is_doubt = entry.status == Status::Pending && entry.owner == Owner::Gone && !same;
    if is_doubt && policy.on_divergence == OnDivergence::Fork && seeded::has(Bug::ForkPastDoubt) {
        return Some((Decision::Fork, Letter('?')));
    }
    (entry.status == Status::Completed && !same && seeded::has(Bug::ChangedCallReplayed))
        .then_some((Decision::Replay, Letter('?')))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const BOOLS: [bool; 2] = [false, true];

    /// Every combination of facts, none left out.
    fn product() -> Vec<(EntryFacts, PolicyFacts)> {
        let mut all = Vec::new();
        for status in Status::ALL {
            for is_damaged in BOOLS {
                for is_tombstone in BOOLS {
                    for is_error in BOOLS {
                        for owner in [Owner::Live, Owner::Gone] {
                            for signature in [SignatureFact::Same, SignatureFact::Other] {
                                for round in
                                    [RoundFact::First, RoundFact::Continues, RoundFact::Foreign]
                                {
                                    for revision in [RevisionFact::Accepted, RevisionFact::Refused]
                                    {
                                        for attempts_left in BOOLS {
                                            let entry = EntryFacts {
                                                status,
                                                is_damaged,
                                                is_tombstone,
                                                is_error,
                                                owner,
                                                signature,
                                                round,
                                                revision,
                                                attempts_left,
                                            };
                                            all.extend(policies().into_iter().map(|p| (entry, p)));
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        all
    }

    fn policies() -> Vec<PolicyFacts> {
        let mut all = Vec::new();
        for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
            for on_failure in [OnFailure::Replay, OnFailure::Retry] {
                for on_tool_error in [OnFailure::Replay, OnFailure::Retry] {
                    for on_in_flight in [OnInFlight::Join, OnInFlight::Refuse] {
                        for on_divergence in [OnDivergence::Strict, OnDivergence::Fork] {
                            all.push(PolicyFacts {
                                delivery,
                                on_failure,
                                on_tool_error,
                                on_in_flight,
                                on_divergence,
                            });
                        }
                    }
                }
            }
        }
        all
    }

    const DEFAULTS: PolicyFacts = PolicyFacts {
        delivery: Delivery::AtMostOnce,
        on_failure: OnFailure::Replay,
        on_tool_error: OnFailure::Replay,
        on_in_flight: OnInFlight::Join,
        on_divergence: OnDivergence::Strict,
    };

    /// Whether a decision lets the upstream see a call.
    fn runs(decision: Decision) -> bool {
        match decision {
            Decision::Proceed | Decision::Retry | Decision::NextRound | Decision::Fork => true,
            Decision::Replay
            | Decision::Diverge
            | Decision::Join
            | Decision::InFlight
            | Decision::InDoubt
            | Decision::Abandon
            | Decision::Deny
            | Decision::Quarantine
            | Decision::Expired => false,
        }
    }

    #[test]
    fn a_letter_is_shown_as_the_contract_writes_it() {
        assert_eq!(Letter('E').to_string(), "@E");
    }

    #[test]
    fn damage_is_neither_replayed_nor_run() {
        for (entry, policy) in product() {
            let (decision, letter) = decide(Some(entry), policy);
            assert_eq!(
                entry.is_damaged,
                decision == Decision::Quarantine,
                "{entry:?} {letter}"
            );
        }
    }

    #[test]
    fn a_finished_effect_runs_again_only_where_a_policy_asks_for_a_retry_of_a_failure() {
        for (entry, policy) in product() {
            let (decision, letter) = decide(Some(entry), policy);
            let finished = matches!(
                entry.status,
                Status::Completed | Status::Failed | Status::Accepted
            );
            if !finished || !runs(decision) || decision == Decision::Fork {
                continue;
            }
            let asked = match entry.status {
                Status::Completed => entry.is_error && policy.on_tool_error == OnFailure::Retry,
                Status::Failed => policy.on_failure == OnFailure::Retry,
                _ => false,
            };
            assert!(
                asked && entry.attempts_left && entry.signature == SignatureFact::Same,
                "{entry:?} {policy:?} {letter}"
            );
        }
    }

    #[test]
    fn a_pending_entry_runs_again_only_under_at_least_once_with_its_owner_gone() {
        for (entry, policy) in product() {
            let (decision, letter) = decide(Some(entry), policy);
            if entry.status == Status::Pending && runs(decision) {
                assert!(
                    policy.delivery == Delivery::AtLeastOnce
                        && entry.owner == Owner::Gone
                        && entry.signature == SignatureFact::Same
                        && entry.attempts_left,
                    "{entry:?} {letter}"
                );
            }
        }
    }

    #[test]
    fn another_signature_is_never_replayed_nor_joined() {
        for (entry, policy) in product() {
            let (decision, letter) = decide(Some(entry), policy);
            if entry.signature == SignatureFact::Other {
                assert!(
                    !matches!(
                        decision,
                        Decision::Replay | Decision::Join | Decision::NextRound | Decision::Retry
                    ),
                    "{entry:?} {letter}"
                );
            }
        }
    }

    #[test]
    fn a_call_forks_only_where_strict_would_diverge() {
        for (entry, policy) in product() {
            let fork = decide(
                Some(entry),
                PolicyFacts {
                    on_divergence: OnDivergence::Fork,
                    ..policy
                },
            );
            let strict = decide(
                Some(entry),
                PolicyFacts {
                    on_divergence: OnDivergence::Strict,
                    ..policy
                },
            );
            assert_eq!(fork.1, strict.1);
            if fork.0 == Decision::Fork {
                assert_eq!(strict.0, Decision::Diverge);
            } else {
                assert_eq!(strict.0, fork.0);
            }
        }
    }

    #[test]
    fn an_expired_result_stays_expired() {
        for (entry, policy) in product() {
            if entry.is_tombstone && decide(Some(entry), policy).0 == Decision::Replay {
                panic!("a replay without a payload: {entry:?}");
            }
        }
    }

    /// The rows of the contract's table under the default policy, each spelled once.
    #[test]
    fn the_rows_of_the_contract_hold() {
        use Decision as D;
        use SignatureFact::{Other, Same};
        let base = EntryFacts {
            status: Status::Completed,
            is_damaged: false,
            is_tombstone: false,
            is_error: false,
            owner: Owner::Live,
            signature: Same,
            round: RoundFact::First,
            revision: RevisionFact::Accepted,
            attempts_left: true,
        };
        let with = |status, signature, owner| EntryFacts {
            status,
            signature,
            owner,
            ..base
        };
        let least = PolicyFacts {
            delivery: Delivery::AtLeastOnce,
            ..DEFAULTS
        };
        let retry = PolicyFacts {
            on_failure: OnFailure::Retry,
            on_tool_error: OnFailure::Retry,
            ..DEFAULTS
        };
        let refuse = PolicyFacts {
            on_in_flight: OnInFlight::Refuse,
            ..DEFAULTS
        };
        let (live, gone) = (Owner::Live, Owner::Gone);
        let none_left = |facts: EntryFacts| EntryFacts {
            attempts_left: false,
            ..facts
        };
        let round = |round| EntryFacts {
            round,
            ..with(Status::InputRequired, Same, live)
        };
        let rows: Vec<(EntryFacts, PolicyFacts, D, char)> = vec![
            (
                with(Status::Completed, Same, live),
                DEFAULTS,
                D::Replay,
                'B',
            ),
            (
                with(Status::Completed, Other, live),
                DEFAULTS,
                D::Diverge,
                'C',
            ),
            (
                EntryFacts {
                    is_error: true,
                    ..base
                },
                retry,
                D::Retry,
                'D',
            ),
            (with(Status::Pending, Same, gone), DEFAULTS, D::InDoubt, 'E'),
            (
                with(Status::Pending, Other, gone),
                DEFAULTS,
                D::InDoubt,
                'E',
            ),
            (with(Status::Failed, Same, live), DEFAULTS, D::Replay, 'F'),
            (with(Status::Failed, Same, live), retry, D::Retry, 'G'),
            (
                none_left(with(Status::Failed, Same, live)),
                retry,
                D::Replay,
                'F',
            ),
            (with(Status::Failed, Other, live), retry, D::Diverge, 'H'),
            (with(Status::Pending, Same, live), DEFAULTS, D::Join, 'I'),
            (with(Status::Pending, Same, live), refuse, D::InFlight, 'J'),
            (
                with(Status::Pending, Other, live),
                DEFAULTS,
                D::InFlight,
                'K',
            ),
            (with(Status::Pending, Same, gone), least, D::Retry, 'L'),
            (
                none_left(with(Status::Pending, Same, gone)),
                least,
                D::Abandon,
                'M',
            ),
            (with(Status::Pending, Other, gone), least, D::InDoubt, 'N'),
            (round(RoundFact::Continues), DEFAULTS, D::NextRound, 'O'),
            (round(RoundFact::First), DEFAULTS, D::Replay, 'P'),
            (round(RoundFact::Foreign), DEFAULTS, D::Diverge, 'R'),
            (
                with(Status::InputRequired, Other, live),
                DEFAULTS,
                D::Diverge,
                'R',
            ),
            (with(Status::Accepted, Same, live), DEFAULTS, D::Replay, 'S'),
            (
                with(Status::Accepted, Other, live),
                DEFAULTS,
                D::Diverge,
                'T',
            ),
            (with(Status::Voided, Other, live), DEFAULTS, D::Proceed, 'V'),
            (with(Status::Denied, Same, live), DEFAULTS, D::Deny, 'X'),
            (with(Status::Denied, Other, live), DEFAULTS, D::Diverge, 'X'),
            (
                EntryFacts {
                    is_damaged: true,
                    ..base
                },
                DEFAULTS,
                D::Quarantine,
                'Q',
            ),
            (
                EntryFacts {
                    is_tombstone: true,
                    ..base
                },
                DEFAULTS,
                D::Expired,
                'Z',
            ),
            (
                EntryFacts {
                    revision: RevisionFact::Refused,
                    ..base
                },
                DEFAULTS,
                D::Diverge,
                'C',
            ),
        ];
        for (facts, policy, decision, letter) in rows {
            assert_eq!(
                decide(Some(facts), policy),
                (decision, Letter(letter)),
                "{facts:?}"
            );
        }
        assert_eq!(decide(None, DEFAULTS), (D::Proceed, Letter('A')));
    }

    /// How often each letter comes up in the whole product: a change to any row shows here.
    #[test]
    fn the_golden_matrix() {
        let mut counts: BTreeMap<char, usize> = BTreeMap::new();
        let all = product();
        for (entry, policy) in &all {
            *counts.entry(decide(Some(*entry), *policy).1.0).or_default() += 1;
        }
        *counts.entry('A').or_default() += 1;
        for (letter, _) in ROWS {
            assert!(counts.contains_key(&letter), "row @{letter} is never met");
        }
        assert_eq!(counts.len(), ROWS.len(), "a letter without a row");
        let shown: Vec<String> = counts.iter().map(|(l, n)| format!("{l}{n}")).collect();
        assert_eq!(all.len(), 86_016, "the product has another size");
        assert_eq!(
            shown.join("\n"),
            include_str!("../../fixtures/decisions.txt").trim()
        );
    }
}
