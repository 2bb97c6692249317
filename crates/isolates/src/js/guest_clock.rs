//! The clock of an invocation, behind `Date` and `performance`.

use std::time::Instant;

/// The wall clock at the start of the invocation, plus the time since then on a monotonic clock. The JavaScript engine has
/// one clock for `Date` and `performance`, and `performance` must not go backwards.
#[derive(Debug, Clone, Copy)]
pub struct GuestClock {
    began_unix_us: f64,
    began: Instant,
}

impl GuestClock {
    /// The clock of an invocation that begins at `now_unix_us` of the wall clock.
    pub fn begin(now_unix_us: u64) -> Self {
        Self { began_unix_us: now_unix_us as f64, began: Instant::now() }
    }

    /// Microseconds since the Unix epoch.
    pub fn now_unix_us(&self) -> f64 {
        self.began_unix_us + self.began.elapsed().as_micros() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_invocation_begins_with_the_wall_clock_and_never_goes_back() {
        for wall_unix_us in [1_800_000_000_000_000, 0] {
            let began = wall_unix_us as f64;
            let time = GuestClock::begin(wall_unix_us);
            let mut last = began;
            for _ in 0..1000 {
                let now = time.now_unix_us();
                assert!(now >= last && now < began + 6e7, "{last} {now}");
                last = now;
            }
        }
    }
}
