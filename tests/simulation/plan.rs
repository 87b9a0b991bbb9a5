//! What a seed expands to.

use std::time::Duration;

use checkpoint::proxy::session::{Options, RefusalShape};

use crate::random::Random;

/// How an agent says which entry it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Seq,
    Key,
    Both,
    Bare,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) modes: Vec<Mode>,
    pub(crate) shares_workflow: bool,
    pub(crate) calls: usize,
    pub(crate) pipeline: usize,
    pub(crate) steps: usize,
    /// Chances in a thousand, a step or an event.
    pub(crate) kill: usize,
    pub(crate) power_cut: usize,
    pub(crate) agent_crash: usize,
    pub(crate) end_of_input: usize,
    pub(crate) stop: usize,
    pub(crate) stall: usize,
    pub(crate) journal_fault: usize,
    pub(crate) upstream_death: usize,
    pub(crate) misbehaviour: usize,
    pub(crate) cancel: usize,
    pub(crate) changed: usize,
    pub(crate) duplicate_id: usize,
    pub(crate) clock_jump: usize,
    pub(crate) long_wait: usize,
    pub(crate) operator: usize,
    pub(crate) forced: bool,
    pub(crate) damage: bool,
    pub(crate) call_timeout: Option<Duration>,
    pub(crate) refusals: RefusalShape,
    pub(crate) annotates: bool,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let agents = random.pick(&[1, 1, 2, 2, 3]);
        let modes = [
            Mode::Seq,
            Mode::Seq,
            Mode::Bare,
            Mode::Bare,
            Mode::Key,
            Mode::Both,
        ];
        let shared_mode = random.pick(&modes);
        let mixes = random.chance(250);
        let modes = (0..agents)
            .map(|_| {
                if mixes && random.chance(500) {
                    Mode::Bare
                } else {
                    shared_mode
                }
            })
            .collect();
        // Each kind of fault is off in half of the seeds, so that what one kind hides is seen.
        let mut rate = |rates: &[usize]| {
            let rate = random.pick(rates);
            if random.chance(500) { 0 } else { rate }
        };
        Self {
            seed,
            modes,
            kill: rate(&[4, 10, 25]),
            power_cut: rate(&[2, 6]),
            agent_crash: rate(&[4, 10, 25]),
            end_of_input: rate(&[4, 10]),
            stop: rate(&[3]),
            stall: rate(&[5, 20]),
            journal_fault: rate(&[30, 100, 300]),
            upstream_death: rate(&[4, 15]),
            misbehaviour: rate(&[150, 400, 700]),
            cancel: rate(&[10, 40]),
            changed: rate(&[100, 300]),
            duplicate_id: rate(&[30, 100]),
            clock_jump: rate(&[5, 20]),
            long_wait: rate(&[5, 20]),
            operator: rate(&[10, 30]),
            forced: random.chance(400),
            damage: random.chance(60),
            shares_workflow: random.chance(650),
            calls: 1 + random.below(4),
            pipeline: random.pick(&[1, 1, 2, 4]),
            steps: random.pick(&[80, 160, 300]),
            call_timeout: random
                .chance(300)
                .then(|| Duration::from_millis(random.pick(&[50, 1000, 5000]))),
            refusals: random.pick(&[
                RefusalShape::Auto,
                RefusalShape::Error,
                RefusalShape::Result,
            ]),
            annotates: random.chance(150),
        }
    }

    /// The same world without what only the journal in memory can be put through.
    pub(crate) fn comparable(mut self) -> Self {
        self.power_cut = 0;
        self.damage = false;
        self.operator = 0;
        self
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            is_journaled: true,
            journal_shown: "run.db".into(),
            trusts_annotations: false,
            identity: None,
            refusals: self.refusals,
            annotates: self.annotates,
            call_timeout: self.call_timeout,
            drain_timeout: Duration::from_secs(5),
            call_id_from: checkpoint::mcp::call::CallIdFrom::Auto,
            ends_on_doubt: false,
            policies: std::sync::Arc::default(),
            own_id_start: "checkpoint-own".into(),
        }
    }
}
