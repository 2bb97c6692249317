//! Blobs of the store that members fetch: small ones in memory, large ones in unlinked files, which end with the process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::artefacts::{BlobDigest, MAX_SERVED_BLOBS, Tree};
use tokio::time::Instant;

use super::Holder;

/// Size of a blob that is served from memory.
const SMALL_BYTES: usize = 2 << 20;
/// Maximum of memory for blobs that are served; a single one may be larger if the disk is full.
const MAX_SERVED_BYTES: usize = 16 << 20;
/// Time without use after which a blob has to be read from the store again.
const KEEP: Duration = Duration::from_secs(30);

/// A blob to serve. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Content {
    pub tree: Arc<Tree>,
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    Memory(Bytes),
    File(Arc<File>),
}

impl Content {
    /// Reads a blob of the store. Blocks; the blob is in memory as a whole meanwhile.
    pub fn load(dir: &Path, holder: &dyn Holder, blob: &BlobDigest) -> Option<Self> {
        let bytes = holder.read(blob)?;
        let (digest, tree) = Tree::of(&bytes).ok()?;
        if digest != *blob {
            tracing::warn!(%blob, "the store has other bytes under this digest");
            return None;
        }
        let place = match spool(dir, holder, &bytes) {
            Ok(Some(file)) => Place::File(Arc::new(file)),
            Ok(None) => Place::Memory(bytes),
            Err(error) => {
                tracing::debug!(%blob, %error, "an artefact is served from memory");
                Place::Memory(bytes)
            }
        };
        Some(Self { tree: Arc::new(tree), place })
    }

    /// Reads a chunk. Blocks.
    pub fn read_chunk(&self, index: usize) -> io::Result<Bytes> {
        let range = self.tree.range(index);
        match &self.place {
            Place::Memory(bytes) => Ok(bytes.slice(range)),
            Place::File(file) => {
                let mut bytes = vec![0; range.len()];
                file.read_exact_at(&mut bytes, range.start as u64)?;
                Ok(bytes.into())
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        match &self.place {
            Place::Memory(bytes) => bytes.len(),
            Place::File(_) => 0,
        }
    }
}

/// Writes a large blob to a file, if the disk has room for it.
fn spool(dir: &Path, holder: &dyn Holder, bytes: &[u8]) -> io::Result<Option<File>> {
    if bytes.len() <= SMALL_BYTES || holder.room_bytes() < bytes.len() as u64 {
        return Ok(None);
    }
    let mut file = tempfile::tempfile_in(dir)?;
    file.write_all(bytes)?;
    Ok(Some(file))
}

/// The blobs that were served last.
#[derive(Debug, Default)]
pub(super) struct Served {
    blobs: BTreeMap<BlobDigest, (Content, Instant)>,
}

impl Served {
    /// A blob, which counts as used now.
    pub fn get(&mut self, blob: &BlobDigest, now: Instant) -> Option<Content> {
        let (content, used_at) = self.blobs.get_mut(blob)?;
        *used_at = now;
        Some(content.clone())
    }

    /// Adds a blob; those that were not used for longest make room.
    pub fn insert(&mut self, blob: BlobDigest, content: Content, now: Instant) {
        let added_bytes = content.memory_bytes();
        loop {
            let memory_bytes: usize = self.blobs.values().map(|(content, _)| content.memory_bytes()).sum();
            let fits = self.blobs.len() < MAX_SERVED_BLOBS
                && (added_bytes == 0 || memory_bytes + added_bytes <= MAX_SERVED_BYTES);
            let oldest = self.blobs.iter().min_by_key(|(_, (_, used_at))| *used_at);
            match oldest.map(|(oldest, _)| *oldest).filter(|_| !fits) {
                Some(oldest) => self.blobs.remove(&oldest),
                None => break,
            };
        }
        self.blobs.insert(blob, (content, now));
    }

    /// Removes a blob.
    pub fn remove(&mut self, blob: &BlobDigest) {
        self.blobs.remove(blob);
    }

    /// Removes blobs that are no longer used.
    pub fn sweep(&mut self, now: Instant) {
        self.blobs.retain(|_, (_, used_at)| now.duration_since(*used_at) < KEEP);
    }
}
