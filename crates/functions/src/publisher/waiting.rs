//! Numbers of outgoing messages that wait because the queue of the next function or of a session is full, or the disk.
//!
//! The messages are on the disk already. They wait in the order in which their source published them. A function with
//! [`MAX_WAITING`] waiting messages starts no durable invocation: so backpressure reaches the first publisher of a chain.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Number of waiting messages of one function from which on its next durable invocation has to wait.
const MAX_WAITING: usize = 256;
/// After this time without progress, one more invocation may run: functions that trigger each other in a loop can make
/// room in no other way.
const STUCK_TIME: Duration = Duration::from_secs(1);

/// Waiting messages by source.
#[derive(Default)]
pub(super) struct Waiting {
    waiting: Mutex<HashMap<String, Numbers>>,
}

struct Numbers {
    numbers: VecDeque<u64>,
    /// The last time that a message was published, or that [`Waiting::is_full`] permitted one more invocation.
    last_progress: Instant,
}

impl Waiting {
    /// Adds a message if other messages of its source wait. True if it was added.
    pub fn add_behind_others(&self, source: &str, number: u64) -> bool {
        match self.waiting.lock().get_mut(source) {
            Some(waiting) => {
                waiting.numbers.push_back(number);
                true
            }
            None => false,
        }
    }

    /// Adds a message.
    pub fn add(&self, source: &str, number: u64) {
        let mut waiting = self.waiting.lock();
        let new = || Numbers { numbers: VecDeque::new(), last_progress: Instant::now() };
        waiting.entry(source.to_owned()).or_insert_with(new).numbers.push_back(number);
    }

    /// The sources with waiting messages.
    pub fn sources(&self) -> Vec<String> {
        self.waiting.lock().keys().cloned().collect()
    }

    /// The first waiting message of a source. It stays in the queue until [`published`](Self::published).
    pub fn first(&self, source: &str) -> Option<u64> {
        self.waiting.lock().get(source)?.numbers.front().copied()
    }

    /// Removes the first waiting message of a source.
    pub fn published(&self, source: &str) {
        let mut all = self.waiting.lock();
        let Some(waiting) = all.get_mut(source) else { return };
        waiting.numbers.pop_front();
        waiting.last_progress = Instant::now();
        if waiting.numbers.is_empty() {
            all.remove(source);
        }
    }

    /// True if [`MAX_WAITING`] messages of a function wait, so that its next invocation has to wait. After [`STUCK_TIME`]
    /// without progress it is false for one invocation.
    pub fn is_full(&self, source: &str) -> bool {
        let mut all = self.waiting.lock();
        let Some(waiting) = all.get_mut(source).filter(|waiting| waiting.numbers.len() >= MAX_WAITING)
        else {
            return false;
        };
        let now = Instant::now();
        let stuck = now.duration_since(waiting.last_progress) >= STUCK_TIME;
        if stuck {
            waiting.last_progress = now;
        }
        !stuck
    }

    /// True if no message waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_in_order_and_block_their_function() {
        let waiting = Waiting::default();
        assert!(!waiting.add_behind_others("f", 1));
        waiting.add("f", 1);
        for number in 2..=MAX_WAITING as u64 {
            assert!(!waiting.is_full("f"));
            assert!(waiting.add_behind_others("f", number));
        }
        assert!(waiting.is_full("f") && !waiting.is_full("g"));
        for number in 1..=MAX_WAITING as u64 {
            assert_eq!(waiting.first("f"), Some(number));
            waiting.published("f");
        }
        assert!(waiting.is_empty() && waiting.first("f").is_none());
    }

    #[test]
    fn one_invocation_may_run_without_progress() {
        let waiting = Waiting::default();
        (0..MAX_WAITING as u64).for_each(|number| waiting.add("f", number));
        let long_ago = Instant::now().checked_sub(STUCK_TIME).expect("the clock is past its first second");
        waiting.waiting.lock().get_mut("f").expect("it waits").last_progress = long_ago;
        assert!(!waiting.is_full("f"));
        assert!(waiting.is_full("f"));
    }
}
