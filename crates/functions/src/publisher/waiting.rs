//! Numbers of outgoing messages for which there is no room yet: the next function's queue is full, or a session's, or the
//! disk.
//!
//! The messages are on the disk already. They wait in the order in which their source published them. A function with many
//! waiting messages runs no durable invocation until there is room: backpressure reaches the first publisher step by step.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Messages of one function that may wait before its next durable invocation has to.
const MAX_WAITING: usize = 256;
/// After so long without any progress one more invocation may run: functions whose messages start each other in a circle
/// make room in no other way.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waiting messages by source.
#[derive(Default)]
pub(super) struct Waiting {
    waiting: Mutex<HashMap<String, Numbers>>,
}

struct Numbers {
    numbers: VecDeque<u64>,
    /// When one of them was published last, or an invocation was let run all the same.
    moved: Instant,
}

impl Waiting {
    /// Lets a message wait if others of its source do; says whether it does.
    pub fn waits_behind_others(&self, source: &str, number: u64) -> bool {
        match self.waiting.lock().get_mut(source) {
            Some(waiting) => {
                waiting.numbers.push_back(number);
                true
            }
            None => false,
        }
    }

    /// Lets a message wait.
    pub fn wait(&self, source: &str, number: u64) {
        let mut waiting = self.waiting.lock();
        let new = || Numbers { numbers: VecDeque::new(), moved: Instant::now() };
        waiting.entry(source.to_owned()).or_insert_with(new).numbers.push_back(number);
    }

    /// Whose messages wait.
    pub fn sources(&self) -> Vec<String> {
        self.waiting.lock().keys().cloned().collect()
    }

    /// The message of a source that has waited longest. It keeps its place, and so others theirs behind it, until it is
    /// [published](Self::published).
    pub fn first(&self, source: &str) -> Option<u64> {
        self.waiting.lock().get(source)?.numbers.front().copied()
    }

    /// The first message of a source waits no more.
    pub fn published(&self, source: &str) {
        let mut all = self.waiting.lock();
        let Some(waiting) = all.get_mut(source) else { return };
        waiting.numbers.pop_front();
        waiting.moved = Instant::now();
        if waiting.numbers.is_empty() {
            all.remove(source);
        }
    }

    /// True if so many messages of a function wait that its next invocation has to. Once in a while it is false all the
    /// same, for one invocation.
    pub fn is_full(&self, source: &str) -> bool {
        let mut all = self.waiting.lock();
        let Some(waiting) = all.get_mut(source).filter(|waiting| waiting.numbers.len() >= MAX_WAITING)
        else {
            return false;
        };
        let now = Instant::now();
        let stuck = now.duration_since(waiting.moved) >= PATIENCE;
        if stuck {
            waiting.moved = now;
        }
        !stuck
    }

    /// True if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_in_order_and_hold_their_function_back() {
        let waiting = Waiting::default();
        assert!(!waiting.waits_behind_others("f", 1));
        waiting.wait("f", 1);
        for number in 2..=MAX_WAITING as u64 {
            assert!(!waiting.is_full("f"));
            assert!(waiting.waits_behind_others("f", number));
        }
        assert!(waiting.is_full("f") && !waiting.is_full("g"));
        for number in 1..=MAX_WAITING as u64 {
            assert_eq!(waiting.first("f"), Some(number));
            waiting.published("f");
        }
        assert!(waiting.is_empty() && waiting.first("f").is_none());
    }

    #[test]
    fn one_more_may_run_when_nothing_moves() {
        let waiting = Waiting::default();
        (0..MAX_WAITING as u64).for_each(|number| waiting.wait("f", number));
        let long_ago = Instant::now().checked_sub(PATIENCE).expect("the clock is past its first second");
        waiting.waiting.lock().get_mut("f").expect("it waits").moved = long_ago;
        assert!(!waiting.is_full("f"));
        assert!(waiting.is_full("f"));
    }
}
