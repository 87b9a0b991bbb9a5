//! Each client is killed in the middle of its plan and comes back with the same one.
//!
//! Each effect happens exactly once, and what the client is told of the calls that
//! it had made before is what it was told then.

use serde_json::Value;

use crate::client::Mode::{Auto, Legacy, Modern};
use crate::client::Sdk::{Python1, Python2, Rmcp, TypeScript1, TypeScript2};
use crate::client::{Client, Running, Story};
use crate::setup;
use crate::world::{Call, Notes, Repository, World, is_direct};

/// The revision that both sides of the handshake era settle on.
const HANDSHAKE: &str = "2025-11-25";
/// The stateless revision.
const STATELESS: &str = "2026-07-28";

/// Makes one test of each line: a name, what to check, the client, its revision.
macro_rules! clients {
    ($($name:ident: $check:ident, $sdk:ident, $mode:ident, $revision:ident;)*) => {
        $(#[test] fn $name() { $check(Client($sdk, $mode), $revision); })*
    };
}

clients! {
    python1_killed_while_a_commit_runs: held_commit, Python1, Legacy, HANDSHAKE;
    python2_killed_while_a_commit_runs: held_commit, Python2, Legacy, HANDSHAKE;
    python2_auto_killed_while_a_commit_runs: held_commit, Python2, Auto, STATELESS;
    python2_modern_killed_while_a_commit_runs: held_commit, Python2, Modern, STATELESS;
    typescript1_killed_while_a_commit_runs: held_commit, TypeScript1, Legacy, HANDSHAKE;
    typescript2_killed_while_a_commit_runs: held_commit, TypeScript2, Legacy, HANDSHAKE;
    typescript2_auto_killed_while_a_commit_runs: held_commit, TypeScript2, Auto, STATELESS;
    typescript2_pinned_killed_while_a_commit_runs: held_commit, TypeScript2, Modern, STATELESS;
    rmcp_killed_while_a_commit_runs: held_commit, Rmcp, Legacy, HANDSHAKE;
    rmcp_auto_killed_while_a_commit_runs: held_commit, Rmcp, Auto, STATELESS;
    rmcp_discover_killed_while_a_commit_runs: held_commit, Rmcp, Modern, STATELESS;

    python1_killed_between_edits: edits, Python1, Legacy, HANDSHAKE;
    python2_killed_between_edits: edits, Python2, Legacy, HANDSHAKE;
    python2_auto_killed_between_edits: edits, Python2, Auto, HANDSHAKE;
    typescript1_killed_between_edits: edits, TypeScript1, Legacy, HANDSHAKE;
    typescript2_killed_between_edits: edits, TypeScript2, Legacy, HANDSHAKE;
    typescript2_auto_killed_between_edits: edits, TypeScript2, Auto, HANDSHAKE;
    rmcp_killed_between_edits: edits, Rmcp, Legacy, HANDSHAKE;
    rmcp_auto_killed_between_edits: edits, Rmcp, Auto, HANDSHAKE;
}

/// The client dies while a commit has been made but not been answered.
fn held_commit(client: Client, revision: &str) {
    let Some(python) = setup::python() else {
        return;
    };
    let world = World::new();
    let repository = Repository::new(&world, python, "second");
    let subjects = ["first", "second", "third"];
    let calls: Vec<Call> = subjects
        .iter()
        .flat_map(|subject| repository.commit(subject))
        .collect();
    let command = world.behind_proxy(&[], &repository.upstream);

    let Some(mut first) = client.start(&world, &command, &calls) else {
        return;
    };
    repository.wait_until_held();
    first.wait_for("sending", Some(4));
    let told = first.crash();
    assert_eq!(repository.effects(), ["first", "second"]);
    assert_eq!(told.len(), 3, "the fourth call was cut off");
    if is_direct() {
        return repository.release();
    }

    let mut second = start_again(client, &world, &command, &calls);
    second.wait_for("sending", Some(4));
    repository.release();
    let story = second.finish();
    check(&story, revision, &told, calls.len());
    assert_eq!(repository.effects(), subjects);

    let replay = start_again(client, &world, &command, &calls).finish();
    assert_eq!(
        replay.results, story.results,
        "a whole replay tells the same"
    );
    assert_eq!(repository.effects(), subjects, "and runs nothing");
}

/// The client dies as it sends a call: nobody knows whether the proxy has it.
fn edits(client: Client, revision: &str) {
    let Some(node) = setup::node() else { return };
    let world = World::new();
    let notes = Notes::new(&world, node);
    let effects = ["one", "two", "three", "four", "five"];
    let calls: Vec<Call> = effects.iter().map(|effect| notes.add(effect)).collect();
    let command = world.behind_proxy(&[], &notes.upstream);

    let Some(mut first) = client.start(&world, &command, &calls) else {
        return;
    };
    first.wait_for("sending", Some(3));
    let told = first.crash();
    assert!(told.len() >= 2, "two calls had been answered");
    if is_direct() {
        return assert!(
            notes
                .effects()
                .starts_with(&["one".to_owned(), "two".to_owned()])
        );
    }

    let story = start_again(client, &world, &command, &calls).finish();
    check(&story, revision, &told, calls.len());
    assert_eq!(notes.effects(), effects);

    let replay = start_again(client, &world, &command, &calls).finish();
    assert_eq!(
        replay.results, story.results,
        "a whole replay tells the same"
    );
    assert_eq!(notes.effects(), effects, "and runs nothing");
}

/// Another client goes on where the first one died, be it of another language or era.
#[test]
fn a_plan_goes_from_client_to_client() {
    let Some(python) = setup::python() else {
        return;
    };
    if is_direct() {
        return;
    }
    let world = World::new();
    let repository = Repository::new(&world, python, "second");
    let subjects = ["first", "second", "third"];
    let calls: Vec<Call> = subjects
        .iter()
        .flat_map(|subject| repository.commit(subject))
        .collect();
    let command = world.behind_proxy(&[], &repository.upstream);
    let start = |client: Client| client.start(&world, &command, &calls);

    let Some(mut first) = start(Client(Python1, Legacy)) else {
        return;
    };
    repository.wait_until_held();
    first.wait_for("sending", Some(4));
    let told = contents(&first.crash());
    repository.release();

    // The stateless revision asks for a member that the handshake era does not have, and
    // each SDK writes the arguments' members in an order of its own.
    let heirs = [
        (Client(TypeScript2, Modern), STATELESS),
        (Client(Rmcp, Legacy), HANDSHAKE),
        (Client(Python2, Modern), STATELESS),
        (Client(TypeScript1, Legacy), HANDSHAKE),
        (Client(Rmcp, Modern), STATELESS),
    ];
    let mut before = told;
    for (client, revision) in heirs {
        let Some(running) = start(client) else { return };
        let story = running.finish();
        let results = contents(&story.results);
        assert_eq!(story.errors(), Vec::<&Value>::new(), "{client:?}");
        assert_eq!(results.len(), calls.len(), "{client:?}");
        assert_eq!(results[..before.len()], before, "{client:?}");
        assert_eq!(story.revision(), revision, "{client:?}");
        assert_eq!(repository.effects(), subjects, "{client:?}");
        before = results;
    }
}

/// Returns what the tools said, without what SDK and era put around it.
fn contents(results: &[Value]) -> Vec<Value> {
    let text = |result: &Value| result["content"][0]["text"].clone();
    results.iter().map(text).collect()
}

fn start_again(client: Client, world: &World, command: &[String], calls: &[Call]) -> Running {
    client
        .start(world, command, calls)
        .expect("it has been started before")
}

/// Checks a run that came after a crash against what the crashed run was told.
fn check(story: &Story, revision: &str, told: &[Value], calls: usize) {
    assert_eq!(story.errors(), Vec::<&Value>::new());
    assert_eq!(story.results.len(), calls, "each call has its result");
    assert_eq!(
        &story.results[..told.len()],
        told,
        "a replayed result is the first one"
    );
    assert!(
        story.results.iter().all(|result| result["isError"] != true),
        "{:#?}",
        story.results
    );
    assert_eq!(story.revision(), revision);
}
