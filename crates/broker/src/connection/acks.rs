//! Acknowledgements that wait: for the store, for hooks, and for those before them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::hook::{Hold, RejectReason};
use crate::session::Reply;
use crate::wal::{Progress, Ticket};

/// Acknowledgements in the order in which their packets came, which is the order in which they leave (MQTT 5,
/// section 4.6).
#[derive(Default)]
pub(super) struct Acks {
    waiting: VecDeque<(Reply, Gate)>,
    /// PUBACKs among them.
    publishes: usize,
}

/// What an acknowledgement waits for.
#[derive(Debug, Default)]
pub(super) struct Gate {
    pub ticket: Option<Ticket>,
    pub hold: Option<Arc<Hold>>,
}

impl Gate {
    /// `None` while it is shut.
    fn result(&self, progress: Progress) -> Option<Result<(), RejectReason>> {
        let stored = match self.ticket {
            Some(ticket) => progress.of(ticket)?.map_err(|_| RejectReason::Unspecified),
            None => Ok(()),
        };
        let held = match &self.hold {
            Some(hold) => hold.result()?,
            None => Ok(()),
        };
        Some(stored.and(held))
    }
}

impl Acks {
    pub(super) fn push(&mut self, reply: Reply, gate: Gate) {
        self.publishes += usize::from(answers_publish(&reply));
        self.waiting.push_back((reply, gate));
    }

    /// The first acknowledgement, once its gate is open: with an error it has to be a negative one.
    pub(super) fn next(&mut self, progress: Progress) -> Option<(Reply, Result<(), RejectReason>)> {
        let result = self.waiting.front()?.1.result(progress)?;
        let (reply, _) = self.waiting.pop_front()?;
        self.publishes -= usize::from(answers_publish(&reply));
        Some((reply, result))
    }

    /// QoS 1 messages that are not acknowledged.
    pub(super) fn unacknowledged(&self) -> usize {
        self.publishes
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the first one waits for the store, beside other things.
    pub(super) fn awaits_store(&self) -> bool {
        self.waiting.front().is_some_and(|(_, gate)| gate.ticket.is_some())
    }

    /// What the first one waits for.
    pub(super) fn hold(&self) -> Option<&Arc<Hold>> {
        self.waiting.front().and_then(|(_, gate)| gate.hold.as_ref())
    }
}

fn answers_publish(reply: &Reply) -> bool {
    matches!(reply, Reply::PubAck(..))
}
