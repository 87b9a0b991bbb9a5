//! The readers of what others send: none panics, none changes what it may not, and no line that
//! anybody takes for a `tools/call` passes without a reservation.
//!
//! `PARSERS_SECONDS=900 PARSERS_LINES=1000000 cargo test --test parsers -- --nocapture` is the
//! long form.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "in a test, what can't be is a failure with a line number"
)]

mod lines;
mod properties;
#[path = "../simulation/random.rs"]
#[expect(dead_code, reason = "the simulation uses more of it")]
mod random;

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use checkpoint::mcp::frame::{ClientLine, read_client};
use checkpoint::rules::signature::signature;
use random::Random;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs `one` on new input until the time is over; at least `least` times.
fn fuzz(what: &str, least: u64, mut one: impl FnMut(&mut Random)) {
    let seconds = Duration::from_secs(from_env("PARSERS_SECONDS").unwrap_or(4));
    let start = Instant::now();
    let mut runs = 0;
    while start.elapsed() < seconds || runs < least {
        one(&mut Random::new(runs));
        runs += 1;
    }
    println!("parsers: {what}: {runs} runs, none bad");
}

fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

#[test]
fn a_clients_line_is_told_apart_without_a_panic_and_a_call_keeps_its_bytes() {
    fuzz("frame", 20_000, |random| {
        properties::client_line(&lines::line(random))
    });
}

/// A JSON value in a random spelling, and the same value in another one.
fn value(random: &mut Random, depth: usize) -> (String, String) {
    let space = |random: &mut Random| if random.chance(300) { " " } else { "" };
    match random.below(if depth == 0 { 5 } else { 7 }) {
        0 => ("null".into(), "null".into()),
        1 => ("true".into(), "true".into()),
        2 => random
            .pick(&[
                ("1", "1.0"),
                ("10", "1e1"),
                ("0", "-0"),
                ("0.5", "5e-1"),
                ("9007199254740993", "9007199254740993.0"),
                ("-12.50", "-125E-1"),
                ("1e400", "10e399"),
            ])
            .into_pair(),
        3 | 4 => random
            .pick(&[
                ("\"a\"", "\"\\u0061\""),
                ("\"/\"", "\"\\/\""),
                ("\"\\n\"", "\"\\u000a\""),
                ("\"é\"", "\"\\u00e9\""),
                ("\"😀\"", "\"\\ud83d\\ude00\""),
                ("\"\\ud800\"", "\"\\uD800\""),
                ("\"\"", "\"\""),
            ])
            .into_pair(),
        5 => {
            let (mut left, mut right) = (Vec::new(), Vec::new());
            for _ in 0..random.below(4) {
                let (one, other) = value(random, depth - 1);
                left.push(one);
                right.push(other);
            }
            let gap = space(random);
            (
                format!("[{}]", left.join(",")),
                format!("[{gap}{}{gap}]", right.join(&format!("{gap},"))),
            )
        }
        _ => {
            let (mut left, mut right) = (Vec::new(), Vec::new());
            for name in ["a", "b", "c"].iter().take(random.below(4)) {
                let (one, other) = value(random, depth - 1);
                left.push(format!("\"{name}\":{one}"));
                right.push(format!("\"\\u{:04x}\":{other}", name.as_bytes()[0]));
            }
            right.reverse();
            let gap = space(random);
            (
                format!("{{{}}}", left.join(",")),
                format!("{{{gap}{}{gap}}}", right.join(&format!("{gap},"))),
            )
        }
    }
}

trait Pair {
    fn into_pair(self) -> (String, String);
}

impl Pair for (&str, &str) {
    fn into_pair(self) -> (String, String) {
        (self.0.into(), self.1.into())
    }
}

/// Spellings in the values above, and others: most of them nearly the same, some of them the same.
const NEAR: &[(&str, &str)] = &[
    ("-12.50", "12.50"),
    ("-12.50", "-12.5"),
    ("1", "-1"),
    ("0.5", "0.500000000000000000000001"),
    ("9007199254740993", "9007199254740992"),
    ("1e400", "1e401"),
    ("1e400", "100e398"),
    ("null", "0"),
    ("true", "\"true\""),
    ("\"a\"", "\"A\""),
    ("\"\"", "\"\\u0000\""),
    ("\"é\"", "\"e\\u0301\""),
    ("\\ud800", "\\ud801"),
    ("[]", "{}"),
    ("[", "[null,"),
];

#[test]
fn equal_values_have_one_signature_in_every_spelling_and_unequal_ones_have_two() {
    fuzz("signature", 2_500, |random| {
        let (one, other) = value(random, 4);
        let one = format!("{{\"x\":{one}}}");
        let other = format!(" {{ \"\\u0078\" : {other} }}");
        let sign = |text: &str| signature("t", Some(text.as_bytes()), false).unwrap();
        assert_eq!(sign(&one), sign(&other), "{one} and {other}");
        properties::signatures(one.as_bytes(), other.as_bytes());
        let (third, _) = value(random, 4);
        let mut third = format!("{{\"x\":{third}}}").into_bytes();
        properties::signatures(one.as_bytes(), &third);
        lines::change(random, &mut third);
        properties::signatures(one.as_bytes(), &third);
        let (this, that) = random.pick(NEAR);
        properties::signatures(one.as_bytes(), one.replacen(this, that, 1).as_bytes());
    });
}

#[test]
fn an_upstreams_line_is_read_without_a_panic_and_a_mark_keeps_every_other_byte() {
    fuzz("reply", 10_000, |random| {
        let (body, _) = value(random, 4);
        let member = random.pick(&["result", "error", "params"]);
        let mut line =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"{member}\":{body}}}\n").into_bytes();
        if random.chance(600) {
            for _ in 0..=random.below(3) {
                lines::change(random, &mut line);
            }
        }
        properties::upstream_line(&line);
        properties::reply(&line);
        // A client's line is as good an upstream's as any.
        properties::upstream_line(&lines::line(random));
    });
}

#[test]
fn what_the_operator_is_shown_drives_no_terminal() {
    fuzz("escape", 10_000, |random| {
        let mut bytes = lines::line(random);
        for _ in 0..random.below(8) {
            let at = random.below(bytes.len() + 1);
            let rune = random.pick(&[
                '\u{1b}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{2028}', '\u{7f}', '\u{0}',
                '\u{85}', '\u{61c}', '\u{200e}', '\u{200f}', '\r', '\u{8}',
            ]);
            let mut buffer = [0; 4];
            bytes.splice(at..at, rune.encode_utf8(&mut buffer).bytes());
        }
        properties::rendering(&String::from_utf8_lossy(&bytes));
    });
}

#[test]
fn no_bytes_in_a_journal_s_row_make_a_reader_panic() {
    fuzz("row", 10_000, |random| {
        let size = random.below(60);
        let input: Vec<u8> = (0..size).map(|_| random.next().to_le_bytes()[0]).collect();
        properties::row(&input);
    });
}

/// Runs a judge over lines; `None` where it is not here (and may be left out).
fn judge(program: &str, script: &str, input: &str) -> Option<Vec<bool>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/parsers/");
    let child = Command::new(program)
        .arg(format!("{folder}{script}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        assert!(std::env::var_os("CI").is_none(), "this needs {program}");
        println!("SKIPPED parsers: no {program}");
        return None;
    };
    let mut pipe = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let answers = String::from_utf8(output.stdout).unwrap();
    Some(answers.lines().map(|line| line == "1").collect())
}

#[test]
fn no_line_that_anybody_takes_for_a_call_passes_unjournaled() {
    let count = from_env("PARSERS_LINES").unwrap_or(100_000);
    let lines: Vec<Vec<u8>> = (0..count)
        .map(|seed| lines::line(&mut Random::new(seed)))
        .collect();
    let hex: String = lines
        .iter()
        .map(|line| {
            let mut text: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
            text.push('\n');
            text
        })
        .collect();
    let judges = [("python3", "judge.py"), ("node", "judge.js")];
    let mut taken = vec![false; lines.len()];
    let mut judged = 0;
    for (program, script) in judges {
        let Some(answers) = judge(program, script, &hex) else {
            continue;
        };
        assert_eq!(answers.len(), lines.len());
        judged += 1;
        for (taken, answer) in taken.iter_mut().zip(answers) {
            *taken |= answer;
        }
    }
    let mut counts = [0; 4];
    let mut bad = Vec::new();
    for (line, taken) in lines.iter().zip(&taken) {
        let kind = match read_client(line) {
            ClientLine::Call(_) => 0,
            ClientLine::Refused(_) | ClientLine::Header => 1,
            ClientLine::Pass(_) | ClientLine::Blank => 2,
        };
        counts[kind] += 1;
        if *taken {
            counts[3] += 1;
            if kind == 2 {
                bad.push(shown(line));
            }
        }
    }
    for bad in bad.iter().take(10) {
        println!("  passes: {bad}");
    }
    println!(
        "parsers: {count} lines by {judged} judges: {} calls, {} refused, {} passed; {} taken for a call by somebody, {} of them passed",
        counts[0],
        counts[1],
        counts[2],
        counts[3],
        bad.len()
    );
    assert!(bad.is_empty());
    assert!(judged == 0 || counts[3] > count / 10);
}
