//! A folder, the real binary in it, an upstream that logs what it really did, and a client that
//! asks for the same calls by their seqs.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Calls of one scenario.
pub(crate) const CALLS: u64 = 5;

pub(crate) struct Bench {
    folder: tempfile::TempDir,
}

/// The answers by seq, as they came.
pub(crate) type Answers = BTreeMap<u64, String>;

impl Bench {
    pub(crate) fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() {
            tempfile::tempdir_in(memory).unwrap()
        } else {
            tempfile::tempdir().unwrap()
        };
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn clear(&self) {
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }

    /// The proxy, behind `wrapper` if there is one.
    fn command(&self, wrapper: &[String]) -> Command {
        let mut words: Vec<String> = wrapper.to_vec();
        words.push(env!("CARGO_BIN_EXE_checkpoint").into());
        // An upstream whose write was made to fail never answers.
        let timeouts = ["--call-timeout", "3s", "--drain-timeout", "1s"];
        words.extend(timeouts.map(String::from));
        words.extend(["--refusals", "error", "--log", "error", "--journal"].map(String::from));
        words.push(self.path("run.db").to_string_lossy().into_owned());
        words.extend(["--".into(), env!("CARGO_BIN_EXE_scripted-upstream").into()]);
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env("SCRIPTED_EFFECTS", self.path("effects"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }

    /// Asks for one call after the other, as long as there are answers. Returns them.
    pub(crate) fn run(&self, wrapper: &[String]) -> (Answers, Option<i32>) {
        let mut child = self.command(wrapper).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut answers = Answers::new();
        for seq in 1..=CALLS {
            if input.write_all(call(seq).as_bytes()).is_err() {
                break;
            }
            let mut line = String::new();
            match output.read_line(&mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => answers.insert(seq, line),
            };
        }
        drop(input);
        let code = child.wait().unwrap().code();
        (answers, code)
    }

    /// How often each call's effect happened.
    pub(crate) fn effects(&self) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        let text = std::fs::read_to_string(self.path("effects")).unwrap_or_default();
        for line in text.lines() {
            let effect: serde_json::Value = serde_json::from_str(line).unwrap();
            *counts
                .entry(effect["order_id"].as_u64().unwrap())
                .or_default() += 1;
        }
        counts
    }

    /// What must hold after a run that was hurt and one that was not.
    pub(crate) fn judge(&self, first: &Answers, second: &Answers) -> Result<(), String> {
        let effects = self.effects();
        for seq in 1..=CALLS {
            let count = effects.get(&seq).copied().unwrap_or(0);
            if count > 1 {
                return Err(format!("seq {seq} ran {count} times"));
            }
            let after = second.get(&seq);
            let Some(before) = first.get(&seq).filter(|line| line.contains("receipt")) else {
                continue;
            };
            if count == 0 {
                return Err(format!("seq {seq} was answered and never ran"));
            }
            let Some(after) = after else {
                return Err(format!("seq {seq} has no second answer"));
            };
            if before.contains("\"journaled\":false") {
                // A sync that failed says nothing of what is on the disk: the outcome may turn up
                // after all, but then it is the one that was told.
                if after.contains("receipt") && outcome(after) != outcome(before) {
                    return Err(format!("seq {seq} changed from {before} to {after}"));
                }
                continue;
            }
            let refused = after.contains("\"error\"");
            if outcome(after) != outcome(before) && !refused {
                return Err(format!("seq {seq} changed from {before} to {after}"));
            }
            if refused {
                return Err(format!("seq {seq} was acknowledged, and is {after}"));
            }
        }
        Ok(())
    }
}

/// The part of an answer that is the upstream's own: the rest of a replayed line is ours.
pub(crate) fn outcome(line: &str) -> &str {
    let start = line.find("{\"structuredContent\"").unwrap_or(0);
    let end = line.find("\"isError\":false").unwrap_or(line.len());
    line.get(start..end).unwrap_or(line)
}

pub(crate) fn call(seq: u64) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{seq},\"method\":\"tools/call\",\"params\":{{\"name\":\"charge\",\"arguments\":{{\"order_id\":{seq}}},\"_meta\":{{\"checkpoint_seq\":{seq}}}}}}}\n"
    )
}

/// Runs `work` for each item on as many threads as there are cores.
pub(crate) fn on_all_cores<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&Bench, &T) -> R + Sync,
) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let results = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let bench = Bench::new();
                loop {
                    let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    let result = work(&bench, item);
                    results.lock().unwrap().push(result);
                }
            });
        }
    });
    results.into_inner().unwrap()
}
