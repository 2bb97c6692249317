//! Acknowledgements that wait: for the sync of their message, for hooks, and for the acknowledgements before them.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;

use crate::hook::{Hold, RejectReason};
use crate::protocol::Reply;
use crate::wal::{Progress, Ticket};

/// Acknowledgements in the order in which their packets came, which is the order in which they leave (MQTT 5,
/// section 4.6).
pub(super) struct PendingAcks {
    waiting: VecDeque<(Reply, Gate)>,
    /// PUBACKs among them.
    publishes: usize,
    progress: watch::Receiver<Progress>,
}

/// The conditions of an acknowledgement.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The sync of these changes.
    pub ticket: Option<Ticket>,
    /// The handles of hooks.
    pub hold: Option<Arc<Hold>>,
}

impl Gate {
    /// Waits for the sync of changes only.
    pub(super) fn stored(ticket: Option<Ticket>) -> Gate {
        Gate { ticket, hold: None }
    }

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

impl PendingAcks {
    /// `progress` notifies of the store's commits.
    pub(super) fn new(progress: watch::Receiver<Progress>) -> PendingAcks {
        PendingAcks { waiting: VecDeque::new(), publishes: 0, progress }
    }

    pub(super) fn push(&mut self, reply: Reply, gate: Gate) {
        self.publishes += usize::from(answers_publish(&reply));
        self.waiting.push_back((reply, gate));
    }

    /// Progress of the store; the next [`store_progress`](Self::store_progress) waits for more.
    pub(super) fn progress(&mut self) -> Progress {
        *self.progress.borrow_and_update()
    }

    /// Completes when the store has got further; false if the broker is gone.
    pub(super) async fn store_progress(&mut self) -> bool {
        self.progress.changed().await.is_ok()
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

    /// True if the first acknowledgement waits for the store. It may wait for other things as well.
    pub(super) fn awaits_store(&self) -> bool {
        self.waiting.front().is_some_and(|(_, gate)| gate.ticket.is_some())
    }

    /// The handles of hooks that the first one waits for.
    pub(super) fn hold(&self) -> Option<&Arc<Hold>> {
        self.waiting.front().and_then(|(_, gate)| gate.hold.as_ref())
    }
}

fn answers_publish(reply: &Reply) -> bool {
    matches!(reply, Reply::PubAck(..))
}
