//! Figures of the machine: processor time and temperature. All functions block for the time of reading some small files.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the kernel's temperature sensors.
const SENSORS: &str = "/sys/class/thermal";
/// Maximum number of sensors that are read.
const MAX_SENSORS: usize = 16;
/// Temperatures that a sensor without a value does not show, in millidegrees Celsius.
const POSSIBLE: std::ops::RangeInclusive<i32> = -60_000..=200_000;

/// Processor time since the start of the machine, in ticks of all cores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes {
    used: u64,
    total: u64,
}

impl CpuTimes {
    /// The times now; zero if the system does not report them.
    pub fn read() -> Self {
        fs::read_to_string("/proc/stat").ok().and_then(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// `cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL GUEST GUEST_NICE`; guests are part of user and nice.
    fn parse(text: &str) -> Option<Self> {
        let numbers = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = numbers.take(8).map_while(|number| number.parse().ok()).collect();
        let total = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        (ticks.len() >= 4).then_some(Self { used: total - idle, total })
    }

    /// The part of the time since `before` in which cores were in use, in thousandths.
    pub fn used_permille_since(self, before: Self) -> u16 {
        let (used, total) =
            (self.used.saturating_sub(before.used), self.total.saturating_sub(before.total));
        let permille = used.saturating_mul(1000).checked_div(total).unwrap_or(0);
        u16::try_from(permille.min(1000)).unwrap_or(1000)
    }
}

/// The temperature sensors of the board.
#[derive(Debug, Clone, Default)]
pub struct Sensors {
    files: Vec<PathBuf>,
}

impl Sensors {
    /// The sensors of this machine.
    pub fn find() -> Self {
        Self::find_in(Path::new(SENSORS))
    }

    fn find_in(folder: &Path) -> Self {
        let zones = fs::read_dir(folder).into_iter().flatten().flatten();
        let is_zone =
            |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("thermal_zone");
        let mut files: Vec<_> = zones.filter(is_zone).map(|entry| entry.path().join("temp")).collect();
        files.sort();
        files.truncate(MAX_SENSORS);
        Self { files }
    }

    /// The highest temperature, in millidegrees Celsius; `None` if no sensor shows one.
    pub fn highest_millicelsius(&self) -> Option<i32> {
        let read = |file: &PathBuf| fs::read_to_string(file).ok()?.trim().parse::<i32>().ok();
        self.files.iter().filter_map(read).filter(|value| POSSIBLE.contains(value)).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_all_cores() {
        let times = |text| CpuTimes::parse(text).unwrap();
        let before = times("cpu  100 10 50 800 40 5 5 0 7 0\ncpu0 1 2 3 4");
        assert_eq!(before, CpuTimes { used: 170, total: 1010 });
        let after = times("cpu  150 10 50 840 50 5 5 0 9 0\n");
        assert_eq!(after.used_permille_since(before), 500);
        assert_eq!(before.used_permille_since(after), 0, "a counter that went back");
        assert_eq!(CpuTimes::parse("cpu  a b c d"), None);
        assert_eq!(CpuTimes::parse("intr 1"), None);
        assert_eq!(CpuTimes::parse(""), None);
        assert!(CpuTimes::read().total > 0);
    }

    #[test]
    fn the_highest_temperature_of_sensors_with_a_value_counts() {
        let dir = tempfile::tempdir().unwrap();
        for (zone, text) in [
            ("thermal_zone0", "41000\n"),
            ("thermal_zone1", "61500\n"),
            ("thermal_zone2", "-274000\n"),
            ("thermal_zone3", "9999999\n"),
            ("thermal_zone4", "nothing\n"),
            ("cooling_device0", "90000\n"),
        ] {
            fs::create_dir(dir.path().join(zone)).unwrap();
            fs::write(dir.path().join(zone).join("temp"), text).unwrap();
        }
        fs::create_dir(dir.path().join("thermal_zone5")).unwrap();
        assert_eq!(Sensors::find_in(dir.path()).highest_millicelsius(), Some(61_500));
        assert_eq!(Sensors::find_in(&dir.path().join("nowhere")).highest_millicelsius(), None);
    }
}
