//! Manifest of the store: the files that must exist when the store is opened.
//!
//! The engine treats a key space without its `current` file as unfinished and removes it; without its journal it starts
//! empty. So the node keeps its own list of key spaces and files of the engine's journal, in two copies: beside the
//! database and in it. The list is written at the start, when the files of the journal change, and at the end; each
//! write replaces the old file atomically. A missing or damaged copy is restored from the other one.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use edgefaas_platform::replace_file;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

const TITLE: &str = "edgefaas-store 1";
/// The copy beside the database and the copy in it.
const OUTER: &str = "store.manifest";
const INNER: &str = "manifest";

/// Files of a store at one moment. Newer files are not listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Increases with each manifest.
    pub number: u64,
    /// The store was closed after this manifest, and no write followed.
    pub closed: bool,
    /// Files of the engine's journal, oldest first. The engine writes to the last one.
    pub journals: Vec<JournalFact>,
    /// Key spaces, including the engine's own (folder 0).
    pub spaces: Vec<SpaceFact>,
}

/// A file of the engine's journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalFact {
    /// Number in its name.
    pub id: u64,
    /// Minimum length in bytes, without padding.
    pub bytes: u64,
}

/// A key space of the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceFact {
    /// Name of the key space.
    pub name: String,
    /// Number of its folder.
    pub id: u64,
    /// Version of its list of tables; it increases.
    pub version: u64,
}

/// Result of reading the two copies.
#[derive(Debug, Default)]
pub struct Found {
    /// The newest valid copy.
    pub manifest: Option<Manifest>,
    /// Copies that exist and are invalid.
    pub damaged: Vec<PathBuf>,
    /// Copies that do not exist.
    pub missing: Vec<PathBuf>,
}

fn copies(data_dir: &Path) -> [PathBuf; 2] {
    [data_dir.join(OUTER), data_dir.join("store").join(INNER)]
}

/// Reads both copies.
pub fn read(data_dir: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    for path in copies(data_dir) {
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                found.missing.push(path);
                continue;
            }
            Err(error) => return Err(error),
        };
        let Some(manifest) = decode(&bytes) else {
            found.damaged.push(path);
            continue;
        };
        let is_newer = found.manifest.as_ref().is_none_or(|other| other.number < manifest.number);
        if is_newer {
            found.manifest = Some(manifest);
        }
    }
    Ok(found)
}

/// Writes one copy after the other, so that one is valid at any time.
pub fn write(data_dir: &Path, manifest: &Manifest) -> io::Result<()> {
    let text = encode(manifest)?;
    copies(data_dir).iter().try_for_each(|path| replace_file(path, text.as_bytes()))
}

/// Removes both copies: a missing manifest is better than a wrong one.
pub fn remove(data_dir: &Path) -> io::Result<()> {
    for path in copies(data_dir) {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn encode(manifest: &Manifest) -> io::Result<String> {
    let body = serde_json::to_string(manifest)?;
    Ok(format!("{TITLE} {:016x}\n{body}\n", xxh3_64(body.as_bytes())))
}

fn decode(bytes: &[u8]) -> Option<Manifest> {
    let (head, body) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
    let body = body.strip_suffix('\n')?;
    let checksum = u64::from_str_radix(head.strip_prefix(TITLE)?.strip_prefix(' ')?, 16).ok()?;
    (checksum == xxh3_64(body.as_bytes())).then(|| serde_json::from_str(body).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(number: u64) -> Manifest {
        let spaces = vec![SpaceFact { name: "meta".into(), id: 6, version: 3 }];
        Manifest { number, closed: true, journals: vec![JournalFact { id: 2, bytes: 700 }], spaces }
    }

    #[test]
    fn one_copy_is_enough_and_the_newer_one_counts() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("store")).unwrap();
        assert_eq!(read(home.path()).unwrap().missing.len(), 2);
        write(home.path(), &manifest(1)).unwrap();
        let [outer, inner] = copies(home.path());
        // A crash between the two writes.
        replace_file(&outer, encode(&manifest(2)).unwrap().as_bytes()).unwrap();
        assert_eq!(read(home.path()).unwrap().manifest, Some(manifest(2)));
        for damage in [None, Some(0), Some(30)] {
            let mut bytes = encode(&manifest(2)).unwrap().into_bytes();
            match damage {
                None => std::fs::remove_file(&outer).unwrap(),
                Some(at) => {
                    bytes[at] ^= 1;
                    std::fs::write(&outer, &bytes).unwrap();
                }
            }
            let found = read(home.path()).unwrap();
            assert_eq!(found.manifest, Some(manifest(1)), "the other copy");
            assert_eq!(found.missing.len() + found.damaged.len(), 1);
        }
        std::fs::remove_file(&inner).unwrap();
        assert_eq!(read(home.path()).unwrap().manifest, None);
    }
}
