//! Doubts about which somebody is asked, and the questions that go to the upstream for it.
//!
//! A doubt is asked about once at a time; calls that mean the same entry wait for one answer. Who
//! is asked and what is done with the answer is elsewhere ([`crate::proxy::reconcile`]); here it is
//! decided when a question may go out, under which id, and when nothing more will be heard.
//!
//! Invariants: a question goes out only once the client's session has settled, and as a call that
//! is legal in it; its id is none of the client's, and no line that carries it reaches the client;
//! whatever happens (silence, a cancellation, the end of either side), the asking ends.
//!
//! Must not: read what the answer says.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Level, Session, Stage, TELL_MAX};
use crate::guard::{Refused, Why};
use crate::json;
use crate::mcp::frame::{Answer, ClientLine, IdKey, Raw, RawId, read_client};
use crate::mcp::own_call::own_meta;
use crate::proxy::reconcile::{Asks, Heard, Probe, ToolQuestion};
use crate::rules::decide::Decision;
use crate::rules::entry::Entry;
use crate::rules::ids::{BranchId, Seq};
use crate::rules::policy::{ReconcileBy, ReconcileTool};

type Place = (BranchId, Seq);

/// How long what was heard may hold up an end that hosts wait for.
const URGENT_HEARING_MAX: Duration = Duration::from_millis(100);

/// How far the handshake of the `initialize` revisions has come.
///
/// Source: MCP 2025-11-25, `basic/lifecycle`.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    is_begun: bool,
    is_answered: bool,
    is_confirmed: bool,
}

impl Handshake {
    /// The client has sent `initialize`.
    pub(super) fn begin(&mut self) {
        self.is_begun = true;
    }

    /// The upstream has answered it with a result.
    pub(super) fn answer(&mut self) {
        self.is_answered = true;
    }

    /// The client has sent `notifications/initialized`.
    pub(super) fn confirm(&mut self) {
        self.is_confirmed = self.is_begun;
    }

    fn is_settled(&self) -> bool {
        self.is_answered && self.is_confirmed
    }
}

/// Where the asking about a doubt stands.
#[derive(Debug)]
pub(super) enum Probing {
    /// The client's session has not settled yet.
    Held {
        probe: Box<Probe>,
        /// Nobody is asked after it.
        until: Instant,
    },
    /// Somebody is at it. What is to be asked of the upstream comes back as a question.
    Begun,
    /// The upstream has the question.
    Sent {
        key: IdKey,
        /// Nothing more is heard after it.
        until: Instant,
    },
    /// What was heard is being written.
    Heard {
        /// So long the end of the run waits for it.
        until: Option<Instant>,
    },
}

impl Probing {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Held { until, .. } | Self::Sent { until, .. } => Some(*until),
            Self::Begun => None,
            Self::Heard { until } => *until,
        }
    }
}

impl Session {
    /// Takes the doubts about which somebody is to be asked. The answer is [`Session::probed`];
    /// before it, [`Session::ask_upstream`] may come.
    pub fn take_probes(&mut self) -> Vec<Probe> {
        std::mem::take(&mut self.probes)
    }

    /// Takes what came of questions to the upstream.
    pub fn take_heard(&mut self) -> Vec<((BranchId, Seq), Heard)> {
        std::mem::take(&mut self.heard)
    }

    /// Lets somebody be asked about a doubt, where the policy of the doubtful tool names somebody
    /// and nobody has been asked for this call yet. Returns whether the call waits for that.
    pub(super) fn probe(&mut self, key: &IdKey, refused: &Refused, now: Instant) -> bool {
        let (Why::Table(Decision::InDoubt | Decision::Abandon), Some(entry)) =
            (refused.why, &refused.entry)
        else {
            return false;
        };
        let place = (entry.branch, entry.seq);
        let can_wait = |flight: &super::Flight| !flight.was_probed && flight.waits();
        if !self.flights.get(key).is_some_and(|flight| can_wait(flight)) {
            return false;
        }
        // Two calls that mean one entry wait for one answer.
        if !self.probing.contains_key(&place) {
            let Some(probing) = self.begin_probe(key, entry, now) else {
                return false;
            };
            self.probing.insert(place, probing);
        }
        if let Some(flight) = self.flights.get_mut(key) {
            flight.was_probed = true;
            flight.stage = Stage::Probing { place };
        }
        true
    }

    fn begin_probe(&mut self, key: &IdKey, entry: &Entry, now: Instant) -> Option<Probing> {
        // The doubt is about the entry's tool, whatever the call that met it is one of.
        let policy = self.options.policies.for_tool(&entry.tool).clone();
        let reconcile = policy.reconcile.as_ref()?;
        let (asks, is_held) = match &reconcile.by {
            ReconcileBy::Command(command) => (Asks::Command(command.clone()), false),
            ReconcileBy::Tool(tool) => self.asks_tool(key, entry, tool)?,
        };
        let probe = Probe {
            place: (entry.branch, entry.seq),
            fence: entry.fence,
            asks,
            timeout: reconcile.timeout,
            result_bytes_max: usize::try_from(policy.result_bytes_max).unwrap_or(usize::MAX),
        };
        let said = format!("in doubt at seq={}: asking what became of it", entry.seq);
        self.say(Level::Info, said);
        Some(if is_held {
            Probing::Held {
                probe: Box::new(probe),
                until: now + reconcile.timeout,
            }
        } else {
            self.probes.push(probe);
            Probing::Begun
        })
    }

    /// Returns how the tool is asked on behalf of a call, and whether that has to wait; nothing
    /// where it can't be asked.
    fn asks_tool(
        &mut self,
        key: &IdKey,
        entry: &Entry,
        tool: &ReconcileTool,
    ) -> Option<(Asks, bool)> {
        let unasked = |session: &mut Self, why: &str| {
            let said = format!("in doubt at seq={}: nobody is asked, {why}", entry.seq);
            session.say(Level::Warn, said);
        };
        if tool.tool == entry.tool {
            unasked(
                self,
                "since the policy names the very tool that is in doubt",
            );
            return None;
        }
        if let Some(why) = self.why_unasked() {
            unasked(self, &why);
            return None;
        }
        let flight = self.flights.get(key)?;
        let mut meta = None;
        let mut is_held = false;
        if flight.is_stateless {
            // It has no handshake: each request says for itself whose it is.
            meta = flight
                .line
                .as_ref()
                .and_then(|line| match read_client(line) {
                    ClientLine::Call(call) => call.meta.and_then(own_meta),
                    ClientLine::Blank
                    | ClientLine::Header
                    | ClientLine::Pass(_)
                    | ClientLine::Refused(_) => None,
                });
            if meta.is_none() {
                unasked(self, "since the call that met it is not at hand");
                return None;
            }
        } else if !self.handshake.is_begun {
            unasked(self, "since the client has not initialized its session");
            return None;
        } else {
            is_held = !self.handshake.is_settled();
        }
        let asks = Asks::Tool {
            tool: Box::new(tool.clone()),
            id: self.own_id(),
            meta,
        };
        Some((asks, is_held))
    }

    fn own_id(&mut self) -> String {
        loop {
            self.own_ids += 1;
            let id = format!("{}-{}", self.options.own_id_start, self.own_ids);
            let quoted = json::quote(&id);
            let is_free =
                RawId::new(quoted.as_bytes()).is_some_and(|id| self.in_flight(id).is_none());
            if is_free {
                return id;
            }
        }
    }

    /// Returns why the upstream can't be asked anything any more.
    fn why_unasked(&self) -> Option<String> {
        let is_over = self.phase.is_upstream_gone() || self.phase.is_ending();
        is_over.then(|| self.phase.why_unavailable())
    }

    /// Takes a question of our own, which is in the journal by now. It goes out after what the
    /// client has sent so far; what comes of it is in [`Session::take_heard`], always.
    pub fn ask_upstream(&mut self, question: ToolQuestion, now: Instant) {
        let place = question.place;
        let quoted = json::quote(&question.id);
        let key = RawId::new(quoted.as_bytes()).map(RawId::key);
        match (key, self.why_unasked()) {
            (Some(key), None) => {
                let until = now + question.timeout;
                self.probing.insert(place, Probing::Sent { key, until });
                self.up.push(question.line);
            }
            (_, why) => {
                let why = why.unwrap_or_else(|| "it has no id".into());
                self.hear(place, Heard::Nothing(why), now);
            }
        }
    }

    /// Somebody was asked about the doubt at a place, whatever came of it: the calls that wait for
    /// it are decided again.
    pub fn probed(&mut self, place: (BranchId, Seq)) {
        self.probing.remove(&place);
        for (key, flight) in &mut self.flights {
            if matches!(flight.stage, Stage::Probing { place: other } if other == place) {
                flight.stage = Stage::Admitting;
                self.ops.push(flight.admission(key, &mut self.askings));
            }
        }
    }

    fn hear(&mut self, place: Place, heard: Heard, now: Instant) {
        let patience = if self.phase.is_urgent() {
            URGENT_HEARING_MAX
        } else {
            TELL_MAX
        };
        let until = Some(now + patience);
        self.probing.insert(place, Probing::Heard { until });
        self.heard.push((place, heard));
    }

    /// Returns whether an id is of a request of our own, answered or not.
    pub(super) fn is_own(&self, id: RawId<'_>) -> bool {
        self.own_ids > 0 && id.starts_with(&self.options.own_id_start)
    }

    /// Returns the doubt whose question has this id and is still open.
    fn asked_under(&self, id: RawId<'_>) -> Option<Place> {
        let asked = id.key();
        let mut open = self.probing.iter();
        open.find(|(_, probing)| matches!(probing, Probing::Sent { key, .. } if *key == asked))
            .map(|(place, _)| *place)
    }

    /// A question of ours was answered. What comes too late, or a second time, counts for nothing.
    pub(super) fn own_answered(&mut self, answer: &Answer<'_>, now: Instant) {
        let Some(place) = self.asked_under(answer.id) else {
            self.say(Level::Info, "dropped a late answer to a question of ours");
            return;
        };
        let heard = match answer.outcome {
            // Where the line is no JSON, neither is a part of it to be relied on.
            Raw::Result(_) if !answer.is_strict() => Heard::Nothing("its answer is no JSON".into()),
            Raw::Result(raw) => Heard::Result(raw.to_vec()),
            Raw::Error(raw) => Heard::Error(raw.to_vec()),
        };
        self.hear(place, heard, now);
    }

    /// The answer to a question of ours was too long to be kept.
    pub(super) fn own_answer_too_long(&mut self, id: RawId<'_>, bytes: u64, now: Instant) {
        if let Some(place) = self.asked_under(id) {
            let why = format!("its answer of {bytes} bytes is over --max-message-bytes");
            self.hear(place, Heard::Nothing(why), now);
        }
    }

    /// Takes a line that is no message if it names a question of ours: the client never sent
    /// that. Returns whether it was taken.
    pub(super) fn takes_odd_line(&mut self, line: &[u8], now: Instant) -> bool {
        let start = self.options.own_id_start.as_bytes();
        if self.own_ids == 0 || !line.windows(start.len()).any(|part| part == start) {
            return false;
        }
        let open: Vec<Place> = self
            .probing
            .iter()
            .filter(|(_, probing)| matches!(probing, Probing::Sent { .. }))
            .map(|(place, _)| *place)
            .collect();
        // Of several, each has its time.
        if let [place] = open[..] {
            self.hear(
                place,
                Heard::Nothing("its answer can't be read".into()),
                now,
            );
        }
        true
    }

    /// Looks at the clock and at what has ended: no question stays open for ever.
    pub(super) fn tick_probes(&mut self, now: Instant) {
        if self.probing.is_empty() {
            return;
        }
        let why_unasked = self.why_unasked();
        // A drain goes on until the input is closed, and so does a question.
        let is_deaf = self.phase.is_upstream_gone() || self.phase.is_input_closed();
        let places: Vec<Place> = self.probing.keys().copied().collect();
        let waiting: BTreeSet<Place> = self
            .flights
            .values()
            .filter_map(|flight| match flight.stage {
                Stage::Probing { place } => Some(place),
                Stage::Admitting
                | Stage::Confirming { .. }
                | Stage::Joining { .. }
                | Stage::Forwarded(_)
                | Stage::Settling(_) => None,
            })
            .collect();
        for place in places {
            let Some(probing) = self.probing.get_mut(&place) else {
                continue;
            };
            match probing {
                Probing::Held { .. } if why_unasked.is_some() || !waiting.contains(&place) => {
                    self.probed(place);
                }
                Probing::Held { probe, .. } if self.handshake.is_settled() => {
                    self.probes.push(probe.as_ref().clone());
                    *probing = Probing::Begun;
                }
                Probing::Held { until, .. } if now >= *until || !self.handshake.is_begun => {
                    self.probed(place);
                }
                Probing::Sent { .. } if is_deaf => {
                    let why = self.phase.why_unavailable();
                    self.hear(place, Heard::Nothing(why), now);
                }
                Probing::Sent { until, .. } if now >= *until => {
                    self.hear(
                        place,
                        Heard::Nothing("it did not answer in time".into()),
                        now,
                    );
                }
                Probing::Heard { until } => *until = until.filter(|until| now < *until),
                Probing::Held { .. } | Probing::Begun | Probing::Sent { .. } => {}
            }
        }
    }

    /// Returns whether what was heard is worth a moment at the end.
    pub(super) fn is_hearing(&self) -> bool {
        let mut all = self.probing.values();
        all.any(|probing| matches!(probing, Probing::Heard { until: Some(_) }))
    }
}

#[cfg(test)]
mod tests;
