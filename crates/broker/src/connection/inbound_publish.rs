//! The last PUBLISH of a client, while the broker has no room for it. No further packet is handled meanwhile.

use std::future::pending;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::sync::futures::OwnedNotified;

use super::pending_acks::Gate;
use crate::message::Message;
use crate::moment::Moment;
use crate::protocol::{Answer, Reply};
use crate::router::{Blocked, Deferred, DeferredDelivery, Router};
use crate::wal::Ticket;

/// The longest time until a blocked message is offered again.
const BLOCKED_RETRY: Duration = Duration::from_secs(1);

/// The state of the last PUBLISH.
pub(super) enum InboundPublish {
    /// The last PUBLISH is done, and the next one may come.
    Ready {
        /// An empty vector that is reused.
        spare: Vec<DeferredDelivery>,
    },
    /// A hook or the store has no room for it; it is offered again.
    Blocked(BlockedPublish),
    /// Some of its subscribers have a full queue.
    AwaitingRoom(AwaitingRoom),
}

/// A message that is to be offered to the hooks again.
pub(super) struct BlockedPublish {
    pub message: Message,
    pub answer: Answer,
    until: Pin<Box<OwnedNotified>>,
    pub retry_at: Instant,
}

/// Deliveries that wait for room in the queues of subscribers.
pub(super) struct AwaitingRoom {
    deliveries: Vec<DeferredDelivery>,
    /// Time at which the broker stops waiting.
    until: Instant,
    /// The acknowledgement that is due once all deliveries are settled.
    ack: Option<(Reply, Gate)>,
}

/// The outcome of another attempt.
pub(super) enum Retry {
    /// All deliveries are settled; the acknowledgement may be due.
    Settled(Option<(Reply, Gate)>),
    /// A delivery waits for this notification.
    Full(Pin<Box<OwnedNotified>>),
}

impl InboundPublish {
    pub(super) fn ready() -> InboundPublish {
        InboundPublish::Ready { spare: Vec::new() }
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self, InboundPublish::Ready { .. })
    }

    pub(super) fn awaits_room(&self) -> bool {
        matches!(self, InboundPublish::AwaitingRoom(_))
    }

    pub(super) fn is_blocked(&self) -> bool {
        matches!(self, InboundPublish::Blocked(_))
    }

    /// An empty vector for the deliveries of the next PUBLISH.
    pub(super) fn take_spare(&mut self) -> Vec<DeferredDelivery> {
        match self {
            InboundPublish::Ready { spare } => std::mem::take(spare),
            InboundPublish::Blocked(_) | InboundPublish::AwaitingRoom(_) => Vec::new(),
        }
    }

    /// Gives back the vector of a PUBLISH that is done.
    pub(super) fn done(&mut self, deliveries: Vec<DeferredDelivery>) {
        match self {
            InboundPublish::Ready { spare } => *spare = deliveries,
            InboundPublish::Blocked(_) | InboundPublish::AwaitingRoom(_) => {
                *self = InboundPublish::Ready { spare: deliveries };
            }
        }
    }

    /// A message is to be offered again.
    pub(super) fn block(&mut self, blocked: Blocked, answer: Answer, now: Instant) {
        let Blocked { message, until } = blocked;
        let mut until = Box::pin(until.notified_owned());
        until.as_mut().enable();
        // A copy, so that it does not keep the read buffer.
        let message = message.clone();
        let retry_at = now + BLOCKED_RETRY;
        *self = InboundPublish::Blocked(BlockedPublish { message, answer, until, retry_at });
    }

    /// Deliveries wait for room until a deadline.
    pub(super) fn await_room(
        &mut self,
        deliveries: Vec<DeferredDelivery>,
        until: Instant,
        ack: Option<(Reply, Gate)>,
    ) {
        *self = InboundPublish::AwaitingRoom(AwaitingRoom { deliveries, until, ack });
    }

    /// Takes the blocked message, to offer it again.
    pub(super) fn take_blocked(&mut self) -> Option<BlockedPublish> {
        match std::mem::replace(self, InboundPublish::ready()) {
            InboundPublish::Blocked(blocked) => Some(blocked),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Time at which the broker stops waiting, or offers a message again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            InboundPublish::Ready { .. } => None,
            InboundPublish::Blocked(blocked) => Some(blocked.retry_at),
            InboundPublish::AwaitingRoom(waiting) => Some(waiting.until),
        }
    }

    /// Tries the waiting deliveries again.
    pub(super) fn retry(&mut self, router: &Router, now: &Moment) -> Retry {
        let InboundPublish::AwaitingRoom(waiting) = self else { return Retry::Settled(None) };
        while let Some(next) = waiting.deliveries.last() {
            // Enabled before the attempt: no notification is lost.
            let mut room = Box::pin(next.room().clone().notified_owned());
            room.as_mut().enable();
            match router.retry(next, now) {
                Deferred::Full => return Retry::Full(room),
                Deferred::Settled(ticket) => {
                    extend(&mut waiting.ack, ticket);
                    waiting.deliveries.pop();
                }
            }
        }
        Retry::Settled(self.settle())
    }

    /// Stops waiting for room; gives the acknowledgement that is due.
    pub(super) fn give_up(&mut self, router: &Router, now: &Moment) -> Option<(Reply, Gate)> {
        if let InboundPublish::AwaitingRoom(AwaitingRoom { deliveries, ack, .. }) = self {
            for delivery in deliveries.drain(..) {
                extend(ack, router.give_up(&delivery, now));
            }
        }
        self.settle()
    }

    fn settle(&mut self) -> Option<(Reply, Gate)> {
        match std::mem::replace(self, InboundPublish::ready()) {
            InboundPublish::AwaitingRoom(AwaitingRoom { deliveries, ack, .. }) => {
                self.done(deliveries);
                ack
            }
            other => {
                *self = other;
                None
            }
        }
    }
}

/// An acknowledgement waits for one more change.
fn extend(ack: &mut Option<(Reply, Gate)>, ticket: Option<Ticket>) {
    if let Some((_, gate)) = ack {
        gate.ticket = ticket.or(gate.ticket);
    }
}

/// Completes when a blocked message is to be offered again.
pub(super) async fn unblocked(publish: &mut InboundPublish) {
    match publish {
        InboundPublish::Blocked(blocked) => blocked.until.as_mut().await,
        InboundPublish::Ready { .. } | InboundPublish::AwaitingRoom(_) => pending().await,
    }
}
