//! Streams beside the first one of a connection: requests to open one, and streams that the peer has opened.
//!
//! `StreamPort` is the end of the connection's handler, `SideStreams` that of the transport. Streams that arrive before the
//! transport takes them wait in the queue between both; they end with it if the peer turns out to be no member.

use std::sync::Arc;
use std::task::{Context, Poll};

use libp2p::Stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::behaviour::NoStream;

/// Streams of one connection in each direction that are open, or are being opened.
pub(crate) const MAX_SIDE_STREAMS: usize = 8;

/// The protocol of a stream between two members, beside their channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamPurpose {
    /// Calls of functions on the other node.
    Calls,
    /// Transfer of deployed files.
    Artefacts,
}

impl StreamPurpose {
    pub(crate) const ALL: [Self; 2] = [Self::Calls, Self::Artefacts];
}

/// A stream, which counts for the limit of its connection until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedStream {
    pub(crate) stream: Stream,
    _slot: OwnedSemaphorePermit,
}

/// A stream that the transport wants. The reply is dropped if the connection ends.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    pub(crate) purpose: StreamPurpose,
    slot: OwnedSemaphorePermit,
    reply: oneshot::Sender<Result<CountedStream, NoStream>>,
}

impl OpenRequest {
    /// Gives the stream to the caller, or drops it if the caller has given up.
    pub(crate) fn fulfil(self, opened: Result<Stream, NoStream>) {
        let slot = self.slot;
        let _ = self.reply.send(opened.map(|stream| CountedStream { stream, _slot: slot }));
    }
}

/// The handler's end.
#[derive(Debug)]
pub(crate) struct StreamPort {
    requests: mpsc::Receiver<OpenRequest>,
    accepted: mpsc::Sender<(StreamPurpose, CountedStream)>,
    slots: Arc<Semaphore>,
}

impl StreamPort {
    /// Passes on a stream of the peer; drops it if the peer has too many or the channel has ended.
    pub(crate) fn accept(&self, purpose: StreamPurpose, stream: Stream) {
        if let Ok(slot) = self.slots.clone().try_acquire_owned() {
            let _ = self.accepted.try_send((purpose, CountedStream { stream, _slot: slot }));
        }
    }

    /// The next stream to open.
    pub(crate) fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<OpenRequest> {
        match self.requests.poll_recv(context) {
            Poll::Ready(Some(request)) => Poll::Ready(request),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

/// The transport's end: opens streams with `opener`, and takes those of the peer from `accepted`.
#[derive(Debug)]
pub(crate) struct SideStreams {
    pub(crate) opener: StreamOpener,
    pub(crate) accepted: mpsc::Receiver<(StreamPurpose, CountedStream)>,
}

/// Opens streams on one connection.
#[derive(Debug)]
pub(crate) struct StreamOpener {
    requests: mpsc::Sender<OpenRequest>,
    slots: Arc<Semaphore>,
}

impl StreamOpener {
    /// Opens a stream, once one of the connection's slots is free. `None` if the connection has ended.
    pub(crate) async fn open(&self, purpose: StreamPurpose) -> Option<Result<CountedStream, NoStream>> {
        let slot = self.slots.clone().acquire_owned().await.ok()?;
        let (reply, opened) = oneshot::channel();
        self.requests.send(OpenRequest { purpose, slot, reply }).await.ok()?;
        opened.await.ok()
    }
}

/// Both ends for one connection.
pub(crate) fn pair() -> (StreamPort, SideStreams) {
    let (request_sender, requests) = mpsc::channel(MAX_SIDE_STREAMS);
    let (accepted_sender, accepted) = mpsc::channel(MAX_SIDE_STREAMS);
    let slots = || Arc::new(Semaphore::new(MAX_SIDE_STREAMS));
    (
        StreamPort { requests, accepted: accepted_sender, slots: slots() },
        SideStreams { opener: StreamOpener { requests: request_sender, slots: slots() }, accepted },
    )
}
