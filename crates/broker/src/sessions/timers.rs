//! Timers of sessions that wait for their clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::state::{Due, Parked, Times};

/// Wills and ends of waiting sessions, by time.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: Mutex<BTreeMap<(Instant, u64, Due), Arc<str>>>,
    /// Notification that a new timer is earlier than all others.
    pub changed: Notify,
}

/// A timer of a waiting session that has fired. The client may have come back meanwhile.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fired {
    pub client_id: Arc<str>,
    pub parking: u64,
    pub due: Due,
}

impl Timers {
    /// Sets the timers of a session that begins to wait.
    pub(super) fn set(&self, client_id: &Arc<str>, parking: u64, times: &Times) {
        for (at, due) in times.due() {
            let mut timers = self.due.lock();
            let first = timers.first_key_value().is_none_or(|((first, ..), _)| at < *first);
            timers.insert((at, parking, due), client_id.clone());
            if first {
                self.changed.notify_one();
            }
        }
    }

    /// Removes the timers of a session whose client came back, or that has ended.
    pub(super) fn cancel(&self, parked: &Parked) {
        let mut timers = self.due.lock();
        for (at, due) in parked.times.due() {
            timers.remove(&(at, parked.parking, due));
        }
    }

    /// Time at which the next timer fires.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.lock().first_key_value().map(|((at, ..), _)| *at)
    }

    /// Takes the next timer that is due by now.
    pub(super) fn fire(&self, now: Instant) -> Option<Fired> {
        let mut timers = self.due.lock();
        let entry = timers.first_entry().filter(|entry| entry.key().0 <= now)?;
        let ((_, parking, due), client_id) = entry.remove_entry();
        Some(Fired { client_id, parking, due })
    }
}
