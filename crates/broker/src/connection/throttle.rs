//! The limit on how fast a client publishes.

use std::time::Instant;

use crate::limits::Bucket;

/// Stops reading a client that publishes too fast.
pub(super) struct Throttle {
    /// `None` for no limit.
    bucket: Option<Bucket>,
    /// Time until which nothing is read.
    until: Option<Instant>,
}

impl Throttle {
    /// `max_per_second`: messages a second; 0 for no limit.
    pub(super) fn new(max_per_second: u32, now: Instant) -> Throttle {
        let bucket = (max_per_second > 0).then(|| Bucket::new(max_per_second, max_per_second, now));
        Throttle { bucket, until: None }
    }

    /// Counts a message. One over the limit still passes, and stops the next one.
    pub(super) fn count(&mut self, now: Instant) {
        if let Some(wait) = self.bucket.as_mut().and_then(|bucket| bucket.spend(now)) {
            self.until = Some(now + wait);
        }
    }

    /// Time at which the client is read again; `None` if it is read now.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Lets the client be read again if its time has come; true if so.
    pub(super) fn lift(&mut self, now: Instant) -> bool {
        self.until.take_if(|until| now >= *until).is_some()
    }
}
