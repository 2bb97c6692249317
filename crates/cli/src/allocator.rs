//! Decay time of the allocator's freed pages.
//!
//! jemalloc keeps freed pages for a second (`dirty_decay_ms`, as it is built here). The node plans its memory by use: on
//! a small machine recently freed pages would be missing elsewhere, and the kernel would end the node.

use tikv_jemalloc_ctl::raw;

/// With at most this memory, freed pages return to the system early.
pub const SMALL_MEMORY_BYTES: u64 = 2 << 30;

/// Decay time then, in milliseconds. jemalloc's thread returns pages, many at a time, and wakes early at
/// 4 MiB. With 0 the thread that frees pages returns each run of them with a system call: a worker that drops a list of 7 MB
/// makes 1,700 of them, in 50 ms.
const SMALL_DECAY_MS: isize = 10;

/// Sets the short decay time.
///
/// # Errors
/// The allocator has no such setting.
pub fn give_back_soon() -> Result<(), tikv_jemalloc_ctl::Error> {
    // For threads that start later.
    write(b"arenas.dirty_decay_ms\0", SMALL_DECAY_MS)?;
    write(b"arenas.muzzy_decay_ms\0", 0)?;
    let arenas = read_count(b"arenas.narenas\0")?;
    for arena in 0..arenas {
        for (setting, decay_ms) in [("dirty", SMALL_DECAY_MS), ("muzzy", 0)] {
            // Arenas without a thread cannot be set, and follow the defaults.
            let _ = write(format!("arena.{arena}.{setting}_decay_ms\0").as_bytes(), decay_ms);
        }
    }
    Ok(())
}

fn write(name: &[u8], value: isize) -> Result<(), tikv_jemalloc_ctl::Error> {
    // SAFETY: the name ends with a zero, and jemalloc's manual has `ssize_t` for these settings.
    #[expect(unsafe_code, reason = "the safe interface does not have these settings")]
    unsafe {
        raw::write(name, value)
    }
}

fn read_count(name: &[u8]) -> Result<u32, tikv_jemalloc_ctl::Error> {
    // SAFETY: as above, with `unsigned`.
    #[expect(unsafe_code, reason = "as above")]
    unsafe {
        raw::read(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_pages_return_early() {
        give_back_soon().unwrap();
        // SAFETY: as in `write`.
        #[expect(unsafe_code, reason = "as in `write`")]
        let decay_ms: isize = unsafe { raw::read(b"arenas.dirty_decay_ms\0").unwrap() };
        assert_eq!(decay_ms, SMALL_DECAY_MS);
    }
}
