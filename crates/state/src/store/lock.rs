//! Lock of the data directory: one node at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Locks the data directory until it is dropped or the process ends.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

/// The data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another node holds the lock.
    #[error(
        "the data directory {path} is in use by another node{holder}; \
         stop that one or choose another with --data-dir"
    )]
    Held {
        /// The directory.
        path: PathBuf,
        /// ` (process N)`; empty if unknown.
        holder: String,
    },
    /// The directory cannot be created or written.
    #[error("the data directory {path} cannot be used: {reason}; choose another with --data-dir")]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
}

impl DirLock {
    /// Creates the directory if it does not exist, readable only by its owner, and locks it.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let unusable = |reason| LockError::Unusable { path: path.to_owned(), reason };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join("lock"))
            .map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let holder = match holder.trim() {
                    "" => String::new(),
                    pid => format!(" (process {pid})"),
                };
                return Err(LockError::Held { path: path.to_owned(), holder });
            }
            Err(TryLockError::Error(reason)) => return Err(unusable(reason)),
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "{}", std::process::id()))
            .map_err(unusable)?;
        Ok(Self { _file: file })
    }
}
