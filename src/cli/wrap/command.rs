//! What a server of a configuration is to `wrap`: a command to stand before, one that is wrapped
//! already, or something to leave alone. Pure.

use std::path::Path;

use super::config::{Kind, Member, Server, Value};
use crate::cli::parse_proxy;

/// Members that hold a remote server's address.
const ADDRESSES: [&str; 4] = ["url", "serverUrl", "httpUrl", "server_url"];

/// Types of servers that are remote.
const REMOTE_TYPES: [&str; 7] = [
    "http",
    "sse",
    "streamable-http",
    "streamableHttp",
    "streamable_http",
    "ws",
    "websocket",
];

/// A command as a client starts it.
#[derive(Debug)]
pub(super) struct Command<'c> {
    pub(super) member: &'c Member,
    pub(super) program: &'c str,
    /// The arguments' member and its elements; `None` where there is no such member.
    pub(super) list: Option<(&'c Member, &'c [Value])>,
    pub(super) args: Vec<&'c str>,
}

/// What stands behind a proxy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Upstream {
    /// What comes after the `--`, which is this argument.
    Argv { dashes: usize },
    /// A shell command.
    Shell(String),
}

/// What a server is.
#[derive(Debug)]
pub(super) enum Judged<'c> {
    /// It can be wrapped.
    Plain(Command<'c>),
    /// A proxy stands before it.
    Wrapped {
        command: Command<'c>,
        /// Or why it can't be told.
        upstream: Result<Upstream, String>,
        journal: Option<String>,
    },
    /// It is left alone, and this is why.
    Unfit(String),
}

/// Tells what a server is, where `program` is this very program as a configuration would name it.
pub(super) fn judge<'c>(server: &'c Server, program: &str) -> Judged<'c> {
    let Some(members) = &server.members else {
        return Judged::Unfit("it is no object with members".to_owned());
    };
    for name in ["command", "args"] {
        if members.iter().filter(|member| member.name == name).count() > 1 {
            return Judged::Unfit(format!("its '{name}' stands twice"));
        }
    }
    let command = match command(members) {
        Ok(command) => command,
        Err(why) => return Judged::Unfit(why),
    };
    if is_proxy(&command, program) {
        return wrapped(command);
    }
    if is_disabled(members) {
        return Judged::Unfit("it is disabled".to_owned());
    }
    if let Some(address) = address(members) {
        return Judged::Unfit(remote(address));
    }
    Judged::Plain(command)
}

/// Returns a server's command, whether or not it can be wrapped.
pub(super) fn of(server: &Server) -> Option<Command<'_>> {
    command(server.members.as_ref()?).ok()
}

fn find<'c>(members: &'c [Member], name: &str) -> Option<&'c Member> {
    members.iter().find(|member| member.name == name)
}

fn command(members: &[Member]) -> Result<Command<'_>, String> {
    let Some(member) = find(members, "command") else {
        return Err(address(members).map_or_else(
            || "it has no 'command'".to_owned(),
            // Most have no command for this reason.
            remote,
        ));
    };
    let program = match &member.value.kind {
        Kind::Text(program) if !program.is_empty() => program,
        Kind::Text(_) => return Err("its 'command' is empty".to_owned()),
        _ => return Err("its 'command' is no text".to_owned()),
    };
    let Some(list) = find(members, "args") else {
        return Ok(Command {
            member,
            program,
            list: None,
            args: Vec::new(),
        });
    };
    let no_list = || "its 'args' are no list of texts".to_owned();
    let Kind::List(elements) = &list.value.kind else {
        return Err(no_list());
    };
    let text = |element: &'_ Value| match &element.kind {
        Kind::Text(_) => Ok(()),
        _ => Err(no_list()),
    };
    elements.iter().try_for_each(text)?;
    let args = elements.iter().filter_map(|element| match &element.kind {
        Kind::Text(text) => Some(&**text),
        _ => None,
    });
    Ok(Command {
        member,
        program,
        list: Some((list, elements)),
        args: args.collect(),
    })
}

/// Returns the member that says that a server is remote.
fn address(members: &[Member]) -> Option<&str> {
    let named = |member: &&Member| ADDRESSES.contains(&&*member.name);
    let typed = |member: &&Member| {
        let is_remote =
            |kind: &Kind| matches!(kind, Kind::Text(text) if REMOTE_TYPES.contains(&&**text));
        ["type", "transport"].contains(&&*member.name) && is_remote(&member.value.kind)
    };
    let found = members.iter().find(|member| named(member) || typed(member));
    found.map(|member| &*member.name)
}

fn remote(member: &str) -> String {
    format!("it is remote ('{member}'), and checkpoint stands before what is started by a command")
}

fn is_disabled(members: &[Member]) -> bool {
    let is = |name: &str, wanted: bool| {
        find(members, name)
            .is_some_and(|member| matches!(member.value.kind, Kind::Flag(flag) if flag == wanted))
    };
    is("disabled", true) || is("enabled", false)
}

/// Tells whether a command runs this program as a proxy, and not one of its commands, such as the
/// demo's upstream.
fn is_proxy(command: &Command<'_>, program: &str) -> bool {
    let name = Path::new(command.program).file_name();
    let is_own = command.program == program
        || name.is_some_and(|name| name == "checkpoint" || name == "checkpoint.exe");
    is_own && command.args.first().is_none_or(|arg| arg.starts_with('-'))
}

fn wrapped(command: Command<'_>) -> Judged<'_> {
    let run = parse_proxy(std::iter::once("checkpoint").chain(command.args.iter().copied()));
    let mut journal = None;
    let upstream = match run {
        Err(_) => Err("this version can't read its flags".to_owned()),
        Ok(run) => {
            let proxy = run.proxy;
            journal = proxy
                .journal
                .map(|path| path.to_string_lossy().into_owned());
            // No flag takes `--` for its value, so the first one is the one.
            let dashes = command.args.iter().position(|arg| *arg == "--");
            match (proxy.upstream_cmd, dashes) {
                (Some(shell), None) if !shell.trim().is_empty() => Ok(Upstream::Shell(shell)),
                (None, Some(dashes))
                    if command
                        .args
                        .get(dashes + 1)
                        .is_some_and(|arg| !arg.is_empty()) =>
                {
                    Ok(Upstream::Argv { dashes })
                }
                (Some(_), Some(_)) => {
                    Err("it has both '--upstream-cmd' and '-- PROGRAM'".to_owned())
                }
                _ => Err("its upstream does not stand in 'args'".to_owned()),
            }
        }
    };
    Judged::Wrapped {
        command,
        upstream,
        journal,
    }
}

/// Returns the words of a shell command, where a shell would make just these words of it; else the
/// shell and the command.
pub(super) fn words(shell: &str) -> Vec<String> {
    plain_words(shell)
        .unwrap_or_else(|| vec!["/bin/sh".to_owned(), "-c".to_owned(), shell.to_owned()])
}

fn plain_words(shell: &str) -> Option<Vec<String>> {
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = shell.chars();
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        end if end == c => break,
                        '$' | '`' | '\\' | '!' if c == '"' => return None,
                        inner => word.push(inner),
                    }
                }
            }
            c if c.is_alphanumeric() || "/._-+@%,:=^".contains(c) => {
                word.get_or_insert_default().push(c);
            }
            // Whatever else means something to a shell, or may.
            _ => return None,
        }
    }
    words.extend(word);
    // A first word with `=` sets a variable.
    let first = words.first()?;
    (!first.is_empty() && !first.contains('=')).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::*;

    fn judged(server: &str) -> String {
        let text = format!("{{\"servers\": {{\"a\": {server}}}}}");
        let config = Config::parse(&text).unwrap();
        match judge(&config.servers[0], "/opt/bin/cp") {
            Judged::Plain(command) => format!("plain {} {:?}", command.program, command.args),
            Judged::Wrapped {
                upstream, journal, ..
            } => format!("{upstream:?} {}", journal.unwrap_or_default()),
            Judged::Unfit(why) => why,
        }
    }

    #[test]
    fn what_can_be_wrapped() {
        for (server, expected) in [
            (r#"{"command": "x", "type": "stdio"}"#, "plain x []"),
            (r#"{"args": ["1"], "command": "x"}"#, "plain x [\"1\"]"),
            (
                r#"{"command": "checkpoint", "args": ["demo", "upstream"]}"#,
                "plain checkpoint [\"demo\", \"upstream\"]",
            ),
            (r#"{"command": "x", "disabled": true}"#, "it is disabled"),
            (r#"{"command": "x", "enabled": false}"#, "it is disabled"),
            (
                r#"{"command": "x", "enabled": true, "disabled": false}"#,
                "plain x []",
            ),
            (r#"{"source": "extension"}"#, "it has no 'command'"),
            (r#"{"command": ""}"#, "its 'command' is empty"),
            (r#"{"command": {"path": "x"}}"#, "its 'command' is no text"),
            (
                r#"{"command": "x", "command": "y"}"#,
                "its 'command' stands twice",
            ),
            (
                r#"{"command": "x", "args": "y"}"#,
                "its 'args' are no list of texts",
            ),
            (
                r#"{"command": "x", "args": [1]}"#,
                "its 'args' are no list of texts",
            ),
            ("7", "it is no object with members"),
        ] {
            assert_eq!(judged(server), expected, "{server}");
        }
        for remote in [
            r#"{"url": "https://h/mcp"}"#,
            r#"{"serverUrl": "https://h/mcp"}"#,
            r#"{"type": "sse", "command": "x"}"#,
            r#"{"type": "http"}"#,
        ] {
            assert!(judged(remote).starts_with("it is remote ("), "{remote}");
        }
    }

    #[test]
    fn what_is_wrapped() {
        for (server, expected) in [
            (
                r#"{"command": "/a/checkpoint", "args": ["--journal", "/j", "--", "x", "--", "y"]}"#,
                "Ok(Argv { dashes: 2 }) /j",
            ),
            (
                r#"{"command": "/opt/bin/cp", "args": ["--", "x"], "disabled": true}"#,
                "Ok(Argv { dashes: 0 }) ",
            ),
            (
                r#"{"command": "checkpoint", "args": ["--upstream-cmd=a b", "--journal=/j"]}"#,
                "Ok(Shell(\"a b\")) /j",
            ),
            (
                r#"{"command": "checkpoint", "args": ["--no-such"]}"#,
                "Err(\"this version can't read its flags\") ",
            ),
            (
                r#"{"command": "checkpoint"}"#,
                "Err(\"its upstream does not stand in 'args'\") ",
            ),
            (
                r#"{"command": "checkpoint", "args": ["--", ""]}"#,
                "Err(\"its upstream does not stand in 'args'\") ",
            ),
            (
                r#"{"command": "checkpoint", "args": ["--upstream-cmd", "a", "--", "b"]}"#,
                "Err(\"it has both '--upstream-cmd' and '-- PROGRAM'\") ",
            ),
        ] {
            assert_eq!(judged(server), expected, "{server}");
        }
    }

    #[test]
    fn a_shell_command_is_taken_apart_only_where_a_shell_would_do_the_same() {
        assert_eq!(
            words("npx -y  srv --flag 'a b'"),
            ["npx", "-y", "srv", "--flag", "a b"]
        );
        assert_eq!(words("x \"a b\"'c'd \"\""), ["x", "a bcd", ""]);
        for shell in [
            "cd srv && exec ./server",
            "srv --token \"$TOKEN\"",
            "srv *.json",
            "~/bin/srv",
            "K=v srv",
            "srv a\\ b",
            "srv 'open",
            "srv # c",
            "srv\nsrv2",
        ] {
            assert_eq!(words(shell), ["/bin/sh", "-c", shell]);
        }
    }
}
