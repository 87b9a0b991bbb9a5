//! The only way to standard output for commands.
//!
//! Data goes to stdout, in one piece, and talk to stderr. What is written depends on who reads: a
//! terminal gets colour, its own width and relative times; a pipe gets plain columns and ISO 8601
//! times in UTC. A reader that goes away (`| head`) ends the command quietly. The proxy must not
//! use this file, since its stdout belongs to MCP.

use std::io::{self, IsTerminal as _, Write as _};

use anstyle::Style;
use clap::ValueEnum;
use comfy_table::{Attribute, Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement};
use comfy_table::{Row, Table, Width};
use serde::Serialize;

use super::error::CliError;
use super::escape::{escape, escape_json};
use super::json::{JsonLines, LongDocument, json_line, pretty};
use super::view::Time;

/// Version of the JSON documents and lines; it rises when a member changes its meaning or goes
/// away. `docs/output.md` lists the members.
pub const SCHEMA_VERSION: u32 = 1;

/// In which form a command prints what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tables and sentences for people.
    Text,
    /// One JSON document.
    Json,
    /// JSON Lines: one object a line.
    JsonLines,
}

/// When colour is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR or TERM=dumb says otherwise
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How text is laid out for whoever reads it. Plain data, so that rendering stays pure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether escape sequences for colour are wanted.
    pub colour: bool,
    /// Columns to fit into; `None` for no limit.
    pub width: Option<u16>,
    /// How times are told.
    pub times: Times,
}

/// How times are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// `3m ago`, seen from this moment.
    Since(Time),
    /// `2026-11-29T18:01:12.304511Z`.
    Iso,
}

impl Look {
    /// The look of a pipe.
    pub const PIPE: Self = Self {
        colour: false,
        width: None,
        times: Times::Iso,
    };

    /// Returns a time in this look.
    #[must_use]
    pub fn time(&self, time: Time) -> String {
        match self.times {
            Times::Since(now) => time.relative_to(now),
            Times::Iso => time.to_string(),
        }
    }

    /// Returns a time in full, with how long ago it was where a person reads.
    #[must_use]
    pub fn time_in_full(&self, time: Time) -> String {
        match self.times {
            Times::Since(now) => format!("{time} ({})", time.relative_to(now)),
            Times::Iso => time.to_string(),
        }
    }

    /// Returns `text` in `style`, or as it is where no colour is wanted.
    #[must_use]
    pub fn paint(&self, text: &str, style: Style) -> String {
        if self.colour {
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }
}

/// Standard output, and how it likes its text.
#[derive(Debug)]
pub struct Output {
    look: Look,
}

impl Output {
    /// Returns an output whose look follows `choice`, the environment and the terminal.
    #[must_use]
    pub fn new(choice: ColorChoice) -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        let colour = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never
            }
        };
        let look = Look {
            colour,
            width: is_terminal.then(terminal_width).flatten(),
            times: if is_terminal {
                Times::Since(Time::now())
            } else {
                Times::Iso
            },
        };
        Self { look }
    }

    /// Returns an output that decides by itself.
    #[must_use]
    pub fn auto() -> Self {
        Self::new(ColorChoice::Auto)
    }

    /// Returns an output for bytes that are what they are, wherever they go.
    #[must_use]
    pub fn plain() -> Self {
        Self { look: Look::PIPE }
    }

    /// Returns the look for rendering.
    #[must_use]
    pub fn look(&self) -> &Look {
        &self.look
    }

    /// Writes data; escape sequences in it are taken out where no colour is wanted.
    ///
    /// # Errors
    ///
    /// [`Kind::OutputClosed`](super::error::Kind::OutputClosed) if nobody reads any more, else a
    /// failure.
    pub fn data(&self, text: &str) -> Result<(), CliError> {
        if self.look.colour {
            self.bytes(text.as_bytes())
        } else {
            self.bytes(anstream::adapter::strip_str(text).to_string().as_bytes())
        }
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    ///
    /// As [`Output::data`].
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }

    /// Writes one JSON document and a line end. Its first member must be `schema_version`.
    ///
    /// # Errors
    ///
    /// As [`Output::data`].
    pub fn json(&self, document: &impl Serialize) -> Result<(), CliError> {
        let mut text = pretty(document)?;
        text.push('\n');
        self.bytes(escape_json(&text).as_bytes())
    }

    /// Writes one JSON document in the form that was asked for, or what `text` makes of it.
    ///
    /// # Errors
    ///
    /// As [`Output::data`].
    pub fn document(
        &self,
        form: Form,
        document: &impl Serialize,
        text: impl FnOnce(&Look) -> String,
    ) -> Result<(), CliError> {
        match form {
            Form::Text => self.data(&text(&self.look)),
            Form::Json => self.json(document),
            Form::JsonLines => self.bytes(json_line(document)?.as_bytes()),
        }
    }

    /// Returns a writer of a document whose first list may be longer than memory: the same bytes
    /// as [`Output::json`] of the whole.
    #[must_use]
    pub fn long_document(&self, list: &'static str) -> LongDocument<'_> {
        LongDocument::new(self, list)
    }

    /// Returns a writer of JSON Lines.
    #[must_use]
    pub fn lines(&self) -> JsonLines<'_> {
        JsonLines::new(self)
    }

    /// Waits, and returns early with whether whoever reads standard output has gone away.
    #[must_use]
    pub fn is_closed_within(&self, pause: std::time::Duration) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use std::os::fd::AsFd as _;
        let stdout = io::stdout();
        let mut watched = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        let timeout = PollTimeout::try_from(pause).unwrap_or(PollTimeout::MAX);
        matches!(poll(&mut watched, timeout), Ok(1..))
    }

    /// Writes one line of talk to stderr. It is lost if stderr is closed.
    pub fn note(&self, text: &str) {
        talk(text);
    }
}

/// Writes one line of talk to stderr. It is lost if stderr is closed.
pub fn talk(text: &str) {
    let _ = writeln!(io::stderr().lock(), "checkpoint: {}", escape(text));
}

/// Returns the terminal's columns; a pseudo-terminal that nobody sized says 0, which is no width.
fn terminal_width() -> Option<u16> {
    Table::new().width().filter(|width| *width > 0)
}

/// What a cell's colour says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing in particular.
    #[default]
    Plain,
    /// Less important.
    Faint,
    /// As it should be.
    Good,
    /// Went wrong.
    Bad,
    /// Somebody must look.
    Alarm,
}

impl Tone {
    /// Returns the style of this tone.
    #[must_use]
    pub fn style(self) -> Style {
        use anstyle::AnsiColor;
        match self {
            Self::Plain => Style::new(),
            Self::Faint => Style::new().dimmed(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Bad => AnsiColor::Red.on_default(),
            Self::Alarm => AnsiColor::Yellow.on_default().bold(),
        }
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// Whether its cells are numbers, which are set to the right.
    pub is_number: bool,
    /// Whether its cells may be cut (with `…`) where the terminal is narrow.
    pub is_flexible: bool,
    /// Whether it is left out where the terminal is narrower than all cuts help; the last such
    /// column goes first.
    pub is_spare: bool,
}

impl Column {
    /// Returns a column of text that is never cut.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            is_number: false,
            is_flexible: false,
            is_spare: false,
        }
    }

    /// Makes it a column of numbers.
    #[must_use]
    pub const fn number(self) -> Self {
        Self {
            is_number: true,
            ..self
        }
    }

    /// Lets its cells be cut.
    #[must_use]
    pub const fn flexible(self) -> Self {
        Self {
            is_flexible: true,
            ..self
        }
    }

    /// Lets it be left out.
    #[must_use]
    pub const fn spare(self) -> Self {
        Self {
            is_spare: true,
            ..self
        }
    }
}

/// Returns simple aligned columns without borders, two spaces apart, one line a row.
///
/// Cells are escaped here. Each row has as many cells as there are columns. Where `look` has a
/// width the flexible columns are cut to fit it, and the spare ones are left out if that is not
/// enough; a pipe gets everything.
#[must_use]
pub fn table(columns: &[Column], rows: &[Vec<(String, Tone)>], look: &Look) -> String {
    let Some(width) = look.width else {
        return lay_out(columns, rows, look).0;
    };
    let mut columns = columns.to_vec();
    let mut rows = rows.to_vec();
    loop {
        let (text, is_fit) = lay_out(&columns, &rows, look);
        match columns.iter().rposition(|column| column.is_spare) {
            Some(index) if !is_fit && width > 0 => {
                columns.remove(index);
                for row in &mut rows {
                    row.remove(index);
                }
            }
            Some(_) | None => return text,
        }
    }
}

/// Returns the table, and whether it fits the width.
fn lay_out(columns: &[Column], rows: &[Vec<(String, Tone)>], look: &Look) -> (String, bool) {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_truncation_indicator("…");
    // A cell is cut where its column ends, not where a word does; no escaped text has this.
    table.set_delimiter('\0');
    table.force_no_tty();
    if look.colour {
        table.enforce_styling();
    }
    if let Some(width) = look.width {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width);
    }
    table.set_header(columns.iter().map(|column| Cell::new(column.name)));
    for cells in rows {
        let mut row = Row::new();
        for (text, tone) in cells {
            row.add_cell(cell(text, *tone));
        }
        row.max_height(1);
        table.add_row(row);
    }
    let natural = table.column_max_content_widths();
    let limits = look.width.map(|width| fit(columns, &natural, width));
    for (index, column) in columns.iter().enumerate() {
        let drawn = table.column_mut(index).expect("each column has a heading");
        drawn.set_padding((0, if index + 1 == columns.len() { 0 } else { 2 }));
        if column.is_number {
            drawn.set_cell_alignment(CellAlignment::Right);
        }
        if let Some(limits) = &limits {
            // A column's constraint counts its padding.
            let padding = if index + 1 == columns.len() { 0 } else { 2 };
            drawn.set_constraint(ColumnConstraint::Absolute(Width::Fixed(
                limits[index] + padding,
            )));
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let is_fit = look.width.zip(limits).is_none_or(|(width, limits)| {
        let gaps = 2 * limits.len().saturating_sub(1);
        limits
            .iter()
            .map(|limit| usize::from(*limit))
            .sum::<usize>()
            + gaps
            <= usize::from(width)
    });
    (text, is_fit)
}

/// Returns the widths at which the columns fit `width`: the widest flexible one gives way first,
/// none below eight; what still does not fit is left to the terminal.
fn fit(columns: &[Column], natural: &[u16], width: u16) -> Vec<u16> {
    const FLEXIBLE_MIN: u16 = 8;
    let gaps = 2 * u16::try_from(columns.len().saturating_sub(1)).unwrap_or(u16::MAX / 2);
    let room = width.saturating_sub(gaps);
    let mut widths = natural.to_vec();
    while widths.iter().fold(0_u16, |sum, w| sum.saturating_add(*w)) > room {
        let widest = columns
            .iter()
            .zip(&mut widths)
            .filter(|(column, width)| column.is_flexible && **width > FLEXIBLE_MIN)
            .map(|(_, width)| width)
            .max();
        match widest {
            Some(widest) => *widest -= 1,
            None => break,
        }
    }
    widths
}

fn cell(text: &str, tone: Tone) -> Cell {
    let cell = Cell::new(escape(text));
    match tone {
        Tone::Plain => cell,
        Tone::Faint => cell.add_attribute(Attribute::Dim),
        Tone::Good => cell.fg(Color::DarkGreen),
        Tone::Bad => cell.fg(Color::DarkRed),
        Tone::Alarm => cell.fg(Color::DarkYellow).add_attribute(Attribute::Bold),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [
        Column::new("SEQ").number(),
        Column::new("TOOL").flexible(),
        Column::new("NOTE").flexible(),
    ];

    fn rows() -> Vec<Vec<(String, Tone)>> {
        let row = |seq: &str, tool: &str, note: &str| {
            [seq, tool, note]
                .map(|text| (text.to_owned(), Tone::Plain))
                .to_vec()
        };
        vec![
            row("9", "a\u{1b}[2Jb", "two\nlines"),
            row(
                "10",
                "漢字",
                "a long note that says a great deal about little",
            ),
        ]
    }

    #[test]
    fn a_pipe_gets_everything() {
        let text = table(&COLUMNS, &rows(), &Look::PIPE);
        assert_eq!(
            text,
            "SEQ  TOOL         NOTE\n\
             \x20 9  a\\u{1b}[2Jb  two\\nlines\n\
             \x2010  漢字         a long note that says a great deal about little\n"
        );
    }

    #[test]
    fn a_terminal_is_not_overrun() {
        let look = Look {
            width: Some(40),
            ..Look::PIPE
        };
        let text = table(&COLUMNS, &rows(), &look);
        assert_eq!(text.lines().count(), 3, "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 40, "{line:?}");
        }
        assert!(text.contains('…'), "{text}");
        // Narrower than anything fits: no panic, and nothing but cuts.
        for width in [0, 1, 5, 12] {
            let look = Look {
                width: Some(width),
                ..Look::PIPE
            };
            assert_eq!(table(&COLUMNS, &rows(), &look).lines().count(), 3);
        }
    }

    #[test]
    fn what_can_be_spared_goes_before_a_line_is_overrun() {
        let columns = [
            Column::new("SEQ").number(),
            Column::new("ATTEMPT").number().spare(),
            Column::new("STARTED"),
            Column::new("CALL-ID").flexible().spare(),
            Column::new("NOTE").flexible(),
        ];
        let row = ["7", "1", "3m ago", "toolu_01A09q90qw90", "upstream exited"];
        let rows = [row.map(|text| (text.to_owned(), Tone::Plain)).to_vec()];
        let at = |width| {
            let look = Look {
                width: Some(width),
                ..Look::PIPE
            };
            table(&columns, &rows, &look)
        };
        let wide = at(47);
        assert!(
            wide.contains("CALL-ID") && wide.contains("upstream e…"),
            "{wide}"
        );
        assert_eq!(
            at(40),
            "SEQ  ATTEMPT  STARTED  NOTE\n\
             \x20 7        1  3m ago   upstream exited\n"
        );
        assert_eq!(at(24), "SEQ  STARTED  NOTE\n  7  3m ago   upstream …\n");
        // What can't be spared stays, whatever the width.
        assert_eq!(at(9), "SEQ  STARTED  NOTE\n  7  3m ago   upstrea…\n");
    }

    #[test]
    fn no_rows_is_a_heading() {
        assert_eq!(table(&COLUMNS, &[], &Look::PIPE), "SEQ  TOOL  NOTE\n");
    }

    #[test]
    fn paint_only_where_colour_is_wanted() {
        let colour = Look {
            colour: true,
            ..Look::PIPE
        };
        assert_eq!(Look::PIPE.paint("x", Tone::Alarm.style()), "x");
        assert!(colour.paint("x", Tone::Alarm.style()).contains('\u{1b}'));
    }
}
