//! One run of the agent, with what befalls it.
//!
//! Must not: tell or judge anything; that is the story's.

use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::agent::Told;
use super::stage::{self, Charged};
use super::{broken, program};
use crate::cli::error::{CliError, Kind};

/// How long anything may take before the demo gives up. A bound, not a wait: events end each wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// The socket of the stage.
const STAGE: &str = "stage";

/// The file that holds what the agent, the proxy and the upstream wrote to stderr.
pub(super) const LOG: &str = "stderr.log";

/// What befalls a run of the agent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Incident {
    /// Nothing.
    None,
    /// The agent is killed once this order is charged and nobody has been told.
    AgentKilled(&'static str),
    /// The upstream is killed at that moment.
    UpstreamKilled(&'static str),
}

/// What the story hears of.
enum Heard {
    Charged(Charged),
    Told(Told),
    /// One of the agent's two pipes has ended. Its stderr is also the proxy's and the upstream's,
    /// so that both have ended means that nobody of that run is left.
    PipeEnded,
}

/// The theatre: a folder, a stage, and a channel on which everything is heard in order.
pub(super) struct Scenes<'a> {
    folder: &'a Path,
    say: Sender<Heard>,
    heard: Receiver<Heard>,
}

impl<'a> Scenes<'a> {
    pub(super) fn open(folder: &'a Path) -> Result<Self, CliError> {
        let (say, heard) = channel();
        let hand_on = say.clone();
        // By a name without a folder, as a socket's path may have 100 bytes and no more.
        std::env::set_current_dir(folder).map_err(broken("the demo's folder can't be entered"))?;
        stage::open(Path::new(STAGE), move |charged| {
            hand_on.send(Heard::Charged(charged)).is_ok()
        })
        .map_err(broken("the demo's socket can't be made"))?;
        Ok(Self { folder, say, heard })
    }

    /// Runs the agent until nobody of its run is left. Returns what it was told.
    pub(super) fn play(&self, incident: Incident) -> Result<Vec<Told>, CliError> {
        let mut agent = self.start()?;
        let mut told = Vec::new();
        let mut open_pipes = 2;
        while open_pipes > 0 {
            let heard = self.heard.recv_timeout(PATIENCE).map_err(|_| {
                CliError::new(Kind::Failure, "nothing happens any more")
                    .hint(format!("{LOG} in the demo's folder may say why"))
            })?;
            match heard {
                Heard::Told(one) => told.push(one),
                Heard::PipeEnded => open_pipes -= 1,
                Heard::Charged(charged) => match incident {
                    Incident::AgentKilled(order) if order == charged.order => agent.kill()?,
                    Incident::UpstreamKilled(order) if order == charged.order => {
                        charged.kill_upstream();
                    }
                    Incident::None | Incident::AgentKilled(_) | Incident::UpstreamKilled(_) => {}
                },
            }
        }
        agent.wait()?;
        Ok(told)
    }

    fn start(&self) -> Result<Agent, CliError> {
        let mut command = Command::new(program()?);
        command
            .args(["demo", "agent", STAGE])
            .current_dir(self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        without_our_variables(&mut command);
        let mut child = command
            .spawn()
            .map_err(broken("the agent can't be started"))?;
        if let Some(output) = child.stdout.take() {
            hear_told(output, self.say.clone());
        }
        if let Some(errors) = child.stderr.take() {
            keep_log(errors, &self.folder.join(LOG), self.say.clone())?;
        }
        Ok(Agent(child))
    }
}

/// Takes away what the user's environment says to checkpoint: the demo has its own journal.
pub(super) fn without_our_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CHECKPOINT_") {
            command.env_remove(name);
        }
    }
}

/// The agent's process; none is left behind.
struct Agent(Child);

impl Agent {
    /// Kills it and waits for its end, so that it can't be told anything any more.
    fn kill(&mut self) -> Result<(), CliError> {
        self.0.kill().map_err(broken("the agent can't be killed"))?;
        self.wait()
    }

    fn wait(&mut self) -> Result<(), CliError> {
        self.0
            .wait()
            .map(|_| ())
            .map_err(broken("the agent's end can't be awaited"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hear_told(output: ChildStdout, say: Sender<Heard>) {
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if let Ok(told) = serde_json::from_str(&line) {
                let _ = say.send(Heard::Told(told));
            }
        }
        let _ = say.send(Heard::PipeEnded);
    });
}

fn keep_log(mut errors: ChildStderr, path: &Path, say: Sender<Heard>) -> Result<(), CliError> {
    let mut log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .map_err(broken("the demo's log can't be written"))?;
    std::thread::spawn(move || {
        let _ = io::copy(&mut errors, &mut log);
        let _ = log.flush();
        let _ = say.send(Heard::PipeEnded);
    });
    Ok(())
}
