//! Repair of a damaged store after the operator has accepted the loss (`--accept-loss`).
//!
//! The repair cuts an engine's journal before its damage, and removes a damaged table from the list of its key space. A
//! key space whose list is missing gets the newest complete list, else it becomes empty. All removed files are moved to
//! a separate folder first.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::file_check::{Damage, ENGINE_SPACE, Problem, journal_path, journals};
use super::journal_repair;
use super::key_space_files;
use super::manifest::Manifest;

/// Repairs the database in `store` so that the engine can open it. Damaged files are moved to the folder `aside` and
/// replace older files there. Returns false if no part of the database is left.
pub fn repair(
    store: &Path,
    aside: &Path,
    manifest: Option<&Manifest>,
    damage: &[Damage],
) -> io::Result<bool> {
    match std::fs::remove_dir_all(aside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => DirBuilder::new().recursive(true).mode(0o700).create(aside)?,
    }
    let repair = Repair { store, aside, manifest };
    let is_engine = |damage: &&Damage| match &damage.problem {
        Problem::SpaceMissing { id, .. }
        | Problem::ListDamaged { id, .. }
        | Problem::TableDamaged { id, .. } => *id == ENGINE_SPACE,
        Problem::NoStore => true,
        _ => false,
    };
    for one in damage {
        tracing::error!("lost: {one}");
    }
    // Key spaces cannot be found without the engine's own key space, which maps their names.
    let is_gone = damage.iter().any(|damage| matches!(damage.problem, Problem::NoStore));
    if damage.iter().any(|damage| is_engine(&damage)) && (is_gone || !repair.relist(ENGINE_SPACE)?) {
        repair.everything()?;
        return Ok(false);
    }
    let lists = damage.iter().filter(|damage| !is_engine(damage));
    for one in lists {
        match &one.problem {
            // Tables are handled below, all of one list together.
            Problem::NoStore | Problem::JournalMissing | Problem::TableDamaged { .. } => {}
            Problem::SpaceMissing { id, .. } => repair.empty(*id)?,
            Problem::JournalDamaged { .. } => drop(journal_repair::cut_journal(&one.path, aside)?),
            Problem::ListDamaged { id, .. } => {
                if !repair.relist(*id)? {
                    repair.empty(*id)?;
                }
            }
            Problem::Stray => repair.put_aside(&one.path)?,
        }
    }
    let spaces: BTreeSet<u64> = damage.iter().filter_map(|damage| damage.table_of()).collect();
    for id in spaces.into_iter().filter(|id| *id != ENGINE_SPACE) {
        repair.drop_tables(id, damage)?;
    }
    // The engine learns its sequence numbers from its journal: an empty set of journals would reset them.
    if journals(store)?.is_empty() {
        let known = manifest.and_then(|manifest| manifest.journals.last()).map_or(0, |fact| fact.id);
        File::create(journal_path(store, known + 1))?.sync_all()?;
    }
    File::open(store)?.sync_all()?;
    Ok(true)
}

struct Repair<'a> {
    store: &'a Path,
    aside: &'a Path,
    manifest: Option<&'a Manifest>,
}

impl Repair<'_> {
    /// Makes the newest list of tables current, if the list and its tables are complete; false if they are not. An
    /// older list would restore a past state of the key space, which does not match the engine's journal.
    fn relist(&self, id: u64) -> io::Result<bool> {
        let space = &key_space_files::folder(self.store, id);
        if !space.is_dir() {
            return Ok(false);
        }
        let known = self.manifest.and_then(|manifest| manifest.spaces.iter().find(|fact| fact.id == id));
        let valid = key_space_files::read_current(space).ok().flatten().map(|(version, _)| version);
        let mut newest = None;
        for entry in std::fs::read_dir(space)? {
            let name = entry?.file_name();
            newest = newest.max(name.to_str().and_then(|name| name.strip_prefix('v')?.parse::<u64>().ok()));
        }
        let least = known.map(|fact| fact.version).max(valid);
        let Some(version) = newest.filter(|newest| least.is_none_or(|least| *newest >= least)) else {
            return Ok(false);
        };
        let path = key_space_files::version_path(space, version);
        let Some(levels) = key_space_files::read_version(&path, None)? else { return Ok(false) };
        let is_whole = levels.iter().flatten().flatten().all(|table| {
            key_space_files::is_table_whole(&key_space_files::table_path(space, table.id), table)
                .unwrap_or(false)
        });
        if is_whole {
            key_space_files::make_current(space, version, &std::fs::read(path)?)?;
        }
        Ok(is_whole)
    }

    /// Empties a key space but keeps its number: its entries in the engine's journal are still to be read.
    fn empty(&self, id: u64) -> io::Result<()> {
        let space = key_space_files::folder(self.store, id);
        if space.exists() {
            self.put_aside(&space)?;
        }
        let engine = key_space_files::folder(self.store, ENGINE_SPACE);
        let Some((template, _)) = key_space_files::read_current(&engine)? else {
            return Err(ErrorKind::InvalidData.into());
        };
        let known = self.manifest.and_then(|manifest| manifest.spaces.iter().find(|fact| fact.id == id));
        let version = known.map_or(0, |fact| fact.version + 1);
        key_space_files::make_empty(&space, version, &key_space_files::version_path(&engine, template))
    }

    fn drop_tables(&self, space: u64, damage: &[Damage]) -> io::Result<()> {
        let mut dropped = Vec::new();
        let mut listed_in = 0;
        for one in damage {
            if let Problem::TableDamaged { id, version, table, is_missing, .. } = one.problem
                && id == space
            {
                listed_in = version;
                dropped.push(table);
                if !is_missing {
                    self.put_aside(&one.path)?;
                }
            }
        }
        match dropped.is_empty() {
            true => Ok(()),
            false => key_space_files::drop_tables(
                &key_space_files::folder(self.store, space),
                listed_in,
                &dropped,
            ),
        }
    }

    fn everything(&self) -> io::Result<()> {
        if self.store.exists() {
            std::fs::rename(self.store, self.aside.join("store"))?;
        }
        DirBuilder::new().mode(0o700).create(self.store)
    }

    /// Moves a file or folder; its new name is made of its old path.
    fn put_aside(&self, path: &Path) -> io::Result<()> {
        let place: PathBuf = path.strip_prefix(self.store).unwrap_or(path).into();
        let name: Vec<_> = place.iter().map(|part| part.to_string_lossy()).collect();
        std::fs::rename(path, self.aside.join(name.join("-")))
    }
}
