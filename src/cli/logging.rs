//! Where log lines go, in which form, and which of them.
//!
//! Only ever to stderr: stdout belongs to MCP, or to a command's data. The writer is given by the
//! caller, so that the proxy can pass one that never blocks its poll loop. Lines carry no colour,
//! since hosts capture them. Arguments, results and command lines must not be logged anywhere.

use clap::ValueEnum;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// The least urgent lines that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Nothing at all.
    Off,
    /// What could not be done.
    Error,
    /// What somebody should look at.
    #[default]
    Warn,
    /// One line for each decision.
    Info,
    /// What the proxy does besides.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    fn filter(self) -> LevelFilter {
        match self {
            Self::Off => LevelFilter::OFF,
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Which lines are written, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// `--log`, else `CHECKPOINT_LOG`.
    pub level: LogLevel,
    /// `--log-format`.
    pub format: LogFormat,
}

/// Makes the process log to `writer` from here on.
///
/// Only the first call has an effect. Lines that `writer` can't take are lost without a word: a
/// closed stderr must not end a proxy with calls in flight.
pub fn init<W>(settings: LogSettings, writer: W)
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let _ = tracing::subscriber::set_global_default(subscriber(settings, writer));
}

fn subscriber<W>(settings: LogSettings, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    // The subscriber is told not to report its own write errors, as it would do so by a macro
    // that panics when stderr is gone.
    let builder = tracing_subscriber::fmt()
        .with_max_level(settings.level.filter())
        .with_ansi(false)
        .log_internal_errors(false)
        .with_target(false)
        .with_writer(writer);
    match settings.format {
        LogFormat::Text => Box::new(builder.finish()),
        LogFormat::Json => Box::new(builder.json().flatten_event(true).finish()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    fn logged(settings: LogSettings) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        tracing::subscriber::with_default(subscriber(settings, move || writer.clone()), || {
            tracing::info!(seq = 7, "quiet");
            tracing::warn!(seq = 8, tool = "a\u{1b}[31mb", "loud");
        });
        let bytes = kept.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn text_is_plain_and_starts_at_the_level() {
        let text = logged(LogSettings::default());
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("WARN loud seq=8"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let off = LogSettings {
            level: LogLevel::Off,
            ..LogSettings::default()
        };
        assert_eq!(logged(off), "");
    }

    #[test]
    fn json_is_one_object_a_line() {
        let text = logged(LogSettings {
            level: LogLevel::Info,
            format: LogFormat::Json,
        });
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1]["seq"], 8);
        assert_eq!(lines[1]["message"], "loud");
    }

    #[test]
    fn a_closed_stderr_panics_nobody() {
        let settings = LogSettings::default();
        tracing::subscriber::with_default(subscriber(settings, || Closed), || {
            tracing::error!("lost");
        });
    }
}
