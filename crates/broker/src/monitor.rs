//! The queue monitor: figures of every topic filter that has subscribers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use crate::topic::TopicFilter;

/// The figures of one topic filter. Counters begin with its first subscription, and at 0 again after it had none.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueFigures {
    /// The filter; with `$share/GROUP/` in front if it is shared.
    pub filter: TopicFilter,
    /// Subscriptions with exactly this filter.
    pub subscribers: u64,
    /// Messages that matched it.
    pub messages_in: u64,
    /// Deliveries that were handed to a subscriber's connection.
    pub messages_out: u64,
    /// Deliveries that wait: for the subscriber to read, to acknowledge others first, or to come back.
    pub waiting: u64,
    /// Deliveries that were lost: no room, expired, larger than the subscriber takes.
    pub dropped: u64,
    /// Matching messages a second, over the last one to two seconds.
    pub rate_per_second: f64,
}

/// Figures under the filters that have subscribers.
#[derive(Debug)]
pub(crate) struct Monitor {
    filters: Mutex<HashMap<TopicFilter, Weak<Figures>>>,
    /// Figures of messages that wait although their subscription has ended.
    none: OnceLock<Arc<Figures>>,
    started: Instant,
}

/// Counters of one topic filter; a message that matches several filters of one client counts for one of them.
#[derive(Debug)]
pub(crate) struct Figures {
    filter: TopicFilter,
    subscribers: AtomicU64,
    messages_in: AtomicU64,
    messages_out: AtomicU64,
    /// Signed: a message may be counted out before it is counted in.
    waiting: AtomicI64,
    dropped: AtomicU64,
    rate: Rate,
}

/// Events in the current second and in the one before.
#[derive(Debug, Default)]
struct Rate {
    /// The second in the upper half, its events in the lower one.
    current: AtomicU64,
    before: AtomicU64,
}

impl Monitor {
    pub(crate) fn new() -> Monitor {
        Monitor { filters: Mutex::default(), none: OnceLock::new(), started: Instant::now() }
    }

    /// The figures of a filter, which live as long as a subscription holds them.
    pub(crate) fn figures(&self, filter: &TopicFilter) -> Arc<Figures> {
        let mut filters = self.filters.lock();
        if let Some(figures) = filters.get(filter).and_then(Weak::upgrade) {
            return figures;
        }
        let figures = Arc::new(Figures::new(filter));
        filters.insert(filter.clone(), Arc::downgrade(&figures));
        figures
    }

    /// Figures that no list shows.
    pub(crate) fn figures_of_none(&self) -> Arc<Figures> {
        self.none
            .get_or_init(|| Arc::new(Figures::new(&TopicFilter::new("#").expect("a valid filter"))))
            .clone()
    }

    /// A subscription has ended; with the last one of a filter its figures are dropped.
    pub(crate) fn unsubscribed(&self, figures: &Arc<Figures>) {
        if figures.subscribers.fetch_sub(1, Relaxed) == 1 {
            let mut filters = self.filters.lock();
            // Another thread may have added a subscription at this moment.
            if figures.subscribers.load(Relaxed) == 0 {
                filters.remove(&figures.filter);
            }
        }
    }

    /// The whole second now, since the start.
    pub(crate) fn second(&self, now: Instant) -> u32 {
        u32::try_from(now.saturating_duration_since(self.started).as_secs()).unwrap_or(u32::MAX)
    }

    /// All filters, in no particular order.
    pub(crate) fn all(&self, now: Instant) -> Vec<QueueFigures> {
        let filters: Vec<Arc<Figures>> = self.filters.lock().values().filter_map(Weak::upgrade).collect();
        filters.iter().map(|figures| self.snapshot(figures, now)).collect()
    }

    /// Figures of one filter; `None` if no subscription has this filter.
    pub(crate) fn one(&self, filter: &TopicFilter, now: Instant) -> Option<QueueFigures> {
        let figures = self.filters.lock().get(filter).and_then(Weak::upgrade)?;
        Some(self.snapshot(&figures, now))
    }

    fn snapshot(&self, figures: &Figures, now: Instant) -> QueueFigures {
        QueueFigures {
            filter: figures.filter.clone(),
            subscribers: figures.subscribers.load(Relaxed),
            messages_in: figures.messages_in.load(Relaxed),
            messages_out: figures.messages_out.load(Relaxed),
            waiting: u64::try_from(figures.waiting.load(Relaxed)).unwrap_or(0),
            dropped: figures.dropped.load(Relaxed),
            rate_per_second: figures.rate.per_second(now.saturating_duration_since(self.started)),
        }
    }
}

impl Figures {
    fn new(filter: &TopicFilter) -> Figures {
        Figures {
            filter: filter.clone(),
            subscribers: AtomicU64::new(0),
            messages_in: AtomicU64::new(0),
            messages_out: AtomicU64::new(0),
            waiting: AtomicI64::new(0),
            dropped: AtomicU64::new(0),
            rate: Rate::default(),
        }
    }

    pub(crate) fn subscribed(&self) {
        self.subscribers.fetch_add(1, Relaxed);
    }

    /// A message matched in this second.
    pub(crate) fn arrived(&self, second: u32) {
        self.messages_in.fetch_add(1, Relaxed);
        self.rate.count(second);
    }

    /// Deliveries wait.
    pub(crate) fn queued(&self, count: u64) {
        self.waiting.fetch_add(count as i64, Relaxed);
    }

    /// Waiting deliveries were written to their connections.
    pub(crate) fn sent(&self, count: u64) {
        self.waiting.fetch_sub(count as i64, Relaxed);
        self.messages_out.fetch_add(count, Relaxed);
    }

    /// Deliveries wait no longer, and are counted elsewhere.
    pub(crate) fn unqueued(&self, count: u64) {
        self.waiting.fetch_sub(count as i64, Relaxed);
    }

    /// Deliveries were lost.
    pub(crate) fn lost(&self, count: u64) {
        self.dropped.fetch_add(count, Relaxed);
    }
}

impl Rate {
    /// Two threads that both begin a second may lose a few events of it: good enough for a rate.
    fn count(&self, second: u32) {
        let current = self.current.load(Relaxed);
        if (current >> 32) as u32 == second {
            self.current.fetch_add(1, Relaxed);
            return;
        }
        let next = (u64::from(second) << 32) | 1;
        if self.current.compare_exchange(current, next, Relaxed, Relaxed).is_ok() {
            let follows = (current >> 32) + 1 == u64::from(second);
            self.before.store(if follows { current & 0xffff_ffff } else { 0 }, Relaxed);
        } else {
            self.current.fetch_add(1, Relaxed);
        }
    }

    /// The events of this second and, as far as it reaches into the last whole second, of the one before.
    fn per_second(&self, since_start: std::time::Duration) -> f64 {
        let (current, before) = (self.current.load(Relaxed), self.before.load(Relaxed));
        let (second, count) = (current >> 32, (current & 0xffff_ffff) as f64);
        let past = since_start.as_secs().saturating_sub(second);
        let fraction = f64::from(since_start.subsec_nanos()) / 1e9;
        match past {
            0 => before as f64 * (1.0 - fraction) + count,
            1 => count * (1.0 - fraction),
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_second() {
        let rate = Rate::default();
        (0..10).for_each(|_| rate.count(5));
        assert_eq!(rate.per_second(Duration::from_millis(5_000)), 10.0);
        assert_eq!(rate.per_second(Duration::from_millis(6_500)), 5.0);
        (0..4).for_each(|_| rate.count(6));
        assert_eq!(rate.per_second(Duration::from_millis(6_500)), 9.0);
        assert_eq!(rate.per_second(Duration::from_millis(9_000)), 0.0);
        rate.count(9);
        assert_eq!(rate.per_second(Duration::from_millis(9_000)), 1.0);
    }

    #[test]
    fn figures_live_as_long_as_their_subscriptions() {
        let monitor = Monitor::new();
        let filter = TopicFilter::new("a/+").expect("valid");
        let now = Instant::now();
        let figures = monitor.figures(&filter);
        figures.subscribed();
        figures.arrived(monitor.second(now));
        assert!(Arc::ptr_eq(&figures, &monitor.figures(&filter)));
        assert_eq!(monitor.one(&filter, now).map(|figures| figures.messages_in), Some(1));
        monitor.unsubscribed(&figures);
        assert_eq!((monitor.one(&filter, now), monitor.all(now)), (None, Vec::new()));
    }
}
