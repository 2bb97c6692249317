//! One moment on two clocks.

use std::time::{Duration, Instant};

use edgefaas_platform::Clock;

/// A moment on the monotonic clock and on the wall clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub instant: Instant,
    pub unix_ms: u64,
}

impl Moment {
    pub(crate) fn now(clock: &Clock) -> Moment {
        Moment { instant: Instant::now(), unix_ms: clock.now_unix_ms() }
    }

    /// The wall clock at an earlier moment.
    pub(crate) fn unix_ms_of(&self, earlier: Instant) -> u64 {
        let age = self.instant.saturating_duration_since(earlier);
        self.unix_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
    }

    /// The monotonic clock at an earlier time of the wall clock; now, if that was put back since.
    pub(crate) fn instant_of(&self, unix_ms: u64) -> Instant {
        let age = Duration::from_millis(self.unix_ms.saturating_sub(unix_ms));
        self.instant.checked_sub(age).unwrap_or(self.instant)
    }
}

/// The moment `seconds` after `now`; `None` for `u32::MAX`, which means never.
pub(crate) fn after_seconds(now: Instant, seconds: u32) -> Option<Instant> {
    (seconds < u32::MAX).then(|| now + Duration::from_secs(seconds.into()))
}

/// The rest of a Message Expiry Interval; `None` when it is over. An interval of 0 allows immediate delivery only.
pub(crate) fn seconds_left(expiry_seconds: u32, age: Duration) -> Option<u32> {
    let over = age >= Duration::from_secs(expiry_seconds.into()) && !age.is_zero();
    (!over).then(|| expiry_seconds - u32::try_from(age.as_secs()).unwrap_or(expiry_seconds))
}
