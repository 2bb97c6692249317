//! The silence condition: no event for a duration.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::charged::Charged;
use super::step::{Arrival, Happening, Outcome};

/// Waits for the duration after the last event. Fires once, and again only after another event.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Silence {
    /// The time of the last event, or the start of the wait.
    last_ms: i64,
    /// The last event, until a firing contains it.
    last: Option<Charged>,
    armed: bool,
}

impl Silence {
    pub(super) fn new(now: i64) -> Self {
        Self { last_ms: now, last: None, armed: true }
    }

    pub(super) fn arrive(&mut self, arrival: &Arrival<'_>) -> Outcome {
        let last = Some(Charged::new(Arc::clone(arrival.event)));
        *self = Self { last_ms: arrival.now, last, armed: true };
        Outcome::default()
    }

    pub(super) fn due(&self, for_ms: i64) -> Option<i64> {
        self.armed.then(|| self.last_ms.saturating_add(for_ms))
    }

    pub(super) fn pass(&mut self, for_ms: i64, due: i64) -> Outcome {
        self.armed = false;
        let events = self.last.take().map(Charged::into_value).into_iter().collect();
        let facts = json!({ "kind": "silence", "for_ms": for_ms });
        Outcome { happening: Some(Happening { at: due, events, dropped: 0, facts }), lost: 0 }
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    pub(super) fn held(&self) -> usize {
        usize::from(self.last.is_some())
    }

    pub(super) fn bytes(&self) -> usize {
        self.last.as_ref().map_or(0, Charged::bytes)
    }

    /// Drops the last event; the firing will have none. Returns true if there was one.
    pub(super) fn let_go(&mut self) -> bool {
        self.last.take().is_some()
    }

    pub(super) fn shift(&mut self, by_ms: i64) {
        self.last_ms = self.last_ms.saturating_add(by_ms);
    }
}
