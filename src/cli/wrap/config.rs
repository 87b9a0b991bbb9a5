//! A client's configuration as text: which servers it names, and where each member stands.
//!
//! Told by what the text says, not by its file's name: what begins as an object or with a comment
//! of JSON's is JSON with comments, all else is TOML. Pure: text in, places out. Nothing is written here, and an error never repeats the text,
//! which holds secrets.

use std::ops::Range;

use jsonc_parser::ast::{self, Object};
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use toml::de::{DeTable, DeValue};

/// The members that hold servers: of most clients, of VS Code, of Zed.
pub(super) const JSON_HOLDERS: [&str; 3] = ["mcpServers", "servers", "context_servers"];

/// The table that holds servers: of Codex.
pub(super) const TOML_HOLDER: &str = "mcp_servers";

/// How the text is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// JSON with comments and trailing commas.
    Jsonc,
    /// TOML.
    Toml,
}

/// A configuration, with its servers in the order of the text.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) syntax: Syntax,
    /// Whether a member that holds servers is there at all.
    pub(super) has_holder: bool,
    pub(super) servers: Vec<Server>,
}

/// A server and its members.
#[derive(Debug)]
pub(super) struct Server {
    /// The member that holds it.
    pub(super) holder: &'static str,
    pub(super) name: String,
    /// `None` where it is no object.
    pub(super) members: Option<Vec<Member>>,
}

/// One member of a server.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// Where its key begins.
    pub(super) start: usize,
    pub(super) value: Value,
}

/// A value and where it stands, with its quotes or brackets.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) range: Range<usize>,
    pub(super) kind: Kind,
}

/// What of a value matters here.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Text(String),
    Flag(bool),
    List(Vec<Value>),
    Other,
}

/// Why a text can't be read, and where; both count from 1, columns in characters.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) why: String,
}

impl Config {
    /// Reads a text without its byte order mark.
    ///
    /// # Errors
    ///
    /// The first place at which it is neither JSON with comments nor TOML.
    pub(super) fn parse(text: &str) -> Result<Self, Fault> {
        let start = text.trim_start();
        if ["{", "//", "/*"].iter().any(|mark| start.starts_with(mark)) {
            Self::parse_jsonc(text)
        } else {
            Self::parse_toml(text)
        }
    }

    fn parse_jsonc(text: &str) -> Result<Self, Fault> {
        // What editors and clients read as JSON with comments, and nothing looser.
        let options = ParseOptions {
            allow_comments: true,
            allow_trailing_commas: true,
            allow_loose_object_property_names: false,
            allow_missing_commas: false,
            allow_single_quoted_strings: false,
            allow_hexadecimal_numbers: false,
            allow_unary_plus_numbers: false,
            allow_bare_decimal_point_numbers: false,
            allow_non_finite_numbers: false,
            allow_extended_string_escapes: false,
        };
        let parsed = parse_to_ast(text, &CollectOptions::default(), &options)
            .map_err(|error| Fault::at(text, error.range().start, error.kind().to_string()))?;
        let mut config = Self {
            syntax: Syntax::Jsonc,
            has_holder: false,
            servers: Vec::new(),
        };
        let Some(ast::Value::Object(root)) = &parsed.value else {
            return Ok(config);
        };
        for property in &root.properties {
            let name = property.name.as_str();
            let (Some(holder), ast::Value::Object(servers)) = (
                JSON_HOLDERS.into_iter().find(|holder| *holder == name),
                &property.value,
            ) else {
                continue;
            };
            config.has_holder = true;
            config
                .servers
                .extend(servers.properties.iter().map(|server| Server {
                    holder,
                    name: server.name.as_str().to_owned(),
                    members: match &server.value {
                        ast::Value::Object(object) => Some(json_members(object)),
                        _ => None,
                    },
                }));
        }
        Ok(config)
    }

    fn parse_toml(text: &str) -> Result<Self, Fault> {
        let root = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(text.len(), |span| span.start);
            Fault::at(text, at, error.message().to_owned())
        })?;
        let mut config = Self {
            syntax: Syntax::Toml,
            has_holder: false,
            servers: Vec::new(),
        };
        if let Some(DeValue::Table(servers)) =
            root.get_ref().get(TOML_HOLDER).map(|held| held.get_ref())
        {
            config.has_holder = true;
            let mut found: Vec<(usize, Server)> = servers
                .iter()
                .map(|(name, value)| {
                    let server = Server {
                        holder: TOML_HOLDER,
                        name: name.get_ref().to_string(),
                        members: match value.get_ref() {
                            DeValue::Table(table) => Some(toml_members(table)),
                            _ => None,
                        },
                    };
                    (name.span().start, server)
                })
                .collect();
            found.sort_by_key(|(start, _)| *start);
            config.servers = found.into_iter().map(|(_, server)| server).collect();
        }
        Ok(config)
    }
}

impl Fault {
    fn at(text: &str, offset: usize, why: String) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            why: first_line(&why),
        }
    }
}

/// Returns the first line of what a parser says, in the middle of a sentence.
fn first_line(why: &str) -> String {
    let mut line = why.lines().next().unwrap_or_default().to_owned();
    if let Some(first) = line.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    line
}

fn json_members(object: &Object<'_>) -> Vec<Member> {
    let member = |property: &ast::ObjectProp<'_>| Member {
        name: property.name.as_str().to_owned(),
        start: property.range.start,
        value: json_value(&property.value),
    };
    object.properties.iter().map(member).collect()
}

fn json_value(value: &ast::Value<'_>) -> Value {
    let (range, kind) = match value {
        ast::Value::StringLit(text) => (text.range, Kind::Text(text.value.to_string())),
        ast::Value::BooleanLit(flag) => (flag.range, Kind::Flag(flag.value)),
        ast::Value::Array(list) => {
            let elements = list.elements.iter().map(json_value).collect();
            (list.range, Kind::List(elements))
        }
        ast::Value::NumberLit(number) => (number.range, Kind::Other),
        ast::Value::Object(object) => (object.range, Kind::Other),
        ast::Value::NullKeyword(null) => (null.range, Kind::Other),
    };
    Value {
        range: range.start..range.end,
        kind,
    }
}

fn toml_members(table: &DeTable<'_>) -> Vec<Member> {
    let mut members: Vec<Member> = table
        .iter()
        .map(|(name, value)| Member {
            name: name.get_ref().to_string(),
            start: name.span().start,
            value: toml_value(value.span(), value.get_ref()),
        })
        .collect();
    members.sort_by_key(|member| member.start);
    members
}

fn toml_value(range: Range<usize>, value: &DeValue<'_>) -> Value {
    let kind = match value {
        DeValue::String(text) => Kind::Text(text.to_string()),
        DeValue::Boolean(flag) => Kind::Flag(*flag),
        DeValue::Array(list) => Kind::List(
            list.iter()
                .map(|element| toml_value(element.span(), element.get_ref()))
                .collect(),
        ),
        DeValue::Integer(_) | DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Table(_) => {
            Kind::Other
        }
    };
    Value { range, kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let config = Config::parse(text).unwrap();
        let name = |server: &Server| format!("{}.{}", server.holder, server.name);
        config.servers.iter().map(name).collect()
    }

    #[test]
    fn shapes_are_told_by_content() {
        let inner = r#"{"b": {"command": "x"}, "a": {"command": "y"}}"#;
        for holder in JSON_HOLDERS {
            assert_eq!(
                names(&format!("// c\n{{\"inputs\": [], \"{holder}\": {inner},}}")),
                [format!("{holder}.b"), format!("{holder}.a")]
            );
        }
        assert_eq!(
            names("model = 'm'\n[mcp_servers.b]\ncommand = 'x'\n[mcp_servers.a]\ncommand = 'y'\n"),
            ["mcp_servers.b", "mcp_servers.a"]
        );
        for none in ["", "{}", "{\"servers\": 1}", "a = 1", "# c"] {
            let config = Config::parse(none).unwrap();
            assert!(!config.has_holder && config.servers.is_empty(), "{none}");
        }
        assert!(Config::parse("{\"servers\": {}}").unwrap().has_holder);
    }

    #[test]
    fn a_fault_has_its_place_and_none_of_the_text() {
        let fault =
            Config::parse("{\n  \"mcpServers\": {\n    \"é\": {\"env\": {\"K\" \"sk-live\"}}}}")
                .unwrap_err();
        assert_eq!((fault.line, fault.column), (3, 23));
        assert!(!fault.why.contains("sk-live"), "{fault:?}");
        let fault = Config::parse("[mcp_servers.a]\nenv = { K = sk-live }\n").unwrap_err();
        assert_eq!((fault.line, fault.column), (2, 13));
        assert!(!fault.why.contains("sk-live"), "{fault:?}");
        for odd in ["{'a': 1}", "{a: 1}", "{\"a\": 0x1}", "{\"a\": 1 \"b\": 2}"] {
            assert!(Config::parse(odd).is_err(), "{odd}");
        }
        let deep = "{\"a\":".repeat(100_000);
        assert!(Config::parse(&deep).is_err());
        let deep = format!("a = {}", "[".repeat(100_000));
        assert!(Config::parse(&deep).is_err());
    }

    #[test]
    fn each_value_stands_where_it_is_said_to_stand() {
        for (text, command, args) in [
            (
                "{\"servers\": {\"a\": {\"command\" : \"n\\u0070x\", // c\n\"args\": [ \"-y\" ]}}}",
                "\"n\\u0070x\"",
                "[ \"-y\" ]",
            ),
            (
                "mcp_servers.a.command = '''n'px'''\nmcp_servers.a.args = [ '-y' ]",
                "'''n'px'''",
                "[ '-y' ]",
            ),
            (
                "[mcp_servers]\na = { command = 'npx', args = [] }",
                "'npx'",
                "[]",
            ),
        ] {
            let config = Config::parse(text).unwrap();
            let members = config.servers[0].members.as_ref().unwrap();
            assert_eq!(&text[members[0].value.range.clone()], command);
            assert_eq!(&text[members[1].value.range.clone()], args);
            assert!(
                text[members[0].start..]
                    .trim_start_matches('"')
                    .starts_with("command")
            );
        }
    }
}
