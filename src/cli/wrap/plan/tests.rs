use proptest::prelude::*;

use super::super::edit::hunks;
use super::*;

const PROGRAM: &str = "/opt/checkpoint";

fn wrap_with(text: &str, names: &[&str], flags: &[&str]) -> Result<Plan, NoPlan> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let ask = Ask {
        names: &names,
        program: PROGRAM,
        deed: Deed::Wrap {
            flags: &flags,
            journal: &|name| format!("/j/{name}.db"),
        },
    };
    plan(text, &ask)
}

fn wrap(text: &str) -> Plan {
    wrap_with(text, &[], &[]).unwrap_or_else(|why| panic!("{why:?}\n{text}"))
}

fn undo(text: &str) -> Plan {
    plan_undo(text).unwrap_or_else(|why| panic!("{why:?}\n{text}"))
}

fn plan_undo(text: &str) -> Result<Plan, NoPlan> {
    let ask = Ask {
        names: &[],
        program: PROGRAM,
        deed: Deed::Undo,
    };
    plan(text, &ask)
}

fn states(plan: &Plan) -> Vec<(&str, State)> {
    let steps = plan.steps.iter();
    steps.map(|step| (&*step.name, step.state)).collect()
}

/// Wraps a text, which becomes this one; wraps it again, which changes nothing; and goes back.
#[track_caller]
fn assert_wrapped(text: &str, expected: &str) {
    let wrapped = wrap(text);
    assert_eq!(wrapped.text, expected);
    let again = wrap(&wrapped.text);
    assert_eq!(again.text, wrapped.text);
    assert!(again.is_wrapped_before && !wrapped.is_wrapped_before);
    assert_eq!(undo(&wrapped.text).text, text);
}

#[test]
fn the_usual_form() {
    assert_wrapped(
        r#"{
  "mcpServers": {
    "pay": {
      "command": "npx",
      "args": ["-y", "pay-server", "--flag", "a b"],
      "env": { "STRIPE_KEY": "sk_x" }
    }
  }
}
"#,
        r#"{
  "mcpServers": {
    "pay": {
      "command": "/opt/checkpoint",
      "args": ["--journal", "/j/pay.db", "--", "npx", "-y", "pay-server", "--flag", "a b"],
      "env": { "STRIPE_KEY": "sk_x" }
    }
  }
}
"#,
    );
}

#[test]
fn a_line_for_each_argument_and_comments() {
    assert_wrapped(
        "{ // c1\n\t\"servers\": {\n\t\t\"a\": {\n\t\t\t\"args\": [ // c2\n\t\t\t\t\"-y\", // c3\n\t\t\t\t\"s\",\n\t\t\t], /* c4 */\n\t\t\t\"command\": \"n\\u0070x\", // c5\n\t\t},\n\t},\n}",
        "{ // c1\n\t\"servers\": {\n\t\t\"a\": {\n\t\t\t\"args\": [ // c2\n\t\t\t\t\"--journal\",\n\t\t\t\t\"/j/a.db\",\n\t\t\t\t\"--\",\n\t\t\t\t\"n\\u0070x\",\n\t\t\t\t\"-y\", // c3\n\t\t\t\t\"s\",\n\t\t\t], /* c4 */\n\t\t\t\"command\": \"/opt/checkpoint\", // c5\n\t\t},\n\t},\n}",
    );
}

#[test]
fn no_arguments_and_none_in_the_list_are_two_things() {
    assert_wrapped(
        "{\"context_servers\":{\"a\":{\"command\":\"x\"}}}",
        "{\"context_servers\":{\"a\":{\"command\":\"/opt/checkpoint\", \"args\": [ \"--journal\", \"/j/a.db\", \"--\", \"x\" ]}}}",
    );
    assert_wrapped(
        "{\r\n  \"servers\": {\"a\": {\r\n    \"command\": \"x\" // c\r\n  }}}",
        "{\r\n  \"servers\": {\"a\": {\r\n    \"command\": \"/opt/checkpoint\",\r\n    \"args\": [ \"--journal\", \"/j/a.db\", \"--\", \"x\" ] // c\r\n  }}}",
    );
    for list in ["[]", "[ ]", "[\n]", "[ /* c */ ]"] {
        let text = format!("{{\"servers\":{{\"a\":{{\"command\":\"x\",\"args\":{list}}}}}}}");
        let wrapped = wrap(&text).text;
        let rest = &list[1..];
        assert!(
            wrapped.contains(&format!("[\"--journal\", \"/j/a.db\", \"--\", \"x\"{rest}")),
            "{wrapped}"
        );
        assert_eq!(undo(&wrapped).text, text);
    }
}

#[test]
fn toml() {
    assert_wrapped(
        "model = \"m\" # c1\n\n[mcp_servers.\"a b\"] # c2\ncommand = 'npx' # c3\nargs = [\n  '-y', # c4\n  \"s\",\n]\nenv = { K = \"sk\" }\n\n[mcp_servers.b.env]\nK = 'sk'\n[mcp_servers.b]\n  command = \"\"\"x\"\"\"\n",
        "model = \"m\" # c1\n\n[mcp_servers.\"a b\"] # c2\ncommand = \"/opt/checkpoint\" # c3\nargs = [\n  \"--journal\",\n  \"/j/a b.db\",\n  \"--\",\n  'npx',\n  '-y', # c4\n  \"s\",\n]\nenv = { K = \"sk\" }\n\n[mcp_servers.b.env]\nK = 'sk'\n[mcp_servers.b]\n  command = \"/opt/checkpoint\"\n  args = [ \"--journal\", \"/j/b.db\", \"--\", \"\"\"x\"\"\" ]\n",
    );
    assert_wrapped(
        "[mcp_servers]\na = { command = 'x', env = { K = 'sk' } }\nb.command = 'y'",
        "[mcp_servers]\na = { command = \"/opt/checkpoint\", args = [ \"--journal\", \"/j/a.db\", \"--\", 'x' ], env = { K = 'sk' } }\nb.command = \"/opt/checkpoint\"\nb.args = [ \"--journal\", \"/j/b.db\", \"--\", 'y' ]",
    );
}

#[test]
fn what_can_not_be_changed_safely_is_not_changed() {
    // A table over several lines, which came with TOML 1.1, would want a comma.
    let text = "[mcp_servers]\na = {\n  command = 'x'\n}\n";
    assert_eq!(wrap_with(text, &[], &[]).unwrap_err(), NoPlan::Unsafe);
    let text = text.replace("'x'", "'x',\n  args = []");
    assert_eq!(undo(&wrap(&text).text).text, text);
}

#[test]
fn flags_stand_before_the_dashes_and_dashes_of_the_server_stay() {
    let text = r#"{"servers": {"a": {"command": "x", "args": ["--", "--journal", "y"]}}}"#;
    let plan = wrap_with(text, &[], &["--refusals", "result", "--resume"]).unwrap();
    let after = plan.steps[0].after.as_ref().unwrap();
    let all = "--journal /j/a.db --refusals result --resume -- x -- --journal y";
    assert_eq!(after.args.join(" "), all);
    assert_eq!(undo(&plan.text).text, text);
}

#[test]
fn only_what_is_named_changes_and_the_rest_is_said() {
    let text = r#"{"mcpServers": {
        "a": {"command": "x", "args": []},
        "b": {"command": "y", "args": []},
        "c": {"url": "https://h/mcp"},
        "d": {"command": "z", "disabled": true},
        "e": {"command": "checkpoint", "args": ["--", "v"]},
        "f": {"command": "w"},
        "f": {"command": "w"}
    }}"#;
    use State::{Already, Skipped, Unwrapped, Wrapped};
    let named = wrap_with(text, &["b"], &[]).unwrap();
    assert_eq!(states(&named), [("b", Wrapped)]);
    assert!(named.is_wrapped_before);
    let all = wrap(text);
    assert_eq!(
        states(&all),
        [
            ("a", Wrapped),
            ("b", Wrapped),
            ("c", Skipped),
            ("d", Skipped),
            ("e", Already),
            ("f", Skipped),
            ("f", Skipped)
        ]
    );
    assert_eq!(
        states(&undo(&named.text)),
        [
            ("a", Already),
            ("b", Unwrapped),
            ("c", Skipped),
            ("d", Skipped),
            ("e", Unwrapped),
            ("f", Already),
            ("f", Already)
        ]
    );
    assert_eq!(
        wrap_with(text, &["nobody"], &[]).unwrap_err(),
        NoPlan::Unknown {
            name: "nobody".to_owned(),
            known: ["a", "b", "c", "d", "e", "f", "f"]
                .map(str::to_owned)
                .to_vec(),
        }
    );
    assert_eq!(wrap_with("{}", &[], &[]).unwrap_err(), NoPlan::NoServers);
    assert!(wrap("{\"servers\": {}}").steps.is_empty());
}

#[test]
fn what_a_person_wrote_is_taken_away_too() {
    for (args, command, left) in [
        (r#"["--journal=/j", "--", "npx", "-y"]"#, "npx", r#"["-y"]"#),
        (r#"["--", "npx",]"#, "npx", "[]"),
        (
            r#"["--journal", "/j", "--upstream-cmd", "npx -y 'a b'"]"#,
            "npx",
            r#"["-y", "a b"]"#,
        ),
        (
            r#"["--upstream-cmd", "cd /x && ./y"]"#,
            "/bin/sh",
            r#"["-c", "cd /x && ./y"]"#,
        ),
    ] {
        let config = |command: &str, args: &str| {
            format!(r#"{{"servers": {{"a": {{"command": "{command}", "args": {args}}}}}}}"#)
        };
        let undone = undo(&config("checkpoint", args));
        assert_eq!(undone.text, config(command, left));
        assert_eq!(undone.steps[0].state, State::Unwrapped);
        // Also while it is disabled.
        let disabled = config("checkpoint", &format!("{args}, \"disabled\": true"));
        let left = format!("{left}, \"disabled\": true");
        assert_eq!(undo(&disabled).text, config(command, &left));
    }
    let unclear = r#"{"servers": {"a": {"command": "checkpoint", "args": ["--new-flag"]}}}"#;
    let undone = undo(unclear);
    assert_eq!(undone.text, unclear);
    assert_eq!(
        undone.steps[0].reason.as_deref(),
        Some("this version can't read its flags; take checkpoint out by hand")
    );
}

#[test]
fn no_two_servers_share_a_journal() {
    let shared = |text: &str| match wrap_with(text, &[], &[]) {
        Err(NoPlan::SharedJournal { one, other, .. }) => format!("{one} {other}"),
        other => panic!("{other:?}"),
    };
    let two = r#"{"servers": {"a": {"command": "x"}, "A": {"command": "y"}}}"#;
    assert_eq!(shared(two), "a A");
    let taken = r#"{"servers": {
        "b": {"command": "checkpoint", "args": ["--journal", "/j/a.db", "--", "x"]},
        "a": {"command": "y"}}}"#;
    assert_eq!(shared(taken), "b a");
}

/// All that the diff of a plan shows.
fn shown(text: &str, plan: &Plan) -> String {
    let mut all = String::new();
    for hunk in hunks(text, &plan.changes()) {
        for line in hunk.removed.iter().chain(&hunk.added) {
            all.push_str(line);
            all.push('\n');
        }
    }
    all
}

#[test]
fn the_diff_shows_commands_and_arguments_alone() {
    for text in [
        "{\"mcpServers\":{\"a\":{\"env\":{\"K\":\"sk-1\"},\"command\":\"x\",\"headers\":{\"A\":\"sk-2\"},\"args\":[\"y\"],\"envFile\":\"sk-3\"},\"b\":{\"url\":\"https://h/?k=sk-4\"}}} // sk-5",
        "[mcp_servers.a] # sk-1\ncommand = 'x' # sk-2\nargs = ['y'] # sk-3\nenv.K = 'sk-4'\n",
        "mcp_servers = { a = { env = { K = 'sk-1' }, command = 'x', args = ['y'], bearer = 'sk-2' } }",
    ] {
        let wrapped = wrap(text);
        for said in [
            shown(text, &wrapped),
            shown(&wrapped.text, &undo(&wrapped.text)),
        ] {
            assert!(!said.contains("sk-"), "{said}");
            assert!(said.contains("'x'") || said.contains("\"x\""), "{said}");
            assert!(said.contains("/opt/checkpoint"), "{said}");
            assert!(said.contains("--journal"), "{said}");
        }
    }
}

/// Texts of odd but right members around a command and its arguments, with secrets in them.
fn server(is_toml: bool) -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("npx"),
        Just("-y"),
        Just("--"),
        Just(""),
        Just("a b"),
        Just("é\\n\\\"\\\\"),
        Just("--journal"),
        Just("${VAR}"),
        Just("checkpoint"),
        Just("],}"),
    ];
    let gap = prop_oneof![
        Just(" "),
        Just(""),
        Just("\n    "),
        Just("\r\n\t"),
        Just(if is_toml { " # sk\n" } else { " // sk\n" }),
        Just(if is_toml { "\n" } else { "/* sk */" }),
    ];
    let args = proptest::collection::vec((word, gap.clone(), gap.clone()), 0..5);
    let key = if is_toml { "args = " } else { "\"args\": " };
    let args = (args, gap, any::<bool>()).prop_map(move |(args, gap, ends_with_comma)| {
        let mut list = format!("{key}[{gap}");
        for (index, (word, before, after)) in args.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            list.push_str(&format!("{comma}{before}\"{word}\"{after}"));
        }
        let is_ended = ends_with_comma && !args.is_empty();
        list + if is_ended { ",]" } else { "]" }
    });
    let mut members = vec![args.boxed()];
    let others: [&[&str]; 2] = if is_toml {
        [
            &["command = 'x'", "command = \"./a b\"", "command = '''y'''"],
            &["env = { K = 'sk' }", "url_like = 'sk'", "n.m = 1", "# sk"],
        ]
    } else {
        [
            &[
                "\"command\": \"x\"",
                "\"command\" :\"\\u0078\"",
                "\"command\":\n\"./a b\"",
            ],
            &[
                "\"env\": {\"K\": \"sk\"}",
                "\"timeout\": 1",
                "\"type\": \"stdio\"",
                "\"n\": [null]",
            ],
        ]
    };
    members.push(
        proptest::sample::select(others[0].to_vec())
            .prop_map(str::to_owned)
            .boxed(),
    );
    members.push(
        proptest::sample::select(others[1].to_vec())
            .prop_map(str::to_owned)
            .boxed(),
    );
    let members = members.into_iter().collect::<Vec<_>>();
    (members, any::<u8>(), any::<bool>()).prop_map(move |(mut members, order, has_args)| {
        let rest = members.len();
        members.rotate_left(usize::from(order) % rest);
        members.retain(|member| has_args || !member.contains("args"));
        if order > 128 {
            members.swap(0, 1);
        }
        let separator = if is_toml {
            "\n"
        } else {
            [",", ",\n  ", ", ", ",\r\n\t"][usize::from(order) % 4]
        };
        members.join(separator)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_json_comes_back_to_the_byte(servers in proptest::collection::vec(server(false), 1..4)) {
        let servers: Vec<String> = servers
            .iter()
            .enumerate()
            .map(|(index, members)| format!("\"s{index}\": {{{members}}}"))
            .collect();
        assert_comes_back(&format!("// sk\n{{\"mcpServers\": {{\n{}}}}}\n", servers.join(",\n")))?;
    }

    #[test]
    fn any_toml_comes_back_to_the_byte(servers in proptest::collection::vec(server(true), 1..4)) {
        let servers: Vec<String> = servers
            .iter()
            .enumerate()
            .map(|(index, members)| format!("[mcp_servers.s{index}]\n{members}\n"))
            .collect();
        assert_comes_back(&servers.concat())?;
    }

    /// Whatever one slip of a hand makes of a configuration is refused, or wrapped and taken back.
    #[test]
    fn a_slip_of_the_hand_does_no_harm(
        is_toml in any::<bool>(),
        at in any::<prop::sample::Index>(),
        removed in 0..4_usize,
        put in "[\\[\\]{}\"',:= \\n#/*aé-]{0,3}",
    ) {
        let text = if is_toml {
            "[mcp_servers.é]\ncommand = 'npx' # c\nargs = ['-y', \"\"\"s\"\"\"]\n[mcp_servers.b]\nurl = 'u'\n[mcp_servers.c]\ncommand = 'checkpoint'\nargs = ['--', 'x']\n"
        } else {
            "{ // c\n \"servers\": {\"é\": {\"command\": \"npx\", \"args\": [\"-y\", /* c */ \"s\"]}, \"b\": {\"url\": \"u\"},\n\"c\": {\"command\": \"checkpoint\", \"args\": [\"--\", \"x\"]}}}\n"
        };
        let chars: Vec<char> = text.chars().collect();
        let at = at.index(chars.len());
        let rest = &chars[(at + removed).min(chars.len())..];
        let text: String = chars[..at].iter().copied().chain(put.chars()).chain(rest.iter().copied()).collect();
        match wrap_with(&text, &[], &[]) {
            Ok(plan) => {
                let _ = shown(&text, &plan);
                let taken_back = plan_undo(&plan.text);
                prop_assert!(taken_back.is_ok(), "{:?}\n{}", taken_back, text);
            }
            Err(why) => prop_assert!(
                !matches!(why, NoPlan::Unsafe),
                "{}", text
            ),
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "[\\[\\]{}\"',:= \\n#/*a-c\\\\]{0,40}") {
        let holder = format!("{{\"servers\": {{\"a\": {text}}}}}");
        for text in [&*text, &holder] {
            let _ = wrap_with(text, &[], &[]);
        }
    }
}

fn assert_comes_back(text: &str) -> Result<(), TestCaseError> {
    let Ok(wrapped) = wrap_with(text, &[], &[]) else {
        return Err(TestCaseError::fail(format!("no plan for\n{text}")));
    };
    let is_wrapped = |step: &Step| step.state == State::Wrapped;
    prop_assert!(wrapped.steps.iter().all(is_wrapped), "{:?}", wrapped.steps);
    prop_assert_eq!(&wrap(&wrapped.text).text, &wrapped.text);
    prop_assert_eq!(&undo(&wrapped.text).text, text);
    let back = undo(&wrapped.text);
    for said in [shown(text, &wrapped), shown(&wrapped.text, &back)] {
        prop_assert!(!said.contains("sk"), "{}", said);
    }
    Ok(())
}
