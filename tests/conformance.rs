//! The official conformance suite, against an upstream alone and against the same one behind the
//! proxy: it must not be able to tell them apart. And a client of the TypeScript SDK that goes
//! through the rounds of that upstream's tools by itself.
//!
//! The suite speaks HTTP only, so `fixtures/peers/conformance/bridge.js` stands between. What is
//! compared are the checks' names and results, scenario by scenario; what fails alike in both is
//! HTTP's own (headers, origins), which no stdio upstream has.

#![expect(
    clippy::unwrap_used,
    reason = "a test's own helpers fail loudly; clippy knows only the test functions themselves"
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// How long one run of the suite may take, on a machine that does much else.
const SUITE_MAX: Duration = Duration::from_secs(240);

/// Scenarios that look at HTTP itself, which is the bridge's and not ours.
const ABOUT_HTTP: [&str; 5] = [
    "dns-rebinding-protection",
    "http-custom-header-server-validation",
    "http-header-validation",
    "server-sse-polling",
    "server-stateless",
];

#[test]
fn the_suite_of_2025_11_25_sees_no_difference() {
    no_difference("2025-11-25", 30);
}

#[test]
fn the_suite_of_2026_07_28_sees_no_difference() {
    no_difference("2026-07-28", 35);
}

/// Contract, section 7: the SDK continues its calls as it likes, under the same `checkpoint_seq`.
#[test]
fn an_sdk_client_goes_through_rounds_and_is_asked_nothing_twice() {
    let Some(suite) = install() else { return };
    for era in ["2026-07-28", "legacy"] {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("run.db");
        let alone = suite.rounds(era, 0, &suite.upstream());
        let behind = suite.behind(&journal);
        assert_eq!(suite.rounds(era, 0, &behind), alone, "{era}");
        let results: Vec<&str> = alone
            .lines()
            .filter(|said| said.contains("result"))
            .collect();
        assert_eq!(results.len(), 4, "{alone}");
        let again = suite.rounds(era, 0, &behind);
        assert_eq!(again.lines().collect::<Vec<_>>(), results, "{era}");
        assert_eq!(statuses(&journal), ["COMPLETED"; 4], "{era}");
    }
}

/// MCP 2026-07-28: a question stands over a crash, so what ran before it does not run again.
#[test]
fn an_sdk_client_that_is_killed_between_rounds_goes_on_where_it_was() {
    let Some(suite) = install() else { return };
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("run.db");
    let behind = suite.behind(&journal);
    let run = |die| suite.rounds("2026-07-28", die, &behind);
    let asked = |kinds: &[&str]| -> String {
        kinds
            .iter()
            .map(|kind| format!("{{\"asked\":\"{kind}\"}}\n"))
            .collect()
    };
    // Killed at its second question, then at its third; each run starts over from the first call.
    assert_eq!(run(2), asked(&["name", "colour"]));
    assert_eq!(statuses(&journal), ["INPUT_REQUIRED"]);
    let done = "{\"result\":\"both steps are done\"}\n";
    assert_eq!(
        run(3),
        asked(&["colour"]) + done + &asked(&["name", "sampling"])
    );
    assert_eq!(statuses(&journal), ["COMPLETED", "INPUT_REQUIRED"]);
    let rest = run(0);
    assert!(rest.starts_with(&(done.to_owned() + &asked(&["name", "sampling", "roots"]))));
    assert_eq!(statuses(&journal), ["COMPLETED"; 4]);
    assert!(!run(0).contains("asked"));
}

/// Returns the entries' statuses, in the order of their seqs.
fn statuses(journal: &Path) -> Vec<String> {
    let mut entries = entries(journal);
    entries.sort_by_key(|entry| entry["seq"].as_u64());
    let status = |entry: &Value| entry["status"].as_str().unwrap().to_owned();
    entries.iter().map(status).collect()
}

fn entries(journal: &Path) -> Vec<Value> {
    let listing = Command::new(env!("CARGO_BIN_EXE_checkpoint"))
        .args(["ls", "--json", "--limit", "0", "--journal"])
        .arg(journal)
        .output()
        .unwrap();
    let listing: Value = serde_json::from_slice(&listing.stdout).unwrap();
    listing["entries"].as_array().unwrap().clone()
}

/// Runs the suite against the upstream and against it behind the proxy, at the same time.
fn no_difference(version: &str, scenarios_min: usize) {
    let Some(suite) = install() else { return };
    let folder = tempfile::tempdir().unwrap();
    let upstream = suite.upstream();
    let journal = folder.path().join("run.db");
    let proxied = suite.behind(&journal);
    let (alone, behind) = std::thread::scope(|scope| {
        let alone = scope.spawn(|| suite.run(version, &upstream, &folder.path().join("alone")));
        let behind = scope.spawn(|| suite.run(version, &proxied, &folder.path().join("behind")));
        (alone.join().unwrap(), behind.join().unwrap())
    });
    assert!(alone.len() >= scenarios_min, "{} scenarios", alone.len());
    for (scenario, checks) in &alone {
        assert_eq!(Some(checks), behind.get(scenario), "{version}: {scenario}");
        let is_passed = checks.iter().all(|(_, status)| status != "FAILURE");
        // Else the comparison would say little.
        assert!(
            is_passed || ABOUT_HTTP.contains(&scenario.as_str()),
            "{version}: the upstream itself fails {scenario}: {checks:?}"
        );
    }
    assert_eq!(alone.len(), behind.len(), "{version}");
    // All of it was journaled, and nothing is left in doubt.
    let entries = entries(&journal);
    assert!(entries.len() >= 10, "{} entries", entries.len());
    assert!(
        entries.iter().all(|entry| entry["status"] != "PENDING"),
        "{entries:?}"
    );
}

/// The installed suite.
struct Suite {
    root: PathBuf,
}

impl Suite {
    /// The Node that came with it, since the suite needs a newer one than many machines have.
    fn node(&self) -> PathBuf {
        let arch = if cfg!(target_arch = "x86_64") {
            "x64"
        } else {
            "arm64"
        };
        let own = format!("node_modules/node-linux-{arch}/bin/node");
        let own = self.root.join(own);
        if own.exists() { own } else { "node".into() }
    }

    fn upstream(&self) -> Vec<PathBuf> {
        vec![self.node(), self.root.join("upstream.js")]
    }

    /// The upstream behind the proxy.
    fn behind(&self, journal: &Path) -> Vec<PathBuf> {
        let mut words: Vec<PathBuf> = vec![env!("CARGO_BIN_EXE_checkpoint").into()];
        words.extend(["--journal".into(), journal.into(), "--".into()]);
        words.extend(self.upstream());
        words
    }

    /// Runs the client that goes through rounds, and returns what it says; it is killed when it is
    /// asked its `die`th question.
    fn rounds(&self, era: &str, die: u32, command: &[PathBuf]) -> String {
        let output = Command::new(self.node())
            .arg(self.root.join("rounds.js"))
            .args([era, &die.to_string()])
            .args(command)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), die == 0, "{said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs all scenarios against one command; returns their checks by scenario.
    fn run(
        &self,
        version: &str,
        command: &[PathBuf],
        out: &Path,
    ) -> BTreeMap<String, Vec<(String, String)>> {
        let mut bridge = Command::new(self.node())
            .arg(self.root.join("bridge.js"))
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = bridge.stdout.take().unwrap();
        let _bridge = Bridge(Some(bridge));
        let mut port = String::new();
        BufReader::new(said).read_line(&mut port).unwrap();
        let url = format!("http://127.0.0.1:{}/mcp", port.trim());
        let program = "node_modules/@modelcontextprotocol/conformance/dist/index.js";
        let suite = Command::new(self.node())
            .arg(self.root.join(program))
            .args(["server", "--suite", "all", "--url", &url])
            .args(["--spec-version", version, "-o"])
            .arg(out)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Its code tells of failures, which are looked at one by one.
        assert!(ends_within(suite, SUITE_MAX), "the suite hangs");
        fs::read_dir(out)
            .unwrap()
            .map(|entry| checks_in(&entry.unwrap().path()))
            .collect()
    }
}

/// The bridge, which ends with its input, and its upstreams with it.
struct Bridge(Option<Child>);

impl Drop for Bridge {
    fn drop(&mut self) {
        if let Some(mut bridge) = self.0.take() {
            drop(bridge.stdin.take());
            ends_within(bridge, Duration::from_secs(3));
        }
    }
}

/// Waits for a process's end, and ends it if it takes longer than `limit`.
fn ends_within(mut process: Child, limit: Duration) -> bool {
    let pid = Pid::from_raw(process.id().try_into().unwrap());
    let (ended, end) = channel();
    std::thread::spawn(move || {
        let _ = process.wait();
        let _ = ended.send(());
    });
    let is_over = end.recv_timeout(limit).is_ok();
    if !is_over {
        let _ = kill(pid, Signal::SIGKILL);
    }
    is_over
}

/// Reads what one scenario found: its name, and its checks' names and results in order.
fn checks_in(folder: &Path) -> (String, Vec<(String, String)>) {
    let name = folder.file_name().unwrap().to_str().unwrap();
    // `server-` NAME `-` time: scenarios about the upstream as such begin with `server-` twice.
    let name = name.strip_prefix("server-").unwrap();
    let (name, _) = name.rsplit_once('T').unwrap();
    let name = &name[..name.len() - "-2026-01-01".len()];
    let checks = fs::read(folder.join("checks.json")).unwrap();
    let checks: Vec<Value> = serde_json::from_slice(&checks).unwrap();
    let text = |check: &Value, member: &str| check[member].as_str().unwrap_or_default().to_owned();
    let checks = checks
        .iter()
        .map(|check| (text(check, "id"), text(check, "status")))
        .collect();
    (name.to_owned(), checks)
}

/// Installs the pinned suite under `target/peers`, once; without npm the tests are skipped, loudly.
fn install() -> Option<Suite> {
    let Ok(version) = Command::new("npm").arg("--version").output() else {
        assert!(
            std::env::var_os("CI").is_none(),
            "nothing is skipped in CI: there is no npm"
        );
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED conformance: there is no npm on this machine"
        );
        return None;
    };
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/peers/conformance");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let root = target.join("peers/conformance");
    fs::create_dir_all(&root).unwrap();
    // Two tests, or two runs of all tests, must not install at the same time.
    let lock = File::create(root.join(".lock")).unwrap();
    lock.lock().unwrap();
    for name in ["upstream.js", "bridge.js", "rounds.js"] {
        // Moved into place, as another test may be reading the old one.
        let aside = root.join(format!("{name}.new"));
        fs::copy(from.join(name), &aside).unwrap();
        fs::rename(&aside, root.join(name)).unwrap();
    }
    let manifest = fs::read_to_string(from.join("package-lock.json")).unwrap();
    let wanted = format!("npm {}{manifest}", String::from_utf8_lossy(&version.stdout));
    let stamp = root.join(".installed");
    if fs::read_to_string(&stamp).ok().as_deref() != Some(&wanted) {
        let _ = fs::remove_file(&stamp);
        for name in ["package.json", "package-lock.json", ".npmrc"] {
            fs::copy(from.join(name), root.join(name)).unwrap();
        }
        let installed = Command::new("npm")
            .args(["ci", "--ignore-scripts", "--no-progress"])
            .current_dir(&root)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&installed.stderr);
        assert!(installed.status.success(), "npm ci: {said}");
        fs::write(&stamp, wanted).unwrap();
    }
    Some(Suite { root })
}
