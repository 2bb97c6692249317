//! Hooks: the node decides about connections, subscriptions and publishes.

mod publish_hooks;
mod session_hooks;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use bytes::Bytes;
use tokio::sync::Notify;

pub(crate) use self::publish_hooks::{Decision, PublishHooks, call_recorded};
pub(crate) use self::session_hooks::SessionHooks;

use crate::client::{Client, Origin, Peer};
use crate::message::{Message, QoS, Version};
use crate::topic::TopicFilter;
use crate::wal::{Change, Space, Ticket};

/// The hooks of a broker, each kind in the order in which they are asked.
#[derive(Default)]
pub struct Hooks {
    /// Asked about every publish.
    pub publish: Vec<Arc<dyn PublishHook>>,
    /// Asked about connections and subscriptions.
    pub session: Vec<Arc<dyn SessionHook>>,
}

/// Decides about every publish before it is routed or retained: from clients, from wills and from
/// [`Broker::publish`](crate::Broker::publish). Not the broker's own figures under `$SYS/`.
///
/// Called synchronously on the publisher's task and in the order in which the hooks were given, outside of every lock
/// of the broker; it may spawn tasks, and it may call [`Broker::publish`](crate::Broker::publish) as long as it bounds
/// its own recursion by [`Origin::Node::depth`](crate::Origin::Node). It must not block: everything else on that
/// runtime waits for it. A panic is contained: the message counts as rejected and the connection goes on.
pub trait PublishHook: Send + Sync + 'static {
    /// Decides what happens to the message.
    fn on_publish(&self, publishing: &mut Publishing<'_>) -> Verdict;
}

/// Decides which clients may connect and subscribe, and is notified of connections.
///
/// A panic is contained: the connection or the subscription is refused.
pub trait SessionHook: Send + Sync + 'static {
    /// Decides about a CONNECT; the first refusal of all hooks counts, and the last user name that one grants. May take
    /// time, up to [`BrokerConfig::connect_timeout`](crate::BrokerConfig::connect_timeout): it is awaited on the
    /// connection's task, before any session is touched. Dropped if the client disconnects meanwhile.
    fn on_connect(&self, request: &ConnectRequest) -> ConnectDecision {
        let _ = request;
        Box::pin(async { Ok(Grant::default()) })
    }

    /// Decides about a subscription: the quality of service that is granted, at most. Also asked again when a session is
    /// resumed and by [`Broker::recheck`](crate::Broker::recheck), then also about the topic of every message that waits for
    /// the client, as if it were a filter: a client that may not subscribe to the topic does not get the message. Must not block nor call the broker.
    /// `filter` is the whole one, with `$share/GROUP/` if it is shared.
    fn on_subscribe(&self, client: &Client, filter: &TopicFilter, qos: QoS) -> Result<QoS, RejectReason> {
        let _ = (client, filter);
        Ok(qos)
    }

    /// A client is connected, and has its session. Must not block.
    fn on_connected(&self, client: &Arc<Client>) {
        let _ = client;
    }

    /// A client's connection has ended. Must not block.
    fn on_disconnect(&self, client: &Arc<Client>) {
        let _ = client;
    }
}

/// The decision of [`SessionHook::on_connect`].
pub type ConnectDecision = Pin<Box<dyn Future<Output = Result<Grant, ConnectRefusal>> + Send>>;

/// A CONNECT to decide about.
#[derive(Debug, Clone)]
pub struct ConnectRequest {
    /// Client identifier, also when the broker assigned it.
    pub client_id: Arc<str>,
    /// The user name in the CONNECT.
    pub username: Option<Arc<str>>,
    /// The password in the CONNECT, binary.
    pub password: Option<Bytes>,
    /// The other end of the connection.
    pub peer: Peer,
    /// Protocol version.
    pub version: Version,
    /// The will, which is published with the client as its origin.
    pub will: Option<Message>,
}

/// A client may connect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grant {
    /// The user of this connection; `None` for an anonymous client.
    pub username: Option<Arc<str>>,
}

/// The reason why a client may not connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectRefusal {
    /// Source of the reason code.
    pub reason: ConnectRefusalReason,
    /// Text for the log; an MQTT 5 client gets it as the reason string.
    pub detail: String,
}

/// The reason codes for a CONNECT that a hook refuses (MQTT 5, section 3.2.2.2). MQTT 3.1.1 knows bad user name or
/// password (4), not authorized (5, also for banned) and server unavailable (3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectRefusalReason {
    /// 0x86
    BadUserNameOrPassword,
    /// 0x87
    NotAuthorized,
    /// 0x88
    ServerUnavailable,
    /// 0x89
    ServerBusy,
    /// 0x8A
    Banned,
}

/// A message in the hooks.
pub struct Publishing<'a> {
    origin: &'a Origin,
    message: &'a Message,
    effects: &'a mut HookEffects,
}

/// Effects that hooks attached to a message.
#[derive(Default)]
pub(crate) struct HookEffects {
    pub changes: Vec<Change>,
    pub hold: Option<Arc<Hold>>,
    /// Callbacks for when the changes are in the write-ahead log.
    pub recorded: Vec<Box<dyn FnOnce(Ticket) + Send>>,
}

impl<'a> Publishing<'a> {
    pub(crate) fn new(
        origin: &'a Origin,
        message: &'a Message,
        effects: &'a mut HookEffects,
    ) -> Publishing<'a> {
        Publishing { origin, message, effects }
    }

    /// The origin of the message: its publisher.
    pub fn origin(&self) -> &'a Origin {
        self.origin
    }

    /// The message, as earlier hooks left it.
    pub fn message(&self) -> &'a Message {
        self.message
    }

    /// Stores (or with `None` deletes) an entry of the hooks' key space in the same atomic commit as the changes of the message
    /// itself. PUBACK and PUBREC wait until it is as durable as the store's policy says. Nothing is stored when
    /// a later hook rejects or blocks the message.
    pub fn record(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.effects.changes.push(Change { space: Space::Hook, key, value: value.map(Bytes::from) });
    }

    /// Calls `then` as soon as the [records](Self::record) of this message are in the write-ahead log, with the ticket to
    /// [wait for](crate::Broker::durable); still on the publisher's task, after the last hook. If a hook rejects or
    /// blocks the message, nothing is stored, and `then` is dropped without a call.
    pub fn on_recorded(&mut self, then: impl FnOnce(Ticket) + Send + 'static) {
        self.effects.recorded.push(Box::new(then));
    }

    /// Makes PUBACK or PUBREC wait until the handle is completed. Messages after it are handled meanwhile, their
    /// acknowledgements wait behind it. Without effect for QoS 0.
    pub fn hold(&mut self) -> AckHandle {
        let hold = self.effects.hold.get_or_insert_with(Arc::default).clone();
        hold.open.fetch_add(1, Ordering::AcqRel);
        AckHandle { hold: Some(hold) }
    }
}

/// The decision of a hook.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// Goes on to the next hook, then to subscribers and the retained store.
    Forward,
    /// Goes on as this message instead; the next hook sees the new one.
    Rewrite(Message),
    /// The hook consumes it: neither routed nor retained, later hooks are not asked. Acknowledged as a success once the
    /// hook's [records](Publishing::record) are stored and its [handles](Publishing::hold) are completed.
    Consume,
    /// Refused; later hooks are not asked. On MQTT 5 a QoS 1 or 2 publisher gets the reason in PUBACK or PUBREC. QoS 0
    /// and MQTT 3.1.1 have no negative acknowledgement: there the message is acknowledged as usual, dropped and counted
    /// in [`BrokerStats::messages_rejected`](crate::BrokerStats::messages_rejected).
    Reject(RejectReason),
    /// The hook has no room for the message now. The publisher is not read, and the message is offered again, to all
    /// hooks from the first, when the `Notify` is notified and after a second at the latest. A hook that returns this
    /// must not have had any effect for the message. Without a connection the message is rejected with "quota exceeded".
    Block(Arc<Notify>),
}

/// The reason why a publish was refused; the number is the MQTT 5 reason code of PUBACK and PUBREC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// Another failure, such as a hook that panicked.
    Unspecified = 0x80,
    /// Correct, but not accepted here.
    ImplementationSpecific = 0x83,
    /// The publisher may not publish this.
    NotAuthorized = 0x87,
    /// The topic is not accepted here.
    TopicNameInvalid = 0x90,
    /// A queue or another limit is full.
    QuotaExceeded = 0x97,
    /// The payload does not have its declared format.
    PayloadFormatInvalid = 0x99,
}

impl RejectReason {
    fn from_code(code: u16) -> RejectReason {
        match code {
            0x83 => RejectReason::ImplementationSpecific,
            0x87 => RejectReason::NotAuthorized,
            0x90 => RejectReason::TopicNameInvalid,
            0x97 => RejectReason::QuotaExceeded,
            0x99 => RejectReason::PayloadFormatInvalid,
            _ => RejectReason::Unspecified,
        }
    }
}

/// An acknowledgement that waits. Dropped without being completed, it is an error: "unspecified error".
#[derive(Debug)]
pub struct AckHandle {
    hold: Option<Arc<Hold>>,
}

impl AckHandle {
    /// Releases the acknowledgement: as a success, or with the first reason that any of the message's handles has.
    pub fn complete(mut self, result: Result<(), RejectReason>) {
        if let Some(hold) = self.hold.take() {
            hold.complete(result);
        }
    }
}

impl Drop for AckHandle {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.complete(Err(RejectReason::Unspecified));
        }
    }
}

/// The handles of one message.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    /// Handles that are not completed.
    open: AtomicU16,
    /// The first reason; 0 for none.
    reason: AtomicU16,
    /// Notifies the publisher's connection.
    pub released: Arc<Notify>,
}

impl Hold {
    fn complete(&self, result: Result<(), RejectReason>) {
        if let Err(reason) = result {
            let _ = self.reason.compare_exchange(0, reason as u16, Ordering::AcqRel, Ordering::Acquire);
        }
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.released.notify_one();
        }
    }

    /// The result, once all handles are completed.
    pub(crate) fn result(&self) -> Option<Result<(), RejectReason>> {
        if self.open.load(Ordering::Acquire) > 0 {
            return None;
        }
        match self.reason.load(Ordering::Acquire) {
            0 => Some(Ok(())),
            code => Some(Err(RejectReason::from_code(code))),
        }
    }
}
