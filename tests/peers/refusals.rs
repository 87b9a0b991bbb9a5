//! What a refusal looks like to the code that calls an official SDK.
//!
//! A call that carries a seq is made by code, so a refusal reaches it as an error
//! whose code and data it can read. With `--refusals result` it is a result that says
//! the same, which one SDK does not hand on (see the last test).

use serde_json::Value;

use crate::client::Mode::{Legacy, Modern};
use crate::client::Sdk::{Python1, Python2, Rmcp, TypeScript1, TypeScript2};
use crate::client::{Client, Story};
use crate::setup;
use crate::world::{Notes, Repository, World, is_direct};

const DIVERGENCE: i64 = 7701;
const IN_DOUBT: i64 = 7702;

/// Makes one test of each line: a name, what to check and the client.
macro_rules! clients {
    ($($name:ident: $check:ident, $sdk:ident, $mode:ident;)*) => {
        $(#[test] fn $name() { $check(Client($sdk, $mode)); })*
    };
}

clients! {
    refusals_reach_python1: as_errors, Python1, Legacy;
    refusals_reach_python2: as_errors, Python2, Legacy;
    refusals_reach_python2_modern: as_errors, Python2, Modern;
    refusals_reach_typescript1: as_errors, TypeScript1, Legacy;
    refusals_reach_typescript2: as_errors, TypeScript2, Legacy;
    refusals_reach_typescript2_pinned: as_errors, TypeScript2, Modern;
    refusals_reach_rmcp: as_errors, Rmcp, Legacy;
    refusals_reach_rmcp_discover: as_errors, Rmcp, Modern;

    results_that_refuse_reach_python1: as_results, Python1, Legacy;
    results_that_refuse_reach_python2: as_results, Python2, Legacy;
    results_that_refuse_reach_python2_modern: as_results, Python2, Modern;
    results_that_refuse_reach_typescript1: as_results, TypeScript1, Legacy;
    results_that_refuse_reach_typescript2: as_results, TypeScript2, Legacy;
    results_that_refuse_reach_typescript2_pinned: as_results, TypeScript2, Modern;
    results_that_refuse_reach_rmcp: as_results, Rmcp, Legacy;
    results_that_refuse_reach_rmcp_discover: as_results, Rmcp, Modern;
}

/// Client and proxy die while a commit is made; the client comes back with another plan.
fn as_errors(client: Client) {
    let Some(python) = setup::python() else {
        return;
    };
    if is_direct() {
        return;
    }
    let world = World::new();
    let repository = Repository::new(&world, python, "held");
    let calls = repository.commit("held");
    let command = world.behind_proxy(&[], &repository.upstream);
    let Some(mut first) = client.start(&world, &command, &calls) else {
        return;
    };
    repository.wait_until_held();
    first.wait_for("sending", Some(2));
    assert_eq!(first.crash_with_proxy().len(), 1);

    let again = client
        .start(&world, &command, &calls)
        .expect("it has been started before")
        .finish();
    assert_eq!(again.results.len(), 1, "what had an outcome is replayed");
    let refusal = only_error(&again);
    check(refusal, IN_DOUBT, "in_doubt", "unknown", 2, "git_commit");
    assert!(
        message(refusal).contains("checkpoint: in-doubt"),
        "{refusal}"
    );
    assert!(message(refusal).contains("resolve"), "{refusal}");

    let [other, _] = repository.commit("other");
    let diverged = client
        .start(&world, &command, &[other])
        .expect("it has been started before");
    let diverged = diverged.finish();
    let refusal = only_error(&diverged);
    check(
        refusal,
        DIVERGENCE,
        "divergence",
        "not_started",
        1,
        "git_add",
    );
    assert!(
        message(refusal).contains("checkpoint: divergence"),
        "{refusal}"
    );
    assert_eq!(
        refusal["data"]["diff"],
        serde_json::json!(["/files/0"]),
        "{refusal}"
    );

    assert_eq!(repository.effects(), ["held"], "nothing ran again");
}

/// The client comes back with another plan, and refusals are to be results.
fn as_results(client: Client) {
    let Some(python) = setup::python() else {
        return;
    };
    if is_direct() {
        return;
    }
    let world = World::new();
    let repository = Repository::new(&world, python, "none");
    let command = world.behind_proxy(&["--refusals", "result"], &repository.upstream);
    let calls = repository.commit("first");
    let Some(first) = client.start(&world, &command, &calls) else {
        return;
    };
    assert_eq!(first.finish().results.len(), 2);

    let calls = repository.commit("other");
    let diverged = client
        .start(&world, &command, &calls)
        .expect("it has been started before");
    let diverged = diverged.finish();
    assert_eq!(diverged.errors(), Vec::<&Value>::new());
    for (result, tool) in diverged.results.iter().zip(["git_add", "git_commit"]) {
        assert_eq!(result["isError"], true, "{result}");
        let text = result["content"][0]["text"]
            .as_str()
            .expect("a refusal says so in words");
        assert!(text.starts_with("checkpoint: divergence"), "{result}");
        assert!(text.contains(tool), "{result}");
        assert_eq!(
            result["structuredContent"]["kind"], "divergence",
            "{result}"
        );
        assert_eq!(
            result["structuredContent"]["side_effect"], "not_started",
            "{result}"
        );
    }
    assert_eq!(diverged.results.len(), calls.len());
    assert_eq!(repository.effects(), ["first"], "nothing ran again");
}

/// That SDK holds a failed result too to the tool's output schema and would throw its own error in
/// the refusal's place, so the data stands elsewhere for such a tool.
#[test]
fn typescript1_reads_a_refusal_of_a_tool_with_an_output_schema() {
    let Some(node) = setup::node() else { return };
    if is_direct() {
        return;
    }
    let world = World::new();
    let notes = Notes::new(&world, node);
    let command = world.behind_proxy(&["--refusals", "result"], &notes.upstream);
    let client = Client(TypeScript1, Legacy);
    let Some(first) = client.start(&world, &command, &[notes.add("one")]) else {
        return;
    };
    assert_eq!(first.finish().results.len(), 1);

    let diverged = client.start(&world, &command, &[notes.add("two")]);
    let diverged = diverged.expect("it has been started before").finish();
    assert_eq!(diverged.errors(), Vec::<&Value>::new());
    assert_eq!(diverged.results.len(), 1);
    let result = &diverged.results[0];
    assert_eq!(result["isError"], true, "{result}");
    let text = result["content"][0]["text"].as_str().expect("a text");
    assert!(text.starts_with("checkpoint: divergence"), "{result}");
    assert_eq!(
        result["_meta"]["checkpoint"]["kind"], "divergence",
        "{result}"
    );
    assert_eq!(notes.effects(), ["one"]);
}

fn only_error(story: &Story) -> &Value {
    let errors = story.errors();
    assert_eq!(errors.len(), 1, "{errors:#?}");
    errors[0]
}

fn message(refusal: &Value) -> &str {
    refusal["message"].as_str().expect("an error has a message")
}

fn check(refusal: &Value, code: i64, kind: &str, side_effect: &str, seq: u64, tool: &str) {
    assert_eq!(refusal["code"], code, "{refusal}");
    let data = &refusal["data"];
    assert_eq!(data["kind"], kind, "{refusal}");
    assert_eq!(data["side_effect"], side_effect, "{refusal}");
    assert_eq!(data["retryable"], false, "{refusal}");
    assert_eq!(data["seq"], seq, "{refusal}");
    assert_eq!(data["tool"], tool, "{refusal}");
}
