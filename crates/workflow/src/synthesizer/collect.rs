//! Collections that fire when they are complete: a number of events, or one of each filter.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::charged::{Charged, Timed};
use super::step::{Arrival, Happening, Outcome};

/// The events collected so far, until their number reaches the rule's count; oldest first, with their times.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Count {
    events: Timed,
    /// Number of events dropped since the last firing because they were too old or took too much memory.
    dropped: u64,
}

/// The newest event of each filter, with its time; `None` for a filter without an event.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct All {
    events: Vec<Option<(i64, Charged)>>,
    /// Number of events dropped since the last firing because they were replaced, too old, or took too much memory.
    dropped: u64,
}

impl Count {
    pub(super) fn arrive(&mut self, wanted: usize, arrival: &Arrival<'_>) -> Outcome {
        self.events.push(arrival.now, arrival.event);
        if self.events.len() < wanted {
            return Outcome::default();
        }
        let collection = std::mem::take(self);
        let first = collection.events.first().unwrap_or(arrival.now);
        let facts = json!({
            "kind": "count", "count": collection.events.len(), "took_ms": arrival.now.saturating_sub(first),
        });
        let (events, dropped) = (collection.events.into_events(), collection.dropped);
        let happening = Happening { at: arrival.now, events, dropped, facts };
        Outcome { happening: Some(happening), lost: 0 }
    }

    pub(super) fn due(&self, within_ms: i64) -> Option<i64> {
        self.events.first().map(|at| at.saturating_add(within_ms))
    }

    pub(super) fn pass(&mut self, within_ms: Option<i64>, due: i64) -> Outcome {
        let mut lost = 0;
        while self.events.first().is_some_and(|at| is_old(at, within_ms, due)) {
            self.events.pop();
            lost += 1;
        }
        self.dropped = self.dropped.saturating_add(lost);
        Outcome { happening: None, lost }
    }

    pub(super) fn held(&self) -> usize {
        self.events.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.events.bytes()
    }

    /// Drops the oldest event. Returns true if there was one.
    pub(super) fn let_go(&mut self) -> bool {
        let had_one = self.events.pop();
        self.dropped = self.dropped.saturating_add(u64::from(had_one));
        had_one
    }

    pub(super) fn shift(&mut self, by_ms: i64) {
        self.events.shift(by_ms);
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
        let event = Charged::new(Arc::clone(arrival.event));
        let lost = u64::from(place.replace((arrival.now, event)).is_some());
        self.dropped = self.dropped.saturating_add(lost);
        if self.events.iter().any(Option::is_none) {
            return Outcome { happening: None, lost };
        }
        let first = self.events.iter().flatten().map(|(at, _)| *at).min().unwrap_or(arrival.now);
        let events = self.events.iter_mut().filter_map(Option::take);
        let events: Vec<_> = events.map(|(_, event)| event.into_value()).collect();
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

    /// Computes the sum on each call: the number of slots is the number of filters, which is small.
    pub(super) fn bytes(&self) -> usize {
        let events: usize = self.events.iter().flatten().map(|(_, event)| event.bytes()).sum();
        size_of_val(self.events.as_slice()) + events
    }

    /// Drops the oldest event. Returns true if there was one.
    pub(super) fn let_go(&mut self) -> bool {
        let held = self.events.iter_mut().filter(|place| place.is_some());
        let oldest = held.min_by_key(|place| place.as_ref().map(|(at, _)| *at));
        let had_one = oldest.and_then(Option::take).is_some();
        self.dropped = self.dropped.saturating_add(u64::from(had_one));
        had_one
    }

    /// True if this collection is for `sources` filters and is not complete.
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
