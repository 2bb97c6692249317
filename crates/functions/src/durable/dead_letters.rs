//! Kept dead letters: durable invocations that failed for good, with their events, to be looked at, retried or discarded.
//!
//! Memory holds a few words of each; the records are on the disk. Over a limit the function that has the most loses its oldest, so
//! that a function whose every invocation fails does not drive out the dead letters of others.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use edgefaas_state::store::StoreError;
use parking_lot::Mutex;
use ulid::Ulid;

use super::Retention;
use super::invocation_records::{self, DEAD};
use crate::records::{self, Records};

/// Bytes of a dead letter that are counted beside its record, for its key and the structures of the store.
const OVERHEAD_BYTES: u64 = 128;

/// The place of a dead letter: they are kept in the order of their ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadKey {
    /// Its end, in milliseconds since the Unix epoch.
    pub ended_unix_ms: u64,
    /// The invocation.
    pub id: Ulid,
}

/// The dead letters that are kept.
pub(super) struct DeadLetters {
    limits: Retention,
    index: Mutex<Index>,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Index {
    entries: BTreeMap<DeadKey, Entry>,
    of_functions: HashMap<Arc<str>, Totals>,
    totals: Totals,
}

#[derive(Debug, Clone)]
struct Entry {
    function: Arc<str>,
    bytes: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    count: u64,
    bytes: u64,
}

/// A dead letter that was taken out, to be retried or discarded.
#[derive(Debug)]
pub(super) struct TakenDead {
    pub key: DeadKey,
    entry: Entry,
}

impl DeadLetters {
    pub fn new(limits: Retention) -> Self {
        Self { limits, index: Mutex::default(), dropped: AtomicU64::new(0) }
    }

    /// Reads which there are. Blocks.
    pub fn load(&self, records: &Records) -> Result<(), StoreError> {
        let mut index = self.index.lock();
        records.for_each(DEAD, |key, value| match invocation_records::parse_dead_key(key) {
            Some((key, function)) => index.insert(key, Entry::new(function.into(), value.len())),
            None => records::warn_damaged("a dead letter", key, records::Damage::Fields),
        })
    }

    /// Adds a dead letter of `bytes` bytes. Returns those that made room for it, with their functions; it is one of them itself if it
    /// is larger than all may be together.
    pub fn add(&self, function: &Arc<str>, key: DeadKey, bytes: usize) -> Vec<(DeadKey, Arc<str>)> {
        let mut index = self.index.lock();
        index.insert(key, Entry::new(function.clone(), bytes));
        let mut removed = Vec::new();
        while let Some(over) = index.over(&self.limits) {
            let Some((key, entry)) = index.oldest_of(&over).and_then(|oldest| index.remove(oldest)) else {
                break;
            };
            removed.push((key, entry.function));
        }
        self.dropped.fetch_add(removed.len() as u64, Relaxed);
        removed
    }

    /// Removes those that ended before this time.
    pub fn expire(&self, now_unix_ms: u64) -> Vec<(DeadKey, Arc<str>)> {
        let kept_since = now_unix_ms.saturating_sub(self.limits.time.as_millis() as u64);
        let mut index = self.index.lock();
        let mut removed = Vec::new();
        while let Some(oldest) = index.entries.first_key_value().map(|(key, _)| *key)
            && oldest.ended_unix_ms < kept_since
            && let Some((key, entry)) = index.remove(oldest)
        {
            removed.push((key, entry.function));
        }
        removed
    }

    /// Takes a dead letter out; `None` if there is none of this id. Of two callers one gets it.
    pub fn take(&self, id: Ulid) -> Option<TakenDead> {
        let mut index = self.index.lock();
        let key = *index.entries.keys().rev().find(|key| key.id == id)?;
        index.remove(key).map(|(key, entry)| TakenDead { key, entry })
    }

    /// Puts one back that was taken out.
    pub fn put_back(&self, taken: TakenDead) {
        self.index.lock().insert(taken.key, taken.entry);
    }

    /// The key and the function of a dead letter.
    pub fn find(&self, id: Ulid) -> Option<(DeadKey, Arc<str>)> {
        let index = self.index.lock();
        let (key, entry) = index.entries.iter().rev().find(|(key, _)| key.id == id)?;
        Some((*key, entry.function.clone()))
    }

    /// Up to `limit` of them, the last one first, of this function or of all; those that ended before `before`.
    pub fn page(
        &self,
        function: Option<&str>,
        before: Option<DeadKey>,
        limit: usize,
    ) -> Vec<(DeadKey, Arc<str>)> {
        let index = self.index.lock();
        let end = match before {
            Some(key) => std::ops::Bound::Excluded(key),
            None => std::ops::Bound::Unbounded,
        };
        let of_function = |entry: &Entry| function.is_none_or(|function| *entry.function == *function);
        let found = index.entries.range((std::ops::Bound::Unbounded, end)).rev();
        let found = found.filter(|(_, entry)| of_function(entry)).take(limit);
        found.map(|(key, entry)| (*key, entry.function.clone())).collect()
    }

    pub fn count(&self) -> u64 {
        self.index.lock().totals.count
    }

    /// Those that were given up for want of room.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

impl TakenDead {
    pub fn function(&self) -> &Arc<str> {
        &self.entry.function
    }
}

impl Entry {
    fn new(function: Arc<str>, record_bytes: usize) -> Self {
        Self { function, bytes: record_bytes as u64 + OVERHEAD_BYTES }
    }
}

impl Index {
    fn insert(&mut self, key: DeadKey, entry: Entry) {
        let bytes = entry.bytes;
        let of_function = self.of_functions.entry(entry.function.clone()).or_default();
        if let Some(former) = self.entries.insert(key, entry) {
            // A damaged store may have two records of one key.
            of_function.remove(former.bytes);
            self.totals.remove(former.bytes);
        }
        of_function.add(bytes);
        self.totals.add(bytes);
    }

    fn remove(&mut self, key: DeadKey) -> Option<(DeadKey, Entry)> {
        let entry = self.entries.remove(&key)?;
        self.totals.remove(entry.bytes);
        if let Some(of_function) = self.of_functions.get_mut(&entry.function) {
            of_function.remove(entry.bytes);
            if of_function.count == 0 {
                self.of_functions.remove(&entry.function);
            }
        }
        Some((key, entry))
    }

    /// The function that has the most, of the number or of the bytes that are over their limit.
    fn over(&self, limits: &Retention) -> Option<Arc<str>> {
        let most = |size: fn(&Totals) -> u64| {
            let largest = self.of_functions.iter().max_by_key(|(_, totals)| size(totals));
            largest.map(|(function, _)| function.clone())
        };
        if self.totals.bytes > limits.bytes {
            return most(|totals| totals.bytes);
        }
        (self.totals.count > limits.count).then(|| most(|totals| totals.count)).flatten()
    }

    fn oldest_of(&self, function: &str) -> Option<DeadKey> {
        self.entries.iter().find(|(_, entry)| *entry.function == *function).map(|(key, _)| *key)
    }
}

impl Totals {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: u64) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn letters(count: u64, bytes: u64) -> DeadLetters {
        DeadLetters::new(Retention { time: Duration::from_secs(60), count, bytes })
    }

    fn key(number: u64) -> DeadKey {
        DeadKey { ended_unix_ms: number, id: Ulid(number.into()) }
    }

    fn numbers(page: Vec<(DeadKey, Arc<str>)>) -> Vec<u64> {
        page.into_iter().map(|(key, _)| key.ended_unix_ms).collect()
    }

    #[test]
    fn a_function_that_always_fails_does_not_drive_out_those_of_others() {
        let letters = letters(10, 1 << 20);
        let (calm, wild): (Arc<str>, Arc<str>) = ("calm".into(), "wild".into());
        assert!(letters.add(&calm, key(1), 10).is_empty());
        for number in 2..=100 {
            let removed = letters.add(&wild, key(number), 10);
            assert!(removed.iter().all(|(_, function)| **function == *"wild"));
        }
        assert_eq!(numbers(letters.page(None, None, 100)), [100, 99, 98, 97, 96, 95, 94, 93, 92, 1]);
        assert_eq!((letters.count(), letters.dropped()), (10, 90));
    }

    #[test]
    fn the_bytes_of_all_have_a_limit_and_one_that_is_larger_is_not_kept() {
        let letters = letters(100, 10_000);
        let (small, large): (Arc<str>, Arc<str>) = ("small".into(), "large".into());
        for number in 1..=3 {
            letters.add(&small, key(number), 1_000);
        }
        assert_eq!(letters.add(&large, key(4), 20_000), [(key(4), large.clone())]);
        assert_eq!(letters.add(&large, key(5), 6_000), []);
        assert_eq!(letters.add(&large, key(6), 6_000), [(key(5), large)]);
        assert_eq!(numbers(letters.page(None, None, 10)), [6, 3, 2, 1]);
    }

    #[test]
    fn pages_go_on_behind_the_last_one_and_of_two_one_takes_it() {
        let letters = letters(100, 1 << 20);
        let (f, g): (Arc<str>, Arc<str>) = ("f".into(), "g".into());
        for number in 1..=6 {
            letters.add(if number % 2 == 0 { &f } else { &g }, key(number), 10);
        }
        assert_eq!(numbers(letters.page(Some("f"), None, 2)), [6, 4]);
        assert_eq!(numbers(letters.page(Some("f"), Some(key(4)), 2)), [2]);
        let taken = letters.take(Ulid(4)).unwrap();
        assert!(letters.take(Ulid(4)).is_none());
        assert_eq!(numbers(letters.page(Some("f"), None, 9)), [6, 2]);
        letters.put_back(taken);
        assert_eq!(letters.count(), 6);
        assert_eq!(numbers(letters.expire(60_004)), [1, 2, 3]);
        assert_eq!(numbers(letters.page(None, None, 9)), [6, 5, 4]);
    }
}
