//! Collections that fire when they are complete: a number of events, or one of each filter.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::cell::{Arrival, Happening, Held, Outcome};

/// The events on the way to a number of them, oldest first, with their times.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Count {
    events: VecDeque<(i64, Held)>,
    /// Events that grew too old since the last firing.
    dropped: u64,
}

/// The newest event of each filter, if there is one, with its time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct All {
    events: Vec<Option<(i64, Held)>>,
    /// Events that were replaced or grew too old since the last firing.
    dropped: u64,
}

impl Count {
    pub(super) fn arrive(&mut self, wanted: usize, arrival: &Arrival<'_>) -> Outcome {
        self.events.push_back((arrival.now, Held(Arc::clone(arrival.event))));
        if self.events.len() < wanted {
            return Outcome::default();
        }
        let collection = std::mem::take(self);
        let first = collection.events.front().map_or(arrival.now, |(at, _)| *at);
        let facts = json!({
            "kind": "count", "count": collection.events.len(), "took_ms": arrival.now.saturating_sub(first),
        });
        let events = collection.events.into_iter().map(|(_, event)| event.0).collect();
        let happening = Happening { at: arrival.now, events, dropped: collection.dropped, facts };
        Outcome { happening: Some(happening), lost: 0 }
    }

    pub(super) fn due(&self, within_ms: i64) -> Option<i64> {
        self.events.front().map(|(at, _)| at.saturating_add(within_ms))
    }

    pub(super) fn pass(&mut self, within_ms: Option<i64>, due: i64) -> Outcome {
        let mut lost = 0;
        while self.events.front().is_some_and(|(at, _)| is_old(*at, within_ms, due)) {
            self.events.pop_front();
            lost += 1;
        }
        self.dropped = self.dropped.saturating_add(lost);
        Outcome { happening: None, lost }
    }

    pub(super) fn held(&self) -> usize {
        self.events.len()
    }

    pub(super) fn shift(&mut self, by_ms: i64) {
        self.events.iter_mut().for_each(|(at, _)| *at = at.saturating_add(by_ms));
    }
}

impl All {
    pub(super) fn new(sources: usize) -> Self {
        Self { events: vec![None; sources], dropped: 0 }
    }

    pub(super) fn arrive(&mut self, arrival: &Arrival<'_>) -> Outcome {
        let Some(place) = self.events.get_mut(arrival.source) else {
            return Outcome::default();
        };
        let lost = u64::from(place.replace((arrival.now, Held(Arc::clone(arrival.event)))).is_some());
        self.dropped = self.dropped.saturating_add(lost);
        if self.events.iter().any(Option::is_none) {
            return Outcome { happening: None, lost };
        }
        let first = self.events.iter().flatten().map(|(at, _)| *at).min().unwrap_or(arrival.now);
        let events: Vec<_> =
            self.events.iter_mut().filter_map(Option::take).map(|(_, event)| event.0).collect();
        let facts = json!({
            "kind": "all", "count": events.len(), "took_ms": arrival.now.saturating_sub(first),
        });
        let dropped = std::mem::take(&mut self.dropped);
        Outcome { happening: Some(Happening { at: arrival.now, events, dropped, facts }), lost }
    }

    pub(super) fn due(&self, within_ms: i64) -> Option<i64> {
        self.events.iter().flatten().map(|(at, _)| at.saturating_add(within_ms)).min()
    }

    pub(super) fn pass(&mut self, within_ms: Option<i64>, due: i64) -> Outcome {
        let mut lost = 0;
        for place in &mut self.events {
            if place.as_ref().is_some_and(|(at, _)| is_old(*at, within_ms, due)) {
                *place = None;
                lost += 1;
            }
        }
        self.dropped = self.dropped.saturating_add(lost);
        Outcome { happening: None, lost }
    }

    pub(super) fn held(&self) -> usize {
        self.events.iter().flatten().count()
    }

    /// Whether this waits for so many filters and is not complete.
    pub(super) fn fits(&self, sources: usize) -> bool {
        self.events.len() == sources && self.held() < sources
    }

    pub(super) fn shift(&mut self, by_ms: i64) {
        self.events.iter_mut().flatten().for_each(|(at, _)| *at = at.saturating_add(by_ms));
    }
}

fn is_old(at: i64, within_ms: Option<i64>, now: i64) -> bool {
    within_ms.is_some_and(|within_ms| at.saturating_add(within_ms) <= now)
}
