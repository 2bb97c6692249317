//! The broker: who is connected, who subscribes to what, and the way of a message through hooks to subscribers.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use futures_util::FutureExt;
use parking_lot::{Mutex, RwLock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::client::{Client, Origin, Peer};
use crate::config::BrokerConfig;
use crate::connection;
use crate::hook::{
    ConnectDecision, ConnectRefusal, ConnectRefusalReason, ConnectRequest, Hold, HookEffects, Hooks,
    PublishHook, Publishing, RejectReason, SessionHook, Verdict,
};
use crate::journal::{Change, Journal, NotStored, Storage, StorageError, Ticket};
use crate::mailbox::Mailbox;
use crate::message::{Message, QoS};
use crate::outbox::{Dated, Delivery, Pushed};
use crate::retained::{Retained, Slice};
use crate::session::Subscription;
use crate::stats::{BrokerStats, Counters};
use crate::topic::{TopicFilter, TopicName};
use crate::trie::FilterTrie;
use crate::wire::SubscriptionOptions;

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
    pub journal: Arc<Journal>,
    subscriptions: RwLock<FilterTrie<Subscriber>>,
    retained: RwLock<Retained>,
    clients: Mutex<HashMap<Arc<str>, Arc<Mailbox>>>,
    /// Makes assigned client identifiers differ from those of an earlier run.
    boot: u64,
    next_client: AtomicU64,
    handshakes: AtomicUsize,
}

/// A connection that has not sent its CONNECT yet.
pub(crate) struct Handshake<'a>(&'a AtomicUsize);

/// A message that waits for room in a subscriber's queue.
pub(crate) struct Waiting {
    pub mailbox: Arc<Mailbox>,
    pub message: Message,
    pub delivery: Delivery,
    pub received: Instant,
}

struct Subscriber {
    mailbox: Arc<Mailbox>,
    options: SubscriptionOptions,
    identifier: Option<NonZeroU32>,
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
        Ok(Broker {
            shared: Arc::new(Shared {
                config,
                counters: Counters::default(),
                hooks,
                journal: Journal::new(storage),
                subscriptions: RwLock::new(FilterTrie::new()),
                retained: RwLock::new(retained),
                clients: Mutex::new(HashMap::new()),
                boot: RandomState::new().build_hasher().finish(),
                next_client: AtomicU64::new(1),
                handshakes: AtomicUsize::new(0),
            }),
        })
    }

    /// Serves one connection until it ends or `cancel` fires; then an MQTT 5 client is told that the server shuts down.
    ///
    /// `stream` may be anything ordered and reliable. On TCP set `TCP_NODELAY` before (see
    /// [`prepare_socket`](crate::prepare_socket)): otherwise Nagle's algorithm adds tens of milliseconds. Dropping the
    /// future ends the session like a lost connection: subscriptions go, the will is published.
    pub async fn serve<S>(&self, stream: S, peer: Peer, cancel: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        connection::serve(&self.shared, stream, peer, cancel).await;
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
        if message.weight() > self.shared.config.max_packet_bytes as usize {
            return rejected(RejectReason::QuotaExceeded);
        }
        // What can't be encoded would end every connection that it goes to.
        if message.properties().is_some_and(|properties| properties.problem().is_some()) {
            return rejected(RejectReason::ImplementationSpecific);
        }
        match self.shared.publish(origin, None, message, changes, Instant::now(), None) {
            Ok(published) => published,
            Err(_) => rejected(RejectReason::QuotaExceeded),
        }
    }

    /// Stores changes by themselves, in order with all others. See [`durable`](Self::durable).
    pub fn record(&self, changes: Vec<Change>) -> Option<Ticket> {
        let mut transaction = self.shared.journal.begin();
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
        self.shared.journal.durable(ticket).await
    }

    /// Asks the hooks again about every subscription there is, and ends those that are not allowed any more.
    pub fn recheck(&self) {
        let clients: Vec<Arc<Mailbox>> = self.shared.clients.lock().values().cloned().collect();
        for mailbox in clients {
            mailbox.recheck();
        }
    }

    /// Ends the connection of a client; false if there is none.
    pub fn disconnect(&self, client_id: &str) -> bool {
        let mailbox = self.shared.clients.lock().get(client_id).cloned();
        mailbox.is_some_and(|mailbox| {
            mailbox.kick();
            true
        })
    }

    /// The figures of now.
    pub fn stats(&self) -> BrokerStats {
        let counters = &self.shared.counters;
        BrokerStats {
            connections: self.shared.clients.lock().len() as u64,
            connections_total: counters.connections_total.get(),
            connections_refused: counters.connections_refused.get(),
            protocol_errors: counters.protocol_errors.get(),
            subscriptions: self.shared.subscriptions.read().len() as u64,
            retained: self.shared.retained.read().len() as u64,
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
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Broker").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Hooks, retained store, subscribers. QoS 1 and 2 messages for a full queue go to `waiting`; without it they are
    /// lost for that subscriber. What is stored is stored with `changes`.
    pub(crate) fn publish(
        &self,
        origin: &Origin,
        publisher: Option<&Arc<Mailbox>>,
        message: Message,
        changes: Vec<Change>,
        now: Instant,
        waiting: Option<&mut Vec<Waiting>>,
    ) -> Result<Published, Blocked> {
        let rejected = |reason| {
            self.counters.messages_rejected.add(1);
            Ok(Published { outcome: PublishOutcome::Rejected(reason), ticket: None, hold: None })
        };
        self.counters.messages_in.add(1);
        // The broker's own figures: nobody else tells them.
        if !matches!(origin, Origin::Broker) && message.topic().as_str().starts_with("$SYS/") {
            return rejected(RejectReason::NotAuthorized);
        }
        let mut message = message;
        let mut effects = HookEffects { changes, hold: None };
        let mut consumed = false;
        for hook in &self.hooks.publish {
            match self.ask(hook.as_ref(), origin, &message, &mut effects) {
                Verdict::Forward => {}
                Verdict::Rewrite(rewritten) => message = rewritten,
                Verdict::Consume => {
                    consumed = true;
                    break;
                }
                Verdict::Reject(reason) => return rejected(reason),
                Verdict::Block(until) => return Err(Blocked { message, until }),
            }
        }
        let HookEffects { changes, hold } = effects;
        let mut transaction = self.journal.begin();
        for change in changes {
            transaction.append(change, true);
        }
        if consumed {
            self.counters.messages_consumed.add(1);
            let ticket = transaction.ticket();
            return Ok(Published { outcome: PublishOutcome::Consumed, ticket, hold });
        }
        let retain_refused = message.retain() && self.retain(&message, now);
        let mut routed = self.route(&message, publisher, now, waiting);
        routed.retain_refused = retain_refused;
        self.counters.messages_dropped.add(routed.dropped as u64);
        let ticket = transaction.ticket();
        Ok(Published { outcome: PublishOutcome::Routed(routed), ticket, hold })
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
        let mut granted = qos;
        for hook in &self.hooks.session {
            let asked = catch_unwind(AssertUnwindSafe(|| hook.on_subscribe(client, filter, granted)));
            granted = asked.unwrap_or(Err(RejectReason::Unspecified))?.min(granted);
        }
        Ok(granted)
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

    /// `None` when as many connections as there may be clients have not sent their CONNECT.
    pub(crate) fn begin_handshake(&self) -> Option<Handshake<'_>> {
        let handshake = Handshake(&self.handshakes);
        (self.handshakes.fetch_add(1, Relaxed) < self.config.max_connections).then_some(handshake)
    }

    /// Adds a client; one with the same identifier is asked to go.
    pub(crate) fn attach(&self, mailbox: &Arc<Mailbox>) {
        let before = self.clients.lock().insert(mailbox.client_id.clone(), mailbox.clone());
        if let Some(before) = before {
            before.take_over();
        }
        self.counters.connections_total.add(1);
    }

    /// Removes a client, unless another connection has taken its identifier.
    pub(crate) fn detach(&self, mailbox: &Arc<Mailbox>) {
        let mut clients = self.clients.lock();
        if clients.get(&mailbox.client_id).is_some_and(|current| Arc::ptr_eq(current, mailbox)) {
            clients.remove(&mailbox.client_id);
        }
    }

    pub(crate) fn is_full(&self, client_id: &str) -> bool {
        let clients = self.clients.lock();
        clients.len() >= self.config.max_connections && !clients.contains_key(client_id)
    }

    /// A client identifier that nobody uses.
    pub(crate) fn assign_client_id(&self) -> String {
        format!("edgefaas-{:016x}-{}", self.boot, self.next_client.fetch_add(1, Relaxed))
    }

    /// Adds or replaces a subscription and says whether it is new.
    pub(crate) fn subscribe(&self, mailbox: &Arc<Mailbox>, subscription: &Subscription) -> bool {
        let &Subscription { ref filter, options, identifier } = subscription;
        let mut subscriptions = self.subscriptions.write();
        let replaced = subscriptions.update(
            filter,
            |subscriber| Arc::ptr_eq(&subscriber.mailbox, mailbox),
            |subscriber| (subscriber.options, subscriber.identifier) = (options, identifier),
        );
        if !replaced {
            mailbox.subscriptions.fetch_add(1, Relaxed);
            subscriptions.insert(filter, Subscriber { mailbox: mailbox.clone(), options, identifier });
        }
        !replaced
    }

    /// Removes a subscription and says whether there was one.
    pub(crate) fn unsubscribe(&self, mailbox: &Arc<Mailbox>, filter: &TopicFilter) -> bool {
        let mut subscriptions = self.subscriptions.write();
        let removed = subscriptions.remove(filter, |subscriber| Arc::ptr_eq(&subscriber.mailbox, mailbox));
        if removed.is_some() {
            mailbox.subscriptions.fetch_sub(1, Relaxed);
        }
        removed.is_some()
    }

    /// See [`Retained::slice`].
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

    fn ask(
        &self,
        hook: &dyn PublishHook,
        origin: &Origin,
        message: &Message,
        effects: &mut HookEffects,
    ) -> Verdict {
        let mut publishing = Publishing::new(origin, message, effects);
        catch_unwind(AssertUnwindSafe(|| hook.on_publish(&mut publishing))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            tracing::error!(
                topic = message.topic().as_str(),
                ?origin,
                panic = text.unwrap_or("not text"),
                "a publish hook panicked; its message is rejected"
            );
            self.counters.hook_panics.add(1);
            Verdict::Reject(RejectReason::Unspecified)
        })
    }

    /// Says whether the store refused the message.
    fn retain(&self, message: &Message, now: Instant) -> bool {
        let refused = self.retained.write().set(message, now).is_err();
        if refused {
            self.counters.retained_refused.add(1);
            tracing::warn!(
                topic = message.topic().as_str(),
                "the retained store is full; message not retained"
            );
        }
        refused
    }

    /// Hands a message to everybody who subscribes to its topic. One client gets it once, with the highest QoS and all
    /// subscription identifiers of its matching subscriptions (MQTT 5, section 3.3.4).
    fn route(
        &self,
        message: &Message,
        publisher: Option<&Arc<Mailbox>>,
        now: Instant,
        mut waiting: Option<&mut Vec<Waiting>>,
    ) -> Routed {
        let mut routed = Routed::default();
        let mut delivered = 0;
        let mut owned = None;
        let mut deliver = |mailbox: &Arc<Mailbox>, delivery: Delivery| {
            routed.subscribers += 1;
            match mailbox.push(Dated { message, received: now }, &mut owned, &delivery, now) {
                Pushed::Accepted { pressure, .. } => {
                    delivered += 1;
                    routed.pressure |= pressure;
                }
                Pushed::Full => match &mut waiting {
                    Some(waiting) => waiting.push(Waiting {
                        mailbox: mailbox.clone(),
                        message: owned.get_or_insert_with(|| message.clone()).clone(),
                        delivery,
                        received: now,
                    }),
                    None => routed.dropped += 1,
                },
                Pushed::Lost(_) => {
                    routed.dropped += 1;
                    routed.pressure = true;
                }
            }
        };
        let subscriptions = self.subscriptions.read();
        let mut several: Vec<&Subscriber> = Vec::new();
        subscriptions.for_each_match(message.topic().as_str(), |subscriber| {
            let own =
                publisher.is_some_and(|publisher| publisher.client_id == subscriber.mailbox.client_id);
            if own && subscriber.options.no_local {
                return;
            }
            if subscriber.mailbox.subscriptions.load(Relaxed) == 1 {
                deliver(&subscriber.mailbox, subscriber.delivery(message));
            } else {
                several.push(subscriber);
            }
        });
        several.sort_by_key(|subscriber| Arc::as_ptr(&subscriber.mailbox));
        for same in several.chunk_by(|one, next| Arc::ptr_eq(&one.mailbox, &next.mailbox)) {
            let mut delivery = same[0].delivery(message);
            for subscriber in &same[1..] {
                let further = subscriber.delivery(message);
                delivery.qos = delivery.qos.max(further.qos);
                delivery.retain |= further.retain;
                delivery.identifiers.extend(further.identifiers);
            }
            deliver(&same[0].mailbox, delivery);
        }
        drop(subscriptions);
        self.counters.messages_out.add(delivered);
        routed
    }
}

fn panicked() -> ConnectRefusal {
    tracing::error!("a session hook panicked; its client is refused");
    ConnectRefusal {
        reason: ConnectRefusalReason::ServerUnavailable,
        detail: "the broker could not decide".into(),
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Subscriber {
    fn delivery(&self, message: &Message) -> Delivery {
        Delivery {
            qos: lower(message.qos(), self.options.qos),
            retain: message.retain() && self.options.retain_as_published,
            identifiers: self.identifier.into_iter().collect(),
        }
    }
}

/// The quality of service of a delivery: what was published, but not more than was subscribed to.
pub(crate) fn lower(published: QoS, subscribed: QoS) -> QoS {
    published.min(subscribed)
}
