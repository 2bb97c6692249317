//! Bridges: connections of this node, as a client, to other brokers.
//!
//! ```text
//! config   [[bridges]]
//! topics   prefixes there and back
//! via      the nodes that a message has passed
//! wire     packets of a client (rumqttc's codecs), both versions
//! relay    what packets mean: no I/O, no clock
//! link     one connection with both of its ends
//! recorded what is remembered over restarts
//! ```

pub mod config;
mod link;
mod recorded;
mod relay;
mod topics;
mod via;
mod wire;

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
use self::topics::Topics;
pub use self::via::ViaHook;

/// Prefix of the client identifiers of bridges' sessions in this node's broker.
const SESSION_PREFIX: &str = "$bridge/";
/// Backoff after the first failure; it doubles after each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
/// A connection of at least this duration resets the backoff.
const GOOD_CONNECTION: Duration = Duration::from_secs(10);

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
    figures: Figures,
    /// QoS 2 messages of the other broker that wait for PUBREL. Locked during a connection.
    unreleased: tokio::sync::Mutex<HashSet<u16>>,
    /// Known subscriptions of the session at the other broker.
    subscribed: Mutex<BTreeSet<String>>,
    /// Number of consecutive CONNECTs with the bridge flag (MQTT 3.1.1) that the other broker did not answer.
    not_understood: AtomicU32,
}

/// Counters of a bridge.
#[derive(Default)]
struct Figures {
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
    /// Lost messages: refused by either broker, or dropped from a full queue. Losses of other subscribers to the same
    /// filter on this node count as well.
    pub dropped: u64,
    /// Last error.
    pub last_error: Option<String>,
}

impl Bridges {
    /// Opens the bridges of a validated configuration.
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
        let mut recorded = recorded::load(&broker, storage, sections)?;
        let bridges = sections.iter().map(|section| {
            let out = section.topics.iter().filter(|topic| topic.direction.is_out());
            let recorded = recorded.remove(&section.name).unwrap_or_default();
            Arc::new(Bridge {
                clock: clock.clone(),
                topics: Topics::new(&section.topics),
                out_filters: out.filter_map(|topic| TopicFilter::new(topic.local_filter()).ok()).collect(),
                client_id: format!("{SESSION_PREFIX}{}", section.name).into(),
                figures: Figures::default(),
                unreleased: tokio::sync::Mutex::new(recorded.unreleased),
                subscribed: Mutex::new(recorded.subscribed),
                section: section.clone(),
                not_understood: AtomicU32::new(0),
            })
        });
        let bridges = bridges.collect();
        Ok(Self { broker, node_id, max_packet_bytes, bridges })
    }

    /// Removes the sessions of bridges that are no longer configured.
    pub async fn forget_old(&self) {
        for session in self.broker.sessions(SESSION_PREFIX) {
            if self.bridges.iter().all(|bridge| bridge.client_id != session.client_id) {
                link::forget_session(&self.broker, &session.client_id).await;
            }
        }
    }

    /// Starts a task for each bridge that keeps it connected until `cancel` fires.
    pub fn tasks(
        self: &Arc<Self>,
        cancel: &CancellationToken,
    ) -> Vec<impl Future<Output = ()> + Send + 'static> {
        let task = |bridge: &Arc<Bridge>| {
            let (bridges, bridge, cancel) = (self.clone(), bridge.clone(), cancel.clone());
            async move { bridges.keep(&bridge, &cancel).await }
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
            let figures = &bridge.figures;
            let session = sessions.iter().find(|session| session.client_id == bridge.client_id);
            let queues = bridge.out_filters.iter().filter_map(|filter| self.broker.queue(filter));
            let since = figures.connected_since_unix_ms.load(Relaxed);
            BridgeStatus {
                name: bridge.section.name.clone(),
                url: bridge.section.url.clone(),
                connected_since_unix_ms: (since > 0).then_some(since),
                queued: session.map_or(0, |session| session.waiting + session.in_flight),
                incoming: figures.incoming.load(Relaxed),
                outgoing: figures.outgoing.load(Relaxed),
                dropped: figures.lost.load(Relaxed) + queues.map(|queue| queue.dropped).sum::<u64>(),
                last_error: figures.last_error.lock().clone(),
            }
        });
        status.collect()
    }

    async fn keep(&self, bridge: &Bridge, cancel: &CancellationToken) {
        let mut backoff = FIRST_BACKOFF;
        // Messages are queued from the start, even while the other broker is unreachable.
        let prepared = link::prepare_session(self, bridge);
        if let Some(Err(error)) = cancel.run_until_cancelled(prepared).await {
            bridge.failed(format!("there is no queue for it: {error}"));
        }
        loop {
            let started = Instant::now();
            let ended = link::connect(self, bridge, cancel).await;
            bridge.figures.connected_since_unix_ms.store(0, Relaxed);
            let Ended::Failed(reason) = ended else { return };
            bridge.failed(reason);
            if started.elapsed() > GOOD_CONNECTION {
                backoff = FIRST_BACKOFF;
            }
            // Random, so that nodes that lost the same broker do not reconnect simultaneously.
            let wait = backoff.mul_f64(rand::random_range(0.5..1.5));
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
            if cancel.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return;
            }
        }
    }
}

impl Bridge {
    fn connected(&self) {
        self.figures.connected_since_unix_ms.store(self.clock.now_unix_ms().max(1), Relaxed);
        tracing::info!(bridge = self.section.name, url = self.section.url, "the bridge is connected");
    }

    /// True if CONNECT carries the bridge flag. A single unanswered CONNECT may be chance: the other broker may have
    /// been stopping.
    fn greets_as_bridge(&self) -> bool {
        self.not_understood.load(Relaxed) < 2
    }

    fn greeted(&self, understood: bool) {
        match understood {
            true if self.greets_as_bridge() => self.not_understood.store(0, Relaxed),
            true => {}
            false => drop(self.not_understood.fetch_add(1, Relaxed)),
        }
    }

    fn lost(&self, reason: String) {
        self.figures.lost.fetch_add(1, Relaxed);
        self.failed(reason);
    }

    /// Logs the error if it differs from the previous one.
    fn failed(&self, reason: String) {
        let mut last = self.figures.last_error.lock();
        if last.as_ref() != Some(&reason) {
            tracing::warn!(
                bridge = self.section.name,
                url = self.section.url,
                reason,
                "a problem on the bridge"
            );
            *last = Some(reason);
        }
    }

    /// Records that a QoS 2 message with this identifier was accepted, or removes the record.
    fn record(&self, pkid: u16, taken: bool) -> Change {
        recorded::identifier(&self.section.name, pkid, taken)
    }

    /// Sets the subscriptions of the session at the other broker. Returns the filters to unsubscribe, and the changes
    /// to record.
    fn subscribing(&self, wanted: &[String], session_present: bool) -> (Vec<String>, Vec<Change>) {
        let mut subscribed = self.subscribed.lock();
        let gone: Vec<_> = subscribed.iter().filter(|filter| !wanted.contains(filter)).cloned().collect();
        let new = wanted.iter().filter(|filter| !subscribed.contains(*filter));
        let mut changes: Vec<_> =
            new.map(|filter| recorded::filter(&self.section.name, filter, true)).collect();
        subscribed.extend(wanted.iter().cloned());
        drop(subscribed);
        if session_present {
            return (gone, changes);
        }
        // A new session has no subscriptions.
        changes.extend(self.unsubscribed(&gone));
        (Vec::new(), changes)
    }

    /// Removes ended subscriptions of the session at the other broker; returns the changes to record.
    fn unsubscribed(&self, filters: &[String]) -> Vec<Change> {
        let mut subscribed = self.subscribed.lock();
        let forget = |filter: &String| {
            subscribed.remove(filter);
            recorded::filter(&self.section.name, filter, false)
        };
        filters.iter().map(forget).collect()
    }
}
