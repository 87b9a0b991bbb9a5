//! What a seed expands to: who calls what under which name, and what befalls each call.

use serde_json::{Value, json};

use crate::random::Random;

/// Agents of one world, each behind a proxy of its own, all on one journal.
pub(crate) const AGENTS_MAX: usize = 8;

/// How a call says which step it means.
#[derive(Clone, Debug)]
pub(crate) enum Naming {
    Seq(u64),
    Key,
    /// Neither: whoever asks again counts on the guard.
    Bare,
}

/// One step of the workflow: one effect, whoever asks for it and however often.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Stands in the arguments, in the effects log and in the answer's text.
    pub(crate) name: String,
    pub(crate) naming: Naming,
    /// Who asks for it: one agent, or several at the same time.
    pub(crate) agents: Vec<usize>,
}

impl Step {
    /// Names the workflow: each naming has its own, since unnumbered calls take numbers too.
    pub(crate) fn workflow(&self) -> &'static str {
        match self.naming {
            Naming::Seq(_) => "numbered",
            Naming::Key => "keyed",
            Naming::Bare => "bare",
        }
    }

    /// The call's line; the script is no part of what the call means.
    pub(crate) fn line(&self, id: u64, script: &Value) -> String {
        let mut meta = json!({"checkpoint_workflow": self.workflow(), "script": script});
        match self.naming {
            Naming::Seq(seq) => meta["checkpoint_seq"] = json!(seq),
            Naming::Key => meta["checkpoint_key"] = json!(self.name),
            Naming::Bare => {}
        }
        let arguments = json!({"order_id": self.name, "payload": self.name});
        let params = json!({"name": "echo", "arguments": arguments, "_meta": meta});
        let line = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        format!("{line}\n")
    }
}

/// What happens while the upstream holds a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The upstream goes on without it for as long as it is let, or stays where it is.
    KillProxy {
        goes_on: bool,
    },
    KillUpstream,
    /// The proxy stops for a while, and is then killed or goes on.
    Stall {
        is_killed: bool,
    },
    /// No file may grow past this place; for as many answers as are said.
    FillDisk {
        at_bytes: u64,
        answers: usize,
    },
    LetGo,
}

/// What befalls one call, if it reaches the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Plain,
    /// The upstream kills itself there.
    Dies(&'static str),
    /// The upstream holds the call, before or after its effect.
    Held {
        is_after: bool,
        then: Then,
    },
}

impl Fate {
    /// What the upstream is told; a hold has the name of its call.
    pub(crate) fn script(self, hold: &str) -> Value {
        match self {
            Self::Plain => json!({}),
            Self::Dies(place) => json!({"die": place}),
            Self::Held { is_after: true, .. } => json!({"hold_after": hold}),
            Self::Held { .. } => json!({"hold_before": hold}),
        }
    }

    fn draw(random: &mut Random) -> Self {
        if random.chance(550) {
            return Self::Plain;
        }
        if random.chance(200) {
            let places = ["before_effect", "after_effect", "mid_line", "after_answer"];
            return Self::Dies(random.pick(&places));
        }
        let then = match random.below(100) {
            0..30 => Then::KillProxy {
                goes_on: random.chance(400),
            },
            30..50 => Then::KillUpstream,
            50..70 => Then::Stall {
                is_killed: random.chance(400),
            },
            70..90 => Then::FillDisk {
                at_bytes: random.pick(&[0, 4_096, 40_000, 120_000, 400_000]),
                answers: 1 + random.below(5),
            },
            _ => Then::LetGo,
        };
        Self::Held {
            is_after: random.chance(600),
            then,
        }
    }
}

/// One call of an agent's in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) step: usize,
    pub(crate) fate: Fate,
}

/// What one agent does in one round.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) turns: Vec<Turn>,
    /// Calls that it keeps in flight.
    pub(crate) window: usize,
    /// Kills its proxy once it has read so many answers.
    pub(crate) kill_after: Option<usize>,
    /// How often it starts over once its proxy is gone.
    pub(crate) starts_max: usize,
}

/// What the operator does after so many more answers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deed {
    List,
    Show {
        seq: u64,
    },
    Verify,
    /// Finds out what is in doubt and says what became of it. Sometimes wrongly.
    Resolve {
        mistakes_per_mille: usize,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Round {
    /// One for each agent.
    pub(crate) parts: Vec<Part>,
    pub(crate) deeds: Vec<(u64, Deed)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) agents: usize,
    pub(crate) steps: Vec<Step>,
    pub(crate) rounds: Vec<Round>,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let agents = 1 + random.below(AGENTS_MAX);
        let mut steps = Vec::new();
        for number in 0..6 + agents as u64 * 3 {
            let kind = random.below(3);
            let (name, naming) = match kind {
                0 => (format!("s{number}"), Naming::Seq(number + 1)),
                1 => (format!("k{number}"), Naming::Key),
                _ => (format!("b{number}"), Naming::Bare),
            };
            let mut of = vec![random.below(agents)];
            // Two who ask for the same bare call at the same time mean two calls.
            if kind < 2 && random.chance(500) {
                of.extend((0..agents).filter(|_| random.chance(400)));
                of.sort_unstable();
                of.dedup();
            }
            steps.push(Step {
                name,
                naming,
                agents: of,
            });
        }
        let rounds = (0..2 + random.below(3))
            .map(|_| Round::draw(random, agents, &steps))
            .collect();
        Self {
            seed,
            agents,
            steps,
            rounds,
        }
    }

    /// A round in which nothing befalls anybody.
    pub(crate) fn quiet_round(&self) -> Round {
        let part = |agent| Part {
            turns: turns_of(agent, &self.steps, |_| Fate::Plain),
            window: 4,
            kill_after: None,
            starts_max: 1,
        };
        Round {
            parts: (0..self.agents).map(part).collect(),
            deeds: Vec::new(),
        }
    }
}

fn turns_of(agent: usize, steps: &[Step], mut fate: impl FnMut(usize) -> Fate) -> Vec<Turn> {
    let is_theirs = |step: &&usize| steps[**step].agents.contains(&agent);
    let of_agent: Vec<usize> = (0..steps.len()).collect();
    of_agent
        .iter()
        .filter(is_theirs)
        .map(|&step| Turn {
            step,
            fate: fate(step),
        })
        .collect()
}

impl Round {
    fn draw(random: &mut Random, agents: usize, steps: &[Step]) -> Self {
        let part = |agent, random: &mut Random| {
            let mut turns = turns_of(agent, steps, |_| Fate::draw(random));
            for at in (1..turns.len()).rev() {
                turns.swap(at, random.below(at + 1));
            }
            Part {
                window: 1 + random.below(4),
                kill_after: random
                    .chance(400)
                    .then(|| 1 + random.below(turns.len().max(1))),
                starts_max: 2 + random.below(3),
                turns,
            }
        };
        let parts = (0..agents).map(|agent| part(agent, random)).collect();
        let deeds = (0..2 + random.below(4))
            .map(|_| {
                let deed = match random.below(5) {
                    0 => Deed::List,
                    1 => Deed::Show {
                        seq: 1 + random.below(steps.len()) as u64,
                    },
                    2 => Deed::Verify,
                    _ => Deed::Resolve {
                        mistakes_per_mille: random.pick(&[0, 0, 300]),
                    },
                };
                (1 + random.below(8) as u64, deed)
            })
            .collect();
        Self { parts, deeds }
    }
}
