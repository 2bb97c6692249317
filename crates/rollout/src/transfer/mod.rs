//! Parts of revisions that nodes fetch from each other: the I/O around [`edgefaas_cluster::artefacts`].
//!
//! One task owns the machine, the files and the streams. Chunks of a blob that is being fetched are in a file of their own,
//! `DIGEST.part`, not in the store: its engine writes each value several times, and a value is written as a whole.

mod part_file;
mod streams;
mod task;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use edgefaas_cluster::artefacts::{BlobDigest, Candidate};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use streams::{OpenStream, PeerIo};

/// Commands that wait for the task.
const COMMANDS: usize = 256;

/// The node's store, as transfers see it. Called on a thread that may block.
pub trait Holder: Send + Sync {
    /// The bytes of a blob; `None` if the node does not have it or cannot read it.
    fn read(&self, blob: &BlobDigest) -> Option<Bytes>;
    /// Whether the node has the blob.
    fn has(&self, blob: &BlobDigest) -> bool;
    /// Bytes that may be written to the disk now without touching the store's reserve.
    fn room_bytes(&self) -> u64;
}

/// What transfers are made of.
pub struct ArtefactsParts {
    /// This node.
    pub node_id: u64,
    /// Seed of the random choices.
    pub seed: u64,
    /// The folder of unfinished blobs, `DATA/artefacts`. Created if it does not exist.
    pub dir: PathBuf,
    /// The node's store.
    pub holder: Arc<dyn Holder>,
    /// Opens a stream to a member.
    pub open: OpenStream,
    /// Maximum rate of all uploads, in bytes per second.
    pub upload_bytes_per_second: Option<u64>,
}

/// A blob could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchBlobError {
    /// For 15 s no connected member had any of it.
    #[error("no connected member has it")]
    NoHolder,
    /// The disk has no room for it.
    #[error(
        "the disk is full: {room_bytes} bytes may be written, {needed_bytes} are needed; free some space"
    )]
    DiskFull {
        /// Bytes that may be written.
        room_bytes: u64,
        /// Bytes that are needed.
        needed_bytes: u64,
    },
    /// Its file could not be written or read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The file has not the digest of the blob: the disk has changed it. It is fetched from the begin next time.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The node shuts down.
    #[error("the node shuts down")]
    ShuttingDown,
}

/// Transfers of this node. Cheap to clone.
#[derive(Clone)]
pub struct Artefacts {
    commands: mpsc::Sender<Command>,
}

enum Command {
    Want { blob: BlobDigest, candidates: Vec<Candidate>, waiter: Waiter },
    Candidates { blob: BlobDigest, candidates: Vec<Candidate> },
    Forget { blob: BlobDigest },
    LocalZone(Arc<str>),
    PeerUp(u64),
    PeerDown(u64),
    Incoming { node_id: u64, stream: Box<dyn PeerIo> },
}

struct Waiter {
    /// The part that has arrived, in thousandths.
    progress: watch::Sender<u16>,
    done: oneshot::Sender<Result<Bytes, FetchBlobError>>,
}

impl Artefacts {
    /// The transfers, and their task, which ends with `shutdown`. All that it has started ends with it.
    pub fn new(
        parts: ArtefactsParts,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (commands, received) = mpsc::channel(COMMANDS);
        (Self { commands }, task::run(parts, received, shutdown))
    }

    /// Fetches a blob. `progress` gets the part that has arrived, in thousandths. If the future is dropped, the fetch ends and
    /// what has arrived stays on the disk for the next one.
    ///
    /// The file of the blob is removed once the [`Holder`] has it.
    ///
    /// # Errors
    /// See [`FetchBlobError`].
    pub async fn fetch(
        &self,
        blob: BlobDigest,
        candidates: Vec<Candidate>,
        progress: watch::Sender<u16>,
    ) -> Result<Bytes, FetchBlobError> {
        let (done, result) = oneshot::channel();
        self.command(Command::Want { blob, candidates, waiter: Waiter { progress, done } }).await;
        result.await.unwrap_or(Err(FetchBlobError::ShuttingDown))
    }

    /// Replaces the candidates of a blob that is being fetched.
    pub async fn set_candidates(&self, blob: BlobDigest, candidates: Vec<Candidate>) {
        self.command(Command::Candidates { blob, candidates }).await;
    }

    /// Deletes what has arrived of a blob, and serves it no longer. Fetches of it fail with [`FetchBlobError::NoHolder`].
    pub async fn forget(&self, blob: BlobDigest) {
        self.command(Command::Forget { blob }).await;
    }

    /// Sets the zone of this node.
    pub async fn set_zone(&self, zone: Arc<str>) {
        self.command(Command::LocalZone(zone)).await;
    }

    /// A member's channel is open.
    pub async fn peer_up(&self, node_id: u64) {
        self.command(Command::PeerUp(node_id)).await;
    }

    /// A member's channel has ended.
    pub async fn peer_down(&self, node_id: u64) {
        self.command(Command::PeerDown(node_id)).await;
    }

    /// A member has opened a stream for artefacts.
    pub async fn incoming(&self, node_id: u64, stream: Box<dyn PeerIo>) {
        self.command(Command::Incoming { node_id, stream }).await;
    }

    async fn command(&self, command: Command) {
        // After the shutdown nothing is to be done.
        let _ = self.commands.send(command).await;
    }
}
