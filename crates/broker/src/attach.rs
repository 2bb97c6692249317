//! Sessions and their connections: who gets a session, what becomes of it without one, and its end.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use futures_util::FutureExt;
use parking_lot::{Mutex, MutexGuard};

use crate::broker::Shared;
use crate::client::{Client, Origin};
use crate::hook::{
    ConnectDecision, ConnectRefusal, ConnectRefusalReason, ConnectRequest, RejectReason, SessionHook,
};
use crate::limits::{AddressLimit, Addresses};
use crate::mailbox::Mailbox;
use crate::message::{Message, QoS};
use crate::retained::Slice;
use crate::session::Subscription;
use crate::sessions::{Due, Fired, Parked, Sessions, State, Will, after_seconds};
use crate::stored::{self, MessageRecord, Moment, SessionRecord, SubscriptionRecord, WillRecord};
use crate::topic::{TopicFilter, TopicName};
use crate::wal::{Change, Space, Ticket};

/// A connection that has not sent its CONNECT yet.
pub(crate) struct Handshake<'a>(&'a AtomicUsize);

/// A connection of an address.
pub(crate) struct Place<'a> {
    addresses: &'a Mutex<Addresses>,
    address: IpAddr,
}

/// What a connection has of its session.
pub(crate) struct Claimed {
    pub mailbox: Arc<Mailbox>,
    pub state: State,
    /// There was a session from before.
    pub present: bool,
}

/// Why a client gets no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSession {
    /// There are too many, or there is no room to store one more.
    TooMany,
    /// The client identifier's session is another user's.
    NotOwner,
}

/// How a client wants its session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub clean_start: bool,
    pub expiry_seconds: u32,
    pub will: Option<(&'a Message, u32)>,
}

/// A connection's end of its session.
pub(crate) struct Released {
    pub state: State,
    /// The Session Expiry Interval in force at the end.
    pub expiry_seconds: u32,
    /// The will, where it is to be published, with its delay.
    pub will: Option<(Will, u32)>,
}

impl Shared {
    /// `None` when as many connections as there may be clients have not sent their CONNECT.
    pub(crate) fn begin_handshake(&self) -> Option<Handshake<'_>> {
        let handshake = Handshake(&self.handshakes);
        (self.handshakes.fetch_add(1, Relaxed) < self.config.max_connections).then_some(handshake)
    }

    /// Counts a connection of an address, unless it has too many.
    pub(crate) fn enter(&self, address: IpAddr) -> Result<Option<Place<'_>>, AddressLimit> {
        let (most, per_second) =
            (self.config.max_connections_per_address, self.config.max_connects_per_second_per_address);
        if most == 0 && per_second == 0 {
            return Ok(None);
        }
        self.addresses.lock().enter(address, most, per_second, Instant::now())?;
        Ok(Some(Place { addresses: &self.addresses, address }))
    }

    /// Whether a client with this identifier is one too many.
    pub(crate) fn is_full(&self, client_id: &str) -> bool {
        let sessions = self.sessions.lock();
        let connected = sessions.get(client_id).is_some_and(|known| known.parked.is_none());
        sessions.connected() >= self.config.max_connections && !connected
    }

    /// A client identifier that nobody uses.
    pub(crate) fn assign_client_id(&self) -> String {
        format!("edgefaas-{:016x}-{}", self.boot, self.next_client.fetch_add(1, Relaxed))
    }

    /// Asks all hooks about a CONNECT.
    pub(crate) async fn authenticate(
        &self,
        request: &ConnectRequest,
    ) -> Result<Option<Arc<str>>, ConnectRefusal> {
        let mut username = None;
        for hook in &self.hooks.session {
            let asked: ConnectDecision =
                catch_unwind(AssertUnwindSafe(|| hook.on_connect(request))).map_err(|_| panicked())?;
            let grant = AssertUnwindSafe(asked).catch_unwind().await.map_err(|_| panicked())??;
            username = grant.username.or(username);
        }
        Ok(username)
    }

    /// Asks all hooks about a subscription.
    pub(crate) fn authorize(
        &self,
        client: &Client,
        filter: &TopicFilter,
        qos: QoS,
    ) -> Result<QoS, RejectReason> {
        authorize(&self.hooks.session, client, filter, qos)
    }

    /// Tells all session hooks something.
    pub(crate) fn tell_hooks(&self, tell: impl Fn(&dyn SessionHook)) {
        for hook in &self.hooks.session {
            if catch_unwind(AssertUnwindSafe(|| tell(hook.as_ref()))).is_err() {
                tracing::error!("a session hook panicked");
                self.counters.hook_panics.add(1);
            }
        }
    }

    /// Gives a client its session: the one that waits for it, or a new one. Another connection with the same client
    /// identifier is asked to go, and waited for. Dropping the future leaves everything as it was.
    pub(crate) async fn claim(
        &self,
        client: &Arc<Client>,
        wanted: Wanted<'_>,
    ) -> Result<Claimed, NoSession> {
        loop {
            let released = {
                let sessions = self.sessions.lock();
                // Nobody ends the session of a user by saying its client identifier.
                let owner = sessions.get(&client.client_id).and_then(|known| known.owner.as_ref());
                if owner.is_some() && owner != client.username.as_ref() {
                    return Err(NoSession::NotOwner);
                }
                let Some(known) = sessions.get(&client.client_id).filter(|known| known.parked.is_none())
                else {
                    return self.claim_free(sessions, client, wanted);
                };
                let mut released = Box::pin(known.mailbox.released.clone().notified_owned());
                released.as_mut().enable();
                known.mailbox.take_over();
                released
            };
            released.await;
        }
    }

    fn claim_free(
        &self,
        mut sessions: MutexGuard<'_, Sessions>,
        client: &Arc<Client>,
        wanted: Wanted<'_>,
    ) -> Result<Claimed, NoSession> {
        let now = self.now();
        let mut will = None;
        if let Some(parked) = sessions.get_mut(&client.client_id).and_then(|known| known.parked.as_ref()) {
            // Somebody else's session is nobody's business.
            let same_user = parked.client.username == client.username;
            if wanted.clean_start || !same_user {
                if let Some(known) = sessions.remove(&client.client_id)
                    && let Some(parked) = known.parked
                {
                    will = self.end(&known.mailbox, parked);
                }
            } else if let Some(parked) = sessions.resume(&client.client_id) {
                self.timers.cancel(&parked);
                let mailbox = sessions.get(&client.client_id).map(|known| known.mailbox.clone());
                // Before anybody else can ask it to go.
                mailbox.iter().for_each(|mailbox| mailbox.reset());
                drop(sessions);
                self.counters.connections_total.add(1);
                let mailbox = mailbox.ok_or(NoSession::TooMany)?;
                self.store_session(&mailbox, client, wanted, None);
                return Ok(Claimed { mailbox, state: parked.state, present: true });
            }
        }
        let no_room = wanted.expiry_seconds > 0 && self.wal.is_full();
        let claimed = if sessions.len() >= self.config.max_sessions || no_room {
            Err(NoSession::TooMany)
        } else {
            let session = (wanted.expiry_seconds > 0).then(|| {
                sessions.next_session += 1;
                sessions.next_session
            });
            let mailbox =
                Mailbox::new(client.client_id.clone(), session, self.bounds(), self.totals.clone());
            let mailbox = Arc::new(mailbox);
            sessions.insert(mailbox.clone(), client.username.clone());
            self.counters.connections_total.add(1);
            self.store_session(&mailbox, client, wanted, None);
            Ok(Claimed { mailbox, state: State::new(), present: false })
        };
        drop(sessions);
        if let Some((client, will)) = will {
            self.publish_will(&client, will, &now);
        }
        claimed
    }

    /// A connection is over: its session waits for the client, or is over too.
    pub(crate) fn release(&self, mailbox: &Arc<Mailbox>, client: &Arc<Client>, released: Released) {
        let Released { state, expiry_seconds, will } = released;
        let now = self.now();
        let expires_at = after_seconds(now.instant, expiry_seconds);
        let kept = expiry_seconds > 0 && mailbox.is_stored();
        let delayed = |delay: u32| kept && delay > 0;
        let (delayed, at_once) = match will {
            Some((will, delay)) if delayed(delay) => (Some((will, delay)), None),
            Some((will, _)) => (None, Some(will)),
            None => (None, None),
        };
        let will_at = delayed.as_ref().and_then(|(_, delay)| after_seconds(now.instant, *delay));
        let parked = Parked {
            state,
            client: client.clone(),
            expiry_seconds,
            will: None,
            will_at: will_at.map(|at| expires_at.map_or(at, |expires_at| at.min(expires_at))),
            expires_at,
            parking: 0,
        };
        let lost = {
            let mut sessions = self.sessions.lock();
            if kept {
                let wanted = Wanted {
                    clean_start: false,
                    expiry_seconds,
                    will: delayed.as_ref().map(|(will, delay)| (&will.message, *delay)),
                };
                self.store_session(mailbox, client, wanted, Some(now.unix_ms));
                let mut transaction = self.wal.begin();
                mailbox.mark(&mut transaction);
                drop(transaction);
                let lost = mailbox.disconnect();
                let (will_at, client_id) = (parked.will_at, &mailbox.client_id);
                let will = delayed.map(|(will, _)| will);
                let parking = sessions.park(client_id, Parked { will, ..parked });
                if let Some(at) = will_at {
                    self.timers.set(at, client_id, parking, Due::Will);
                }
                if let Some(at) = expires_at {
                    self.timers.set(at, client_id, parking, Due::Expiry);
                }
                lost
            } else {
                sessions.remove(&mailbox.client_id);
                let waiting = mailbox.disconnect();
                self.end(mailbox, parked);
                waiting
            }
        };
        self.counters.messages_dropped.add(lost);
        if let Some(will) = at_once {
            self.publish_will(client, will, &now);
        }
        mailbox.released.notify_waiters();
    }

    /// Carries out what is due for a waiting session, unless its client came back.
    pub(crate) fn fired(&self, fired: Fired) {
        let now = self.now();
        let mut sessions = self.sessions.lock();
        let Some(known) = sessions.get_mut(&fired.client_id) else { return };
        let Some(parked) = known.parked.as_mut().filter(|parked| parked.parking == fired.parking) else {
            return;
        };
        let will = match fired.due {
            Due::Will => {
                let will = parked.will.take().map(|will| (parked.client.clone(), will));
                let wanted =
                    Wanted { clean_start: false, expiry_seconds: parked.expiry_seconds, will: None };
                self.store_session(&known.mailbox, &parked.client, wanted, Some(now.unix_ms));
                will
            }
            Due::Expiry => {
                let Some(known) = sessions.remove(&fired.client_id) else { return };
                self.counters.sessions_expired.add(1);
                let waiting = known.mailbox.waiting().0;
                self.counters.messages_dropped.add(waiting);
                known.parked.and_then(|parked| self.end(&known.mailbox, parked))
            }
        };
        drop(sessions);
        if let Some((client, will)) = will {
            self.publish_will(&client, will, &now);
        }
    }

    /// Takes what there is of a session out of everything; gives its will, which is published now that it is over.
    fn end(&self, mailbox: &Arc<Mailbox>, parked: Parked) -> Option<(Arc<Client>, Will)> {
        self.timers.cancel(&parked);
        {
            let mut subscriptions = self.subscriptions.write();
            for filter in &parked.state.filters {
                subscriptions.remove(&self.monitor, mailbox, filter);
            }
        }
        mailbox.forget();
        if let Some(session) = mailbox.session {
            let mut transaction = self.wal.begin();
            let filters = parked.state.filters.iter();
            let filters = filters.map(|filter| stored::subscription_key(session, filter.as_str()));
            let unreleased = parked.state.unreleased.iter();
            let unreleased = unreleased.map(|packet_id| stored::incoming_key(session, packet_id.get()));
            let own = stored::session_key(&mailbox.client_id);
            let own = [own, stored::mark_key(session)];
            for key in own.into_iter().chain(filters).chain(unreleased) {
                transaction.append(Change { space: Space::State, key, value: None }, false);
            }
            // What is on its way to the store for it is there when this is.
            if let Some(ticket) = transaction.ticket() {
                self.purges.lock().push((session, ticket));
            }
            self.timers.changed.notify_one();
        }
        parked.will.map(|will| (parked.client, will))
    }

    fn publish_will(&self, client: &Arc<Client>, will: Will, now: &Moment) {
        let origin = Origin::Client(client.clone());
        if self.publish(&origin, None, will.message, Vec::new(), now, None).is_err() {
            self.counters.messages_rejected.add(1);
        }
    }

    /// Stores what a session is, if it outlives its connection.
    fn store_session(
        &self,
        mailbox: &Mailbox,
        client: &Client,
        wanted: Wanted<'_>,
        offline_since_unix_ms: Option<u64>,
    ) {
        let Some(id) = mailbox.session else { return };
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
        self.wal.begin().append(change, false);
    }

    /// Adds or replaces a subscription; says whether it is new, and when it is stored.
    pub(crate) fn subscribe(
        &self,
        mailbox: &Arc<Mailbox>,
        subscription: &Subscription,
    ) -> (bool, Option<Ticket>) {
        let mut subscriptions = self.subscriptions.write();
        let added = subscriptions.insert(&self.monitor, mailbox, subscription);
        let ticket = mailbox.session.map(|session| {
            let record = SubscriptionRecord::of(subscription.options, subscription.identifier);
            let change = Change {
                space: Space::State,
                key: stored::subscription_key(session, subscription.filter.as_str()),
                value: Some(stored::encode(&record).into()),
            };
            self.wal.begin().append(change, true)
        });
        (added, ticket)
    }

    /// Removes a subscription; says whether there was one, and when that is stored.
    pub(crate) fn unsubscribe(
        &self,
        mailbox: &Arc<Mailbox>,
        filter: &TopicFilter,
    ) -> (bool, Option<Ticket>) {
        let mut subscriptions = self.subscriptions.write();
        let removed = subscriptions.remove(&self.monitor, mailbox, filter);
        let ticket = mailbox.session.filter(|_| removed).map(|session| {
            let key = stored::subscription_key(session, filter.as_str());
            self.wal.begin().append(Change { space: Space::State, key, value: None }, true)
        });
        (removed, ticket)
    }

    /// See [`Retained::slice`](crate::retained::Retained::slice).
    pub(crate) fn retained_slice(
        &self,
        filter: &TopicFilter,
        after: Option<&TopicName>,
        most: usize,
        now: Instant,
    ) -> Slice {
        self.retained.read().slice(filter, after, most, now)
    }

    /// The retained message of a topic and when it came.
    pub(crate) fn retained_message(&self, topic: &TopicName, now: Instant) -> Option<(Message, Instant)> {
        self.retained.read().get(topic, now).map(|kept| (kept.message.clone(), kept.received))
    }
}

fn panicked() -> ConnectRefusal {
    tracing::error!("a session hook panicked; its client is refused");
    ConnectRefusal {
        reason: ConnectRefusalReason::ServerUnavailable,
        detail: "the broker could not decide".into(),
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.addresses.lock().leave(self.address);
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Asks hooks about a subscription; one that panics refuses it.
pub(crate) fn authorize(
    hooks: &[Arc<dyn SessionHook>],
    client: &Client,
    filter: &TopicFilter,
    qos: QoS,
) -> Result<QoS, RejectReason> {
    let mut granted = qos;
    for hook in hooks {
        let asked = catch_unwind(AssertUnwindSafe(|| hook.on_subscribe(client, filter, granted)));
        granted = asked.unwrap_or(Err(RejectReason::Unspecified))?.min(granted);
    }
    Ok(granted)
}
