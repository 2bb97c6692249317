//! Checks the files of a store before the engine opens it: the engine treats missing files as files that never existed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use edgefaas_platform::replace_file;

use super::journal_repair;
use super::key_space_files::{self, CURRENT};
use super::manifest::Manifest;

/// Bytes of tables whose checksums a start verifies; `edgefaas store check` verifies all tables.
pub const STARTUP_TABLE_BYTES: u64 = 32 << 20;
/// The engine's own key space, which maps the names of all others.
pub const ENGINE_SPACE: u64 = 0;
const ENGINE_SPACE_NAME: &str = "(names of key spaces)";
const MARKER: &str = "version";
const MARKER_BYTES: &[u8] = b"FJL\x03";
const LOCK: &str = "lock";

/// Damage of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The damaged or missing file or folder.
    pub path: PathBuf,
    /// Kind of the damage.
    pub problem: Problem,
}

/// Kind of damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The whole database is missing.
    NoStore,
    /// A known file of the engine's journal is missing.
    JournalMissing,
    /// A file of the engine's journal ends, or is damaged, before its last known byte.
    JournalDamaged {
        /// Readable bytes.
        good_bytes: u64,
        /// Known length in bytes.
        written_bytes: u64,
    },
    /// The folder of a key space is missing.
    SpaceMissing {
        /// The key space.
        space: String,
        /// Number of its folder.
        id: u64,
    },
    /// The list of a key space's tables is missing, damaged or older than known.
    ListDamaged {
        /// The key space.
        space: String,
        /// Number of its folder.
        id: u64,
    },
    /// A table is missing or damaged.
    TableDamaged {
        /// The key space.
        space: String,
        /// Number of its folder.
        id: u64,
        /// The version that lists it.
        version: u64,
        /// The table.
        table: u64,
        /// The file does not exist.
        is_missing: bool,
    },
    /// A file or folder that the engine did not create.
    Stray,
}

impl Damage {
    /// The key space of the damaged table.
    pub fn table_of(&self) -> Option<u64> {
        match self.problem {
            Problem::TableDamaged { id, .. } => Some(id),
            _ => None,
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.problem {
            Problem::NoStore => write!(out, "{path} is missing: it had everything that the node stored"),
            Problem::JournalMissing => {
                write!(
                    out,
                    "{path} is missing: it had the latest changes of all key spaces; --accept-loss loses all that was stored since it \
                     began, in a young store everything"
                )
            }
            Problem::JournalDamaged { good_bytes, written_bytes } => write!(
                out,
                "{path} is damaged: {good_bytes} of at least {written_bytes} bytes can be read; the changes behind are lost"
            ),
            Problem::SpaceMissing { space, id } => {
                write!(out, "{path} is missing: it had the key space `{space}`{}", Loss(space, *id, "all"))
            }
            Problem::ListDamaged { space, id } if !self.path.ends_with(CURRENT) => write!(
                out,
                "{path} is missing or damaged, or {} is: they list the tables of the key space `{space}`{}",
                self.path.with_file_name(CURRENT).display(),
                Loss(space, *id, "up to all")
            ),
            Problem::ListDamaged { space, id } => write!(
                out,
                "{path} is missing or damaged: it lists the tables of the key space `{space}`{}",
                Loss(space, *id, "up to all")
            ),
            Problem::TableDamaged { space, id, is_missing, .. } => {
                let what = if *is_missing { "is missing" } else { "is damaged" };
                write!(
                    out,
                    "{path} {what}: it had entries of the key space `{space}`{}",
                    Loss(space, *id, "a part")
                )
            }
            Problem::Stray => write!(out, "{path} does not belong here; move it away"),
        }
    }
}

/// Loss by `--accept-loss`: name and number of the key space, and the lost part of it.
struct Loss<'a>(&'a str, u64, &'static str);

impl fmt::Display for Loss<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(space, id, share) = self;
        if *id == ENGINE_SPACE {
            return write!(
                out,
                "; nothing else can be found without it: --accept-loss loses EVERYTHING that the node stored, unless a newer \
                 list is whole"
            );
        }
        match contents(space) {
            Some(contents) => write!(out, "; --accept-loss loses {share} of: {contents}"),
            None => Ok(()),
        }
    }
}

/// Description of the contents of a key space.
fn contents(space: &str) -> Option<&'static str> {
    Some(match space {
        "apps" => "the apps that are deployed",
        "revisions" => "the code of revisions",
        "sources" => "the sources of functions",
        "fields" => "the stateful objects",
        "expiry" => "the last changes of objects that expire",
        "secrets" => "the secrets",
        "meta" => "the identity of the replica",
        "mqtt" => "MQTT sessions, subscriptions and retained messages",
        "mqtt-queue" => "messages for MQTT sessions",
        "invocations" => "durable invocations and workflows",
        _ => return None,
    })
}

/// Files of a key space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceFiles {
    /// Number of its folder.
    pub id: u64,
    /// Version of its list of tables.
    pub version: u64,
    /// Number of tables.
    pub tables: usize,
    /// Bytes of the tables.
    pub bytes: u64,
}

/// A file of the engine's journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalFile {
    /// Number in its name.
    pub id: u64,
    /// Bytes of complete batches.
    pub good_bytes: u64,
}

/// Result of the inspection.
#[derive(Debug, Default)]
pub struct Inspection {
    /// A database exists.
    pub exists: bool,
    /// Damage of its files.
    pub damage: Vec<Damage>,
    /// Files of the engine's journal, oldest first.
    pub journals: Vec<JournalFile>,
    /// Key spaces whose list of tables is readable.
    pub spaces: Vec<SpaceFiles>,
}

/// Checks the database in `store`, which must contain the files of the manifest. Verifies checksums of tables up to
/// `table_bytes` in all.
pub fn check_files(store: &Path, manifest: Option<&Manifest>, table_bytes: u64) -> io::Result<Inspection> {
    let mut found = Inspection::default();
    let journals = journals(store)?;
    let folders = folders(store, &mut found.damage)?;
    found.exists = !journals.is_empty() || !folders.is_empty() || store.join(MARKER).exists();
    if !found.exists {
        if manifest.is_some() {
            found.damage.push(Damage { path: store.to_owned(), problem: Problem::NoStore });
        }
        return Ok(found);
    }
    let mut left = table_bytes;
    let mut grown = false;
    let known = manifest.map(|manifest| &manifest.spaces[..]).unwrap_or_default();
    let mut all: BTreeSet<u64> = folders.iter().copied().chain(known.iter().map(|fact| fact.id)).collect();
    // After a crash during the first start the database may be only an empty folder.
    let is_begun =
        !known.is_empty() || all.iter().any(|id| *id != ENGINE_SPACE) || has_batches(store, &journals)?;
    all.extend(is_begun.then_some(ENGINE_SPACE));
    for id in all {
        let fact = known.iter().find(|fact| fact.id == id);
        let name = match fact {
            Some(fact) => fact.name.clone(),
            None if id == ENGINE_SPACE => ENGINE_SPACE_NAME.to_owned(),
            None => format!("number {id}"),
        };
        let space = Space { id, name, folder: key_space_files::folder(store, id) };
        let lowest = fact.map(|fact| fact.version);
        let is_known = fact.is_some() || (id == ENGINE_SPACE && is_begun);
        let expected = (lowest, is_known || manifest.is_none());
        if let Some(files) = space.inspect(expected, is_known, &mut left, &mut found.damage)? {
            grown |= lowest.is_some_and(|version| files.version > version);
            found.spaces.push(files);
        }
    }
    found.inspect_journals(store, &journals, manifest, grown)?;
    Ok(found)
}

impl Inspection {
    fn inspect_journals(
        &mut self,
        store: &Path,
        journals: &[u64],
        manifest: Option<&Manifest>,
        grown: bool,
    ) -> io::Result<()> {
        let known = manifest.map(|manifest| &manifest.journals[..]).unwrap_or_default();
        let is_closed = manifest.is_some_and(|manifest| manifest.closed);
        let mut missing = |id: u64| {
            self.damage.push(Damage { path: journal_path(store, id), problem: Problem::JournalMissing });
        };
        let Some((&first, &last)) = journals.first().zip(journals.last()) else {
            missing(known.last().map_or(0, |fact| fact.id));
            return Ok(());
        };
        // The engine numbers the files of its journal consecutively, and removes the oldest first, once all its entries
        // are in tables.
        for id in first..last {
            if !journals.contains(&id) {
                missing(id);
            }
        }
        for fact in known {
            // This includes the newest file of the manifest: the engine may have started another one and flushed since. After a stop
            // in order, too: a flush that had begun may end after the manifest was written.
            if fact.id > last || (fact.id < first && !grown) {
                missing(fact.id);
            }
        }
        for &id in journals {
            let path = journal_path(store, id);
            let examined = journal_repair::examine(&path)?;
            let least = known.iter().find(|fact| fact.id == id).map_or(0, |fact| fact.bytes);
            // Bytes after the last complete batch of the newest file were not synced yet.
            let lost = examined.kept_bytes < least
                || (examined.written_bytes > examined.kept_bytes && (id != last || is_closed));
            if lost {
                let problem = Problem::JournalDamaged {
                    good_bytes: examined.kept_bytes,
                    written_bytes: examined.written_bytes.max(least),
                };
                self.damage.push(Damage { path, problem });
            }
            self.journals.push(JournalFile { id, good_bytes: examined.kept_bytes });
        }
        Ok(())
    }
}

struct Space {
    id: u64,
    name: String,
    folder: PathBuf,
}

impl Space {
    fn inspect(
        &self,
        (lowest_version, may_be_known): (Option<u64>, bool),
        is_known: bool,
        left: &mut u64,
        damage: &mut Vec<Damage>,
    ) -> io::Result<Option<SpaceFiles>> {
        if !self.folder.exists() {
            let problem = Problem::SpaceMissing { space: self.name.clone(), id: self.id };
            damage.push(Damage { path: self.folder.clone(), problem });
            return Ok(None);
        }
        let list = |path: PathBuf| Damage {
            path,
            problem: Problem::ListDamaged { space: self.name.clone(), id: self.id },
        };
        let current = match key_space_files::read_current(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // A key space that was never finished has no tables, and is not in the manifest.
                if is_known || (may_be_known && self.has_tables()) {
                    damage.push(list(self.folder.join(CURRENT)));
                }
                return Ok(None);
            }
            current => current?,
        };
        let Some((version, checksum)) =
            current.filter(|(version, _)| lowest_version.is_none_or(|low| *version >= low))
        else {
            damage.push(list(self.folder.join(CURRENT)));
            return Ok(None);
        };
        let path = key_space_files::version_path(&self.folder, version);
        let levels = match key_space_files::read_version(&path, Some(checksum)) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            levels => levels?,
        };
        let Some(levels) = levels else {
            damage.push(list(path));
            return Ok(None);
        };
        let mut files = SpaceFiles { id: self.id, version, tables: 0, bytes: 0 };
        for table in levels.iter().flatten().flatten() {
            let path = key_space_files::table_path(&self.folder, table.id);
            let bytes = path.metadata().map(|metadata| metadata.len()).ok();
            let is_whole = match bytes {
                None => false,
                Some(bytes) if bytes <= *left => {
                    *left -= bytes;
                    key_space_files::is_table_whole(&path, table)?
                }
                Some(_) => key_space_files::has_table_of_contents(&path),
            };
            files.tables += 1;
            files.bytes += bytes.unwrap_or(0);
            if !is_whole {
                let problem = Problem::TableDamaged {
                    space: self.name.clone(),
                    id: self.id,
                    version,
                    table: table.id,
                    is_missing: bytes.is_none(),
                };
                damage.push(Damage { path, problem });
            }
        }
        let strays = names(&self.folder.join("tables"))?.into_iter().filter(|name| number(name).is_none());
        damage.extend(
            strays.map(|name| Damage {
                path: self.folder.join("tables").join(name),
                problem: Problem::Stray,
            }),
        );
        Ok(Some(files))
    }

    fn has_tables(&self) -> bool {
        names(&self.folder.join("tables")).is_ok_and(|names| !names.is_empty())
    }
}

/// Restores marker files, whose only content is that a database exists.
pub fn restore_markers(store: &Path, is_known: bool) -> io::Result<()> {
    let marker = store.join(MARKER);
    let is_version = |bytes: &[u8]| bytes.len() == MARKER_BYTES.len() && bytes.starts_with(b"FJL");
    let is_good = match std::fs::read(&marker) {
        // A database of another version of the engine is not restored.
        Ok(bytes) => bytes == MARKER_BYTES || (!is_known && is_version(&bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    if !is_good {
        tracing::warn!(file = %marker.display(), "a file of the store was missing or damaged, and is written again");
        replace_file(&marker, MARKER_BYTES)?;
    }
    let lock = store.join(LOCK);
    if !lock.exists() {
        std::fs::File::create(lock)?;
    }
    Ok(())
}

/// Path of a file of the engine's journal.
pub fn journal_path(store: &Path, id: u64) -> PathBuf {
    store.join(format!("{id}.jnl"))
}

/// Numbers of the files of the engine's journal, in order.
pub fn journals(store: &Path) -> io::Result<Vec<u64>> {
    let mut found: Vec<u64> =
        names(store)?.iter().filter_map(|name| number(name.strip_suffix(".jnl")?)).collect();
    found.sort_unstable();
    Ok(found)
}

fn has_batches(store: &Path, journals: &[u64]) -> io::Result<bool> {
    for id in journals {
        if journal_repair::examine(&journal_path(store, *id))?.kept_bytes > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

fn folders(store: &Path, damage: &mut Vec<Damage>) -> io::Result<Vec<u64>> {
    let spaces = store.join("keyspaces");
    let mut found = Vec::new();
    for name in names(&spaces)? {
        match number(&name) {
            Some(id) => found.push(id),
            None => damage.push(Damage { path: spaces.join(name), problem: Problem::Stray }),
        }
    }
    Ok(found)
}

fn number(name: &str) -> Option<u64> {
    name.parse().ok()
}

/// Names in a folder; empty if the folder does not exist.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let name =
        |entry: io::Result<std::fs::DirEntry>| Ok(OsStr::to_string_lossy(&entry?.file_name()).into_owned());
    entries.map(name).collect()
}

#[cfg(test)]
mod tests {
    use edgefaas_platform::Clock;

    use super::*;
    use crate::store::manifest::JournalFact;
    use crate::store::{Store, StoreOptions};

    /// After a stop in order, too: a flush that had begun ends after the manifest was written.
    #[test]
    fn a_file_of_the_engines_journal_may_be_missing_only_after_a_flush() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::new(|| 1_800_000_000_000);
        Store::open(&StoreOptions::small(dir.path()), clock).unwrap().close().unwrap();
        let store = dir.path().join("store");
        let last = *journals(&store).unwrap().last().unwrap();
        let kept = last + 1;
        std::fs::rename(journal_path(&store, last), journal_path(&store, kept)).unwrap();
        for closed in [true, false] {
            let facts = [last, kept].map(|id| JournalFact { id, bytes: 0 });
            let manifest = Manifest { closed, journals: facts.to_vec(), ..Manifest::default() };
            for (grown, missing) in [(true, 0), (false, 1)] {
                let mut found = Inspection::default();
                found.inspect_journals(&store, &[kept], Some(&manifest), grown).unwrap();
                assert_eq!(
                    found.damage.len(),
                    missing,
                    "closed {closed}, grown {grown}: {:?}",
                    found.damage
                );
            }
        }
    }
}
