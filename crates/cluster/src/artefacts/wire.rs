//! The messages between members that transfer artefacts, as protocol buffers.
//!
//! A frame of a stream is its length (4 bytes, big endian) and one [`Message`]. Unknown kinds decode to `None` and are skipped.

use bytes::Bytes;
use prost::Message as _;

use super::BlobDigest;
use super::chunk_set::ChunkSet;
use super::tree::{CHUNK_BYTES, LEAF_BYTES, MAX_BLOB_BYTES, MAX_CHUNKS, MAX_PATH, Tree};

/// Maximum length of a message, in bytes: a tree of [`MAX_CHUNKS`] with its proof.
pub const MESSAGE_LIMIT_BYTES: usize = MAX_CHUNKS * 32 + 4096;

/// One frame.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Message {
    /// BLAKE3 digest of the blob; 32 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub blob: Vec<u8>,
    /// The message; none if this version does not know its kind.
    #[prost(oneof = "Kind", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11")]
    pub kind: Option<Kind>,
}

/// The kinds of messages.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// The sender fetches the blob: answer with `Have`, now and when it changes.
    #[prost(message, tag = "2")]
    Open(Open),
    /// The chunks that the sender has.
    #[prost(message, tag = "3")]
    Have(Have),
    /// Asks for the tree.
    #[prost(message, tag = "4")]
    GetTree(GetTree),
    /// The tree.
    #[prost(message, tag = "5")]
    Tree(TreeParts),
    /// Asks for one chunk of a set.
    #[prost(message, tag = "6")]
    Request(Request),
    /// A chunk.
    #[prost(message, tag = "7")]
    Chunk(Chunk),
    /// The request is not served; ask again later.
    #[prost(message, tag = "8")]
    Busy(Busy),
    /// The sender no longer needs the answer of a request.
    #[prost(message, tag = "9")]
    Cancel(Cancel),
    /// The sender needs no more `Have`.
    #[prost(message, tag = "10")]
    Close(Close),
    /// The sender does not have the blob, and serves no request for it.
    #[prost(message, tag = "11")]
    Gone(Gone),
}

/// See [`Kind::Open`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Open {}

/// See [`Kind::Have`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Have {
    /// Size of the blob; 0 if the sender does not know it yet.
    #[prost(uint64, tag = "1")]
    pub size_bytes: u64,
    /// A bit for each chunk; empty if the size is 0.
    #[prost(bytes = "vec", tag = "2")]
    pub chunks: Vec<u8>,
}

/// See [`Kind::GetTree`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetTree {}

/// See [`Tree`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct TreeParts {
    /// Size of the blob.
    #[prost(uint64, tag = "1")]
    pub size_bytes: u64,
    /// 32 bytes for each chunk; empty for a blob of one chunk.
    #[prost(bytes = "vec", tag = "2")]
    pub values: Vec<u8>,
    /// The last leaf.
    #[prost(bytes = "vec", tag = "3")]
    pub last_leaf: Vec<u8>,
    /// 32 bytes for each left sibling on the way down to the last leaf.
    #[prost(bytes = "vec", tag = "4")]
    pub path: Vec<u8>,
}

/// See [`Kind::Request`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// Chosen by the sender.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// A bit for each chunk; the receiver chooses one of them.
    #[prost(bytes = "vec", tag = "2")]
    pub chunks: Vec<u8>,
    /// Time for which the sender got no chunk of the blob from any node, in milliseconds.
    #[prost(uint32, tag = "3")]
    pub stalled_ms: u32,
}

/// See [`Kind::Chunk`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Chunk {
    /// The request's id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Index of the chunk.
    #[prost(uint32, tag = "2")]
    pub index: u32,
    /// Its bytes; at most [`CHUNK_BYTES`].
    #[prost(bytes = "bytes", tag = "3")]
    pub bytes: Bytes,
}

/// See [`Kind::Busy`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Busy {
    /// The request's id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Time after which to ask again, in milliseconds.
    #[prost(uint32, tag = "2")]
    pub wait_ms: u32,
}

/// See [`Kind::Cancel`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Cancel {
    /// The request's id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
}

/// See [`Kind::Close`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Close {}

/// See [`Kind::Gone`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Gone {}

/// A frame is not a message.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// The frame is too long.
    #[error("a message of {bytes} bytes; at most {MESSAGE_LIMIT_BYTES} are allowed")]
    TooLong {
        /// Length of the frame, in bytes.
        bytes: usize,
    },
    /// The frame is not valid protocol buffers.
    #[error("not a message: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// A field is out of its bounds.
    #[error("a message whose `{field}` is invalid")]
    Invalid {
        /// The field.
        field: &'static str,
    },
}

impl Message {
    /// A message about a blob.
    pub fn new(blob: BlobDigest, kind: Kind) -> Self {
        Self { blob: blob.0.to_vec(), kind: Some(kind) }
    }

    /// Reads a frame. Lengths and sizes in the result keep to the limits that are said at each field.
    ///
    /// # Errors
    /// The frame is invalid: the sender is faulty.
    pub fn decode_frame(frame: Bytes) -> Result<Self, DecodeError> {
        if frame.len() > MESSAGE_LIMIT_BYTES {
            return Err(DecodeError::TooLong { bytes: frame.len() });
        }
        let message = Self::decode(frame)?;
        check(message.blob.len() == 32, "blob")?;
        let max_bits = MAX_CHUNKS / 8;
        match &message.kind {
            Some(Kind::Have(have)) => {
                check(have.size_bytes <= MAX_BLOB_BYTES, "size_bytes")?;
                check(have.chunks.len() == bit_bytes(have.size_bytes), "chunks")?;
            }
            Some(Kind::Tree(tree)) => {
                check((1..=MAX_BLOB_BYTES).contains(&tree.size_bytes), "size_bytes")?;
                check(
                    tree.values.len().is_multiple_of(32) && tree.values.len() <= MAX_CHUNKS * 32,
                    "values",
                )?;
                check(tree.last_leaf.len() <= LEAF_BYTES, "last_leaf")?;
                check(tree.path.len().is_multiple_of(32) && tree.path.len() <= MAX_PATH * 32, "path")?;
            }
            Some(Kind::Request(request)) => check(request.chunks.len() <= max_bits, "chunks")?,
            Some(Kind::Chunk(chunk)) => {
                check((chunk.index as usize) < MAX_CHUNKS, "index")?;
                check(chunk.bytes.len() <= CHUNK_BYTES, "bytes")?;
            }
            Some(
                Kind::Open(_)
                | Kind::GetTree(_)
                | Kind::Busy(_)
                | Kind::Cancel(_)
                | Kind::Close(_)
                | Kind::Gone(_),
            )
            | None => {}
        }
        Ok(message)
    }

    /// The blob of a message; `None` if it has no digest.
    pub fn digest(&self) -> Option<BlobDigest> {
        self.blob.as_slice().try_into().ok().map(BlobDigest)
    }
}

impl Have {
    /// The set; `None` if the sender does not know the size yet.
    pub(super) fn set(&self) -> Option<ChunkSet> {
        let chunks = (self.size_bytes as usize).div_ceil(CHUNK_BYTES);
        if chunks == 0 { None } else { ChunkSet::from_bytes(chunks, &self.chunks) }
    }
}

impl From<&Tree> for TreeParts {
    fn from(tree: &Tree) -> Self {
        Self {
            size_bytes: tree.size_bytes,
            values: tree.values.concat(),
            last_leaf: tree.last_leaf.clone(),
            path: tree.path.concat(),
        }
    }
}

impl TreeParts {
    /// The tree, checked against the digest.
    ///
    /// # Errors
    /// The parts are not those of this blob.
    pub fn check(self, digest: &BlobDigest) -> Result<Tree, super::TreeError> {
        let values = |bytes: &[u8]| bytes.as_chunks::<32>().0.to_vec();
        let (values, path) = (values(&self.values), values(&self.path));
        Tree { size_bytes: self.size_bytes, values, last_leaf: self.last_leaf, path }.check(digest)
    }
}

fn bit_bytes(size_bytes: u64) -> usize {
    (size_bytes as usize).div_ceil(CHUNK_BYTES).div_ceil(8)
}

fn check(is_valid: bool, field: &'static str) -> Result<(), DecodeError> {
    if is_valid { Ok(()) } else { Err(DecodeError::Invalid { field }) }
}
