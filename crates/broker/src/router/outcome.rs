//! The outcome of a publish.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::hook::{Hold, RejectReason};
use crate::message::Message;
use crate::wal::Ticket;

/// The outcome of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The message was handed to its subscribers.
    Routed(Routed),
    /// A hook consumed it.
    Consumed,
    /// A hook or a limit refused it.
    Rejected(RejectReason),
}

/// The outcome of a publish, and when its changes are stored.
#[derive(Debug)]
#[non_exhaustive]
pub struct Published {
    /// The outcome.
    pub outcome: PublishOutcome,
    /// The ticket at which the changes of this publish are stored: see [`Broker::durable`](crate::Broker::durable).
    pub ticket: Option<Ticket>,
    /// Handles of hooks that delay its acknowledgement.
    pub(crate) hold: Option<Arc<Hold>>,
}

/// Numbers of a message that was handed to its subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Routed {
    /// Clients with a matching subscription.
    pub subscribers: usize,
    /// Subscribers among them that lost the message: their queue is full, or they do not accept packets of that size.
    pub dropped: usize,
    /// The message has the retain flag, but was not retained: the store is full.
    pub retain_refused: bool,
    /// A queue is more than half full.
    pub(crate) pressure: bool,
}

/// A hook or the store has no room for a message: it is to be offered again.
pub(crate) struct Blocked {
    pub message: Message,
    pub until: Arc<Notify>,
}

impl Published {
    /// Waits until all handles of hooks are completed that delay the acknowledgement.
    ///
    /// # Errors
    /// The first reason of a hook.
    pub(crate) async fn held(&self) -> Result<(), RejectReason> {
        let Some(hold) = &self.hold else { return Ok(()) };
        loop {
            // Notified once: a notification before the wait is not lost.
            let released = hold.released.notified();
            if let Some(result) = hold.result() {
                return result;
            }
            released.await;
        }
    }

    pub(crate) fn rejected(reason: RejectReason) -> Published {
        Published { outcome: PublishOutcome::Rejected(reason), ticket: None, hold: None }
    }
}
