//! Bridges: connections of this node, as a client, to other brokers.
//!
//! ```text
//! config           [[bridges]]
//! topics           mapping between local and remote topics
//! loop_prevention  list of the nodes that a message has passed, and its hook
//! codec            packets of an MQTT client (rumqttc's codecs), both versions
//! relay            translation of packets: no I/O, no clock
//! link             one connection to the other broker and to this node's broker
//! local_subscription  subscriptions of the program that runs the node
//! records          records in the store
//! ```

mod codec;
pub mod config;
mod link;
pub mod local_subscription;
mod loop_prevention;
mod records;
mod relay;
mod topics;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use edgefaas_broker::{Broker, Change, Storage, StorageError, TopicFilter};
use edgefaas_platform::Clock;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::config::BridgeSection;
use self::link::Ended;
pub use self::loop_prevention::LoopPreventionHook;
use self::topics::Topics;

/// Prefix of the client identifiers of bridges' sessions in this node's broker.
const SESSION_PREFIX: &str = "$bridge/";
/// Backoff after the first failure; it doubles after each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// A connection that holds for longer than this resets the backoff.
const STABLE_CONNECTION: Duration = Duration::from_secs(2);
/// So does an attempt that lasts longer than this, with the time for connecting: it is no burden.
const LONG_ATTEMPT: Duration = Duration::from_secs(10);

/// All bridges of a node.
pub struct Bridges {
    broker: Broker,
    node_id: String,
    max_packet_bytes: u32,
    bridges: Vec<Arc<Bridge>>,
}

/// One bridge.
pub(crate) struct Bridge {
    section: BridgeSection,
    clock: Clock,
    topics: Topics,
    out_filters: Vec<TopicFilter>,
    /// Client identifier of its session in this node's broker.
    client_id: Arc<str>,
    counters: Counters,
    /// QoS 2 messages of the other broker that wait for PUBREL. Locked during a connection.
    unreleased: tokio::sync::Mutex<HashSet<u16>>,
    /// Known subscriptions of the session at the other broker.
    subscribed: Mutex<BTreeSet<String>>,
    /// Number of CONNECTs after which the other broker refused the protocol version or the connection failed. An accepted
    /// CONNECT with the bridge flag resets it. See [`sends_bridge_flag`](Self::sends_bridge_flag).
    failed_connects: AtomicU32,
}

/// Counters of a bridge.
#[derive(Default)]
struct Counters {
    incoming: AtomicU64,
    outgoing: AtomicU64,
    lost: AtomicU64,
    /// In milliseconds since the Unix epoch; 0 while disconnected.
    connected_since_unix_ms: AtomicU64,
    last_error: Mutex<Option<String>>,
}

/// Status of a bridge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BridgeStatus {
    /// Its name.
    pub name: String,
    /// URL of the other broker.
    pub url: String,
    /// Start of the current connection; `None` while disconnected.
    pub connected_since_unix_ms: Option<u64>,
    /// Messages that wait for the other broker.
    pub queued: u64,
    /// Messages that came from the other broker.
    pub incoming: u64,
    /// Messages that the other broker has acknowledged.
    pub outgoing: u64,
    /// Lost messages: refused by either broker, not relayable, or dropped from a full queue. Drops of other subscribers to the
    /// same filter on this node and refused subscriptions count as well.
    pub dropped: u64,
    /// Last error.
    pub last_error: Option<String>,
}

impl Bridges {
    /// Creates the bridges of a validated configuration; [`tasks`](Self::tasks) connects them.
    ///
    /// # Errors
    /// Their stored records cannot be read.
    pub fn open(
        sections: &[BridgeSection],
        broker: Broker,
        storage: &dyn Storage,
        node_id: String,
        max_packet_bytes: u32,
        clock: Clock,
    ) -> Result<Self, StorageError> {
        let mut records = records::load(&broker, storage, sections)?;
        let bridges = sections.iter().map(|section| {
            let out = section.topics.iter().filter(|topic| topic.direction.is_out());
            let records = records.remove(&section.name).unwrap_or_default();
            Arc::new(Bridge {
                clock: clock.clone(),
                topics: Topics::new(&section.topics),
                out_filters: out.filter_map(|topic| TopicFilter::new(topic.local_filter()).ok()).collect(),
                client_id: format!("{SESSION_PREFIX}{}", section.name).into(),
                counters: Counters::default(),
                unreleased: tokio::sync::Mutex::new(records.unreleased),
                subscribed: Mutex::new(records.subscribed),
                section: section.clone(),
                failed_connects: AtomicU32::new(0),
            })
        });
        let bridges = bridges.collect();
        Ok(Self { broker, node_id, max_packet_bytes, bridges })
    }

    /// Removes the sessions of bridges that are no longer configured.
    pub async fn remove_old_sessions(&self) {
        for session in self.broker.sessions(SESSION_PREFIX) {
            if self.bridges.iter().all(|bridge| bridge.client_id != session.client_id) {
                link::remove_session(&self.broker, &session.client_id).await;
            }
        }
    }

    /// One future for each bridge, which keeps it connected until `cancel` fires.
    pub fn tasks(
        self: &Arc<Self>,
        cancel: &CancellationToken,
    ) -> Vec<impl Future<Output = ()> + Send + 'static> {
        let task = |bridge: &Arc<Bridge>| {
            let (bridges, bridge, cancel) = (self.clone(), bridge.clone(), cancel.clone());
            async move { bridges.keep_connected(&bridge, &cancel).await }
        };
        self.bridges.iter().map(task).collect()
    }

    /// Status of all bridges.
    pub fn status(&self) -> Vec<BridgeStatus> {
        if self.bridges.is_empty() {
            return Vec::new();
        }
        let sessions = self.broker.sessions(SESSION_PREFIX);
        let status = self.bridges.iter().map(|bridge| {
            let counters = &bridge.counters;
            let session = sessions.iter().find(|session| session.client_id == bridge.client_id);
            let queues = bridge.out_filters.iter().filter_map(|filter| self.broker.queue(filter));
            let since = counters.connected_since_unix_ms.load(Relaxed);
            BridgeStatus {
                name: bridge.section.name.clone(),
                url: bridge.section.url.clone(),
                connected_since_unix_ms: (since > 0).then_some(since),
                queued: session.map_or(0, |session| session.waiting + session.in_flight),
                incoming: counters.incoming.load(Relaxed),
                outgoing: counters.outgoing.load(Relaxed),
                dropped: counters.lost.load(Relaxed) + queues.map(|queue| queue.dropped).sum::<u64>(),
                last_error: counters.last_error.lock().clone(),
            }
        });
        status.collect()
    }

    async fn keep_connected(&self, bridge: &Bridge, cancel: &CancellationToken) {
        let mut backoff = FIRST_BACKOFF;
        // Messages are queued from the start, even while the other broker is unreachable.
        let prepared = link::prepare_session(self, bridge);
        if let Some(Err(error)) = cancel.run_until_cancelled(prepared).await {
            bridge.report_problem(format!("its queue on this node could not be prepared: {error}"));
        }
        loop {
            let started = Instant::now();
            let ended = link::connect(self, bridge, cancel).await;
            let since_unix_ms = bridge.counters.connected_since_unix_ms.swap(0, Relaxed);
            let Ended::Failed(reason) = ended else { return };
            bridge.report_problem(reason);
            let held_ms = if since_unix_ms > 0 {
                bridge.clock.now_unix_ms().saturating_sub(since_unix_ms)
            } else {
                0
            };
            if Duration::from_millis(held_ms) > STABLE_CONNECTION || started.elapsed() > LONG_ATTEMPT {
                backoff = FIRST_BACKOFF;
            }
            // Random, so that nodes that lost the same broker do not reconnect at the same time.
            let wait = backoff.mul_f64(rand::random_range(0.5..1.5));
            backoff = (backoff * 2).min(MAX_BACKOFF);
            if cancel.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return;
            }
        }
    }
}

impl Bridge {
    fn connected(&self) {
        self.counters.connected_since_unix_ms.store(self.clock.now_unix_ms().max(1), Relaxed);
        tracing::info!(bridge = self.section.name, url = self.section.url, "the bridge is connected");
    }

    /// True if CONNECT of MQTT 3.1.1 carries the bridge flag. After two failed CONNECTs the bridge omits the flag until the node
    /// restarts, because the other broker may not support it. A single failure may have another cause: the other broker may
    /// have been stopping.
    fn sends_bridge_flag(&self) -> bool {
        self.failed_connects.load(Relaxed) < 2
    }

    /// Records that the other broker answered a CONNECT, or that it may not support the bridge flag.
    fn record_connect(&self, answered: bool) {
        match answered {
            true if self.sends_bridge_flag() => self.failed_connects.store(0, Relaxed),
            true => {}
            false => drop(self.failed_connects.fetch_add(1, Relaxed)),
        }
    }

    /// Counts a lost message and logs the reason.
    fn message_lost(&self, reason: String) {
        self.counters.lost.fetch_add(1, Relaxed);
        self.report_problem(reason);
    }

    /// Stores the last error; logs it if it differs from the previous one.
    fn report_problem(&self, reason: String) {
        let mut last = self.counters.last_error.lock();
        if last.as_ref() != Some(&reason) {
            tracing::warn!(
                bridge = self.section.name,
                url = self.section.url,
                reason,
                "the bridge has a problem"
            );
            *last = Some(reason);
        }
    }

    /// The change that records that a QoS 2 message with this identifier was accepted, or removes the record.
    fn identifier_record(&self, pkid: u16, accepted: bool) -> Change {
        records::identifier(&self.section.name, pkid, accepted)
    }

    /// Sets the subscriptions of the session at the other broker. Returns the filters that the bridge must unsubscribe there,
    /// and the changes of the records.
    fn set_subscriptions(&self, filters: &[String], session_present: bool) -> (Vec<String>, Vec<Change>) {
        let mut subscribed = self.subscribed.lock();
        let gone: Vec<_> = subscribed.iter().filter(|filter| !filters.contains(filter)).cloned().collect();
        let new = filters.iter().filter(|filter| !subscribed.contains(*filter));
        let mut changes: Vec<_> =
            new.map(|filter| records::filter(&self.section.name, filter, true)).collect();
        subscribed.extend(filters.iter().cloned());
        drop(subscribed);
        if session_present {
            return (gone, changes);
        }
        // A new session has no subscriptions.
        changes.extend(self.remove_subscriptions(&gone));
        (Vec::new(), changes)
    }

    /// Removes ended subscriptions of the session at the other broker. Returns the changes of the records.
    fn remove_subscriptions(&self, filters: &[String]) -> Vec<Change> {
        let mut subscribed = self.subscribed.lock();
        let remove = |filter: &String| {
            subscribed.remove(filter);
            records::filter(&self.section.name, filter, false)
        };
        filters.iter().map(remove).collect()
    }
}
