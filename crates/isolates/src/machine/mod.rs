//! The machine, and the pool that fits it.

mod memory;

use std::fs;

use rustix::fs::{MemfdFlags, memfd_create};
use wasmtime::PoolingAllocationConfig;

pub use memory::{LimitSource, MemoryLevel, MemoryLimit, ProcessMemory};

use crate::engine::{
    FULL_RESERVATION_BYTES, GUARD_BYTES, PoolConfig, SMALL_GUARD_BYTES, SMALL_RESERVATION_BYTES,
};
use crate::guest_memory::GuestMemory;

/// The maximum of isolates by default.
const MAX_ISOLATES: u32 = 1000;
/// The minimum of isolates, however small the machine is.
const MIN_ISOLATES: u32 = 16;
/// The memory of a small isolate: as many as fit may exist.
const SMALL_ISOLATE_BYTES: u64 = 512 << 10;
/// The maximum of memory of one isolate by default, and its minimum on a small machine.
const MAX_MEMORY_BYTES: u64 = 256 << 20;
const MIN_MEMORY_BYTES: u64 = 64 << 20;
/// Ratio: between two isolates, a slot keeps one part in this number of the machine's memory resident, within bounds.
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
    /// The bits of an address of a process: 47 on most machines, 39 on some small ones.
    pub address_bits: u32,
    /// The size of a page.
    pub page_bytes: usize,
    /// Linux 6.7: dirty pages are found without touching the others, which halves the cost of a fresh isolate.
    pub pagemap_scan: bool,
    /// Snapshots are shared by all their isolates until these write.
    pub copy_on_write: bool,
}

/// Settings of a pool that replace those of the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolOverrides {
    /// The maximum of isolates.
    pub max_isolates: Option<u32>,
    /// The maximum of linear memory of an isolate, in bytes.
    pub max_memory_bytes: Option<u64>,
    /// Address space of each isolate, in bytes.
    pub reservation_bytes: Option<u64>,
    /// Memory of all isolates together, in bytes; half of the machine's by default.
    pub guest_bytes: Option<u64>,
}

/// Linear memory comes in pages of this size.
const WASM_PAGE_BYTES: u64 = 64 << 10;

impl Machine {
    /// Reads the facts of this machine.
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
    pub fn pool(&self, overrides: PoolOverrides) -> PoolConfig {
        let guest_bytes = overrides.guest_bytes.unwrap_or(self.memory_bytes / 2);
        let largest_bytes = GuestMemory::largest_isolate_bytes(guest_bytes);
        let max_memory_bytes = overrides
            .max_memory_bytes
            .unwrap_or_else(|| (largest_bytes >> 20 << 20).clamp(MIN_MEMORY_BYTES, MAX_MEMORY_BYTES));
        let fit_in_memory = u32::try_from(guest_bytes / SMALL_ISOLATE_BYTES).unwrap_or(u32::MAX);
        let isolates =
            overrides.max_isolates.unwrap_or_else(|| fit_in_memory.clamp(MIN_ISOLATES, MAX_ISOLATES));
        // The other half is for all other memory, and for gaps that the system leaves.
        let space_bytes = 1u64 << (self.address_bits.min(63) - 1);
        // With the idle instances, a quarter more: see `PoolConfig::slots`.
        let full = |isolates: u32| u64::from(isolates) * 5 / 4 * (FULL_RESERVATION_BYTES + GUARD_BYTES);
        let reservation_bytes =
            overrides.reservation_bytes.unwrap_or(match full(isolates) <= space_bytes {
                true => FULL_RESERVATION_BYTES,
                false => SMALL_RESERVATION_BYTES,
            });
        // All of an isolate's memory lies in its reservation.
        let reservation_bytes = reservation_bytes.max(max_memory_bytes.next_multiple_of(WASM_PAGE_BYTES));
        let slot_bytes = reservation_bytes + SMALL_GUARD_BYTES;
        let fit_in_space = u32::try_from(space_bytes / slot_bytes * 4 / 5).unwrap_or(u32::MAX).max(1);
        // An explicit number is kept: if the address space is too small for it, the system refuses the pool.
        let max_isolates = overrides.max_isolates.unwrap_or(isolates.min(fit_in_space));
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
    // Some kernels show pages of their own above.
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
    fn the_address_space_is_read_from_the_maps() {
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
        let none = PoolOverrides::default();
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
        assert_eq!((short.max_isolates, short.reservation_bytes), (818, 256 << 20));
        // Such a pool can be set up, too.
        crate::engine::build(PoolConfig { max_isolates: 10, ..short }).unwrap();
        let shorter = Machine { address_bits: 32, ..PI }.pool(none);
        assert!(shorter.max_isolates < 10, "{shorter:?}");
        let overridden = PoolOverrides {
            max_isolates: Some(50),
            max_memory_bytes: Some(1 << 30),
            ..PoolOverrides::default()
        };
        let overridden = Machine { address_bits: 39, ..PI }.pool(overridden);
        assert_eq!(
            (overridden.max_isolates, overridden.max_memory_bytes, overridden.reservation_bytes),
            (50, 1 << 30, 4 << 30)
        );
    }
}
