//! Rows of any content for the readers of rows, as damage or an attacker may leave them. For tests
//! alone: no release has it.
//!
//! A row begins as one that this program could have written, and the input replaces some of its
//! columns by values of any type: so a reader is led past its first column.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};

use super::{follow, reader, sqlite};

thread_local! {
    static DB: Connection = Connection::open_in_memory().expect("a database in memory opens");
}

/// Columns that are replaced at most: SQLite takes so many arguments of one function, and more.
const REPLACED_MAX: usize = 100;

type Read = fn(&Row<'_>);

/// What each kind of row holds, as SQL, and who reads it.
const KINDS: [(&[&str], Read); 7] = [
    (
        &[
            "1",
            "1",
            "'echo'",
            "'COMPLETED'",
            "1",
            "0",
            "1",
            "1",
            "'s1'",
            "zeroblob(32)",
            "0",
            "1",
            "NULL",
            "'timed_out'",
            "'timeout'",
            "0",
            "'upstream'",
            "zeroblob(32)",
            "0",
            "'k'",
            "'run'",
            "'w'",
            "'id'",
            "zeroblob(32)",
        ],
        reader::read_any_entry,
    ),
    (
        &[
            "1",
            "'COMPLETED'",
            "0",
            "'upstream'",
            "0",
            "zeroblob(32)",
            "2",
            "x'7b7d'",
        ],
        |row| drop(sqlite::read_outcome(row)),
    ),
    (
        &[
            "1",
            "0",
            "'refused'",
            "1",
            "1",
            "1",
            "1",
            "'E'",
            "'detail'",
            "'key'",
            "1",
            "0",
        ],
        |row| drop(sqlite::read_event(row)),
    ),
    (
        &[
            "1",
            "0",
            "'refused'",
            "1",
            "1",
            "1",
            "1",
            "'E'",
            "'detail'",
            "1",
            "0",
            "'echo'",
            "1",
        ],
        |row| drop(follow::read_event(row)),
    ),
    (&["1", "1", "0", "1", "1", "7"], |row| {
        drop(sqlite::read_branch(row, 0));
    }),
    (
        &[
            "1",
            "1",
            "0",
            "1",
            "0",
            "x'7b7d'",
            "2",
            "0",
            "'2025-11-25'",
            "''",
            "'00-1'",
            "1",
            "'plain'",
            "x'00'",
        ],
        |row| drop(reader::read_attempt(row)),
    ),
    (&["1", "1", "1"], |row| drop(reader::read_line(row))),
];

/// Reads a row as the journal's readers do. The input's first byte is the kind of row; then come
/// columns, each a number, a type and a value.
///
/// # Panics
///
/// A reader panics: a bug.
pub fn read(mut input: &[u8]) {
    let input = &mut input;
    let (base, read) = KINDS[usize::from(byte(input)) % KINDS.len()];
    let mut columns: Vec<String> = base.iter().map(|&sql| sql.to_owned()).collect();
    let mut values: Vec<Value> = Vec::new();
    while !input.is_empty() && values.len() < REPLACED_MAX {
        let at = usize::from(byte(input)) % columns.len();
        let (value, sql) = column(input);
        values.push(value);
        // Text of any bytes can't be bound as text.
        columns[at] = sql.replace('?', &format!("?{}", values.len()));
    }
    // A parameter that was replaced again must still be in the statement.
    let all: Vec<String> = (1..=values.len()).map(|at| format!("?{at}")).collect();
    let unused = match all.as_slice() {
        [] => String::new(),
        all => format!(", coalesce({}, NULL)", all.join(", ")),
    };
    let sql = format!("SELECT {}{unused}", columns.join(", "));
    DB.with(|db| {
        let mut statement = db.prepare(&sql).expect("the columns are SQL");
        statement
            .query_row(params_from_iter(&values), |row| {
                read(row);
                Ok(())
            })
            .expect("any values make a row");
    });
}

fn byte(input: &mut &[u8]) -> u8 {
    let Some((first, rest)) = input.split_first() else {
        return 0;
    };
    *input = rest;
    *first
}

fn piece<'a>(input: &mut &'a [u8], size: usize) -> &'a [u8] {
    let (piece, rest) = input.split_at(size.min(input.len()));
    *input = rest;
    piece
}

fn column(input: &mut &[u8]) -> (Value, &'static str) {
    let eight = |input: &mut &[u8]| {
        let mut bytes = [0; 8];
        let piece = piece(input, 8);
        bytes[..piece.len()].copy_from_slice(piece);
        bytes
    };
    match byte(input) % 7 {
        0 => (Value::Null, "?"),
        1 => (Value::Integer(i64::from_le_bytes(eight(input))), "?"),
        2 => (Value::Integer(i64::from(byte(input)) - 3), "?"),
        3 => (Value::Real(f64::from_le_bytes(eight(input))), "?"),
        4 => (Value::Blob(vec![byte(input); 32]), "?"),
        kind => {
            let size = usize::from(byte(input));
            let bytes = piece(input, size).to_vec();
            let sql = if kind == 5 { "CAST(? AS TEXT)" } else { "?" };
            (Value::Blob(bytes), sql)
        }
    }
}
