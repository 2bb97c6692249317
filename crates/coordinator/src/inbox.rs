//! Inbox of an instance: events that were accepted and not delivered yet.
//!
//! The publish hook adds the events. The inbox has a lock of its own, so that a publisher never waits for an instance
//! that computes. Events count against the budget of their root. An event without room is dropped (QoS 0) or refused
//! (QoS 1 and 2), as when a queue is full.

use edgefaas_functions::invocation::OverBudget;

use super::event_queue::Queued;

/// The events of one instance, in order of arrival.
#[derive(Default)]
pub(super) struct Inbox {
    pub arrivals: Vec<Queued>,
    /// True while a task delivers the events.
    pub draining: bool,
    /// The number of the next recorded event.
    next_number: u32,
}

impl Inbox {
    /// Takes the number for an event that is to be recorded.
    pub fn take_number(&mut self) -> u32 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Marks the numbers below `number` as used.
    pub fn not_before(&mut self, number: u32) {
        self.next_number = self.next_number.max(number);
    }
}

/// An event cannot wait for its instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoRoomForEvent {
    #[error(transparent)]
    Budget(#[from] OverBudget),
    #[error("the disk is full; make room")]
    DiskFull,
    #[error("{max_bytes} bytes of events wait for the filters of the workflow; publish more slowly")]
    Filters { max_bytes: usize },
}
