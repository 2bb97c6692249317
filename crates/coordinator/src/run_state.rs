//! Mutable state of an instance: its turns, calls, budgets and end, all under one lock.

use std::sync::Arc;
use std::time::Instant;

use edgefaas_broker::Ticket;
use edgefaas_workflow::instance::FrameId;
use edgefaas_workflow::{ErrorKind, Instance, WorkflowError};
use serde_json::Value;
use tokio::sync::{Notify, oneshot};
use ulid::Ulid;

use super::compute::ComputeSlot;
use super::event_queue::Turns;
use super::root_budget::Charge;
use super::spans::OpenSpans;

/// Bytes of an instance beside its data, with everything that the node keeps for it.
pub(crate) const INSTANCE_BYTES: usize = 5120;

/// The output of a workflow or of a step, or its error.
pub(crate) type WorkflowResult = Result<Arc<Value>, WorkflowError>;

/// The state of an instance while it runs.
pub(crate) struct RunState {
    pub(crate) instance: Instance,
    pub(crate) turns: Turns,
    pub(crate) open: OpenTasks,
    pub(crate) budget: BudgetUse,
    pub(crate) computing: Computing,
    pub(crate) registered: Registered,
    pub(crate) log: LogPosition,
    pub(crate) end: End,
    pub(crate) started: Instant,
    /// The time of the end; 0 before.
    pub(crate) ended_unix_ms: u64,
    /// The ticket of the last message that must be stored; for instances that are not durable.
    pub(crate) published: Option<Ticket>,
    pub(crate) spans: OpenSpans,
}

/// Open calls, children and listens of an instance.
#[derive(Default)]
pub(crate) struct OpenTasks {
    /// A function was called since the instance is in memory.
    pub(crate) has_called: bool,
    /// Pending calls, with their cancellation.
    pub(crate) calls: Vec<(FrameId, Arc<Notify>)>,
    /// Child instances that it waits for.
    pub(crate) children: Vec<(FrameId, Ulid)>,
    /// Tasks that listen.
    pub(crate) listens: Vec<FrameId>,
}

/// The instance's part of its root's budget.
pub(crate) struct BudgetUse {
    pub(crate) charge: Charge,
    pub(crate) refusal: Refusal,
}

/// State of the error that an instance gets when it exceeds its root's budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The instance is within the budget.
    #[default]
    None,
    /// The event has to be sent.
    Due,
    /// The event is in flight.
    Sent,
    /// The event was delivered after `steps` tasks: the next task fails.
    Delivered { steps: u64 },
}

/// Slot and pace of the turns of an instance.
#[derive(Default)]
pub(crate) struct Computing {
    /// Held from a long turn until the effects of the turn are settled.
    pub(crate) slot: Option<ComputeSlot>,
    pub(crate) pace: Pace,
}

/// Duration of the last turn of an instance, as an estimate for the next turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Pace {
    /// The turn is no longer than an instance may hold a worker.
    #[default]
    Quick,
    Slow,
}

/// The entries of this instance in the coordinator's timers and counts.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    /// The instance counts as running.
    pub(crate) is_running: bool,
    pub(crate) due_ms: Option<u64>,
}

/// The position in the event log.
#[derive(Debug, Default)]
pub(crate) struct LogPosition {
    /// The start is on the disk.
    pub(crate) started: bool,
    pub(crate) next: u32,
    /// Events up to here are in the snapshot.
    pub(crate) snapshot: u32,
    pub(crate) end: LoggedEnd,
}

/// The record of an instance's end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LoggedEnd {
    /// The instance has not ended, or goes on after a failure.
    #[default]
    Open,
    /// The end is in the store, or in the batch of the turn.
    Written,
}

/// State of the report of the instance's end.
pub(crate) enum End {
    /// The end was not reported yet. The waiter receives it.
    Open {
        waiter: Option<oneshot::Sender<WorkflowResult>>,
    },
    Reported,
}

impl RunState {
    pub(crate) fn new(instance: Instance, charge: Charge) -> Self {
        Self {
            instance,
            turns: Turns::default(),
            open: OpenTasks::default(),
            budget: BudgetUse { charge, refusal: Refusal::default() },
            computing: Computing::default(),
            registered: Registered::default(),
            log: LogPosition::default(),
            end: End::Open { waiter: None },
            started: Instant::now(),
            ended_unix_ms: 0,
            published: None,
            spans: OpenSpans::default(),
        }
    }

    /// The output or the error of an ended instance.
    pub(crate) fn result(&self) -> WorkflowResult {
        let cancelled =
            || WorkflowError::new(ErrorKind::Runtime, "the instance was cancelled").with_status(499);
        self.instance.result().cloned().unwrap_or_else(|| Err(cancelled()))
    }

    /// Charges the bytes of an instance; true if it may go on.
    pub(crate) fn charge_for(&mut self, input_bytes: usize, instance_bytes: usize) -> bool {
        let data_bytes = input_bytes.max(instance_bytes);
        self.budget.charge.set_bytes(INSTANCE_BYTES.saturating_add(data_bytes))
    }
}

impl End {
    /// Marks the end as reported; returns the waiter if it was not.
    pub(crate) fn report(&mut self) -> Option<Option<oneshot::Sender<WorkflowResult>>> {
        match std::mem::replace(self, Self::Reported) {
            Self::Open { waiter } => Some(waiter),
            Self::Reported => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_reported_once() {
        let mut end = End::Open { waiter: None };
        assert!(end.report().is_some());
        assert!(end.report().is_none());
    }
}
