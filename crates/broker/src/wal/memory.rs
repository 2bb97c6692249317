//! A store in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::{Change, Entry, Space, Storage, StorageError, Wal};

type Entries = BTreeMap<(Space, Vec<u8>), Vec<u8>>;

/// A store in memory: for brokers that keep nothing over a restart, and for tests, where it stands for a disk
/// that outlives the broker. A thread of its own stores the groups, as a store on a disk would; it ends with the last
/// reference to the storage.
pub struct MemoryStorage {
    entries: Arc<Mutex<Entries>>,
    paused: Arc<Mutex<bool>>,
    /// `None` while it is dropped.
    wakes: Option<mpsc::Sender<Arc<Wal>>>,
    writer: Option<JoinHandle<()>>,
}

impl Default for MemoryStorage {
    fn default() -> MemoryStorage {
        let entries = Arc::<Mutex<Entries>>::default();
        let paused = Arc::<Mutex<bool>>::default();
        let (wakes, woken) = mpsc::channel::<Arc<Wal>>();
        let (own_entries, own_paused) = (entries.clone(), paused.clone());
        let writer = std::thread::spawn(move || {
            for wal in woken {
                let paused = own_paused.lock();
                if !*paused {
                    store_all(&wal, &own_entries);
                }
            }
        });
        MemoryStorage { entries, paused, wakes: Some(wakes), writer: Some(writer) }
    }
}

impl Drop for MemoryStorage {
    fn drop(&mut self) {
        // The channel closes, and the thread ends.
        self.wakes = None;
        if let Some(writer) = self.writer.take()
            // The last reference may be that of a log which the thread itself was woken for.
            && writer.thread().id() != std::thread::current().id()
        {
            let _ = writer.join();
        }
    }
}

fn store_all(wal: &Wal, entries: &Mutex<Entries>) {
    while let Some(mut group) = wal.take() {
        let mut entries = entries.lock();
        let fresh = std::mem::take(&mut group.fresh);
        for Change { space, key, value } in fresh.into_iter().chain(std::mem::take(&mut group.changes)) {
            match value {
                Some(value) => {
                    // The limit of a store on a disk.
                    assert!(key.len() <= 65_535, "a key of {} bytes", key.len());
                    entries.insert((space, key), value.into())
                }
                None => entries.remove(&(space, key)),
            };
        }
        drop(entries);
        wal.committed(&group, true);
    }
}

impl MemoryStorage {
    /// Stores nothing until [`resume`](Self::resume), as a slow disk.
    pub fn pause(&self) {
        *self.paused.lock() = true;
    }

    /// Stores the changes of the pause, and goes on.
    pub fn resume(&self, wal: &Arc<Wal>) {
        *self.paused.lock() = false;
        self.wake(wal);
    }

    /// Number of entries in a space.
    pub fn len(&self, space: Space) -> usize {
        self.entries.lock().keys().filter(|(of, _)| *of == space).count()
    }

    /// True if nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    /// A copy of the entries: as after a power cut, for another broker.
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

    fn wake(&self, wal: &Arc<Wal>) {
        if let Some(wakes) = &self.wakes {
            // The thread lives as long as the storage.
            let _ = wakes.send(wal.clone());
        }
    }
}
