//! What can be made again goes where memory is short: instances that wait, then compiled functions. Of these only so many
//! stay at any time that nobody has called lately, and fewer where the pool of isolates keeps much memory for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_functions::registry::Registry;
use edgefaas_isolates::{GuestMemoryReading, Isolates, MemoryLevel, ProcessMemory};
use tokio_util::sync::CancellationToken;

/// Time between two looks, and while less than a quarter is left.
const INTERVAL: Duration = Duration::from_secs(1);
const NEAR_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two rounds of tidying.
const TIDY_INTERVAL: Duration = Duration::from_secs(10);
/// Memory is near its limit when less than one in so many bytes is left, and short.
const NEAR: u64 = 4;
const SHORT: u64 = 10;
/// Functions leave one in so many bytes of the limit.
const FLOOR: u64 = 16;
/// What the pool of isolates may keep for functions that are not in use: one in so many bytes of the limit.
const KEPT: u64 = 128;
/// A function that was called within this time keeps its program.
const IN_USE: Duration = Duration::from_secs(30);

/// Looks at the memory that the process may use until `cancel` fires.
pub async fn watch(
    memory: ProcessMemory,
    isolates: Arc<Isolates>,
    registry: Arc<Registry>,
    max_programs: usize,
    cancel: CancellationToken,
) {
    let mut tidied: Option<Instant> = None;
    loop {
        if tidied.is_none_or(|tidied| tidied.elapsed() >= TIDY_INTERVAL) {
            tidied = Some(Instant::now());
            isolates.tidy();
            registry.keep_programs(max_programs, IN_USE);
            // A flood of calls is over: what its isolates used goes back.
            if memory.level().is_some_and(|level| keeps_much(level, isolates.kept_bytes())) {
                registry.relieve(IN_USE);
            }
        }
        let level = memory.level();
        if level.is_some_and(is_short) {
            let instances = isolates.relieve();
            let programs = if instances == 0 { registry.relieve(IN_USE) } else { 0 };
            if instances + programs > 0 {
                tracing::info!(instances, programs, "memory is short: what can be made again went");
            }
        }
        let guests = isolates.memory();
        guests.withhold(level.map_or(0, |level| withheld(level, &guests.reading())));
        let is_near = level.is_some_and(|level| level.available_bytes < level.limit_bytes / NEAR);
        tokio::select! {
            () = tokio::time::sleep(if is_near { NEAR_INTERVAL } else { INTERVAL }) => {}
            () = cancel.cancelled() => return,
        }
    }
}

fn is_short(level: MemoryLevel) -> bool {
    level.available_bytes < level.limit_bytes / SHORT
}

fn keeps_much(level: MemoryLevel, kept_bytes: u64) -> bool {
    kept_bytes > level.limit_bytes / KEPT
}

/// Memory of functions that is not reserved, but that the machine does not have either.
fn withheld(level: MemoryLevel, guests: &GuestMemoryReading) -> u64 {
    let free_bytes = guests.max_bytes.saturating_sub(guests.used_bytes);
    free_bytes.saturating_sub(level.available_bytes.saturating_sub(level.limit_bytes / FLOOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_do_not_get_what_the_machine_does_not_have() {
        let level = |available_bytes| MemoryLevel { limit_bytes: 1600, available_bytes };
        assert!(is_short(level(159)) && !is_short(level(160)));
        let guests = |used_bytes| GuestMemoryReading { max_bytes: 800, used_bytes, ..Default::default() };
        assert_eq!(withheld(level(1000), &guests(0)), 0);
        assert_eq!(withheld(level(500), &guests(0)), 400);
        assert_eq!(withheld(level(500), &guests(400)), 0);
        assert_eq!(withheld(level(50), &guests(300)), 500);
    }
}
