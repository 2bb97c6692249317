//! Checked records in the store's key space of invocations.
//!
//! The first byte of a key is the kind of its record. A record is a version byte, its fields (postcard), and a CRC-32 of
//! both, so that damage on the disk is found.

use std::sync::Arc;

use edgefaas_broker::Entry;
use edgefaas_state::store::{Batch, Store, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;

const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 4;
/// Entries that are read from the disk at a time.
pub const PAGE_ENTRIES: usize = 256;

/// Why a record can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Its bytes are not those that were written.
    #[error("it is cut off or its checksum is wrong")]
    Checksum,
    /// Written by another version.
    #[error("its format {0} is not known; was it written by a newer version?")]
    Version(u8),
    /// The bytes are right and mean nothing.
    #[error("its fields make no sense")]
    Fields,
}

/// Reads and writes records.
#[derive(Clone)]
pub struct Records {
    store: Arc<Store>,
}

impl Records {
    /// The records of this store.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store }
    }

    /// Calls `found` with all entries of a kind, in the order of their keys. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn for_each(&self, kind: u8, mut found: impl FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        let mut from = vec![kind];
        loop {
            let page = self.page(&from, kind)?;
            for (key, value) in &page {
                found(key, value);
            }
            match page.into_iter().next_back() {
                Some((mut key, _)) => {
                    key.push(0);
                    from = key;
                }
                None => return Ok(()),
            }
        }
    }

    /// Up to [`PAGE_ENTRIES`] entries of a kind, from a key on.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn page(&self, from: &[u8], kind: u8) -> Result<Vec<Entry>, StoreError> {
        let mut page = Vec::new();
        for entry in self.store.spaces().invocations.range(from.to_vec()..vec![kind + 1]).take(PAGE_ENTRIES)
        {
            let (key, value) = entry.into_inner()?;
            page.push((key.to_vec(), value.to_vec()));
        }
        Ok(page)
    }

    /// A record; `what` is its name in an error.
    ///
    /// # Errors
    /// The store cannot be read, or the record is damaged.
    pub fn get<T: DeserializeOwned>(&self, what: &str, key: &[u8]) -> Result<Option<T>, StoreError> {
        let Some(value) = self.store.spaces().invocations.get(key)? else { return Ok(None) };
        decode(&value)
            .map(Some)
            .map_err(|damage| StoreError::Damaged { what: what.to_owned(), reason: damage.to_string() })
    }

    /// Adds an encoded record to a batch.
    pub fn put(&self, batch: &mut Batch, key: Vec<u8>, value: Vec<u8>) {
        batch.put(&self.store.spaces().invocations, key, value);
    }

    /// Adds the deletion of a record to a batch.
    pub fn delete(&self, batch: &mut Batch, key: Vec<u8>) {
        batch.delete(&self.store.spaces().invocations, key);
    }
}

/// Logs that a record is damaged and left out.
pub fn warn_damaged(what: &str, key: &[u8], damage: Damage) {
    tracing::warn!(what, key = %key.escape_ascii(), %damage, "a record is damaged and left out");
}

/// A record as it is stored.
pub fn encode(record: &impl Serialize) -> Vec<u8> {
    // Into memory, of types that are all plain: this cannot fail.
    let mut bytes = postcard::to_extend(record, vec![VERSION]).unwrap_or_default();
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// A record from what is stored.
///
/// # Errors
/// What is wrong with it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damage> {
    let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(Damage::Checksum)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
        return Err(Damage::Checksum);
    }
    match body.split_first() {
        Some((&VERSION, fields)) => postcard::from_bytes(fields).map_err(|_| Damage::Fields),
        Some((version, _)) => Err(Damage::Version(*version)),
        None => Err(Damage::Checksum),
    }
}

/// A key of a kind.
pub fn prefixed(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + rest.len());
    key.push(kind);
    key.extend_from_slice(rest);
    key
}
