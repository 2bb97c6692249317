//! Queue of one function: the order in which its pending invocations run. No I/O, no clock.
//!
//! The queue has only the sequence number, the due time and the order key of each invocation. The event stays on the disk
//! until the invocation runs, or in the caller's `T`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use edgefaas_manifest::QueueOrder;
use tokio::sync::Notify;

/// The pending invocations of one function, by sequence number.
///
/// `T` is the data that the caller caches for an invocation.
pub struct FunctionQueue<T> {
    entries: BTreeMap<u64, Entry<T>>,
    /// Invocations that may run now.
    ready: BTreeSet<u64>,
    /// Invocations that are due later.
    delayed: BTreeSet<(Instant, u64)>,
    /// By order key.
    keys: HashMap<u64, KeyQueue>,
    running: usize,
    evicted: usize,
    /// Slots of invocations that are not stored yet.
    reserved: usize,
    room: Arc<Notify>,
}

struct Entry<T> {
    key: Option<u64>,
    due: Option<Instant>,
    state: State,
    cached: Option<T>,
}

/// What a pending invocation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// It waits for its turn or its due time.
    Waiting,
    /// It runs.
    Running,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    /// It made room for a newer invocation and will not run.
    Evicted,
}

/// The invocations with one order key.
struct KeyQueue {
    /// The one that is ready, delayed or running.
    active: u64,
    all: BTreeSet<u64>,
}

impl<T> Default for FunctionQueue<T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            ready: BTreeSet::new(),
            delayed: BTreeSet::new(),
            keys: HashMap::new(),
            running: 0,
            evicted: 0,
            reserved: 0,
            room: Arc::default(),
        }
    }
}

impl<T> FunctionQueue<T> {
    /// Number of pending invocations and reserved slots.
    pub fn len(&self) -> usize {
        self.entries.len() + self.reserved
    }

    /// True if an invocation is pending.
    pub fn contains(&self, sequence: u64) -> bool {
        self.entries.contains_key(&sequence)
    }

    /// Notified when a slot becomes free.
    pub fn room(&self) -> &Arc<Notify> {
        &self.room
    }

    /// Reserves a slot. The caller has to call [`insert_reserved`](Self::insert_reserved) or
    /// [`release_reserved`](Self::release_reserved) later.
    pub fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// Releases a reserved slot.
    pub fn release_reserved(&mut self) {
        self.reserved -= 1;
        self.room.notify_one();
    }

    /// Adds an invocation to a reserved slot.
    pub fn insert_reserved(&mut self, sequence: u64, key: Option<u64>, cached: T) {
        self.reserved -= 1;
        self.insert(sequence, key, None, Some(cached));
    }

    /// Adds an invocation. Invocations with the same `key` run one after another in the order of their sequence numbers.
    pub fn insert(&mut self, sequence: u64, key: Option<u64>, due: Option<Instant>, cached: Option<T>) {
        self.entries.insert(sequence, Entry { key, due, state: State::Waiting, cached });
        match key {
            None => self.make_ready(sequence),
            Some(key) => match self.keys.get_mut(&key) {
                Some(queue) => drop(queue.all.insert(sequence)),
                None => {
                    self.keys.insert(key, KeyQueue { active: sequence, all: BTreeSet::from([sequence]) });
                    self.make_ready(sequence);
                }
            },
        }
    }

    /// Starts the next invocation, if one is ready and fewer than `max_running` run. It counts as running until
    /// [`retry`](Self::retry) or [`finish`](Self::finish).
    pub fn start(
        &mut self,
        now: Instant,
        max_running: usize,
        order: QueueOrder,
    ) -> Option<(u64, Option<T>)> {
        while let Some(&(due, sequence)) = self.delayed.first().filter(|(due, _)| *due <= now) {
            self.delayed.remove(&(due, sequence));
            self.ready.insert(sequence);
        }
        if self.running >= max_running {
            return None;
        }
        let sequence = match order {
            QueueOrder::Fifo => self.ready.pop_first(),
            QueueOrder::Lifo => self.ready.pop_last(),
        }?;
        self.running += 1;
        let entry = self.entries.get_mut(&sequence)?;
        entry.state = State::Running;
        Some((sequence, entry.cached.take()))
    }

    /// Puts a running invocation back into the queue, until `due`.
    pub fn retry(&mut self, sequence: u64, due: Instant) {
        let Some(entry) = self.entries.get_mut(&sequence).filter(|entry| entry.state == State::Running)
        else {
            return;
        };
        entry.state = State::Waiting;
        entry.due = Some(due);
        self.running -= 1;
        self.make_ready(sequence);
    }

    /// Removes an invocation and makes the next one with its order key ready. Returns the cached data, if it did not run.
    pub fn finish(&mut self, sequence: u64) -> Option<T> {
        let entry = self.entries.remove(&sequence)?;
        match entry.state {
            State::Running => self.running -= 1,
            State::Evicted => self.evicted -= 1,
            State::Waiting => {}
        }
        self.ready.remove(&sequence);
        if let Some(due) = entry.due {
            self.delayed.remove(&(due, sequence));
        }
        if let Some(key) = entry.key
            && let Some(queue) = self.keys.get_mut(&key)
        {
            queue.all.remove(&sequence);
            match queue.all.first().copied() {
                None => drop(self.keys.remove(&key)),
                Some(next) if queue.active == sequence => {
                    queue.active = next;
                    self.make_ready(next);
                }
                Some(_) => {}
            }
        }
        self.room.notify_one();
        entry.cached
    }

    /// Evicts the oldest invocation that does not run. It will not run, and stays an entry until [`finish`](Self::finish).
    pub fn evict_oldest(&mut self) -> Option<(u64, Option<T>)> {
        let mut waiting = self.entries.iter().filter(|(_, entry)| entry.state == State::Waiting);
        let sequence = *waiting.next()?.0;
        self.withdraw(sequence).map(|cached| (sequence, cached))
    }

    /// Takes an invocation that does not run out of the order; `None` if it runs, is evicted or is not there. It stays an entry until
    /// [`finish`](Self::finish).
    pub fn withdraw(&mut self, sequence: u64) -> Option<Option<T>> {
        let entry = self.entries.get_mut(&sequence).filter(|entry| entry.state == State::Waiting)?;
        entry.state = State::Evicted;
        self.evicted += 1;
        let (due, cached) = (entry.due, entry.cached.take());
        self.ready.remove(&sequence);
        if let Some(due) = due {
            self.delayed.remove(&(due, sequence));
        }
        Some(cached)
    }

    /// Makes an invocation that waits for its due time ready; false if it does not wait.
    pub fn hasten(&mut self, sequence: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&sequence).filter(|entry| entry.state == State::Waiting)
        else {
            return false;
        };
        if let Some(due) = entry.due.take()
            && self.delayed.remove(&(due, sequence))
        {
            self.ready.insert(sequence);
        }
        true
    }

    /// What an invocation does; `None` if it is not there or is evicted.
    pub fn position(&self, sequence: u64) -> Option<Position> {
        match self.entries.get(&sequence)?.state {
            State::Waiting => Some(Position::Waiting),
            State::Running => Some(Position::Running),
            State::Evicted => None,
        }
    }

    /// Number of evicted invocations that are not finished.
    pub fn evicted(&self) -> usize {
        self.evicted
    }

    /// True if an invocation runs, may run now, or is being stored; false if all wait for their due times.
    pub fn is_at_work(&self) -> bool {
        self.running > 0 || !self.ready.is_empty() || self.reserved > 0
    }

    /// The due time of the next delayed invocation.
    pub fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(due, _)| *due)
    }

    fn make_ready(&mut self, sequence: u64) {
        let Some(entry) = self.entries.get(&sequence) else { return };
        match (entry.state, entry.due) {
            (State::Waiting, Some(due)) => drop(self.delayed.insert((due, sequence))),
            (State::Waiting, None) => drop(self.ready.insert(sequence)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn started(queue: &mut FunctionQueue<()>, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| queue.start(now, usize::MAX, QueueOrder::Fifo)).map(|(n, _)| n).collect()
    }

    #[test]
    fn invocations_of_one_key_run_one_at_a_time_and_others_in_parallel() {
        let (now, mut queue) = (Instant::now(), FunctionQueue::default());
        for (number, key) in [(1, Some(7)), (2, Some(7)), (3, Some(8)), (4, None), (5, Some(7))] {
            queue.insert(number, key, None, None);
        }
        assert_eq!(started(&mut queue, now), [1, 3, 4]);
        queue.finish(3);
        assert_eq!(started(&mut queue, now), Vec::<u64>::new());
        // A retried invocation stays the active one of its key.
        queue.retry(1, now + Duration::from_secs(5));
        assert_eq!(started(&mut queue, now), Vec::<u64>::new());
        assert!(queue.is_at_work(), "4 runs");
        queue.finish(4);
        assert!(!queue.is_at_work(), "1 waits, and the others of its key wait for it");
        assert_eq!(queue.next_due(), Some(now + Duration::from_secs(5)));
        assert_eq!(started(&mut queue, now + Duration::from_secs(5)), [1]);
        queue.finish(1);
        assert_eq!(started(&mut queue, now), [2]);
        queue.finish(2);
        assert_eq!(started(&mut queue, now), [5]);
    }

    #[test]
    fn an_evicted_invocation_makes_the_next_of_its_key_ready() {
        let (now, mut queue) = (Instant::now(), FunctionQueue::default());
        queue.insert(1, Some(7), None, Some(()));
        queue.insert(2, Some(7), None, None);
        assert_eq!(queue.evict_oldest(), Some((1, Some(()))));
        assert_eq!((queue.evicted(), started(&mut queue, now)), (1, vec![]));
        queue.finish(1);
        assert_eq!(started(&mut queue, now), [2]);
        assert_eq!(queue.evict_oldest(), None);
    }

    #[test]
    fn one_that_waits_for_its_due_time_is_hastened_in_the_order_of_its_key() {
        let (now, mut queue) = (Instant::now(), FunctionQueue::<()>::default());
        let due = Some(now + Duration::from_secs(5));
        queue.insert(1, Some(7), due, None);
        queue.insert(2, Some(7), due, None);
        assert!(queue.hasten(2), "it waits for 1, and then not for its due time");
        assert_eq!(started(&mut queue, now), Vec::<u64>::new());
        assert!(queue.hasten(1));
        assert_eq!((started(&mut queue, now), queue.position(1)), (vec![1], Some(Position::Running)));
        assert!(!queue.hasten(1), "it runs");
        queue.finish(1);
        assert_eq!(started(&mut queue, now), [2]);
        assert!(!queue.hasten(9));
    }

    #[test]
    fn one_that_waits_is_withdrawn_and_the_next_of_its_key_starts_when_it_has_ended() {
        let (now, mut queue) = (Instant::now(), FunctionQueue::default());
        queue.insert(1, Some(7), Some(now + Duration::from_secs(5)), Some(()));
        queue.insert(2, Some(7), None, None);
        assert_eq!(queue.withdraw(1), Some(Some(())));
        assert_eq!((queue.withdraw(1), queue.position(1), queue.hasten(1)), (None, None, false));
        assert_eq!(started(&mut queue, now), Vec::<u64>::new());
        queue.finish(1);
        assert_eq!((started(&mut queue, now), queue.evicted(), queue.next_due()), (vec![2], 0, None));
        assert_eq!(queue.withdraw(2), None, "it runs");
    }

    #[test]
    fn lifo_starts_the_newest_first_within_the_limit() {
        let (now, mut queue) = (Instant::now(), FunctionQueue::<()>::default());
        (1..=3).for_each(|number| queue.insert(number, None, None, None));
        assert_eq!(queue.start(now, 1, QueueOrder::Lifo), Some((3, None)));
        assert_eq!(queue.start(now, 1, QueueOrder::Lifo), None);
    }

    proptest! {
        /// With random retries and operators, the invocations of each key end in the order of their sequence numbers, all of them end,
        /// and the queue is empty afterwards.
        #[test]
        fn keys_keep_their_order(keys in prop::collection::vec(prop::option::of(0u64..4), 1..60),
                                 steps in prop::collection::vec((0usize..60, 0u8..6), 0..200)) {
            let (mut now, later) = (Instant::now(), Duration::from_secs(60));
            let mut queue = FunctionQueue::<()>::default();
            for (number, key) in keys.iter().enumerate() {
                queue.insert(number as u64, *key, None, None);
            }
            let (mut running, mut ended) = (Vec::new(), Vec::new());
            let mut steps = steps.into_iter();
            let mut withdrawn = 0;
            while ended.len() + withdrawn < keys.len() {
                running.extend(queue.start(now, 5, QueueOrder::Fifo).map(|(number, _)| number));
                prop_assert!(running.len() <= 5);
                let (index, action) = steps.next().unwrap_or((0, 5));
                let any = (index % keys.len()) as u64;
                match action {
                    // What an operator does, at any time.
                    0 => {
                        queue.hasten(any);
                        continue;
                    }
                    1 => {
                        if queue.withdraw(any).is_some() {
                            queue.finish(any);
                            withdrawn += 1;
                        }
                        continue;
                    }
                    _ if running.is_empty() => {
                        now += later;
                        continue;
                    }
                    _ => {}
                }
                let number = running.remove(index % running.len());
                match action {
                    2 => queue.retry(number, now),
                    3 => queue.retry(number, now + later),
                    _ => {
                        queue.finish(number);
                        ended.push(number);
                    }
                }
            }
            for key in 0..4 {
                let of_key: Vec<_> = ended.iter().filter(|n| keys[**n as usize] == Some(key)).collect();
                prop_assert!(of_key.is_sorted());
            }
            prop_assert_eq!(queue.len(), 0);
            prop_assert!(queue.keys.is_empty() && queue.ready.is_empty() && queue.delayed.is_empty());
        }
    }
}
