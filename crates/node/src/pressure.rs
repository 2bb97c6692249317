//! What can be made again goes where memory is short: instances that wait, then compiled functions. Of these only so many
//! stay at any time that nobody has called lately.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_isolates::Isolates;
use tokio_util::sync::CancellationToken;

use crate::registry::Registry;

/// How often is looked.
const INTERVAL: Duration = Duration::from_secs(10);
/// Memory is short when less than one in so many bytes is left.
const SHORT: u64 = 10;
/// A function that was called within this time keeps its program.
const IN_USE: Duration = Duration::from_secs(30);

/// What this process may use, and what of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Memory {
    total_bytes: u64,
    available_bytes: u64,
}

/// Looks at the machine's memory, and the control group's, until `cancel` fires.
pub async fn watch(
    isolates: Arc<Isolates>,
    registry: Arc<Registry>,
    max_programs: usize,
    cancel: CancellationToken,
) {
    let mut interval = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = cancel.cancelled() => return,
        }
        isolates.tidy();
        registry.keep_programs(max_programs, IN_USE);
        if !is_short() {
            continue;
        }
        let instances = isolates.relieve();
        let programs = if instances == 0 { registry.relieve(IN_USE) } else { 0 };
        if instances + programs > 0 {
            tracing::info!(instances, programs, "memory is short: what can be made again went");
        }
    }
}

fn is_short() -> bool {
    let read = |path: &str| fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|info| machine(&info));
    let files =
        ["max", "current", "stat"].map(|name| read(format!("/sys/fs/cgroup/memory.{name}").as_str()));
    let group = match files {
        [Some(max), Some(current), Some(stat)] => group(&max, &current, &stat),
        _ => None,
    };
    [machine, group].into_iter().flatten().any(Memory::is_short)
}

impl Memory {
    fn is_short(self) -> bool {
        self.available_bytes < self.total_bytes / SHORT
    }
}

/// `/proc/meminfo` (proc(5)).
fn machine(info: &str) -> Option<Memory> {
    let field = |name: &str| -> Option<u64> {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    };
    Some(Memory { total_bytes: field("MemTotal:")?, available_bytes: field("MemAvailable:")? })
}

/// `memory.max`, `memory.current` and `memory.stat` of a control group (cgroup v2); none without a limit. Pages of files that
/// nobody has used lately can be taken back at any time.
fn group(max: &str, current: &str, stat: &str) -> Option<Memory> {
    let (total_bytes, used): (u64, u64) = (max.trim().parse().ok()?, current.trim().parse().ok()?);
    let inactive = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let inactive: u64 = inactive.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    let left = total_bytes.saturating_sub(used).saturating_add(inactive);
    Some(Memory { total_bytes, available_bytes: left.min(total_bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_understood() {
        let info = "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:   99 kB\n";
        let memory = machine(info).unwrap();
        assert_eq!(memory, Memory { total_bytes: 1000 << 10, available_bytes: 99 << 10 });
        assert!(memory.is_short());
        assert_eq!(machine("rubbish"), None);
        assert_eq!(group("max\n", "5\n", ""), None);
        let memory = group("1000\n", "950\n", "anon 1\ninactive_file 60\nactive_file 5\n").unwrap();
        assert_eq!(memory.available_bytes, 110);
        assert!(!memory.is_short());
    }
}
