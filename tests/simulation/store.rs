//! The journal that all simulated proxies share: the real one in memory or in SQLite, with
//! faults, power cuts and locks around it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use checkpoint::guard::Surroundings;
use checkpoint::journal::memory::{MemoryJournal, MemoryTransaction};
use checkpoint::journal::sqlite::{SqliteJournal, SqliteTransaction};
use checkpoint::journal::{
    Applied, Attempt, Branch, Durability, Event, EventRow, Identity, Journal, JournalError, Lease,
    Outcome, Session, Stored, TaskKey, Transaction, Workflow, Write,
};
use checkpoint::rules::flight::Flight;
use checkpoint::rules::ids::{BranchId, Fence, HeldKey, Micros, Seq, SessionId, WorkflowId};
use checkpoint::rules::signature::{Scheme, Signature};

/// A journal's back-end.
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the one that runs often"
)]
pub(crate) enum Book {
    Memory(MemoryJournal),
    Sqlite(Box<SqliteJournal>),
}

/// What goes wrong in the next transaction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    None,
    /// It can't begin.
    Begin(JournalError),
    /// The write with this number fails, and all is rolled back.
    At(usize, JournalError),
    /// The commit fails; nothing is kept.
    Commit(JournalError),
    /// The commit fails; whether it is kept is not known to the caller.
    Unknown {
        is_kept: bool,
    },
}

/// Who lives: a session's lock is held by its proxy and by whoever ends its upstream's group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alive {
    pub(crate) proxy: bool,
    pub(crate) group: bool,
}

pub(crate) struct Shared {
    pub(crate) book: Option<Book>,
    /// What a power cut leaves, if that is less than what is there.
    pub(crate) durable: Option<MemoryJournal>,
    /// What is not durable is of a commit whose end is not known. SQLite shows that to nobody but
    /// to who recovers the log, whose first commit is its session's row.
    is_unknown: bool,
    pub(crate) fault: Fault,
    pub(crate) lives: Vec<Alive>,
    pub(crate) owners: BTreeMap<SessionId, usize>,
    pub(crate) has_room: bool,
    pub(crate) mark: u64,
    /// The machine's boot, and the milliseconds since then.
    pub(crate) boot: u32,
    pub(crate) uptime: std::time::Duration,
}

impl Shared {
    pub(crate) fn new(book: Book) -> Self {
        Self {
            book: Some(book),
            durable: None,
            is_unknown: false,
            fault: Fault::None,
            lives: Vec::new(),
            owners: BTreeMap::new(),
            has_room: true,
            mark: 0,
            boot: 1,
            uptime: std::time::Duration::ZERO,
        }
    }

    pub(crate) fn memory(&self) -> Option<&MemoryJournal> {
        match self.book.as_ref().expect("nobody has the journal") {
            Book::Memory(memory) => Some(memory),
            Book::Sqlite(_) => None,
        }
    }

    pub(crate) fn memory_mut(&mut self) -> Option<&mut MemoryJournal> {
        match self.book.as_mut().expect("nobody has the journal") {
            Book::Memory(memory) => Some(memory),
            Book::Sqlite(_) => None,
        }
    }

    /// What is sure to survive anything.
    pub(crate) fn durable(&self) -> Option<&MemoryJournal> {
        self.durable.as_ref().or_else(|| self.memory())
    }

    pub(crate) fn is_live(&self, session: SessionId) -> bool {
        self.owners.get(&session).is_some_and(|life| {
            let alive = self.lives[*life];
            alive.proxy || alive.group
        })
    }

    pub(crate) fn is_attended(&self, session: SessionId) -> bool {
        self.owners
            .get(&session)
            .is_some_and(|life| self.lives[*life].proxy)
    }
}

pub(crate) type Store = Rc<RefCell<Shared>>;

/// One proxy's way to the shared journal.
pub(crate) struct SimJournal {
    store: Store,
    /// Taken out of the store while a transaction runs.
    book: Option<Book>,
    before: Option<MemoryJournal>,
    identity: Identity,
    durability: Durability,
    failed: Option<JournalError>,
    committed: bool,
    /// Something was written: a commit of nothing syncs nothing.
    has_written: bool,
    fault: Fault,
}

impl SimJournal {
    pub(crate) fn new(store: &Store) -> Self {
        let identity = {
            let shared = store.borrow();
            match shared.book.as_ref().expect("nobody has the journal") {
                Book::Memory(memory) => memory.identity().clone(),
                Book::Sqlite(sqlite) => sqlite.identity().clone(),
            }
        };
        Self {
            store: Rc::clone(store),
            book: None,
            before: None,
            identity,
            durability: Durability::Power,
            failed: None,
            committed: false,
            has_written: false,
            fault: Fault::None,
        }
    }

    /// Gives the journal back to the others, once the transaction is over.
    pub(crate) fn give_back(&mut self) {
        let Some(book) = self.book.take() else { return };
        let mut shared = self.store.borrow_mut();
        shared.book = Some(book);
        shared.fault = Fault::None;
        if !self.committed {
            return;
        }
        self.committed = false;
        let is_unknown = matches!(self.fault, Fault::Unknown { .. });
        if !self.has_written && !shared.is_unknown {
            return;
        }
        if self.durability == Durability::Power && !is_unknown {
            shared.durable = None;
            shared.is_unknown = false;
            return;
        }
        if shared.durable.is_none() {
            shared.durable = self.before.take();
        }
        // Whoever recovers syncs it with the first commit, whatever came after it without a sync.
        shared.is_unknown |= is_unknown;
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}

impl Journal for SimJournal {
    type Tx<'a> = SimTx<'a>;

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn begin(&mut self, durability: Durability) -> Result<SimTx<'_>, JournalError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        {
            let mut shared = self.store.borrow_mut();
            self.fault = std::mem::replace(&mut shared.fault, Fault::None);
            if let Fault::Begin(error) = &self.fault {
                return Err(error.clone());
            }
            let is_unsynced =
                durability == Durability::Process || matches!(self.fault, Fault::Unknown { .. });
            self.before = (is_unsynced && shared.durable.is_none())
                .then(|| shared.memory().cloned())
                .flatten();
            self.book = shared.book.take();
        }
        self.durability = durability;
        self.committed = false;
        let inner = match self.book.as_mut().expect("nobody else has the journal") {
            Book::Memory(memory) => Inner::Memory(Box::new(memory.begin(durability)?)),
            Book::Sqlite(sqlite) => Inner::Sqlite(sqlite.begin(durability)?),
        };
        Ok(SimTx {
            inner,
            fault: &self.fault,
            writes: 0,
            failed: &mut self.failed,
            committed: &mut self.committed,
            has_written: &mut self.has_written,
        })
    }

    fn reconnect(&mut self) -> Result<(), JournalError> {
        match &self.failed {
            Some(failed) => Err(failed.clone()),
            None => Ok(()),
        }
    }
}

enum Inner<'a> {
    Memory(Box<MemoryTransaction<'a>>),
    Sqlite(SqliteTransaction<'a>),
}

pub(crate) struct SimTx<'a> {
    inner: Inner<'a>,
    fault: &'a Fault,
    writes: usize,
    failed: &'a mut Option<JournalError>,
    committed: &'a mut bool,
    has_written: &'a mut bool,
}

impl SimTx<'_> {
    fn write(&mut self) -> Result<(), JournalError> {
        let number = self.writes;
        self.writes += 1;
        match self.fault {
            Fault::At(at, error) if *at == number => {
                if error.is_final() {
                    *self.failed = Some(error.clone());
                }
                Err(error.clone())
            }
            _ => Ok(()),
        }
    }
}

macro_rules! each {
    ($self:ident, $tx:ident => $call:expr) => {
        match &mut $self.inner {
            Inner::Memory($tx) => $call,
            Inner::Sqlite($tx) => $call,
        }
    };
}

impl Transaction for SimTx<'_> {
    fn workflow_of(&mut self, number: u64) -> Result<Option<(WorkflowId, [u8; 16])>, JournalError> {
        each!(self, tx => tx.workflow_of(number))
    }
    fn workflow(&mut self, id: &WorkflowId) -> Result<Option<Workflow>, JournalError> {
        each!(self, tx => tx.workflow(id))
    }
    fn create_workflow(
        &mut self,
        id: &WorkflowId,
        uid: [u8; 16],
        at: Micros,
    ) -> Result<Workflow, JournalError> {
        self.write()?;
        each!(self, tx => tx.create_workflow(id, uid, at))
    }
    fn branch(&mut self, id: BranchId) -> Result<Option<Branch>, JournalError> {
        each!(self, tx => tx.branch(id))
    }
    fn entry(&mut self, branch: BranchId, seq: Seq) -> Result<Option<Stored>, JournalError> {
        each!(self, tx => tx.entry(branch, seq))
    }
    fn is_gap(&mut self, branch: BranchId, seq: Seq) -> Result<bool, JournalError> {
        each!(self, tx => tx.is_gap(branch, seq))
    }
    fn undelivered(
        &mut self,
        branch: BranchId,
        signatures: &[(Scheme, Signature)],
    ) -> Result<Vec<Stored>, JournalError> {
        each!(self, tx => tx.undelivered(branch, signatures))
    }
    fn by_key(&mut self, key: &HeldKey) -> Result<Option<Stored>, JournalError> {
        each!(self, tx => tx.by_key(key))
    }
    fn by_state(&mut self, state: &[u8; 32]) -> Result<Vec<(BranchId, Seq, Fence)>, JournalError> {
        each!(self, tx => tx.by_state(state))
    }
    fn by_task(&mut self, task_id: &str) -> Result<Vec<(Stored, Fence, TaskKey)>, JournalError> {
        each!(self, tx => tx.by_task(task_id))
    }
    fn outcome(&mut self, fence: Fence) -> Result<Option<Outcome>, JournalError> {
        each!(self, tx => tx.outcome(fence))
    }
    fn task_end(&mut self, fence: Fence) -> Result<Option<Outcome>, JournalError> {
        each!(self, tx => tx.task_end(fence))
    }
    fn flights(&mut self, fence: Fence) -> Result<Vec<Flight>, JournalError> {
        each!(self, tx => tx.flights(fence))
    }
    fn attempt(&mut self, fence: Fence) -> Result<Option<Attempt>, JournalError> {
        each!(self, tx => tx.attempt(fence))
    }
    fn has_scheme(&mut self, scheme: Scheme) -> Result<bool, JournalError> {
        each!(self, tx => tx.has_scheme(scheme))
    }
    fn next_fence(&mut self) -> Result<Fence, JournalError> {
        each!(self, tx => tx.next_fence())
    }
    fn apply(&mut self, write: &Write) -> Result<Applied, JournalError> {
        self.write()?;
        each!(self, tx => tx.apply(write))
    }
    fn deliver(
        &mut self,
        branch: BranchId,
        seq: Seq,
        fence: Fence,
        at: Micros,
    ) -> Result<bool, JournalError> {
        self.write()?;
        each!(self, tx => tx.deliver(branch, seq, fence, at))
    }
    fn deliver_run(
        &mut self,
        first: (BranchId, Seq, Fence),
        count: u64,
        at: Micros,
    ) -> Result<u64, JournalError> {
        self.write()?;
        each!(self, tx => tx.deliver_run(first, count, at))
    }
    fn event(&mut self, event: &Event) -> Result<(), JournalError> {
        self.write()?;
        each!(self, tx => tx.event(event))
    }
    fn events(&mut self, branch: BranchId, seq: Seq) -> Result<Vec<EventRow>, JournalError> {
        each!(self, tx => tx.events(branch, seq))
    }
    fn next_session(&mut self) -> Result<SessionId, JournalError> {
        each!(self, tx => tx.next_session())
    }
    fn put_session(&mut self, id: SessionId, session: &Session) -> Result<(), JournalError> {
        self.write()?;
        each!(self, tx => tx.put_session(id, session))
    }
    fn session(&mut self, id: SessionId) -> Result<Option<Session>, JournalError> {
        each!(self, tx => tx.session(id))
    }
    fn set_key_fingerprint(&mut self, fingerprint: [u8; 32]) -> Result<(), JournalError> {
        each!(self, tx => tx.set_key_fingerprint(fingerprint))
    }
    fn create_branch(
        &mut self,
        workflow: u64,
        parent: (BranchId, Seq),
        at: Micros,
    ) -> Result<Branch, JournalError> {
        self.write()?;
        each!(self, tx => tx.create_branch(workflow, parent, at))
    }
    fn fork_workflow(
        &mut self,
        id: &WorkflowId,
        uid: [u8; 16],
        parent: (BranchId, Seq),
        at: Micros,
    ) -> Result<Workflow, JournalError> {
        self.write()?;
        each!(self, tx => tx.fork_workflow(id, uid, parent, at))
    }
    fn set_generation(&mut self, workflow: u64, session: SessionId) -> Result<(), JournalError> {
        self.write()?;
        each!(self, tx => tx.set_generation(workflow, session))
    }
    fn count_entries(&mut self, workflow: u64) -> Result<u64, JournalError> {
        each!(self, tx => tx.count_entries(workflow))
    }
    fn next_entry(&mut self, branch: BranchId, after: Seq) -> Result<Option<Stored>, JournalError> {
        each!(self, tx => tx.next_entry(branch, after))
    }
    fn lease(&mut self, fence: Fence) -> Result<Option<Lease>, JournalError> {
        each!(self, tx => tx.lease(fence))
    }
    fn put_lease(&mut self, fence: Fence, lease: &Lease) -> Result<(), JournalError> {
        self.write()?;
        each!(self, tx => tx.put_lease(fence, lease))
    }
    fn places_after(
        &mut self,
        after: Option<(BranchId, Seq)>,
        limit: usize,
    ) -> Result<Vec<(BranchId, Seq)>, JournalError> {
        each!(self, tx => tx.places_after(after, limit))
    }
    fn payload_bytes(&mut self, fence: Fence) -> Result<u64, JournalError> {
        each!(self, tx => tx.payload_bytes(fence))
    }
    fn drop_payload(&mut self, fence: Fence) -> Result<(), JournalError> {
        self.write()?;
        each!(self, tx => tx.drop_payload(fence))
    }
    fn put_detail(&mut self, event: u64, detail: &str) -> Result<(), JournalError> {
        self.write()?;
        each!(self, tx => tx.put_detail(event, detail))
    }
    fn commit(self) -> Result<(), JournalError> {
        let unknown = JournalError::Failed("the commit's end is not known".into());
        match self.fault {
            Fault::Commit(error) => {
                if error.is_final() {
                    *self.failed = Some(error.clone());
                }
                return Err(error.clone());
            }
            Fault::Unknown { is_kept: false } => {
                *self.failed = Some(unknown.clone());
                return Err(unknown);
            }
            Fault::None | Fault::Begin(_) | Fault::At(..) | Fault::Unknown { is_kept: true } => {}
        }
        match self.inner {
            Inner::Memory(tx) => tx.commit()?,
            Inner::Sqlite(tx) => tx.commit()?,
        }
        *self.committed = true;
        *self.has_written = self.writes > 0;
        if matches!(self.fault, Fault::Unknown { .. }) {
            *self.failed = Some(unknown.clone());
            return Err(unknown);
        }
        Ok(())
    }
}

/// The world around one proxy's guard.
pub(crate) struct Around {
    pub(crate) store: Store,
    pub(crate) life: usize,
    pub(crate) drawn: u64,
}

impl Surroundings for Around {
    fn take_session(&mut self, id: SessionId) -> std::io::Result<bool> {
        let mut shared = self.store.borrow_mut();
        if shared
            .owners
            .get(&id)
            .is_some_and(|life| *life != self.life)
            && shared.is_live(id)
        {
            return Ok(false);
        }
        shared.owners.insert(id, self.life);
        Ok(true)
    }

    fn is_live(&mut self, id: SessionId) -> std::io::Result<bool> {
        Ok(self.store.borrow().is_live(id))
    }

    fn is_attended(&mut self, id: SessionId) -> std::io::Result<bool> {
        Ok(self.store.borrow().is_attended(id))
    }

    fn has_room(&mut self) -> bool {
        self.store.borrow().has_room
    }

    fn raise_mark(&mut self, fence: Fence) {
        let mut shared = self.store.borrow_mut();
        shared.mark = shared.mark.max(fence.0);
    }

    fn is_upstream_alive(&mut self, _session: &Session, _is_live: bool) -> Option<bool> {
        None
    }

    fn uptime(&mut self) -> (String, u64) {
        let shared = self.store.borrow();
        let uptime_ms = u64::try_from(shared.uptime.as_millis()).unwrap_or(u64::MAX);
        (shared.boot.to_string(), uptime_ms)
    }

    fn random(&mut self) -> [u8; 16] {
        self.drawn += 1;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.drawn.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.life as u64).to_le_bytes());
        bytes
    }
}

/// The world around somebody who only asks what would happen: takes no lock and notes nothing.
pub(crate) struct Onlooker(pub(crate) Store);

impl Surroundings for Onlooker {
    fn take_session(&mut self, _id: SessionId) -> std::io::Result<bool> {
        Ok(true)
    }

    fn is_live(&mut self, id: SessionId) -> std::io::Result<bool> {
        Ok(self.0.borrow().is_live(id))
    }

    fn is_attended(&mut self, id: SessionId) -> std::io::Result<bool> {
        Ok(self.0.borrow().is_attended(id))
    }

    fn has_room(&mut self) -> bool {
        true
    }

    fn raise_mark(&mut self, _fence: Fence) {}

    fn is_upstream_alive(&mut self, _session: &Session, _is_live: bool) -> Option<bool> {
        None
    }

    fn uptime(&mut self) -> (String, u64) {
        let shared = self.0.borrow();
        let uptime_ms = u64::try_from(shared.uptime.as_millis()).unwrap_or(u64::MAX);
        (shared.boot.to_string(), uptime_ms)
    }

    fn random(&mut self) -> [u8; 16] {
        [0; 16]
    }
}
