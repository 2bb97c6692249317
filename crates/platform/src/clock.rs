//! The clock of a node.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::clock_control::Controlled;
use crate::sleeper::Sleeper;

/// A wall clock with a monotonic clock beside it. Code that needs the time of day, or waits for a date that a user has set, is given
/// one, so that tests and simulations can set it.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    /// Read directly: isolates ask for the time in every invocation.
    System,
    /// Milliseconds since the Unix epoch.
    Given(Arc<dyn Fn() -> u64 + Send + Sync>),
    /// The machine's time, and what a test has advanced it by.
    Controlled(Arc<Controlled>),
}

impl fmt::Debug for Clock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Clock")
    }
}

impl Clock {
    /// The clock of the machine.
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// A clock whose wall time `now_unix_ms` reads, in milliseconds since the Unix epoch. Its monotonic clock is the machine's.
    pub fn new(now_unix_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Source::Given(Arc::new(now_unix_ms)))
    }

    pub(crate) fn controlled(controlled: Arc<Controlled>) -> Self {
        Self(Source::Controlled(controlled))
    }

    /// The time since the Unix epoch, with the resolution of the clock; zero before the epoch.
    pub fn since_unix_epoch(&self) -> Duration {
        match &self.0 {
            Source::System => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            Source::Given(now_unix_ms) => Duration::from_millis(now_unix_ms()),
            Source::Controlled(controlled) => controlled.since_unix_epoch(),
        }
    }

    /// The time as files have it.
    pub fn now(&self) -> SystemTime {
        UNIX_EPOCH + self.since_unix_epoch()
    }

    /// Microseconds since the Unix epoch, as fine as the clock is.
    pub fn now_unix_us(&self) -> u64 {
        self.since_unix_epoch().as_micros() as u64
    }

    /// Milliseconds since the Unix epoch.
    pub fn now_unix_ms(&self) -> u64 {
        match &self.0 {
            Source::Given(now_unix_ms) => now_unix_ms(),
            _ => self.since_unix_epoch().as_millis() as u64,
        }
    }

    /// The monotonic clock. Setting the wall clock does not change it; a test that advances the node's time advances both.
    pub fn instant(&self) -> Instant {
        match &self.0 {
            Source::System | Source::Given(_) => Instant::now(),
            Source::Controlled(controlled) => controlled.instant(),
        }
    }

    /// Both clocks at one moment: the monotonic one, and the time since the Unix epoch.
    pub fn moment(&self) -> (Instant, Duration) {
        match &self.0 {
            Source::System | Source::Given(_) => (Instant::now(), self.since_unix_epoch()),
            Source::Controlled(controlled) => controlled.moment(),
        }
    }

    /// A task that waits for due times of this clock.
    pub fn sleeper(&self) -> Sleeper {
        Sleeper::new(match &self.0 {
            Source::System | Source::Given(_) => None,
            Source::Controlled(controlled) => Some(controlled.clone()),
        })
    }

    /// True if a schedule fires that was due `late` ago: always, except by the clock of a test. There a schedule fires only if the test
    /// has advanced the clock over its due time.
    pub fn fires(&self, late: Duration) -> bool {
        match &self.0 {
            Source::System | Source::Given(_) => true,
            Source::Controlled(controlled) => controlled.was_advanced_over(late),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_clock_has_one_time_in_every_unit() {
        let clock = Clock::new(|| 1_800_000_000_123);
        assert_eq!(clock.now_unix_ms(), 1_800_000_000_123);
        assert_eq!(clock.now_unix_us(), 1_800_000_000_123_000);
        assert_eq!(clock.now(), UNIX_EPOCH + Duration::from_millis(1_800_000_000_123));
    }
}
