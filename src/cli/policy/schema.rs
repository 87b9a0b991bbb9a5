//! `checkpoint policy schema`.
//!
//! The schema is written by hand, so that its words are for the person who writes a policy; tests
//! hold it to the fields that are really read.

use clap::Args;

use crate::cli::error::CliError;
use crate::cli::exit::Exit;
use crate::cli::output::Output;

/// The schema's text.
pub(super) const SCHEMA: &str = include_str!("schema.json");

/// Print the JSON Schema of policy files, for editors
///
/// Tell an editor that knows TOML with a first line in the policy: #:schema ./policy.schema.json
#[derive(Args, Debug)]
pub(super) struct SchemaArgs {}

pub(super) fn run(_args: &SchemaArgs) -> Result<Exit, CliError> {
    Output::plain().data(SCHEMA)?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rules::policy::{FIELDS, Policy};

    fn schema() -> Value {
        serde_json::from_str(SCHEMA).expect("the schema is JSON")
    }

    #[test]
    fn the_schema_has_the_fields_that_are_read() {
        let schema = schema();
        let fields = schema["definitions"]["policy"]["properties"]
            .as_object()
            .unwrap();
        let mut names: Vec<_> = FIELDS.iter().map(|field| field.name).collect();
        names.sort_unstable();
        assert_eq!(fields.keys().collect::<Vec<_>>(), names);
        for field in FIELDS {
            let described = &fields[field.name];
            assert!(described["description"].is_string(), "{}", field.name);
            let default = (field.show)(&Policy::default()).unwrap_or(Value::Null);
            assert_eq!(described["default"], default, "{}", field.name);
            let words = described["enum"].as_array().cloned().unwrap_or_default();
            assert_eq!(json!(words), json!(field.words), "{}", field.name);
        }
    }

    #[test]
    fn no_table_takes_what_it_does_not_know() {
        let schema = schema();
        for table in [
            &schema,
            &schema["definitions"]["policy"],
            &schema["definitions"]["pass_key"],
            &schema["definitions"]["reconcile"],
        ] {
            assert_eq!(table["additionalProperties"], json!(false));
        }
        let tools = &schema["properties"]["tools"]["additionalProperties"];
        assert_eq!(tools["$ref"], "#/definitions/policy");
    }
}
