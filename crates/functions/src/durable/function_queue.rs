//! The order in which a function's pending invocations run. No I/O, no clock.
//!
//! A lane knows of each invocation only its number, when it is due and what it must not overtake; what it is to do stays
//! on the disk until it has its turn.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use edgefaas_manifest::QueueOrder;
use tokio::sync::Notify;

/// The pending invocations of one function.
///
/// `T` is what is remembered about each beside its order.
pub struct Lane<T> {
    entries: BTreeMap<u64, Entry<T>>,
    /// Those that may run now.
    ready: BTreeSet<u64>,
    /// Those whose time has not come.
    delayed: BTreeSet<(Instant, u64)>,
    /// For each key the one that is ready, delayed or running, and all that there are.
    keys: HashMap<u64, Line>,
    running: usize,
    leaving: usize,
    /// Places that are promised to invocations which are on their way.
    promised: usize,
    room: Arc<Notify>,
}

struct Entry<T> {
    key: Option<u64>,
    due: Option<Instant>,
    state: State,
    memory: Option<T>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    /// On its way out without having run.
    Leaving,
}

struct Line {
    active: u64,
    all: BTreeSet<u64>,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            ready: BTreeSet::new(),
            delayed: BTreeSet::new(),
            keys: HashMap::new(),
            running: 0,
            leaving: 0,
            promised: 0,
            room: Arc::default(),
        }
    }
}

impl<T> Lane<T> {
    /// Invocations that are pending or promised a place.
    pub fn len(&self) -> usize {
        self.entries.len() + self.promised
    }

    /// Whether an invocation is pending.
    pub fn contains(&self, sequence: u64) -> bool {
        self.entries.contains_key(&sequence)
    }

    /// Notified whenever there is room for one more.
    pub fn room(&self) -> &Arc<Notify> {
        &self.room
    }

    /// Promises a place; to be followed by [`keep_promise`](Self::keep_promise) or [`give_up`](Self::give_up).
    pub fn promise(&mut self) {
        self.promised += 1;
    }

    /// Gives a promised place back.
    pub fn give_up(&mut self) {
        self.promised -= 1;
        self.room.notify_one();
    }

    /// Adds an invocation to which a place was promised.
    pub fn keep_promise(&mut self, sequence: u64, key: Option<u64>, memory: T) {
        self.promised -= 1;
        self.insert(sequence, key, None, Some(memory));
    }

    /// Adds an invocation. Those with the same `key` run one after another in the order of their numbers.
    pub fn insert(&mut self, sequence: u64, key: Option<u64>, due: Option<Instant>, memory: Option<T>) {
        self.entries.insert(sequence, Entry { key, due, state: State::Waiting, memory });
        match key {
            None => self.offer(sequence),
            Some(key) => match self.keys.get_mut(&key) {
                Some(line) => drop(line.all.insert(sequence)),
                None => {
                    self.keys.insert(key, Line { active: sequence, all: BTreeSet::from([sequence]) });
                    self.offer(sequence);
                }
            },
        }
    }

    /// The next one to run, if one may: it counts as running until it is retried or has finished.
    pub fn start(&mut self, now: Instant, most: usize, order: QueueOrder) -> Option<(u64, Option<T>)> {
        while let Some(&(due, sequence)) = self.delayed.first().filter(|(due, _)| *due <= now) {
            self.delayed.remove(&(due, sequence));
            self.ready.insert(sequence);
        }
        if self.running >= most {
            return None;
        }
        let sequence = match order {
            QueueOrder::Fifo => self.ready.pop_first(),
            QueueOrder::Lifo => self.ready.pop_last(),
        }?;
        self.running += 1;
        let entry = self.entries.get_mut(&sequence)?;
        entry.state = State::Running;
        Some((sequence, entry.memory.take()))
    }

    /// A running one is to run again.
    pub fn retry(&mut self, sequence: u64, due: Instant) {
        let Some(entry) = self.entries.get_mut(&sequence).filter(|entry| entry.state == State::Running)
        else {
            return;
        };
        entry.state = State::Waiting;
        entry.due = Some(due);
        self.running -= 1;
        self.offer(sequence);
    }

    /// An invocation is over.
    pub fn finish(&mut self, sequence: u64) -> Option<T> {
        let entry = self.entries.remove(&sequence)?;
        match entry.state {
            State::Running => self.running -= 1,
            State::Leaving => self.leaving -= 1,
            State::Waiting => {}
        }
        self.ready.remove(&sequence);
        if let Some(due) = entry.due {
            self.delayed.remove(&(due, sequence));
        }
        if let Some(key) = entry.key
            && let Some(line) = self.keys.get_mut(&key)
        {
            line.all.remove(&sequence);
            match line.all.first().copied() {
                None => drop(self.keys.remove(&key)),
                Some(next) if line.active == sequence => {
                    line.active = next;
                    self.offer(next);
                }
                Some(_) => {}
            }
        }
        self.room.notify_one();
        entry.memory
    }

    /// The oldest one that does not run: it will not, and is there until it has [finished](Self::finish).
    pub fn expel_oldest(&mut self) -> Option<(u64, Option<T>)> {
        let waits = |(_, entry): &(&u64, &mut Entry<T>)| entry.state == State::Waiting;
        let (&sequence, entry) = self.entries.iter_mut().find(waits)?;
        entry.state = State::Leaving;
        self.leaving += 1;
        let (due, memory) = (entry.due, entry.memory.take());
        self.ready.remove(&sequence);
        if let Some(due) = due {
            self.delayed.remove(&(due, sequence));
        }
        Some((sequence, memory))
    }

    /// Those that are on their way out.
    pub fn leaving(&self) -> usize {
        self.leaving
    }

    /// When the next delayed one is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(due, _)| *due)
    }

    fn offer(&mut self, sequence: u64) {
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

    fn started(lane: &mut Lane<()>, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| lane.start(now, usize::MAX, QueueOrder::Fifo)).map(|(n, _)| n).collect()
    }

    #[test]
    fn a_key_runs_one_at_a_time_and_others_beside_it() {
        let (now, mut lane) = (Instant::now(), Lane::default());
        for (number, key) in [(1, Some(7)), (2, Some(7)), (3, Some(8)), (4, None), (5, Some(7))] {
            lane.insert(number, key, None, None);
        }
        assert_eq!(started(&mut lane, now), [1, 3, 4]);
        lane.finish(3);
        assert_eq!(started(&mut lane, now), Vec::<u64>::new());
        // A retry keeps its place.
        lane.retry(1, now + Duration::from_secs(5));
        assert_eq!(started(&mut lane, now), Vec::<u64>::new());
        assert_eq!(lane.next_due(), Some(now + Duration::from_secs(5)));
        assert_eq!(started(&mut lane, now + Duration::from_secs(5)), [1]);
        lane.finish(1);
        assert_eq!(started(&mut lane, now), [2]);
        lane.finish(2);
        assert_eq!(started(&mut lane, now), [5]);
    }

    #[test]
    fn who_is_expelled_makes_way_for_the_next_of_its_key() {
        let (now, mut lane) = (Instant::now(), Lane::default());
        lane.insert(1, Some(7), None, Some(()));
        lane.insert(2, Some(7), None, None);
        assert_eq!(lane.expel_oldest(), Some((1, Some(()))));
        assert_eq!((lane.leaving(), started(&mut lane, now)), (1, vec![]));
        lane.finish(1);
        assert_eq!(started(&mut lane, now), [2]);
        assert_eq!(lane.expel_oldest(), None);
    }

    #[test]
    fn the_newest_first_and_never_more_than_allowed() {
        let (now, mut lane) = (Instant::now(), Lane::<()>::default());
        (1..=3).for_each(|number| lane.insert(number, None, None, None));
        assert_eq!(lane.start(now, 1, QueueOrder::Lifo), Some((3, None)));
        assert_eq!(lane.start(now, 1, QueueOrder::Lifo), None);
    }

    proptest! {
        /// Whatever happens in between, each key's invocations end in the order of their numbers, all end, and nothing
        /// is left over.
        #[test]
        fn keys_keep_their_order(keys in prop::collection::vec(prop::option::of(0u64..4), 1..60),
                                 steps in prop::collection::vec((0usize..60, 0u8..3), 0..200)) {
            let now = Instant::now();
            let mut lane = Lane::<()>::default();
            for (number, key) in keys.iter().enumerate() {
                lane.insert(number as u64, *key, None, None);
            }
            let (mut running, mut ended) = (Vec::new(), Vec::new());
            let mut steps = steps.into_iter();
            while ended.len() < keys.len() {
                running.extend(lane.start(now, 5, QueueOrder::Fifo).map(|(number, _)| number));
                prop_assert!(running.len() <= 5);
                if running.is_empty() {
                    continue;
                }
                let (which, what) = steps.next().unwrap_or((0, 1));
                let number = running.remove(which % running.len());
                match what {
                    0 => lane.retry(number, now),
                    _ => {
                        lane.finish(number);
                        ended.push(number);
                    }
                }
            }
            for key in 0..4 {
                let of_key: Vec<_> = ended.iter().filter(|n| keys[**n as usize] == Some(key)).collect();
                prop_assert!(of_key.is_sorted());
            }
            prop_assert_eq!(lane.len(), 0);
            prop_assert!(lane.keys.is_empty() && lane.ready.is_empty() && lane.delayed.is_empty());
        }
    }
}
