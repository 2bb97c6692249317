//! Retention of ended invocations: by age, number and bytes. The oldest are removed first.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use edgefaas_state::store::{Batch, CommitError, Durability, StoreError};

use super::invocation_records::{self, Ended, Expiry, ExpiryKey, Known, Pending, Reserved};
use super::{Digest, DurableQueue, ExternalState, KeepLimits, KnownState};
use crate::records::{self, PAGE_ENTRIES, Records};
use ulid::Ulid;

/// Limits of the records of ended invocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Maximum age.
    pub time: Duration,
    /// Maximum number.
    pub count: u64,
    /// Maximum size, in bytes.
    pub bytes: u64,
}

impl KeepLimits {
    /// The limits of outcomes.
    pub(super) fn outcomes(&self) -> Retention {
        Retention { time: self.time, count: self.count, bytes: self.bytes }
    }
}

/// The records of ended invocations under one [`Retention`].
pub(super) struct Kept {
    /// First byte of the keys of their expiry.
    kind: u8,
    limits: Retention,
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Kept {
    pub fn new(kind: u8, limits: Retention) -> Self {
        Self { kind, limits, count: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// Counts the stored records. Blocks.
    pub fn load(&self, records: &Records) -> Result<(), StoreError> {
        records.for_each(self.kind, |key, value| match records::decode::<Expiry>(value) {
            Ok(expiry) => self.add(expiry.bytes.into()),
            Err(damage) => records::warn_damaged("the expiry of an outcome", key, damage),
        })
    }

    pub fn add(&self, bytes: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn is_over(&self) -> bool {
        self.count() > self.limits.count || self.bytes() > self.limits.bytes
    }
}

impl DurableQueue {
    /// Adds the outcome of an ended invocation to `batch`. Returns its size in bytes.
    pub(super) fn keep(&self, batch: &mut Batch, function: &str, pending: &Pending, ended: Ended) -> u64 {
        let id = Ulid(pending.id);
        let keep = pending.keep.unwrap_or_default();
        let known = Known { function: function.to_owned(), auth: keep.auth, state: ended.into() };
        let expiry_key = invocation_records::expiry_key(self.clock.now_unix_ms(), id);
        self.put_ended(batch, id, &known, expiry_key, keep.key)
    }

    /// Adds the record of an ended invocation and its expiry to `batch`. Returns the size of the record in bytes.
    pub(super) fn put_ended(
        &self,
        batch: &mut Batch,
        id: Ulid,
        known: &Known,
        expiry_key: Vec<u8>,
        key: Option<Digest>,
    ) -> u64 {
        let known = records::encode(known);
        let bytes = known.len() as u64;
        let expiry = Expiry { bytes: u32::try_from(bytes).unwrap_or(u32::MAX), key };
        self.records.put(batch, invocation_records::known_key(id), known);
        self.records.put(batch, expiry_key, records::encode(&expiry));
        bytes
    }

    /// Counts an outcome that was stored.
    pub(super) fn kept(&self, bytes: u64) {
        self.outcomes.add(bytes);
        self.wake_if_over();
    }

    /// Wakes the removal of records over the limits.
    pub(super) fn wake_if_over(&self) {
        if self.is_over_limits() {
            self.wake.notify_one();
        }
    }

    pub(super) fn is_over_limits(&self) -> bool {
        self.outcomes.is_over() || self.listed.is_over()
    }

    /// Removes expired records, the oldest ones over the limits, and closed waiters.
    pub(super) async fn remove_expired(&self) -> Result<(), CommitError> {
        self.waiters.lock().retain(|_, waiting| {
            waiting.retain(|waiter| !waiter.is_closed());
            !waiting.is_empty()
        });
        self.remove_expired_of(&self.outcomes).await?;
        self.remove_expired_of(&self.listed).await?;
        let mut batch = Batch::default();
        self.last_errors.remove_orphans(&self.records, &mut batch);
        for (key, function) in self.dead.expire(self.clock.now_unix_ms()) {
            self.records.delete(&mut batch, invocation_records::dead_key(key, &function));
        }
        match batch.is_empty() {
            true => Ok(()),
            false => self.store.committer().commit(batch, Durability::Written).await,
        }
    }

    async fn remove_expired_of(&self, kept: &Kept) -> Result<(), CommitError> {
        let limits = kept.limits;
        loop {
            let page = self.records.page(&[kept.kind], kept.kind);
            let page = page.map_err(|error| CommitError::Failed((&error).into()))?;
            let kept_since = self.clock.now_unix_ms().saturating_sub(limits.time.as_millis() as u64);
            let mut batch = Batch::default();
            let (mut count, mut bytes, mut until) = (0, 0, 0);
            let (all, all_bytes) = (kept.count(), kept.bytes());
            let mut more = page.len() == PAGE_ENTRIES;
            for (key, value) in page {
                let Some(expires) = invocation_records::parse_expiry_key(&key) else { continue };
                let over =
                    all - count.min(all) > limits.count || all_bytes.saturating_sub(bytes) > limits.bytes;
                if expires.finished_unix_ms > kept_since && !over {
                    more = false;
                    break;
                }
                let expiry = records::decode::<Expiry>(&value).ok();
                if let Some(expiry) = &expiry {
                    count += 1;
                    bytes += u64::from(expiry.bytes);
                }
                if self.is_of_this_end(&expires) {
                    let reserved = expiry.and_then(|expiry| expiry.key);
                    if let Some(reserved) = reserved.filter(|key| self.is_key_of(key, &expires)) {
                        self.records.delete(&mut batch, invocation_records::reserved_key(&reserved));
                    }
                    until = until.max(expires.id.timestamp_ms());
                    self.records.delete(&mut batch, invocation_records::known_key(expires.id));
                }
                self.records.delete(&mut batch, key);
            }
            if batch.is_empty() {
                return Ok(());
            }
            self.store.committer().commit(batch, Durability::Written).await?;
            kept.count.fetch_sub(count, Ordering::Relaxed);
            kept.bytes.fetch_sub(bytes, Ordering::Relaxed);
            if kept.kind == invocation_records::EXPIRY {
                self.removed_unix_ms.fetch_max(until, Ordering::Relaxed);
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// False if an external invocation was opened again after this end: its record is that of a later time.
    fn is_of_this_end(&self, expires: &ExpiryKey<'_>) -> bool {
        if expires.external.is_none() {
            return true;
        }
        let known = self.records.get::<Known>("an outcome", &invocation_records::known_key(expires.id));
        let Ok(Some(Known { state: KnownState::External(external), .. })) = known else { return true };
        matches!(external.state, ExternalState::Ended { finished_unix_ms, .. } if finished_unix_ms == expires.finished_unix_ms)
    }

    /// True if an idempotency key is still that of this invocation. A key whose outcome has expired may have a new one
    /// while an external invocation that had it is opened again.
    fn is_key_of(&self, key: &Digest, expires: &ExpiryKey<'_>) -> bool {
        if expires.external.is_none() {
            return true;
        }
        let reserved =
            self.records.get::<Reserved>("an idempotency key", &invocation_records::reserved_key(key));
        !matches!(reserved, Ok(Some(reserved)) if reserved.id != expires.id.0)
    }
}
