//! Pressure stall information of Linux: the time in which some task waited for a processor.

use std::fs;
use std::time::{Duration, Instant};

const FILE: &str = "/proc/pressure/cpu";

/// Total waiting time since the start of the machine, in microseconds; `None` if the kernel does not report it.
pub(super) fn waited_us() -> Option<u64> {
    some_total_us(&fs::read_to_string(FILE).ok()?)
}

/// Share of the time between two readings in which some task waited.
#[derive(Debug)]
pub(super) struct Pressure {
    waited_us: Option<u64>,
    read_at: Instant,
}

impl Pressure {
    /// The first reading.
    pub fn new(waited_us: Option<u64>, now: Instant) -> Self {
        Self { waited_us, read_at: now }
    }

    /// The next reading: the share since the last one in permille; 0 if the kernel does not report it.
    pub fn update(&mut self, waited_us: Option<u64>, now: Instant) -> u16 {
        let waited = waited_us.zip(self.waited_us).map_or(0, |(now, before)| now.saturating_sub(before));
        let since = now.saturating_duration_since(self.read_at);
        *self = Self::new(waited_us, now);
        if since.is_zero() {
            return 0;
        }
        (Duration::from_micros(waited).div_duration_f64(since) * 1_000.0).min(1_000.0) as u16
    }
}

/// Microseconds in which some task waited since the start of the machine (Linux, Documentation/accounting/psi.rst).
fn some_total_us(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("total=")).and_then(|total| total.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_the_kernel_is_parsed() {
        let text = "some avg10=50.06 avg60=52.05 avg300=47.67 total=30827784519\nfull avg10=0.00 total=0\n";
        assert_eq!(some_total_us(text), Some(30_827_784_519));
        for none in ["", "full avg10=0.00 total=7", "some avg10=1.00", "some total=x"] {
            assert_eq!(some_total_us(none), None, "{none:?}");
        }
    }

    #[test]
    fn the_pressure_is_that_since_the_last_reading() {
        let begun = Instant::now();
        let mut pressure = Pressure::new(Some(1_000_000), begun);
        let second = |count: u32| begun + Duration::from_secs(1) * count;
        assert_eq!(pressure.update(Some(1_250_000), second(1)), 250);
        assert_eq!(pressure.update(Some(1_250_000), second(1)), 0);
        assert_eq!(pressure.update(Some(9_000_000), second(2)), 1_000);
        assert_eq!(pressure.update(None, second(3)), 0);
    }
}
