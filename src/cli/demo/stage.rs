//! The place at which a charge waits until the story goes on.
//!
//! The sample upstream connects once a charge is made and before it answers; while the connection
//! is open it waits. So the story knows that an effect has happened and that nobody has been told,
//! which is the moment at which a crash hurts most, without any waiting for time to pass.
//!
//! Must not: be needed. Without a stage, or with one that is gone, a charge does not wait.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A charge that was made and not answered yet. Dropping it lets the upstream go on.
#[derive(Debug)]
pub(super) struct Charged {
    /// The order that was charged.
    pub(super) order: String,
    upstream: Pid,
    _line: UnixStream,
}

impl Charged {
    /// Kills the upstream, so that its answer never comes.
    pub(super) fn kill_upstream(self) {
        // It waits for us, so the process is there and the id is its own.
        let _ = kill(self.upstream, Signal::SIGKILL);
    }
}

/// Tells the stage that `order` was charged and waits until it lets go.
pub(super) fn report(stage: &Path, order: &str) {
    let Ok(mut line) = UnixStream::connect(stage) else {
        return;
    };
    if writeln!(line, "{} {order}", std::process::id()).is_ok() {
        let _ = line.read(&mut [0]);
    }
}

/// Opens the stage and hands on each charge that comes to it, for as long as somebody listens.
///
/// # Errors
///
/// The socket can't be made.
pub(super) fn open(
    path: &Path,
    mut hand_on: impl FnMut(Charged) -> bool + Send + 'static,
) -> std::io::Result<()> {
    let listener = UnixListener::bind(path)?;
    std::thread::spawn(move || {
        for line in listener.incoming().flatten() {
            let Some(charged) = read(line) else { continue };
            if !hand_on(charged) {
                return;
            }
        }
    });
    Ok(())
}

fn read(line: UnixStream) -> Option<Charged> {
    let mut text = String::new();
    BufReader::new(&line).read_line(&mut text).ok()?;
    let (pid, order) = text.trim_end().split_once(' ')?;
    Some(Charged {
        order: order.to_owned(),
        upstream: Pid::from_raw(pid.parse().ok()?),
        _line: line,
    })
}
