//! Lines that mean a `tools/call` to somebody, or nearly.

use crate::random::Random;

const METHODS: &[&str] = &[
    "tools/call",
    "tools/call",
    "tools\\/call",
    "tools\\u002fcall",
    "\\u0074ools/call",
    "\\u0054ools/call",
    "Tools/Call",
    " tools/call",
    "tools/call ",
    "tools/call\\u0000",
    "tools/call\\n",
    "tools/ca\\u006c\\u006C",
    "tools/list",
    "tools/calls",
    "tools\u{2215}call",
    "\u{ff54}ools/call",
    "tool\u{17f}/call",
    "tools/ca\u{2113}l",
    "ping",
];

const METHOD_KEYS: &[&str] = &[
    "method",
    "method",
    "method",
    "method",
    "Method",
    "METHOD",
    "m\\u0065thod",
    "\\u004dethod",
    "method ",
    "met\\u0068od",
    "methods",
];

const IDS: &[&str] = &[
    "1",
    "\"a\"",
    "null",
    "1.0",
    "-0",
    "1e400",
    "12345678901234567890123",
    "[]",
    "{}",
    "true",
    "\"\\ud800\"",
    "NaN",
    "-Infinity",
    "01",
    "1.",
    "+1",
    "\"\\u0061\"",
];

const ARGUMENTS: &[&str] = &[
    "{}",
    "{\"a\":1}",
    "null",
    "[]",
    "{\"a\":1,\"a\":2}",
    "{\"a\":NaN}",
    "{\"a\":1e999}",
    "{\"a\":\"\\ud800\"}",
    "{\"a\":[[[[[[]]]]]]}",
    "{\"a\":\"\\u0000\"}",
    "{\"method\":\"tools/call\"}",
    "{\"a\":Infinity}",
    "{\"a\":0x10}",
    "{\"a\":1,}",
    "\"{\\\"x\\\":1}\"",
];

const SPACE: &[&str] = &[
    "", "", "", " ", "\t", "\r", "  ", "\u{a0}", "\u{feff}", "\u{c}", "/**/",
];

/// Mostly one of the first, which are as they should be.
fn pick<'a>(random: &mut Random, of: &[&'a str], plain: usize) -> &'a str {
    if random.chance(800) {
        of[random.below(plain)]
    } else {
        random.pick(of)
    }
}

fn message(random: &mut Random) -> Vec<u8> {
    let mut members: Vec<String> = Vec::new();
    let space = |random: &mut Random| {
        if random.chance(60) {
            random.pick(SPACE)
        } else {
            ""
        }
    };
    if random.chance(900) {
        members.push("\"jsonrpc\":\"2.0\"".into());
    }
    if random.chance(900) {
        members.push(format!(
            "\"{}\":{}",
            if random.chance(950) { "id" } else { "Id" },
            pick(random, IDS, 2)
        ));
    }
    let methods = 1 + usize::from(random.chance(200)) + usize::from(random.chance(50));
    for _ in 0..methods {
        let (before, after) = (space(random), space(random));
        members.push(format!(
            "\"{}\"{before}:{after}\"{}\"",
            pick(random, METHOD_KEYS, 4),
            pick(random, METHODS, 5)
        ));
    }
    if random.chance(900) {
        let meta = random.pick(&[
            "",
            ",\"_meta\":{}",
            ",\"_meta\":{\"checkpoint_seq\":1}",
            ",\"_meta\":{\"checkpoint_seq\":1,\"checkpoint_seq\":2}",
            ",\"_Meta\":{}",
        ]);
        members.push(format!(
            "\"params\":{{\"name\":\"t\",\"arguments\":{}{meta}}}",
            pick(random, ARGUMENTS, 2)
        ));
    }
    if random.chance(60) {
        members.push("\"result\":{}".into());
    }
    // Any order.
    for at in (1..members.len()).rev() {
        members.swap(at, random.below(at + 1));
    }
    let (before, after) = (space(random), space(random));
    format!("{before}{{{}}}{after}", members.join(",")).into_bytes()
}

/// One line without its end.
pub(crate) fn line(random: &mut Random) -> Vec<u8> {
    let mut line = message(random);
    match random.below(20) {
        0 => {
            let second = message(random);
            line = [b"[".as_slice(), &line, b",", &second, b"]"].concat();
        }
        1 => line = [b"[".as_slice(), &line, b"]"].concat(),
        2 => line = [line, message(random)].concat(),
        3 => line = [b"\xef\xbb\xbf".as_slice(), &line].concat(),
        4 => {
            // Another encoding of the same text.
            let text = String::from_utf8_lossy(&line).into_owned();
            let is_big = random.chance(500);
            line = text
                .encode_utf16()
                .flat_map(|unit| {
                    if is_big {
                        unit.to_be_bytes()
                    } else {
                        unit.to_le_bytes()
                    }
                })
                .collect();
        }
        5 => {
            let deep = 1 + random.below(300);
            let open = "[".repeat(deep);
            let close = "]".repeat(deep);
            let text = String::from_utf8_lossy(&line).into_owned();
            line = text
                .replacen("{}", &format!("{{\"d\":{open}{close}}}"), 1)
                .into_bytes();
        }
        _ => {}
    }
    let changes = if random.chance(500) {
        random.below(4)
    } else {
        0
    };
    for _ in 0..changes {
        change(random, &mut line);
    }
    line.retain(|byte| *byte != b'\n');
    line
}

/// Changes a few bytes.
pub(crate) fn change(random: &mut Random, line: &mut Vec<u8>) {
    const BYTES: &[u8] = b"\"\\{}[]:,0-.eE+ \t\r\x00\x01\x7f\x80\xc0\xff\xed\xa0'/*NI";
    if line.is_empty() {
        line.push(b'{');
        return;
    }
    let at = random.below(line.len());
    match random.below(5) {
        0 => line[at] = random.pick(BYTES),
        1 => line.insert(at, random.pick(BYTES)),
        2 => {
            line.remove(at);
        }
        3 => line[at] ^= 1 << random.below(8),
        _ => {
            let end = (at + 1 + random.below(12)).min(line.len());
            let piece = line[at..end].to_vec();
            let to = random.below(line.len());
            line.splice(to..to, piece);
        }
    }
}
