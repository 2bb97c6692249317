//! On-disk format of a key space, read without the engine.
//!
//! A key space is a folder `keyspaces/NUMBER` (lsm-tree 3): `current` has the number of the valid version (u64), the
//! XXH3-128 of its file and a type of checksum (0). `vNUMBER` is an archive whose section `tables` lists the tables: number
//! of levels (u8), for each its runs (u8), for each its tables (u32), for each of them its number (u64), type of checksum
//! (u8, 0), XXH3-128 of its file and a sequence number (u64). A table is the file `tables/NUMBER`. Numbers are
//! little-endian.

use std::fs::File;
use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use edgefaas_platform::replace_file;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The name of the file with the number of the valid version.
pub const CURRENT: &str = "current";
const CURRENT_BYTES: usize = 25;
const TABLES: &[u8] = b"tables";
/// All sections of a version's file, in order.
const SECTIONS: [&str; 8] = [
    "format_version",
    "crate_version",
    "tree_type",
    "level_count",
    "filter_hash_type",
    "tables",
    "blob_files",
    "blob_gc_stats",
];

/// A table of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFact {
    /// The number in its name.
    pub id: u64,
    checksum: u128,
    sequence_number: u64,
}

/// The tables of a version by level and run.
pub type Levels = Vec<Vec<Vec<TableFact>>>;

/// The folder of a key space.
pub fn folder(store: &Path, id: u64) -> PathBuf {
    store.join("keyspaces").join(id.to_string())
}

/// The file of a version.
pub fn version_path(space: &Path, version: u64) -> PathBuf {
    space.join(format!("v{version}"))
}

/// The file of a table.
pub fn table_path(space: &Path, table: u64) -> PathBuf {
    space.join("tables").join(table.to_string())
}

/// Number of the current version, and the checksum of its file; `None` if the content is invalid.
pub fn read_current(space: &Path) -> io::Result<Option<(u64, u128)>> {
    let bytes = std::fs::read(space.join(CURRENT))?;
    let Ok(bytes) = <[u8; CURRENT_BYTES]>::try_from(bytes) else { return Ok(None) };
    let mut bytes = &bytes[..];
    let (version, checksum) =
        (u64::from_le_bytes(take(&mut bytes)?), u128::from_le_bytes(take(&mut bytes)?));
    // No file has the checksum 0.
    Ok((bytes == [0] && checksum != 0).then_some((version, checksum)))
}

/// Tables of a version; `None` if its file is damaged. `checksum` is the checksum in `current`.
pub fn read_version(path: &Path, checksum: Option<u128>) -> io::Result<Option<Levels>> {
    let bytes = std::fs::read(path)?;
    if checksum.is_some_and(|checksum| checksum != xxh3_128(&bytes)) {
        return Ok(None);
    }
    let Ok(archive) = sfa::Reader::from_reader(&mut Cursor::new(&bytes)) else { return Ok(None) };
    Ok(section(&bytes, &archive, TABLES).and_then(|tables| levels(tables).ok()))
}

fn section<'a>(bytes: &'a [u8], archive: &sfa::Reader, name: &[u8]) -> Option<&'a [u8]> {
    let entry = archive.toc().section(name)?;
    let start = usize::try_from(entry.pos()).ok()?;
    bytes.get(start..start.checked_add(usize::try_from(entry.len()).ok()?)?)
}

fn levels(mut bytes: &[u8]) -> io::Result<Levels> {
    let bytes = &mut bytes;
    let [count] = take(bytes)?;
    let level = |bytes: &mut &[u8]| {
        let [runs] = take(bytes)?;
        let run = |bytes: &mut &[u8]| {
            let count = u32::from_le_bytes(take(bytes)?);
            (0..count).map(|_| table(bytes)).collect::<io::Result<Vec<_>>>()
        };
        (0..runs).map(|_| run(bytes)).collect::<io::Result<Vec<_>>>()
    };
    (0..count).map(|_| level(bytes)).collect()
}

fn table(bytes: &mut &[u8]) -> io::Result<TableFact> {
    let id = u64::from_le_bytes(take(bytes)?);
    let [kind] = take(bytes)?;
    let checksum = u128::from_le_bytes(take(bytes)?);
    let sequence_number = u64::from_le_bytes(take(bytes)?);
    if kind != 0 {
        return Err(ErrorKind::InvalidData.into());
    }
    Ok(TableFact { id, checksum, sequence_number })
}

fn take<const COUNT: usize>(bytes: &mut &[u8]) -> io::Result<[u8; COUNT]> {
    let mut taken = [0; COUNT];
    bytes.read_exact(&mut taken)?;
    Ok(taken)
}

/// True if the checksum of a table's file is correct.
pub fn is_table_whole(path: &Path, table: &TableFact) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut hasher = Xxh3::new();
    let mut bytes = vec![0; 1 << 16];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(hasher.digest128() == table.checksum),
            count => hasher.update(&bytes[..count]),
        }
    }
}

/// True if the end of a table's file, which the engine reads when it opens the table, is valid.
pub fn has_table_of_contents(path: &Path) -> bool {
    sfa::Reader::new(path).is_ok()
}

/// Writes a version without the dropped tables, and makes it current.
pub fn drop_tables(space: &Path, version: u64, dropped: &[u64]) -> io::Result<()> {
    let bytes = std::fs::read(version_path(space, version))?;
    let new = filtered(&bytes, |table| !dropped.contains(&table.id))?;
    replace_file(&version_path(space, version + 1), &new)?;
    make_current(space, version + 1, &new)
}

/// Makes an empty key space. `other` is the version file of any other key space.
pub fn make_empty(space: &Path, version: u64, other: &Path) -> io::Result<()> {
    std::fs::create_dir_all(space.join("tables"))?;
    let new = filtered(&std::fs::read(other)?, |_| false)?;
    replace_file(&version_path(space, version), &new)?;
    make_current(space, version, &new)
}

/// The file of a version, reduced to the tables that `keep` accepts.
fn filtered(bytes: &[u8], keep: impl Fn(&TableFact) -> bool) -> io::Result<Vec<u8>> {
    let damaged = || io::Error::from(ErrorKind::InvalidData);
    let archive = sfa::Reader::from_reader(&mut Cursor::new(bytes)).map_err(|_| damaged())?;
    let mut new = sfa::Writer::from_writer(Cursor::new(Vec::new()));
    for name in SECTIONS {
        let old = section(bytes, &archive, name.as_bytes()).ok_or_else(damaged)?;
        new.start(name)?;
        match name.as_bytes() == TABLES {
            true => new.write_all(&encoded(levels(old)?, &keep))?,
            false => new.write_all(old)?,
        }
    }
    Ok(new.into_inner().map_err(|_| damaged())?.into_inner())
}

/// Writes `file` as this version and makes it current.
pub fn make_current(space: &Path, version: u64, file: &[u8]) -> io::Result<()> {
    let mut current = version.to_le_bytes().to_vec();
    current.extend(xxh3_128(file).to_le_bytes());
    current.push(0);
    replace_file(&space.join(CURRENT), &current)
}

fn encoded(levels: Levels, keep: impl Fn(&TableFact) -> bool) -> Vec<u8> {
    let mut bytes = vec![levels.len() as u8];
    for runs in levels {
        let kept = runs.into_iter().map(|run| run.into_iter().filter(&keep).collect::<Vec<_>>());
        let kept: Vec<_> = kept.filter(|run| !run.is_empty()).collect();
        bytes.push(kept.len() as u8);
        for run in kept {
            bytes.extend((run.len() as u32).to_le_bytes());
            for table in run {
                bytes.extend(table.id.to_le_bytes());
                bytes.push(0);
                bytes.extend(table.checksum.to_le_bytes());
                bytes.extend(table.sequence_number.to_le_bytes());
            }
        }
    }
    bytes
}
