//! What a refusal looks like to the code that calls an official SDK.
//!
//! A call that carries a seq is made by code, so a refusal reaches it as an error
//! whose code and data it can read.

use serde_json::Value;

use crate::client::Mode::{Legacy, Modern};
use crate::client::Sdk::{Python1, Python2, Rmcp, TypeScript1, TypeScript2};
use crate::client::{Client, Story};
use crate::setup;
use crate::world::{Repository, World, is_direct};

const DIVERGENCE: i64 = 7701;
const IN_DOUBT: i64 = 7702;

/// Makes one test of each line: a name and a client.
macro_rules! clients {
    ($($name:ident: $sdk:ident, $mode:ident;)*) => {
        $(#[test] fn $name() { refusals_reach(Client($sdk, $mode)); })*
    };
}

clients! {
    refusals_reach_python1: Python1, Legacy;
    refusals_reach_python2: Python2, Legacy;
    refusals_reach_python2_modern: Python2, Modern;
    refusals_reach_typescript1: TypeScript1, Legacy;
    refusals_reach_typescript2: TypeScript2, Legacy;
    refusals_reach_typescript2_pinned: TypeScript2, Modern;
    refusals_reach_rmcp: Rmcp, Legacy;
    refusals_reach_rmcp_discover: Rmcp, Modern;
}

/// Client and proxy die while a commit is made; the client comes back with another plan.
fn refusals_reach(client: Client) {
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
