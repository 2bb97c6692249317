//! Hooks in the publish path: where a node coordinates functions inside the broker.

use crate::message::{Message, Origin};

/// Sees every publish before it is routed or retained: from clients, from wills and from
/// [`Broker::publish`](crate::Broker::publish).
///
/// Called synchronously on the publisher's task and in the order in which the hooks were given, outside of every lock
/// of the broker; it may spawn tasks, and it may call [`Broker::publish`](crate::Broker::publish) as long as it bounds
/// its own recursion by [`Origin::Node::depth`](crate::Origin::Node). It must not block: everything else on that
/// runtime waits for it. A panic is contained: the message counts as rejected and the connection goes on.
pub trait PublishHook: Send + Sync + 'static {
    /// Decides what happens to `message`.
    fn on_publish(&self, origin: &Origin, message: &Message) -> Verdict;
}

/// What a hook decides.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Goes on to the next hook, then to subscribers and the retained store.
    Forward,
    /// Goes on as this message instead; the next hook sees the new one.
    Rewrite(Message),
    /// Acknowledged to the publisher as a success, but neither routed nor retained; later hooks do not see it.
    Consume,
    /// Refused; later hooks do not see it. On MQTT 5 a QoS 1 or 2 publisher gets the reason in PUBACK or PUBREC. QoS 0
    /// and MQTT 3.1.1 have no negative acknowledgement: there the message is acknowledged as usual, dropped and counted
    /// in [`BrokerStats::messages_rejected`](crate::BrokerStats::messages_rejected).
    Reject(RejectReason),
}

/// Why a publish was refused; the number is the MQTT 5 reason code of PUBACK and PUBREC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// Something failed that the other codes do not name, such as a hook that panicked.
    Unspecified = 0x80,
    /// Correct, but not accepted here.
    ImplementationSpecific = 0x83,
    /// The publisher may not publish this.
    NotAuthorized = 0x87,
    /// The topic is not accepted here.
    TopicNameInvalid = 0x90,
    /// A queue or another limit is full.
    QuotaExceeded = 0x97,
    /// The payload is not what its format says.
    PayloadFormatInvalid = 0x99,
}
