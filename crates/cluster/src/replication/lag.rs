//! Changes that wait for a peer without room: bounded, and nothing is lost.

use std::collections::{BTreeMap, BTreeSet};

use crate::replication::{Delta, ObjectKey};

/// Changes that this node has not sent to a peer yet.
#[derive(Debug)]
pub(crate) struct Lag<D> {
    deltas: BTreeMap<ObjectKey, D>,
    weight_bytes: usize,
    stale: BTreeSet<ObjectKey>,
}

/// Result of adding a delta for a peer without room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lagged {
    /// The delta waits.
    Waits,
    /// The delta is dropped; its object is sent whole later.
    Stale,
    /// The list of stale objects is full as well: all objects must be compared.
    StaleAll,
}

/// The next thing to send.
#[derive(Debug)]
pub(crate) enum Next<D> {
    Delta(ObjectKey, D),
    State(ObjectKey),
}

impl<D> Default for Lag<D> {
    fn default() -> Self {
        Self { deltas: BTreeMap::new(), weight_bytes: 0, stale: BTreeSet::new() }
    }
}

impl<D: Delta> Lag<D> {
    pub(crate) fn is_empty(&self) -> bool {
        self.deltas.is_empty() && self.stale.is_empty()
    }

    pub(crate) fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Queues a delta; at most `objects` objects and `bytes` bytes of deltas wait.
    pub(crate) fn add(&mut self, object: &ObjectKey, delta: &D, objects: usize, bytes: usize) -> Lagged {
        if self.stale.contains(object) {
            return Lagged::Stale;
        }
        if let Some(waiting) = self.deltas.get_mut(object) {
            let before = waiting.weight_bytes();
            waiting.merge(delta.clone());
            self.weight_bytes = self.weight_bytes.saturating_sub(before) + waiting.weight_bytes();
        } else if self.deltas.len() < objects {
            self.weight_bytes += delta.weight_bytes();
            self.deltas.insert(object.clone(), delta.clone());
        } else {
            return self.mark_stale(object, objects);
        }
        if self.weight_bytes <= bytes {
            return Lagged::Waits;
        }
        if let Some(waiting) = self.deltas.remove(object) {
            self.weight_bytes = self.weight_bytes.saturating_sub(waiting.weight_bytes());
        }
        self.mark_stale(object, objects)
    }

    pub(crate) fn take(&mut self) -> Option<Next<D>> {
        if let Some((object, delta)) = self.deltas.pop_first() {
            self.weight_bytes = self.weight_bytes.saturating_sub(delta.weight_bytes());
            return Some(Next::Delta(object, delta));
        }
        self.stale.pop_first().map(Next::State)
    }

    fn mark_stale(&mut self, object: &ObjectKey, objects: usize) -> Lagged {
        if self.stale.len() < objects {
            self.stale.insert(object.clone());
            return Lagged::Stale;
        }
        // The round that follows brings all of it.
        *self = Self::default();
        Lagged::StaleAll
    }
}
