//! The broker: who is connected, who subscribes to what, and the way of a message through hooks to subscribers.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::client::{Origin, Peer};
use crate::config::BrokerConfig;
use crate::connection;
use crate::hook::{Hold, Hooks, RejectReason};
use crate::limits::Addresses;
use crate::mailbox::Mailbox;
use crate::maintain;
use crate::message::{Message, QoS};
use crate::monitor::{Figures, Monitor, QueueFigures};
use crate::outbox::{Bounds, Delivery, Totals};
use crate::retained::Retained;
use crate::sessions::{Sessions, Timers};
use crate::stats::{BrokerStats, Counters};
use crate::stored::Moment;
use crate::subscriptions::Subscriptions;
use crate::topic::TopicFilter;
use crate::wal::{Change, NotStored, Storage, StorageError, Ticket, Wal};

/// An MQTT broker. A handle: clones are cheap and mean the same broker. It has no runtime, listens on nothing and
/// spawns nothing; connections live on the tasks that call [`serve`](Broker::serve), on as many runtimes as one likes.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishOutcome {
    /// It went to the subscribers there are.
    Routed(Routed),
    /// A hook consumed it.
    Consumed,
    /// A hook or a limit refused it.
    Rejected(RejectReason),
}

/// A session, for those who look after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFigures {
    /// Whose it is.
    pub client_id: Arc<str>,
    /// Whether its client is there.
    pub connected: bool,
    /// Messages that wait for it.
    pub waiting: u64,
    /// Bytes of them.
    pub waiting_bytes: u64,
    /// Messages that were sent to it and are not acknowledged.
    pub in_flight: u64,
    /// Its subscriptions; none are shown while its client is there.
    pub filters: Vec<TopicFilter>,
}

/// What became of a message, and what it left to do.
#[derive(Debug)]
#[non_exhaustive]
pub struct Published {
    /// Where it went.
    pub outcome: PublishOutcome,
    /// When what it changed is stored: see [`Broker::durable`].
    pub ticket: Option<Ticket>,
    /// What hooks wait for before it is acknowledged.
    pub(crate) hold: Option<Arc<Hold>>,
}

/// A hook has no room for a message: it is to be offered again.
pub(crate) struct Blocked {
    pub message: Message,
    pub until: Arc<Notify>,
}

/// Where a message went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Routed {
    /// Clients with a matching subscription.
    pub subscribers: usize,
    /// Those among them for whom it was lost: their queue is full, or they do not take packets of that size.
    pub dropped: usize,
    /// It should have been retained, but the store is full.
    pub retain_refused: bool,
    /// A queue is more than half full.
    pub(crate) pressure: bool,
}

/// What connections share.
pub(crate) struct Shared {
    pub config: BrokerConfig,
    pub counters: Counters,
    pub hooks: Hooks,
    pub wal: Arc<Wal>,
    pub monitor: Monitor,
    pub totals: Arc<Totals>,
    pub(crate) subscriptions: RwLock<Subscriptions>,
    pub(crate) retained: RwLock<Retained>,
    pub(crate) sessions: Mutex<Sessions>,
    pub(crate) timers: Timers,
    /// Sessions that are over and still have messages in the store.
    pub(crate) purges: Mutex<Vec<(u64, Ticket)>>,
    /// Of all wills together.
    pub(crate) will_bytes: Arc<AtomicUsize>,
    pub(crate) addresses: Mutex<Addresses>,
    pub(crate) started: Instant,
    /// Makes assigned client identifiers differ from those of an earlier run.
    pub(crate) boot: u64,
    pub(crate) next_client: AtomicU64,
    pub(crate) handshakes: AtomicUsize,
}

/// A message that waits for room in a subscriber's queue.
pub(crate) struct Waiting {
    pub mailbox: Arc<Mailbox>,
    /// Without it the message is in the queue already, which has to get room for it.
    pub message: Option<(Message, Delivery)>,
    pub figures: Arc<Figures>,
    pub received: Instant,
}

impl Broker {
    /// A broker with these hooks, asked in this order, that keeps what is to outlive it in `storage`. Brings back what is
    /// stored there; blocks for as long as that takes.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn open(
        config: BrokerConfig,
        hooks: Hooks,
        storage: Arc<dyn Storage>,
    ) -> Result<Broker, StorageError> {
        let retained = Retained::new(config.max_retained_messages, config.max_retained_bytes);
        let totals = Totals::new(config.max_stored_queue_bytes as i64, config.max_buffered_bytes as i64);
        let shared = Arc::new(Shared {
            wal: Wal::new(storage, config.max_unwritten_bytes),
            config,
            counters: Counters::default(),
            hooks,
            monitor: Monitor::new(),
            totals: Arc::new(totals),
            subscriptions: RwLock::new(Subscriptions::new()),
            retained: RwLock::new(retained),
            sessions: Mutex::default(),
            timers: Timers::default(),
            purges: Mutex::default(),
            will_bytes: Arc::default(),
            addresses: Mutex::default(),
            started: Instant::now(),
            boot: RandomState::new().build_hasher().finish(),
            next_client: AtomicU64::new(1),
            handshakes: AtomicUsize::new(0),
        });
        shared.load()?;
        Ok(Broker { shared })
    }

    /// Serves one connection until it ends or `cancel` fires; then an MQTT 5 client is told that the server shuts down.
    ///
    /// `stream` may be anything ordered and reliable. On TCP set `TCP_NODELAY` before (see
    /// [`prepare_socket`](crate::prepare_socket)): otherwise Nagle's algorithm adds tens of milliseconds. Dropping the
    /// future is a lost connection: the will is published, a session without an expiry interval is over.
    pub async fn serve<S>(&self, stream: S, peer: Peer, cancel: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        connection::serve(&self.shared, stream, peer, cancel).await;
    }

    /// Does what is due without anybody asking: ends sessions, publishes delayed wills and figures under `$SYS/broker/`,
    /// tidies the store. Runs until `cancel` fires; one for each broker.
    pub async fn maintain(&self, cancel: CancellationToken) {
        tokio::select! {
            () = maintain::run(&self.shared) => {}
            () = cancel.cancelled() => {}
        }
    }

    /// Publishes without a connection: through the hooks with `origin`, then to subscribers and the retained store.
    ///
    /// Synchronous and never waits: a subscriber whose queue is full loses the message, and the outcome says so. Call
    /// it from any thread.
    pub fn publish(&self, origin: &Origin, message: Message) -> PublishOutcome {
        self.publish_with(origin, message, Vec::new()).outcome
    }

    /// Publishes like [`publish`](Self::publish), and stores `changes` in the same atomic commit as what the message
    /// itself stores; if the message is rejected, nothing is stored.
    pub fn publish_with(&self, origin: &Origin, message: Message, changes: Vec<Change>) -> Published {
        let rejected = |reason| {
            self.shared.counters.messages_rejected.add(1);
            Published { outcome: PublishOutcome::Rejected(reason), ticket: None, hold: None }
        };
        // It will not be smaller later: that is no quota.
        if message.weight() > self.shared.config.max_packet_bytes as usize {
            return rejected(RejectReason::ImplementationSpecific);
        }
        // What can't be encoded would end every connection that it goes to.
        if message.properties().is_some_and(|properties| properties.problem().is_some()) {
            return rejected(RejectReason::ImplementationSpecific);
        }
        // Connections stop reading long before; whoever publishes here is told to come back.
        if message.qos() > QoS::AtMostOnce && self.shared.wal.is_far_behind() {
            return rejected(RejectReason::QuotaExceeded);
        }
        match self.shared.publish(origin, None, message, changes, &self.shared.now(), None) {
            Ok(published) => published,
            Err(_) => rejected(RejectReason::QuotaExceeded),
        }
    }

    /// Whether the broker would store a message, as things are now: as a retained one, or for a session that outlives its
    /// connection. Hooks may store more. False for QoS 0, which nobody waits for.
    pub fn keeps(&self, message: &Message) -> bool {
        message.qos() > QoS::AtMostOnce && (message.retain() || self.shared.has_stored_subscriber(message))
    }

    /// Whether somebody subscribes to a topic.
    pub fn has_subscribers(&self, topic: &str) -> bool {
        let mut found = false;
        self.shared.subscriptions.read().for_each_match(topic, |_| found = true);
        found
    }

    /// Whether somebody may subscribe to a topic that starts with these two levels, such as `$faas/events/`; false only
    /// if nobody does. Much cheaper than asking for each topic.
    pub fn has_subscribers_below(&self, first: &str, second: &str) -> bool {
        self.shared.subscriptions.read().has_below(first, second)
    }

    /// Stores changes by themselves, in order with all others. See [`durable`](Self::durable).
    pub fn record(&self, changes: Vec<Change>) -> Option<Ticket> {
        let mut transaction = self.shared.wal.begin();
        changes.into_iter().for_each(|change| {
            transaction.append(change, true);
        });
        transaction.ticket()
    }

    /// Waits until everything up to `ticket` is stored, as durably as the store's policy says.
    ///
    /// # Errors
    /// The store failed.
    pub async fn durable(&self, ticket: Ticket) -> Result<(), NotStored> {
        self.shared.wal.durable(ticket).await
    }

    /// Asks the hooks again about every subscription of connected clients, and ends those that are not allowed any more.
    /// The others are asked about when their client comes back.
    pub fn recheck(&self) {
        let sessions = self.shared.sessions.lock();
        sessions.mailboxes().filter(|(_, connected)| *connected).for_each(|(mailbox, _)| mailbox.recheck());
    }

    /// Ends the connection of a client; false if there is none.
    pub fn disconnect(&self, client_id: &str) -> bool {
        let sessions = self.shared.sessions.lock();
        let connected = sessions.get(client_id).filter(|known| known.parked.is_none());
        connected.map(|known| known.mailbox.kick()).is_some()
    }

    /// The sessions whose client identifier starts like this. Costs a walk over all there are.
    pub fn sessions(&self, prefix: &str) -> Vec<SessionFigures> {
        let sessions = self.shared.sessions.lock();
        let found = sessions.mailboxes().filter(|(mailbox, _)| mailbox.client_id.starts_with(prefix));
        let figures = found.map(|(mailbox, connected)| {
            let (waiting, waiting_bytes) = mailbox.waiting();
            let parked = sessions.get(&mailbox.client_id).and_then(|known| known.parked.as_ref());
            let filters = parked.map(|parked| parked.state.filters.iter().cloned().collect());
            SessionFigures {
                client_id: mailbox.client_id.clone(),
                connected,
                waiting,
                waiting_bytes,
                in_flight: mailbox.in_flight(),
                filters: filters.unwrap_or_default(),
            }
        });
        figures.collect()
    }

    /// The queue monitor: the figures of every topic filter with subscribers, in no particular order. Costs a walk over
    /// all of them.
    pub fn queues(&self) -> Vec<QueueFigures> {
        self.shared.monitor.all(Instant::now())
    }

    /// The queue monitor's figures of one filter, if it has subscribers.
    pub fn queue(&self, filter: &TopicFilter) -> Option<QueueFigures> {
        self.shared.monitor.one(filter, Instant::now())
    }

    /// What the broker has to store.
    pub fn wal(&self) -> &Arc<Wal> {
        &self.shared.wal
    }

    /// The figures of now.
    pub fn stats(&self) -> BrokerStats {
        self.shared.stats()
    }
}

impl Shared {
    /// This moment.
    pub(crate) fn now(&self) -> Moment {
        Moment::now(&self.config.clock)
    }

    pub(crate) fn stats(&self) -> BrokerStats {
        let counters = &self.counters;
        let (connections, sessions) = {
            let sessions = self.sessions.lock();
            (sessions.connected() as u64, sessions.len() as u64)
        };
        let (subscriptions, shared_subscriptions) = {
            let subscriptions = self.subscriptions.read();
            (subscriptions.len() as u64, subscriptions.shared() as u64)
        };
        BrokerStats {
            connections,
            sessions,
            stored_bytes: self.totals.stored_bytes(),
            buffered_bytes: self.totals.buffered_bytes(),
            sessions_expired: counters.sessions_expired.get(),
            connections_total: counters.connections_total.get(),
            connections_refused: counters.connections_refused.get(),
            protocol_errors: counters.protocol_errors.get(),
            subscriptions,
            shared_subscriptions,
            retained: self.retained.read().len() as u64,
            retained_refused: counters.retained_refused.get(),
            messages_in: counters.messages_in.get(),
            messages_out: counters.messages_out.get(),
            messages_dropped: counters.messages_dropped.get(),
            messages_rejected: counters.messages_rejected.get(),
            messages_consumed: counters.messages_consumed.get(),
            hook_panics: counters.hook_panics.get(),
            bytes_in: counters.bytes_in.get(),
            bytes_out: counters.bytes_out.get(),
        }
    }

    /// What may wait for one session.
    pub(crate) fn bounds(&self) -> Bounds {
        let config = &self.config;
        Bounds {
            messages: config.session_queue_messages,
            bytes: config.session_queue_bytes,
            stored_messages: config.stored_queue_messages,
            stored_bytes: config.stored_queue_bytes,
        }
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Broker").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
