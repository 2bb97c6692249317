//! The node's one database and its one writer.
//!
//! All durable data is in one fjall database, so related changes commit together. All writes go through
//! [`commit::Committer`]; reads access the key spaces directly.

mod batch;
mod broker;
mod commit;
mod damage_repair;
mod dead_data;
mod disk_space;
mod file_check;
mod incarnation;
mod journal_repair;
mod key_space_files;
mod lock;
mod manifest;
mod manifest_writer;
mod rotate;
mod store_check;
mod unflushed;
mod upkeep;
mod upkeep_requests;
mod writer;

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use edgefaas_crdt::ReplicaId;
use edgefaas_platform::Clock;
use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use manifest_writer::{ManifestWriter, Moment};
use writer::WalSpaces;

pub use crate::error::{CommitError, StoreError, StoreFailure};
pub use batch::{Batch, Durability};
pub use broker::BrokerStorage;
pub use commit::{CommitReading, Committer};
pub use disk_space::{MIN_RESERVE_BYTES, SpaceReading};
pub use file_check::{Damage, Problem};
pub use lock::{DirLock, LockError};
pub use store_check::{CheckError, CheckReport, SpaceReport, check};
pub use writer::WalSync;

use crate::objects::{ExpiredObjects, FieldKey, FieldWriter, LastChanges, Objects, expiry};

/// Memory of a key space's memtable before it is flushed to a table file.
const MEMTABLE_BYTES: u64 = 4 << 20;
/// Maximum length of the engine's journal: the minimum that the engine accepts.
const JOURNAL_BYTES: u64 = 64 << 20;

/// Options of the store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The data directory; the database is a folder in it.
    pub data_dir: PathBuf,
    /// Time between syncs.
    pub sync_interval: Duration,
    /// Free space reserved for deletions, in bytes; `None` for a share of the disk.
    pub reserve_bytes: Option<u64>,
    /// Maximum length of the engine's journal, in bytes; less on small disks.
    pub journal_bytes: u64,
    /// Memory for the block cache, in bytes.
    pub cache_bytes: u64,
    /// Memory for fields of objects, in bytes.
    pub objects_cache_bytes: u64,
    /// Time at which a message that the broker acknowledges is written to the disk.
    pub broker_sync: WalSync,
    /// Continues without missing or damaged files.
    pub accept_loss: bool,
}

impl StoreOptions {
    /// Options of a small store for tests, synced only on request.
    #[doc(hidden)]
    pub fn small(data_dir: &std::path::Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            sync_interval: Duration::from_secs(3600),
            reserve_bytes: Some(0),
            journal_bytes: u64::MAX,
            cache_bytes: 1 << 20,
            objects_cache_bytes: 1 << 20,
            broker_sync: WalSync::Commit,
            accept_loss: false,
        }
    }
}

/// The open database: key spaces for reading, and the handle to its one writer.
pub struct Store {
    database: Database,
    spaces: Spaces,
    committer: Committer,
    objects: Arc<Objects>,
    manifest_writer: Arc<ManifestWriter>,
    node_id: u64,
}

/// The key spaces, by owner.
#[derive(Clone)]
pub struct Spaces {
    /// App name to its record.
    pub apps: Keyspace,
    /// Revision digest to the revision.
    pub revisions: Keyspace,
    /// Source digest to the source.
    pub sources: Keyspace,
    /// App, object and field to the field's state; see [`crate::objects`].
    fields: Keyspace,
    /// App and object to the time of the last change, of objects that expire; see [`crate::objects`].
    expiry: Keyspace,
    /// Secret name to its value.
    pub secrets: Keyspace,
    /// The node's own facts.
    pub meta: Keyspace,
    /// Sessions, subscriptions and retained messages of the broker.
    pub mqtt: Keyspace,
    /// Messages that wait for MQTT sessions.
    pub mqtt_queue: Keyspace,
    /// Durable invocations, and records of the broker's hooks.
    pub invocations: Keyspace,
}

impl Spaces {
    fn all(&self) -> Vec<Keyspace> {
        let Self { apps, revisions, sources, fields, expiry, secrets, meta, mqtt, mqtt_queue, invocations } =
            self;
        let all = [apps, revisions, sources, fields, expiry, secrets, meta, mqtt, mqtt_queue, invocations];
        all.into_iter().cloned().collect()
    }
}

impl Store {
    /// Opens or creates the database and starts its committer. Each opening is a new incarnation of the replica: after
    /// a power cut the disk may lack changes that peers have seen under the old one.
    pub fn open(options: &StoreOptions, clock: Clock) -> Result<Self, StoreError> {
        let path = options.data_dir.join("store");
        let failed = |reason| StoreError::Open { path: path.clone(), reason };
        let aside = options.data_dir.join("damaged");
        // The check runs before any file is created: a missing file must stay missing.
        let manifest_writer = Arc::new(prepare(options, &path, &aside)?);
        // The database contains secrets: only its owner may read it, whatever the parent folder allows.
        let private = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        private
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)))
            .map_err(|error| failed(error.into()))?;
        match journal_repair::cut_damaged(&path, &aside).map_err(|error| failed(error.into()))? {
            Some(journal_repair::Cut {
                journal, kept_bytes, lost_bytes, is_in_the_middle: false, ..
            }) => {
                tracing::warn!(
                    journal = %journal.display(),
                    lost_bytes,
                    kept_bytes,
                    "the end of the store's journal was not written whole, as after a power cut, and is cut off: what was \
                     not synced is lost"
                )
            }
            Some(journal_repair::Cut { journal, kept_bytes, lost_bytes, put_aside, .. }) => {
                tracing::error!(
                    journal = %journal.display(),
                    lost_bytes,
                    kept_bytes,
                    put_aside = ?put_aside,
                    "the store's journal is damaged in its middle, and everything behind that is lost, though there are whole \
                     records in it: if there was no power cut, the disk is failing; in a cluster the other nodes still have the \
                     objects, else restore a backup"
                )
            }
            None => {}
        }
        let builder = Database::builder(&path)
            .cache_size(options.cache_bytes)
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(1);
        let database = catch_unwind(AssertUnwindSafe(|| builder.open()))
            .map_err(|_| StoreError::Panicked { path: path.clone() })?
            .map_err(failed)?;
        let space = |name: &str| {
            database.keyspace(name, || keyspace_options(CompressionPolicy::all(CompressionType::Lz4)))
        };
        let spaces = Spaces {
            apps: space("apps").map_err(failed)?,
            revisions: space("revisions").map_err(failed)?,
            sources: space("sources").map_err(failed)?,
            fields: space("fields").map_err(failed)?,
            expiry: space("expiry").map_err(failed)?,
            secrets: space("secrets").map_err(failed)?,
            meta: space("meta").map_err(failed)?,
            mqtt: space("mqtt").map_err(failed)?,
            mqtt_queue: space("mqtt-queue").map_err(failed)?,
            invocations: space("invocations").map_err(failed)?,
        };
        match unflushed::undo(&database, &spaces.meta, &spaces.mqtt_queue).map_err(failed)? {
            0 => {}
            entries => {
                tracing::info!(entries, "an incomplete group of messages was rolled back")
            }
        }
        let (node_id, incarnation) =
            incarnation::next(&database, &spaces.meta, clock.now_unix_ms()).map_err(failed)?;
        let replica = ReplicaId::new(node_id, incarnation);
        let fields = spaces.fields.clone();
        let objects =
            Arc::new(Objects::new(database.clone(), fields, replica, options.objects_cache_bytes));
        let last_changes = LastChanges::new(spaces.expiry.clone());
        manifest_writer.write(&spaces.all(), Moment::Synced);
        let committer = Committer::start(commit::CommitterOptions {
            database: database.clone(),
            fields: FieldWriter::new(objects.clone(), last_changes, clock),
            wal_spaces: WalSpaces {
                state: spaces.mqtt.clone(),
                queue: spaces.mqtt_queue.clone(),
                hook: spaces.invocations.clone(),
                sync: options.broker_sync,
            },
            all: spaces.all(),
            meta: spaces.meta.clone(),
            folder: path,
            manifest_writer: manifest_writer.clone(),
            sync_interval: options.sync_interval,
            reserve_bytes: options.reserve_bytes,
            journal_bytes: options.journal_bytes,
        })
        .map_err(StoreError::Thread)?;
        Ok(Self { database, spaces, committer, objects, manifest_writer, node_id })
    }

    /// The key spaces, for reading.
    pub fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    /// The handle to the writer.
    pub fn committer(&self) -> &Committer {
        &self.committer
    }

    /// The stateful objects; [`committer`](Self::committer) changes them.
    pub fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// Objects whose time to live is over, and the time of the next one. Blocks.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub fn expired_objects(&self, now_unix_ms: u64, limit: usize) -> Result<ExpiredObjects, StoreError> {
        expiry::expired(&self.spaces.expiry, &self.objects, now_unix_ms, limit)
    }

    /// Objects whose last change is known and that do not expire any more, each an app and a name. Blocks.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub fn objects_that_stay(&self) -> Result<Vec<(String, String)>, StoreError> {
        expiry::stale(&self.spaces.expiry, &self.objects)
    }

    /// Objects that expire and whose last change is not known: they have changed before their class had a time to live. Blocks.
    pub fn objects_without_last_change(&self) -> Vec<FieldKey> {
        expiry::unknown(&self.spaces.expiry, &self.objects)
    }

    /// The node's id, drawn at the first start; it never changes.
    pub fn node_id(&self) -> String {
        format!("{:016x}", self.node_id)
    }

    /// Closes the committer after it has written all queued batches, and syncs. Blocks.
    pub fn close(&self) -> Result<(), StoreError> {
        self.committer.close();
        self.database.persist(PersistMode::SyncAll).map_err(StoreError::Read)?;
        self.manifest_writer.write(&self.spaces.all(), Moment::Closed);
        Ok(())
    }
}

/// All levels have the same `compression`. By the engine's default upper levels are uncompressed and lower levels
/// compressed, so a compaction could write a hundred times the bytes that it reads.
fn keyspace_options(compression: CompressionPolicy) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(MEMTABLE_BYTES)
        .index_block_compression_policy(compression.clone())
        .data_block_compression_policy(compression)
}

/// A file of the data directory that a node writes only after it has created its store.
const LATER_FILE: &str = "http-token";

/// Checks the store's files before the engine opens them, and repairs them if the operator accepts the loss.
fn prepare(options: &StoreOptions, store: &Path, aside: &Path) -> Result<ManifestWriter, StoreError> {
    let failed =
        |reason: std::io::Error| StoreError::Open { path: store.to_owned(), reason: reason.into() };
    let mut found = manifest::read(&options.data_dir).map_err(failed)?;
    for file in
        found.damaged.iter().chain(found.manifest.is_some().then_some(&found.missing).into_iter().flatten())
    {
        tracing::warn!(file = %file.display(), "a copy of the store's manifest is missing or damaged, and is written again");
    }
    let known = found.manifest.as_ref();
    let inspection =
        file_check::check_files(store, known, file_check::STARTUP_TABLE_BYTES).map_err(failed)?;
    if known.is_none() && inspection.exists {
        tracing::warn!(
            "the store has no manifest (it is from an earlier version, or both copies are gone): it is taken as it is, and what may \
             be missing is not known"
        );
    }
    if known.is_none() && !inspection.exists && options.data_dir.join(LATER_FILE).exists() {
        tracing::warn!(
            data_dir = %options.data_dir.display(),
            "the data directory was in use before, but it has no store: the node starts empty; if that is a mistake, stop the node \
             and restore `store` and `store.manifest` from a backup"
        );
    }
    let mut exists = inspection.exists;
    if !inspection.damage.is_empty() {
        if !options.accept_loss {
            let (path, aside) = (store.to_owned(), aside.to_owned());
            return Err(StoreError::Lost { path, aside, damage: inspection.damage });
        }
        exists = damage_repair::repair(store, aside, known, &inspection.damage).map_err(failed)?;
        // The old manifest lists files that no longer exist.
        manifest::remove(&options.data_dir).map_err(failed)?;
        let number = known.map_or(0, |manifest| manifest.number);
        found.manifest = Some(manifest::Manifest { number, ..manifest::Manifest::default() });
    }
    if exists {
        file_check::restore_markers(store, found.manifest.is_some()).map_err(failed)?;
    }
    let manifest_writer = ManifestWriter::new(&options.data_dir, store, found.manifest);
    manifest_writer.open().map_err(failed)?;
    Ok(manifest_writer)
}
