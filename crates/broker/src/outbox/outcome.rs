//! Outcomes of the operations of an outbox.

use crate::wal::Ticket;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Encoded, or queued. `wake`: the connection has to be notified; `pressure`: more than half of the bound is used.
    Accepted { wake: bool, pressure: bool },
    /// Encoded or queued, but over the bounds: the publisher is to wait until there [is room](super::Outbox::has_room),
    /// and then to [`trim`](super::Outbox::trim).
    Over { wake: bool },
    /// QoS 0 for a client that is not connected.
    Skipped,
    /// The queue has no room for this QoS 1 or 2 message, but may have room later.
    Full,
    /// Lost for this subscriber.
    Lost(Loss),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Full,
    TooLarge,
    Expired,
    NotAuthorized,
    Closed,
}

/// A client acknowledged a message in a way that does not fit its QoS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrongAck;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// Answer with PUBREL, once this is stored.
    Send(Option<Ticket>),
    /// Answer with PUBREL, packet identifier not found.
    NotFound,
    /// The client refused the message: nothing to answer.
    Ended,
}

/// The outcome of [`Outbox::take`](super::Outbox::take).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// A publisher waited for the room that there is now.
    pub awaited: bool,
    /// Messages that were lost meanwhile.
    pub lost: u64,
    /// More can be taken after the next commit of the store.
    pub awaits_store: bool,
    /// Fetch these from the store.
    pub page: Option<Page>,
}

/// Messages of a session in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    pub session: u64,
    pub from: u64,
    pub messages: usize,
}
