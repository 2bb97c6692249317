//! Messages of durable invocations for which there is no room yet: the next function's queue is full, or a session's, or the
//! disk. They are on the disk already, committed with the invocation that published them, and wait here in the order in
//! which their function published them. A function with many that wait does not run until there is room: so what is
//! full pushes back, step by step, on whoever published first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::record::Outgoing;

/// Messages of one function that may wait before its next durable invocation has to. More than none, so that a function
/// whose messages start itself can make room in its own queue.
const WAITING: usize = 256;

/// What waits, by function.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: Mutex<HashMap<String, VecDeque<(u64, Arc<Outgoing>)>>>,
}

impl Outbox {
    /// Lets a message wait if others of its source do; else gives it back.
    pub fn behind_others(&self, number: u64, outgoing: Outgoing) -> Option<Outgoing> {
        match self.waiting.lock().get_mut(&outgoing.source) {
            Some(others) => {
                others.push_back((number, Arc::new(outgoing)));
                None
            }
            None => Some(outgoing),
        }
    }

    /// Lets a message wait.
    pub fn wait(&self, number: u64, outgoing: Outgoing) {
        let mut waiting = self.waiting.lock();
        let others = waiting.entry(outgoing.source.clone()).or_default();
        others.push_back((number, Arc::new(outgoing)));
    }

    /// Whose messages wait.
    pub fn sources(&self) -> Vec<String> {
        self.waiting.lock().keys().cloned().collect()
    }

    /// The message of a source that has waited longest. It keeps its place, and so others theirs behind it, until it is
    /// [published](Self::published).
    pub fn first(&self, source: &str) -> Option<(u64, Arc<Outgoing>)> {
        self.waiting.lock().get(source)?.front().cloned()
    }

    /// The first message of a source waits no more.
    pub fn published(&self, source: &str, number: u64) {
        let mut waiting = self.waiting.lock();
        let Some(messages) = waiting.get_mut(source) else { return };
        if messages.front().is_some_and(|(first, _)| *first == number) {
            messages.pop_front();
        }
        if messages.is_empty() {
            waiting.remove(source);
        }
    }

    /// True if so many messages of a function wait that it has to.
    pub fn is_full(&self, source: &str) -> bool {
        self.waiting.lock().get(source).is_some_and(|messages| messages.len() >= WAITING)
    }

    /// True if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }
}
