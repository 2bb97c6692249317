//! What a broker allows.

use std::num::NonZeroU16;
use std::time::Duration;

/// Limits and timeouts of a broker. Every queue and store in it is bounded by one of these.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// Largest packet taken from a client, in bytes with its fixed header; also advertised to MQTT 5 clients. What a
    /// node publishes itself is held to the same size.
    pub max_packet_bytes: u32,
    /// Most clients at a time; more are refused with "server busy" (MQTT 3.1.1: "server unavailable").
    pub max_connections: usize,
    /// How long a new connection may take for its CONNECT.
    pub connect_timeout: Duration,
    /// How many QoS 2 messages of one client may be open (not yet released) at a time.
    pub receive_maximum: NonZeroU16,
    /// Most QoS 1 and 2 messages in flight to one client; the client may ask for fewer.
    pub max_inflight: NonZeroU16,
    /// Topic aliases kept for each MQTT 5 client.
    pub topic_alias_maximum: u16,
    /// Most subscriptions of one client; more are answered with "quota exceeded".
    pub max_subscriptions_per_session: usize,
    /// Messages that may wait for one slow subscriber.
    pub session_queue_messages: usize,
    /// Bytes that may wait for one slow subscriber. A single larger message still passes when nothing else waits.
    pub session_queue_bytes: usize,
    /// How long the broker stops reading a client whose QoS 1 or 2 message found the queue of a subscriber full. After
    /// that the message is dropped for this subscriber and counted, and until the subscriber reads again, further ones
    /// are dropped at once.
    pub publish_wait: Duration,
    /// How long a client may take nothing while there is something to send to it.
    pub write_timeout: Duration,
    /// Retained messages kept. A message on a further topic is routed but not retained, counted, and acknowledged with
    /// "quota exceeded" where the protocol can say so.
    pub max_retained_messages: usize,
    /// Bytes of all retained messages together; the same applies.
    pub max_retained_bytes: usize,
}

impl Default for BrokerConfig {
    fn default() -> BrokerConfig {
        BrokerConfig {
            max_packet_bytes: 1024 * 1024,
            max_connections: 10_000,
            connect_timeout: Duration::from_secs(10),
            receive_maximum: NonZeroU16::new(1024).expect("not zero"),
            max_inflight: NonZeroU16::new(1024).expect("not zero"),
            topic_alias_maximum: 32,
            max_subscriptions_per_session: 10_000,
            session_queue_messages: 10_000,
            session_queue_bytes: 4 * 1024 * 1024,
            publish_wait: Duration::from_secs(1),
            write_timeout: Duration::from_secs(60),
            max_retained_messages: 100_000,
            max_retained_bytes: 64 * 1024 * 1024,
        }
    }
}
