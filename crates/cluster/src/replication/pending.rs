//! Local changes that wait for their interval.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::replication::{Delta, ObjectKey, Policy};

/// Pending deltas, merged to one for each object, with the time at which each is due.
#[derive(Debug)]
pub(crate) struct Pending<D> {
    objects: HashMap<ObjectKey, Waiting<D>>,
    due: BTreeSet<(Duration, ObjectKey)>,
    weight_bytes: usize,
}

/// The changes of one object.
#[derive(Debug)]
pub(crate) struct Waiting<D> {
    pub(crate) delta: D,
    pub(crate) copies: u8,
    pub(crate) since: Duration,
    due: Duration,
}

impl<D> Default for Pending<D> {
    fn default() -> Self {
        Self { objects: HashMap::new(), due: BTreeSet::new(), weight_bytes: 0 }
    }
}

impl<D: Delta> Pending<D> {
    /// The first change sets the time; a later one under a shorter interval brings it forward.
    pub(crate) fn add(&mut self, object: ObjectKey, delta: D, policy: Policy, now: Duration) {
        let due = now.saturating_add(policy.interval);
        match self.objects.get_mut(&object) {
            Some(waiting) => {
                let before = waiting.delta.weight_bytes();
                waiting.delta.merge(delta);
                self.weight_bytes = self.weight_bytes.saturating_sub(before) + waiting.delta.weight_bytes();
                waiting.copies = policy.copies;
                if due < waiting.due {
                    self.due.remove(&(waiting.due, object.clone()));
                    waiting.due = due;
                    self.due.insert((due, object));
                }
            }
            None => {
                self.weight_bytes += delta.weight_bytes();
                self.due.insert((due, object.clone()));
                self.objects.insert(object, Waiting { delta, copies: policy.copies, since: now, due });
            }
        }
    }

    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    pub(crate) fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Removes the object that is due next. If all pending deltas weigh more than `bytes`, does not wait until it is due.
    pub(crate) fn take_due(&mut self, now: Duration, bytes: usize) -> Option<(ObjectKey, Waiting<D>)> {
        if self.next_due()? > now && self.weight_bytes <= bytes {
            return None;
        }
        let (_, object) = self.due.pop_first()?;
        let waiting = self.objects.remove(&object)?;
        self.weight_bytes = self.weight_bytes.saturating_sub(waiting.delta.weight_bytes());
        Some((object, waiting))
    }
}
