//! A CONNECT gets its session: the one that waits for it, the one of another connection, or a new one.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::SessionTable;
use super::by_client::ByClient;
use super::state::State;
use crate::client::Client;
use crate::mailbox::{EndRequest, Mailbox};
use crate::message::Message;
use crate::stored::{self, MessageRecord, SessionRecord, WillRecord};
use crate::wal::{Change, Space, Ticket};

/// The session of a connection.
pub(crate) struct Claimed {
    pub mailbox: Arc<Mailbox>,
    pub state: State,
    /// True if the session existed before.
    pub present: bool,
    /// The record of a new session that outlives its connection: the CONNACK waits for its sync, so that a session that a
    /// client knows of is there after a crash.
    pub record: Option<Ticket>,
}

/// The reason why a client gets no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSession {
    /// The maximum of sessions is reached, or the store has no room for one more.
    TooMany,
    /// The client identifier's session is another user's.
    NotOwner,
}

/// The session that a CONNECT asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub clean_start: bool,
    pub expiry_seconds: u32,
    /// The will and its delay in seconds.
    pub will: Option<(&'a Message, u32)>,
}

impl SessionTable {
    /// Gives a client its session. Asks another connection with the same client identifier to end, and waits until it
    /// has given the session back. Dropping the future changes nothing.
    ///
    /// # Errors
    /// There is no room for one more session, or it belongs to another user.
    pub(crate) async fn claim(
        &self,
        client: &Arc<Client>,
        wanted: Wanted<'_>,
    ) -> Result<Claimed, NoSession> {
        loop {
            let released = {
                let sessions = self.sessions.lock();
                // Knowing a client identifier is not enough to end the session of a user.
                let known = sessions.get(&client.client_id);
                let owner = known.and_then(|known| known.client.username.as_ref());
                if owner.is_some() && owner != client.username.as_ref() {
                    return Err(NoSession::NotOwner);
                }
                let Some(known) = sessions.get(&client.client_id).filter(|known| known.is_connected())
                else {
                    return self.claim_free(sessions, client, wanted);
                };
                let mut released = Box::pin(known.mailbox.released.clone().notified_owned());
                released.as_mut().enable();
                known.mailbox.end(EndRequest::TakeOver);
                released
            };
            released.await;
        }
    }

    /// Gives a client the session that waits for it, or a new one.
    fn claim_free(
        &self,
        mut sessions: MutexGuard<'_, ByClient>,
        client: &Arc<Client>,
        wanted: Wanted<'_>,
    ) -> Result<Claimed, NoSession> {
        let now = self.now();
        let mut will = None;
        if let Some(parked) = sessions.get_mut(&client.client_id).and_then(|known| known.parked.as_ref()) {
            // A client never gets the session of another user.
            let same_user = parked.client.username == client.username;
            if wanted.clean_start || !same_user {
                if let Some(known) = sessions.remove(&client.client_id)
                    && let Some(parked) = known.parked
                {
                    will = self.end(&known.mailbox, parked);
                }
            } else if let Some(parked) = sessions.resume(client, now.unix_ms) {
                self.timers.cancel(&parked);
                let mailbox = sessions.get(&client.client_id).map(|known| known.mailbox.clone());
                // Under the lock, before another connection can ask this one to end.
                mailbox.iter().for_each(|mailbox| mailbox.reset());
                drop(sessions);
                self.counters.connected.add(u64::from(client.is_over_network()));
                let mailbox = mailbox.ok_or(NoSession::TooMany)?;
                self.store_session(&mailbox, client, wanted, None, false);
                return Ok(Claimed { mailbox, state: parked.state, present: true, record: None });
            }
        }
        let no_room = wanted.expiry_seconds > 0 && self.wal.is_full();
        let claimed = if sessions.len() >= self.limits.max_sessions || no_room {
            Err(NoSession::TooMany)
        } else {
            let number = (wanted.expiry_seconds > 0).then(|| sessions.next_number());
            let mailbox =
                Mailbox::new(client.client_id.clone(), number, self.limits.bounds, self.totals.clone());
            let mailbox = Arc::new(mailbox);
            sessions.insert(mailbox.clone(), client.clone(), now.unix_ms);
            self.counters.connected.add(u64::from(client.is_over_network()));
            let record = self.store_session(&mailbox, client, wanted, None, true);
            Ok(Claimed { mailbox, state: State::default(), present: false, record })
        };
        drop(sessions);
        if let Some((client, will)) = will {
            self.publish_will(&client, will, &now);
        }
        claimed
    }

    /// Stores the record of a session, if it outlives its connection. `awaited`: a CONNACK waits until it is on the disk.
    pub(super) fn store_session(
        &self,
        mailbox: &Mailbox,
        client: &Client,
        wanted: Wanted<'_>,
        offline_since_unix_ms: Option<u64>,
        awaited: bool,
    ) -> Option<Ticket> {
        let id = mailbox.session?;
        let record = SessionRecord {
            id,
            username: client.username.as_deref(),
            expiry_seconds: wanted.expiry_seconds,
            offline_since_unix_ms,
            will: wanted.will.map(|(message, delay_seconds)| WillRecord {
                delay_seconds,
                message: MessageRecord::of(message),
            }),
        };
        let change = Change {
            space: Space::State,
            key: stored::session_key(&mailbox.client_id),
            value: Some(stored::encode(&record).into()),
        };
        Some(self.wal.begin().append(change, awaited))
    }
}
