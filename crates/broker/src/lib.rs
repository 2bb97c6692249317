//! The MQTT broker of edgefaas: MQTT 3.1.1 and 5 on one port, with hooks in the publish path.
//!
//! ```text
//! connection   I/O and timers of one client, on the caller's task
//!   wire       bytes <-> packets, both versions
//!   protocol   what packets mean: QoS 2, aliases, limits (no I/O, no clock)
//! sessions     one session for each client identifier: take-over, wills, expiry
//! router       hooks -> retained store -> subscribers (topic trie behind a read-mostly lock)
//!   outbox     the queue of one subscriber: packet identifiers, flow control, bounds (no I/O, no clock)
//! wal          the write-ahead log: changes to store, and how far the store has got
//! ```
//!
//! A publisher's task runs the hooks, finds the subscribers and encodes into their buffers; each subscriber's task
//! writes its buffer out with one call.
//!
//! # Overload
//!
//! The queue of a subscriber is bounded in messages and bytes ([`BrokerConfig`]). When the bound is reached, QoS 0
//! messages are dropped and counted. A QoS 1 or 2 message stops its publisher from being read for at most
//! [`BrokerConfig::publish_wait`], and is acknowledged after that; if there is still no room, it is dropped for that
//! subscriber and counted, and until the subscriber takes something, no publisher waits for it. Messages that are
//! published by [`Broker::publish`] never wait.

mod broker;
mod client;
mod config;
mod connection;
mod delivery;
mod hook;
mod limits;
mod mailbox;
mod maintenance;
mod message;
mod moment;
mod monitor;
mod outbox;
mod protocol;
mod router;
mod search;
mod sessions;
mod stats;
mod stored;
mod sys_topics;
pub mod topic;
mod wal;
pub mod wire;

pub use broker::Broker;
pub use bytestring::ByteString;
pub use client::{Client, Origin, Peer, Transport};
pub use config::{BrokerConfig, WhenQueueFull};
pub use hook::{
    AckHandle, ConnectDecision, ConnectRefusal, ConnectRefusalReason, ConnectRequest, Grant, Hooks,
    PublishHook, Publishing, RejectReason, SessionHook, Verdict,
};
pub use message::{Message, Properties, PropertyError, QoS, Version};
pub use monitor::QueueFigures;
pub use router::{
    FilterTrie, LastMessage, MAX_LAST_PAYLOAD_BYTES, PublishOutcome, Published, RetainedMessage, Routed,
    WatchTotals, WatchedTopic,
};
pub use search::Search;
pub use sessions::{ClientConnection, ClientFigures, ClientPage, ClientQuery, Fate, SessionFigures};
pub use stats::BrokerStats;
pub use topic::{TopicFilter, TopicName, TopicNameError};
pub use wal::{Change, Entry, Group, MemoryStorage, NotStored, Space, Storage, StorageError, Ticket, Wal};

/// Prepares an accepted socket for MQTT: packets leave immediately (`TCP_NODELAY`).
///
/// # Errors
/// The operating system refuses the option.
pub fn prepare_socket(socket: &tokio::net::TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)
}
