//! How long replication waits between two times of sending, so that it leaves the node to its functions.

use std::fs;
use std::time::{Duration, Instant};

/// So many times as long as replication has cost since the last due changes were sent, the next ones wait: a ninth of a core,
/// where nobody else wants it.
const REST: f64 = 8.0;
/// Where somebody always waits for a processor, they wait so many times longer.
const MOST_PRESSURE: f64 = 0.95;
/// They wait no longer than that.
const LONGEST: Duration = Duration::from_millis(500);
/// A timer that fires later than this shows that others want the processor as well.
const TIMER_GRAIN: Duration = Duration::from_millis(1);
/// How often the kernel is asked.
const LOOK: Duration = Duration::from_millis(250);
/// Pressure stall information: how long some task waited for a processor.
const PRESSURE: &str = "/proc/pressure/cpu";

/// Says when to send next.
#[derive(Debug)]
pub(super) struct Pace {
    /// The share of the last moments in which some task of the machine waited for a processor; 0 where the kernel does not
    /// tell.
    pressure: f64,
    looked: Instant,
    waited_us: Option<u64>,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Self { pressure: 0.0, looked: now, waited_us: read() }
    }

    /// How long to wait after replication has cost `busy`, and its timer was `late`.
    pub fn wait(&mut self, busy: Duration, late: Duration, now: Instant) -> Duration {
        let since = now.duration_since(self.looked);
        if since >= LOOK {
            self.look(since, read());
            self.looked = now;
        }
        // What made it late itself counts once.
        let cost = busy + late.saturating_sub(TIMER_GRAIN).saturating_sub(busy);
        cost.mul_f64(REST / (1.0 - self.pressure)).min(LONGEST)
    }

    fn look(&mut self, since: Duration, waited_us: Option<u64>) {
        let waited = waited_us.zip(self.waited_us).map_or(0, |(now, before)| now.saturating_sub(before));
        self.pressure = (Duration::from_micros(waited).div_duration_f64(since)).min(MOST_PRESSURE);
        self.waited_us = waited_us;
    }
}

fn read() -> Option<u64> {
    some_total_us(&fs::read_to_string(PRESSURE).ok()?)
}

/// The microseconds in which some task waited since the machine started (Linux, Documentation/accounting/psi.rst).
fn some_total_us(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("total=")).and_then(|total| total.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pace(pressure: f64) -> Pace {
        Pace { pressure, looked: Instant::now(), waited_us: None }
    }

    #[test]
    fn what_the_kernel_says_is_read() {
        let text = "some avg10=50.06 avg60=52.05 avg300=47.67 total=30827784519\nfull avg10=0.00 total=0\n";
        assert_eq!(some_total_us(text), Some(30_827_784_519));
        for none in ["", "full avg10=0.00 total=7", "some avg10=1.00", "some total=x"] {
            assert_eq!(some_total_us(none), None, "{none:?}");
        }
    }

    #[test]
    fn it_rests_longer_the_more_it_costs_and_the_more_others_wait() {
        let now = Instant::now();
        assert_eq!(pace(0.0).wait(MS, Duration::ZERO, now), 8 * MS);
        assert_eq!(pace(0.5).wait(MS, Duration::ZERO, now), 16 * MS);
        assert_eq!(pace(0.0).wait(MS, 4 * MS, now), 24 * MS, "late by 3 ms, of which one was its own");
        assert_eq!(pace(MOST_PRESSURE).wait(10 * MS, Duration::ZERO, now), LONGEST);
        assert_eq!(pace(0.9).wait(Duration::ZERO, Duration::ZERO, now), Duration::ZERO);
    }

    #[test]
    fn pressure_is_of_the_time_since_the_last_look() {
        let mut pace = pace(0.0);
        pace.waited_us = Some(1_000_000);
        pace.look(250 * MS, Some(1_050_000));
        assert!((pace.pressure - 0.2).abs() < 1e-9);
        pace.look(250 * MS, Some(1_300_000));
        assert!((pace.pressure - MOST_PRESSURE).abs() < 1e-9);
        pace.look(250 * MS, None);
        assert!(pace.pressure.abs() < 1e-9);
    }
}
