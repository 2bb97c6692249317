//! A connection gives its session back: the session waits for its client, or ends.

use std::sync::Arc;

use super::SessionTable;
use super::state::{Parked, State, Times, Will};
use super::take_over::Wanted;
use crate::client::Client;
use crate::mailbox::Mailbox;
use crate::moment::after_seconds;
use crate::stored;
use crate::wal::{Change, Space};

/// A session that a connection gives back.
pub(crate) struct Released {
    pub state: State,
    /// The Session Expiry Interval in force at the end.
    pub expiry_seconds: u32,
    /// The will and its delay in seconds, if it is to be published.
    pub will: Option<(Will, u32)>,
}

impl SessionTable {
    /// Takes a session back from its connection, and publishes its will unless that is delayed.
    pub(crate) fn release(&self, mailbox: &Arc<Mailbox>, client: &Arc<Client>, released: Released) {
        let Released { state, expiry_seconds, will } = released;
        let now = self.now();
        let expires_at = after_seconds(now.instant, expiry_seconds);
        let mut sessions = self.sessions.lock();
        let is_kept = expiry_seconds > 0 && mailbox.is_stored() && !mailbox.is_forgotten();
        let (delayed, immediate) = match will {
            Some((will, delay)) if is_kept && delay > 0 => (Some((will, delay)), None),
            Some((will, _)) => (None, Some(will)),
            None => (None, None),
        };
        let will_at = delayed.as_ref().and_then(|(_, delay)| after_seconds(now.instant, *delay));
        let will_at = will_at.map(|at| expires_at.map_or(at, |expires_at| at.min(expires_at)));
        let times = Times { will_at, expires_at };
        let parked =
            Parked { state, client: client.clone(), expiry_seconds, will: None, times, parking: 0 };
        let lost = if is_kept {
            let wanted = Wanted {
                clean_start: false,
                expiry_seconds,
                will: delayed.as_ref().map(|(will, delay)| (&will.message, *delay)),
            };
            self.store_session(mailbox, client, wanted, Some(now.unix_ms), false);
            let mut transaction = self.wal.begin();
            mailbox.mark(&mut transaction);
            drop(transaction);
            let lost = mailbox.disconnect();
            let will = delayed.map(|(will, _)| will);
            let parking = sessions.park(&mailbox.client_id, Parked { will, ..parked }, now.unix_ms);
            self.timers.set(&mailbox.client_id, parking, &times);
            lost
        } else {
            sessions.remove(&mailbox.client_id);
            // What is stored is lost with the session.
            let lost = mailbox.disconnect() + mailbox.waiting().0;
            self.end(mailbox, parked);
            lost
        };
        drop(sessions);
        self.router.count_dropped(lost);
        if let Some(will) = immediate {
            self.publish_will(client, will, &now);
        }
        mailbox.released.notify_waiters();
    }

    /// Ends a session: removes its subscriptions, its messages and its entries in the store. Gives its will, which the
    /// caller publishes without the lock of the table.
    pub(super) fn end(&self, mailbox: &Arc<Mailbox>, parked: Parked) -> Option<(Arc<Client>, Will)> {
        self.timers.cancel(&parked);
        let filters = mailbox.take_filters();
        self.router.forget_session(mailbox, filters.keys());
        mailbox.forget();
        if let Some(session) = mailbox.session {
            let mut transaction = self.wal.begin();
            let filters = filters.keys().map(|filter| stored::subscription_key(session, filter.as_str()));
            let unreleased = parked.state.unreleased.iter();
            let unreleased = unreleased.map(|packet_id| stored::incoming_key(session, packet_id.get()));
            let own = [stored::session_key(&mailbox.client_id), stored::mark_key(session)];
            for key in own.into_iter().chain(filters).chain(unreleased) {
                transaction.append(Change { space: Space::State, key, value: None }, false);
            }
            // When this change is stored, all messages for the session are, too.
            if let Some(ticket) = transaction.ticket() {
                self.purges.add(session, ticket);
            }
            self.timers.changed.notify_one();
        }
        parked.will.map(|will| (parked.client, will))
    }
}
