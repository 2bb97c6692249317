//! Changes of the store, and how far the store has got.

use bytes::Bytes;

/// A key space of the store that the broker owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// Sessions, subscriptions, retained messages.
    State,
    /// Messages that wait for sessions.
    Queue,
    /// Entries of hooks; the broker never reads them.
    Hook,
}

/// One change of the store: an entry that is put, or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key space.
    pub space: Space,
    /// The key.
    pub key: Vec<u8>,
    /// The value to put; `None` deletes the entry. Entries of one message for many sessions share one value.
    pub value: Option<Bytes>,
}

/// A position in the write-ahead log: all changes that were appended up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

/// Changes were not stored, and will not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store failed; what was to be kept is not on the disk")]
pub struct NotStored;

/// Key and value of an entry.
pub type Entry = (Vec<u8>, Vec<u8>);

/// Progress of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The last group that is stored.
    pub stored: u64,
    /// The first group that could not be stored; the store accepts no group from there on.
    pub failed: Option<u64>,
}

impl Progress {
    /// Result for all changes up to a ticket: stored, or not storable; `None` while that is open.
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
