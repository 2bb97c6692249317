//! Timers of instances.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;
use ulid::Ulid;

/// Maximum number of instances that one call of [`Timers::take_due`] returns.
const MAX_DUE: usize = 256;

/// Timers by due time of the monotonic clock, in milliseconds.
#[derive(Default)]
pub(crate) struct Timers {
    due: Mutex<BTreeSet<(u64, Ulid)>>,
    pub changed: Notify,
}

impl Timers {
    /// Moves the timer of an instance from one time to another.
    pub fn set(&self, id: Ulid, before: Option<u64>, due: Option<u64>) {
        if before == due {
            return;
        }
        let mut all = self.due.lock();
        let first = all.first().map(|(due, _)| *due);
        if let Some(before) = before {
            all.remove(&(before, id));
        }
        if let Some(due) = due {
            all.insert((due, id));
            if first.is_none_or(|first| due < first) {
                self.changed.notify_one();
            }
        }
    }

    pub fn take_due(&self, now_ms: u64) -> Vec<Ulid> {
        let mut all = self.due.lock();
        let mut taken = Vec::new();
        while taken.len() < MAX_DUE
            && let Some((_, id)) = all.first().filter(|(due, _)| *due <= now_ms).copied()
        {
            all.pop_first();
            taken.push(id);
        }
        taken
    }

    pub fn next(&self) -> Option<u64> {
        self.due.lock().first().map(|(due, _)| *due)
    }
}
