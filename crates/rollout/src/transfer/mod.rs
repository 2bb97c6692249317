//! Parts of revisions that nodes fetch from each other: the I/O around [`edgefaas_cluster::artefacts`].
//!
//! One task owns the machine, the files and the streams ([`Artefacts`]). Chunks of a blob that is being fetched are in a file
//! of their own, `DIGEST.part`, not in the store: its engine writes each value several times, and a value is written as a
//! whole. A blob is in memory as a whole only while it moves between that file and the store; [`MAX_MEMORY_BYTES`] bounds the
//! sum.

mod memory;
mod part_file;
mod peers;
mod served;
mod stored_parts;
mod streams;
mod task;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use edgefaas_cluster::artefacts::{BlobDigest, Candidate};
use edgefaas_cluster::{MemberStream, OpenStream};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::members::Members;
use memory::Taken;

pub use memory::MAX_MEMORY_BYTES;
pub use stored_parts::StoredParts;

/// Commands that wait for the task.
const COMMANDS: usize = 256;
/// Room that the store needs for a blob beside its file, as a multiple of the blob: its engine's journal, a table, and a table
/// of a compaction.
const STORE_COPIES: u64 = 3;

/// The node's store, as transfers see it. Called on a thread that may block.
pub trait Holder: Send + Sync {
    /// The size of a blob; `None` if the node does not have it.
    fn size_bytes(&self, blob: &BlobDigest) -> Option<u64>;
    /// The bytes of a blob; `None` if the node does not have it or cannot read it.
    fn read(&self, blob: &BlobDigest) -> Option<Bytes>;
    /// The blobs that the node still lacks; `None` while that is not known, as after the start. Files of other blobs are removed.
    fn wanted(&self) -> Option<BTreeSet<BlobDigest>>;
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
    /// The members of the cluster: which are connected, and the zone of this node.
    pub members: watch::Receiver<Arc<Members>>,
    /// Maximum rate of all uploads, in bytes per second; `None`: what the links take.
    pub upload_bytes_per_second: Option<u64>,
}

/// A blob could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchBlobError {
    /// For 15 s no connected member had any of it.
    #[error("no connected member has it")]
    NoHolder,
    /// The disk has no room for it and for the store's copies of it.
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
    /// Its file does not have the digest of the blob: the disk has changed it. It is fetched from the beginning next time.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The node shuts down.
    #[error("the node shuts down")]
    ShuttingDown,
}

/// The bytes of a blob, which have its digest. They count towards [`MAX_MEMORY_BYTES`] until this is dropped.
#[derive(Debug, Clone)]
pub struct FetchedBlob {
    /// The bytes.
    pub bytes: Bytes,
    _taken: Arc<Taken>,
}

/// Bytes of messages about artefacts, chunks included, since the start of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArtefactTraffic {
    /// Written to streams.
    pub sent_bytes: u64,
    /// Read from streams.
    pub received_bytes: u64,
}

#[derive(Debug, Default)]
struct Traffic {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

/// Transfers of this node. Cheap to clone.
#[derive(Clone)]
pub struct Artefacts {
    commands: mpsc::Sender<Command>,
    traffic: Arc<Traffic>,
    /// Notified when a fetch was dropped.
    dropped: Arc<Notify>,
    /// Until they run.
    waiting: Arc<Mutex<Option<WaitingTask>>>,
}

/// The task before it runs.
struct WaitingTask {
    parts: ArtefactsParts,
    commands: mpsc::Receiver<Command>,
}

enum Command {
    Want { blob: BlobDigest, candidates: Vec<Candidate>, waiter: Waiter },
    Candidates { blob: BlobDigest, candidates: Vec<Candidate> },
    Forget { blob: BlobDigest },
    Incoming { node_id: u64, stream: MemberStream },
}

struct Waiter {
    /// The part that has arrived, in thousandths.
    progress: watch::Sender<u16>,
    done: oneshot::Sender<Result<FetchedBlob, FetchBlobError>>,
}

/// Says that a fetch was dropped.
struct NotifyOnDrop<'a>(Option<&'a Notify>);

impl Drop for NotifyOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(dropped) = self.0 {
            dropped.notify_one();
        }
    }
}

impl Artefacts {
    /// Transfers that wait for [`run`](Self::run).
    pub fn new(parts: ArtefactsParts) -> Self {
        let (sender, commands) = mpsc::channel(COMMANDS);
        let waiting = Arc::new(Mutex::new(Some(WaitingTask { parts, commands })));
        Self { commands: sender, traffic: Arc::default(), dropped: Arc::default(), waiting }
    }

    /// Runs the transfers until `shutdown` fires; all that they have started ends with this future. The first call does so, a
    /// further one does nothing.
    pub async fn run(&self, shutdown: CancellationToken) {
        let waiting = self.waiting.lock().take();
        if let Some(WaitingTask { parts, commands }) = waiting {
            let shared = (self.traffic.clone(), self.dropped.clone());
            task::run(parts, shared, commands, shutdown).await;
        }
    }

    /// Fetches a blob. `progress` gets the part that has arrived, in thousandths. If the future is dropped, the fetch ends
    /// and what has arrived stays on the disk for the next one.
    ///
    /// The file of the blob is removed within 5 s once the [`Holder`] has it or does not want it, and after an hour in which
    /// nothing has fetched it.
    ///
    /// # Errors
    /// See [`FetchBlobError`].
    pub async fn fetch(
        &self,
        blob: BlobDigest,
        candidates: Vec<Candidate>,
        progress: watch::Sender<u16>,
    ) -> Result<FetchedBlob, FetchBlobError> {
        // Dropped after the receiver of the result, so that the task finds the waiter's channel closed.
        let mut dropped = NotifyOnDrop(Some(&self.dropped));
        let (done, result) = oneshot::channel();
        self.command(Command::Want { blob, candidates, waiter: Waiter { progress, done } }).await;
        let fetched = result.await.unwrap_or(Err(FetchBlobError::ShuttingDown));
        dropped.0 = None;
        fetched
    }

    /// Replaces the candidates of a blob that is being fetched.
    pub async fn set_candidates(&self, blob: BlobDigest, candidates: Vec<Candidate>) {
        self.command(Command::Candidates { blob, candidates }).await;
    }

    /// Deletes what has arrived of a blob. Fetches of it fail with [`FetchBlobError::NoHolder`].
    pub async fn forget(&self, blob: BlobDigest) {
        self.command(Command::Forget { blob }).await;
    }

    /// A member has opened a stream for artefacts.
    pub async fn incoming(&self, node_id: u64, stream: MemberStream) {
        self.command(Command::Incoming { node_id, stream }).await;
    }

    /// The bytes that were sent and received.
    pub fn traffic(&self) -> ArtefactTraffic {
        ArtefactTraffic {
            sent_bytes: self.traffic.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.traffic.received_bytes.load(Ordering::Relaxed),
        }
    }

    async fn command(&self, command: Command) {
        // After the shutdown nothing is to be done.
        let _ = self.commands.send(command).await;
    }
}
