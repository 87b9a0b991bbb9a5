//! What is wrong with a row that can't be read, in words for people.

use rusqlite::{Error, Row};

/// Returns what is wrong, with the column's name where one is to blame.
pub(in crate::journal) fn words(row: &Row<'_>, error: &Error) -> String {
    let column = |index: usize| {
        let name = row.as_ref().column_name(index);
        name.map_or_else(|_| format!("column {index}"), str::to_owned)
    };
    match error {
        // Every column that is asked for is there: the index stands for a blob of a wrong length.
        Error::InvalidColumnIndex(index) => format!("{} has a wrong length", column(*index)),
        Error::InvalidColumnType(index, _, found) => {
            format!("{} is of a wrong type ({found})", column(*index))
        }
        Error::IntegralValueOutOfRange(index, value) => {
            format!("{} is {value}, which is out of range", column(*index))
        }
        Error::InvalidColumnName(word) => format!("no release writes '{word}' there"),
        other => other.to_string(),
    }
}
