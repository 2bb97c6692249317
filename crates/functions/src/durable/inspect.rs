//! What an operator sees of durable invocations: pages of pending and of dead ones, and one of them with its event. All of it reads
//! the disk.

use std::ops::ControlFlow;
use std::sync::Arc;

use edgefaas_isolates::Event;
use edgefaas_state::store::StoreError;
use ulid::Ulid;

use super::DurableQueue;
use super::dead_letters::DeadKey;
use super::function_queue::Position;
use super::invocation_records::{self, Dead, PENDING, Pending, StoredProblem};
use crate::records;

/// A durable invocation that is pending or dead.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspected {
    /// Its id.
    pub id: Ulid,
    /// The name of its function.
    pub function: String,
    /// The number of the attempt that runs, that comes next, or that was the last.
    pub attempt: u32,
    /// What it does.
    pub state: InspectedState,
    /// The error of the last attempt, or why it cannot run now, as far as it is known.
    pub problem: Option<StoredProblem>,
    /// Its event.
    pub event: Event,
}

/// What a durable invocation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InspectedState {
    /// It waits for its turn.
    Waiting,
    /// It runs.
    Running,
    /// It failed, and waits for its next attempt. Times are in milliseconds since the Unix epoch.
    Retrying {
        /// The time of its next attempt.
        next_unix_ms: u64,
    },
    /// It failed for good.
    Dead {
        /// The time of its end.
        ended_unix_ms: u64,
    },
}

/// The place of a pending invocation in a list: by function, then in the order of acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingPlace {
    /// The name of the function.
    pub function: String,
    /// The sequence number.
    pub sequence: u64,
}

/// A part of a list.
#[derive(Debug)]
pub struct Page<P> {
    /// The invocations.
    pub invocations: Vec<Inspected>,
    /// The place of the last one, if there are more behind it.
    pub next: Option<P>,
}

impl DurableQueue {
    /// Up to `limit` pending invocations behind `after`, of one function or of all. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn pending_page(
        &self,
        function: Option<&str>,
        after: Option<&PendingPlace>,
        limit: usize,
    ) -> Result<Page<PendingPlace>, StoreError> {
        let from = match (after, function) {
            (Some(after), _) => {
                invocation_records::pending_key(&after.function, after.sequence.saturating_add(1))
            }
            (None, Some(function)) => invocation_records::pending_key(function, 0),
            (None, None) => vec![PENDING],
        };
        let mut invocations = Vec::new();
        let mut last = None;
        let mut more = false;
        self.records.visit(&from, PENDING, |key, value| {
            let Some((name, sequence)) = invocation_records::parse_pending_key(key) else {
                return ControlFlow::Continue(());
            };
            if function.is_some_and(|function| function != name) {
                return ControlFlow::Break(());
            }
            if invocations.len() >= limit {
                more = true;
                return ControlFlow::Break(());
            }
            // A damaged one was reported at the start.
            if let Ok(pending) = records::decode::<Pending>(value) {
                invocations.push(self.inspected(name, sequence, pending));
                last = Some(PendingPlace { function: name.to_owned(), sequence });
            }
            ControlFlow::Continue(())
        })?;
        Ok(Page { invocations, next: last.filter(|_| more) })
    }

    /// Up to `limit` dead invocations that ended before `before`, the last one first. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn dead_page(
        &self,
        function: Option<&str>,
        before: Option<DeadKey>,
        limit: usize,
    ) -> Result<Page<DeadKey>, StoreError> {
        let mut keys = self.dead.page(function, before, limit.saturating_add(1));
        let more = keys.len() > limit;
        keys.truncate(limit);
        let next = keys.last().map(|(key, _)| *key).filter(|_| more);
        let mut invocations = Vec::with_capacity(keys.len());
        for (key, function) in &keys {
            invocations.extend(self.dead_letter(*key, function)?);
        }
        Ok(Page { invocations, next })
    }

    /// The functions of the last `count` dead invocations, the last one first.
    pub fn functions_of_last_dead(&self, count: usize) -> Vec<Arc<str>> {
        self.dead.page(None, None, count).into_iter().map(|(_, function)| function).collect()
    }

    /// A pending or dead invocation; `None` if there is none of this id. Blocks, for as long as all pending ones take to read.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn inspect(&self, id: Ulid) -> Result<Option<Inspected>, StoreError> {
        if let Some((key, function)) = self.dead.find(id) {
            return self.dead_letter(key, &function);
        }
        let found = self.find_pending(id)?;
        Ok(found.map(|(place, pending)| self.inspected(&place.function, place.sequence, pending)))
    }

    /// The place of a pending invocation, with its record. Blocks.
    pub(super) fn find_pending(&self, id: Ulid) -> Result<Option<(PendingPlace, Pending)>, StoreError> {
        let mut found = None;
        self.records.visit(&[PENDING], PENDING, |key, value| {
            if invocation_records::pending_id(value) == Some(id.0)
                && let Some((function, sequence)) = invocation_records::parse_pending_key(key)
                && let Ok(pending) = records::decode::<Pending>(value)
            {
                found = Some((PendingPlace { function: function.to_owned(), sequence }, pending));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    fn inspected(&self, function: &str, sequence: u64, pending: Pending) -> Inspected {
        let place = self.queues.lock().get(function).and_then(|queue| queue.position(sequence));
        let state = match place {
            Some(Position::Running) => InspectedState::Running,
            _ if pending.attempt > 1 => InspectedState::Retrying { next_unix_ms: pending.due_unix_ms },
            Some(Position::Waiting) | None => InspectedState::Waiting,
        };
        Inspected {
            id: Ulid(pending.id),
            function: function.to_owned(),
            attempt: pending.attempt,
            state,
            problem: self.last_errors.get(pending.id),
            event: pending.event,
        }
    }

    fn dead_letter(&self, key: DeadKey, function: &str) -> Result<Option<Inspected>, StoreError> {
        let dead: Option<Dead> = match self
            .records
            .get("a dead letter", &invocation_records::dead_key(key, function))
        {
            Err(StoreError::Damaged { what, reason }) => {
                tracing::warn!(id = %key.id, what, reason, "a dead letter is lost: its record is damaged");
                None
            }
            other => other?,
        };
        Ok(dead.map(|dead| Inspected {
            id: key.id,
            function: function.to_owned(),
            attempt: dead.attempts,
            state: InspectedState::Dead { ended_unix_ms: key.ended_unix_ms },
            problem: Some(dead.problem),
            event: dead.pending.event,
        }))
    }
}
