//! Real clients that are asked in the middle of a call, or answered with a task, and die there.
//!
//! The questions are of all three kinds. In the stateless revision each ends a round, and the SDK
//! goes on by itself under the same seq; before it, each is a request inside the running call.
//! No SDK here is left out silently: docs/compatibility.md says what each of them can't do.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::Mode::{Auto, Legacy, Modern};
use crate::client::Sdk::{Python1, Python2, TypeScript1, TypeScript2};
use crate::world::{Call, Scripted, World, is_direct};

const IN_DOUBT: i64 = 7702;

/// Makes one test of each line: a name, what to check and the client.
macro_rules! clients {
    ($($name:ident: $check:ident, $sdk:ident, $mode:ident;)*) => {
        $(#[test] fn $name() { $check(Client($sdk, $mode)); })*
    };
}

clients! {
    python2_modern_killed_between_rounds: rounds, Python2, Modern;
    python2_auto_killed_between_rounds: rounds, Python2, Auto;
    typescript2_pinned_killed_between_rounds: rounds, TypeScript2, Modern;

    python1_killed_while_it_is_asked: questions, Python1, Legacy;
    python2_killed_while_it_is_asked: questions, Python2, Legacy;
    typescript1_killed_while_it_is_asked: questions, TypeScript1, Legacy;
    typescript2_killed_while_it_is_asked: questions, TypeScript2, Legacy;

    python1_killed_while_its_task_runs: tasks, Python1, Legacy;
    typescript1_killed_while_its_task_runs: tasks, TypeScript1, Legacy;
    python2_modern_killed_while_its_task_runs: tasks, Python2, Modern;
}

const KINDS: [&str; 3] = ["elicitation", "sampling", "roots"];

/// An ordinary call, one that asks, and one after it.
fn plan() -> [Call; 3] {
    let charge = |n: u32| Call::new("charge", json!({"n": n}));
    let ask = Call::new("ask", json!({"kinds": KINDS}));
    [charge(1), ask, charge(2)]
}

/// The client dies at the second question: the first is answered and is not asked again.
fn rounds(client: Client) {
    let world = World::new();
    let scripted = Scripted::new(&world);
    let command = world.behind_proxy(&[], &scripted.upstream);
    let Some(first) = client.start_to_die(&world, &command, &plan(), Some(2)) else {
        return;
    };
    let first = first.die();
    assert_eq!(first.asked(), KINDS[..2]);
    assert_eq!(first.results.len(), 1);
    assert_eq!(scripted.effects(), ["charge"]);
    if is_direct() {
        return;
    }
    let run = || {
        let running = client.start(&world, &command, &plan());
        running.expect("it has been started before").finish()
    };
    let second = run();
    assert_eq!(second.errors(), Vec::<&Value>::new());
    assert_eq!(second.asked(), KINDS[1..]);
    assert_eq!(second.results.len(), 3);
    assert_eq!(second.results[0], first.results[0]);
    assert_eq!(scripted.effects(), ["charge", "ask", "charge"]);

    let replay = run();
    assert_eq!(replay.asked(), Vec::<&str>::new(), "a replay asks nothing");
    assert_eq!(replay.results, second.results);
    assert_eq!(scripted.effects().len(), 3, "and runs nothing");
}

/// Nested questions belong to a call that runs: a crash in one leaves that call in doubt.
fn questions(client: Client) {
    let world = World::new();
    let scripted = Scripted::new(&world);
    // The upstream waits for an answer that nobody can give any more.
    let command = world.behind_proxy(&["--drain-timeout", "100ms"], &scripted.upstream);
    let Some(first) = client.start_to_die(&world, &command, &plan(), Some(2)) else {
        return;
    };
    assert_eq!(first.die().asked(), KINDS[..2]);
    assert_eq!(scripted.effects(), ["charge"]);
    if is_direct() {
        return;
    }
    let second = client.start(&world, &command, &plan());
    let second = second.expect("it has been started before").finish();
    let errors = second.errors();
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert_eq!(
        (&errors[0]["code"], &errors[0]["seq"]),
        (&json!(IN_DOUBT), &json!(2))
    );
    assert_eq!(second.asked(), Vec::<&str>::new());
    assert_eq!(scripted.effects(), ["charge", "charge"]);

    // One that lives to the end is answered, and asked nothing on a replay.
    let world = World::new();
    let scripted = Scripted::new(&world);
    let command = world.behind_proxy(&[], &scripted.upstream);
    let run = || {
        let running = client.start(&world, &command, &plan());
        running.expect("it has been started before").finish()
    };
    let story = run();
    assert_eq!(story.errors(), Vec::<&Value>::new());
    assert_eq!(story.asked(), KINDS);
    let replay = run();
    assert_eq!(replay.asked(), Vec::<&str>::new(), "a replay asks nothing");
    assert_eq!(replay.results, story.results);
    assert_eq!(scripted.effects(), ["charge", "ask", "charge"]);
}

/// The client dies with the task's handle in its hand: the handle is found again, and no second
/// task is made.
fn tasks(client: Client) {
    let world = World::new();
    let scripted = Scripted::new(&world);
    let mut calls = plan();
    calls[1] = Call {
        is_task: true,
        ..Call::new("task", json!({"polls": 3}))
    };
    let command = world.behind_proxy(&[], &scripted.upstream);
    let Some(first) = client.start_to_die(&world, &command, &calls, Some(1)) else {
        return;
    };
    let first = first.die();
    assert_eq!(first.tasks().len(), 1);
    assert_eq!(scripted.effects(), ["charge", "task"]);
    if is_direct() {
        return;
    }
    let run = || {
        let running = client.start(&world, &command, &calls);
        running.expect("it has been started before").finish()
    };
    let second = run();
    assert_eq!(second.errors(), Vec::<&Value>::new());
    assert_eq!(second.tasks(), first.tasks());
    let done = |result: &Value| result["content"][0]["text"].clone();
    assert_eq!(done(&second.results[1]), "the task is done");
    assert_eq!(scripted.effects(), ["charge", "task", "charge"]);

    let replay = run();
    assert_eq!(replay.errors(), Vec::<&Value>::new());
    assert!(
        replay
            .tasks()
            .iter()
            .all(|task| first.tasks().contains(task))
    );
    let told = |results: &[Value]| results.iter().map(done).collect::<Vec<_>>();
    assert_eq!(told(&replay.results), told(&second.results));
    assert_eq!(scripted.effects().len(), 3, "a replay runs nothing");
}
