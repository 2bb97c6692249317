//! Invocations that another part of the node runs, such as instances of workflows: their idempotency keys, outcomes and
//! records for lists are kept here, as those of functions are.
//!
//! The runner puts the records into its own batches: the entries of [`DurableQueue::external_entries`] when it accepts an
//! invocation, [`DurableQueue::end_external`] when the invocation ends, and [`DurableQueue::reopen_external`] if an ended
//! one goes on.

use std::sync::Arc;

use edgefaas_broker::Ticket;
use edgefaas_isolates::Reply;
use edgefaas_state::store::{Batch, StoreError};
use ulid::Ulid;

use super::invocation_records::{
    self, External, ExternalOutcome, ExternalState, Known, Reserved, StoredOutcome,
};
use super::{AnswerTo, DurableQueue, Keep, KeyClaim, KnownState};
use crate::invocation::Timing;
use crate::problem::Problem;
use crate::records;

/// An external invocation.
#[derive(Debug, Clone, Copy)]
pub struct ExternalCall<'a> {
    /// The id.
    pub id: Ulid,
    /// The name of what it runs.
    pub name: &'a str,
    /// Set if its outcome is kept. Otherwise a record is kept for lists only.
    pub keep: Option<Keep>,
}

/// The end of an external invocation.
#[derive(Debug)]
pub struct ExternalEnd {
    /// The reply or the error.
    pub result: Result<Reply, Problem>,
    /// Its times.
    pub timing: Timing,
    /// See [`External::details`].
    pub details: Vec<u8>,
}

/// A record that is counted once it is stored.
#[derive(Debug)]
#[must_use]
pub struct ExternalKept {
    id: Ulid,
    bytes: u64,
    is_outcome: bool,
}

/// An ended external invocation in the order of the ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedKey {
    /// In milliseconds since the Unix epoch.
    pub finished_unix_ms: u64,
    /// The id.
    pub id: Ulid,
    /// The name of what has run.
    pub name: String,
}

impl DurableQueue {
    /// The entries of an invocation whose outcome will be kept. They are stored before it is accepted.
    pub fn external_entries(
        &self,
        call: ExternalCall<'_>,
        claim: Option<&KeyClaim>,
        answer: Option<AnswerTo>,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let keep = call.keep.unwrap_or_default();
        let external = External { key: keep.key, answer, details: Vec::new(), state: ExternalState::Open };
        let state = KnownState::External(Box::new(external));
        let known = Known { function: call.name.to_owned(), auth: keep.auth, state };
        let mut entries = vec![(invocation_records::known_key(call.id), records::encode(&known))];
        if let Some(claim) = claim {
            let reserved: &Reserved = &claim.reserved;
            entries.push((invocation_records::reserved_key(&claim.key), records::encode(reserved)));
        }
        entries
    }

    /// Adds the end of an invocation to `batch`. [`external_ended`](Self::external_ended) follows the commit.
    pub fn end_external(
        &self,
        batch: &mut Batch,
        call: ExternalCall<'_>,
        end: ExternalEnd,
    ) -> ExternalKept {
        let ExternalCall { id, name, keep } = call;
        let ExternalEnd { result, timing, details } = end;
        let finished_unix_ms = self.clock.now_unix_ms();
        let is_outcome = keep.is_some();
        let outcome =
            is_outcome.then(|| Box::new(ExternalOutcome::new(StoredOutcome::new(result, 1, timing))));
        let keep = keep.unwrap_or_default();
        let state = ExternalState::Ended { finished_unix_ms, outcome };
        let state =
            KnownState::External(Box::new(External { key: keep.key, answer: None, details, state }));
        let known = Known { function: name.to_owned(), auth: keep.auth, state };
        let kind = match is_outcome {
            true => invocation_records::EXPIRY,
            false => invocation_records::LISTED_EXPIRY,
        };
        let expiry_key = invocation_records::external_expiry_key(kind, finished_unix_ms, id, name);
        let bytes = self.put_ended(batch, id, &known, expiry_key, keep.key);
        ExternalKept { id, bytes, is_outcome }
    }

    /// Counts a stored end, and wakes the callers that wait for it.
    pub fn external_ended(&self, kept: ExternalKept) {
        match kept.is_outcome {
            true => self.outcomes.add(kept.bytes),
            false => self.listed.add(kept.bytes),
        }
        self.wake_if_over();
        self.notify_ended(kept.id);
    }

    /// False if records for lists only are not kept.
    pub fn keeps_listed(&self) -> bool {
        self.limits.listed.count > 0
    }

    /// An invocation with a key is on the disk when `ticket` is durable: holds its claim until then.
    pub fn external_recorded(self: &Arc<Self>, id: Ulid, claim: KeyClaim, ticket: Ticket) {
        claim.recorded(ticket);
        let queue = self.clone();
        self.workers.spawn(async move {
            let is_stored = queue.broker.durable(ticket).await.is_ok();
            drop(claim);
            if !is_stored {
                queue.notify_ended(id);
            }
        });
    }

    /// Wakes the callers that wait for an invocation that could not be stored.
    pub fn external_not_stored(&self, id: Ulid) {
        self.notify_ended(id);
    }

    /// Marks an ended invocation as open again. The expiry of its earlier end then removes nothing.
    pub fn reopen_external(&self, batch: &mut Batch, call: ExternalCall<'_>, answer: Option<AnswerTo>) {
        if call.keep.is_none() {
            self.records.delete(batch, invocation_records::known_key(call.id));
            return;
        }
        for (key, value) in self.external_entries(call, None, answer) {
            self.records.put(batch, key, value);
        }
    }

    /// Replaces what lists show of an invocation, if it is kept.
    ///
    /// # Errors
    /// The store cannot be read, or the record is damaged.
    pub fn change_external_details(
        &self,
        batch: &mut Batch,
        id: Ulid,
        change: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        let key = invocation_records::known_key(id);
        let known: Option<Known> = self.records.get("an outcome", &key)?;
        if let Some(mut known) = known
            && let KnownState::External(external) = &mut known.state
            && let Some(details) = change(&external.details)
        {
            external.details = details;
            self.records.put(batch, key, records::encode(&known));
        }
        Ok(())
    }

    /// The record of an external invocation, with the name of what it runs.
    ///
    /// # Errors
    /// The store cannot be read, or the record is damaged.
    pub fn external(&self, id: Ulid) -> Result<Option<(String, External)>, StoreError> {
        let known: Option<Known> = self.records.get("an outcome", &invocation_records::known_key(id))?;
        Ok(match known {
            Some(Known { function, state: KnownState::External(external), .. }) => {
                Some((function, *external))
            }
            _ => None,
        })
    }

    /// The ended external invocations that are kept, the last one first. Reading blocks. An invocation that was opened
    /// again is there with its earlier end too: its record has another time.
    pub fn ended_externals(&self) -> impl Iterator<Item = Result<EndedKey, StoreError>> {
        let mut outcomes = self.ended_of(invocation_records::EXPIRY).peekable();
        let mut listed = self.ended_of(invocation_records::LISTED_EXPIRY).peekable();
        std::iter::from_fn(move || {
            let time = |next: Option<&Result<EndedKey, StoreError>>| match next {
                None => None,
                Some(Ok(ended)) => Some(ended.finished_unix_ms),
                Some(Err(_)) => Some(u64::MAX),
            };
            match time(outcomes.peek()) >= time(listed.peek()) {
                true => outcomes.next(),
                false => listed.next(),
            }
        })
    }

    fn ended_of(&self, kind: u8) -> impl Iterator<Item = Result<EndedKey, StoreError>> + use<> {
        let space = self.store.spaces().invocations.clone();
        space.range(vec![kind]..vec![kind + 1]).rev().filter_map(|entry| {
            let key = match entry.key() {
                Ok(key) => key,
                Err(error) => return Some(Err(error.into())),
            };
            let expires = invocation_records::parse_expiry_key(&key)?;
            let (finished_unix_ms, id) = (expires.finished_unix_ms, expires.id);
            expires.external.map(|name| Ok(EndedKey { finished_unix_ms, id, name: name.to_owned() }))
        })
    }
}
