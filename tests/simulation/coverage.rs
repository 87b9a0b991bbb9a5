//! What a run of many seeds has met: a counter that stays at zero means that a fault or a
//! decision is not simulated at all.

use checkpoint::guard::{AdmissionVerdict, Why};
use checkpoint::rules::decide::Decision;

use crate::oracle::{Kind, Seen};

macro_rules! counters {
    ($($name:ident)*) => {
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Coverage { $(pub(crate) $name: u64,)* }

        impl Coverage {
            pub(crate) fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    seeds lives ends effects orphan_effects batches forwards replies refusals
    runs replays redeliveries joins doubts divergences in_flights quarantines
    results errors not_executed closed second_answers stopped_by_cancel unterminated
    kills power_cuts rollbacks agent_crashes ends_of_input stops stalls upstream_deaths
    journal_faults full_disks cancels changed_calls duplicate_ids duplicates_refused
    long_waits clock_jumps verdicts forced damaged
    questions foreign_states rounds rounds_voided questions_replayed finals_replayed
    tasks polls task_ends handles_replayed ends_replayed
    retries_lost takeovers retries_failed retries_tool_error abandons refused_in_flight
    expired shielded keys_shared forks walked walked_out_of_order walks_ended
    deferred deferred_lost idle_syncs
    foreseen splits splits_refused splits_shared keys_passed keys_passed_again covered first_finishers
    stale_answers ruled_completed ruled_failed ruled_not_executed ruled_unknown ruled_wrongly
    ruled_rounds taken_running taken_open adopted taken_back reopened hand_delivered announced
    refused_absent refused_damaged refused_owned refused_open refused_settled refused_changed
    refused_adoption verdicts_rehearsed verdicts_unknown
}

macro_rules! take_over {
    ($self:ident, $seen:ident, $($name:ident)*) => { $($self.$name += $seen.$name;)* };
}

impl Coverage {
    pub(crate) fn admitted(&mut self, verdict: &AdmissionVerdict) {
        let counter = match verdict {
            AdmissionVerdict::Run(..) => &mut self.runs,
            AdmissionVerdict::Replay(replay) if replay.is_marked => &mut self.redeliveries,
            AdmissionVerdict::Replay(_) => &mut self.replays,
            AdmissionVerdict::Join { .. } => &mut self.joins,
            AdmissionVerdict::Refuse(refused) => match refused.why {
                Why::Table(Decision::InDoubt) => &mut self.doubts,
                Why::Table(Decision::Diverge) => &mut self.divergences,
                Why::Table(Decision::InFlight) => &mut self.in_flights,
                // The oracle counts what it has understood.
                Why::Table(Decision::Abandon | Decision::Expired) => return,
                _ => &mut self.quarantines,
            },
        };
        *counter += 1;
    }

    pub(crate) fn answered(&mut self, kind: Kind) {
        let counter = match kind {
            Kind::Result | Kind::Operator => &mut self.results,
            Kind::Error => &mut self.errors,
            Kind::NotExecuted => &mut self.not_executed,
            Kind::Closed => &mut self.closed,
            Kind::Question | Kind::Handle => return,
        };
        *counter += 1;
    }

    pub(crate) fn seen(&mut self, seen: &Seen) {
        take_over!(self, seen, rounds rounds_voided questions_replayed finals_replayed
            task_ends handles_replayed ends_replayed retries_lost takeovers retries_failed
            retries_tool_error abandons refused_in_flight expired shielded keys_shared forks
            walked walked_out_of_order walks_ended deferred deferred_lost splits_shared keys_passed keys_passed_again covered first_finishers
    stale_answers ruled_completed ruled_failed ruled_not_executed ruled_unknown ruled_wrongly
    ruled_rounds taken_running taken_open adopted taken_back reopened hand_delivered announced
    refused_absent refused_damaged refused_owned refused_open refused_settled refused_changed
    refused_adoption verdicts_rehearsed verdicts_unknown);
    }

    pub(crate) fn shown(&self) -> String {
        let shown: Vec<String> = self
            .all()
            .into_iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        shown.join(", ")
    }
}
