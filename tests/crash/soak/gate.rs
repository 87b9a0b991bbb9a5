//! Where the upstreams of a world say hello and wait to be let go, as events for those that drive
//! them. (The black-box tests' bench waits by name instead: there a test is one thread.)

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::Value;

/// What an agent hears while it waits.
pub(crate) enum Event {
    Line(String),
    /// The proxy's output has ended.
    End,
    Held(Hold),
}

/// A call that the upstream holds, for as long as this lives.
pub(crate) struct Hold {
    pub(crate) name: String,
    pub(crate) pid: i32,
    _connection: UnixStream,
}

pub(crate) struct Gate {
    path: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By what the name of a hold begins with.
    listeners: BTreeMap<String, Sender<Event>>,
    /// Upstreams whose connection is open, and thus live.
    living: BTreeSet<i32>,
}

impl Gate {
    pub(crate) fn open(path: &Path) -> Arc<Self> {
        let listener = UnixListener::bind(path).unwrap();
        let gate = Arc::new(Self {
            path: path.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let listening = Arc::clone(&gate);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream);
                let mut line = String::new();
                if reader.read_line(&mut line).is_err() || line == "close\n" {
                    return;
                }
                listening.hear(&line, reader);
            }
        });
        gate
    }

    /// Ends the listening; nobody may say hello any more.
    pub(crate) fn close(&self) {
        if let Ok(mut stream) = UnixStream::connect(&self.path) {
            let _ = stream.write_all(b"close\n");
        }
    }

    fn hear(self: &Arc<Self>, line: &str, mut reader: BufReader<UnixStream>) {
        // Who was killed while it spoke said nothing.
        let Ok(said) = serde_json::from_str::<Value>(line) else {
            return;
        };
        let pid = i32::try_from(said["pid"].as_i64().unwrap()).unwrap();
        if said["kind"] == "hold" {
            let name = said["name"].as_str().unwrap().to_owned();
            let listener = name.split('/').next().unwrap();
            let state = self.state.lock().unwrap();
            if let Some(sender) = state.listeners.get(listener) {
                // Whoever no longer listens lets go by dropping it.
                let _ = sender.send(Event::Held(Hold {
                    name,
                    pid,
                    _connection: reader.into_inner(),
                }));
            }
            return;
        }
        self.state.lock().unwrap().living.insert(pid);
        let gate = Arc::clone(self);
        std::thread::spawn(move || {
            let _ = reader.read(&mut [0; 1]);
            gate.state.lock().unwrap().living.remove(&pid);
            gate.changed.notify_all();
        });
    }

    /// From now on `sender` hears of the holds whose name begins with `listener`.
    pub(crate) fn route(&self, listener: &str, sender: Sender<Event>) {
        let mut state = self.state.lock().unwrap();
        state.listeners.insert(listener.to_owned(), sender);
    }

    pub(crate) fn unroute(&self, listener: &str) {
        self.state.lock().unwrap().listeners.remove(listener);
    }

    /// Waits until no upstream lives. Returns those that do.
    pub(crate) fn await_empty(&self, limit: Duration) -> Vec<i32> {
        let state = self.state.lock().unwrap();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, limit, |state| !state.living.is_empty())
            .unwrap();
        state.living.iter().copied().collect()
    }
}
