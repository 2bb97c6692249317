//! Streams that members open to this node, by purpose.

use std::sync::atomic::{AtomicU64, Ordering};

use edgefaas_cluster::{IncomingStream, IncomingStreams, StreamPurpose};
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// Streams of one purpose that may wait; further ones are reset.
const MAX_WAITING: usize = 64;

/// Hands the streams of members to the parts of the node that serve them. Stays the same when the node joins a cluster.
#[derive(Debug)]
pub(super) struct StreamRouter {
    calls: Lane,
    artefacts: Lane,
    refused: AtomicU64,
}

#[derive(Debug)]
struct Lane {
    sender: mpsc::Sender<IncomingStream>,
    /// Until it is taken.
    receiver: Mutex<Option<mpsc::Receiver<IncomingStream>>>,
}

impl Default for Lane {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        Self { sender, receiver: Mutex::new(Some(receiver)) }
    }
}

impl Default for StreamRouter {
    fn default() -> Self {
        Self { calls: Lane::default(), artefacts: Lane::default(), refused: AtomicU64::new(0) }
    }
}

impl StreamRouter {
    /// The streams of a purpose; `None` if they were taken already.
    pub fn take(&self, purpose: StreamPurpose) -> Option<mpsc::Receiver<IncomingStream>> {
        self.lane(purpose).receiver.lock().take()
    }

    /// Distributes the streams of a transport until it ends. A stream that does not fit is reset.
    pub async fn distribute(&self, mut streams: IncomingStreams) {
        while let Some(stream) = streams.recv().await {
            let (node_id, purpose) = (stream.node_id, stream.purpose);
            if self.lane(purpose).sender.try_send(stream).is_err() {
                self.refused.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(node_id, ?purpose, "a stream was refused");
            }
        }
    }

    /// Streams that were reset because too many waited.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn lane(&self, purpose: StreamPurpose) -> &Lane {
        match purpose {
            StreamPurpose::Calls => &self.calls,
            StreamPurpose::Artefacts => &self.artefacts,
        }
    }
}
