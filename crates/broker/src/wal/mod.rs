//! The write-ahead log: changes are collected here and stored in groups by a [`Storage`], which the node provides.
//!
//! ```text
//! publishers, connections --append--> the open group --take--> Storage (the node's group commit)
//!                         <-- durable(Ticket) ------ committed <---+
//! ```
//!
//! The broker opens no files. It says what to store, in order, and is notified how far the store has got. A group is
//! stored as a whole or not at all, and groups one after another, so that the store always has a state that the broker
//! had at some moment. While one group is being written the next one fills, so that all changes of a group share the
//! cost of one sync.
//!
//! An entry that is put for the first time and deleted again in the same group is not written at all: a message whose
//! subscribers have all acknowledged it before its group was closed costs the disk nothing.

mod change;
mod group;
mod memory;
mod transaction;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

pub(crate) use self::change::Progress;
pub use self::change::{Change, Entry, NotStored, Space, Ticket};
pub use self::group::Group;
use self::group::OpenGroup;
pub use self::memory::MemoryStorage;
pub(crate) use self::transaction::{Reservation, Transaction};

/// Ratio: the broker stops reading clients when one part in this number of the byte limit waits for the store.
const BEHIND_SHARE: usize = 4;
/// Ratio: messages of up to one part in this number of the free disk space are stored without a reservation.
const SMALL_SHARE: usize = 32;

/// The store can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store cannot be read: {0}")]
pub struct StorageError(pub String);

/// The store of a broker.
pub trait Storage: Send + Sync + 'static {
    /// Up to `limit` entries from the key `from` on, in the order of their keys. Sees all groups that were reported as
    /// [committed](Wal::committed). Blocks for as long as the disk takes.
    ///
    /// # Errors
    /// The store can't be read.
    fn scan(&self, space: Space, from: &[u8], limit: usize) -> Result<Vec<Entry>, StorageError>;

    /// The write-ahead log has something to [take](Wal::take). Called once for each group, on the thread that appends its
    /// first change; must not block.
    fn wake(&self, wal: &Arc<Wal>);
}

/// The write-ahead log of a broker: changes that the store has not taken, and how far the store has got.
pub struct Wal {
    storage: Arc<dyn Storage>,
    /// Bytes of changes that may wait for the store before the broker accepts nothing more to be stored.
    max_bytes: usize,
    /// Held for reading while changes are appended that belong together, and for writing to close a group.
    boundary: RwLock<()>,
    open: Mutex<OpenGroup>,
    progress: watch::Sender<Progress>,
    full: AtomicBool,
    /// The store is no longer full.
    room_again: Arc<Notify>,
    /// Bytes that the open group may take before the store is full.
    room: AtomicUsize,
    /// Bytes of it that are reserved for messages to many sessions.
    reserved: AtomicUsize,
    /// A message was refused for want of room.
    refused: AtomicBool,
    stalled: AtomicBool,
    behind: AtomicBool,
}

impl Wal {
    pub(crate) fn new(storage: Arc<dyn Storage>, max_bytes: usize) -> Arc<Wal> {
        Arc::new(Wal {
            storage,
            max_bytes,
            boundary: RwLock::new(()),
            open: Mutex::new(OpenGroup::new()),
            progress: watch::Sender::new(Progress { stored: 0, failed: None }),
            full: AtomicBool::new(false),
            room_again: Arc::default(),
            room: AtomicUsize::new(usize::MAX),
            reserved: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            behind: AtomicBool::new(false),
        })
    }

    /// Closes the open group and returns it; `None` if it has no change. One at a time: the next one after
    /// [`committed`](Self::committed).
    pub fn take(&self) -> Option<Group> {
        // Transactions that have begun to append finish first.
        let _boundary = self.boundary.write();
        let mut open = self.open.lock();
        if open.is_empty() {
            return None;
        }
        let closed = open.close();
        self.behind.store(false, Ordering::Relaxed);
        drop(open);
        Some(closed.sort())
    }

    /// Reports whether a group that was taken is stored. After a failure the store accepts no group any more: all changes
    /// from there on count as not stored.
    pub fn committed(&self, group: &Group, stored: bool) {
        self.progress.send_modify(|progress| match stored {
            true => progress.stored = group.number,
            false => {
                progress.failed.get_or_insert(group.number);
            }
        });
    }

    /// Reports that the store is beyond repair: groups that were taken and not reported, and all later ones, count as not
    /// stored.
    pub fn fail(&self) {
        self.progress.send_modify(|progress| {
            progress.failed.get_or_insert(progress.stored + 1);
        });
    }

    /// Reports whether the store is full. While it is, publishes that have to be stored are refused with "quota exceeded";
    /// acknowledgements and deletions are still appended.
    pub fn set_full(&self, full: bool) {
        if self.full.swap(full, Ordering::Relaxed) != full {
            match full {
                true => tracing::warn!("the store is full; messages that have to be stored are refused"),
                false => {
                    tracing::info!("the store has room again");
                    self.room_again.notify_waiters();
                }
            }
        }
    }

    /// Reports how many bytes more the store has room for. Publishes that have to be stored beyond it are refused until the
    /// next call.
    pub fn set_room(&self, bytes: usize) {
        self.room.store(bytes, Ordering::Relaxed);
        self.set_full(bytes == 0);
    }

    /// True if a message of `bytes` needs no reservation: many of them at the same moment still fit.
    pub(crate) fn is_small(&self, bytes: usize) -> bool {
        bytes <= self.room.load(Ordering::Relaxed) / SMALL_SHARE
    }

    /// Reserves room for changes that are appended as one; `None` if there is not enough, and then wakes the store to look
    /// for room. Without it, a group could get larger than the room on the disk, and neither it nor any later group
    /// would be stored.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation<'_>> {
        let open = self.open.lock();
        let taken =
            open.bytes().saturating_add(self.reserved.load(Ordering::Relaxed)).saturating_add(bytes);
        // Half of it: the rest is for changes that are appended without a reservation.
        if taken > self.room.load(Ordering::Relaxed) / 2 {
            drop(open);
            self.refused.store(true, Ordering::Relaxed);
            self.storage.wake(self);
            return None;
        }
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        Some(Reservation { wal: self, bytes })
    }

    /// True if there is room for `bytes` that a hook will append soon. If not, wakes the store to look for room.
    pub fn has_room(self: &Arc<Self>, bytes: usize) -> bool {
        self.reserve(bytes).is_some()
    }

    /// True if a message was refused since the last call, because there was room for smaller messages only.
    pub fn takes_refusal(&self) -> bool {
        self.refused.swap(false, Ordering::Relaxed)
    }

    /// Reports whether nothing can be written at the moment, deletions included: the open group waits for space.
    pub fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    /// True if deletions must be refused as well. In this case wakes the store, which checks its space again.
    pub(crate) fn is_stalled(self: &Arc<Self>) -> bool {
        let stalled = self.stalled.load(Ordering::Relaxed);
        if stalled {
            self.storage.wake(self);
        }
        stalled
    }

    /// Bytes in the open group.
    pub fn waiting_bytes(&self) -> usize {
        self.open.lock().bytes()
    }

    /// True if new entries must be refused. In this case wakes the store, which checks its space again.
    pub fn is_full(self: &Arc<Self>) -> bool {
        let full = self.full.load(Ordering::Relaxed);
        if full {
            self.storage.wake(self);
        }
        full
    }

    /// Notification that the store is no longer full.
    pub(crate) fn room_again(&self) -> &Arc<Notify> {
        &self.room_again
    }

    /// All changes that were appended until now.
    pub(crate) fn so_far(&self) -> Ticket {
        self.open.lock().ticket()
    }

    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Transaction<'_> {
        Transaction::new(self)
    }

    /// Notifies of every [`Progress`].
    pub(crate) fn watch(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    pub(crate) fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// True if too many changes wait for the store, so that the broker does not read clients.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }

    /// True if more than `max_bytes` wait for the store: the broker accepts nothing more that it has to store.
    pub(crate) fn is_far_behind(&self) -> bool {
        self.is_behind() && self.open.lock().memory_bytes() > self.max_bytes
    }

    /// Waits until all changes up to `ticket` are stored.
    pub(crate) async fn durable(&self, ticket: Ticket) -> Result<(), NotStored> {
        let mut progress = self.watch();
        let reached = progress.wait_for(|progress| progress.of(ticket).is_some()).await;
        reached.ok().and_then(|progress| progress.of(ticket)).unwrap_or(Err(NotStored))
    }
}
