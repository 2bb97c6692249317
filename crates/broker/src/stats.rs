//! Figures of a broker.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A snapshot of a broker's figures. Gauges are current values; all others count since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BrokerStats {
    /// Clients that are connected over the network (gauge).
    pub connections: u64,
    /// Connections over the network that were accepted.
    pub connections_total: u64,
    /// Connections refused: limits, versions, malformed or missing CONNECT.
    pub connections_refused: u64,
    /// Connections that the broker ended since the client broke the protocol or a limit.
    pub protocol_errors: u64,
    /// Sessions, with and without a connection (gauge).
    pub sessions: u64,
    /// Sessions whose expiry interval ran out.
    pub sessions_expired: u64,
    /// Subscriptions (gauge).
    pub subscriptions: u64,
    /// Shared subscriptions among them (gauge).
    pub shared_subscriptions: u64,
    /// Bytes that wait in the store for sessions (gauge).
    pub stored_bytes: u64,
    /// Bytes that wait in memory for clients, beyond the first few thousand of each (gauge).
    pub buffered_bytes: u64,
    /// Retained messages (gauge).
    pub retained: u64,
    /// Messages not retained because the store was full.
    pub retained_refused: u64,
    /// Messages from clients, wills included, and from the node.
    pub messages_in: u64,
    /// Messages that were queued for subscribers, once for each subscriber.
    pub messages_out: u64,
    /// Messages lost for a subscriber, once for each subscriber: queue full, expired, or larger than it takes.
    pub messages_dropped: u64,
    /// Messages refused by a hook or a limit.
    pub messages_rejected: u64,
    /// Messages consumed by a hook.
    pub messages_consumed: u64,
    /// Hooks that panicked.
    pub hook_panics: u64,
    /// Bytes read from clients.
    pub bytes_in: u64,
    /// Bytes written to clients.
    pub bytes_out: u64,
}

/// Counters of messages.
#[derive(Debug, Default)]
pub(crate) struct MessageCounters {
    pub received: Counter,
    pub delivered: Counter,
    pub dropped: Counter,
    pub rejected: Counter,
    pub consumed: Counter,
}

/// Counters of sessions.
#[derive(Debug, Default)]
pub(crate) struct SessionCounters {
    pub connected: Counter,
    pub expired: Counter,
}

/// Counters of connections.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounters {
    pub refused: Counter,
    pub protocol_errors: Counter,
    pub bytes_in: Counter,
    pub bytes_out: Counter,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        if count > 0 {
            self.0.fetch_add(count, Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
