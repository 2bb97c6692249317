//! The sessions: one for each client identifier, connected or waiting for its client to come back.
//!
//! ```text
//! take_over   a CONNECT gets its session, from the connection that has it or from the table
//! release     a connection gives its session back: it waits for the client, or ends
//! will        where a will is published
//! due         delayed wills and ends of waiting sessions
//! purge       messages of ended sessions are deleted from the store
//! load        sessions are read from the store at the start
//! clients     lists of clients, and clients that an operator drops
//! ```

mod by_client;
mod clients;
mod expiry;
mod load;
mod purge;
mod release;
mod state;
mod take_over;
mod timers;
mod will;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use edgefaas_platform::Clock;
use parking_lot::Mutex;

use self::by_client::ByClient;
pub(crate) use self::clients::Ending;
pub use self::clients::{ClientConnection, ClientFigures, ClientPage, ClientQuery, Fate};
use self::purge::Purges;
pub(crate) use self::purge::Purging;
pub(crate) use self::release::Released;
pub(crate) use self::state::{State, Will};
pub(crate) use self::take_over::{Claimed, NoSession, Wanted};
use self::timers::Timers;
use crate::config::BrokerConfig;
use crate::limits::Claim;
use crate::mailbox::{EndRequest, Mailbox};
use crate::message::Message;
use crate::moment::Moment;
use crate::outbox::{Bounds, Totals};
use crate::router::Router;
use crate::stats::{BrokerStats, SessionCounters};
use crate::topic::TopicFilter;
use crate::wal::Wal;

/// The sessions of a broker, with their timers, their wills and the messages that ended ones have left in the store.
pub(crate) struct SessionTable {
    router: Arc<Router>,
    wal: Arc<Wal>,
    totals: Arc<Totals>,
    clock: Clock,
    limits: Limits,
    sessions: Mutex<ByClient>,
    timers: Timers,
    purges: Purges,
    /// Bytes of the wills of all clients.
    will_bytes: Arc<AtomicUsize>,
    counters: SessionCounters,
}

/// Limits on sessions.
struct Limits {
    max_connections: usize,
    max_sessions: usize,
    /// Bounds of the queue of one session.
    bounds: Bounds,
}

/// Figures of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFigures {
    /// Client identifier of the session.
    pub client_id: Arc<str>,
    /// True if the session's client is connected.
    pub connected: bool,
    /// Messages that wait for it.
    pub waiting: u64,
    /// Bytes of the messages that wait for it.
    pub waiting_bytes: u64,
    /// Messages that were sent to it and are not acknowledged.
    pub in_flight: u64,
    /// Filters of the session's subscriptions.
    pub filters: Vec<TopicFilter>,
}

impl SessionTable {
    pub(crate) fn new(
        config: &BrokerConfig,
        router: Arc<Router>,
        wal: Arc<Wal>,
        totals: Arc<Totals>,
    ) -> SessionTable {
        let bounds = Bounds {
            messages: config.session_queue_messages,
            bytes: config.session_queue_bytes,
            stored_messages: config.stored_queue_messages,
            stored_bytes: config.stored_queue_bytes,
        };
        SessionTable {
            router,
            purges: Purges::new(wal.clone()),
            wal,
            totals,
            clock: config.clock.clone(),
            limits: Limits {
                max_connections: config.max_connections,
                max_sessions: config.max_sessions,
                bounds,
            },
            sessions: Mutex::default(),
            timers: Timers::default(),
            will_bytes: Arc::default(),
            counters: SessionCounters::default(),
        }
    }

    fn now(&self) -> Moment {
        Moment::now(&self.clock)
    }

    /// Fills in the numbers of sessions and connections.
    pub(crate) fn fill_stats(&self, stats: &mut BrokerStats) {
        {
            let sessions = self.sessions.lock();
            stats.connections = sessions.connected() as u64;
            stats.sessions = sessions.len() as u64;
        }
        stats.stored_bytes = self.totals.stored_bytes();
        stats.buffered_bytes = self.totals.buffered_bytes();
        stats.sessions_expired = self.counters.expired.get();
        stats.connections_total = self.counters.connected.get();
    }

    /// True if a connection with this client identifier would be one too many.
    pub(crate) fn is_full(&self, client_id: &str) -> bool {
        let sessions = self.sessions.lock();
        let connected = sessions.get(client_id).is_some_and(|known| known.is_connected());
        sessions.connected() >= self.limits.max_connections && !connected
    }

    /// A will, counted against the limit on the wills of all clients.
    pub(crate) fn claim_will(&self, message: Message) -> Will {
        let claim = Claim::of(&self.will_bytes, message.weight());
        Will { message, claim }
    }

    /// Makes every connection ask the hooks again about its subscriptions and waiting messages.
    pub(crate) fn recheck(&self) {
        let sessions = self.sessions.lock();
        sessions.all().filter(|known| known.is_connected()).for_each(|known| known.mailbox.recheck());
    }

    /// Ends the connection of a client; false if there is none.
    pub(crate) fn disconnect(&self, client_id: &str) -> bool {
        let sessions = self.sessions.lock();
        let connected = sessions.get(client_id).filter(|known| known.is_connected());
        connected.map(|known| known.mailbox.end(EndRequest::Administrative)).is_some()
    }

    /// Figures of the sessions whose client identifier starts with `prefix`. Costs a walk over all sessions.
    pub(crate) fn figures(&self, prefix: &str) -> Vec<SessionFigures> {
        let sessions = self.sessions.lock();
        let found = sessions.all().filter(|known| known.mailbox.client_id.starts_with(prefix));
        let figures = found.map(|known| {
            let (waiting, waiting_bytes) = known.mailbox.waiting();
            let filters = known.mailbox.filters().into_iter().map(|(filter, _)| filter).collect();
            SessionFigures {
                client_id: known.mailbox.client_id.clone(),
                connected: known.is_connected(),
                waiting,
                waiting_bytes,
                in_flight: known.mailbox.in_flight(),
                filters,
            }
        });
        figures.collect()
    }

    /// Deletes up to `max_messages` messages of every session that have expired while they waited; true if one may have more.
    pub(crate) fn expire_queued(&self, max_messages: usize, now: Instant) -> bool {
        let mailboxes: Vec<Arc<Mailbox>> =
            self.sessions.lock().all().map(|known| known.mailbox.clone()).collect();
        let mut more = false;
        for mailbox in mailboxes {
            let mut transaction = self.wal.begin();
            let expired = mailbox.expire(max_messages, now, &mut transaction);
            drop(transaction);
            self.router.count_dropped(expired as u64);
            more |= expired == max_messages;
        }
        more
    }

    /// Messages of ended sessions in the store.
    pub(crate) fn purges(&self) -> &Purges {
        &self.purges
    }
}
