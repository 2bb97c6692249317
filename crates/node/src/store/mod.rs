//! The node's one database and who may write to it.
//!
//! Everything durable is in one fjall database, so that what belongs together commits together. All
//! writes go through [`commit::Committer`]; reads go straight to the key spaces.

mod broker;
mod commit;
mod incarnation;
mod lock;
mod space;
mod tail;

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_crdt::ReplicaId;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

pub use broker::BrokerStorage;
use commit::JournalSpaces;
pub use commit::{Batch, CommitError, CommitReading, Committer, Durability, JournalSync};
pub use lock::{DirLock, LockError};

use crate::objects::{FieldWriter, Objects};
use crate::platform::Clock;

/// Memory that a key space collects before it writes a table file.
const MEMTABLE_BYTES: u64 = 4 << 20;
/// Journals on disk: the least that the engine takes.
const JOURNAL_BYTES: u64 = 64 << 20;

/// How the store is opened.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The data directory; the database is a folder in it.
    pub data_dir: PathBuf,
    /// Time between syncs.
    pub sync_interval: Duration,
    /// Free space below which writes are refused, in bytes.
    pub reserve_bytes: u64,
    /// Memory for the block cache, in bytes.
    pub cache_bytes: u64,
    /// Memory for fields of objects, in bytes.
    pub objects_cache_bytes: u64,
    /// How soon what the broker acknowledges is on the disk.
    pub broker_sync: JournalSync,
}

#[cfg(test)]
impl StoreOptions {
    /// A small store in this folder, which is synced when somebody wants it to be, and else seldom.
    pub(crate) fn small(data_dir: &std::path::Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            sync_interval: Duration::from_secs(3600),
            reserve_bytes: 0,
            cache_bytes: 1 << 20,
            objects_cache_bytes: 1 << 20,
            broker_sync: JournalSync::Commit,
        }
    }
}

/// The store can't be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database refused.
    #[error("the store in {path} cannot be opened: {reason}")]
    Open {
        /// The database's folder.
        path: PathBuf,
        /// What it says.
        reason: fjall::Error,
    },
    /// The writer's thread can't be started.
    #[error("the store's writer could not be started: {0}")]
    Thread(std::io::Error),
    /// A read failed.
    #[error("the store cannot be read: {0}")]
    Read(fjall::Error),
    /// A file of it is damaged: what lies behind a key cannot be read.
    #[error("the store cannot be read behind {after}: {reason}; the disk may be failing")]
    Unreadable {
        /// The last that could be read.
        after: String,
        /// What the database says.
        reason: fjall::Error,
    },
    /// A value is not what was written.
    #[error("{what} in the store is damaged: {reason}")]
    Damaged {
        /// Which value.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl From<fjall::Error> for StoreError {
    fn from(error: fjall::Error) -> Self {
        Self::Read(error)
    }
}

/// The open database, for reading, and the way to its one writer.
pub struct Store {
    database: Database,
    spaces: Spaces,
    committer: Committer,
    objects: Arc<Objects>,
    node_id: u64,
}

/// The key spaces, by owner.
#[derive(Clone)]
pub(crate) struct Spaces {
    /// App name to its record.
    pub apps: Keyspace,
    /// Revision digest to the revision.
    pub revisions: Keyspace,
    /// Source digest to the source.
    pub sources: Keyspace,
    /// App, object and field to the field's state; see [`crate::objects`].
    fields: Keyspace,
    /// Secret name to its value.
    pub secrets: Keyspace,
    /// The node's own facts.
    pub meta: Keyspace,
    /// The broker's sessions, subscriptions and retained messages.
    pub mqtt: Keyspace,
    /// Messages that wait for MQTT sessions.
    pub mqtt_queue: Keyspace,
    /// Durable invocations, and what else hooks of the broker record.
    pub invocations: Keyspace,
}

impl Store {
    /// Opens or makes the database and starts its committer. Every opening is a new incarnation of the
    /// replica: after a power cut the disk may be behind what peers have seen under the old one.
    pub fn open(options: &StoreOptions, clock: Clock) -> Result<Self, StoreError> {
        let path = options.data_dir.join("store");
        let failed = |reason| StoreError::Open { path: path.clone(), reason };
        // Secrets are in it: its owner only, whatever the folder around it is.
        let private = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        private
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)))
            .map_err(|error| failed(error.into()))?;
        let aside = options.data_dir.join("damaged");
        match tail::cut_damaged(&path, &aside).map_err(|error| failed(error.into()))? {
            Some(tail::Cut { journal, kept_bytes, lost_bytes, is_in_the_middle: false, .. }) => {
                tracing::warn!(
                    journal = %journal.display(),
                    lost_bytes,
                    kept_bytes,
                    "the end of the store's journal was not written whole, as after a power cut, and is cut off: what was \
                     not synced is lost"
                )
            }
            Some(tail::Cut { journal, kept_bytes, lost_bytes, put_aside, .. }) => tracing::error!(
                journal = %journal.display(),
                lost_bytes,
                kept_bytes,
                put_aside = ?put_aside,
                "the store's journal is damaged in its middle, and everything behind that is lost, though there are whole \
                 records in it: if there was no power cut, the disk is failing; in a cluster the other nodes still have the \
                 objects, else restore a backup"
            ),
            None => {}
        }
        let database = Database::builder(&path)
            .cache_size(options.cache_bytes)
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(1)
            .open()
            .map_err(failed)?;
        let space = |name: &str| {
            database.keyspace(name, || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES))
        };
        let spaces = Spaces {
            apps: space("apps").map_err(failed)?,
            revisions: space("revisions").map_err(failed)?,
            sources: space("sources").map_err(failed)?,
            fields: space("fields").map_err(failed)?,
            secrets: space("secrets").map_err(failed)?,
            meta: space("meta").map_err(failed)?,
            mqtt: space("mqtt").map_err(failed)?,
            mqtt_queue: space("mqtt-queue").map_err(failed)?,
            invocations: space("invocations").map_err(failed)?,
        };
        let (node_id, incarnation) =
            incarnation::next(&database, &spaces.meta, clock.now_unix_ms()).map_err(failed)?;
        let replica = ReplicaId::new(node_id, incarnation);
        let fields = spaces.fields.clone();
        let objects =
            Arc::new(Objects::new(database.clone(), fields, replica, options.objects_cache_bytes));
        let committer = Committer::start(commit::CommitterOptions {
            database: database.clone(),
            fields: FieldWriter::new(objects.clone(), clock),
            journal: JournalSpaces {
                state: spaces.mqtt.clone(),
                queue: spaces.mqtt_queue.clone(),
                hook: spaces.invocations.clone(),
                sync: options.broker_sync,
            },
            sync_interval: options.sync_interval,
            disk: space::DiskSpace::new(&options.data_dir, options.reserve_bytes),
        })
        .map_err(StoreError::Thread)?;
        Ok(Self { database, spaces, committer, objects, node_id })
    }

    pub(crate) fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    /// The one writer.
    pub fn committer(&self) -> &Committer {
        &self.committer
    }

    /// The stateful objects. They are changed through [`committer`](Self::committer).
    pub fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// The node's id: drawn at the first start, the same ever after.
    pub fn node_id(&self) -> String {
        format!("{:016x}", self.node_id)
    }

    /// Ends the committer after all that it was given, and syncs. Blocks.
    pub fn close(&self) -> Result<(), StoreError> {
        self.committer.close();
        self.database.persist(PersistMode::SyncAll).map_err(StoreError::Read)
    }
}
