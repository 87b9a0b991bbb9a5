//! House rules as tests. A rule that review repeats twice belongs here.
//!
//! Each message says which file breaks the rule and what to do about it. That public items are
//! documented, that nothing prints and that nothing unwraps are lints in Cargo.toml.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends at the first thing that can't be done"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use checkpoint::cli::exit::Exit;
use checkpoint::journal::EVENT_KINDS;
use checkpoint::mcp::refusal::RefusalKind;
use checkpoint::rules::decide::ROWS;

/// THE LAYERS: which rooms of ours a room may use. `docs/architecture.md` shows the same table.
const LAYERS: [(&str, &[&str]); 8] = [
    ("json", &[]),
    // Bugs that are there on purpose: constant false where no fakes are built.
    ("seeded", &[]),
    ("rules", &["json", "seeded"]),
    ("mcp", &["json", "seeded"]),
    ("journal", &["json", "rules"]),
    ("guard", &["json", "rules", "journal", "seeded"]),
    (
        "proxy",
        &["json", "rules", "mcp", "journal", "guard", "seeded"],
    ),
    (
        "cli",
        &["json", "rules", "mcp", "journal", "guard", "proxy"],
    ),
];

/// What any room may ask: the bugs that tests put in, which releases do not have.
const EVERYWHERE: [&str; 1] = ["seeded"];

/// Files besides the audited module that may hold unsafe code, and why.
const UNSAFE_TESTS: [(&str, &str); 1] = [(
    "tests/powerloss/vfs.rs",
    "a VFS is a C interface; it is a test's and in no release",
)];

/// Lines of one file; longer ones have a second subject, or a reason below.
const LINES_MAX: usize = 700;

/// Files that may be longer, and why.
const LONG_FILES: [(&str, &str); 6] = [
    (
        "src/cli/export.rs",
        "one command, from its flags to each format's text",
    ),
    (
        "src/journal/walk.rs",
        "all SQL of one walk, one statement after the other",
    ),
    (
        "src/journal/sqlite.rs",
        "all SQL of one back-end, one statement after the other",
    ),
    (
        "src/guard/admit.rs",
        "the one path from a call to its admission, read from top to bottom",
    ),
    (
        "src/proxy/driver.rs",
        "the one loop, and what it does in each round",
    ),
    (
        "src/journal/reader.rs",
        "every question that the operator's commands ask, one after the other",
    ),
];

/// Tests that may pause, with the reason.
const PAUSING_TESTS: [(&str, &str); 2] = [
    (
        "src/proxy/child.rs",
        "climbs the ladder by its own times, which are what it tests",
    ),
    (
        "tests/unix_edges.rs",
        "asks again whether a process that is no child of ours has ended; nothing tells",
    ),
];

/// A file of the tree, by its path from the root, with its text.
struct File {
    path: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the text files below `start` whose name ends in one of `extensions` (all, if none).
fn files(start: &str, extensions: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(start)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if ["target", ".git", "node_modules"].contains(&&*name) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if extensions.is_empty() || extensions.iter().any(|end| name.ends_with(end)) {
                found.extend(read(path));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Returns a file, unless it is no text.
fn read(path: PathBuf) -> Option<File> {
    let text = std::fs::read_to_string(&path).ok()?;
    let path = path.strip_prefix(root()).unwrap();
    Some(File {
        path: path.to_string_lossy().into_owned(),
        text,
    })
}

fn document(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

#[track_caller]
fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// Returns the numbered lines that are code, without comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default()))
}

#[test]
fn each_room_uses_only_rooms_below_it() {
    let mut problems = Vec::new();
    for (room, allowed) in LAYERS {
        for file in files("src", &[".rs"]) {
            let is_of_room = file.path.starts_with(&format!("src/{room}/"))
                || file.path == format!("src/{room}.rs");
            if !is_of_room {
                continue;
            }
            for (number, line) in code(&file.text) {
                for part in line.split("crate::").skip(1) {
                    let used: String = part
                        .chars()
                        .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                        .collect();
                    if used.is_empty() {
                        problems.push(format!(
                            "{}:{number}: write one `use crate::ROOM::…` a room, so that the \
                             layers can be read",
                            file.path
                        ));
                    } else if used != room
                        && !allowed.contains(&&*used)
                        && !EVERYWHERE.contains(&&*used)
                    {
                        problems.push(format!(
                            "{}:{number}: room {room} must not use {used}; move what both need \
                             to a room below, or hand it in as an argument",
                            file.path
                        ));
                    }
                }
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn every_room_has_a_layer_and_the_architecture_page_names_it() {
    let page = document("docs/architecture.md");
    let mut problems = Vec::new();
    for entry in std::fs::read_dir(root().join("src")).unwrap() {
        let path = entry.unwrap().path();
        let room = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !LAYERS.iter().any(|(name, _)| *name == room) {
            problems.push(format!(
                "src/{room}: add the room to LAYERS in tests/tidy.rs"
            ));
        }
    }
    for (room, allowed) in LAYERS {
        let used = match allowed {
            [] => "nothing of ours".to_owned(),
            rooms => rooms
                .iter()
                .map(|room| format!("`{room}`"))
                .collect::<Vec<_>>()
                .join(", "),
        };
        let row = format!("| `{room}` | {used} |");
        if !page.contains(&row) {
            problems.push(format!(
                "docs/architecture.md: its table of layers lacks: {row}"
            ));
        }
    }
    assert_none(&problems);
}

#[test]
fn no_file_is_too_long_to_be_read_in_one_sitting() {
    let mut problems = Vec::new();
    let mut long = BTreeMap::from(LONG_FILES);
    for folder in ["src", "tests", "fixtures"] {
        for file in files(folder, &[".rs"]) {
            let lines = file.text.lines().count();
            let is_excused = long.remove(&*file.path).is_some();
            if lines > LINES_MAX && !is_excused {
                problems.push(format!(
                    "{}: {lines} lines; find its second subject and give it a file, or say in \
                     LONG_FILES why it has none",
                    file.path
                ));
            } else if lines <= LINES_MAX && is_excused {
                problems.push(format!(
                    "{}: is short again; take it off LONG_FILES",
                    file.path
                ));
            }
        }
    }
    problems.extend(
        long.keys()
            .map(|path| format!("{path}: is gone; take it off LONG_FILES")),
    );
    assert_none(&problems);
}

#[test]
fn unsafe_stands_in_one_audited_module() {
    let mut problems = Vec::new();
    for folder in ["src", "tests", "fixtures"] {
        for file in files(folder, &[".rs"]) {
            let is_tests_own = UNSAFE_TESTS.iter().any(|(path, _)| *path == file.path);
            if ["src/proxy/pre_exec.rs", "tests/tidy.rs"].contains(&&*file.path) || is_tests_own {
                continue;
            }
            for (number, line) in code(&file.text) {
                let is_unsafe = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                    .iter()
                    .any(|form| line.contains(form))
                    || line.contains("(unsafe_code");
                if is_unsafe {
                    problems.push(format!(
                        "{}:{number}: unsafe code stands in src/proxy/pre_exec.rs alone; nix \
                         has a safe form of most calls",
                        file.path
                    ));
                }
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn no_test_sleeps_where_an_event_can_be_awaited() {
    let mut problems = Vec::new();
    let mut allowed = BTreeMap::from(PAUSING_TESTS);
    let pause = ["sleep", "("].concat();
    for folder in ["src", "tests", "fixtures"] {
        for file in files(folder, &[".rs"]) {
            let is_product = folder == "src" && !file.path.ends_with("tests.rs");
            let tests = match (is_product, file.text.find("#[cfg(test)]")) {
                (true, None) => continue,
                (true, Some(start)) => start,
                (false, _) => 0,
            };
            let first = file.text[..tests].lines().count();
            let hits: Vec<usize> = code(&file.text[tests..])
                .filter(|(_, line)| line.contains(&pause))
                .map(|(number, _)| first + number)
                .collect();
            if !hits.is_empty() && allowed.remove(&*file.path).is_none() {
                problems.push(format!(
                    "{}:{}: a test sleeps; await the event (a line, an end, a lock), or say in \
                     PAUSING_TESTS why none can be awaited",
                    file.path, hits[0]
                ));
            }
        }
    }
    problems.extend(
        allowed
            .keys()
            .map(|path| format!("{path}: take it off PAUSING_TESTS")),
    );
    assert_none(&problems);
}

#[test]
fn the_tree_names_no_registry_host_and_no_builder_s_folder() {
    // Put together here, so that this file does not name them either.
    let words = [
        ["crates", ".io"],
        ["npmjs", ".org"],
        ["npmjs", ".com"],
        ["pypi", ".org"],
        ["pythonhosted", ".org"],
        ["/wo", "rk/"],
        ["/ro", "ot/"],
    ]
    .map(|parts| parts.concat());
    let mut problems = Vec::new();
    for file in files("", &[]) {
        for (number, line) in file.text.lines().enumerate() {
            // Cargo writes the name of its default registry, which is not where it downloads.
            let is_lock = file.path.ends_with("Cargo.lock") && line.starts_with("source = ");
            for word in words.iter().filter(|word| line.contains(&***word)) {
                if !is_lock {
                    problems.push(format!(
                        "{}:{}: names {word}; leave hosts to each user's own settings and write \
                         paths that exist anywhere",
                        file.path,
                        number + 1
                    ));
                }
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn refusal_codes_are_unique_and_stand_in_the_documents() {
    let readme = document("README.md");
    let trouble = document("docs/troubleshooting.md");
    let mut problems = Vec::new();
    let mut names_by_code: BTreeMap<i32, &str> = BTreeMap::new();
    for kind in RefusalKind::ALL {
        let (name, code) = (kind.name(), kind.code());
        // JSON-RPC's own codes are shared by the faults that they name.
        if code > -32000
            && let Some(other) = names_by_code.insert(code, name)
        {
            problems.push(format!(
                "{name} and {other} share {code}; give one another code"
            ));
        }
        let row = format!("| `{name}` | {code} |");
        if !readme.contains(&row) {
            problems.push(format!(
                "README.md: its table of refusals lacks a row: {row} …"
            ));
        }
        let heading = format!("### `{name}`");
        if !trouble.contains(&heading) {
            problems.push(format!("docs/troubleshooting.md lacks an entry: {heading}"));
        }
    }
    assert_none(&problems);
}

#[test]
fn every_kind_of_event_is_explained() {
    let trouble = document("docs/troubleshooting.md");
    let format = document("docs/journal-format.md");
    let mut problems = Vec::new();
    for kind in EVENT_KINDS {
        if !trouble.contains(&format!("\n| `{kind}` | ")) {
            problems.push(format!(
                "docs/troubleshooting.md: its table of events lacks {kind}"
            ));
        }
        if !format.contains(&format!("`{kind}`")) {
            problems.push(format!("docs/journal-format.md does not name {kind}"));
        }
    }
    assert_none(&problems);
}

#[test]
fn exit_codes_and_letters_stand_in_readme() {
    // Its table may set flags as code.
    let readme = document("README.md");
    let plain = readme.replace('`', "");
    let mut problems = Vec::new();
    for exit in Exit::ALL {
        let row = format!("| {} | {} |", exit.code(), exit.meaning());
        if !plain.contains(&row) {
            problems.push(format!("README.md: its table of exit codes lacks: {row}"));
        }
    }
    for (letter, meaning) in ROWS {
        if !readme.contains(&format!("| `@{letter}` |")) {
            problems.push(format!(
                "README.md: its table of decisions lacks @{letter}: {meaning}"
            ));
        }
    }
    assert_none(&problems);
}

#[test]
fn flags_variables_and_commands_stand_in_readme() {
    let readme = document("README.md");
    let ran = Command::new(assert_cmd::cargo::cargo_bin!("checkpoint"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(ran.stdout).unwrap();
    let mut problems = Vec::new();
    let mut flags = 0;
    let mut is_command = false;
    for line in help.lines() {
        if line.starts_with("Commands") {
            is_command = true;
        } else if line.is_empty() {
            is_command = false;
        } else if is_command && let Some(name) = line.split_whitespace().next() {
            if !readme.contains(&format!("| `{name}")) {
                problems.push(format!("README.md: its table of commands lacks `{name}`"));
            }
        } else if line.trim_start().starts_with('-') {
            for word in line
                .split([' ', ',', '['])
                .filter(|word| word.starts_with("--"))
            {
                flags += 1;
                let has = [format!("`{word}`"), format!("`{word} ")];
                if !has.iter().any(|form| readme.contains(form)) {
                    problems.push(format!("README.md: its table of flags lacks {word}"));
                }
            }
        }
    }
    for part in help.split("CHECKPOINT_").skip(1) {
        let end = part
            .find(|c: char| !c.is_ascii_uppercase() && c != '_')
            .unwrap_or(part.len());
        let name = format!("`CHECKPOINT_{}`", &part[..end]);
        if !readme.contains(&name) {
            problems.push(format!("README.md: no table has the variable {name}"));
        }
    }
    assert!(
        flags >= 20,
        "the help has changed its form: {flags} flags were found"
    );
    assert_none(&problems);
}

#[test]
fn the_pinned_peers_stand_in_the_compatibility_page() {
    let page = document("docs/compatibility.md");
    let node: serde_json::Value =
        serde_json::from_str(&document("fixtures/peers/node/package.json")).unwrap();
    let mut pins: Vec<(String, String)> = node["dependencies"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, version)| (name.clone(), version.as_str().unwrap().to_owned()))
        .collect();
    let named = [
        "anthropic",
        "langchain-mcp-adapters",
        "mcp",
        "openai",
        "openai-agents",
        "pydantic-ai-slim",
    ];
    for list in ["mcp1.txt", "mcp2.txt", "providers.txt"] {
        for line in document(&format!("fixtures/peers/python/{list}")).lines() {
            if let Some((name, version)) = line.split_once("==")
                && (named.contains(&name) || name.starts_with("mcp-server"))
            {
                pins.push((name.to_owned(), version.to_owned()));
            }
        }
    }
    let manifest = document("Cargo.toml");
    let rmcp = manifest
        .lines()
        .find(|line| line.starts_with("rmcp = "))
        .unwrap();
    let version = rmcp.split_once("\"=").unwrap().1.split('"').next().unwrap();
    pins.push(("rmcp".to_owned(), version.to_owned()));
    assert!(pins.len() >= 13, "{pins:?}");
    let problems: Vec<String> = pins
        .iter()
        .filter(|(name, version)| !page.contains(&format!("`{name}` | {version} |")))
        .map(|(name, version)| {
            format!("docs/compatibility.md: no row says `{name}` | {version}; the tests run it")
        })
        .collect();
    assert_none(&problems);
}
