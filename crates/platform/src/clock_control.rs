//! A clock that a test advances.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use crate::clock::Clock;

/// Makes a clock, and is the only way to advance it. The clock follows the machine's time, except while it is [held](Self::hold).
#[derive(Debug)]
pub struct ClockControl(Arc<Controlled>);

/// A clock that stands still until this is dropped: it shows the times that it is [moved to](Self::move_to).
#[derive(Debug)]
pub struct Held<'a>(&'a Controlled);

/// The state of such a clock.
#[derive(Debug)]
pub(crate) struct Controlled {
    state: Mutex<State>,
    changes: watch::Sender<Change>,
}

#[derive(Debug)]
struct State {
    /// The time of both clocks at `flow`.
    instant: Instant,
    since_unix_epoch: Duration,
    flow: Flow,
    next_sleeper: u64,
    sleepers: HashMap<u64, Sleeping>,
}

#[derive(Debug, Clone, Copy)]
enum Flow {
    /// Time passes since this time of the machine.
    Since(Instant),
    /// Time stands still, since it was this.
    HeldAt(Instant),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sleeping {
    Awake,
    /// Until this time, if something is due at all.
    Until(Option<Instant>),
}

/// A change of the clock.
#[derive(Debug, Clone, Copy, Default)]
struct Change {
    /// Number of changes that wake all sleepers.
    wakes: u64,
}

/// Changes that a sleeper has not seen.
pub(crate) struct Changes {
    receiver: watch::Receiver<Change>,
    wakes: u64,
}

impl Changes {
    /// Waits for the next change; true if it wakes all sleepers.
    pub(crate) async fn woken(&mut self) -> bool {
        // The sender lives as long as the sleeper.
        let _ = self.receiver.changed().await;
        self.receiver.borrow_and_update().wakes != self.wakes
    }
}

impl ClockControl {
    /// A clock that shows the machine's time.
    pub fn new() -> Self {
        let now = Instant::now();
        let state = State {
            instant: now,
            since_unix_epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            flow: Flow::Since(now),
            next_sleeper: 0,
            sleepers: HashMap::new(),
        };
        let (changes, _) = watch::channel(Change::default());
        Self(Arc::new(Controlled { state: Mutex::new(state), changes }))
    }

    /// The clock.
    pub fn clock(&self) -> Clock {
        Clock::controlled(self.0.clone())
    }

    /// Stops the clock until the returned value is dropped. Then it goes on from the time that it shows.
    pub fn hold(&mut self) -> Held<'_> {
        let mut state = self.0.state();
        (state.instant, state.since_unix_epoch) = state.now();
        state.flow = Flow::HeldAt(state.instant);
        drop(state);
        self.0.change(false);
        Held(&self.0)
    }
}

impl Default for ClockControl {
    fn default() -> Self {
        Self::new()
    }
}

impl Held<'_> {
    /// The time that the monotonic clock shows.
    pub fn now(&self) -> Instant {
        self.0.instant()
    }

    /// The earliest time that a sleeper waits for.
    pub fn next_due(&self) -> Option<Instant> {
        let dues = |sleeping: &Sleeping| match sleeping {
            Sleeping::Until(due) => *due,
            Sleeping::Awake => None,
        };
        self.0.state().sleepers.values().filter_map(dues).min()
    }

    /// True if every sleeper sleeps, and none is due.
    pub fn is_quiet(&self) -> bool {
        let state = self.0.state();
        let now = state.instant;
        state.sleepers.values().all(|sleeping| match sleeping {
            Sleeping::Until(due) => due.is_none_or(|due| due > now),
            Sleeping::Awake => false,
        })
    }

    /// Moves the clock ahead to `to`, and wakes the sleepers that are due. Does nothing if the clock shows a later time.
    pub fn move_to(&self, to: Instant) {
        let mut state = self.0.state();
        let by = to.saturating_duration_since(state.instant);
        state.instant += by;
        state.since_unix_epoch = state.since_unix_epoch.saturating_add(by);
        drop(state);
        self.0.change(false);
    }

    /// Wakes all sleepers, so that each looks at what is due now.
    pub fn wake_all(&self) {
        self.0.change(true);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.state().flow = Flow::Since(Instant::now());
        self.0.change(false);
    }
}

impl State {
    fn now(&self) -> (Instant, Duration) {
        match self.flow {
            Flow::HeldAt(_) => (self.instant, self.since_unix_epoch),
            Flow::Since(since) => {
                let passed = since.elapsed();
                (self.instant + passed, self.since_unix_epoch.saturating_add(passed))
            }
        }
    }
}

impl Controlled {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, wakes_all: bool) {
        self.changes.send_modify(|change| change.wakes += u64::from(wakes_all));
    }

    pub(crate) fn moment(&self) -> (Instant, Duration) {
        self.state().now()
    }

    pub(crate) fn instant(&self) -> Instant {
        self.moment().0
    }

    pub(crate) fn since_unix_epoch(&self) -> Duration {
        self.moment().1
    }

    pub(crate) fn is_held(&self) -> bool {
        matches!(self.state().flow, Flow::HeldAt(_))
    }

    /// True if the clock is held, and has been moved since what is `late` was due.
    pub(crate) fn was_advanced_over(&self, late: Duration) -> bool {
        let state = self.state();
        match state.flow {
            Flow::HeldAt(began) => late < state.instant.saturating_duration_since(began),
            Flow::Since(_) => false,
        }
    }

    pub(crate) fn changes(&self) -> Changes {
        let receiver = self.changes.subscribe();
        let wakes = receiver.borrow().wakes;
        Changes { receiver, wakes }
    }

    /// The time until `due`, zero if it has passed.
    pub(crate) fn left_until(&self, due: Option<Instant>) -> Option<Duration> {
        Some(due?.saturating_duration_since(self.instant()))
    }

    pub(crate) fn add_sleeper(&self) -> u64 {
        let mut state = self.state();
        let id = state.next_sleeper;
        state.next_sleeper += 1;
        state.sleepers.insert(id, Sleeping::Awake);
        id
    }

    pub(crate) fn falls_asleep(&self, id: u64, due: Option<Instant>) {
        self.state().sleepers.insert(id, Sleeping::Until(due));
    }

    pub(crate) fn wakes(&self, id: u64) {
        self.state().sleepers.insert(id, Sleeping::Awake);
    }

    pub(crate) fn remove_sleeper(&self, id: u64) {
        self.state().sleepers.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn a_sleep_ends_when_the_clock_is_moved_to_its_due_time_and_not_before() {
        let mut control = ClockControl::new();
        let clock = control.clock();
        let (sleeper, idle) = (clock.sleeper(), clock.sleeper());
        let held = control.hold();
        assert!(!held.is_quiet(), "sleepers that do not sleep are at work");
        let began = clock.moment();
        let mut sleep = pin!(sleeper.sleep(Some(HOUR), Duration::MAX));
        let mut nothing = pin!(idle.sleep(None, Duration::MAX));
        assert!(
            sleep.as_mut().now_or_never().is_none()
                && nothing.as_mut().now_or_never().is_none()
                && held.is_quiet()
        );
        assert_eq!(held.next_due(), Some(began.0 + HOUR));

        held.move_to(began.0 + HOUR - Duration::from_nanos(1));
        assert!(sleep.as_mut().now_or_never().is_none() && held.is_quiet());
        held.move_to(began.0 + HOUR);
        assert!(!held.is_quiet());
        assert_eq!(sleep.as_mut().now_or_never(), Some(()));
        assert!(nothing.as_mut().now_or_never().is_none() && held.next_due().is_none());
        assert_eq!(clock.moment(), (began.0 + HOUR, began.1 + HOUR));
        held.move_to(began.0);
        assert_eq!(clock.instant(), began.0 + HOUR, "time does not go back");

        held.wake_all();
        assert_eq!(nothing.as_mut().now_or_never(), Some(()));
        drop(held);
        // It follows the machine again, from the time that it shows.
        let shown = clock.instant();
        assert!(shown >= began.0 + HOUR && shown < began.0 + HOUR * 2);
    }

    #[tokio::test]
    async fn a_clock_that_is_not_held_ends_sleeps_by_itself() {
        let control = ClockControl::new();
        let sleeper = control.clock().sleeper();
        sleeper.sleep(Some(Duration::from_millis(1)), Duration::MAX).await;
        sleeper.sleep(Some(HOUR), Duration::from_millis(1)).await;
        let system = Clock::system().sleeper();
        system.sleep(Some(Duration::from_millis(1)), HOUR).await;
        system.sleep(Some(HOUR), Duration::from_millis(1)).await;
    }

    #[test]
    fn a_schedule_fires_if_its_due_time_was_advanced_over() {
        let mut control = ClockControl::new();
        let clock = control.clock();
        assert!(!clock.fires(Duration::ZERO), "time that passes by itself fires nothing");
        let held = control.hold();
        assert!(!clock.fires(Duration::ZERO));
        held.move_to(held.now() + HOUR);
        assert!(clock.fires(Duration::ZERO) && clock.fires(HOUR - Duration::from_nanos(1)));
        assert!(!clock.fires(HOUR), "it was due before");
        drop(held);
        assert!(!clock.fires(Duration::ZERO));
        assert!(Clock::system().fires(HOUR) && Clock::new(|| 7).fires(HOUR));
    }
}
