//! Free space on the store's disk.
//!
//! The engine stops for good when a write fails half-way. So writes are refused while there is still
//! room for what the engine has under way, and taken again when somebody has made room. The disk is
//! asked every time: others may fill it between two writes, and asking costs a microsecond.

use std::path::{Path, PathBuf};

use super::CommitError;

/// Watches the free space of one file system.
pub struct DiskSpace {
    path: PathBuf,
    reserve_bytes: u64,
    /// Accepted and not written yet.
    planned_bytes: u64,
}

impl DiskSpace {
    /// Watches the file system of `path`, of which `reserve_bytes` are to stay free.
    pub fn new(path: &Path, reserve_bytes: u64) -> Self {
        Self { path: path.to_owned(), reserve_bytes, planned_bytes: 0 }
    }

    /// Plans a write of `bytes`, if that and what is planned already leave the reserve untouched.
    pub fn plan(&mut self, bytes: u64) -> Result<(), CommitError> {
        // A disk that can't be asked is left to fail by itself.
        let Ok(stat) = rustix::fs::statvfs(&self.path) else { return Ok(()) };
        let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
        let wanted_bytes = self.reserve_bytes.saturating_add(self.planned_bytes).saturating_add(bytes);
        if free_bytes < wanted_bytes {
            return Err(CommitError::DiskFull { free_bytes, reserve_bytes: self.reserve_bytes });
        }
        self.planned_bytes += bytes;
        Ok(())
    }

    /// What was planned has been written, or given up.
    pub fn written(&mut self) {
        self.planned_bytes = 0;
    }
}
