//! Objects that expire: the time of their last change.
//!
//! The key space has an entry for each object whose class has a time to live, under the common prefix of its fields' keys. The
//! entry is a time up to which the object has certainly not changed, eight bytes, big-endian, in milliseconds since the Unix
//! epoch. It is up to a sixteenth of the time to live, and up to a minute, ahead of the change that wrote it, so that an object
//! that changes often writes it seldom.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fjall::{Keyspace, OwnedWriteBatch};

use super::key::FieldKey;
use super::table::Objects;
use crate::error::StoreError;

/// Maximum number of cached times; others are read again.
const MAX_KNOWN: usize = 65_536;
/// Maximum lead of an entry.
const MAX_LEAD_MS: u64 = 60_000;

/// Times of the last changes, as the writer keeps them.
pub(crate) struct LastChanges {
    space: Keyspace,
    known: HashMap<Arc<str>, u64>,
    /// Changed entries that are not written; `None` for a removed one.
    updates: HashMap<Arc<str>, Option<u64>>,
}

/// Objects whose time to live is over.
#[derive(Debug, Default)]
pub struct ExpiredObjects {
    /// The app and the name of each.
    pub objects: Vec<(String, String)>,
    /// Time at which the next object may expire, in milliseconds since the Unix epoch; `None` if none does.
    pub next_unix_ms: Option<u64>,
}

impl LastChanges {
    pub fn new(space: Keyspace) -> Self {
        Self { space, known: HashMap::new(), updates: HashMap::new() }
    }

    /// An object has changed.
    pub fn touch(&mut self, object_prefix: &str, now_ms: u64, ttl: Duration) -> Result<(), StoreError> {
        if self.get(object_prefix)?.is_some_and(|last_ms| last_ms >= now_ms) {
            return Ok(());
        }
        let lead_ms = (ttl.as_millis() as u64 / 16).min(MAX_LEAD_MS);
        self.set(object_prefix, Some(now_ms + lead_ms));
        Ok(())
    }

    /// True if the time to live of an object is over.
    pub fn is_expired(
        &mut self,
        object_prefix: &str,
        now_ms: u64,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let ttl_ms = ttl.as_millis() as u64;
        Ok(self.get(object_prefix)?.is_some_and(|last_ms| last_ms.saturating_add(ttl_ms) <= now_ms))
    }

    /// Removes the entry of an object.
    pub fn forget(&mut self, object_prefix: &str) {
        self.set(object_prefix, None);
    }

    /// True if entries have to be written.
    pub fn has_writes(&self) -> bool {
        !self.updates.is_empty()
    }

    /// Adds the changed entries to `batch`.
    pub fn write(&mut self, batch: &mut OwnedWriteBatch) {
        for (key, time) in self.updates.drain() {
            match time {
                Some(time) => batch.insert(&self.space, key.as_bytes(), time.to_be_bytes()),
                None => batch.remove(&self.space, key.as_bytes()),
            }
        }
    }

    fn get(&mut self, object_prefix: &str) -> Result<Option<u64>, StoreError> {
        if let Some(time) = self.updates.get(object_prefix) {
            return Ok(*time);
        }
        if let Some(time) = self.known.get(object_prefix) {
            return Ok(Some(*time));
        }
        let time = self.space.get(object_prefix)?.and_then(|bytes| time_of(&bytes));
        if let Some(time) = time {
            self.remember(object_prefix.into(), time);
        }
        Ok(time)
    }

    fn set(&mut self, object_prefix: &str, time: Option<u64>) {
        let key: Arc<str> = object_prefix.into();
        match time {
            Some(time) => self.remember(key.clone(), time),
            None => drop(self.known.remove(&key)),
        }
        self.updates.insert(key, time);
    }

    fn remember(&mut self, key: Arc<str>, time: u64) {
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(key, time);
    }
}

/// Objects that have expired, at most `limit`.
pub(crate) fn expired(
    space: &Keyspace,
    objects: &Objects,
    now_ms: u64,
    limit: usize,
) -> Result<ExpiredObjects, StoreError> {
    let mut found = ExpiredObjects::default();
    for entry in space.iter() {
        let (key, time) = entry.into_inner()?;
        let Some((app, object, last_ms)) = names(&key).zip(time_of(&time)).map(|((a, o), t)| (a, o, t))
        else {
            continue;
        };
        let Some(ttl) = objects.class(app, object).ttl else { continue };
        let due_ms = last_ms.saturating_add(ttl.as_millis() as u64);
        if due_ms > now_ms || found.objects.len() >= limit {
            let next_ms = found.next_unix_ms.map_or(due_ms, |next_ms| next_ms.min(due_ms));
            found.next_unix_ms = Some(next_ms);
            continue;
        }
        found.objects.push((app.to_owned(), object.to_owned()));
    }
    Ok(found)
}

/// Objects that have an entry and do not expire: their class has no time to live any more. Each an app and a name.
pub(crate) fn stale(space: &Keyspace, objects: &Objects) -> Result<Vec<(String, String)>, StoreError> {
    let mut found = Vec::new();
    for entry in space.iter() {
        let key = entry.key()?;
        let Some((app, object)) = names(&key) else { continue };
        if objects.class(app, object).ttl.is_none() {
            found.push((app.to_owned(), object.to_owned()));
        }
    }
    Ok(found)
}

/// A key of each object that expires and has no entry.
pub(crate) fn unknown(space: &Keyspace, objects: &Objects) -> Vec<FieldKey> {
    let mut found: BTreeSet<FieldKey> = BTreeSet::new();
    let mut last: Option<FieldKey> = None;
    objects.visit_keys(|key| {
        let is_next = last.as_ref().is_none_or(|last| last.object_prefix() != key.object_prefix());
        if is_next {
            last = Some(key.clone());
            let expires = objects.class(key.app(), key.object()).ttl.is_some();
            if expires && space.get(key.object_prefix()).is_ok_and(|entry| entry.is_none()) {
                found.insert(key.clone());
            }
        }
    });
    found.into_iter().collect()
}

fn names(key: &[u8]) -> Option<(&str, &str)> {
    let key = std::str::from_utf8(key).ok()?.strip_suffix('\0')?;
    key.split_once('\0')
}

fn time_of(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}
