//! Instances that are kept for the next invocation of their function, where the function wants that.
//!
//! Taken from two papers: an instance that has answered goes back to a cache of its function, which has a maximum
//! (Photons@Graal, cached isolates); and it is worth keeping while the time between two invocations is below that of start
//! and execution (DIFFUSE). One alone is kept in any case: whoever asks for `reuse` wants its state. Under pressure the
//! least recently used go first, whosever they are.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::busy::Busy;
use crate::component::WarmComponent;
use crate::guest_memory::Reservation;
use crate::js::WarmJs;

/// After so many invocations an instance is replaced: what it leaks by then is little.
const MAX_USES: u32 = 10_000;
/// An instance that was not used for so long goes.
const MAX_IDLE: Duration = Duration::from_secs(300);
/// The weight of the latest figure in a moving average.
const WEIGHT: f64 = 0.125;

/// How instances of a function follow one another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// A new one for each invocation.
    #[default]
    Fresh,
    /// One that has answered may have the next invocation, with all that it has in memory.
    Reuse {
        /// How many may be kept.
        max: usize,
    },
}

/// What an invocation is given to run in.
pub(crate) struct Place<I> {
    /// An instance that has waited for it; a new one is made without.
    pub instance: Option<Box<I>>,
    /// The memory of a new one; one that has waited has its own.
    pub reservation: Reservation,
    /// Whether the instance is given back if it may have another invocation.
    pub keep: bool,
    /// Its processor time, and the turns of its function.
    pub busy: Arc<Busy>,
}

/// An instance between two invocations.
pub(crate) enum Instance {
    Component(Box<WarmComponent>),
    JavaScript(Box<WarmJs>),
}

/// What is kept of it.
struct Kept {
    instance: Instance,
    since: Instant,
    uses: u32,
}

/// An instance that was kept, and how often it was used.
pub(crate) struct Taken {
    pub instance: Instance,
    pub uses: u32,
}

/// The instances of one function that wait.
pub(crate) struct Warm {
    max: usize,
    all: Arc<WarmPool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The one used last is the last one: its pages are in the caches.
    idle: Vec<Kept>,
    rate: Rate,
}

/// How often invocations come, and how long they take.
#[derive(Debug, Default)]
struct Rate {
    last: Option<Instant>,
    between: Option<f64>,
    busy: f64,
}

/// The instances of all functions that wait.
#[derive(Default)]
pub(crate) struct WarmPool {
    max: usize,
    count: AtomicUsize,
    functions: Mutex<Vec<Weak<Warm>>>,
}

impl WarmPool {
    /// For at most `max` instances.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, ..Self::default() })
    }

    /// A cache for one function.
    pub fn function(self: &Arc<Self>, max: usize) -> Arc<Warm> {
        let warm = Arc::new(Warm { max, all: self.clone(), state: Mutex::default() });
        let mut functions = self.functions.lock();
        functions.retain(|function| function.strong_count() > 0);
        functions.push(Arc::downgrade(&warm));
        warm
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Lets go of those that were not used for long.
    pub fn tidy(&self, now: Instant) {
        self.drop_while(|since| now.saturating_duration_since(since) >= MAX_IDLE, usize::MAX);
    }

    /// Lets go of up to `count`, the least recently used first; says how many went.
    pub fn evict(&self, count: usize) -> usize {
        self.drop_while(|_| true, count)
    }

    fn drop_while(&self, goes: impl Fn(Instant) -> bool, most: usize) -> usize {
        let functions: Vec<Arc<Warm>> = self.functions.lock().iter().filter_map(Weak::upgrade).collect();
        let mut dropped = 0;
        while dropped < most {
            let oldest = functions.iter().filter_map(|warm| Some((warm.oldest()?, warm)));
            let Some((since, warm)) = oldest.min_by_key(|(since, _)| *since) else { break };
            if !goes(since) {
                break;
            }
            dropped += usize::from(warm.drop_oldest());
        }
        dropped
    }
}

impl Warm {
    /// An invocation begins: gives it the instance that was used last, if one waits.
    pub fn take(&self, now: Instant) -> Option<Taken> {
        let mut state = self.state.lock();
        state.rate.arrived(now);
        let kept = state.idle.pop()?;
        drop(state);
        self.all.count.fetch_sub(1, Relaxed);
        Some(Taken { instance: kept.instance, uses: kept.uses })
    }

    /// An instance has answered after `busy`, its start included, and may have another invocation.
    pub fn give_back(&self, instance: Instance, uses: u32, busy: Duration, now: Instant) {
        let uses = uses + 1;
        let mut state = self.state.lock();
        state.rate.took(busy);
        if uses >= MAX_USES || state.idle.len() >= state.rate.wanted().min(self.max) {
            return;
        }
        if self.all.count.fetch_add(1, Relaxed) >= self.all.max {
            drop(state);
            // Room for this one, which was used last.
            if self.all.evict(1) == 0 {
                self.all.count.fetch_sub(1, Relaxed);
                return;
            }
            state = self.state.lock();
        }
        state.idle.push(Kept { instance, since: now, uses });
    }

    fn oldest(&self) -> Option<Instant> {
        self.state.lock().idle.first().map(|kept| kept.since)
    }

    fn drop_oldest(&self) -> bool {
        let mut state = self.state.lock();
        if state.idle.is_empty() {
            return false;
        }
        let kept = state.idle.remove(0);
        drop(state);
        self.all.count.fetch_sub(1, Relaxed);
        drop(kept);
        true
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        self.all.count.fetch_sub(self.state.get_mut().idle.len(), Relaxed);
    }
}

impl Rate {
    fn arrived(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let between = now.saturating_duration_since(last).as_secs_f64();
            self.between = Some(average(self.between, between));
        }
    }

    fn took(&mut self, busy: Duration) {
        self.busy = average((self.busy > 0.0).then_some(self.busy), busy.as_secs_f64());
    }

    /// How many instances have something to do at this rate: at least one.
    fn wanted(&self) -> usize {
        match self.between {
            // Little's law; the conversion ends at the largest.
            Some(between) if between > 0.0 => (self.busy / between).ceil().max(1.0) as usize,
            Some(_) => usize::MAX,
            None => 1,
        }
    }
}

fn average(before: Option<f64>, latest: f64) -> f64 {
    before.map_or(latest, |before| before + WEIGHT * (latest - before))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(between_ms: u64, busy_ms: u64) -> Rate {
        let (mut rate, start) = (Rate::default(), Instant::now());
        for number in 0..100 {
            rate.arrived(start + Duration::from_millis(between_ms * number));
            rate.took(Duration::from_millis(busy_ms));
        }
        rate
    }

    #[test]
    fn as_many_are_kept_as_have_something_to_do() {
        assert_eq!(Rate::default().wanted(), 1);
        assert_eq!(rate(100, 10).wanted(), 1);
        assert_eq!(rate(10, 100).wanted(), 10);
        assert_eq!(rate(10, 101).wanted(), 11);
        assert_eq!(rate(0, 1).wanted(), usize::MAX);
    }

    #[test]
    fn the_rate_follows_what_happens() {
        let mut rate = rate(10, 100);
        let now = rate.last.unwrap();
        for number in 1..100 {
            rate.arrived(now + Duration::from_secs(number));
            rate.took(Duration::from_millis(100));
        }
        assert_eq!(rate.wanted(), 1);
    }
}
