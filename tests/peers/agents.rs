//! Agent frameworks, each with its own loop and its own retries, and a scripted model.
//!
//! A run is killed in its third call and in its fourth, comes back each time, and the
//! scripted upstream counts its effects: one a step, however the framework tells the
//! proxy which call it means, and also where it tells nothing. The call that nobody
//! knows the outcome of is refused, and a model that asks again changes nothing.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::Bench;
use crate::client::{Running, Story, python};
use crate::setup::text;
use crate::world::{PATIENCE_MS, World, is_direct};

const PATIENCE: Duration = Duration::from_millis(PATIENCE_MS as u64);
const UPSTREAM: &str = env!("CARGO_BIN_EXE_scripted-upstream");
const POLICY: &str = "[tools.charge]\nkey = \"order:{order_id}\"\nwindow = \"journal\"\n";

/// An agent framework.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Framework {
    LangChain,
    OpenAiAgents,
    PydanticAi,
}
use Framework::{LangChain, OpenAiAgents, PydanticAi};

/// How the proxy knows which call is meant.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// `_meta.checkpoint_seq`.
    Seq,
    /// `_meta.checkpoint_key`.
    Key,
    /// A key that the policy derives from the arguments.
    PolicyKey,
    /// The place in the run (`--resume`).
    Resume,
    /// Nothing: the guard alone. The agent goes on at the step that it was killed in.
    Guard,
}

/// What the model is shown of a refusal, at its first and at its second asking.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shown {
    /// Our text, both times.
    Ours,
    /// Our text, and then the framework ends the run.
    OursThenRaised,
    /// The framework's own text, which says nothing.
    TheirOwn,
}
use Shown::{Ours, OursThenRaised, TheirOwn};

/// Makes one test of each line: its name, the framework, the way, `--refusals`, what the model
/// is shown, and how many refusals that took, which tells what the framework retried by itself.
macro_rules! agents {
    ($($name:ident: $framework:ident, $way:ident, $refusals:literal, $shown:ident, $asked:literal;)*) => {
        $(#[test] fn $name() {
            let agent = Agent { framework: $framework, way: Way::$way, refusals: $refusals };
            killed_twice(agent, $shown, $asked);
        })*
    };
}

agents! {
    langchain_with_a_policy_key: LangChain, PolicyKey, "auto", Ours, 2;
    langchain_that_resumes: LangChain, Resume, "auto", Ours, 2;
    langchain_with_the_guard_alone: LangChain, Guard, "auto", Ours, 2;

    // Its retries ask four times more, after an error only.
    openai_agents_with_seqs: OpenAiAgents, Seq, "auto", TheirOwn, 6;
    openai_agents_with_keys_and_results: OpenAiAgents, Key, "result", Ours, 2;
    openai_agents_with_a_policy_key: OpenAiAgents, PolicyKey, "auto", Ours, 2;
    openai_agents_that_resumes: OpenAiAgents, Resume, "auto", Ours, 2;
    openai_agents_with_the_guard_alone: OpenAiAgents, Guard, "auto", Ours, 2;

    pydantic_ai_with_seqs: PydanticAi, Seq, "auto", OursThenRaised, 2;
    pydantic_ai_with_keys_and_results: PydanticAi, Key, "result", OursThenRaised, 2;
    pydantic_ai_with_a_policy_key: PydanticAi, PolicyKey, "auto", OursThenRaised, 2;
    pydantic_ai_that_resumes: PydanticAi, Resume, "auto", OursThenRaised, 2;
    pydantic_ai_with_the_guard_alone: PydanticAi, Guard, "auto", OursThenRaised, 2;
}

/// An agent: its framework and how the proxy in front of its upstream is set up.
#[derive(Clone, Copy, Debug)]
struct Agent {
    framework: Framework,
    way: Way,
    refusals: &'static str,
}

impl Agent {
    /// Starts the agent on the steps from this one on; `None` (said loudly) without Python.
    fn start(self, world: &World, first: u64) -> Option<Running> {
        let (framework, major, retries) = match self.framework {
            LangChain => ("langchain", 1, 0),
            OpenAiAgents => ("openai-agents", 1, 2),
            PydanticAi => ("pydantic-ai", 2, 1),
        };
        let tell = match self.way {
            Way::Seq => "seq",
            Way::Key => "key",
            Way::PolicyKey | Way::Resume | Way::Guard => "nothing",
        };
        let policy = world.path("policy.toml");
        fs::write(&policy, POLICY).expect("the world is writable");
        let policy = text(&policy);
        let mut options = vec!["--refusals", self.refusals];
        match self.way {
            Way::PolicyKey => options.extend(["--policy", &policy]),
            Way::Resume => options.push("--resume"),
            Way::Seq | Way::Key | Way::Guard => {}
        }
        let step = |seq: u64| {
            let script = json!({"hold_after": format!("step-{seq}")});
            let arguments = json!({"order_id": seq, "script": script});
            json!({"seq": seq, "name": "charge", "arguments": arguments})
        };
        let plan = json!({
            "framework": framework,
            "command": world.behind_proxy(&options, &[UPSTREAM.to_owned()]),
            "tell": tell,
            // A cursor is for a client that stays connected while it starts over.
            "session": self.way == Way::Resume,
            "retries": retries,
            "calls": (first..=4).map(step).collect::<Vec<_>>(),
        });
        let mut command = python(major, "frameworks.py")?;
        command
            .env("SCRIPTED_EFFECTS", world.path("effects"))
            .env("SCRIPTED_GATE", world.path("gate"));
        Some(Running::start(command, world, &plan))
    }
}

fn killed_twice(agent: Agent, shown: Shown, refusals: u64) {
    if is_direct() {
        return;
    }
    let world = World::new();
    let gate: Arc<Bench> = Bench::open(&world.path("gate"));
    for step in ["step-1", "step-2"] {
        gate.release(step);
    }
    // The third call runs when the client is killed; the proxy keeps its outcome.
    let Some(mut first) = agent.start(&world, 1) else {
        return;
    };
    first.wait_for("sending", Some(3));
    let held = gate.wait_held("step-3", 1, PATIENCE);
    held.expect("the third call runs");
    first.crash();
    assert_eq!(effects(&world), [1, 2, 3]);

    // The fourth runs when client and proxy are.
    let goes_on_at = |step: u64| if agent.way == Way::Guard { step } else { 1 };
    let start = |step| agent.start(&world, goes_on_at(step)).expect("as before");
    let mut second = start(3);
    second.wait_for("sending", Some(3));
    gate.release("step-3");
    second.wait_for("sending", Some(4));
    let held = gate.wait_held("step-4", 1, PATIENCE);
    let upstream = held.expect("the fourth call runs");
    second.crash_with_proxy();
    assert!(gate.wait_gone(upstream, PATIENCE), "the upstream outlived");
    assert_eq!(effects(&world), [1, 2, 3, 4]);

    // It would not be held again, so that a second effect shows.
    gate.release("step-4");
    let third = start(4).finish();
    assert_eq!(effects(&world), [1, 2, 3, 4], "nothing ran again");
    check_shown(&third, agent, shown);
    assert_eq!(refused(&world, 4), refusals, "{third:#?}");
}

/// Checks what the last run's model was shown: results, and of the fourth call a doubt.
fn check_shown(story: &Story, agent: Agent, shown: Shown) {
    let (of_fourth, of_others): (Vec<&Value>, Vec<&Value>) = story
        .events_named("shown")
        .into_iter()
        .partition(|event| event["seq"] == 4);
    let others = if agent.way == Way::Guard { 0 } else { 3 };
    assert_eq!(of_others.len(), others, "{story:#?}");
    for event in of_others {
        let text = event["text"].as_str().expect("a model is shown text");
        assert!(text.contains("done") || text.contains("receipt"), "{event}");
    }
    let raised = story.events_named("raised").len();
    let counts = match shown {
        Ours | TheirOwn => (2, 0),
        OursThenRaised => (1, 1),
    };
    assert_eq!((of_fourth.len(), raised), counts, "{story:#?}");
    for event in of_fourth {
        let text = event["text"].as_str().expect("a model is shown text");
        if shown == TheirOwn {
            assert!(!text.contains("checkpoint"), "{event}");
            continue;
        }
        for part in [
            "checkpoint: in-doubt at seq 4",
            "charge",
            "may or may not have taken effect",
            "Do not call it again",
            "checkpoint resolve 4",
        ] {
            assert!(text.contains(part), "{part:?} is not in {event}");
        }
    }
}

/// The orders that the upstream charged, in order.
fn effects(world: &World) -> Vec<u64> {
    let log = fs::read_to_string(world.path("effects")).unwrap_or_default();
    let order = |line: &str| -> Option<u64> {
        let effect: Value = serde_json::from_str(line).expect("an effect is JSON");
        effect["order_id"].as_u64()
    };
    log.lines().filter_map(order).collect()
}

/// How often the call of this seq was refused, by the journal.
fn refused(world: &World, seq: u64) -> u64 {
    let output = Command::new(env!("CARGO_BIN_EXE_checkpoint"))
        .args(["show", &seq.to_string(), "--json", "--journal"])
        .arg(world.path("run.db"))
        .output()
        .expect("the program is there");
    let shown: Value = serde_json::from_slice(&output.stdout).expect("an entry is shown");
    let events = shown["events"].as_array().expect("an entry has events");
    let refusals = events.iter().filter(|event| event["kind"] == "refused");
    refusals.filter_map(|event| event["count"].as_u64()).sum()
}
