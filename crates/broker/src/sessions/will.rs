//! Wills: published when a connection is lost, after the Will Delay Interval, or with the end of the session.

use std::sync::Arc;

use super::SessionTable;
use super::state::Will;
use super::take_over::Wanted;
use super::timers::Fired;
use crate::client::{Client, Origin};
use crate::moment::Moment;

impl SessionTable {
    /// Publishes the will of a waiting session whose Will Delay Interval is over.
    pub(super) fn fire_will(&self, fired: &Fired, now: &Moment) {
        let mut sessions = self.sessions.lock();
        let Some(known) = sessions.get_mut(&fired.client_id) else { return };
        let Some(parked) = known.parked.as_mut().filter(|parked| parked.parking == fired.parking) else {
            return;
        };
        let will = parked.will.take().map(|will| (parked.client.clone(), will));
        // After a restart the will is not published again.
        let wanted = Wanted { clean_start: false, expiry_seconds: parked.expiry_seconds, will: None };
        self.store_session(&known.mailbox, &parked.client, wanted, Some(now.unix_ms), false);
        drop(sessions);
        if let Some((client, will)) = will {
            self.publish_will(&client, will, now);
        }
    }

    /// Publishes a will through the hooks. The lock of the table is not held: a hook may publish, and end sessions.
    pub(super) fn publish_will(&self, client: &Arc<Client>, will: Will, now: &Moment) {
        let origin = Origin::Client(client.clone());
        if self.router.publish(&origin, None, will.message, Vec::new(), now, None).is_err() {
            self.router.count_rejected();
        }
    }
}
