//! What the node has measured of itself, what has happened on it, and what somebody should change.
//!
//! The [`sampler`] looks at the node each 5 seconds. It puts a [`Sample`] into the [`ring`]s, which are stored each 5 minutes
//! ([`stored_samples`]), turns [`changes`] into [`events`], which are stored each 10 seconds ([`stored_events`]), and remembers since when
//! there are [`warnings`].

mod changes;
mod events;
mod facts;
mod failures;
mod machine;
mod memory;
mod ring;
mod sample;
mod sampler;
mod stored_events;
mod stored_samples;
mod warnings;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use edgefaas_platform::Clock;
use edgefaas_state::store::{CommitError, Store, StoreError};
use parking_lot::Mutex;

pub use self::events::{Event, Events, Happened};
pub(crate) use self::facts::facts;
pub use self::ring::Step;
pub use self::sample::Sample;
pub(crate) use self::sampler::run;
pub use self::warnings::{Facts, Severity, Warning};

use self::changes::Seen;
use self::failures::{Counted, RecentFailures};
use self::memory::WarningMemory;
use self::ring::Rings;
use self::stored_events::StoredEvents;
use self::stored_samples::{Changes, StoredSamples};

/// The history of the node.
pub struct History {
    /// The last events.
    pub events: Events,
    state: Mutex<State>,
    /// Locked by the sampler alone.
    stored: tokio::sync::Mutex<StoredSamples>,
    stored_events: tokio::sync::Mutex<StoredEvents>,
}

struct State {
    rings: Rings,
    recent: RecentFailures,
    warned: WarningMemory,
    seen: Seen,
    temperature_millicelsius: Option<i32>,
}

impl History {
    /// The history with its stored samples and events. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(store: Arc<Store>, clock: Clock) -> Result<Self, StoreError> {
        let (stored, rings) = StoredSamples::load(store.clone())?;
        let (stored_events, events) = StoredEvents::load(store)?;
        let state = State {
            rings,
            recent: RecentFailures::default(),
            warned: WarningMemory::default(),
            seen: Seen::default(),
            temperature_millicelsius: None,
        };
        Ok(Self {
            events: Events::restored(clock, events),
            state: Mutex::new(state),
            stored: tokio::sync::Mutex::new(stored),
            stored_events: tokio::sync::Mutex::new(stored_events),
        })
    }

    /// Kept samples after a time, oldest first.
    pub fn samples(&self, step: Step, after_unix_ms: u64) -> Vec<Sample> {
        self.state.lock().rings.after(step, after_unix_ms).copied().collect()
    }

    /// The warnings for these facts, the worst first, each with the time since which the node has it, in milliseconds since the Unix
    /// epoch.
    pub fn warnings(&self, facts: &Facts) -> Vec<(Warning, u64)> {
        let state = self.state.lock();
        let warnings = warnings::warnings(facts, &state.recent);
        let since = |warning: Warning| {
            let since = state.warned.since(&warning).unwrap_or(facts.now_unix_ms);
            (warning, since)
        };
        warnings.into_iter().map(since).collect()
    }

    /// Temperature of the board at the last look, in millidegrees Celsius; `None` if it does not tell.
    pub fn temperature_millicelsius(&self) -> Option<i32> {
        self.state.lock().temperature_millicelsius
    }

    /// Adds a sample; returns the coarse steps that have ended and are to be stored.
    fn add(&self, sample: Sample) -> Vec<u64> {
        self.state.lock().rings.push(sample)
    }

    /// Notes the node as it is: adds events of what has changed, and of warnings that began or are over.
    fn note(&self, facts: &Facts, seen: Seen, now: Instant) {
        let happened = {
            let mut state = self.state.lock();
            state.temperature_millicelsius = facts.temperature_millicelsius;
            let State { recent, warned, seen: before, .. } = &mut *state;
            let counted = |name: &Arc<str>, counts, min_invocations| Counted {
                name: name.clone(),
                counts,
                min_invocations,
            };
            let functions =
                facts.functions.iter().map(|one| counted(&one.name, one.counts, warnings::MIN_INVOCATIONS));
            let workflows =
                facts.workflows.iter().map(|one| counted(&one.name, one.counts, warnings::MIN_INSTANCES));
            recent.see(now, functions.chain(workflows));
            let mut happened = changes::changes(before, &seen);
            *before = seen;
            happened.extend(warned.see(facts.now_unix_ms, warnings::warnings(facts, recent)));
            happened
        };
        happened.into_iter().for_each(|happened| self.events.add(happened));
    }

    /// Takes the apps as they are at the node's start: they are no events.
    fn begin_apps(&self, apps: BTreeMap<String, String>) {
        self.state.lock().seen.apps = apps;
    }

    /// Takes the node as it is at its start: its dead letters are no events. Members and bridges that have connected meanwhile are.
    fn begin(&self, facts: &Facts, dead: u64) {
        let mut state = self.state.lock();
        state.temperature_millicelsius = facts.temperature_millicelsius;
        state.seen.dead = dead;
    }

    /// Adds events of deploys and removals.
    fn note_apps(&self, apps: BTreeMap<String, String>) {
        let happened = {
            let mut state = self.state.lock();
            let happened = changes::app_changes(&state.seen.apps, &apps);
            state.seen.apps = apps;
            happened
        };
        happened.into_iter().for_each(|happened| self.events.add(happened));
    }

    /// Stores the samples of coarse steps.
    async fn store(&self, periods: &[u64]) -> Result<(), CommitError> {
        let mut stored = self.stored.lock().await;
        let changes: Changes = stored.changes(&self.state.lock().rings, periods);
        stored.save(changes).await
    }

    /// Stores the events that are not stored yet.
    async fn store_events(&self) -> Result<(), CommitError> {
        let mut stored = self.stored_events.lock().await;
        let last = self.events.last().map(|event| event.number).unwrap_or_default();
        match stored.is_behind(last) {
            true => stored.save(self.events.kept(None)).await,
            false => Ok(()),
        }
    }

    /// Stores the samples of the coarse step that has not ended, and the last events.
    async fn store_rest(&self) -> Result<(), CommitError> {
        let open = self.state.lock().rings.open_period();
        if let Some(period) = open {
            self.store(&[period]).await?;
        }
        self.store_events().await
    }
}
