//! Event queue of an instance, and the task that advances the instance.

use std::sync::Arc;

use edgefaas_broker::{Message, Ticket};
use edgefaas_platform::Taken;
use edgefaas_workflow::Event;
use tokio::sync::oneshot;

use super::function_step::UnstoredStep;
use super::root_budget::Charge;
use super::start_turn::StartTurn;

/// An event in flight to an instance, with the effects that are committed with it.
pub(crate) struct Queued {
    pub(crate) event: Event,
    pub(crate) effects: Option<StepEffects>,
    /// The event's number in the inbox of the event log, and the ticket at which it is durable.
    pub(crate) inbox: Option<(u32, Option<Ticket>)>,
    /// The event's part of the root's budget, until its turn is committed.
    pub(crate) charge: Option<Charge>,
    /// The turn of a start, see [`StartTurn`].
    pub(crate) turn: Option<StartTurn>,
    /// Told when the event's turn is stored; dropped if it never is, and by an instance that is not durable.
    pub(crate) stored: Option<oneshot::Sender<()>>,
}

/// Effects of a function that ran as a step of a durable instance.
pub(crate) enum StepEffects {
    /// Messages alone, if any. They are stored with the turn.
    Messages {
        source: Arc<str>,
        messages: Vec<Message>,
        /// The step's part of the budget of uncommitted effects.
        _taken: Taken,
    },
    /// Changes of objects. They are stored before the turn.
    Changes(Box<UnstoredStep>),
}

impl Queued {
    /// An event without effects.
    pub fn now(event: Event) -> Self {
        Self { event, effects: None, inbox: None, charge: None, turn: None, stored: None }
    }

    /// An event that was recovered from the inbox of the event log.
    pub fn from_inbox(event: Event, number: u32) -> Self {
        Self { event, effects: None, inbox: Some((number, None)), charge: None, turn: None, stored: None }
    }

    /// An event that is on the disk, or will be at `ticket`.
    pub fn recorded(event: Event, number: u32, ticket: Ticket) -> Self {
        Self {
            event,
            effects: None,
            inbox: Some((number, Some(ticket))),
            charge: None,
            turn: None,
            stored: None,
        }
    }
}

/// State of the task that advances the instance. Events that arrive during a turn wait for that task.
#[derive(Default)]
pub(crate) enum Turns {
    #[default]
    Idle,
    Busy {
        waiting: Vec<Queued>,
    },
}

impl Turns {
    /// A task has begun a turn that it cannot end immediately.
    pub(crate) fn busy() -> Self {
        Self::Busy { waiting: Vec::new() }
    }

    /// Returns the event if no task advances the instance; else it waits for that task.
    pub(crate) fn offer(&mut self, queued: Queued) -> Option<Queued> {
        match self {
            Self::Idle => Some(queued),
            Self::Busy { waiting } => {
                add(waiting, queued);
                None
            }
        }
    }

    /// Adds events; true if the caller has to advance the instance, by [`take`](Self::take) until that returns `None`.
    pub(crate) fn begin(&mut self, queued: impl IntoIterator<Item = Queued>) -> bool {
        let is_idle = matches!(self, Self::Idle);
        if is_idle {
            *self = Self::busy();
        }
        if let Self::Busy { waiting } = self {
            queued.into_iter().for_each(|queued| add(waiting, queued));
        }
        is_idle
    }

    /// The events that wait; `None` if there are none: the instance is idle then.
    pub(crate) fn take(&mut self) -> Option<Vec<Queued>> {
        match self {
            Self::Busy { waiting } if !waiting.is_empty() => Some(std::mem::take(waiting)),
            _ => {
                *self = Self::Idle;
                None
            }
        }
    }
}

/// Adds an event. A new length of a queue replaces the earlier one.
fn add(waiting: &mut Vec<Queued>, queued: Queued) {
    if let Event::QueueLength { frame, .. } = queued.event {
        let is_same = |event: &Event| matches!(event, Event::QueueLength { frame: of, .. } if *of == frame);
        waiting.retain(|waiting| !is_same(&waiting.event));
    }
    waiting.push(queued);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(frame: u32, length: u64) -> Queued {
        Queued::now(Event::QueueLength { frame, length })
    }

    #[test]
    fn one_task_advances_an_instance_and_takes_events_that_arrive_during_its_turn() {
        let mut turns = Turns::default();
        assert!(turns.offer(Queued::now(Event::Start)).is_some());
        assert!(turns.begin([Queued::now(Event::Start)]));
        assert!(!turns.begin([length(1, 5)]));
        assert!(turns.offer(length(2, 1)).is_none());
        assert!(turns.offer(length(1, 6)).is_none());
        let taken = turns.take().expect("three wait");
        let events: Vec<_> = taken.iter().map(|queued| format!("{:?}", queued.event)).collect();
        assert_eq!(events.len(), 3, "{events:?}");
        assert!(events[2].contains('6'), "the last length of a queue counts: {events:?}");
        assert!(turns.offer(Queued::now(Event::Retry)).is_none(), "it is busy until it takes nothing");
        assert_eq!(turns.take().map(|taken| taken.len()), Some(1));
        assert!(turns.take().is_none());
        assert!(turns.offer(Queued::now(Event::Retry)).is_some());
    }
}
