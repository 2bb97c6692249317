//! Due timers of waiting sessions: publishes delayed wills, and ends sessions whose Session Expiry Interval is over.

use std::time::Instant;

use parking_lot::MutexGuard;

use super::SessionTable;
use super::by_client::ByClient;
use super::state::Due;
use super::timers::Fired;
use crate::moment::Moment;

impl SessionTable {
    /// The time at which the next waiting session is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Completes when a session may be due earlier than [`next_due`](Self::next_due) said, or a session has ended.
    pub(crate) async fn due_changed(&self) {
        self.timers.changed.notified().await;
    }

    /// Fires the timers that are due by now, unless their clients came back.
    pub(crate) fn fire_due(&self, by: Instant) {
        while let Some(fired) = self.timers.fire(by) {
            let now = self.now();
            match fired.due {
                Due::Will => self.fire_will(&fired, &now),
                Due::Expiry => self.expire(&fired, &now),
            }
        }
    }

    /// Ends a session whose Session Expiry Interval is over.
    fn expire(&self, fired: &Fired, now: &Moment) {
        let sessions = self.sessions.lock();
        let parked = sessions.get(&fired.client_id).and_then(|known| known.parked.as_ref());
        if parked.is_none_or(|parked| parked.parking != fired.parking) {
            return;
        }
        self.counters.expired.add(1);
        self.end_waiting(sessions, &fired.client_id, now);
    }

    /// Ends a session that waits for its client, and publishes its will.
    pub(super) fn end_waiting(
        &self,
        mut sessions: MutexGuard<'_, ByClient>,
        client_id: &str,
        now: &Moment,
    ) {
        let Some(known) = sessions.remove(client_id) else { return };
        self.router.count_dropped(known.mailbox.waiting().0);
        let will = known.parked.and_then(|parked| self.end(&known.mailbox, parked));
        drop(sessions);
        if let Some((client, will)) = will {
            self.publish_will(&client, will, now);
        }
    }
}
