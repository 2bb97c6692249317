//! The store as the broker sees it.

use std::sync::Arc;

use edgefaas_broker::{Entry, Space, Storage, StorageError, Wal};
use fjall::Keyspace;

use super::Store;

/// The broker's three key spaces, and the writer that stores its write-ahead log.
pub struct BrokerStorage {
    store: Arc<Store>,
}

impl BrokerStorage {
    /// Wraps the node's store.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store }
    }

    fn space(&self, space: Space) -> &Keyspace {
        let spaces = self.store.spaces();
        match space {
            Space::State => &spaces.mqtt,
            Space::Queue => &spaces.mqtt_queue,
            Space::Hook => &spaces.invocations,
        }
    }
}

impl Storage for BrokerStorage {
    fn scan(&self, space: Space, from: &[u8], limit: usize) -> Result<Vec<Entry>, StorageError> {
        let entries = self.space(space).range(from.to_vec()..).take(limit);
        let entries = entries.map(|entry| {
            let (key, value) = entry.into_inner()?;
            Ok((key.to_vec(), value.to_vec()))
        });
        entries.collect::<fjall::Result<_>>().map_err(|error| StorageError(error.to_string()))
    }

    fn wake(&self, wal: &Arc<Wal>) {
        self.store.committer().wake_for(wal);
    }
}
