//! Repair of the end of the engine's journal after a power cut.
//!
//! Unsynced bytes may be on the disk in part: the start of a batch, or its end without its middle, since pages are
//! written in any order. The engine silently cuts an incomplete batch, but refuses the whole store for a damaged one.
//! So this module reads the newest file of the journal first, and cuts it after its last valid batch. Older files are
//! synced before a newer one is started.
//!
//! The format is that of fjall 3 (`journal/entry.rs`): a batch is `1`, its number of entries (u32) and a sequence number
//! (u64), the entries, and `3`, the XXH3 of the entries' bytes (u64) and `FJL\3`. An entry is `2`, type, compression,
//! key space (u64), lengths of key (u16), value (u32) and stored value (u32), key and stored value; or `4` and a key
//! space (u64). Numbers are little-endian.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

/// First byte of a batch.
const START: u8 = 1;

/// A cut of the engine's journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    /// The file.
    pub journal: PathBuf,
    /// Bytes of its valid part.
    pub kept_bytes: u64,
    /// Bytes cut off, up to the last written byte.
    pub lost_bytes: u64,
    /// The cut part contains complete batches: the disk may have changed synced bytes.
    pub is_in_the_middle: bool,
    /// Copy of the cut part, if the disk had room for it.
    pub put_aside: Option<PathBuf>,
}

/// Result of examining a file of the engine's journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Examined {
    /// Bytes of its complete batches.
    pub kept_bytes: u64,
    /// Bytes up to the last non-zero byte.
    pub written_bytes: u64,
}

/// Reads a file of the engine's journal.
pub(super) fn examine(journal: &Path) -> io::Result<Examined> {
    let file = File::open(journal)?;
    let kept_bytes = good_bytes(BufReader::with_capacity(1 << 16, &file))?;
    let written_bytes = written_bytes(&file, kept_bytes)?;
    Ok(Examined { kept_bytes, written_bytes })
}

/// Cuts the newest file of the journal in `folder` after its last valid batch; `None` if no byte follows it. A part
/// with complete batches behind the damage is saved in the folder `aside` first, and replaces older files there.
pub(super) fn cut_damaged(folder: &Path, aside: &Path) -> io::Result<Option<Cut>> {
    match newest(folder)? {
        Some(journal) => cut_journal(&journal, aside),
        None => Ok(None),
    }
}

/// Does the same as [`cut_damaged`], for any file of the journal.
pub(super) fn cut_journal(journal: &Path, aside: &Path) -> io::Result<Option<Cut>> {
    let Examined { kept_bytes, written_bytes } = examine(journal)?;
    if written_bytes == kept_bytes {
        return Ok(None);
    }
    let file = File::options().read(true).write(true).open(journal)?;
    let lost_bytes = written_bytes - kept_bytes;
    let rest = read_part(&file, kept_bytes, lost_bytes)?;
    let is_in_the_middle = has_whole_batch(&rest);
    let put_aside = match is_in_the_middle {
        true => put_aside(&rest, journal, kept_bytes, aside).ok(),
        false => None,
    };
    file.set_len(kept_bytes)?;
    file.sync_all()?;
    let journal = journal.to_owned();
    Ok(Some(Cut { journal, kept_bytes, lost_bytes, is_in_the_middle, put_aside }))
}

fn read_part(mut file: &File, from: u64, count: u64) -> io::Result<Vec<u8>> {
    let mut part = Vec::new();
    file.seek(io::SeekFrom::Start(from))?;
    file.take(count).read_to_end(&mut part)?;
    Ok(part)
}

/// True if a complete batch begins behind the damage, which is at the start of `rest`.
fn has_whole_batch(rest: &[u8]) -> bool {
    let starts = rest.iter().enumerate().skip(1).filter(|(_, byte)| **byte == START);
    starts.into_iter().any(|(at, _)| matches!(Reader::new(&rest[at..]).batch(), Ok(true)))
}

/// Writes the cut part to a file whose name gives its position.
fn put_aside(rest: &[u8], journal: &Path, from: u64, aside: &Path) -> io::Result<PathBuf> {
    match std::fs::DirBuilder::new().mode(0o700).create(aside) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let journal = journal.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    let path = aside.join(format!("journal-{journal}-from-{from}"));
    let mut copy = File::options().create(true).truncate(true).write(true).mode(0o600).open(&path)?;
    copy.write_all(rest)?;
    copy.sync_all()?;
    Ok(path)
}

/// The file that the engine writes to: the one with the highest number.
pub(super) fn newest(folder: &Path) -> io::Result<Option<PathBuf>> {
    let mut newest = None;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(OsStr::to_str).and_then(|stem| stem.parse::<u64>().ok());
        if path.extension() == Some(OsStr::new("jnl")) && number.is_some() {
            newest = newest.max(number.map(|number| (number, path)));
        }
    }
    Ok(newest.map(|(_, path)| path))
}

/// Length of the valid batches at the start of the file.
fn good_bytes(journal: impl Read) -> io::Result<u64> {
    let mut reader = Reader::new(journal);
    loop {
        let good = reader.position;
        match reader.batch() {
            Ok(true) => {}
            Ok(false) => return Ok(good),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(good),
            Err(error) => return Err(error),
        }
    }
}

/// Position behind the last non-zero byte; `from` if all bytes behind it are zero. The engine preallocates its files.
fn written_bytes(mut file: &File, from: u64) -> io::Result<u64> {
    let (mut position, mut written) = (file.seek(io::SeekFrom::Start(from))?, from);
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = file.read(&mut bytes)?;
        if count == 0 {
            return Ok(written);
        }
        if let Some(last) = bytes[..count].iter().rposition(|byte| *byte != 0) {
            written = position + last as u64 + 1;
        }
        position += count as u64;
    }
}

struct Reader<R> {
    journal: R,
    position: u64,
    /// Sequence number of the last batch; they increase.
    sequence_number: u64,
    checksum: Xxh3,
}

impl<R: Read> Reader<R> {
    fn new(journal: R) -> Self {
        Self { journal, position: 0, sequence_number: 0, checksum: Xxh3::new() }
    }

    /// Reads a batch; false if it is invalid.
    fn batch(&mut self) -> io::Result<bool> {
        let [start] = self.take()?;
        let entries = u32::from_le_bytes(self.take()?);
        let sequence_number = u64::from_le_bytes(self.take()?);
        if start != START || sequence_number < self.sequence_number {
            return Ok(false);
        }
        self.sequence_number = sequence_number;
        self.checksum.reset();
        for _ in 0..entries {
            let [tag] = self.take()?;
            match tag {
                2 => {
                    let [_kind, compression] = self.take()?;
                    let _space: [u8; 8] = self.take()?;
                    let key = u16::from_le_bytes(self.take()?);
                    let value = u32::from_le_bytes(self.take()?);
                    let stored = u32::from_le_bytes(self.take()?);
                    if compression > 1 || (compression == 0 && stored != value) {
                        return Ok(false);
                    }
                    self.skip(u64::from(key) + u64::from(stored))?;
                }
                4 => drop(self.take::<8>()?),
                _ => return Ok(false),
            }
        }
        let found = self.checksum.digest();
        let [end] = self.take()?;
        let expected = u64::from_le_bytes(self.take()?);
        let trailer: [u8; 4] = self.take()?;
        Ok(end == 3 && trailer == *b"FJL\x03" && expected == found)
    }

    fn take<const COUNT: usize>(&mut self) -> io::Result<[u8; COUNT]> {
        let mut bytes = [0; COUNT];
        self.journal.read_exact(&mut bytes)?;
        self.passed(&bytes);
        Ok(bytes)
    }

    fn skip(&mut self, count: u64) -> io::Result<()> {
        let mut left = count;
        let mut bytes = [0; 4096];
        while left > 0 {
            let some = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            self.journal.read_exact(&mut bytes[..some])?;
            self.passed(&bytes[..some]);
            left -= some as u64;
        }
        Ok(())
    }

    fn passed(&mut self, bytes: &[u8]) {
        self.position += bytes.len() as u64;
        self.checksum.update(bytes);
    }
}

#[cfg(test)]
mod tests {
    use fjall::{Database, KeyspaceCreateOptions, PersistMode};
    use proptest::prelude::*;

    use super::*;

    const BATCHES: u64 = 40;

    /// A database of some batches; returns the length of its journal after each batch.
    fn database(folder: &Path) -> Vec<u64> {
        let database = Database::builder(folder).open().unwrap();
        let space = database.keyspace("space", KeyspaceCreateOptions::default).unwrap();
        let mut lengths = Vec::new();
        let journal = newest(folder).unwrap().unwrap();
        for number in 0..BATCHES {
            let mut batch = database.batch();
            // Some of the values are compressed.
            let value = if number % 3 == 0 { vec![7; 9000] } else { number.to_le_bytes().repeat(4) };
            batch.insert(&space, number.to_be_bytes(), value);
            batch.insert(&space, b"last", number.to_be_bytes());
            if number % 5 == 0 {
                batch.remove(&space, b"gone");
            }
            batch.commit().unwrap();
            database.persist(PersistMode::SyncAll).unwrap();
            lengths.push(good_bytes(File::open(&journal).unwrap()).unwrap());
        }
        lengths
    }

    /// Number of complete batches.
    fn batches(folder: &Path) -> u64 {
        let database = Database::builder(folder).open().expect("it opens");
        let space = database.keyspace("space", KeyspaceCreateOptions::default).unwrap();
        let count =
            (0..BATCHES).take_while(|number| space.get(number.to_be_bytes()).unwrap().is_some()).count();
        let last =
            space.get(b"last").unwrap().map(|last| u64::from_be_bytes(last[..].try_into().unwrap()) + 1);
        assert_eq!(last.unwrap_or(0), count as u64);
        count as u64
    }

    #[test]
    fn the_journal_of_the_engine_is_understood() {
        let home = tempfile::tempdir().unwrap();
        let lengths = database(home.path());
        assert!(lengths.is_sorted_by(|one, next| one < next), "every batch is seen: {lengths:?}");
        assert_eq!(
            cut_damaged(home.path(), &home.path().join("aside")).unwrap(),
            None,
            "nothing is wrong with it"
        );
        assert_eq!(batches(home.path()), BATCHES);
    }

    #[test]
    fn whole_batches_behind_the_damage_are_put_aside() {
        use std::os::unix::fs::FileExt;
        let home = tempfile::tempdir().unwrap();
        let lengths = database(home.path());
        let journal = newest(home.path()).unwrap().unwrap();
        let before = std::fs::read(&journal).unwrap();
        let file = File::options().write(true).open(&journal).unwrap();
        // A byte of the checksum of a batch in the middle.
        file.write_all_at(b"?", lengths[20] - 6).unwrap();
        let aside = home.path().join("aside");
        let cut = cut_damaged(home.path(), &aside).unwrap().expect("it is damaged");
        assert_eq!(cut.kept_bytes, lengths[19]);
        assert!(cut.is_in_the_middle);
        let kept = std::fs::read(cut.put_aside.expect("there is room")).unwrap();
        let (from, to) = (lengths[20] as usize, *lengths.last().unwrap() as usize);
        assert_eq!(kept.len() as u64, cut.lost_bytes);
        assert_eq!(kept[from - lengths[19] as usize..], before[from..to]);
        assert_eq!(batches(home.path()), 20);
        // The last batch: no batch follows it.
        let length = good_bytes(File::open(newest(home.path()).unwrap().unwrap()).unwrap()).unwrap();
        let file = File::options().write(true).open(newest(home.path()).unwrap().unwrap()).unwrap();
        file.write_all_at(b"\x01half a batch", length).unwrap();
        assert!(!cut_damaged(home.path(), &aside).unwrap().expect("it is damaged").is_in_the_middle);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn what_is_before_the_damage_stays(at in 0.0..1.0f64, bytes in 1..5000usize, with in any::<u8>(), short in any::<bool>()) {
            use std::os::unix::fs::FileExt;
            let home = tempfile::tempdir().unwrap();
            let lengths = database(home.path());
            let journal = newest(home.path()).unwrap().unwrap();
            // A position after the creation of the key space, which is the first record of the journal.
            let (start, end) = (lengths[0], *lengths.last().unwrap());
            let from = start + ((end - start) as f64 * at) as u64;
            let file = File::options().read(true).write(true).open(&journal).unwrap();
            let mut before = vec![0; bytes.min((end - from) as usize)];
            file.read_exact_at(&mut before, from).unwrap();
            let changed = before.iter().position(|byte| *byte != with).map(|offset| from + offset as u64);
            if short {
                file.set_len(from).unwrap();
            } else {
                file.write_all_at(&vec![with; before.len()], from).unwrap();
            }
            let damaged_at = if short { Some(from) } else { changed };
            let whole = lengths.iter().filter(|length| damaged_at.is_none_or(|at| **length <= at)).count() as u64;
            let kept = lengths[whole as usize - 1];
            // Sequence numbers have no checksum: an increased one stays unnoticed.
            let in_batch = damaged_at.map_or(0, |at| at - kept);
            prop_assume!(!(5..13).contains(&in_batch));
            let cut = cut_damaged(home.path(), &home.path().join("aside")).unwrap();
            if short || damaged_at.is_none() {
                prop_assert_eq!(cut.is_some(), short && from > kept);
            }
            if let Some(cut) = cut {
                prop_assert_eq!((cut.kept_bytes, &cut.journal), (kept, &journal));
            }
            prop_assert_eq!(batches(home.path()), whole);
        }
    }
}
