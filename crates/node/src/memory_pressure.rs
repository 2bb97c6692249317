//! Frees memory that can be restored: isolates that wait for reuse, then programs of functions without recent calls.
//!
//! Independent of pressure, programs without recent calls are bounded: snapshots of JavaScript functions by their size,
//! all programs by their number. Programs are also unloaded when the pool of isolates keeps much memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_functions::registry::Registry;
use edgefaas_isolates::{GuestMemoryReading, Isolates, MemoryLevel, ProcessMemory};
use tokio_util::sync::CancellationToken;

/// Interval of memory checks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Interval of memory checks while less than a quarter of the limit is free.
const NEAR_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of the upkeep that does not depend on pressure.
const TIDY_INTERVAL: Duration = Duration::from_secs(10);
/// Memory is near its limit while less than this fraction (one in 4) of the limit is free.
const NEAR: u64 = 4;
/// Memory is short while less than this fraction (one in 10) of the limit is free.
const SHORT: u64 = 10;
/// Fraction of the limit (one in 16) that functions leave free.
const FLOOR: u64 = 16;
/// Fraction of the limit (one in 128) that the free slots of the pool of isolates may keep.
const KEPT: u64 = 128;
/// A function that was called within this time keeps its program.
const IN_USE: Duration = Duration::from_secs(30);

/// Checks the free memory of the process, and frees memory, until `cancel` fires.
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
            registry.keep_programs(max_programs, IN_USE);
            // After a burst of calls: free the memory that its isolates have left in the pool.
            if memory.level().is_some_and(|level| keeps_much(level, isolates.kept_bytes())) {
                registry.relieve(IN_USE);
            }
        }
        isolates.tidy();
        isolates.release_snapshots().await;
        let level = memory.level();
        if level.is_some_and(is_short) {
            let instances = isolates.relieve();
            let programs = if instances == 0 { registry.relieve(IN_USE) } else { 0 };
            if instances + programs > 0 {
                tracing::info!(
                    instances,
                    programs,
                    "memory is short: discarded isolates that wait for reuse, or programs without recent calls"
                );
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

/// Unreserved part of the functions' budget that the machine cannot provide now, in bytes.
fn withheld(level: MemoryLevel, guests: &GuestMemoryReading) -> u64 {
    let free_bytes = guests.max_bytes.saturating_sub(guests.used_bytes);
    free_bytes.saturating_sub(level.available_bytes.saturating_sub(level.limit_bytes / FLOOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_machine_lacks_is_withheld_from_functions() {
        let level = |available_bytes| MemoryLevel { limit_bytes: 1600, available_bytes };
        assert!(is_short(level(159)) && !is_short(level(160)));
        let guests = |used_bytes| GuestMemoryReading { max_bytes: 800, used_bytes, ..Default::default() };
        assert_eq!(withheld(level(1000), &guests(0)), 0);
        assert_eq!(withheld(level(500), &guests(0)), 400);
        assert_eq!(withheld(level(500), &guests(400)), 0);
        assert_eq!(withheld(level(50), &guests(300)), 500);
    }
}
