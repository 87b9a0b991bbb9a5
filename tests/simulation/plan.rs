//! What a seed expands to.

use std::time::Duration;

use checkpoint::guard::Options as GuardOptions;
use checkpoint::proxy::session::{Options, RefusalShape};
use checkpoint::rules::policy::{OnDivergence, PolicySet, ThreadId};

use crate::life::Habit;
use crate::promise::{Promise, Reach};
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
    /// Operators fork workflows.
    pub(crate) splits: bool,
    pub(crate) damage: bool,
    pub(crate) call_timeout: Option<Duration>,
    pub(crate) refusals: RefusalShape,
    pub(crate) annotates: bool,
    /// What the policy of all tools says.
    pub(crate) promise: Promise,
    /// `--on-divergence fork`.
    pub(crate) forks: bool,
    /// `--resume`.
    pub(crate) resumes: bool,
    /// Calls carry the stateless revision.
    pub(crate) is_stateless: bool,
    /// Chances in a thousand that an upstream asks for input, or answers with a task.
    pub(crate) rounds: usize,
    pub(crate) tasks: usize,
    /// Chances in a thousand that an agent sends the state of another question.
    pub(crate) foreign: usize,
    /// Upstreams answer once.
    pub(crate) answers_once: bool,
    /// What upstreams make of a call where nothing else is drawn.
    pub(crate) habit: Habit,
    /// Proxies of the first so many agents defer outcomes.
    pub(crate) deferring: usize,
    /// The chance of a power cut while something is not durable, where outcomes are deferred: one
    /// that comes when nothing is to be lost proves little.
    pub(crate) power_cut_unsynced: usize,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let plan = Self::plain(seed, &mut random);
        // Half of the worlds are as plain as a user's first one.
        let mut plan = if random.chance(500) {
            plan
        } else {
            plan.with_more(&mut random)
        };
        if random.chance(300) {
            plan.deferring = 1 + random.below(plan.modes.len());
            plan.power_cut_unsynced = 150;
            // What a bad disk does is proven for the others.
            plan.damage = false;
        }
        plan
    }

    /// Adds what a user has to ask for.
    fn with_more(mut self, random: &mut Random) -> Self {
        self.is_stateless = random.chance(500);
        if random.chance(600) {
            self.promise = Promise::of(random);
        }
        if random.chance(500) {
            self.rounds = random.pick(&[100, 400, 800]);
            self.foreign = random.pick(&[0, 100, 300]);
        }
        if random.chance(400) {
            self.tasks = random.pick(&[150, 400, 700]);
        }
        if (self.rounds > 0 || self.tasks > 0) && random.chance(300) {
            // What is open is taken by force alone.
            self.operator = 150;
            self.forced = true;
        }
        self.forks = random.chance(250);
        // A walk is told by who started over, so everybody does that in the same way.
        self.resumes = !self.promise.derives_key && random.chance(200);
        if self.resumes {
            self.modes.fill(Mode::Bare);
            self.pipeline = random.pick(&[1, 1, 2]);
        }
        self.splits = !self.forks && !self.resumes && random.chance(250);
        // What a bad disk does to the tree of branches is proven for the plain worlds.
        self.damage &= !self.forks && !self.resumes && !self.splits;
        if self.promise.at_least_once {
            // A second answer under an id that is in use again can't be told from the first.
            self.answers_once = true;
        }
        self
    }

    /// A world in which nothing happens by chance.
    pub(crate) fn quiet(modes: &[Mode], calls: usize) -> Self {
        let mut random = Random::quiet();
        Self {
            modes: modes.to_vec(),
            shares_workflow: true,
            calls,
            pipeline: 1,
            steps: 400,
            kill: 0,
            power_cut: 0,
            agent_crash: 0,
            end_of_input: 0,
            stop: 0,
            stall: 0,
            journal_fault: 0,
            upstream_death: 0,
            misbehaviour: 0,
            cancel: 0,
            changed: 0,
            duplicate_id: 0,
            clock_jump: 0,
            long_wait: 0,
            operator: 1,
            forced: false,
            damage: false,
            call_timeout: None,
            annotates: false,
            ..Self::plain(0, &mut random)
        }
    }

    fn plain(seed: u64, random: &mut Random) -> Self {
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
            operator: rate(&[20, 60, 150]),
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
            promise: Promise::default(),
            splits: false,
            forks: false,
            resumes: false,
            is_stateless: false,
            rounds: 0,
            tasks: 0,
            foreign: 0,
            answers_once: false,
            habit: Habit::Answer,
            deferring: 0,
            power_cut_unsynced: 0,
        }
    }

    /// The same world without what only the journal in memory can be put through.
    pub(crate) fn comparable(mut self) -> Self {
        self.power_cut = 0;
        self.power_cut_unsynced = 0;
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
            own_id_start: "checkpoint-own".into(),
            policies: std::sync::Arc::new(self.policies()),
        }
    }

    fn policies(&self) -> PolicySet {
        let text = self.promise.policy_file();
        PolicySet::parse(&text, ThreadId::Given).unwrap()
    }

    /// The run, or the thread, of an agent.
    fn group(agent: usize) -> String {
        format!("g{}", agent % 2)
    }

    /// Whether the agent's proxies defer outcomes.
    pub(crate) fn defers(&self, agent: usize) -> bool {
        agent < self.deferring
    }

    pub(crate) fn guard_options(&self, agent: usize) -> GuardOptions {
        let is_grouped = self.promise.reach == Reach::Group;
        GuardOptions {
            run_id: is_grouped.then(|| Self::group(agent)),
            thread_id: Some(Self::group(agent)),
            resumes: self.resumes,
            on_divergence: if self.forks {
                OnDivergence::Fork
            } else {
                OnDivergence::Strict
            },
            defers: self.defers(agent),
            ..GuardOptions::default()
        }
    }

    /// How far a key of that agent's holds.
    pub(crate) fn scope(&self, agent: usize, workflow: usize) -> String {
        match self.promise.reach {
            Reach::Workflow => format!("w{workflow}"),
            Reach::Group | Reach::Thread => Self::group(agent),
            Reach::Journal => String::new(),
        }
    }
}
