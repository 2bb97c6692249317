//! Beginning instances in the order of the messages that start them: [`StartTurn`] for those that run at the same time,
//! [`Place`](super::place::Place) for those that run one after another.

use std::sync::Arc;

use super::coordinator::Coordinator;
use super::event_queue::Queued;
use super::instance::Running;
use super::start_turn::StartTurn;

impl Coordinator {
    /// Begins an instance that a message starts.
    pub(super) fn begin_in_order(
        self: &Arc<Self>,
        running: Arc<Running>,
        queued: Queued,
        turn: Option<StartTurn>,
    ) {
        let Some(place) = running.held.as_ref().map(|held| held.place) else {
            return self.spawn_advance(running, Queued { turn, ..queued });
        };
        let id = running.id;
        if let Some((running, queued)) = self.places.enter(place, id, (running, queued)) {
            self.spawn_advance(running, queued);
        }
    }

    /// Lets the next instance begin that waits for this one.
    pub(super) fn leave_order(self: &Arc<Self>, running: &Running) {
        let held = running.held.as_ref().filter(|held| held.leave());
        if let Some(held) = held
            && let Some((next, queued)) = self.places.leave(held.place, running.id)
        {
            self.spawn_advance(next, queued);
        }
    }
}
