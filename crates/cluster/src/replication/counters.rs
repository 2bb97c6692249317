//! Counters of the replication machine, for metrics.

use std::time::Duration;

/// Sums since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames given to the transport, those given back and sent again counted once.
    pub messages_sent: u64,
    /// Bytes of the frames given to the transport.
    pub bytes_sent: u64,
    /// Frames received.
    pub messages_received: u64,
    /// Bytes of the frames received.
    pub bytes_received: u64,
    /// Deltas sent, one for each object and node, states among them.
    pub deltas_sent: u64,
    /// The bytes of their frames.
    pub delta_bytes_sent: u64,
    /// States of objects or fields among the deltas sent.
    pub states_sent: u64,
    /// Deltas received.
    pub deltas_received: u64,
    /// Local changes.
    pub changes: u64,
    /// Flushes of an object's pending changes; a flush merges `changes / flushes` changes on average.
    pub flushes: u64,
    /// The time from the first change to its flush, summed over the flushes; by their number, it is the
    /// effective interval.
    pub flush_delay: Duration,
    /// The maximum of these.
    pub flush_delay_max: Duration,
    /// Deltas that waited for a peer without room.
    pub lagged: u64,
    /// Objects marked as stale at a peer, since too much waited for it.
    pub stale: u64,
    /// Times that a peer had too many stale objects to remember.
    pub stale_all: u64,
    /// Rounds of anti-entropy that began.
    pub rounds: u64,
    /// Rounds that found both sides equal.
    pub rounds_equal: u64,
    /// Rounds that ended after an exchange.
    pub rounds_exchanged: u64,
    /// Objects that no function on this node uses and whose sender had used up its budget: not kept.
    pub keep_refused: u64,
    /// Messages of a kind that this version does not know.
    pub unknown_messages: u64,
    /// Messages that do not fit where the conversation is, such as of a round long over.
    pub unexpected_messages: u64,
    /// Deltas under a number that means no key.
    pub unknown_keys: u64,
    /// Frames and payloads that were garbage.
    pub bad_messages: u64,
    /// Peers that were disconnected for a fault of theirs.
    pub disconnects: u64,
    /// Local changes and states that were not sent since they or their keys are over the limits.
    pub payloads_too_long: u64,
}
