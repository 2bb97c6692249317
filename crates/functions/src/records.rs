//! Records with a version and a checksum, in the `invocations` key space of the store.
//!
//! The first byte of a key is the kind of its record. A record is a version byte, its fields (postcard), and a CRC-32 of
//! both, which detects damage on the disk.

use std::ops::ControlFlow;
use std::sync::Arc;

use edgefaas_broker::Entry;
use edgefaas_state::store::{Batch, Store, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;

const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 4;
/// Maximum number of entries that one [`Records::page`] reads.
pub const PAGE_ENTRIES: usize = 256;

/// Reasons why a record cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The record is incomplete or its checksum is wrong.
    #[error("it is incomplete or its checksum is wrong")]
    Checksum,
    /// The version byte is unknown.
    #[error("its format version {0} is unknown; a newer version of edgefaas may have written it")]
    Version(u8),
    /// The checksum is right, but the fields do not match the type of the record.
    #[error("its fields are invalid")]
    Fields,
}

/// Reads and writes records.
#[derive(Clone)]
pub struct Records {
    store: Arc<Store>,
}

impl Records {
    /// The records in this store.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store }
    }

    /// Calls `visit` with the key and value of each entry of a kind, in the order of their keys. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn for_each(&self, kind: u8, mut visit: impl FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        let mut from = vec![kind];
        loop {
            let page = self.page(&from, kind)?;
            for (key, value) in &page {
                visit(key, value);
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

    /// Calls `visit` with the key and value of each entry of a kind, starting at key `from`, until it breaks. Holds one entry at a
    /// time. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn visit(
        &self,
        from: &[u8],
        kind: u8,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        for entry in self.store.spaces().invocations.range(from.to_vec()..vec![kind + 1]) {
            let (key, value) = entry.into_inner()?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Up to [`PAGE_ENTRIES`] entries of a kind, starting at key `from`. Blocks.
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

    /// Reads a record; `None` if the key does not exist. `what` is the name of the record in an error.
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

/// Logs that a damaged record is skipped.
pub fn warn_damaged(what: &str, key: &[u8], damage: Damage) {
    tracing::warn!(what, key = %key.escape_ascii(), %damage, "skipped a damaged record");
}

/// The stored form of a record.
pub fn encode(record: &impl Serialize) -> Vec<u8> {
    // This cannot fail: it writes plain types to memory.
    let mut bytes = postcard::to_extend(record, vec![VERSION]).unwrap_or_default();
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Decodes a stored record.
///
/// # Errors
/// The record is damaged or has an unknown version.
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

/// The key that consists of the kind of the record and `rest`.
pub fn prefixed(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + rest.len());
    key.push(kind);
    key.extend_from_slice(rest);
    key
}
