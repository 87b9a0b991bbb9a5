//! Bugs that are there on purpose: the simulation must catch each, or it proves nothing.
//!
//! A bug is chosen for the current thread by a test and asked for at the place where it would sit.
//! Without the `test-fakes` feature, which no release has, [`has`] is a constant `false` and the
//! bugs are not compiled.
//!
//! Must not: be chosen by anything but a test (there is no flag and no environment variable).

macro_rules! bugs {
    (
        { $($(#[$doc:meta])* $name:ident,)* }
        { $($(#[$line_doc:meta])* $line_name:ident,)* }
    ) => {
        /// A bug of the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug { $($(#[$doc])* $name,)* $($(#[$line_doc])* $line_name,)* }

        impl Bug {
            /// All that the simulation must catch.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
            /// Those of keys, windows, retries, forks and cursors, which the guard's model must
            /// catch.
            pub const OF_KEYS_AND_LINES: &[Self] = &[$(Self::$line_name,)*];
        }
    };
}

bugs! {
    {
        /// A call goes out before its reservation is durable.
        ForwardBeforeDurable,
        /// An answer goes out before its outcome is durable.
        AnswerBeforeDurable,
        /// A delivery is noted before the answer is written.
        DeliveryBeforeWritten,
        /// An answer that comes after its caller gave up is thrown away.
        LateAnswerDropped,
        /// The error that answers a cancelled call counts as its outcome.
        CancelErrorIsOutcome,
        /// The error of a closed connection counts as an outcome.
        ClosedConnectionIsOutcome,
        /// A second answer settles another call that runs.
        SecondAnswerSettlesAnother,
        /// An answer is taken for whichever call runs.
        IdMixUp,
        /// An error of the journal is taken for success.
        JournalErrorIgnored,
        /// An outcome that could not be written is delivered without its mark.
        UnwrittenOutcomeUnmarked,
        /// A call is voided although its bytes were written.
        VoidAfterBytes,
        /// A cancelled call is answered.
        CancelledCallAnswered,
        /// A second call under an id in flight is taken.
        DuplicateIdTaken,
        /// Those who wait for a call are not told of its end.
        WaitersForgotten,
        /// Lines to the upstream change their order.
        LinesReordered,
        /// That a caller gave up is not recorded.
        GivingUpUnrecorded,
        /// The outcome of an owner that was fenced is delivered.
        StaleOutcomeDelivered,
        /// A call that was refused as not started is forwarded all the same.
        RefusedCallForwarded,
        /// Reservations are committed without a sync.
        NoSync,
        /// Where outcomes are deferred, reservations are, too.
        ReservationDeferred,
        /// Where outcomes are deferred, questions and tasks are, too.
        QuestionDeferred,
        /// Where outcomes are deferred, those of calls that may run again are, too.
        RerunDeferred,
        /// The guard lets an equal call pass beside a doubt.
        GuardSkipsDoubt,
        /// The guard takes a call whose caller gave up for one that has nothing to do with it.
        GuardSkipsRunning,
        /// The guard runs a call whose outcome was never delivered.
        GuardSkipsUndelivered,
        /// An outcome is delivered again to two callers.
        RedeliveryTwice,
        /// An owner that is gone counts as live.
        GoneOwnerIsLive,
        /// An owner that is live counts as gone.
        LiveOwnerIsGone,
        /// The lock that a killed proxy's upstream still holds does not count.
        OrphanIgnored,
        /// That no answer will come does not count.
        UnansweredIgnored,
        /// The entry's checksum is not compared.
        ChecksumIgnored,
        /// The outcome's digest is not compared.
        DigestIgnored,
        /// An entry that is missing counts as new.
        MissingIsNew,
        /// A key is not looked up.
        KeyIgnored,
        /// The outcome of another entry is replayed.
        WrongEntryReplayed,
        /// An outcome is settled without comparing the fence.
        FenceNotCompared,
        /// A fence is used twice.
        FenceReused,
        /// A PENDING entry whose owner is gone runs again.
        PendingRunsAgain,
        /// A FAILED entry runs again.
        FailedRunsAgain,
        /// A COMPLETED entry runs again.
        CompletedRunsAgain,
        /// A changed call is answered with the old outcome.
        ChangedCallReplayed,
        /// The signature leaves the arguments out.
        SignatureWithoutArguments,
        /// At-least-once runs a call again that has come to its end.
        RetryAfterSettled,
        /// The attempts that were made do not count.
        AttemptsNotCounted,
        /// A live owner is taken over before its lease is over.
        LeaseIgnored,
        /// An attempt that did not run makes the lost one before it undone, too.
        VoidForgetsLostAttempt,
        /// A call that was taken over is told that it was not started.
        TakenOverIsNotStarted,
        /// That an outcome was given away unwritten is forgotten.
        UnwrittenOutcomeForgotten,
        /// A key holds no further than its workflow, whatever its window.
        KeyWindowIgnored,
        /// A cancellation is forwarded although the policy shields the call.
        ShieldForwardsCancellation,
        /// A changed call opens a branch beside a doubt.
        ForkPastDoubt,
        /// A branch shares the entry at which it was forked.
        ForkSharesTooMuch,
        /// The walk passes over an entry.
        CursorSkipsEntry,
        /// The walk passes an entry whose call was refused.
        CursorPassesRefused,
        /// A round is continued under another state than the one that was given.
        RoundWithAnyState,
        /// A question that stands is asked anew instead of being replayed.
        QuestionAskedAnew,
        /// A round that did not run voids the whole call.
        VoidedRoundVoidsCall,
        /// A task's handle is taken for the result.
        HandleIsResult,
        /// A task is told by its id alone.
        TaskByIdAlone,
        /// A verdict is given although somebody may still act on the entry.
        VerdictOnOwned,
        /// What is taken by force stays under the fence that its owner knows.
        ForceWithoutFence,
        /// A question or a task is taken as it is, however it was seen.
        OpenTakenUnseen,
        /// A round that an operator says was not executed voids the whole call.
        VerdictVoidsCall,
        /// An answer that was given to another call is adopted.
        AnotherCallAdopted,
        /// A verdict's outcome counts as delivered.
        VerdictCountsAsDelivered,
        /// A rehearsal is committed.
        RehearsalCommitted,
        /// A question is reopened as if it were settled.
        QuestionReopened,
        /// The key that is passed on changes with the attempt.
        PassedKeyOfAttempt,
    }
    {
        /// A key holds beyond its window.
        WindowIgnored,
        /// A key that is used again for other arguments counts as the same call.
        KeyCoversAll,
        /// `key_covers` is not read.
        KeyCoversNothing,
        /// Where a seq has no entry, the key's holder is not asked for.
        KeyBesideSeqIgnored,
        /// A key that is held is held a second time on a branch.
        KeyForked,
        /// The first call that diverges forks the branch, whatever the flag says.
        ForkUnasked,
        /// A branch does not see what came before its fork.
        ForkForgetsPast,
        /// The guard looks behind the fork.
        ForkSharesMore,
        /// An entry that was passed comes again.
        CursorStands,
        /// Calls that were not in flight together may come in any order.
        CursorTakesAny,
        /// What another workflow's entry says moves the cursor.
        CursorOfAnother,
        /// An outcome is delivered again however old it is.
        RedeliveryUnlimited,
    }
}

#[cfg(feature = "test-fakes")]
mod choice {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static CHOSEN: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Puts the bug into everything that this thread runs from now on; `None` takes it out.
    pub fn choose(bug: Option<Bug>) {
        CHOSEN.set(bug);
    }

    /// Returns whether this thread has the bug.
    #[must_use]
    pub fn has(bug: Bug) -> bool {
        CHOSEN.get() == Some(bug)
    }
}

#[cfg(feature = "test-fakes")]
pub use choice::{choose, has};

/// Returns `false`: this build has no bugs on purpose.
#[cfg(not(feature = "test-fakes"))]
#[must_use]
pub const fn has(_bug: Bug) -> bool {
    false
}
