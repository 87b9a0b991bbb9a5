//! What is on the disk before which byte leaves, told by the kernel: `strace` on the real binary.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::call::{Call, assert_done, assert_refused, result_bytes};
use crate::proxy::Proxy;
use crate::setup::Setup;
use crate::world::{DEADLINE, World};

/// One thing that the trace tells, in the order of the trace.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The proxy has read the call with this mark.
    Read(u64),
    /// Bytes were written to the journal or its companions.
    Journal,
    /// A sync of the journal or its `-wal` has ended well.
    Synced,
    /// The call with this mark begins to go to the upstream.
    ToUpstream(u64),
    /// The answer with this mark begins to go to the client.
    ToClient(u64),
}

/// What is told of a proxy: what it reads, writes and syncs.
const READS_WRITES_SYNCS: &str =
    "trace=read,readv,write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,sendto,sendmsg";

/// A proxy whose system calls are told.
fn traced(world: &World) -> Setup<'_> {
    traced_for(world, READS_WRITES_SYNCS)
}

fn traced_for<'a>(world: &'a World, calls: &str) -> Setup<'a> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join("strace").exists());
    assert!(is_there, "this test needs strace");
    let out = world.path("trace").into_os_string();
    let options = [
        "-D",
        "-f",
        "-y",
        "-s",
        "1000000",
        "-e",
        calls,
        "-e",
        "signal=none",
    ];
    let wrapper = ["strace"].into_iter().chain(options).map(Into::into);
    let wrapper: Vec<std::ffi::OsString> = wrapper.chain(["-o".into(), out]).collect();
    world.proxy().wrapper(wrapper)
}

/// The names of the three pipes: the client's two and the one to the upstream.
struct Pipes {
    from_client: String,
    to_client: String,
    to_upstream: String,
}

fn pipes(world: &World, proxy: &mut Proxy) -> Pipes {
    pipes_of(world, proxy, 1)
}

/// The same of the run that has started the upstream with this number.
fn pipes_of(world: &World, proxy: &mut Proxy, upstream: usize) -> Pipes {
    proxy.assert_ping();
    let link = |pid: i32, fd: u32| {
        let target = std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
        format!("<{}>", target.display())
    };
    let program = std::fs::read_link(format!("/proc/{}/exe", proxy.pid())).unwrap();
    assert_ne!(program.file_name(), Some("strace".as_ref()));
    Pipes {
        from_client: link(proxy.pid(), 0),
        to_client: link(proxy.pid(), 1),
        to_upstream: link(world.pid_of("upstream", upstream), 0),
    }
}

/// Ends the proxy and reads the trace.
fn steps(world: &World, mut proxy: Proxy, pipes: &Pipes) -> Vec<Step> {
    proxy.close_stdin();
    assert_eq!(proxy.wait_code(), 0);
    // The tracer holds our pipe too, so its end is the end of the trace.
    while proxy.next_line().is_some() {}
    steps_so_far(world, pipes)
}

/// Reads what the trace tells up to now.
fn steps_so_far(world: &World, pipes: &Pipes) -> Vec<Step> {
    let mut trace = std::fs::read(world.path("trace")).unwrap();
    let whole = trace.iter().rposition(|byte| *byte == b'\n');
    trace.truncate(whole.map_or(0, |end| end + 1));
    let trace = String::from_utf8_lossy(&trace);
    let journal = world.journal().display().to_string();
    let mut steps = Vec::new();
    let mut unfinished: BTreeMap<&str, &str> = BTreeMap::new();
    for line in trace.lines() {
        let (thread, rest) = line.split_once(' ').unwrap();
        let rest = rest.trim_start();
        let is_resumed = rest.starts_with("<...");
        let call = if is_resumed {
            unfinished.remove(thread).unwrap_or_default()
        } else {
            rest
        };
        let is_unfinished = rest.ends_with("<unfinished ...>");
        if is_unfinished {
            unfinished.insert(thread, rest);
        }
        let is_done = !is_unfinished && !rest.contains(" = -1 ");
        // The descriptor comes first; what is written may name the journal, too.
        let first = call.split([',', ')']).next().unwrap_or_default();
        let on_journal = first.contains(&journal);
        let name = call.split('(').next().unwrap_or_default();
        if name.contains("sync") {
            // SQLite's own syncs, which a build without `.cargo/config.toml` makes dearer.
            let is_log = on_journal && first.contains("-wal");
            assert!(!is_log || name == "fdatasync", "{line}");
            if on_journal && is_done {
                steps.push(Step::Synced);
            }
        } else if name.contains("read") {
            // What was read is told when the call ends.
            if is_done && call.contains(&pipes.from_client) {
                steps.extend(marks(rest).map(Step::Read));
            }
        } else if !is_resumed {
            // What is written is told, and may be seen by the reader, when the call begins.
            if on_journal {
                steps.push(Step::Journal);
            } else if call.contains(&pipes.to_upstream) {
                steps.extend(marks(rest).map(Step::ToUpstream));
            } else if call.contains(&pipes.to_client) {
                steps.extend(marks(rest).map(Step::ToClient));
            }
        }
    }
    steps
}

/// The numbers of `mark-N-` in a line of the trace.
fn marks(text: &str) -> impl Iterator<Item = u64> {
    let parts = text.split("mark-").skip(1);
    // A mark that was torn by the end of a read is no mark.
    parts.filter_map(|part| part.split_once('-')?.0.parse().ok())
}

fn marked_call(number: u64) -> Call {
    Call::new(
        number,
        "echo",
        json!({"payload": format!("mark-{number}-")}),
    )
}

/// Where a step is seen first; a short write is tried again and seen again.
fn place(steps: &[Step], wanted: &Step) -> usize {
    let place = steps.iter().position(|step| step == wanted);
    place.unwrap_or_else(|| panic!("{wanted:?} is not in the trace"))
}

/// Where a call was read, at the earliest.
fn read_place(steps: &[Step], number: u64) -> usize {
    let read = steps.iter().position(|step| *step == Step::Read(number));
    read.unwrap_or(0)
}

/// Whether something was written to the journal and then synced within these steps.
fn is_durable(steps: &[Step]) -> bool {
    let written = steps.iter().position(|step| *step == Step::Journal);
    written.is_some_and(|written| steps[written..].contains(&Step::Synced))
}

/// Case C20, one call at a time: each write to the journal is synced before the bytes leave.
#[test]
fn a_call_and_its_outcome_are_on_the_disk_before_they_are_passed_on() {
    const CALLS: u64 = 40;
    let world = World::new();
    let mut proxy = traced(&world).start();
    let pipes = pipes(&world, &mut proxy);
    for number in 1..=CALLS {
        assert_done(&proxy.call(&marked_call(number).seq(number)));
    }
    let steps = steps(&world, proxy, &pipes);
    for number in 1..=CALLS {
        let read = read_place(&steps, number);
        let sent = place(&steps, &Step::ToUpstream(number));
        let answered = place(&steps, &Step::ToClient(number));
        assert!(read < sent && sent < answered, "{number}");
        assert!(is_durable(&steps[read..sent]), "{number} was sent first");
        assert!(
            is_durable(&steps[sent..answered]),
            "{number} was answered first"
        );
    }
    // The first call also makes the journal.
    let first = place(&steps, &Step::ToClient(1));
    let last = place(&steps, &Step::ToClient(CALLS));
    let syncs = steps[first..last]
        .iter()
        .filter(|step| **step == Step::Synced)
        .count();
    let per_call = syncs as f64 / (CALLS - 1) as f64;
    assert!((2.0..=2.2).contains(&per_call), "{per_call} syncs a call");
    assert_eq!(world.effects_of("echo") as u64, CALLS);
}

/// A file whose times were asked for gets a time of its own with the next write (Linux 6.13), and
/// the sync after that write has its inode to write, too. Whoever asks only which file it is leaves
/// the sync as cheap as it can be.
#[test]
fn nobody_asks_for_the_logs_times_on_a_calls_way() {
    let world = World::new();
    let calls = "trace=read,stat,lstat,fstat,newfstatat,statx";
    let mut proxy = traced_for(&world, calls).start();
    // The first calls make the journal and its log long.
    for number in 1..=40 {
        assert_done(&proxy.call(&marked_call(number).seq(number)));
    }
    proxy.close_stdin();
    assert_eq!(proxy.wait_code(), 0);
    while proxy.next_line().is_some() {}
    let trace = std::fs::read(world.path("trace")).unwrap();
    let trace = String::from_utf8_lossy(&trace);
    let lines: Vec<&str> = trace.lines().collect();
    let seen = |mark: &str| lines.iter().position(|line| line.contains(mark)).unwrap();
    let between = &lines[seen("mark-20-")..seen("mark-40-")];
    let asks = |line: &&&str| line.contains("run.db-wal") && line.contains("stat");
    let asked: Vec<_> = between.iter().filter(asks).collect();
    // Before each of the commits, so that the log is known to be in its place.
    assert!(asked.len() >= 38, "{asked:#?}");
    for line in asked {
        assert!(line.contains("STATX_INO,"), "{line}");
    }
}

/// An array is one line, and goes out after the last of the outcomes in it.
#[test]
fn all_that_an_array_answers_is_on_the_disk_before_it_is_passed_on() {
    let world = World::new();
    let mut proxy = traced(&world).start();
    let pipes = pipes(&world, &mut proxy);
    let answer = |id: &str| {
        let content = json!([{"type": "text", "text": "mark-9-"}]);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":{content}}}}}"#)
    };
    let silent = json!({"never_answer": true});
    proxy.send_call(&marked_call(1).seq(1).script(silent));
    let raw = format!("[{},{}]", answer("1"), answer("$ID"));
    proxy.send_call(&marked_call(2).seq(2).script(json!({"raw": raw})));
    assert_eq!(proxy.recv().as_array().map(Vec::len), Some(2));
    let steps = steps(&world, proxy, &pipes);
    let sent = [1, 2].map(|number| place(&steps, &Step::ToUpstream(number)));
    let answered = place(&steps, &Step::ToClient(9));
    assert!(is_durable(&steps[sent[0].max(sent[1])..answered]));
    assert_eq!([1, 2].map(|seq| world.status(seq)), ["COMPLETED"; 2]);
    assert_eq!(world.effects_of("echo"), 2);
}

/// Who is told that an answer was too long may ask again at once, in another session.
#[test]
fn a_call_is_on_the_disk_as_lost_before_its_caller_is_told() {
    let world = World::new();
    let setup = traced(&world).flags(["--max-message-bytes", "4KiB"]);
    let mut proxy = setup.start();
    let pipes = pipes(&world, &mut proxy);
    let call = Call::new(1, "big", json!({"bytes": 10_000})).seq(1);
    let answer = proxy.call(&call.meta("checkpoint_workflow", "mark-1-"));
    assert_refused(&answer, "message_too_large", "unknown");
    assert_eq!(answer["error"]["data"]["workflow_id"], "mark-1-");
    let steps = steps(&world, proxy, &pipes);
    let sent = place(&steps, &Step::ToUpstream(1));
    let told = place(&steps, &Step::ToClient(1));
    assert!(is_durable(&steps[sent..told]));
    assert_eq!(world.effects_of("big"), 1);
}

/// Case C20, under load: the same order, and one sync for many calls.
#[test]
fn calls_in_flight_together_keep_the_order_and_share_their_syncs() {
    const CALLS: u64 = 64;
    let world = World::new();
    let mut proxy = traced(&world).start();
    let pipes = pipes(&world, &mut proxy);
    assert_done(&proxy.call(&marked_call(1000)));
    let all: String = (1..=CALLS)
        .map(|number| marked_call(number).script(json!({"hold_after": "all"})))
        .map(|call| call.line() + "\n")
        .collect();
    proxy.send_raw(all.as_bytes());
    world.wait_held_count("all", CALLS as usize);
    world.release("all");
    for number in 1..=CALLS {
        assert_done(&proxy.recv_id(number));
    }
    let steps = steps(&world, proxy, &pipes);
    let mut answered_at = BTreeSet::new();
    for number in 1..=CALLS {
        let read = read_place(&steps, number);
        let sent = place(&steps, &Step::ToUpstream(number));
        let answered = place(&steps, &Step::ToClient(number));
        assert!(is_durable(&steps[read..sent]), "{number} was sent first");
        assert!(
            is_durable(&steps[sent..answered]),
            "{number} was answered first"
        );
        answered_at.insert(answered);
    }
    let warmed = place(&steps, &Step::ToClient(1000));
    let last = answered_at.into_iter().max().unwrap();
    let syncs = steps[warmed..last]
        .iter()
        .filter(|step| **step == Step::Synced)
        .count();
    assert!(syncs as u64 <= CALLS, "{syncs} syncs for {CALLS} calls");
    assert_eq!(world.effects_of("echo") as u64, CALLS + 1);
}

#[test]
fn the_folder_is_synced_when_the_journal_is_made() {
    let world = World::new();
    let mut proxy = traced(&world).start();
    assert_done(&proxy.call(&marked_call(1)));
    proxy.close_stdin();
    assert_eq!(proxy.wait_code(), 0);
    while proxy.next_line().is_some() {}
    let trace = std::fs::read(world.path("trace")).unwrap();
    let trace = String::from_utf8_lossy(&trace);
    let folder = format!("<{}>", world.journal().parent().unwrap().display());
    let is_synced = |line: &str| line.contains("sync(") && line.contains(&folder);
    assert!(trace.lines().any(is_synced), "no sync of {folder}");
    assert_eq!(world.effects_of("echo"), 1);
}

/// Rows of the journal's own file, without what only its log has.
fn rows_without_the_log(world: &World) -> i64 {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.db");
    std::fs::copy(world.journal(), &copy).unwrap();
    let db = rusqlite::Connection::open(&copy).unwrap();
    // A copy that was taken while the log was being moved is no database yet.
    db.query_row("SELECT count(*) FROM entries", [], |row| row.get(0))
        .unwrap_or(0)
}

/// A log that has become long is moved when nobody waits: else the call that comes next to it
/// would. What is moved is what `kill -9` and a lost log would leave.
#[test]
fn a_long_log_is_moved_into_the_journal_when_no_call_is_in_flight() {
    const CALLS: u64 = 120;
    let world = World::new();
    let mut proxy = world.proxy().start();
    for number in 1..=CALLS {
        assert_done(&proxy.call(&marked_call(number).seq(number)));
    }
    let end = Instant::now() + Duration::from_secs(20);
    while rows_without_the_log(&world) < CALLS.cast_signed() {
        assert!(Instant::now() < end, "the log is not moved");
        // Other traffic goes on, and is no call.
        proxy.assert_ping();
    }
    assert_done(&proxy.call(&marked_call(CALLS + 1).seq(CALLS + 1)));
    assert_done(&proxy.call(&marked_call(1).seq(1)));
    assert_eq!(world.effects_of("echo") as u64, CALLS + 1);
    proxy.stop();
}

const DEFERRED: [&str; 2] = ["--durability", "deferred"];

/// A sync a call: its outcome's is the next reservation's, and the last one's is the end's.
#[test]
fn a_deferred_outcome_is_told_first_and_on_the_disk_before_the_next_call_goes_out() {
    const CALLS: u64 = 40;
    let world = World::new();
    let mut proxy = traced(&world).flags(DEFERRED).start();
    let pipes = pipes(&world, &mut proxy);
    for number in 1..=CALLS {
        assert_done(&proxy.call(&marked_call(number).seq(number)));
    }
    let steps = steps(&world, proxy, &pipes);
    let mut syncs_before_answers = 0;
    for number in 1..=CALLS {
        let read = read_place(&steps, number);
        let sent = place(&steps, &Step::ToUpstream(number));
        let answered = place(&steps, &Step::ToClient(number));
        assert!(is_durable(&steps[read..sent]), "{number} was sent first");
        let is_synced = |step: &&Step| **step == Step::Synced;
        syncs_before_answers += steps[sent..answered].iter().filter(is_synced).count();
        let next = steps
            .iter()
            .position(|step| *step == Step::ToUpstream(number + 1));
        let next = next.unwrap_or(steps.len());
        assert!(is_durable(&steps[sent..next]), "{number} was not synced");
    }
    // The log is made long once, which syncs it.
    assert!(syncs_before_answers <= 2, "{syncs_before_answers} syncs");
    assert_eq!(world.effects_of("echo") as u64, CALLS);
}

/// The doubt that a power cut can make of an answered call does not stay open until the next call.
#[test]
fn a_deferred_outcome_is_synced_when_no_other_call_comes() {
    let world = World::new();
    let mut proxy = traced(&world).flags(DEFERRED).start();
    let pipes = pipes(&world, &mut proxy);
    // While another one is in flight, too.
    proxy.send_call(&marked_call(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    assert_done(&proxy.call(&marked_call(2)));
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let steps = steps_so_far(&world, &pipes);
        let told = steps.iter().position(|step| *step == Step::ToClient(2));
        if told.is_some_and(|told| steps[told..].contains(&Step::Synced)) {
            break;
        }
        assert!(Instant::now() < end, "it is not synced");
    }
    world.release("h");
    assert_done(&proxy.recv_id(1));
    let steps = steps(&world, proxy, &pipes);
    let told = place(&steps, &Step::ToClient(1));
    assert!(steps[told..].contains(&Step::Synced), "the end syncs");
}

/// What somebody goes on from is on the disk first, and so is what could run again.
#[test]
fn what_is_no_final_outcome_is_not_deferred() {
    let question = json!({"resultType": "input_required", "requestState": "mark-1-"});
    let asks = json!({"no_effect": true, "result": question.to_string()});
    let again = "[tools.echo]\ndelivery = \"at-least-once\"\n";
    for (policy, script, status) in [
        ("", asks, "INPUT_REQUIRED"),
        (again, json!({}), "COMPLETED"),
    ] {
        let world = World::new();
        let setup = traced(&world).policy(policy);
        let mut proxy = setup.flags(DEFERRED).start();
        let pipes = pipes(&world, &mut proxy);
        proxy.call(&marked_call(1).modern().seq(1).script(script));
        let steps = steps(&world, proxy, &pipes);
        assert_eq!(world.status(1), status);
        let sent = place(&steps, &Step::ToUpstream(1));
        let told = place(&steps, &Step::ToClient(1));
        assert!(is_durable(&steps[sent..told]), "{status}");
    }
}

/// No power went, so nothing is lost; and whoever tells it again has synced all of the log, with
/// its session.
#[test]
fn a_deferred_outcome_survives_the_proxys_death() {
    let world = World::new();
    let mut proxy = world.proxy().flags(DEFERRED).start();
    let first = proxy.call_line(&marked_call(1).seq(1));
    proxy.kill9();
    world.wait_gone(world.pid_of("upstream", 1), DEADLINE);
    let mut proxy = traced(&world).start();
    let pipes = pipes_of(&world, &mut proxy, 2);
    let again = proxy.call_line(&marked_call(1).seq(1));
    assert_eq!(result_bytes(&again), result_bytes(&first));
    let steps = steps(&world, proxy, &pipes);
    let told = place(&steps, &Step::ToClient(1));
    assert!(is_durable(&steps[..told]), "it is told and not durable");
    assert_eq!(world.effects_of("echo"), 1);
    assert_eq!(world.status(1), "COMPLETED");
}

/// A power cut after the answer leaves the log as the reservation's sync has left it, and perhaps
/// the mark as it was written last.
#[test]
fn a_deferred_outcome_that_a_power_cut_takes_leaves_a_doubt_and_no_second_run() {
    let world = World::new();
    let mut proxy = world.proxy().flags(DEFERRED).start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let files = ["run.db", "run.db-wal"].map(|name| {
        let path = world.journal().with_file_name(name);
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    });
    world.release("h");
    assert_done(&proxy.recv_id(1));
    proxy.kill9();
    world.wait_gone(world.pid_of("upstream", 1), DEADLINE);
    for (path, bytes) in &files {
        std::fs::write(path, bytes).unwrap();
    }
    // The log's index was in memory alone.
    std::fs::remove_file(world.journal().with_file_name("run.db-shm")).unwrap();

    for flags in [DEFERRED, ["--durability", "full"]] {
        let mut proxy = world.proxy().flags(flags).start();
        let answer = proxy.call(&Call::charge(2).seq(1));
        assert_refused(&answer, "in_doubt", "unknown");
        let unnamed = proxy.call(&Call::charge(3));
        assert_refused(&unnamed, "in_doubt", "unknown");
        proxy.stop();
    }
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.entry(1)["in_doubt"], true);
}
