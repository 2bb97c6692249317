//! Configuration of a broker.

use edgefaas_platform::Clock;
use std::num::NonZeroU16;
use std::time::Duration;

/// Limits and timeouts of a broker. Every queue and store in it is bounded by one of these.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// The wall clock, by which stored messages and sessions expire over a restart.
    pub clock: Clock,
    /// Largest packet taken from a client, in bytes with its fixed header; also advertised to MQTT 5 clients. Messages
    /// of the node itself have the same limit.
    pub max_packet_bytes: u32,
    /// Maximum of clients at a time; more are refused with "server busy" (MQTT 3.1.1: "server unavailable").
    pub max_connections: usize,
    /// Maximum time from the start of a connection to its CONNECT.
    pub connect_timeout: Duration,
    /// Maximum of open (not yet released) QoS 2 messages of one client.
    pub receive_maximum: NonZeroU16,
    /// Maximum of QoS 1 and 2 messages in flight to one client; the client may ask for fewer.
    pub max_inflight: NonZeroU16,
    /// Topic aliases kept for each MQTT 5 client.
    pub topic_alias_maximum: u16,
    /// Maximum of subscriptions of one client; more are answered with "quota exceeded".
    pub max_subscriptions_per_session: usize,
    /// Bytes of the filters of all subscriptions together; a SUBSCRIBE over it is answered with "quota exceeded".
    pub max_subscription_bytes: usize,
    /// Bytes of the wills of all clients together; a CONNECT with one more is refused with "quota exceeded".
    pub max_will_bytes: usize,
    /// Messages that may wait for one slow subscriber.
    pub session_queue_messages: usize,
    /// Bytes that may wait for one slow subscriber. A single larger message still passes when nothing else waits.
    pub session_queue_bytes: usize,
    /// Bytes that may wait in memory for all subscribers together. A subscriber has a few thousand for itself in any case.
    pub max_buffered_bytes: u64,
    /// Bytes of changes that may wait for the store. Over a quarter of it clients are not read, over all of it nothing
    /// that has to be stored is taken from anybody.
    pub max_unwritten_bytes: usize,
    /// QoS 1 and 2 messages that may wait in the store for one session that outlives its connections.
    pub stored_queue_messages: usize,
    /// Bytes of them. A single larger message still passes when nothing else waits.
    pub stored_queue_bytes: u64,
    /// Bytes that may wait in the store for all sessions together.
    pub max_stored_queue_bytes: u64,
    /// Effect of a QoS 1 or 2 message for a session with a full queue in the store.
    pub when_queue_full: WhenQueueFull,
    /// Maximum of sessions, with and without a connection; a CONNECT for one more is refused with "quota exceeded".
    pub max_sessions: usize,
    /// Longest Session Expiry Interval in seconds; `u32::MAX` never expires. Clients that ask for more get this one.
    pub max_session_expiry_seconds: u32,
    /// Longest keepalive in seconds that a client may choose, which may also choose none; 0 for no limit. An MQTT 5
    /// client gets it as Server Keep Alive; for an older one its own choice holds.
    pub max_keepalive_seconds: u16,
    /// Response Information for clients that ask for it, `%c` standing for the client identifier.
    pub response_information: Option<String>,
    /// Maximum of connections from one address; 0 for no limit.
    pub max_connections_per_address: usize,
    /// Maximum of new connections a second from one address, in bursts of up to ten times as many; 0 for no limit.
    pub max_connects_per_second_per_address: u32,
    /// Maximum of messages a second from one client, in bursts of up to as many; 0 for no limit. A client that is over it is not read
    /// for a while.
    pub max_messages_per_second: u32,
    /// Time between two rounds of figures under `$SYS/broker/`; zero for none.
    pub sys_interval: Duration,
    /// Maximum time for which the broker stops reading a client whose QoS 1 or 2 message found the queue of a subscriber
    /// full. After this time the message is dropped for this subscriber and counted. Until the subscriber reads again,
    /// further messages are dropped immediately.
    pub publish_wait: Duration,
    /// Maximum time in which a client accepts no byte while there are bytes to send to it.
    pub write_timeout: Duration,
    /// Retained messages kept. A message on a further topic is routed but not retained, counted, and acknowledged with
    /// "quota exceeded" where the protocol can say so.
    pub max_retained_messages: usize,
    /// Bytes of all retained messages together; the same applies.
    pub max_retained_bytes: usize,
}

/// Effect of a QoS 1 or 2 message for a session whose queue in the store is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenQueueFull {
    /// The oldest message that waits is dropped and counted.
    #[default]
    DropOldest,
    /// The message is refused as a whole, for all subscribers: "quota exceeded" for an MQTT 5 publisher, while one of
    /// MQTT 3.1.1, which knows no such answer, is not read until there is room.
    Reject,
}

impl Default for BrokerConfig {
    fn default() -> BrokerConfig {
        BrokerConfig {
            clock: Clock::system(),
            max_packet_bytes: 1024 * 1024,
            max_connections: 10_000,
            connect_timeout: Duration::from_secs(10),
            receive_maximum: NonZeroU16::new(1024).expect("not zero"),
            max_inflight: NonZeroU16::new(1024).expect("not zero"),
            topic_alias_maximum: 32,
            max_subscriptions_per_session: 10_000,
            max_subscription_bytes: 8 * 1024 * 1024,
            max_will_bytes: 16 * 1024 * 1024,
            session_queue_messages: 10_000,
            session_queue_bytes: 4 * 1024 * 1024,
            max_buffered_bytes: 64 * 1024 * 1024,
            max_unwritten_bytes: 32 * 1024 * 1024,
            stored_queue_messages: 100_000,
            stored_queue_bytes: 64 * 1024 * 1024,
            max_stored_queue_bytes: 1024 * 1024 * 1024,
            when_queue_full: WhenQueueFull::DropOldest,
            max_sessions: 100_000,
            max_session_expiry_seconds: u32::MAX,
            max_keepalive_seconds: 0,
            response_information: Some("responses/%c".into()),
            max_connections_per_address: 0,
            max_connects_per_second_per_address: 0,
            max_messages_per_second: 0,
            sys_interval: Duration::from_secs(10),
            publish_wait: Duration::from_secs(1),
            write_timeout: Duration::from_secs(60),
            max_retained_messages: 100_000,
            max_retained_bytes: 64 * 1024 * 1024,
        }
    }
}
