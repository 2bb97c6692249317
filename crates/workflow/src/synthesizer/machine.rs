//! Counts events, keeps the keys within their limits, and fires when time has passed.

use std::sync::Arc;

use serde_json::{Value, json};

use super::error::SynthesisError;
use super::key_state::KeyState;
use super::keys::{Key, Keys};
use super::reading::Reading;
use super::rule::{Kind, Queue, RATE_EVENTS, Rule};
use super::state::State;
use super::step::{Arrival, Happening, Outcome};
use super::window::Grid;
use super::{Counts, Firing};

/// The maximum number of firings of one call. If more are due, [`Synthesizer::due_ms`] stays in the past.
const CALL_FIRINGS: usize = 256;
/// The maximum number of events of all keys together.
const ALL_EVENTS: usize = 100_000;
/// The maximum number of event times of all keys together.
const ALL_TIMES: usize = RATE_EVENTS + 1;

/// Counts events and fires when the condition of its rule is met.
///
/// It has no clock. Every call passes the time, in milliseconds of a clock that never goes back; a time before that
/// of the last call is replaced by the last one. The caller calls [`tick`](Self::tick) at [`due_ms`](Self::due_ms).
#[derive(Debug)]
pub struct Synthesizer {
    rule: Rule,
    grid: Grid,
    now: i64,
    keys: Keys,
    long_queue: bool,
    dropped: u64,
    evicted: u64,
}

impl Synthesizer {
    /// Starts at `now_ms`: the first window starts then, and so does the wait of a silence without a key.
    pub fn new(rule: Rule, now_ms: u64) -> Self {
        let now = millis(now_ms);
        let mut new = Self::bare(rule, now, now);
        new.begin();
        new
    }

    /// Counts an event that arrived at `now_ms`. `source` is the index of the filter of `all` that it matched; other
    /// conditions ignore it. Everything that was due before is processed first, and its firings are in the result.
    ///
    /// # Errors
    ///
    /// The event has no key, no value, or a filter that does not exist. Then it is not counted, and the state is
    /// unchanged.
    pub fn handle(
        &mut self,
        source: usize,
        event: &Arc<Value>,
        now_ms: u64,
    ) -> Result<Vec<Firing>, SynthesisError> {
        let reading = self.rule.read(event)?;
        self.count(source, event, reading, now_ms)
    }

    /// Its rule.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Counts an event like [`handle`](Self::handle), with the values that [`Rule::read`] computed. Evaluates no
    /// expression.
    ///
    /// # Errors
    ///
    /// The filter does not exist. Then the event is not counted.
    pub fn count(
        &mut self,
        source: usize,
        event: &Arc<Value>,
        reading: Reading,
        now_ms: u64,
    ) -> Result<Vec<Firing>, SynthesisError> {
        let Reading { key, value } = reading;
        if let Kind::All { sources } = self.rule.kind
            && source >= sources
        {
            return Err(SynthesisError::Source { source_index: source, sources });
        }
        let mut firings = self.tick(now_ms);
        self.sweep();
        let now = self.now;
        let id = match self.keys.id(&key) {
            Some(id) => {
                // The key may still be due, if this call reached its maximum number of firings.
                if let (Some(due), false) =
                    (self.keys.due_of(id), matches!(self.rule.kind, Kind::Window { .. }))
                    && due <= now
                {
                    firings.extend(self.pass(id, due));
                }
                self.keys.touch(id);
                self.keys.id(&key)
            }
            None => None,
        };
        let Some(id) = id.or_else(|| self.add(key)) else {
            return Ok(firings);
        };
        let arrival = Arrival { source, event, value, now };
        let (rule, grid) = (&self.rule, &self.grid);
        let outcome = self.keys.change(id, |cell, key| {
            let outcome = cell.arrive(rule, &arrival);
            (cell.due(rule, grid), (key.clone(), outcome))
        });
        firings.extend(self.finish(id, outcome));
        self.make_room();
        Ok(firings)
    }

    /// Sets the length of the queue of a `queue` rule at `now_ms`. Other rules ignore it.
    pub fn queue_length(&mut self, length: u64, now_ms: u64) -> Vec<Firing> {
        self.now = self.now.max(millis(now_ms));
        let Some((queue, longer_than)) = self.rule.queue() else {
            return Vec::new();
        };
        let (was_long, is_long) = (self.long_queue, length > longer_than);
        let (kind, name) = match queue {
            Queue::Function(name) => ("function", name),
            Queue::Filter(filter) => ("filter", filter),
        };
        let facts = json!({ "kind": "queue", kind: name, "length": length, "longer_than": longer_than });
        self.long_queue = is_long;
        match is_long && !was_long {
            true => vec![Firing { key: None, events: Vec::new(), dropped: 0, late_ms: 0, facts }],
            false => Vec::new(),
        }
    }

    /// The time of the next [`tick`](Self::tick), if no event arrives before.
    pub fn due_ms(&self) -> Option<u64> {
        self.keys.first_due().map(|(due, _)| u64::try_from(due).unwrap_or(0))
    }

    /// Processes everything that is due by `now_ms`, in order of time. Returns at most 256 firings. If more are due,
    /// [`due_ms`](Self::due_ms) is not after `now_ms`, and the next call returns them.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Firing> {
        self.now = self.now.max(millis(now_ms));
        let mut firings = Vec::new();
        while let Some((due, id)) = self.keys.first_due()
            && due <= self.now
            && firings.len() < CALL_FIRINGS
        {
            firings.extend(self.pass(id, due));
        }
        firings
    }

    /// Numbers of stored and dropped keys and events, for metrics.
    pub fn counts(&self) -> Counts {
        Counts {
            keys: self.keys.len(),
            events: self.keys.events(),
            dropped: self.dropped,
            evicted: self.evicted,
            bytes: self.bytes(),
        }
    }

    /// Estimated memory of the stored keys and events, in bytes. The estimate depends only on their values. The sum
    /// is kept up to date, so this call is cheap.
    pub fn bytes(&self) -> usize {
        self.keys.bytes()
    }

    /// Drops the least recently used keys until at most `max_bytes` bytes are stored. Of the last key, drops the
    /// oldest events (for a rate: their times). Without `key` there is only one key. Returns true if anything was
    /// dropped.
    pub fn trim(&mut self, max_bytes: usize) -> bool {
        let mut has_trimmed = false;
        while self.bytes() > max_bytes {
            let Some((id, _)) = self.keys.oldest() else { break };
            match self.keys.len() {
                1 if !self.let_go_oldest(id) => break,
                1 => {}
                _ => self.evict(id),
            }
            has_trimmed = true;
        }
        has_trimmed
    }

    /// The state at `now_ms`, for [`restore`](Self::restore). Copies every stored event.
    pub fn state(&self, now_ms: u64) -> State {
        let by_ms = self.now.max(millis(now_ms)).saturating_neg();
        let shifted = |(key, cell): (&Key, &KeyState)| {
            let mut cell = cell.clone();
            cell.shift(by_ms);
            (key.clone(), cell)
        };
        State {
            condition: self.rule.condition().to_owned(),
            origin_ms: self.grid.origin_ms.saturating_add(by_ms),
            keys: self.keys.by_use().map(shifted).collect(),
            long_queue: self.long_queue,
            dropped: self.dropped,
            evicted: self.evicted,
        }
    }

    /// Continues at `now_ms` from a stored state. Parts that do not fit the rule, because the rule has changed, are
    /// dropped. If the condition is another one, the synthesizer starts without state.
    pub fn restore(rule: Rule, state: State, now_ms: u64) -> Self {
        let now = millis(now_ms);
        if state.condition != rule.condition() {
            return Self::new(rule, now_ms);
        }
        let mut restored = Self::bare(rule, now.saturating_add(state.origin_ms), now);
        restored.long_queue = state.long_queue;
        (restored.dropped, restored.evicted) = (state.dropped, state.evicted);
        for (key, mut cell) in state.keys {
            let known = key.is_some() == restored.rule.key.is_some();
            if !known || !cell.fits(&restored.rule) || restored.keys.id(&key).is_some() {
                restored.dropped = restored.dropped.saturating_add(cell.events() as u64);
                continue;
            }
            cell.shift(now);
            cell.align(&restored.grid);
            let due = cell.due(&restored.rule, &restored.grid);
            let id = restored.keys.add(key, cell);
            restored.keys.change(id, |_, _| (due, ()));
        }
        restored.make_room();
        restored.begin();
        restored
    }

    fn bare(rule: Rule, origin_ms: i64, now: i64) -> Self {
        let every_ms = match rule.kind {
            Kind::Window { every_ms, .. } => every_ms,
            _ => 1,
        };
        let grid = Grid { origin_ms, every_ms };
        Self { rule, grid, now, keys: Keys::default(), long_queue: false, dropped: 0, evicted: 0 }
    }

    /// Without a key, some conditions also consider the time before the first event.
    fn begin(&mut self) {
        let without_events = match self.rule.kind {
            Kind::Window { empty, .. } => empty,
            Kind::RateBelow { .. } | Kind::Silence { .. } => true,
            _ => false,
        };
        if without_events && self.rule.key.is_none() && self.keys.id(&None).is_none() {
            self.add(None);
        }
    }

    /// Adds the state of a new key, if the condition needs one.
    fn add(&mut self, key: Key) -> Option<u64> {
        let cell = KeyState::new(&self.rule, &self.grid, self.now)?;
        let due = cell.due(&self.rule, &self.grid);
        let id = self.keys.add(key, cell);
        self.keys.change(id, |_, _| (due, ()));
        Some(id)
    }

    /// Processes the due step of a key.
    fn pass(&mut self, id: u64, due: i64) -> Option<Firing> {
        let (rule, grid, now) = (&self.rule, &self.grid, self.now);
        let outcome = self.keys.change(id, |cell, key| {
            let outcome = cell.pass(rule, grid, due, now);
            // The next time is always later, even with a damaged restored state.
            let next = cell.due(rule, grid).map(|next| next.max(due.saturating_add(1)));
            (next, (key.clone(), outcome))
        });
        self.finish(id, outcome)
    }

    /// Counts dropped events, removes a key without state, and returns the firing.
    fn finish(&mut self, id: u64, outcome: Option<(Key, Outcome)>) -> Option<Firing> {
        let (key, Outcome { happening, lost }) = outcome?;
        self.dropped = self.dropped.saturating_add(lost);
        if self.keys.cell(id).is_some_and(|cell| cell.is_blank(&self.rule, self.now)) {
            self.keys.remove(id);
        }
        let Happening { at, events, dropped, facts } = happening?;
        let late_ms = u64::try_from(self.now.saturating_sub(at)).unwrap_or(0);
        Some(Firing { key: key.map(|key| (*key).clone()), events, dropped, late_ms, facts })
    }

    /// Removes the least recently used keys that became blank with time. Checks two keys for each event, so that
    /// blank keys cannot accumulate.
    fn sweep(&mut self) {
        for _ in 0..2 {
            match self.keys.oldest() {
                Some((id, cell)) if self.rule.key.is_some() && cell.is_blank(&self.rule, self.now) => {
                    self.keys.remove(id);
                }
                _ => return,
            }
        }
    }

    /// Removes the least recently used keys until all limits are met. The last key stays.
    fn make_room(&mut self) {
        while self.keys.len() > self.rule.limit
            || (self.keys.len() > 1 && (self.keys.events() > ALL_EVENTS || self.keys.times() > ALL_TIMES))
        {
            let Some((id, _)) = self.keys.oldest() else {
                return;
            };
            self.evict(id);
        }
    }

    /// Removes a key with its state.
    fn evict(&mut self, id: u64) {
        let events = self.keys.remove(id).map_or(0, |cell| cell.events());
        self.dropped = self.dropped.saturating_add(events as u64);
        self.evicted = self.evicted.saturating_add(1);
    }

    /// Drops the oldest event of a key. Returns true if there was one.
    fn let_go_oldest(&mut self, id: u64) -> bool {
        let (rule, grid) = (&self.rule, &self.grid);
        let lost = self.keys.change(id, |cell, _| {
            let lost = cell.let_go();
            (cell.due(rule, grid), lost)
        });
        let Some(lost) = lost.flatten() else { return false };
        self.dropped = self.dropped.saturating_add(lost);
        if self.keys.cell(id).is_some_and(|cell| cell.is_blank(&self.rule, self.now)) {
            self.keys.remove(id);
        }
        true
    }
}

/// Converts a time. Later times become the maximum, which leaves room to add durations.
fn millis(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).min(i64::MAX / 2)
}
