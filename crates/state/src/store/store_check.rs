//! Complete check of a store that no node has open, for `edgefaas store check`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fjall::{Database, Keyspace};

use super::file_check::{self, Damage, Inspection};
use super::manifest;
use super::{DirLock, LockError, journal_repair};

/// The result of a check.
#[derive(Debug, Default)]
pub struct CheckReport {
    /// The database's folder.
    pub store: PathBuf,
    /// A database exists.
    pub exists: bool,
    /// Damage of its files.
    pub damage: Vec<Damage>,
    /// Copies of the manifest that are missing or damaged. The next start writes them again.
    pub manifests: Vec<PathBuf>,
    /// Bytes of an incomplete batch at the end of the newest engine's journal. The next start cuts them off.
    pub torn_bytes: u64,
    /// Key spaces.
    pub spaces: Vec<SpaceReport>,
}

/// A key space of the report.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SpaceReport {
    /// Name of the key space, or the number of its folder if the name is unknown.
    pub name: String,
    /// Table files.
    pub tables: usize,
    /// Bytes of the table files.
    pub bytes: u64,
    /// Number of entries, including entries that are only in the engine's journal; `None` if the store is too damaged
    /// to be opened.
    pub entries: Option<u64>,
    /// The first entry that cannot be read, and the reason.
    pub unreadable: Option<String>,
}

impl CheckReport {
    /// True if the store is complete and readable.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty() && self.spaces.iter().all(|space| space.unreadable.is_none())
    }
}

/// The check could not run.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A node uses the data directory.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The directory does not exist.
    #[error("there is no data directory {0}; name it with --data-dir")]
    NoDirectory(PathBuf),
    /// A file cannot be read.
    #[error("the store in {path} cannot be read: {reason}")]
    Read {
        /// The database's folder.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
}

/// Reads all entries of the store of a data directory. Locks the directory, so no node may use it.
pub fn check(data_dir: &Path) -> Result<CheckReport, CheckError> {
    if !data_dir.is_dir() {
        return Err(CheckError::NoDirectory(data_dir.to_owned()));
    }
    let _lock = DirLock::take(data_dir)?;
    let store = data_dir.join("store");
    let failed = |reason| CheckError::Read { path: store.clone(), reason };
    let found = manifest::read(data_dir).map_err(failed)?;
    let manifest = found.manifest.as_ref();
    let Inspection { exists, damage, spaces: files, .. } =
        file_check::check_files(&store, manifest, u64::MAX).map_err(failed)?;
    let torn_bytes = match journal_repair::newest(&store) {
        Ok(Some(journal)) if exists => {
            let examined = journal_repair::examine(&journal).map_err(failed)?;
            examined.written_bytes - examined.kept_bytes
        }
        _ => 0,
    };
    let named = |id: u64| {
        let fact = manifest.and_then(|manifest| manifest.spaces.iter().find(|fact| fact.id == id));
        fact.map_or_else(|| format!("number {id}"), |fact| fact.name.clone())
    };
    let mut spaces: Vec<_> = files
        .into_iter()
        .map(|files| SpaceReport {
            name: named(files.id),
            tables: files.tables,
            bytes: files.bytes,
            ..SpaceReport::default()
        })
        .collect();
    if exists && damage.is_empty() && torn_bytes == 0 {
        let opened = catch_unwind(AssertUnwindSafe(|| read_entries(&store, &mut spaces)));
        if let Err(problem) = opened.unwrap_or(Err(ReadError::Panicked)) {
            spaces.push(SpaceReport {
                name: "(the whole store)".into(),
                unreadable: Some(problem.to_string()),
                ..SpaceReport::default()
            });
        }
    }
    let manifests = if exists { [found.damaged, found.missing].concat() } else { Vec::new() };
    Ok(CheckReport { store: store.clone(), exists, damage, manifests, torn_bytes, spaces })
}

/// Reason for which the entries of a store cannot be counted.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Files(#[from] std::io::Error),
    #[error("it cannot be opened: {0}")]
    Open(#[source] fjall::Error),
    #[error(transparent)]
    Space(#[from] fjall::Error),
    #[error("the engine panicked")]
    Panicked,
}

fn read_entries(store: &Path, spaces: &mut [SpaceReport]) -> Result<(), ReadError> {
    file_check::restore_markers(store, true)?;
    let database = Database::builder(store).worker_threads(1).open().map_err(ReadError::Open)?;
    for name in database.list_keyspace_names() {
        let options = fjall::KeyspaceCreateOptions::default;
        let space = database.keyspace(&name, options)?;
        let folder = format!("number {}", space.id());
        let Some(report) = spaces.iter_mut().find(|report| report.name == *name || report.name == folder)
        else {
            continue;
        };
        report.name = name.to_string();
        let (entries, unreadable) = count(&space);
        (report.entries, report.unreadable) = (Some(entries), unreadable);
    }
    Ok(())
}

fn count(space: &Keyspace) -> (u64, Option<String>) {
    let mut entries = 0;
    for entry in space.iter() {
        if let Err(error) = entry.into_inner() {
            return (entries, Some(format!("the entry after {entries} others: {error}")));
        }
        entries += 1;
    }
    (entries, None)
}
