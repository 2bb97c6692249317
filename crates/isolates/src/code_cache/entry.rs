//! An entry of the cache, and the size of all entries.
//!
//! A file has the native code, which can be mapped in place; then its metadata, the length of the metadata (4 bytes,
//! little-endian), and the authentication code of the entry's name and all of the above.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::CacheFolder;
use crate::memory_image::is_zero;

/// A temporary file of this age was left by a process that has ended.
const STALE_TEMPORARY: Duration = Duration::from_secs(3600);

/// Ratio: of the free room, one part in this number is written before the folder is looked through again.
const ALLOWED_SHARE: u64 = 4;

/// The block size of file systems, and the unit of `stat` (stat(2)).
const PAGE_BYTES: usize = 4096;
const BLOCK_BYTES: u64 = 512;

const CODE_BYTES: usize = blake3::OUT_LEN;
const LENGTH_BYTES: usize = size_of::<u32>();

/// An entry, whether its file exists or not.
pub(super) struct Entry<'a> {
    /// The file's name; all names have one length.
    pub name: String,
    pub path: PathBuf,
    pub folder: &'a CacheFolder,
}

/// A file that this node has written, unchanged.
pub(super) struct Authentic {
    /// Begins with the native code.
    pub file: File,
    /// The length of the native code.
    pub native_bytes: u64,
    /// Metadata of the entry.
    pub metadata: Vec<u8>,
}

impl<'a> Entry<'a> {
    pub fn new(folder: &'a CacheFolder, name: String) -> Self {
        Self { path: folder.path.join(&name), name, folder }
    }

    /// The file, if it exists and this node has written it. Its time of last use becomes `now`.
    pub fn open(&self, now: SystemTime) -> Option<Authentic> {
        let file = File::open(&self.path).ok()?;
        match self.check(file) {
            Ok(Some(authentic)) => {
                // Read by `make_room`. If it cannot be set, the entry is removed earlier.
                let used = File::options().append(true).open(&self.path);
                let _ = used.and_then(|file| file.set_modified(now));
                Some(authentic)
            }
            Ok(None) => {
                tracing::warn!(path = %self.path.display(), "compiled code is damaged or foreign; compiling it again");
                None
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "compiled code cannot be read; compiling it again");
                None
            }
        }
    }

    /// Reads the file piece by piece; only its metadata stays in memory.
    fn check(&self, file: File) -> std::io::Result<Option<Authentic>> {
        let bytes = file.metadata()?.len();
        let Some(signed_bytes) = bytes.checked_sub(CODE_BYTES as u64) else { return Ok(None) };
        let mut hasher = self.hasher();
        hasher.update_reader((&file).take(signed_bytes))?;
        let mut code = [0; CODE_BYTES];
        file.read_exact_at(&mut code, signed_bytes)?;
        if hasher.finalize() != code {
            return Ok(None);
        }
        let mut length = [0; LENGTH_BYTES];
        let Some(metadata_end) = signed_bytes.checked_sub(LENGTH_BYTES as u64) else { return Ok(None) };
        file.read_exact_at(&mut length, metadata_end)?;
        let length = u32::from_le_bytes(length);
        let Some(native_bytes) = metadata_end.checked_sub(length.into()) else { return Ok(None) };
        let mut metadata = vec![0; length as usize];
        file.read_exact_at(&mut metadata, native_bytes)?;
        Ok(Some(Authentic { file, native_bytes, metadata }))
    }

    /// A hasher that has the entry's name, so that one entry cannot take another's place.
    fn hasher(&self) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.folder.key);
        hasher.update(self.name.as_bytes());
        hasher
    }

    /// Writes the entry, and removes others to make room. False if the folder or its file system has no room for it.
    ///
    /// The folder is not looked through while `allowance` lasts: that many bytes may be written.
    pub fn write(
        &self,
        native: &[u8],
        metadata: &[u8],
        allowance: &AtomicU64,
        now: SystemTime,
    ) -> std::io::Result<bool> {
        static WRITES: AtomicU64 = AtomicU64::new(0);
        let bytes = (native.len() + metadata.len() + LENGTH_BYTES + CODE_BYTES) as u64;
        if bytes > self.folder.max_bytes {
            return Ok(false);
        }
        // With the rest of the last block.
        let taken_bytes = bytes + PAGE_BYTES as u64;
        let take = |left: u64| left.checked_sub(taken_bytes);
        if allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            let max_bytes = self.folder.max_bytes - bytes;
            let free_bytes = max_bytes.saturating_sub(make_room(&self.folder.path, max_bytes, now)?);
            // Other processes write as well: all together fill the folder a little more at worst.
            allowance.store(free_bytes / ALLOWED_SHARE, Ordering::Relaxed);
        }
        if !self.folder.has_room_for(bytes) {
            return Ok(false);
        }
        let write = WRITES.fetch_add(1, Ordering::Relaxed);
        let temporary = self.path.with_extension(format!("{}-{write}.tmp", std::process::id()));
        let written = self.write_to(&temporary, native, metadata);
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written.map(|()| true)
    }

    fn write_to(&self, temporary: &Path, native: &[u8], metadata: &[u8]) -> std::io::Result<()> {
        let length = u32::try_from(metadata.len()).map_err(std::io::Error::other)?.to_le_bytes();
        let mut hasher = self.hasher();
        hasher.update(native).update(metadata).update(&length);
        let mut file = File::options();
        let mut file = file.write(true).create(true).truncate(true).mode(0o600).open(temporary)?;
        match may_have_holes(&file) {
            true => write_sparse(&mut file, native)?,
            false => file.write_all(native)?,
        }
        for part in [metadata, &length, hasher.finalize().as_bytes()] {
            file.write_all(part)?;
        }
        drop(file);
        std::fs::rename(temporary, &self.path)
    }

    /// Removes the file, if it exists.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Authentic {
    /// True if the code can be mapped from the file: the file system does not have to allocate a page, for which it may
    /// have no room.
    pub fn is_mappable(&self) -> bool {
        let is_whole =
            || self.file.metadata().is_ok_and(|metadata| metadata.blocks() * BLOCK_BYTES >= metadata.len());
        may_have_holes(&self.file) || is_whole()
    }

    /// The native code, read into memory.
    pub fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut native = vec![0; usize::try_from(self.native_bytes).map_err(std::io::Error::other)?];
        self.file.read_exact_at(&mut native, 0)?;
        Ok(native)
    }
}

/// True if reading a hole of a file takes no room in the file system. File systems in memory take room for it, also when
/// the file is mapped: if they are full, the process gets a SIGBUS.
pub(super) fn may_have_holes(file: &File) -> bool {
    // statfs(2).
    const EXT: u32 = 0xef53;
    const XFS: u32 = 0x5846_5342;
    const BTRFS: u32 = 0x9123_683e;
    const F2FS: u32 = 0xf2f5_2010;
    rustix::fs::fstatfs(file).is_ok_and(|stat| [EXT, XFS, BTRFS, F2FS].contains(&(stat.f_type as u32)))
}

/// Pages of zeros, of which a memory image has many, take no room on the disk.
pub(super) fn write_sparse(file: &mut File, bytes: &[u8]) -> std::io::Result<()> {
    let mut hole = 0;
    for page in bytes.chunks(PAGE_BYTES) {
        if page.len() == PAGE_BYTES && is_zero(page) {
            hole += PAGE_BYTES as i64;
            continue;
        }
        if hole > 0 {
            file.seek_relative(std::mem::take(&mut hole))?;
        }
        file.write_all(page)?;
    }
    // The data after it is never empty, so that the file does not end with a hole.
    file.seek_relative(hole)
}

/// Removes the least recently used entries until the others have at most `max_bytes`, and temporary files that a process has
/// left. Returns the bytes of the others. Mapped code stays in memory while it is used.
pub(super) fn make_room(folder: &Path, max_bytes: u64, now: SystemTime) -> std::io::Result<u64> {
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        // Another node may be at work in the same folder.
        let Ok(metadata) = path.metadata() else { continue };
        let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("native") => kept.push((used, metadata.blocks() * BLOCK_BYTES, path)),
            Some("tmp") if now.duration_since(used).is_ok_and(|age| age > STALE_TEMPORARY) => {
                let _ = std::fs::remove_file(path);
            }
            _ => {}
        }
    }
    kept.sort();
    let mut total: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in kept {
        if total <= max_bytes {
            break;
        }
        let _ = std::fs::remove_file(path);
        total -= bytes;
    }
    Ok(total)
}
