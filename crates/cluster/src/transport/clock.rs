//! The clocks of a running transport.

use std::time::{Duration, Instant};

use edgefaas_platform::Clock;

/// A monotonic clock that starts with the transport, and the node's wall clock.
#[derive(Debug, Clone)]
pub(crate) struct TransportClock {
    started: Instant,
    wall_clock: Clock,
}

impl TransportClock {
    pub(crate) fn new(wall_clock: Clock) -> Self {
        Self { started: Instant::now(), wall_clock }
    }

    /// Milliseconds since the start.
    pub(crate) fn now_ms(&self) -> u64 {
        millis(self.started.elapsed())
    }

    /// Microseconds since the start: the payload of heartbeats.
    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn unix_ms(&self) -> u64 {
        self.wall_clock.now_unix_ms()
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
