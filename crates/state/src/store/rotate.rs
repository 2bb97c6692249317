//! Early rotation of the engine's journal.
//!
//! fjall rotates its journal only when it flushes a memtable while the journal's position is beyond 64 MB; no setting
//! changes that. A disk of 64 MB never reaches the position. The position is the file offset of the descriptor that
//! fjall writes by. So this module sets the offset beyond that limit while no write runs, and flushes a memtable; fjall
//! then rotates the journal as usual. No byte is written at that offset: if the process ends in between, the journal is
//! unchanged.

use std::fs::{read_dir, read_link};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, seek};

use super::journal_repair;

/// Beyond fjall's limit (`worker_pool.rs`, 64,000,000).
const BEYOND_LIMIT: u64 = 64_000_001;
/// Maximum wait for the flush to begin. Writers wait as long.
const PATIENCE: Duration = Duration::from_secs(2);

/// Makes the database in `folder` start a new journal; false if it did not. No write may run meanwhile. `flush` seals a
/// non-empty memtable.
pub(super) fn rotate(folder: &Path, flush: impl FnOnce() -> bool) -> io::Result<bool> {
    let Some(journal) = journal_repair::newest(folder)? else { return Ok(false) };
    let Some(descriptor) = descriptor_of(&journal.canonicalize()?)? else { return Ok(false) };
    // SAFETY: fjall keeps the journal open until it rotates it, and rotates it only beyond the limit; no write runs. So
    // the descriptor is open and refers to the journal until the position is set.
    #[expect(unsafe_code, reason = "the engine has no other way to rotate its journal early")]
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    // The clone belongs to this module.
    let file = file.try_clone_to_owned()?;
    let position = seek(&file, SeekFrom::Current(0))?;
    seek(&file, SeekFrom::Start(BEYOND_LIMIT))?;
    let deadline = Instant::now() + PATIENCE;
    let mut is_rotated = false;
    if flush() {
        while !is_rotated && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            is_rotated = journal_repair::newest(folder)?.is_some_and(|newest| newest != journal);
        }
    }
    if !is_rotated {
        seek(&file, SeekFrom::Start(position))?;
    }
    Ok(is_rotated)
}

/// The only descriptor of a file in this process.
fn descriptor_of(path: &Path) -> io::Result<Option<RawFd>> {
    let mut found = Vec::new();
    for entry in read_dir("/proc/self/fd")? {
        let entry = entry?;
        if read_link(entry.path()).is_ok_and(|target| target == path) {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
        }
    }
    Ok(if let [descriptor] = found[..] { Some(descriptor) } else { None })
}
