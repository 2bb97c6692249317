//! A numbered message of an outbox.

use std::sync::Arc;
use std::time::Instant;

use crate::delivery::Delivery;
use crate::message::{Message, QoS};
use crate::monitor::Figures;
use crate::wal::Ticket;

#[derive(Debug)]
pub(super) enum Slot {
    /// Acknowledged, or dropped.
    Done,
    /// QoS 1, waits for PUBACK. With the figures of the filter it matched, if it may have to wait again.
    Published(Option<Arc<Figures>>),
    /// QoS 2, waits for PUBREC.
    PublishedOnce(Option<Arc<Figures>>),
    /// QoS 2, PUBREC came, waits for PUBCOMP.
    Released(Option<Arc<Figures>>),
    Waiting(Box<Waiting>),
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub message: Message,
    pub delivery: Delivery,
    pub received: Instant,
    pub figures: Arc<Figures>,
    /// QoS 2: not sent before it is stored under its number.
    pub after: Option<Ticket>,
}

impl Slot {
    /// A message that was sent.
    pub(super) fn in_flight(qos: QoS, figures: Option<Arc<Figures>>) -> Slot {
        if qos == QoS::ExactlyOnce { Slot::PublishedOnce(figures) } else { Slot::Published(figures) }
    }
}
