//! The rate conditions: more, or fewer, than a number of events within the period that ends now.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::charged::release_room;
use super::step::{Arrival, Happening, Outcome};

/// The times of the last events that can still count: at most one more than the rate.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Above {
    times: VecDeque<i64>,
    /// True if it has fired and the rate has not returned to the limit since then.
    past: bool,
}

/// The times of the last events: at most as many as the rate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Below {
    times: VecDeque<i64>,
    /// The start of the observation. The rate is known only after one whole period.
    began_ms: i64,
    /// True if the rate was reached since the last firing.
    armed: bool,
}

impl Above {
    pub(super) fn arrive(&mut self, above: usize, per_ms: i64, arrival: &Arrival<'_>) -> Outcome {
        // The end of a millisecond decides if the rate has returned: an event that expires at the same time as
        // another arrives does not change the rate.
        if self.times.back().is_some_and(|last| *last < arrival.now) {
            let oldest_ends = self.times.front().map(|at| at.saturating_add(per_ms));
            self.past &= self.times.len() > above && oldest_ends >= Some(arrival.now);
        }
        while self.times.front().is_some_and(|at| at.saturating_add(per_ms) <= arrival.now) {
            self.times.pop_front();
        }
        release_room(&mut self.times);
        self.times.push_back(arrival.now);
        // This number of times is enough to know that the rate is exceeded.
        if self.times.len() > above.saturating_add(1) {
            self.times.pop_front();
        }
        let count = self.times.len();
        if self.past || count <= above {
            return Outcome::default();
        }
        self.past = true;
        let facts = json!({ "kind": "rate", "count": count, "above": above, "per_ms": per_ms });
        let events = vec![Arc::clone(arrival.event)];
        Outcome { happening: Some(Happening { at: arrival.now, events, dropped: 0, facts }), lost: 0 }
    }

    /// True if no event is within the period any more.
    pub(super) fn is_over(&self, per_ms: i64, now: i64) -> bool {
        // `past` stays set until the last event has expired. The return is seen only after the millisecond of that
        // expiry.
        self.times.back().is_none_or(|at| at.saturating_add(per_ms) < now)
    }

    pub(super) fn held(&self) -> usize {
        self.times.len()
    }

    /// Drops the oldest time. Then the rate is no longer exceeded. Returns true if there was one.
    pub(super) fn let_go(&mut self) -> bool {
        let had_one = self.times.pop_front().is_some();
        release_room(&mut self.times);
        had_one
    }

    pub(super) fn shift(&mut self, by_ms: i64) {
        self.times.iter_mut().for_each(|at| *at = at.saturating_add(by_ms));
    }
}

impl Below {
    pub(super) fn new(now: i64) -> Self {
        Self { times: VecDeque::new(), began_ms: now, armed: true }
    }

    pub(super) fn arrive(&mut self, below: usize, per_ms: i64, arrival: &Arrival<'_>) -> Outcome {
        self.times.push_back(arrival.now);
        if self.times.len() > below {
            self.times.pop_front();
        }
        let reached = self.times.front().is_some_and(|at| at.saturating_add(per_ms) > arrival.now);
        self.armed |= self.times.len() >= below && reached;
        Outcome::default()
    }

    /// The time at which the events become too few, if no event arrives before.
    pub(super) fn due(&self, below: usize, per_ms: i64) -> Option<i64> {
        if !self.armed {
            return None;
        }
        let since = match self.times.front() {
            Some(at) if self.times.len() >= below => (*at).max(self.began_ms),
            _ => self.began_ms,
        };
        Some(since.saturating_add(per_ms))
    }

    pub(super) fn pass(&mut self, below: usize, per_ms: i64, due: i64) -> Outcome {
        self.armed = false;
        while self.times.front().is_some_and(|at| at.saturating_add(per_ms) <= due) {
            self.times.pop_front();
        }
        release_room(&mut self.times);
        let facts = json!({ "kind": "rate", "count": self.times.len(), "below": below, "per_ms": per_ms });
        Outcome { happening: Some(Happening { at: due, events: Vec::new(), dropped: 0, facts }), lost: 0 }
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    pub(super) fn held(&self) -> usize {
        self.times.len()
    }

    /// Drops the oldest time and moves the start of the observation to it, so that the condition does not fire before that
    /// event would expire. Returns true if there was one.
    pub(super) fn let_go(&mut self) -> bool {
        let Some(oldest) = self.times.pop_front() else { return false };
        self.began_ms = self.began_ms.max(oldest);
        release_room(&mut self.times);
        true
    }

    pub(super) fn shift(&mut self, by_ms: i64) {
        self.times.iter_mut().for_each(|at| *at = at.saturating_add(by_ms));
        self.began_ms = self.began_ms.saturating_add(by_ms);
    }
}
