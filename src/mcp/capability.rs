//! What a question needs of the client that is to answer it, and what a client says that it can.
//!
//! In the stateless revision each request declares the client's capabilities in its `_meta`, before
//! it `initialize` did for the whole connection; what they mean is the same. An upstream must not
//! ask for what was not declared, and a question that is asked again from the journal is held to
//! that as well.
//!
//! Must not: know which question is stored, or refuse anything.
//!
//! Source: MCP 2026-07-28, `basic/patterns/mrtr` (server requirements, 6), `client/elicitation`
//! (capabilities), `schema` (`ClientCapabilities`).

use crate::json;

/// Something that a client declares, and that a question may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// To ask its user in a form.
    ElicitationForm,
    /// To send its user to an address.
    ElicitationUrl,
    /// To list its roots.
    Roots,
    /// To have a model answer.
    Sampling,
    /// To have a model answer that may call tools.
    SamplingTools,
}

impl Capability {
    const ALL: [Self; 5] = [
        Self::ElicitationForm,
        Self::ElicitationUrl,
        Self::Roots,
        Self::Sampling,
        Self::SamplingTools,
    ];

    /// Returns the members of the capabilities that lead to it, joined by a point.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ElicitationForm => "elicitation.form",
            Self::ElicitationUrl => "elicitation.url",
            Self::Roots => "roots",
            Self::Sampling => "sampling",
            Self::SamplingTools => "sampling.tools",
        }
    }

    fn is_declared_in(self, capabilities: &[u8]) -> bool {
        let member = |object, name| {
            json::last_member(object, name)
                .map(|member| member.value)
                .filter(|raw| json::is_object(raw))
        };
        let within = |outer, inner| member(member(capabilities, outer)?, inner);
        match self {
            // An empty object, as before there were modes, declares forms alone.
            Self::ElicitationForm => member(capabilities, "elicitation").is_some_and(|modes| {
                member(modes, "form").is_some() || member(modes, "url").is_none()
            }),
            Self::ElicitationUrl => within("elicitation", "url").is_some(),
            Self::Roots => member(capabilities, "roots").is_some(),
            Self::Sampling => member(capabilities, "sampling").is_some(),
            Self::SamplingTools => within("sampling", "tools").is_some(),
        }
    }
}

/// A set of capabilities. Empty where nothing was declared, or nothing that can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u8);

impl Capabilities {
    /// Reads a client's raw `capabilities`.
    #[must_use]
    pub fn declared(raw: &[u8]) -> Self {
        Capability::ALL
            .into_iter()
            .filter(|capability| capability.is_declared_in(raw))
            .collect()
    }

    /// Returns what the raw result of a call asks of its client. Requests of other methods, and
    /// modes that we do not know, count for nothing: their sense is not ours to judge.
    #[must_use]
    pub fn asked_for(result: &[u8]) -> Self {
        let Some(requests) = json::last_member(result, "inputRequests") else {
            return Self::default();
        };
        json::Members::new(requests.value)
            .flat_map(|request| asked_for_by(request.value))
            .flatten()
            .collect()
    }

    /// Returns those of these that `declared` lacks.
    #[must_use]
    pub const fn beyond(self, declared: Self) -> Self {
        Self(self.0 & !declared.0)
    }

    /// Returns whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns their names, such as `elicitation.url`.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Capability::ALL
            .into_iter()
            .filter(move |capability| self.0 & bit(*capability) != 0)
            .map(Capability::name)
    }
}

impl FromIterator<Capability> for Capabilities {
    fn from_iter<I: IntoIterator<Item = Capability>>(capabilities: I) -> Self {
        let bits = capabilities.into_iter().map(bit);
        Self(bits.fold(0, |all, bit| all | bit))
    }
}

const fn bit(capability: Capability) -> u8 {
    1 << capability as u8
}

/// Returns what one request asks of the client.
fn asked_for_by(request: &[u8]) -> [Option<Capability>; 2] {
    let member = |object, name| json::last_member(object, name).map(|member| member.value);
    let text = |raw| json::text(raw);
    let params = member(request, "params").unwrap_or(b"{}");
    match member(request, "method").and_then(text).as_deref() {
        Some("elicitation/create") => match member(params, "mode").map(text) {
            None => [Some(Capability::ElicitationForm), None],
            Some(mode) => match mode.as_deref() {
                Some("form") => [Some(Capability::ElicitationForm), None],
                Some("url") => [Some(Capability::ElicitationUrl), None],
                Some(_) | None => [None, None],
            },
        },
        Some("sampling/createMessage") => {
            let has_tools = ["tools", "toolChoice"]
                .iter()
                .any(|name| member(params, name).is_some());
            let tools = has_tools.then_some(Capability::SamplingTools);
            [Some(Capability::Sampling), tools]
        }
        Some("roots/list") => [Some(Capability::Roots), None],
        Some(_) | None => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(capabilities: Capabilities) -> Vec<&'static str> {
        capabilities.names().collect()
    }

    #[test]
    fn a_capability_is_declared_by_an_object() {
        for (raw, expected) in [
            ("{}", &[][..]),
            ("null", &[]),
            ("[]", &[]),
            ("\"elicitation\"", &[]),
            (r#"{"elicitation":true,"roots":null,"sampling":[]}"#, &[]),
            (r#"{"elicitation":{}}"#, &["elicitation.form"]),
            (r#"{"elicitation":{"form":{}}}"#, &["elicitation.form"]),
            (r#"{"elicitation":{"url":{}}}"#, &["elicitation.url"]),
            (
                r#"{"elicitation":{"url":{},"form":{"x":1}}}"#,
                &["elicitation.form", "elicitation.url"],
            ),
            (r#"{"elicitation":{"url":true}}"#, &["elicitation.form"]),
            (r#"{"roots":{"listChanged":true}}"#, &["roots"]),
            (r#"{"sampling":{}}"#, &["sampling"]),
            (r#"{"sampling":{"context":{}}}"#, &["sampling"]),
            (
                r#"{"s\u0061mpling":{"tools":{}}}"#,
                &["sampling", "sampling.tools"],
            ),
            (r#"{"sampling":{},"sampling":null}"#, &[]),
            (r#"{"experimental":{"roots":{}}}"#, &[]),
        ] {
            assert_eq!(
                names(Capabilities::declared(raw.as_bytes())),
                expected,
                "{raw}"
            );
        }
    }

    #[test]
    fn a_question_needs_what_its_requests_ask_for() {
        let asked = |requests: &str| {
            let raw = format!(r#"{{"resultType":"input_required","inputRequests":{requests}}}"#);
            names(Capabilities::asked_for(raw.as_bytes()))
        };
        for (requests, expected) in [
            ("{}", &[][..]),
            ("null", &[]),
            (r#"{"a":7,"b":{},"c":{"method":null}}"#, &[]),
            (r#"{"a":{"method":"x/own"}}"#, &[]),
            (
                r#"{"a":{"method":"elicitation/create"}}"#,
                &["elicitation.form"],
            ),
            (
                r#"{"a":{"method":"elicitation\/create","params":{"mode":"form"}}}"#,
                &["elicitation.form"],
            ),
            (
                r#"{"a":{"method":"elicitation/create","params":{"mode":"\u0075rl"}}}"#,
                &["elicitation.url"],
            ),
            (
                r#"{"a":{"method":"elicitation/create","params":{"mode":"x-voice"}}}"#,
                &[],
            ),
            (r#"{"a":{"method":"roots/list"}}"#, &["roots"]),
            (
                r#"{"a":{"method":"sampling/createMessage","params":{"maxTokens":1}}}"#,
                &["sampling"],
            ),
            (
                r#"{"a":{"method":"sampling/createMessage","params":{"toolChoice":{}}}}"#,
                &["sampling", "sampling.tools"],
            ),
            (
                r#"{"b":{"method":"roots/list"},"a":{"method":"elicitation/create"}}"#,
                &["elicitation.form", "roots"],
            ),
        ] {
            assert_eq!(asked(requests), expected, "{requests}");
        }
        assert!(Capabilities::asked_for(b"{\"requestState\":\"s\"}").is_empty());
        assert!(Capabilities::asked_for(b"7").is_empty());
    }

    #[test]
    fn what_was_not_declared_is_told() {
        let asked: Capabilities = [Capability::Roots, Capability::ElicitationUrl]
            .into_iter()
            .collect();
        let declared = Capabilities::declared(br#"{"roots":{},"sampling":{}}"#);
        assert_eq!(names(asked.beyond(declared)), ["elicitation.url"]);
        assert!(asked.beyond(asked).is_empty());
        assert_eq!(asked.beyond(Capabilities::default()), asked);
    }
}
