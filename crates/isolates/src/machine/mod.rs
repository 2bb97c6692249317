//! What this machine has, and the pool that fits it.

mod memory;

use std::fs;

use rustix::fs::{MemfdFlags, memfd_create};
use wasmtime::PoolingAllocationConfig;

pub use memory::{LimitSource, MemoryLevel, MemoryLimit, ProcessMemory};

use crate::engine::{
    FULL_RESERVATION_BYTES, GUARD_BYTES, PoolConfig, SMALL_GUARD_BYTES, SMALL_RESERVATION_BYTES,
};
use crate::guest_memory::GuestMemory;

/// Isolates at most where nothing else is said.
const MAX_ISOLATES: u32 = 1000;
/// Isolates at least, however small the machine is.
const MIN_ISOLATES: u32 = 16;
/// The memory of a small isolate: as many as fit may exist.
const SMALL_ISOLATE_BYTES: u64 = 512 << 10;
/// The most memory of one isolate where nothing else is said, and the least that this is on a small machine.
const MAX_MEMORY_BYTES: u64 = 256 << 20;
const MIN_MEMORY_BYTES: u64 = 64 << 20;
/// Memory that a place for an isolate keeps between two of them: one in so many bytes of the machine's, within bounds.
const KEPT_SHARE: u64 = 1024;
const MIN_KEPT_BYTES: u64 = 64 << 10;
const MAX_KEPT_BYTES: u64 = 1 << 20;

/// Enough to compile a component of a few megabytes.
const COMPILE_MEMORY_BYTES: u64 = 512 << 20;
/// Enough to compile the JavaScript engine. The limit is of reserved memory, more than the process ever touches, so that
/// this fits a machine of 128 MiB.
const MIN_COMPILE_MEMORY_BYTES: u64 = 192 << 20;

/// The machine as far as isolates depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory that this process may use: see [`ProcessMemory::limit`].
    pub memory_bytes: u64,
    /// How many bits an address of a process has: 47 on most machines, 39 on some small ones.
    pub address_bits: u32,
    /// The size of a page.
    pub page_bytes: usize,
    /// Linux 6.7: dirty pages are found without touching the others, which halves the cost of a fresh isolate.
    pub pagemap_scan: bool,
    /// Snapshots are shared by all their isolates until these write.
    pub copy_on_write: bool,
}

/// What is wished of a pool; what is not comes from the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolWishes {
    /// Isolates at most.
    pub max_isolates: Option<u32>,
    /// The most linear memory of one.
    pub max_memory_bytes: Option<u64>,
    /// Address space for each.
    pub reservation_bytes: Option<u64>,
    /// Memory of all of them together; half of the machine's by default.
    pub guest_bytes: Option<u64>,
}

/// Linear memory comes in pages of this size.
const WASM_PAGE_BYTES: u64 = 64 << 10;

impl Machine {
    /// Looks.
    pub fn probe() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: ProcessMemory::find().limit().bytes,
            address_bits: fs::read_to_string("/proc/self/maps")
                .ok()
                .and_then(|maps| address_bits(&maps))
                .unwrap_or(39),
            page_bytes: rustix::param::page_size(),
            pagemap_scan: PoolingAllocationConfig::is_pagemap_scan_available(),
            copy_on_write: memfd_create("probe", MemfdFlags::CLOEXEC).is_ok(),
        }
    }

    /// Memory that a process which parses and compiles may use, in bytes: three quarters of the machine's, and at least
    /// 512 MiB where the machine has so much, and 192 MiB anywhere. The system ends that process before the node if both need too much.
    pub fn compile_memory_bytes(&self) -> u64 {
        let three_quarters = self.memory_bytes / 4 * 3;
        match self.memory_bytes >= COMPILE_MEMORY_BYTES {
            true => three_quarters.max(COMPILE_MEMORY_BYTES),
            false => three_quarters.max(MIN_COMPILE_MEMORY_BYTES),
        }
    }

    /// A pool for this machine. With address space to spare each isolate reserves so much that its code needs no bounds
    /// checks, which makes it a quarter faster; where it is short, so much that all of them fit.
    pub fn pool(&self, wishes: PoolWishes) -> PoolConfig {
        let guest_bytes = wishes.guest_bytes.unwrap_or(self.memory_bytes / 2);
        let largest_bytes = GuestMemory::largest_isolate_bytes(guest_bytes);
        let max_memory_bytes = wishes
            .max_memory_bytes
            .unwrap_or_else(|| (largest_bytes >> 20 << 20).clamp(MIN_MEMORY_BYTES, MAX_MEMORY_BYTES));
        let fit_in_memory = u32::try_from(guest_bytes / SMALL_ISOLATE_BYTES).unwrap_or(u32::MAX);
        let wanted = wishes.max_isolates.unwrap_or_else(|| fit_in_memory.clamp(MIN_ISOLATES, MAX_ISOLATES));
        // The other half is for everything else, and for how the system spreads it.
        let space_bytes = 1u64 << (self.address_bits.min(63) - 1);
        // And an eighth of them that wait.
        let full = |isolates: u32| u64::from(isolates) * 9 / 8 * (FULL_RESERVATION_BYTES + GUARD_BYTES);
        let reservation_bytes = wishes.reservation_bytes.unwrap_or(match full(wanted) <= space_bytes {
            true => FULL_RESERVATION_BYTES,
            false => SMALL_RESERVATION_BYTES,
        });
        // All of an isolate's memory lies in its reservation.
        let reservation_bytes = reservation_bytes.max(max_memory_bytes.next_multiple_of(WASM_PAGE_BYTES));
        let slot_bytes = reservation_bytes + SMALL_GUARD_BYTES;
        let fit_in_space = u32::try_from(space_bytes / slot_bytes * 8 / 9).unwrap_or(u32::MAX).max(1);
        // More than was asked for would be refused by the system, and what was asked for is left as it is.
        let max_isolates = wishes.max_isolates.unwrap_or(wanted.min(fit_in_space));
        PoolConfig {
            max_isolates,
            max_memory_bytes: usize::try_from(max_memory_bytes).unwrap_or(usize::MAX),
            reservation_bytes,
            guest_bytes,
            kept_bytes: (self.memory_bytes / KEPT_SHARE).clamp(MIN_KEPT_BYTES, MAX_KEPT_BYTES) as usize,
        }
    }
}

/// The stack lies at the upper end of what a process may address.
fn address_bits(maps: &str) -> Option<u32> {
    let ends = maps.lines().filter_map(|line| {
        let (_, end) = line.split_whitespace().next()?.split_once('-')?;
        u64::from_str_radix(end, 16).ok()
    });
    // What the kernel itself shows up there on some machines is not the process's.
    let highest = ends.filter(|end| *end < 1 << 56).max()?;
    Some(u64::BITS - (highest - 1).leading_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PI: Machine = Machine {
        cores: 4,
        memory_bytes: 1 << 30,
        address_bits: 47,
        page_bytes: 4096,
        pagemap_scan: false,
        copy_on_write: true,
    };

    #[test]
    fn this_machine_is_seen() {
        let machine = Machine::probe();
        assert!(machine.cores > 0 && machine.memory_bytes > 64 << 20, "{machine:?}");
        assert!((32..=56).contains(&machine.address_bits), "{machine:?}");
    }

    #[test]
    fn what_the_system_says_is_understood() {
        let maps = "55d0c0000000-55d0c0001000 r--p 00000000 00:00 0 /bin/x\n\
                    7ffd8a5f2000-7ffd8a613000 rw-p 00000000 00:00 0 [stack]\n\
                    ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";
        assert_eq!(address_bits(maps), Some(47));
        assert_eq!(address_bits("7ffffdf000-8000000000 rw-p 00000000 00:00 0 [stack]\n"), Some(39));
        assert_eq!(address_bits("rubbish"), None);
    }

    #[test]
    fn compiling_may_use_most_of_the_machine() {
        let with = |mib: u64| Machine { memory_bytes: mib << 20, ..PI }.compile_memory_bytes() >> 20;
        assert_eq!([with(128), with(320), with(512), with(600)], [192, 240, 512, 512]);
        // A component of componentize-py takes 640 MiB, which a Raspberry Pi of 1 GB has.
        assert_eq!([with(927), with(8192)], [695, 6144]);
    }

    #[test]
    fn a_pool_fits_its_machine() {
        let none = PoolWishes::default();
        let (pi, large) = (PI.pool(none), Machine { memory_bytes: 24 << 30, ..PI }.pool(none));
        assert_eq!(
            (pi.max_isolates, pi.max_memory_bytes, pi.reservation_bytes),
            (1000, 256 << 20, 4 << 30)
        );
        assert_eq!((large.max_isolates, large.max_memory_bytes), (pi.max_isolates, pi.max_memory_bytes));
        assert_eq!((large.guest_bytes, large.kept_bytes), (12 << 30, 1 << 20));
        let small = Machine { memory_bytes: 128 << 20, ..PI }.pool(none);
        assert_eq!(
            (small.max_isolates, small.max_memory_bytes, small.kept_bytes),
            (128, 64 << 20, 128 << 10)
        );
        let short = Machine { address_bits: 39, ..PI }.pool(none);
        assert_eq!((short.max_isolates, short.reservation_bytes), (909, 256 << 20));
        // Such a pool can be set up, too.
        crate::engine::build(PoolConfig { max_isolates: 10, ..short }).unwrap();
        let shorter = Machine { address_bits: 32, ..PI }.pool(none);
        assert!(shorter.max_isolates < 10, "{shorter:?}");
        let wished =
            PoolWishes { max_isolates: Some(50), max_memory_bytes: Some(1 << 30), ..PoolWishes::default() };
        let wished = Machine { address_bits: 39, ..PI }.pool(wished);
        assert_eq!(
            (wished.max_isolates, wished.max_memory_bytes, wished.reservation_bytes),
            (50, 1 << 30, 4 << 30)
        );
    }
}
