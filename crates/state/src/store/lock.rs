//! One node a data directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Holds the data directory until it is dropped, or the process dies.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

/// The data directory can't be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another node has it.
    #[error(
        "the data directory {path} is in use by another node{holder}; \
         stop that one or choose another with --data-dir"
    )]
    Held {
        /// The directory.
        path: PathBuf,
        /// ` (process N)` if it is known.
        holder: String,
    },
    /// It can't be made or written to.
    #[error("the data directory {path} cannot be used: {reason}; choose another with --data-dir")]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        reason: std::io::Error,
    },
}

impl DirLock {
    /// Makes the directory, readable only by its owner, if it is not there, and takes it.
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
