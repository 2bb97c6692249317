//! Artefacts: nodes fetch blobs (sources and assets of apps) from each other.
//!
//! [`Transfers`] is a machine without I/O, one for each node: [`handle`](Transfers::handle) takes an [`Event`] and the time and
//! gives [`Output`]s. It never holds the bytes of a blob.
//!
//! **Fetching.** A node that fetches a blob opens it with a few members ([`partners`]): members of its zone that fetch it too,
//! and holders. Each of them announces its chunks. A request names a set of chunks, and the server sends one of them: the
//! one that it has handed out least. So each chunk leaves the holder about once, and the fetchers pass it on. Sets of open
//! requests are disjoint; no chunk comes twice unless a request expires.
//!
//! **Zones.** Two fetchers of each zone, chosen by rendezvous hash, fetch from other zones, each its half of the chunks.
//! The others do so only after [`CROSS_AFTER`] without progress. A fetcher knows its place from the begin: members of its zone
//! that are about to fetch the blob are candidates too ([`Role::Expected`]).
//!
//! **Serving.** A node hands out each chunk once; one that many fetch from a quarter more than it has received, and more to
//! members that get nothing ([`uploads`]). Chunks that the receivers have not confirmed are bounded by their delay: on a link
//! of 1 MB/s other traffic waits 260 ms at most for the sender.
//!
//! **Trust.** Each chunk is verified against the [`Tree`], and the tree against the digest. A member whose tree or chunk is
//! invalid is not asked for this blob again.

mod blob;
mod chunk_set;
mod fetch;
mod machine;
mod partners;
mod tree;
mod uploads;
pub mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::replication::NodeId;

pub use chunk_set::ChunkSet;
pub use machine::Transfers;
pub use tree::{CHUNK_BYTES, MAX_BLOB_BYTES, MAX_CHUNKS, Tree, TreeError};

/// Maximum of blobs that a node fetches at the same time; further ones wait.
pub const MAX_FETCHES: usize = 64;
/// Maximum of blobs with their trees in memory that the node only serves; the one not used for longest makes room.
pub const MAX_SERVED_BLOBS: usize = 64;
/// Maximum of members that one blob is exchanged with at the same time.
pub const MAX_PARTNERS: usize = 48;
/// Time without progress after which a node that is not chosen for it fetches from other zones.
pub const CROSS_AFTER: Duration = Duration::from_secs(8);
/// Time without use after which a blob that is not fetched leaves the memory.
pub const FORGET_AFTER: Duration = Duration::from_secs(60);

/// BLAKE3 digest of a blob: its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobDigest(pub [u8; 32]);

impl fmt::Display for BlobDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for BlobDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

/// Settings of the machine.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Seed of the random choices.
    pub seed: u64,
    /// Maximum rate of all uploads, in bytes per second.
    pub upload_bytes_per_second: Option<u64>,
}

/// A member that may have a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The member.
    pub node: NodeId,
    /// Its zone; empty if unknown.
    pub zone: Arc<str>,
    /// Whether it has the blob.
    pub role: Role,
}

/// The part of a member in the distribution of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It has the whole blob.
    Holds,
    /// It fetches the blob.
    Fetches,
    /// It is about to fetch the blob, as far as this node knows: it has its place among the fetchers, and is not opened.
    Expected,
}

/// Chunks of a blob that an earlier run of the node has stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    /// The tree, checked.
    pub tree: Arc<Tree>,
    /// The chunks, verified.
    pub chunks: ChunkSet,
}

/// Input of the machine.
#[derive(Debug, Clone)]
pub enum Event {
    /// The zone of this node; empty if unknown.
    LocalZone(Arc<str>),
    /// A member can be reached.
    PeerUp {
        /// The member.
        node: NodeId,
    },
    /// A member or its stream is gone; messages in flight are lost.
    PeerDown {
        /// The member.
        node: NodeId,
    },
    /// Starts to fetch a blob. Replaces the candidates if the blob is being fetched.
    Want {
        /// The blob.
        blob: BlobDigest,
        /// Members that may have it.
        candidates: Vec<Candidate>,
        /// Chunks that the node has already.
        resumed: Option<Resumed>,
    },
    /// Ends a fetch, or the use of a blob that was deleted.
    Forget {
        /// The blob.
        blob: BlobDigest,
    },
    /// A message came from a member.
    Received {
        /// The member.
        node: NodeId,
        /// The message.
        message: wire::Message,
    },
    /// The answer to [`Output::Lookup`].
    Found {
        /// The blob.
        blob: BlobDigest,
        /// Its tree; `None` if the node does not have the whole blob.
        tree: Option<Arc<Tree>>,
    },
    /// Time has passed; see [`Transfers::next_deadline`].
    Tick,
}

/// Output of the machine, to be carried out in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Sends a message.
    Send {
        /// The receiver.
        node: NodeId,
        /// The message.
        message: wire::Message,
    },
    /// Reads a chunk of a blob and sends it as [`wire::Chunk`].
    SendChunk {
        /// The receiver.
        node: NodeId,
        /// The blob.
        blob: BlobDigest,
        /// The id of the receiver's request.
        request: u32,
        /// Index of the chunk.
        index: usize,
    },
    /// Asks whether the node has a blob; answered by [`Event::Found`].
    Lookup {
        /// The blob.
        blob: BlobDigest,
    },
    /// The size of a fetched blob is known. Comes before its first chunk.
    Begin {
        /// The blob.
        blob: BlobDigest,
        /// Its tree.
        tree: Arc<Tree>,
    },
    /// Stores a verified chunk, before outputs that follow read it.
    Store {
        /// The blob.
        blob: BlobDigest,
        /// Offset in the blob, in bytes.
        offset: usize,
        /// The bytes.
        bytes: bytes::Bytes,
    },
    /// All chunks are stored.
    Complete {
        /// The blob.
        blob: BlobDigest,
    },
    /// A member has sent an invalid tree or chunk, and is not asked for this blob again.
    Blame {
        /// The member.
        node: NodeId,
        /// The blob.
        blob: BlobDigest,
    },
}
