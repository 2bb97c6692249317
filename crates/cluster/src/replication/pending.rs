//! Local changes that wait for their interval.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::replication::{Delta, ObjectKey, Policy};

/// One merged delta per object, each due at its time.
#[derive(Debug)]
pub(crate) struct Pending<D> {
    objects: HashMap<ObjectKey, Waiting<D>>,
    due: BTreeSet<(Duration, ObjectKey)>,
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
        Self { objects: HashMap::new(), due: BTreeSet::new() }
    }
}

impl<D: Delta> Pending<D> {
    /// The first change sets the time; a later one under a shorter interval brings it forward.
    pub(crate) fn add(&mut self, object: ObjectKey, delta: D, policy: Policy, now: Duration) {
        let due = now.saturating_add(policy.interval);
        match self.objects.get_mut(&object) {
            Some(waiting) => {
                waiting.delta.merge(delta);
                waiting.copies = policy.copies;
                if due < waiting.due {
                    self.due.remove(&(waiting.due, object.clone()));
                    waiting.due = due;
                    self.due.insert((due, object));
                }
            }
            None => {
                self.due.insert((due, object.clone()));
                self.objects.insert(object, Waiting { delta, copies: policy.copies, since: now, due });
            }
        }
    }

    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    pub(crate) fn take_due(&mut self, now: Duration) -> Option<(ObjectKey, Waiting<D>)> {
        if self.next_due()? > now {
            return None;
        }
        let (_, object) = self.due.pop_first()?;
        self.objects.remove(&object).map(|waiting| (object, waiting))
    }
}
