//! Free space on the store's disk.
//!
//! The engine stops for good when a write fails half-way. So writes are refused while there is still
//! room for what the engine has under way, and taken again when somebody has made room.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::CommitError;

/// How old a reading may be.
const MAX_AGE: Duration = Duration::from_millis(100);

/// Watches the free space of one file system.
pub struct DiskSpace {
    path: PathBuf,
    reserve_bytes: u64,
    reading: Option<(Instant, u64)>,
}

impl DiskSpace {
    /// Watches the file system of `path`, of which `reserve_bytes` are to stay free.
    pub fn new(path: &Path, reserve_bytes: u64) -> Self {
        Self { path: path.to_owned(), reserve_bytes, reading: None }
    }

    /// Whether a write of `bytes` leaves the reserve untouched.
    pub fn check(&mut self, bytes: u64, now: Instant) -> Result<(), CommitError> {
        let free_bytes = match self.reading {
            Some((at, free)) if now.duration_since(at) < MAX_AGE => free,
            _ => {
                // A disk that can't be asked is left to fail by itself.
                let Ok(stat) = rustix::fs::statvfs(&self.path) else { return Ok(()) };
                let free = stat.f_bavail.saturating_mul(stat.f_frsize);
                self.reading = Some((now, free));
                free
            }
        };
        if free_bytes < self.reserve_bytes.saturating_add(bytes) {
            return Err(CommitError::DiskFull { free_bytes, reserve_bytes: self.reserve_bytes });
        }
        // Until the disk is asked again, what is about to be written is taken off.
        if let Some((_, free)) = &mut self.reading {
            *free = free.saturating_sub(bytes);
        }
        Ok(())
    }
}
