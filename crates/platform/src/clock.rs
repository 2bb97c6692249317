//! The wall clock.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A wall clock. Users of the time of day get one as an argument: tests and simulations have their own.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl fmt::Debug for Clock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Clock")
    }
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self::new(|| {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
        })
    }

    /// A clock with the time of `now_unix_ms`.
    pub fn new(now_unix_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now_unix_ms))
    }

    /// Microseconds since the Unix epoch; a clock other than the machine's has a resolution of 1 ms.
    pub fn now_unix_us(&self) -> u64 {
        let fine = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        let ms = self.now_unix_ms();
        if fine / 1000 == ms { fine } else { ms * 1000 }
    }

    /// Milliseconds since the Unix epoch.
    pub fn now_unix_ms(&self) -> u64 {
        (self.0)()
    }
}
