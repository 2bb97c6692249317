//! Places of instances that run one after another: `order_by`.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use edgefaas_functions::durable::{Digest, digest};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

/// The place of an instance among those of the same workflow and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Digest of the workflow and the key.
    key: Digest,
    /// Its number in the order of the messages.
    pub(crate) number: u64,
}

/// The place of an instance that has not ended.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) place: Place,
    /// True once the next instance may begin.
    is_left: AtomicBool,
}

/// The places of a node. `T` is a start that waits for the end of another instance.
pub(crate) struct Places<T> {
    queues: Mutex<HashMap<Digest, Queue<T>>>,
    next_number: AtomicU64,
}

/// Instances of one workflow and key.
struct Queue<T> {
    active: Ulid,
    waiting: VecDeque<(Ulid, T)>,
}

impl From<Place> for Held {
    fn from(place: Place) -> Self {
        Self { place, is_left: AtomicBool::new(false) }
    }
}

impl Held {
    /// Gives the place up; true the first time.
    pub fn leave(&self) -> bool {
        !self.is_left.swap(true, Ordering::Relaxed)
    }
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self { queues: Mutex::default(), next_number: AtomicU64::new(0) }
    }
}

impl<T> Places<T> {
    /// The next place of a workflow and a key.
    pub fn place(&self, workflow: &str, topic: &Digest) -> Place {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        Place { key: digest(&[workflow.as_bytes(), topic]), number }
    }

    /// Marks the numbers up to `number` as used.
    pub fn not_before(&self, number: u64) {
        self.next_number.fetch_max(number + 1, Ordering::Relaxed);
    }

    /// Returns a start that may begin now; otherwise it waits for those before it.
    pub fn enter(&self, place: Place, id: Ulid, start: T) -> Option<T> {
        let mut queues = self.queues.lock();
        match queues.get_mut(&place.key) {
            Some(queue) => {
                queue.waiting.push_back((id, start));
                None
            }
            None => {
                queues.insert(place.key, Queue { active: id, waiting: VecDeque::new() });
                Some(start)
            }
        }
    }

    /// An instance that a restart interrupted goes on before those that wait.
    pub fn resume(&self, place: Place, id: Ulid) {
        let new = || Queue { active: id, waiting: VecDeque::new() };
        self.queues.lock().entry(place.key).or_insert_with(new);
    }

    /// Returns the start that may begin when an instance has ended.
    pub fn leave(&self, place: Place, id: Ulid) -> Option<T> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(&place.key)?;
        if queue.active != id {
            // It was cancelled before it began.
            queue.waiting.retain(|(waiting, _)| *waiting != id);
            return None;
        }
        match queue.waiting.pop_front() {
            Some((next, start)) => {
                queue.active = next;
                Some(start)
            }
            None => {
                queues.remove(&place.key);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_of_one_topic_follow_each_other_and_leave_nothing_behind() {
        let places = Places::default();
        let (a, b) = (digest(&[b"a"]), digest(&[b"b"]));
        let at = |number: u8, topic| (places.place("w", topic), Ulid(number.into()));
        let [first, second, third, other] = [at(1, &a), at(2, &a), at(3, &a), at(4, &b)];
        assert!(first.0.number < second.0.number);
        let enter = |(place, id): (Place, Ulid)| places.enter(place, id, id.0);
        let entered = [first, second, third, other].map(enter);
        assert_eq!(entered, [Some(1), None, None, Some(4)]);
        // The second is cancelled while it waits.
        assert_eq!(places.leave(second.0, second.1), None);
        assert_eq!(places.leave(first.0, first.1), Some(3));
        assert_eq!(places.leave(third.0, third.1), None);
        assert_eq!(places.leave(other.0, other.1), None);
        assert!(places.queues.lock().is_empty());
        // After a restart the interrupted one is the first.
        places.resume(second.0, second.1);
        assert_eq!(enter(third), None);
        assert_eq!(places.leave(second.0, second.1), Some(3));
        let held = Held::from(third.0);
        assert_eq!((held.leave(), held.leave()), (true, false));
    }
}
