//! The handle of the broker, which the node holds.

use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::client::{Origin, Peer};
use crate::config::BrokerConfig;
use crate::connection::{ConnectionContext, serve_stream, serve_tcp};
use crate::hook::{Hooks, RejectReason, SessionHooks};
use crate::maintenance;
use crate::message::{Message, QoS};
use crate::monitor::QueueFigures;
use crate::outbox::Totals;
use crate::router::{PublishOutcome, Published, RetainedMessage, Router, WatchTotals, WatchedTopic};
use crate::sessions::{ClientFigures, ClientPage, ClientQuery, Ending, Fate, SessionFigures, SessionTable};
use crate::stats::BrokerStats;
use crate::sys_topics::SysTopics;
use crate::topic::TopicFilter;
use crate::wal::{Change, NotStored, Storage, StorageError, Ticket, Wal};

/// An MQTT broker. Clones are cheap and mean the same broker. It has no runtime, listens on nothing and
/// spawns nothing; connections live on the tasks that call [`serve`](Broker::serve), on any number of runtimes.
#[derive(Clone)]
pub struct Broker {
    handle: Arc<Handle>,
}

/// The parts of a broker.
struct Handle {
    wal: Arc<Wal>,
    router: Arc<Router>,
    sessions: Arc<SessionTable>,
    connections: ConnectionContext,
    started: Instant,
}

impl Broker {
    /// A broker with these hooks, asked in this order, that keeps state over a restart in `storage`. Reads the stored
    /// state; blocks for as long as that takes.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn open(
        config: BrokerConfig,
        hooks: Hooks,
        storage: Arc<dyn Storage>,
    ) -> Result<Broker, StorageError> {
        let started = Instant::now();
        let Hooks { publish, session } = hooks;
        let wal = Wal::new(storage, config.max_unwritten_bytes);
        let totals = Totals::new(config.max_stored_queue_bytes as i64, config.max_buffered_bytes as i64);
        let totals = Arc::new(totals);
        let router = Arc::new(Router::new(&config, publish, wal.clone(), totals.clone()));
        let sessions = Arc::new(SessionTable::new(&config, router.clone(), wal.clone(), totals));
        sessions.load()?;
        let session_hooks = SessionHooks::new(session);
        let connections =
            ConnectionContext::new(config, wal.clone(), router.clone(), sessions.clone(), session_hooks);
        Ok(Broker { handle: Arc::new(Handle { wal, router, sessions, connections, started }) })
    }

    /// Serves one connection over plain TCP until it ends or `cancel` fires; then an MQTT 5 client gets a DISCONNECT: server
    /// shutting down. Set `TCP_NODELAY` before (see [`prepare_socket`](crate::prepare_socket)): otherwise Nagle's algorithm
    /// adds tens of milliseconds. Dropping the future is a lost connection: the will is published, a session without an
    /// expiry interval ends.
    pub async fn serve_tcp(&self, stream: TcpStream, peer: Peer, cancel: CancellationToken) {
        serve_tcp(&self.handle.connections, stream, peer, cancel).await;
    }

    /// Serves one connection over any ordered and reliable stream, like [`serve_tcp`](Self::serve_tcp) at the cost of a
    /// dynamic call for each read and write.
    pub async fn serve<S>(&self, stream: S, peer: Peer, cancel: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        serve_stream(&self.handle.connections, Box::new(stream), peer, cancel).await;
    }

    /// Publishes delayed wills and figures under `$SYS/broker/`, ends sessions, deletes expired messages and those of ended
    /// sessions. Runs until `cancel` fires; one for each broker.
    pub async fn maintain(&self, cancel: CancellationToken) {
        let Handle { router, sessions, wal, connections, started } = &*self.handle;
        let config = &connections.config;
        let sys_topics = SysTopics::new(config.sys_interval, *started, config.clock.clone());
        tokio::select! {
            () = maintenance::run(router, sessions, wal, sys_topics, || self.stats()) => {}
            () = cancel.cancelled() => {}
        }
    }

    /// Publishes without a connection: through the hooks with `origin`, then to subscribers and the retained store.
    ///
    /// Never waits: a subscriber whose queue is full loses the message, and the outcome counts it. Call it from any thread.
    pub fn publish(&self, origin: &Origin, message: Message) -> PublishOutcome {
        self.publish_with(origin, message, Vec::new()).outcome
    }

    /// Publishes like [`publish`](Self::publish), and waits as the acknowledgement of a client would: until a message of QoS 1
    /// or 2 is stored, and hooks have completed what delays it.
    ///
    /// # Errors
    /// The store failed.
    pub async fn publish_acknowledged(
        &self,
        origin: &Origin,
        message: Message,
    ) -> Result<PublishOutcome, NotStored> {
        let is_acknowledged = message.qos() > QoS::AtMostOnce;
        let published = self.publish_with(origin, message, Vec::new());
        if !is_acknowledged {
            return Ok(published.outcome);
        }
        if let Some(ticket) = published.ticket {
            self.durable(ticket).await?;
        }
        Ok(match published.held().await {
            Ok(()) => published.outcome,
            Err(reason) => PublishOutcome::Rejected(reason),
        })
    }

    /// Maximum [weight](Message::weight) of a message, in bytes.
    pub fn max_message_bytes(&self) -> usize {
        self.handle.connections.config.max_packet_bytes as usize
    }

    /// Publishes like [`publish`](Self::publish), and stores `changes` in the same atomic commit as the changes of the
    /// message itself; if the message is rejected, nothing is stored.
    pub fn publish_with(&self, origin: &Origin, message: Message, changes: Vec<Change>) -> Published {
        let Handle { router, connections, wal, .. } = &*self.handle;
        let rejected = |reason| {
            router.count_rejected();
            Published::rejected(reason)
        };
        // The message is permanently too large, so this is not a quota error.
        if message.weight() > connections.config.max_packet_bytes as usize {
            return rejected(RejectReason::ImplementationSpecific);
        }
        // A message that can't be encoded would end every connection that it goes to.
        if message.properties().is_some_and(|properties| properties.problem().is_some()) {
            return rejected(RejectReason::ImplementationSpecific);
        }
        // Clients are stopped long before; other publishers are to try again.
        if message.qos() > QoS::AtMostOnce && wal.is_far_behind() {
            return rejected(RejectReason::QuotaExceeded);
        }
        match router.publish(origin, None, message, changes, &connections.now(), None) {
            Ok(published) => published,
            Err(_) => rejected(RejectReason::QuotaExceeded),
        }
    }

    /// True if the broker would store a message now: as a retained one, or for a session that outlives its connection.
    /// Hooks may store more. False for QoS 0, which is not acknowledged.
    pub fn keeps(&self, message: &Message) -> bool {
        self.handle.router.keeps(message)
    }

    /// True if there is a subscription that matches a topic.
    pub fn has_subscribers(&self, topic: &str) -> bool {
        self.handle.router.has_subscribers(topic)
    }

    /// True if there may be a subscription to a topic that starts with these two levels, such as `$faas/events/`; false only
    /// if there is none. Much cheaper than [`has_subscribers`](Self::has_subscribers) for each topic.
    pub fn has_subscribers_below(&self, first: &str, second: &str) -> bool {
        self.handle.router.has_subscribers_below(first, second)
    }

    /// Stores changes by themselves, in order with all others; `None` for no change. See [`durable`](Self::durable).
    pub fn record(&self, changes: Vec<Change>) -> Option<Ticket> {
        let mut transaction = self.handle.wal.begin();
        changes.into_iter().for_each(|change| {
            transaction.append(change, true);
        });
        transaction.ticket()
    }

    /// Waits until all changes up to `ticket` are stored, as durably as the store's policy says. Cancel-safe.
    ///
    /// # Errors
    /// The store failed.
    pub async fn durable(&self, ticket: Ticket) -> Result<(), NotStored> {
        self.handle.wal.durable(ticket).await
    }

    /// Asks the hooks again about every subscription of connected clients, and ends those that are not allowed any more.
    /// Subscriptions of other clients are checked when they connect. Returns before that is done.
    pub fn recheck(&self) {
        self.handle.sessions.recheck();
    }

    /// Asks the connection of a client to end; false if there is none.
    pub fn disconnect(&self, client_id: &str) -> bool {
        self.handle.sessions.disconnect(client_id)
    }

    /// Figures of the sessions whose client identifier starts with `prefix`. Costs a walk over all sessions.
    pub fn sessions(&self, prefix: &str) -> Vec<SessionFigures> {
        self.handle.sessions.figures(prefix)
    }

    /// A part of the list of clients with a session, in the order of their identifiers. Costs a walk over the sessions until
    /// `query.limit` of them are found.
    pub fn clients(&self, query: &ClientQuery) -> ClientPage {
        self.handle.sessions.clients(query)
    }

    /// One client with the filters of its subscriptions; `None` if it has no session.
    pub fn client(&self, client_id: &str) -> Option<(ClientFigures, Vec<(TopicFilter, QoS)>)> {
        self.handle.sessions.client(client_id)
    }

    /// Messages that were lost for a session since it began or the node started: its queue was full, or they were larger than
    /// its client takes. `None` if the session does not exist.
    pub fn lost(&self, client_id: &str) -> Option<u64> {
        self.handle.sessions.lost(client_id)
    }

    /// Ends the connection of a client, which is told so by DISCONNECT: administrative action; its will is published. With
    /// [`Fate::Forgotten`] its session ends too, with the messages that wait for it. Completes when that is done; dropping the
    /// future changes nothing of it. Says whether the client was connected; `None` if it has no session.
    pub async fn drop_client(&self, client_id: &str, fate: Fate) -> Option<bool> {
        match self.handle.sessions.drop_client(client_id, fate)? {
            Ending::NotConnected => Some(false),
            Ending::Connection(ended) => {
                ended.await;
                Some(true)
            }
        }
    }

    /// The retained message of a topic.
    pub fn retained(&self, topic: &str) -> Option<RetainedMessage> {
        self.handle.router.retained().of_topic(topic, &self.handle.connections.now())
    }

    /// The number of retained messages, but for those of the broker itself (`$SYS`).
    pub fn retained_of_clients(&self) -> u64 {
        self.handle.router.retained().len_of_clients() as u64
    }

    /// Visits the retained messages of topics that begin with `prefix`, in order, behind the topic `after`, up to `max` of
    /// them. Gives the topic to go on behind; `None` at the end. `visit` is called under a lock that publishers of retained
    /// messages need.
    pub fn visit_retained(
        &self,
        prefix: &str,
        after: Option<&str>,
        max: usize,
        visit: impl FnMut(RetainedMessage),
    ) -> Option<String> {
        let now = self.handle.connections.now();
        self.handle.router.retained().visit(prefix, after, max, &now, visit)
    }

    /// Begins to watch the topics of all messages that are accepted, until [`unwatch_topics`](Self::unwatch_topics); false if
    /// they are watched already. Blocks for a walk over the retained messages. Memory: 8 MiB at most.
    pub fn watch_topics(&self) -> bool {
        self.handle.router.watch_topics(&self.handle.connections.now())
    }

    /// Ends it, and frees the memory.
    pub fn unwatch_topics(&self) {
        self.handle.router.topics().end();
    }

    /// Visits watched topics that begin with `prefix`, in order, behind the topic `after`, up to `max` of them. `visit` gets a
    /// name, the topic and its messages a second, under a lock that publishers need. Gives the topic to go on behind; `None`
    /// at the end.
    pub fn visit_topics(
        &self,
        prefix: &str,
        after: Option<&str>,
        max: usize,
        visit: impl FnMut(&str, &WatchedTopic, f64),
    ) -> Option<String> {
        self.handle.router.topics().visit(prefix, after, max, Instant::now(), visit)
    }

    /// A watched topic, with its messages a second.
    pub fn watched_topic(&self, topic: &str) -> Option<(WatchedTopic, f64)> {
        self.handle.router.topics().topic(topic, Instant::now())
    }

    /// Numbers of the watched topics.
    pub fn watch_totals(&self) -> WatchTotals {
        self.handle.router.topics().totals()
    }

    /// The queue monitor: the figures of every topic filter with subscribers, in no particular order. Costs a walk over
    /// all of them.
    pub fn queues(&self) -> Vec<QueueFigures> {
        self.handle.router.monitor().all(Instant::now())
    }

    /// The queue monitor's figures of one filter, if it has subscribers.
    pub fn queue(&self, filter: &TopicFilter) -> Option<QueueFigures> {
        self.handle.router.monitor().one(filter, Instant::now())
    }

    /// The write-ahead log, for the store that writes it.
    pub fn wal(&self) -> &Arc<Wal> {
        &self.handle.wal
    }

    /// The current figures.
    pub fn stats(&self) -> BrokerStats {
        let mut stats = BrokerStats::default();
        self.handle.router.fill_stats(&mut stats);
        self.handle.sessions.fill_stats(&mut stats);
        self.handle.connections.fill_stats(&mut stats);
        stats
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Broker").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
