//! The way to the disk: changes are collected here and stored in groups by somebody who owns a store.
//!
//! ```text
//! publishers, connections --append--> the open group --take--> Storage (the node's group commit)
//!                         <-- durable(Ticket) ------ committed <---+
//! ```
//!
//! The broker opens no files. It says what to store, in order, and learns how far the store has got. A group is stored
//! as a whole or not at all, and groups one after another, so that what is stored is always what was there at some
//! moment. While one group is being written the next one fills, so that the cost of reaching the disk is shared by
//! everybody who waits for it.
//!
//! An entry that is put for the first time and deleted again in the same group is not written at all: a message whose
//! subscribers have all acknowledged it while it waited for its turn costs the disk nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::watch;

/// Clients are not read any more when one in so many bytes of the limit waits for the store.
const BEHIND_SHARE: usize = 4;
/// Messages of up to one in so many bytes of the room on the disk are stored without a look at the sum of those under way.
const LITTLE_SHARE: usize = 32;

/// A part of the store that the broker may use: a key space of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// Sessions, subscriptions, retained messages.
    State,
    /// Messages that wait for sessions.
    Queue,
    /// What hooks record; the broker never looks at it.
    Hook,
}

/// One change of the store: an entry that is put, or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Where.
    pub space: Space,
    /// The key.
    pub key: Vec<u8>,
    /// The value to put; `None` deletes the entry. Entries of one message for many sessions share theirs.
    pub value: Option<Bytes>,
}

/// A moment in the order of all changes: what was appended up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Changes were not stored, and will not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store failed; what was to be kept is not on the disk")]
pub struct NotStored;

/// The store can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store cannot be read: {0}")]
pub struct StorageError(pub String);

/// Key and value of an entry.
pub type Entry = (Vec<u8>, Vec<u8>);

/// What a broker needs of a store.
pub trait Storage: Send + Sync + 'static {
    /// Up to `limit` entries from the key `from` on, in the order of their keys. Sees what was reported as
    /// [committed](Journal::committed). Blocks for as long as the disk takes.
    ///
    /// # Errors
    /// The store can't be read.
    fn scan(&self, space: Space, from: &[u8], limit: usize) -> Result<Vec<Entry>, StorageError>;

    /// The journal has something to [take](Journal::take). Called once for each group, by whoever appends its first
    /// change; must not block.
    fn wake(&self, journal: &Arc<Journal>);
}

/// Changes that the store has not taken.
pub struct Journal {
    storage: Arc<dyn Storage>,
    /// Changes that may wait for the store before nothing more is taken from anybody.
    max_bytes: usize,
    /// Held for reading while changes are appended that belong together, and for writing to close a group.
    boundary: RwLock<()>,
    open: Mutex<Open>,
    progress: watch::Sender<Progress>,
    full: AtomicBool,
    /// Bytes that the open group may take before the store is full.
    room: AtomicUsize,
    /// Bytes of it that are reserved for messages to many sessions.
    reserved: AtomicUsize,
    /// A message was refused for want of room.
    refused: AtomicBool,
    stalled: AtomicBool,
    behind: AtomicBool,
}

/// Changes that are stored together.
#[derive(Debug)]
pub struct Group {
    number: u64,
    /// Entries under keys that were never used before; `changes` has none of them.
    pub fresh: Vec<Change>,
    /// In the order in which they happened: a later change of a key counts.
    pub changes: Vec<Change>,
    /// Somebody waits until they are on the disk. Without it, reaching the operating system is enough for now.
    pub awaited: bool,
}

#[derive(Debug)]
struct Open {
    number: u64,
    /// `None` for those that were taken back.
    changes: Vec<Option<Appended>>,
    /// What they take on the disk.
    bytes: usize,
    /// What they take in memory, where a value that is shared counts once.
    memory_bytes: usize,
    /// Address and length of the last value.
    last_value: (usize, usize),
    /// Positions in `changes` of entries that the store does not have.
    fresh: HashMap<Vec<u8>, usize>,
}

#[derive(Debug)]
struct Appended {
    change: Change,
    /// Somebody waits until it is on the disk.
    awaited: bool,
    /// Its key was never used before.
    fresh: bool,
}

/// How far the store has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The last group that is stored.
    pub stored: u64,
    /// The first group that could not be stored; the store takes nothing from there on.
    pub failed: Option<u64>,
}

impl Progress {
    /// The fate of what was appended up to a ticket, once it is known.
    pub(crate) fn of(&self, ticket: Ticket) -> Option<Result<(), NotStored>> {
        if self.failed.is_some_and(|failed| ticket.0 >= failed) {
            Some(Err(NotStored))
        } else if ticket.0 <= self.stored {
            Some(Ok(()))
        } else {
            None
        }
    }
}

/// Room in the open group, until it is dropped.
pub(crate) struct Reservation<'a> {
    journal: &'a Journal,
    bytes: usize,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.journal.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Changes that belong together: all of them go into one group.
pub(crate) struct Transaction<'a> {
    journal: &'a Arc<Journal>,
    /// Held from the first change on.
    boundary: Option<RwLockReadGuard<'a, ()>>,
    ticket: Option<Ticket>,
    wake: bool,
}

impl Journal {
    pub(crate) fn new(storage: Arc<dyn Storage>, max_bytes: usize) -> Arc<Journal> {
        let open = Open {
            number: 1,
            changes: Vec::new(),
            bytes: 0,
            memory_bytes: 0,
            last_value: (0, 0),
            fresh: HashMap::new(),
        };
        Arc::new(Journal {
            storage,
            max_bytes,
            boundary: RwLock::new(()),
            open: Mutex::new(open),
            progress: watch::Sender::new(Progress { stored: 0, failed: None }),
            full: AtomicBool::new(false),
            room: AtomicUsize::new(usize::MAX),
            reserved: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            behind: AtomicBool::new(false),
        })
    }

    /// Closes the open group and hands it over, or says that nothing was changed. One at a time: the next one after
    /// [`committed`](Self::committed).
    pub fn take(&self) -> Option<Group> {
        // Whoever is in the middle of appending finishes first.
        let _boundary = self.boundary.write();
        let mut open = self.open.lock();
        if open.changes.is_empty() {
            return None;
        }
        let number = open.number;
        open.number += 1;
        (open.bytes, open.memory_bytes, open.last_value) = (0, 0, (0, 0));
        self.behind.store(false, Ordering::Relaxed);
        open.fresh.clear();
        let changes = std::mem::take(&mut open.changes);
        drop(open);
        let mut group = Group { number, fresh: Vec::new(), changes: Vec::new(), awaited: false };
        for Appended { change, awaited, fresh } in changes.into_iter().flatten() {
            group.awaited |= awaited;
            if fresh { group.fresh.push(change) } else { group.changes.push(change) }
        }
        Some(group)
    }

    /// The fate of a group that was taken. After a failure the store takes nothing any more: everything appended from
    /// there on counts as not stored.
    pub fn committed(&self, group: &Group, stored: bool) {
        self.progress.send_modify(|progress| match stored {
            true => progress.stored = group.number,
            false => {
                progress.failed.get_or_insert(group.number);
            }
        });
    }

    /// The store is beyond repair: what was taken and not reported, and everything from there on, counts as not stored.
    pub fn fail(&self) {
        self.progress.send_modify(|progress| {
            progress.failed.get_or_insert(progress.stored + 1);
        });
    }

    /// Says whether there is room for more. Without it, what would have to be stored is refused with "quota exceeded";
    /// what is being acknowledged or deleted still comes.
    pub fn set_full(&self, full: bool) {
        if self.full.swap(full, Ordering::Relaxed) != full {
            match full {
                true => tracing::warn!("the store is full; messages that have to be stored are refused"),
                false => tracing::info!("the store has room again"),
            }
        }
    }

    /// Says how many bytes more there is room for. What would have to be stored beyond is refused until the next call.
    pub fn set_room(&self, bytes: usize) {
        self.room.store(bytes, Ordering::Relaxed);
        self.set_full(bytes == 0);
    }

    /// Whether so many bytes are little, beside what there is room for: many such messages at the same moment do no harm.
    pub(crate) fn is_little(&self, bytes: usize) -> bool {
        bytes <= self.room.load(Ordering::Relaxed) / LITTLE_SHARE
    }

    /// Keeps room for what is to be appended as one, or says that there is not enough. A group that is larger than the room on the disk
    /// would never be stored, and nothing after it. Then the store is asked to look for room.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation<'_>> {
        let open = self.open.lock();
        let taken = open.bytes.saturating_add(self.reserved.load(Ordering::Relaxed)).saturating_add(bytes);
        // Half of it: the rest is for what is appended without a look.
        if taken > self.room.load(Ordering::Relaxed) / 2 {
            drop(open);
            self.refused.store(true, Ordering::Relaxed);
            self.storage.wake(self);
            return None;
        }
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        Some(Reservation { journal: self, bytes })
    }

    /// Whether there is room for so many bytes that a hook is to append soon. If not, the store is asked to look for it.
    pub fn has_room(self: &Arc<Self>, bytes: usize) -> bool {
        self.reserve(bytes).is_some()
    }

    /// Whether a message was refused since the last call, because there was room for smaller ones only.
    pub fn takes_refusal(&self) -> bool {
        self.refused.swap(false, Ordering::Relaxed)
    }

    /// Says whether nothing can be written at the moment, deletions included: the open group waits for space.
    pub fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    /// Whether deletions are to be refused as well. Asks the store to look again.
    pub(crate) fn is_stalled(self: &Arc<Self>) -> bool {
        let stalled = self.stalled.load(Ordering::Relaxed);
        if stalled {
            self.storage.wake(self);
        }
        stalled
    }

    /// Bytes in the open group.
    pub fn waiting_bytes(&self) -> usize {
        self.open.lock().bytes
    }

    /// Whether new things to keep are to be refused. Asks the store to look again.
    pub fn is_full(self: &Arc<Self>) -> bool {
        let full = self.full.load(Ordering::Relaxed);
        if full {
            self.storage.wake(self);
        }
        full
    }

    /// Everything that was appended until now.
    pub(crate) fn so_far(&self) -> Ticket {
        let open = self.open.lock();
        Ticket(if open.changes.is_empty() { open.number - 1 } else { open.number })
    }

    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Transaction<'_> {
        Transaction { journal: self, boundary: None, ticket: None, wake: false }
    }

    /// For connections that wait for the store.
    pub(crate) fn watch(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    pub(crate) fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Whether so much waits for the store that nobody should add to it.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }

    /// Whether so much waits that nothing new to keep is to be taken from anybody.
    pub(crate) fn is_far_behind(&self) -> bool {
        self.is_behind() && self.open.lock().memory_bytes > self.max_bytes
    }

    /// Waits until what was appended up to `ticket` is stored.
    pub(crate) async fn durable(&self, ticket: Ticket) -> Result<(), NotStored> {
        let mut progress = self.watch();
        let reached = progress.wait_for(|progress| progress.of(ticket).is_some()).await;
        reached.ok().and_then(|progress| progress.of(ticket)).unwrap_or(Err(NotStored))
    }
}

impl Transaction<'_> {
    /// Adds a change. `awaited`: somebody waits until it is on the disk.
    pub(crate) fn append(&mut self, change: Change, awaited: bool) -> Ticket {
        self.add(change, awaited, false)
    }

    /// Adds an entry with a key that was never used before, and that somebody waits for.
    pub(crate) fn append_fresh(&mut self, change: Change) -> Ticket {
        self.add(change, true, true)
    }

    fn add(&mut self, change: Change, awaited: bool, fresh: bool) -> Ticket {
        // Recursive: a thread that is in the middle of one transaction may not wait for a boundary that waits for it.
        let journal = self.journal;
        self.boundary.get_or_insert_with(|| journal.boundary.read_recursive());
        let mut open = self.journal.open.lock();
        self.wake |= open.changes.is_empty();
        let value = change.value.as_ref().map_or((0, 0), |value| (value.as_ptr() as usize, value.len()));
        open.bytes += change.key.len() + value.1;
        open.memory_bytes += size_of::<Change>() + 2 * change.key.len();
        if value != open.last_value {
            open.memory_bytes += value.1;
            open.last_value = value;
        }
        if open.memory_bytes > self.journal.max_bytes / BEHIND_SHARE || open.bytes > self.journal.max_bytes
        {
            self.journal.behind.store(true, Ordering::Relaxed);
        }
        if open.bytes > self.journal.room.load(Ordering::Relaxed) && change.value.is_some() {
            self.journal.set_full(true);
        }
        let ticket = Ticket(open.number);
        if fresh {
            let at = open.changes.len();
            open.fresh.insert(change.key.clone(), at);
            open.changes.push(Some(Appended { change, awaited, fresh }));
        } else if change.space == Space::Queue
            && let Some(&at) = open.fresh.get(&change.key)
        {
            // The store never hears of it, or of its last value only.
            match change.value {
                Some(_) => open.changes[at] = Some(Appended { change, awaited: true, fresh: true }),
                None => {
                    open.fresh.remove(&change.key);
                    open.changes[at] = None;
                }
            }
        } else {
            open.changes.push(Some(Appended { change, awaited, fresh }));
        }
        self.ticket = Some(ticket);
        ticket
    }

    /// The moment of the last change, if there was one.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.boundary = None;
        if self.wake {
            self.journal.storage.wake(self.journal);
        }
    }
}

type Entries = BTreeMap<(Space, Vec<u8>), Vec<u8>>;

/// A store in memory: for brokers that are to keep nothing over a restart, and for tests, where it stands for a disk
/// that outlives the broker. A thread of its own takes what there is, as a real store would.
pub struct MemoryStorage {
    entries: Arc<Mutex<Entries>>,
    paused: Arc<Mutex<bool>>,
    wakes: mpsc::Sender<Arc<Journal>>,
}

impl Default for MemoryStorage {
    fn default() -> MemoryStorage {
        let entries = Arc::<Mutex<Entries>>::default();
        let paused = Arc::<Mutex<bool>>::default();
        let (wakes, woken) = mpsc::channel::<Arc<Journal>>();
        let (own_entries, own_paused) = (entries.clone(), paused.clone());
        // Ends with the storage; the journals it is sent hold the storage, but only until they were looked at.
        std::thread::spawn(move || {
            for journal in woken {
                let paused = own_paused.lock();
                if !*paused {
                    store_all(&journal, &own_entries);
                }
            }
        });
        MemoryStorage { entries, paused, wakes }
    }
}

fn store_all(journal: &Journal, entries: &Mutex<Entries>) {
    while let Some(mut group) = journal.take() {
        let mut entries = entries.lock();
        let fresh = std::mem::take(&mut group.fresh);
        for Change { space, key, value } in fresh.into_iter().chain(std::mem::take(&mut group.changes)) {
            match value {
                Some(value) => {
                    // As a store on a disk has it.
                    assert!(key.len() <= 65_535, "a key of {} bytes", key.len());
                    entries.insert((space, key), value.into())
                }
                None => entries.remove(&(space, key)),
            };
        }
        drop(entries);
        journal.committed(&group, true);
    }
}

impl MemoryStorage {
    /// Stores nothing from now on until it is resumed, as a disk that is slow.
    pub fn pause(&self) {
        *self.paused.lock() = true;
    }

    /// Stores what has come meanwhile, and goes on.
    pub fn resume(&self, broker: &crate::Broker) {
        *self.paused.lock() = false;
        self.wake(broker.journal());
    }

    /// How many entries a space has.
    pub fn len(&self, space: Space) -> usize {
        self.entries.lock().keys().filter(|(of, _)| *of == space).count()
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    /// What is stored now: as after a power cut, for a broker of its own.
    pub fn snapshot(&self) -> MemoryStorage {
        let copy = MemoryStorage::default();
        copy.entries.lock().clone_from(&self.entries.lock());
        copy
    }
}

impl Storage for MemoryStorage {
    fn scan(&self, space: Space, from: &[u8], limit: usize) -> Result<Vec<Entry>, StorageError> {
        let entries = self.entries.lock();
        let found = entries.range((space, from.to_vec())..).take_while(|((of, _), _)| *of == space);
        Ok(found.take(limit).map(|((_, key), value)| (key.clone(), value.clone())).collect())
    }

    fn wake(&self, journal: &Arc<Journal>) {
        // The thread lives as long as the storage.
        let _ = self.wakes.send(journal.clone());
    }
}
