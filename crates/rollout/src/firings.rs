//! Occurrences of schedules on this node, with those that it fires if another member fails to.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use edgefaas_cluster::occurrences::{Due, OccurrenceId, Occurrences, Seen};
use edgefaas_functions::registry::Firing;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The occurrences that are due, for the triggers of this node.
pub struct Firings {
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    occurrences: Occurrences,
    waiting: HashMap<OccurrenceId, oneshot::Sender<()>>,
}

impl Default for Firings {
    fn default() -> Self {
        Self { begun: Instant::now(), state: Mutex::default() }
    }
}

impl Firings {
    /// What this node does with an occurrence that is due since `late_ms`; `before` are the members that rank before it.
    pub fn due(&self, id: OccurrenceId, before: impl IntoIterator<Item = u64>, late_ms: u64) -> Firing {
        let mut state = self.state.lock();
        let State { occurrences, waiting } = &mut *state;
        match occurrences.due(id, before, late_ms, self.now_ms()) {
            Due::Fire => Firing::Here,
            Due::Fired => Firing::Elsewhere,
            Due::Noted => {
                // Occurrences that were forgotten because there are too many.
                waiting.retain(|_, waiter| !waiter.is_closed());
                let (waiter, fails) = oneshot::channel();
                waiting.insert(id, waiter);
                Firing::IfOthersFail(fails)
            }
        }
    }

    /// What this node does at the end of an interval: the first in rank of those that take part is chosen each time.
    pub fn of_interval(&self, before: impl IntoIterator<Item = u64>) -> Firing {
        let state = self.state.lock();
        let is_first = !before.into_iter().any(|node_id| state.occurrences.takes_part(node_id));
        if is_first { Firing::Here } else { Firing::Elsewhere }
    }

    /// Takes the other members as they are now; none if this node is alone.
    pub fn see<'a>(&self, members: impl IntoIterator<Item = Seen<'a>>) {
        let mut state = self.state.lock();
        let changes = state.occurrences.see(members, self.now_ms());
        for id in changes.fire {
            if let Some(waiter) = state.waiting.remove(&id) {
                let _ = waiter.send(());
            }
        }
        for id in changes.ended {
            state.waiting.remove(&id);
        }
    }

    /// The last occurrences that this node has fired, for the other members.
    pub fn announced(&self) -> Arc<[u64]> {
        self.state.lock().occurrences.announced().into()
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
