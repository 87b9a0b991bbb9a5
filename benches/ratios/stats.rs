//! Medians, quartiles, and the table.

use std::time::Duration;

/// Quartiles further apart than this part of the median are no measurement.
const NOISE_MAX: f64 = 0.15;

/// A median with its quartiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Spread {
    /// Returns the spread of some values; of none it is not a number.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self {
            low: quantile(&values, 0.25),
            median: quantile(&values, 0.5),
            high: quantile(&values, 0.75),
        }
    }

    fn is_noisy(self) -> bool {
        self.high - self.low > self.median.abs() * NOISE_MAX
    }
}

/// Returns the value below which a part of the sorted values lies.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index of at most some 100,000 samples"
)]
pub(crate) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = part * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (place - place.floor())
}

/// Returns the median of some times, in microseconds.
pub(crate) fn p50(times: &[Duration]) -> f64 {
    at(times, 0.5)
}

/// Returns what a part of some times stays below, in microseconds.
pub(crate) fn at(times: &[Duration], part: f64) -> f64 {
    let mut micros: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
    micros.sort_by(f64::total_cmp);
    quantile(&micros, part)
}

/// What a row is held to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// At most this.
    Most(f64),
    /// At least this.
    Least(f64),
    /// Nothing: it is shown for its own sake.
    Shown,
}

/// The table.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<[String; 5]>,
}

impl Table {
    /// Adds a ratio, judged unless it is too noisy.
    pub(crate) fn ratio(&mut self, what: &str, unit: &str, goal: Goal, found: Spread) {
        let verdict = match goal {
            Goal::Shown => "",
            _ if found.median.is_nan() => "not run",
            _ if found.is_noisy() => "too noisy",
            Goal::Most(limit) if found.median <= limit => "met",
            Goal::Least(limit) if found.median >= limit => "met",
            Goal::Most(_) | Goal::Least(_) => "NOT MET",
        };
        self.push(
            what,
            goal,
            unit,
            format!("{:.3} {unit}", found.median),
            format!("{:.3} – {:.3}", found.low, found.high),
            verdict,
        );
    }

    /// Adds a count or a size, which has no spread.
    pub(crate) fn count(&mut self, what: &str, unit: &str, goal: Goal, found: f64) {
        let verdict = match goal {
            Goal::Shown => "",
            Goal::Most(limit) if found <= limit => "met",
            Goal::Least(limit) if found >= limit => "met",
            Goal::Most(_) | Goal::Least(_) => "NOT MET",
        };
        self.push(
            what,
            goal,
            unit,
            format!("{found:.3} {unit}"),
            String::new(),
            verdict,
        );
    }

    /// Adds what was not measured, and why.
    pub(crate) fn not_run(&mut self, what: &str, why: &str) {
        self.rows.push([
            what.into(),
            String::new(),
            String::new(),
            why.into(),
            "not run".into(),
        ]);
    }

    fn push(
        &mut self,
        what: &str,
        goal: Goal,
        unit: &str,
        found: String,
        span: String,
        verdict: &str,
    ) {
        let goal = match goal {
            Goal::Most(limit) => format!("≤ {limit} {unit}"),
            Goal::Least(limit) => format!("≥ {limit} {unit}"),
            Goal::Shown => String::new(),
        };
        self.rows
            .push([what.into(), goal, found, span, verdict.into()]);
    }

    /// Returns the rows added since `from` as Markdown, the head with the first.
    pub(crate) fn text(&self) -> String {
        let head = ["what", "goal", "median", "quartiles", "verdict"].map(String::from);
        let mut widths = [0; 5];
        for row in self.rows.iter().chain([&head]) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |row: &[String; 5]| {
            let cells: Vec<String> = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = widths.map(|width| "-".repeat(width));
        let mut text = line(&head) + &line(&rule);
        for row in &self.rows {
            text += &line(row);
        }
        text
    }
}
