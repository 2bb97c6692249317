//! The file of a blob that is being fetched.
//!
//! It begins with the tree: 4 bytes of length (big endian) and the tree's message, padded to whole pages. Then follow the
//! bytes of the blob. Which chunks are there is not written down: they are verified when the file is opened, so neither a
//! crash nor a power cut can leave a wrong chunk that counts.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use edgefaas_cluster::artefacts::wire::{MESSAGE_LIMIT_BYTES, TreeParts};
use edgefaas_cluster::artefacts::{BlobDigest, ChunkSet, Resumed, Tree};
use prost::Message as _;

const PAGE_BYTES: usize = 4096;
const EXTENSION: &str = "part";

/// An open file. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct PartFile {
    file: Arc<File>,
    data_at: u64,
    tree: Arc<Tree>,
}

/// The path of a blob's file.
pub(super) fn path(dir: &Path, blob: &BlobDigest) -> PathBuf {
    dir.join(format!("{blob}.{EXTENSION}"))
}

/// The blobs with a file in the folder.
pub(super) fn list(dir: &Path) -> io::Result<Vec<BlobDigest>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let digest = name.to_str().and_then(|name| name.strip_suffix(".part")).and_then(parse_digest);
        found.extend(digest);
    }
    Ok(found)
}

fn parse_digest(hex: &str) -> Option<BlobDigest> {
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(BlobDigest(digest))
}

impl PartFile {
    /// Creates the file; replaces an earlier one.
    pub(super) fn create(dir: &Path, blob: &BlobDigest, tree: Arc<Tree>) -> io::Result<Self> {
        let header = TreeParts::from(&*tree).encode_to_vec();
        let path = path(dir, blob);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?;
        let mut head = (header.len() as u32).to_be_bytes().to_vec();
        head.extend_from_slice(&header);
        file.write_all_at(&head, 0)?;
        let data_at = head.len().next_multiple_of(PAGE_BYTES) as u64;
        Ok(Self { file: file.into(), data_at, tree })
    }

    /// Opens the file of an earlier fetch and verifies its chunks. `None` if there is none; one whose tree is invalid is
    /// removed.
    pub(super) fn resume(dir: &Path, blob: &BlobDigest) -> io::Result<Option<(Self, Resumed)>> {
        let path = path(dir, blob);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some((tree, data_at)) = read_tree(&file, blob)? else {
            std::fs::remove_file(&path)?;
            return Ok(None);
        };
        let part = Self { file: file.into(), data_at, tree: Arc::new(tree) };
        let mut chunks = ChunkSet::none(part.tree.chunks());
        for index in 0..part.tree.chunks() {
            match part.read_chunk(index) {
                Ok(bytes) if part.tree.verify(blob, index, &bytes) => {
                    chunks.insert(index);
                }
                Ok(_) => {}
                // The file ends before the chunk.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
        }
        let resumed = Resumed { tree: part.tree.clone(), chunks };
        Ok(Some((part, resumed)))
    }

    /// Writes a chunk.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.data_at + offset as u64)
    }

    /// Reads a chunk.
    pub(super) fn read_chunk(&self, index: usize) -> io::Result<Bytes> {
        let range = self.tree.range(index);
        self.read(range.start, range.len())
    }

    /// Syncs the file and reads the whole blob.
    pub(super) fn finish(&self) -> io::Result<Bytes> {
        self.file.sync_data()?;
        self.read(0, self.tree.size_bytes() as usize)
    }

    /// The size of the blob.
    pub(super) fn size_bytes(&self) -> u64 {
        self.tree.size_bytes()
    }

    /// About the number of bytes by which the file still grows.
    pub(super) fn missing_bytes(&self) -> io::Result<u64> {
        // Chunks that have not arrived are holes. `st_blocks` counts 512 bytes.
        Ok(self.size_bytes().saturating_sub(self.file.metadata()?.blocks() * 512))
    }

    fn read(&self, offset: usize, len: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, self.data_at + offset as u64)?;
        Ok(bytes.into())
    }
}

fn read_tree(file: &File, blob: &BlobDigest) -> io::Result<Option<(Tree, u64)>> {
    let file_bytes = file.metadata()?.len();
    let mut length = [0; 4];
    if file_bytes < 4 {
        return Ok(None);
    }
    file.read_exact_at(&mut length, 0)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_LIMIT_BYTES || file_bytes < 4 + length as u64 {
        return Ok(None);
    }
    let mut header = vec![0; length];
    file.read_exact_at(&mut header, 4)?;
    let tree = TreeParts::decode(&*header).ok().and_then(|parts| parts.check(blob).ok());
    Ok(tree.map(|tree| (tree, (4 + length).next_multiple_of(PAGE_BYTES) as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_resumed_with_the_chunks_that_are_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let blob: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let (digest, tree) = Tree::of(&blob).expect("a tree");
        let tree = Arc::new(tree);
        let part = PartFile::create(dir.path(), &digest, tree.clone()).expect("a file");
        for index in [0, 3, 5, tree.chunks() - 1] {
            part.write(tree.range(index).start, &blob[tree.range(index)]).expect("written");
        }
        // Half of a chunk, as after a power cut.
        part.write(tree.range(7).start, &blob[tree.range(7)][..1000]).expect("written");
        part.write(tree.range(5).start + 9, b"wrong").expect("written");
        drop(part);
        assert_eq!(list(dir.path()).expect("listed"), [digest]);
        let (part, resumed) = PartFile::resume(dir.path(), &digest).expect("readable").expect("a file");
        assert_eq!(resumed.chunks.iter().collect::<Vec<_>>(), [0, 3, tree.chunks() - 1]);
        for index in 0..tree.chunks() {
            part.write(tree.range(index).start, &blob[tree.range(index)]).expect("written");
        }
        assert_eq!(part.finish().expect("read"), blob);

        std::fs::write(path(dir.path(), &digest), [0, 0, 0, 9, 1]).expect("written");
        assert!(PartFile::resume(dir.path(), &digest).expect("readable").is_none());
        assert!(list(dir.path()).expect("listed").is_empty(), "an invalid file is removed");
    }
}
