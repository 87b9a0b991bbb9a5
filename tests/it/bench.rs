//! Where the scripted upstream says hello and waits to be let go.
//!
//! A connection is a living process or a held call; its end is that process's end.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::Value;

/// Where the scripted upstream says hello and waits to be let go.
pub(crate) struct Bench {
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Default)]
struct Told {
    hellos: Vec<(String, i32)>,
    gone: Vec<i32>,
    held: Vec<(String, i32, UnixStream)>,
    open: Vec<String>,
}

impl Bench {
    pub(crate) fn open(path: &Path) -> Arc<Bench> {
        let listener = UnixListener::bind(path).unwrap();
        let bench = Arc::new(Bench {
            told: Mutex::default(),
            changed: Condvar::new(),
        });
        let listening = Arc::clone(&bench);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let bench = Arc::clone(&listening);
                std::thread::spawn(move || bench.hear(stream));
            }
        });
        bench
    }

    fn hear(&self, stream: UnixStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        if reader.read_line(&mut line).is_err() {
            return;
        }
        let Ok(said) = serde_json::from_str::<Value>(&line) else {
            return;
        };
        let pid = said["pid"].as_i64().and_then(|pid| pid.try_into().ok());
        let pid: i32 = pid.unwrap_or_default();
        let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
        let mut told = self.told.lock().unwrap();
        if said["kind"] == "hold" {
            let name = text("name");
            if !told.open.contains(&name) {
                told.held.push((name, pid, stream));
            }
            self.changed.notify_all();
            return;
        }
        told.hellos.push((text("role"), pid));
        self.changed.notify_all();
        drop(told);
        let _ = reader.read(&mut [0u8; 1]);
        self.told.lock().unwrap().gone.push(pid);
        self.changed.notify_all();
    }

    fn wait<T>(&self, limit: Duration, find: impl Fn(&Told) -> Option<T>) -> Option<T> {
        let told = self.told.lock().unwrap();
        let (told, _) = self
            .changed
            .wait_timeout_while(told, limit, |told| find(told).is_none())
            .unwrap();
        find(&told)
    }

    pub(crate) fn wait_held(&self, name: &str, count: usize, limit: Duration) -> Option<i32> {
        self.wait(limit, |told| {
            let mut held = told.held.iter().filter(|(held, ..)| held == name);
            held.nth(count - 1).map(|(_, pid, _)| *pid)
        })
    }

    pub(crate) fn wait_hello(&self, role: &str, number: usize, limit: Duration) -> Option<i32> {
        self.wait(limit, |told| {
            let mut of_role = told.hellos.iter().filter(|(said, _)| said == role);
            of_role.nth(number - 1).map(|(_, pid)| *pid)
        })
    }

    pub(crate) fn wait_gone(&self, pid: i32, limit: Duration) -> bool {
        self.wait(limit, |told| told.gone.contains(&pid).then_some(()))
            .is_some()
    }

    /// Whether any process ever said hello.
    pub(crate) fn has_heard(&self) -> bool {
        !self.told.lock().unwrap().hellos.is_empty()
    }

    /// Those that said hello and have not ended.
    ///
    /// An open connection is a living process, so its id is still its own.
    pub(crate) fn living(&self) -> Vec<i32> {
        let told = self.told.lock().unwrap_or_else(|told| told.into_inner());
        let pids = told.hellos.iter().map(|(_, pid)| *pid);
        pids.filter(|pid| !told.gone.contains(pid)).collect()
    }

    /// Lets go those that wait and those that will still come.
    pub(crate) fn release(&self, name: &str) {
        let mut told = self.told.lock().unwrap();
        told.held.retain(|(held, ..)| held != name);
        told.open.push(name.to_owned());
    }
}
