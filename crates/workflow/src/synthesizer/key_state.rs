//! The state of one key, under any of the conditions.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::collect::{All, Count};
use super::rate::{Above, Below};
use super::rule::{Kind, Level, Rule, float};
use super::silence::Silence;
use super::step::{Arrival, Happening, Outcome};
use super::window::{Grid, Window};

/// Memory of a time that is stored without its event, including spare capacity for another time.
const TIME_BYTES: usize = 2 * size_of::<i64>();

/// The state of one key. Times are in milliseconds of the caller's clock. After a restart they may be negative.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum KeyState {
    Count(Count),
    Window(Window),
    Above(Above),
    Below(Below),
    Silence(Silence),
    All(All),
    /// True if a threshold has fired and its value has not returned behind the reset level since then.
    Threshold(bool),
}

impl KeyState {
    /// The state of a key before its first event, or of all events at the start. `None` for conditions without a
    /// state.
    pub(super) fn new(rule: &Rule, grid: &Grid, now: i64) -> Option<Self> {
        Some(match &rule.kind {
            Kind::Count { .. } => Self::Count(Count::default()),
            Kind::Window { .. } => Self::Window(Window::new(grid, now)),
            Kind::RateAbove { .. } => Self::Above(Above::default()),
            Kind::RateBelow { .. } => Self::Below(Below::new(now)),
            Kind::Silence { .. } => Self::Silence(Silence::new(now)),
            Kind::All { sources } => Self::All(All::new(*sources)),
            Kind::Threshold { .. } => Self::Threshold(false),
            Kind::Queue { .. } => return None,
        })
    }

    /// Counts an event. The caller has already [passed](Self::pass) everything that was due before it.
    pub(super) fn arrive(&mut self, rule: &Rule, arrival: &Arrival<'_>) -> Outcome {
        match (self, &rule.kind) {
            (Self::Count(cell), Kind::Count { events }) => cell.arrive(*events, arrival),
            (Self::Window(cell), Kind::Window { .. }) => cell.arrive(arrival),
            (Self::Above(cell), Kind::RateAbove { above, per_ms }) => cell.arrive(*above, *per_ms, arrival),
            (Self::Below(cell), Kind::RateBelow { below, per_ms }) => cell.arrive(*below, *per_ms, arrival),
            (Self::Silence(cell), Kind::Silence { .. }) => cell.arrive(arrival),
            (Self::All(cell), Kind::All { .. }) => cell.arrive(arrival),
            (Self::Threshold(past), Kind::Threshold { level, .. }) => cross(past, level, arrival),
            _ => Outcome::default(),
        }
    }

    /// The time of the next [`pass`](Self::pass), if no event arrives before.
    pub(super) fn due(&self, rule: &Rule, grid: &Grid) -> Option<i64> {
        match (self, &rule.kind) {
            (Self::Count(cell), _) => cell.due(rule.within_ms?),
            (Self::All(cell), _) => cell.due(rule.within_ms?),
            (Self::Window(cell), Kind::Window { empty, .. }) => cell.due(grid, *empty),
            (Self::Below(cell), Kind::RateBelow { below, per_ms }) => cell.due(*below, *per_ms),
            (Self::Silence(cell), Kind::Silence { for_ms }) => cell.due(*for_ms),
            _ => None,
        }
    }

    /// Performs the step that is due at `due`, which is not after `now`. Afterwards [`due`](Self::due) is later.
    pub(super) fn pass(&mut self, rule: &Rule, grid: &Grid, due: i64, now: i64) -> Outcome {
        match (self, &rule.kind) {
            (Self::Count(cell), _) => cell.pass(rule.within_ms, due),
            (Self::All(cell), _) => cell.pass(rule.within_ms, due),
            (Self::Window(cell), Kind::Window { of_ms, empty, .. }) => {
                cell.pass(grid, *of_ms, *empty, due, now)
            }
            (Self::Below(cell), Kind::RateBelow { below, per_ms }) => cell.pass(*below, *per_ms, due),
            (Self::Silence(cell), Kind::Silence { for_ms }) => cell.pass(*for_ms, due),
            _ => Outcome::default(),
        }
    }

    /// True if this state can be dropped without effect: the next event would create an equal one.
    pub(super) fn is_blank(&self, rule: &Rule, now: i64) -> bool {
        let keyed = rule.key.is_some();
        match (self, &rule.kind) {
            (Self::Count(cell), _) => cell.held() == 0,
            (Self::All(cell), _) => cell.held() == 0,
            (Self::Window(cell), Kind::Window { empty, .. }) => !empty && cell.held() == 0,
            (Self::Above(cell), Kind::RateAbove { per_ms, .. }) => cell.is_over(*per_ms, now),
            (Self::Below(cell), Kind::RateBelow { below, .. }) => keyed && *below == 1 && !cell.is_armed(),
            (Self::Silence(cell), _) => keyed && !cell.is_armed(),
            (Self::Threshold(past), _) => !past,
            _ => true,
        }
    }

    /// The number of stored events.
    pub(super) fn events(&self) -> usize {
        match self {
            Self::Count(cell) => cell.held(),
            Self::Window(cell) => cell.held(),
            Self::All(cell) => cell.held(),
            Self::Silence(cell) => cell.held(),
            Self::Above(_) | Self::Below(_) | Self::Threshold(_) => 0,
        }
    }

    /// The number of times that are stored without their events.
    pub(super) fn times(&self) -> usize {
        match self {
            Self::Above(cell) => cell.held(),
            Self::Below(cell) => cell.held(),
            _ => 0,
        }
    }

    /// The memory of the stored events and times, without the state itself, in bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Count(cell) => cell.bytes(),
            Self::Window(cell) => cell.bytes(),
            Self::All(cell) => cell.bytes(),
            Self::Silence(cell) => cell.bytes(),
            Self::Above(_) | Self::Below(_) => self.times() * TIME_BYTES,
            Self::Threshold(_) => 0,
        }
    }

    /// Drops the oldest event, or the oldest stored time. Returns the number of events dropped, or `None` if nothing
    /// is stored.
    pub(super) fn let_go(&mut self) -> Option<u64> {
        match self {
            Self::Count(cell) => cell.let_go().then_some(1),
            Self::Window(cell) => cell.let_go().then_some(1),
            Self::All(cell) => cell.let_go().then_some(1),
            Self::Silence(cell) => cell.let_go().then_some(1),
            Self::Above(cell) => cell.let_go().then_some(0),
            Self::Below(cell) => cell.let_go().then_some(0),
            Self::Threshold(_) => None,
        }
    }

    /// True if this state belongs to the rule's condition.
    pub(super) fn fits(&self, rule: &Rule) -> bool {
        match (self, &rule.kind) {
            (Self::Count(cell), Kind::Count { events }) => cell.held() < *events,
            (Self::All(cell), Kind::All { sources }) => cell.fits(*sources),
            (Self::Above(cell), Kind::RateAbove { above, .. }) => cell.held() <= above.saturating_add(1),
            (Self::Below(cell), Kind::RateBelow { below, .. }) => cell.held() <= *below,
            (Self::Window(_), Kind::Window { .. })
            | (Self::Silence(_), Kind::Silence { .. })
            | (Self::Threshold(_), Kind::Threshold { .. }) => true,
            _ => false,
        }
    }

    /// Aligns a window with the rule's grid, which may differ from the grid that the state was stored with.
    pub(super) fn align(&mut self, grid: &Grid) {
        if let Self::Window(cell) = self {
            cell.align(grid);
        }
    }

    /// Moves all times by `by_ms` milliseconds.
    pub(super) fn shift(&mut self, by_ms: i64) {
        match self {
            Self::Count(cell) => cell.shift(by_ms),
            Self::Window(cell) => cell.shift(by_ms),
            Self::Above(cell) => cell.shift(by_ms),
            Self::Below(cell) => cell.shift(by_ms),
            Self::Silence(cell) => cell.shift(by_ms),
            Self::All(cell) => cell.shift(by_ms),
            Self::Threshold(_) => {}
        }
    }
}

/// The step of a threshold. `past`: the threshold has fired and its value has not returned since then.
fn cross(past: &mut bool, level: &Level, arrival: &Arrival<'_>) -> Outcome {
    let Some(number) = &arrival.value else {
        return Outcome::default();
    };
    let (value, fires, back) = (float(number), float(&level.fires), float(&level.back));
    let (beyond, returned) = match level.rising {
        true => (value > fires, value <= back),
        false => (value < fires, value >= back),
    };
    if *past {
        *past = !returned;
        return Outcome::default();
    }
    *past = beyond;
    let (fires, back) = if level.rising { ("above", "below") } else { ("below", "above") };
    let happening = beyond.then(|| Happening {
        at: arrival.now,
        events: vec![Arc::clone(arrival.event)],
        dropped: 0,
        facts: json!({ "kind": "threshold", "value": number, fires: level.fires, back: level.back }),
    });
    Outcome { happening, lost: 0 }
}
