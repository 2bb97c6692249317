//! Idle instances of functions: of those that reuse them as they are, and of those whose instances are reset.
//!
//! Taken from two papers: an instance that has answered goes back to a cache of its function, which has a maximum
//! (Photons@Graal, cached isolates); and it is worth keeping while the time between two invocations is below that of start
//! and execution (DIFFUSE). One instance is kept in any case: a function with `reuse` relies on its state. Under pressure
//! the least recently used instances of all functions are dropped first.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Maximum number of invocations of an instance, which is then replaced. Bounds the memory that it leaks.
const MAX_USES: u32 = 10_000;
/// The weight of the latest figure in a moving average.
const WEIGHT: f64 = 0.125;

/// Isolation of a function's invocations: they share instances or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// A new instance for each invocation.
    #[default]
    Fresh,
    /// An instance that has answered may have the next invocation, with all that it has in memory.
    Reuse {
        /// The maximum of idle instances.
        max: usize,
    },
}

/// An instance between two invocations.
struct Kept<I> {
    instance: I,
    since: Instant,
    uses: u32,
    /// The thread of its last invocation, whose processor has its memory in the caches.
    thread: ThreadId,
}

/// An instance that was kept, and its number of invocations so far.
pub(crate) struct Taken<I> {
    pub instance: I,
    pub uses: u32,
}

/// The idle instances of one function.
pub(crate) struct Warm<I> {
    max: usize,
    all: Arc<WarmPool<I>>,
    state: Mutex<State<I>>,
}

struct State<I> {
    /// The one used last is the last one: its pages are in the caches.
    idle: Vec<Kept<I>>,
    rate: Rate,
}

/// The rate of invocations and their duration: moving averages in seconds.
#[derive(Debug, Default)]
struct Rate {
    last: Option<Instant>,
    between_s: Option<f64>,
    busy_s: f64,
}

/// The idle instances of all functions. `I` is an instance.
pub(crate) struct WarmPool<I> {
    max: usize,
    max_idle: Duration,
    count: AtomicUsize,
    functions: Mutex<Vec<Weak<Warm<I>>>>,
}

impl<I> WarmPool<I> {
    /// A pool of at most `max` instances, which are dropped after `max_idle` without an invocation.
    pub fn new(max: usize, max_idle: Duration) -> Arc<Self> {
        Arc::new(Self { max, max_idle, count: AtomicUsize::new(0), functions: Mutex::default() })
    }

    /// The cache of one function, with at most `max` instances.
    pub fn function(self: &Arc<Self>, max: usize) -> Arc<Warm<I>> {
        let state = Mutex::new(State { idle: Vec::new(), rate: Rate::default() });
        let warm = Arc::new(Warm { max, all: self.clone(), state });
        let mut functions = self.functions.lock();
        functions.retain(|function| function.strong_count() > 0);
        functions.push(Arc::downgrade(&warm));
        warm
    }

    /// The number of idle instances.
    pub fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Drops the instances that were idle for too long.
    pub fn tidy(&self, now: Instant) {
        self.drop_while(|since| now.saturating_duration_since(since) >= self.max_idle, usize::MAX);
    }

    /// Drops up to `count` instances, the least recently used first. Returns how many were dropped.
    pub fn evict(&self, count: usize) -> usize {
        self.drop_while(|_| true, count)
    }

    fn drop_while(&self, is_dropped: impl Fn(Instant) -> bool, max: usize) -> usize {
        let functions: Vec<Arc<Warm<I>>> = self.functions.lock().iter().filter_map(Weak::upgrade).collect();
        let mut dropped = 0;
        while dropped < max {
            let oldest = functions.iter().filter_map(|warm| Some((warm.oldest()?, warm)));
            let Some((since, warm)) = oldest.min_by_key(|(since, _)| *since) else { break };
            if !is_dropped(since) {
                break;
            }
            dropped += usize::from(warm.drop_oldest());
        }
        dropped
    }
}

impl<I> Warm<I> {
    /// Takes an idle instance, if there is one, for an invocation that begins now: the one that this thread used last, or
    /// else the one that was used last.
    pub fn take(&self, now: Instant) -> Option<Taken<I>> {
        let mut state = self.state.lock();
        state.rate.arrived(now);
        let here = thread_id();
        let own = state.idle.iter().rposition(|kept| kept.thread == here);
        let at = own.or_else(|| state.idle.len().checked_sub(1))?;
        let kept = state.idle.remove(at);
        drop(state);
        self.all.count.fetch_sub(1, Relaxed);
        Some(Taken { instance: kept.instance, uses: kept.uses })
    }

    /// Keeps an instance for another invocation. The last one took `busy`, its start included.
    pub fn give_back(&self, instance: I, uses: u32, busy: Duration, now: Instant) {
        let uses = uses + 1;
        let mut state = self.state.lock();
        state.rate.took(busy);
        if uses >= MAX_USES || state.idle.len() >= state.rate.needed_instances().min(self.max) {
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
        state.idle.push(Kept { instance, since: now, uses, thread: thread_id() });
    }

    /// True if the next invocation is expected before an idle instance would be dropped.
    pub fn is_frequent(&self) -> bool {
        let between_s = self.state.lock().rate.between_s;
        between_s.is_some_and(|between_s| between_s < self.all.max_idle.as_secs_f64())
    }

    /// Looks at each idle instance.
    pub fn each<R>(&self, look: impl FnMut(&I) -> R) -> Vec<R> {
        self.state.lock().idle.iter().map(|kept| &kept.instance).map(look).collect()
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

impl<I> Drop for Warm<I> {
    fn drop(&mut self) {
        self.all.count.fetch_sub(self.state.get_mut().idle.len(), Relaxed);
    }
}

impl Rate {
    fn arrived(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let between = now.saturating_duration_since(last).as_secs_f64();
            self.between_s = Some(average(self.between_s, between));
        }
    }

    fn took(&mut self, busy: Duration) {
        self.busy_s = average((self.busy_s > 0.0).then_some(self.busy_s), busy.as_secs_f64());
    }

    /// The number of instances that are enough at this rate nearly always: at least one. The mean of those that are busy
    /// (Little's law), and twice its root, since arrivals come in bursts (the square-root staffing of Halfin and Whitt, 1981).
    fn needed_instances(&self) -> usize {
        match self.between_s {
            Some(between) if between > 0.0 => {
                let busy = self.busy_s / between;
                // The conversion ends at the largest.
                (busy + 2.0 * busy.sqrt()).ceil().max(1.0) as usize
            }
            Some(_) => usize::MAX,
            None => 1,
        }
    }
}

/// Tells threads apart, in a few nanoseconds.
pub(crate) fn thread_id() -> ThreadId {
    thread_local! {
        static HERE: ThreadId = std::thread::current().id();
    }
    HERE.with(|here| *here)
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
        assert_eq!(Rate::default().needed_instances(), 1);
        assert_eq!(rate(1000, 10).needed_instances(), 1);
        assert_eq!(rate(100, 10).needed_instances(), 1);
        assert_eq!(rate(100, 50).needed_instances(), 2);
        assert_eq!(rate(10, 100).needed_instances(), 17);
        assert_eq!(rate(0, 1).needed_instances(), usize::MAX);
    }

    #[test]
    fn the_rate_follows_what_happens() {
        let mut rate = rate(10, 100);
        let now = rate.last.unwrap();
        for number in 1..100 {
            rate.arrived(now + Duration::from_secs(number));
            rate.took(Duration::from_millis(100));
        }
        assert_eq!(rate.needed_instances(), 1);
    }
}
