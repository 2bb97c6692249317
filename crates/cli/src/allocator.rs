//! How soon the allocator gives memory back.
//!
//! jemalloc keeps freed pages for ten seconds (`dirty_decay_ms`). The node shares its memory out by what is in use: on a small machine
//! what one part has just freed would be missing for the next one, and the kernel would end the node.

use tikv_jemalloc_ctl::raw;

/// With less memory freed pages are given back at once. That costs a few system calls for large blocks.
pub const SMALL_MEMORY_BYTES: u64 = 2 << 30;

/// Has the allocator give freed pages back at once.
///
/// # Errors
/// The allocator has no such setting.
pub fn give_back_at_once() -> Result<(), tikv_jemalloc_ctl::Error> {
    // Those of threads that start later.
    write(b"arenas.dirty_decay_ms\0", 0)?;
    write(b"arenas.muzzy_decay_ms\0", 0)?;
    let arenas = read_count(b"arenas.narenas\0")?;
    for arena in 0..arenas {
        for setting in ["dirty", "muzzy"] {
            // Arenas without a thread cannot be set, and follow the others.
            let _ = write(format!("arena.{arena}.{setting}_decay_ms\0").as_bytes(), 0);
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
    fn what_is_freed_is_given_back() {
        give_back_at_once().unwrap();
        // SAFETY: as in `write`.
        #[expect(unsafe_code, reason = "as in `write`")]
        let decay_ms: isize = unsafe { raw::read(b"arenas.dirty_decay_ms\0").unwrap() };
        assert_eq!(decay_ms, 0);
    }
}
