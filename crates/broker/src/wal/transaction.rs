//! Changes that belong together, and room that is reserved for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLockReadGuard;

use super::change::{Change, Ticket};
use super::group::Append;
use super::{BEHIND_SHARE, Wal};

/// Changes that belong together: all of them go into one group, which is not closed before the transaction is dropped.
pub(crate) struct Transaction<'a> {
    wal: &'a Arc<Wal>,
    /// Held from the first change on.
    boundary: Option<RwLockReadGuard<'a, ()>>,
    ticket: Option<Ticket>,
    /// True if the transaction appended the first change of a group.
    wake: bool,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(wal: &'a Arc<Wal>) -> Transaction<'a> {
        Transaction { wal, boundary: None, ticket: None, wake: false }
    }

    /// Adds a change. `awaited`: an acknowledgement or a caller waits until it is on the disk.
    pub(crate) fn append(&mut self, change: Change, awaited: bool) -> Ticket {
        self.add(change, if awaited { Append::Awaited } else { Append::Lazy })
    }

    /// Adds an entry under a key that was never used before, and for which an acknowledgement waits.
    pub(crate) fn append_fresh(&mut self, change: Change) -> Ticket {
        self.add(change, Append::Fresh)
    }

    fn add(&mut self, change: Change, append: Append) -> Ticket {
        let wal = self.wal;
        // Recursive: a thread inside a transaction must not wait for a closing group that waits for this thread.
        self.boundary.get_or_insert_with(|| wal.boundary.read_recursive());
        let mut open = wal.open.lock();
        self.wake |= open.is_empty();
        open.count(&change);
        if open.memory_bytes() > wal.max_bytes / BEHIND_SHARE || open.bytes() > wal.max_bytes {
            wal.behind.store(true, Ordering::Relaxed);
        }
        if open.bytes() > wal.room.load(Ordering::Relaxed) && change.value.is_some() {
            wal.set_full(true);
        }
        let ticket = open.append(change, append);
        self.ticket = Some(ticket);
        ticket
    }

    /// The position of the last change, if there was one.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.boundary = None;
        if self.wake {
            self.wal.storage.wake(self.wal);
        }
    }
}

/// Room in the open group, until it is dropped.
pub(crate) struct Reservation<'a> {
    pub(super) wal: &'a Wal,
    pub(super) bytes: usize,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.wal.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
