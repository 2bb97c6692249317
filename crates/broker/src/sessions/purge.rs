//! Messages of ended sessions, deleted from the store a few at a time.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::stored;
use crate::wal::{Change, Progress, Space, Ticket, Wal};

/// Messages that are deleted at a time.
const BATCH_MESSAGES: usize = 512;

/// Ended sessions that still have messages in the store.
pub(crate) struct Purges {
    wal: Arc<Wal>,
    /// Numbers of sessions, and the position at which all of their messages are stored.
    sessions: Mutex<Vec<(u64, Ticket)>>,
}

/// The state of the purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purging {
    /// No message has to be deleted, or the store cannot be read.
    Idle,
    /// Further messages may have to be deleted.
    More,
    /// The messages can be deleted after the next commit.
    AwaitsStore,
}

impl Purges {
    pub(super) fn new(wal: Arc<Wal>) -> Purges {
        Purges { wal, sessions: Mutex::default() }
    }

    /// Adds an ended session, all of whose messages are stored at `ticket`.
    pub(super) fn add(&self, session: u64, ticket: Ticket) {
        self.sessions.lock().push((session, ticket));
    }

    /// Deletes some messages of one session, as far as the store has got. Blocks for one scan of the store.
    pub(crate) fn step(&self, progress: Progress) -> Purging {
        let is_stored = |(_, ended): &(u64, Ticket)| progress.of(*ended).is_some();
        let Some((session, _)) = self.sessions.lock().iter().copied().find(is_stored) else {
            return if self.sessions.lock().is_empty() { Purging::Idle } else { Purging::AwaitsStore };
        };
        let from = stored::queue_key(session, 0);
        let Ok(entries) = self.wal.storage().scan(Space::Queue, &from, BATCH_MESSAGES) else {
            return Purging::Idle;
        };
        let own = |key: &[u8]| stored::parse_queue_key(key).is_some_and(|(of, _)| of == session);
        let keys: Vec<Vec<u8>> =
            entries.into_iter().map(|(key, _)| key).take_while(|key| own(key)).collect();
        if keys.is_empty() {
            self.sessions.lock().retain(|(purged, _)| *purged != session);
        }
        let mut transaction = self.wal.begin();
        for key in keys {
            transaction.append(Change { space: Space::Queue, key, value: None }, false);
        }
        drop(transaction);
        if self.sessions.lock().is_empty() { Purging::Idle } else { Purging::More }
    }
}
