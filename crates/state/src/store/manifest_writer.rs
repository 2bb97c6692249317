//! Updates of the manifest while the store is open.

use std::io;
use std::path::{Path, PathBuf};

use fjall::Keyspace;
use parking_lot::Mutex;

use super::file_check::{ENGINE_SPACE, journal_path, journals};
use super::journal_repair;
use super::key_space_files;
use super::manifest::{self, JournalFact, Manifest, SpaceFact};

/// State of the store when its manifest is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The engine's journal is synced.
    Synced,
    /// Changes are being written.
    Running,
    /// The engine's journal is synced, and no further write follows.
    Closed,
}

/// Writes the manifest of one store.
pub struct ManifestWriter {
    data_dir: PathBuf,
    store: PathBuf,
    last: Mutex<Manifest>,
}

impl ManifestWriter {
    /// Continues from the manifest that was found.
    pub fn new(data_dir: &Path, store: &Path, found: Option<Manifest>) -> Self {
        let last = Mutex::new(found.unwrap_or_default());
        Self { data_dir: data_dir.to_owned(), store: store.to_owned(), last }
    }

    /// Marks the store as open: later changes are not in the manifest.
    pub fn open(&self) -> io::Result<()> {
        let mut last = self.last.lock();
        if last.closed {
            last.closed = false;
            last.number += 1;
            manifest::write(&self.data_dir, &last).or_else(|error| {
                // On a full disk the manifest is removed, since a manifest that says "closed" would be wrong from now
                // on.
                tracing::warn!(%error, "the store's manifest could not be written, and is removed for now");
                manifest::remove(&self.data_dir)
            })?;
        }
        Ok(())
    }

    /// True if the files of the engine's journal differ from the manifest.
    pub fn is_stale(&self) -> bool {
        let known: Vec<u64> = self.last.lock().journals.iter().map(|fact| fact.id).collect();
        journals(&self.store).is_ok_and(|journals| journals != known)
    }

    /// Writes a manifest of the current files. An error is logged: the last manifest is still valid.
    pub fn write(&self, spaces: &[Keyspace], moment: Moment) {
        let mut last = self.last.lock();
        let written = self.describe(&last, spaces, moment).and_then(|manifest| {
            manifest::write(&self.data_dir, &manifest)?;
            *last = manifest;
            Ok(())
        });
        if let Err(error) = written {
            tracing::warn!(%error, "the store's manifest could not be written");
        }
    }

    fn describe(&self, last: &Manifest, spaces: &[Keyspace], moment: Moment) -> io::Result<Manifest> {
        // Tables are listed before the files of the engine's journal: the engine removes those after a change of
        // version.
        let mut facts = vec![self.space("(names of key spaces)", ENGINE_SPACE)?];
        for space in spaces {
            facts.push(self.space(space.name(), space.id())?);
        }
        let ids = journals(&self.store)?;
        let newest = ids.last().copied();
        let mut found = Vec::new();
        for id in ids {
            let known = last.journals.iter().position(|fact| fact.id == id);
            let was_sealed = known.is_some_and(|at| at + 1 < last.journals.len());
            let known_bytes = known.map_or(0, |at| last.journals[at].bytes);
            let is_settled = newest != Some(id) || moment != Moment::Running;
            let bytes = match is_settled && !was_sealed {
                true => journal_repair::examine(&journal_path(&self.store, id))?.kept_bytes,
                false => known_bytes,
            };
            found.push(JournalFact { id, bytes });
        }
        let closed = moment == Moment::Closed;
        Ok(Manifest { number: last.number + 1, closed, journals: found, spaces: facts })
    }

    fn space(&self, name: &str, id: u64) -> io::Result<SpaceFact> {
        let current = key_space_files::read_current(&key_space_files::folder(&self.store, id))?;
        let (version, _) = current.ok_or(io::ErrorKind::InvalidData)?;
        Ok(SpaceFact { name: name.to_owned(), id, version })
    }
}
