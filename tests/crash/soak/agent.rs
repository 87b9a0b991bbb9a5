//! An agent and its proxy: it asks, is told, and does to the proxy what the plan says.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::gate::{Event, Hold};
use super::oracle::Answer;
use super::plan::{Fate, Naming, Part, Then, Turn};
use super::world::{DEADLINE, World};

/// A stopped proxy stays so for this many answers of others, and not much longer.
const STALL_ANSWERS: u64 = 3;
const STALL: Duration = Duration::from_millis(150);

/// Does an agent's part of a round: asks for its steps, and starts over when the proxy is gone.
pub(crate) fn work(world: &World, round: usize, agent: usize, part: &Part) {
    let is_wanted = |turn: &&Turn| {
        let step = &world.plan.steps[turn.step];
        // Who has the outcome of a call without a number does not ask again: that is a new call.
        !(matches!(step.naming, Naming::Bare) && world.oracle.is_answered(step))
    };
    let mut queue: VecDeque<Turn> = part.turns.iter().filter(is_wanted).copied().collect();
    let mut kill_after = part.kill_after;
    // Calls that an upstream holds although its proxy is gone, until somebody ends it.
    let mut orphans = Vec::new();
    for start in 0..part.starts_max {
        if queue.is_empty() {
            return;
        }
        let name = format!("{round}-{agent}-{start}");
        let mut session = Session::start(world, &name);
        session.run(&mut queue, part.window, kill_after.take());
        session.end(&mut queue);
        orphans.append(&mut session.kept);
    }
}

struct Asked {
    turn: Turn,
    was_acknowledged: bool,
}

struct Session<'a> {
    world: &'a World,
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    events: Receiver<Event>,
    asked: BTreeMap<u64, Asked>,
    next_id: u64,
    answers: usize,
    /// The disk is full until so many answers have come.
    full_until: Option<usize>,
    /// Calls that the upstream holds until this process is gone.
    kept: Vec<Hold>,
    has_ended: bool,
}

impl<'a> Session<'a> {
    fn start(world: &'a World, name: &str) -> Self {
        let (sender, events) = channel();
        world.gate.route(name, sender.clone());
        let mut child = world.proxy().spawn().unwrap();
        let output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(Event::Line(line));
            }
            let _ = sender.send(Event::End);
        });
        Self {
            world,
            name: name.to_owned(),
            input: child.stdin.take(),
            child,
            events,
            asked: BTreeMap::new(),
            next_id: 1,
            answers: 0,
            full_until: None,
            kept: Vec::new(),
            has_ended: false,
        }
    }

    fn run(&mut self, queue: &mut VecDeque<Turn>, window: usize, kill_after: Option<usize>) {
        while !self.has_ended {
            while self.asked.len() < window
                && let Some(turn) = queue.pop_front()
            {
                self.ask(turn);
            }
            if self.asked.is_empty() {
                return;
            }
            self.take_event();
            if kill_after == Some(self.answers) {
                self.kill_proxy();
            }
        }
    }

    fn ask(&mut self, turn: Turn) {
        let step = &self.world.plan.steps[turn.step];
        let id = self.next_id;
        self.next_id += 1;
        let line = step.line(id, &turn.fate.script(&format!("{}/{id}", self.name)));
        let was_acknowledged = self.world.oracle.is_acknowledged(step);
        let asked = Asked {
            turn,
            was_acknowledged,
        };
        self.asked.insert(id, asked);
        // A pipe that is broken has an end that is on its way.
        if let Some(input) = &mut self.input {
            let _ = input.write_all(line.as_bytes());
        }
    }

    fn take_event(&mut self) {
        match self.events.recv_timeout(DEADLINE) {
            Ok(Event::Line(line)) => self.take_line(&line),
            Ok(Event::Held(hold)) => self.meet(hold),
            Ok(Event::End) => self.has_ended = true,
            Err(_) => {
                let waits: Vec<&str> = self
                    .asked
                    .values()
                    .map(|asked| &*self.world.plan.steps[asked.turn.step].name)
                    .collect();
                let bad = format!("{}: nothing comes; asked: {waits:?}", self.name);
                self.world.oracle.bad(bad);
                self.kill_proxy();
                self.has_ended = true;
            }
        }
    }

    fn take_line(&mut self, line: &str) {
        // Half a line is none: its writer was killed.
        let Ok(value) = serde_json::from_str::<serde_json::Value>(line) else {
            return;
        };
        let id = value["id"].as_u64().unwrap_or(0);
        let Some(asked) = self.asked.remove(&id) else {
            let bad = format!("{}: nobody asked for {line}", self.name);
            return self.world.oracle.bad(bad);
        };
        let step = &self.world.plan.steps[asked.turn.step];
        match Answer::read(line, &value, step) {
            Ok(answer) => self
                .world
                .oracle
                .judge(step, &answer, asked.was_acknowledged),
            Err(bad) => self.world.oracle.bad(bad),
        }
        if self.answers == 0 {
            self.world.disk.add(self.child.id());
        }
        self.answers += 1;
        self.world.progress.step();
        if self.full_until == Some(self.answers) {
            self.free_disk();
        }
    }

    /// The upstream holds a call: what the plan has for that moment happens.
    fn meet(&mut self, hold: Hold) {
        let id = hold.name.rsplit('/').next().and_then(|id| id.parse().ok());
        let Some(asked) = id.and_then(|id: u64| self.asked.get(&id)) else {
            return;
        };
        let Fate::Held { then, .. } = asked.turn.fate else {
            return;
        };
        match then {
            Then::KillProxy { goes_on } => {
                self.kill_proxy();
                if !goes_on {
                    self.kept.push(hold);
                }
            }
            Then::KillUpstream => {
                // It lives, or its connection would have ended.
                let _ = kill(Pid::from_raw(hold.pid), Signal::SIGKILL);
                self.world.oracle.count("upstreams killed", 1);
                self.kept.push(hold);
            }
            Then::Stall { is_killed } => {
                let proxy = self.pid();
                if kill(proxy, Signal::SIGSTOP).is_ok() {
                    self.world.oracle.count("stops", 1);
                }
                drop(hold);
                self.world.progress.await_more(STALL_ANSWERS, STALL);
                if is_killed {
                    self.kill_proxy();
                } else {
                    let _ = kill(proxy, Signal::SIGCONT);
                }
            }
            Then::FillDisk { at_bytes, answers } => {
                if self.full_until.is_none() {
                    self.world.disk.add(self.child.id());
                    self.world.disk.fill(at_bytes);
                    self.world.oracle.count("full disks", 1);
                    self.full_until = Some(self.answers + answers);
                }
            }
            Then::LetGo => {}
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    fn kill_proxy(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.child.kill().unwrap();
            self.world.oracle.count("kills", 1);
        }
    }

    fn free_disk(&mut self) {
        if self.full_until.take().is_some() {
            self.world.disk.free();
        }
    }

    /// Lets the proxy end, if it has not, and hears all that it still says. What has no answer is
    /// asked again first, and in peace: its upstream may still be at work.
    fn end(&mut self, queue: &mut VecDeque<Turn>) {
        self.free_disk();
        self.input = None;
        while !self.has_ended {
            self.take_event();
        }
        self.free_disk();
        self.world.gate.unroute(&self.name);
        self.world.disk.remove(self.child.id());
        let code = self.child.wait().unwrap().code();
        match code {
            None | Some(0) => {}
            Some(69) => self.world.oracle.count("upstreams that died", 1),
            Some(other) => {
                let bad = format!("{}: the proxy ended with {other}", self.name);
                self.world.oracle.bad(bad);
            }
        }
        for asked in std::mem::take(&mut self.asked).into_values() {
            if code == Some(0) {
                let name = &self.world.plan.steps[asked.turn.step].name;
                let bad = format!("{}: {name} was never answered", self.name);
                self.world.oracle.bad(bad);
            }
            queue.push_front(Turn {
                fate: Fate::Plain,
                ..asked.turn
            });
        }
    }
}
