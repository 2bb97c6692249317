//! The wall clock.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A wall clock. Code that needs the time of day is given one, so that tests and simulations can set it.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    /// Read directly: isolates ask for the time in every invocation.
    System,
    /// Milliseconds since the Unix epoch.
    Given(Arc<dyn Fn() -> u64 + Send + Sync>),
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

    /// A clock that `now_unix_ms` reads, in milliseconds since the Unix epoch.
    pub fn new(now_unix_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Source::Given(Arc::new(now_unix_ms)))
    }

    /// The time since the Unix epoch, with the resolution of the clock; zero before the epoch.
    pub fn since_unix_epoch(&self) -> Duration {
        match &self.0 {
            Source::System => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            Source::Given(now_unix_ms) => Duration::from_millis(now_unix_ms()),
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
            Source::System => self.since_unix_epoch().as_millis() as u64,
            Source::Given(now_unix_ms) => now_unix_ms(),
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
