//! Windows of time, tumbling and sliding.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::charged::Timed;
use super::rule::KEY_EVENTS;
use super::step::{Arrival, Happening, Outcome};

/// The ends of windows: one every `every_ms` milliseconds from the origin on, at the same times for all keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    pub(super) origin_ms: i64,
    /// At least 1.
    pub(super) every_ms: i64,
}

/// The events of the open window, oldest first, with their times. A sliding window also has the earlier events that
/// still count.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Window {
    events: Timed,
    /// The end of the last window that was processed.
    passed_ms: i64,
    /// Number of events dropped since the last firing because they were too many or took too much memory.
    dropped: u64,
}

impl Grid {
    /// The last window end that is not after `at`.
    fn before(&self, at: i64) -> i64 {
        let whole = at.saturating_sub(self.origin_ms).div_euclid(self.every_ms.max(1));
        self.origin_ms.saturating_add(whole.saturating_mul(self.every_ms))
    }

    /// The first window end after `at`: the end of the window that contains `at`.
    fn after(&self, at: i64) -> i64 {
        self.before(at).saturating_add(self.every_ms)
    }
}

impl Window {
    pub(super) fn new(grid: &Grid, now: i64) -> Self {
        Self { events: Timed::default(), passed_ms: grid.before(now), dropped: 0 }
    }

    pub(super) fn arrive(&mut self, arrival: &Arrival<'_>) -> Outcome {
        self.events.push(arrival.now, arrival.event);
        let mut lost = 0;
        while self.events.len() > KEY_EVENTS {
            self.events.pop();
            lost += 1;
        }
        self.dropped = self.dropped.saturating_add(lost);
        Outcome { happening: None, lost }
    }

    pub(super) fn due(&self, grid: &Grid, empty: bool) -> Option<i64> {
        let next = self.passed_ms.saturating_add(grid.every_ms);
        match self.events.first() {
            _ if empty => Some(next),
            Some(first) => Some(next.max(grid.after(first))),
            None => None,
        }
    }

    /// Ends the window whose end is `due`. If several empty windows ended since the last call, only the last of them
    /// fires, and only if `empty` allows it.
    pub(super) fn pass(&mut self, grid: &Grid, of_ms: i64, empty: bool, due: i64, now: i64) -> Outcome {
        self.forget_before(due.saturating_sub(of_ms));
        let in_window = self.events.len_before(due);
        let mut border = due;
        if in_window == 0 && empty {
            let filled = self.events.first().map(|first| grid.after(first).saturating_sub(grid.every_ms));
            border = grid.before(now).min(filled.unwrap_or(i64::MAX)).max(due);
        }
        self.passed_ms = border;
        if in_window == 0 && !empty {
            return Outcome::default();
        }
        let facts = json!({
            "kind": "window", "count": in_window, "every_ms": grid.every_ms, "of_ms": of_ms,
            "skipped": border.saturating_sub(due) / grid.every_ms.max(1),
        });
        let events = self.events.oldest(in_window);
        let dropped = std::mem::take(&mut self.dropped);
        // Drops the events that are in no later window.
        self.forget_before(border.saturating_add(grid.every_ms).saturating_sub(of_ms));
        Outcome { happening: Some(Happening { at: border, events, dropped, facts }), lost: 0 }
    }

    fn forget_before(&mut self, at: i64) {
        while self.events.first().is_some_and(|time| time < at) {
            self.events.pop();
        }
    }

    pub(super) fn align(&mut self, grid: &Grid) {
        self.passed_ms = grid.before(self.passed_ms);
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
        self.passed_ms = self.passed_ms.saturating_add(by_ms);
    }
}
