//! Errors of the store and of changes of objects.

use std::path::PathBuf;
use std::sync::Arc;

use edgefaas_crdt::ApplyError;

use crate::objects::{MAX_FIELDS_PER_OBJECT, MAX_RECORDS_PER_OBJECT};
use crate::store::Damage;

/// Maximum length of a key, in bytes.
pub(crate) const MAX_KEY_BYTES: usize = 65_536;

/// The store cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The engine could not open the database.
    #[error(
        "the store in {path} cannot be opened: {reason}; run `edgefaas store check` to see which file is at fault"
    )]
    Open {
        /// The database's folder.
        path: PathBuf,
        /// The engine's error.
        reason: fjall::Error,
    },
    /// Files are missing or damaged.
    #[error(
        "the store in {path} is damaged and was left as it is:{}\nrestore the data directory from a backup, or see with `edgefaas \
         store check` all that is damaged and start once with `edgefaas run --accept-loss` to go on without it (damaged files are \
         moved to {aside}); in a cluster the other nodes still have the objects",
        lines(damage)
    )]
    Lost {
        /// The database's folder.
        path: PathBuf,
        /// Folder for the damaged files.
        aside: PathBuf,
        /// The files.
        damage: Vec<Damage>,
    },
    /// The engine panicked while it opened the database.
    #[error(
        "the store in {path} cannot be opened: the engine stopped at a file that it did not expect; run `edgefaas store check`, \
         and restore the data directory from a backup"
    )]
    Panicked {
        /// The database's folder.
        path: PathBuf,
    },
    /// The writer thread cannot be started.
    #[error("the store's writer could not be started: {0}")]
    Thread(std::io::Error),
    /// A read failed.
    #[error("the store cannot be read: {0}")]
    Read(fjall::Error),
    /// A file of the store is damaged: entries behind a key cannot be read.
    #[error("the store cannot be read behind {after}: {reason}; the disk may be failing")]
    Unreadable {
        /// Last readable key.
        after: String,
        /// The engine's error.
        reason: fjall::Error,
    },
    /// A stored value is damaged.
    #[error("{what} in the store is damaged: {reason}")]
    Damaged {
        /// The value.
        what: String,
        /// The damage.
        reason: String,
    },
}

fn lines(damage: &[Damage]) -> String {
    damage.iter().map(|damage| format!("\n  {damage}")).collect()
}

impl From<fjall::Error> for StoreError {
    fn from(error: fjall::Error) -> Self {
        Self::Read(error)
    }
}

/// A batch was not committed; nothing of it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The disk has no free space except the reserve and the space that the engine needs to work.
    #[error(
        "the disk is full ({free_bytes} bytes are free, and {needed_bytes} are needed: for the change itself, for the store's own work \
         and for deletions); make room: delete data, or files on the same disk"
    )]
    DiskFull {
        /// Free bytes of the file system.
        free_bytes: u64,
        /// Bytes that have to be free.
        needed_bytes: u64,
    },
    /// A change does not fit its field.
    #[error(transparent)]
    Field(#[from] FieldRefused),
    /// A key exceeds the maximum length.
    #[error("a key has {bytes} bytes, and the store takes at most {MAX_KEY_BYTES}; choose a shorter name")]
    KeyTooLong {
        /// Length of the key, in bytes.
        bytes: usize,
    },
    /// The store failed.
    #[error("the store failed: {0}")]
    Failed(#[from] StoreFailure),
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

/// A read or a write of the store failed. After a failed write the store takes no writes until it is opened again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreFailure {
    /// The engine refused to write.
    #[error("{cause}")]
    Write {
        /// The engine's error.
        cause: Arc<str>,
    },
    /// The engine could not sync its log to the disk.
    #[error("it could not be synced: {cause}")]
    Sync {
        /// The engine's error.
        cause: Arc<str>,
    },
    /// A record that the change depends on could not be read. Later writes may succeed.
    #[error("{cause}")]
    Read {
        /// The error of the read.
        cause: Arc<str>,
    },
    /// The broker's write-ahead log was not stored, and a message of the change is part of it.
    #[error("its messages are not on the disk")]
    BrokerLog,
    /// The writer panicked.
    #[error("the writer panicked")]
    Panicked,
}

impl StoreFailure {
    /// The failure of a write.
    pub(crate) fn write(error: &fjall::Error) -> Self {
        Self::Write { cause: error.to_string().into() }
    }
}

impl From<&StoreError> for StoreFailure {
    fn from(error: &StoreError) -> Self {
        Self::Read { cause: error.to_string().into() }
    }
}

/// A change of a field was refused, and all other changes of its batch with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldRefused {
    /// The operation does not fit the field.
    #[error("object `{object}`: {error}")]
    Apply {
        /// The object.
        object: String,
        /// The reason.
        error: ApplyError,
    },
    /// The object has reached its quota.
    #[error(
        "object `{object}` would take {} bytes, which is over its quota of {quota_bytes} bytes; take something away from it, or \
         raise `quota` of its class in the manifest",
        bytes + more_bytes
    )]
    OverQuota {
        /// The object.
        object: String,
        /// Bytes on the disk, with earlier changes of the same batch.
        bytes: u64,
        /// Approximate bytes of the refused change.
        more_bytes: u64,
        /// Quota of the object.
        quota_bytes: u64,
    },
    /// The object has the maximum number of fields.
    #[error(
        "object `{object}` cannot have more than {MAX_FIELDS_PER_OBJECT} fields; use a map, or another object"
    )]
    TooManyFields {
        /// The object.
        object: String,
    },
    /// The object has the maximum number of fields and tombstones.
    #[error(
        "object `{object}` has {fields} fields, and {deleted} deleted ones whose deletion not all members of the cluster know, \
         together the most of {MAX_RECORDS_PER_OBJECT}; wait until all members are connected, revoke those that do not return, or \
         use another object"
    )]
    TooManyDeletions {
        /// The object.
        object: String,
        /// Its fields.
        fields: usize,
        /// Its tombstones.
        deleted: usize,
    },
}
