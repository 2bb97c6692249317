//! Streams of two members beside their channel, as the node sees them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::network::behaviour::NoStream;
use crate::network::side_streams::{CountedStream, StreamOpener, StreamPurpose};

/// Time limit of opening a stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why no stream was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenStreamError {
    /// The member has no channel, or its channel ended meanwhile.
    #[error("node {node_id} is not connected")]
    Gone {
        /// The member.
        node_id: u64,
    },
    /// The member runs an older version.
    #[error("node {node_id} does not serve streams for {purpose:?}; update it")]
    Unsupported {
        /// The member.
        node_id: u64,
        /// The stream's purpose.
        purpose: StreamPurpose,
    },
    /// The member did not answer within 5 s, or 8 streams to it were open all the while.
    #[error("node {node_id} has opened no stream within 5 s")]
    TimedOut {
        /// The member.
        node_id: u64,
    },
}

/// A stream to a member. Ends with the member's channel: reading and writing fail with `ConnectionAborted` then. Dropping
/// it resets the stream.
#[derive(Debug)]
pub struct PeerStream {
    counted: CountedStream,
    /// One for each direction: a future wakes one task only.
    read_end: Pin<Box<WaitForCancellationFutureOwned>>,
    write_end: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl PeerStream {
    fn new(counted: CountedStream, ended: CancellationToken) -> Self {
        let end = || Box::pin(ended.clone().cancelled_owned());
        Self { counted, read_end: end(), write_end: end() }
    }
}

fn check_end(
    end: &mut Pin<Box<WaitForCancellationFutureOwned>>,
    context: &mut Context<'_>,
) -> io::Result<()> {
    match end.as_mut().poll(context) {
        Poll::Ready(()) => {
            Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the channel to the node has ended"))
        }
        Poll::Pending => Ok(()),
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        check_end(&mut self.read_end, context)?;
        Pin::new(&mut self.counted.stream).poll_read(context, into)
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        check_end(&mut self.write_end, context)?;
        Pin::new(&mut self.counted.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        check_end(&mut self.write_end, context)?;
        Pin::new(&mut self.counted.stream).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        check_end(&mut self.write_end, context)?;
        Pin::new(&mut self.counted.stream).poll_close(context)
    }
}

/// A stream that a member has opened.
#[derive(Debug)]
pub struct IncomingStream {
    /// The member.
    pub node_id: u64,
    /// The stream's purpose.
    pub purpose: StreamPurpose,
    /// The stream.
    pub stream: PeerStream,
}

impl IncomingStream {
    /// A stream of a member's channel, which ends with `ended`.
    pub(crate) fn new(
        node_id: u64,
        purpose: StreamPurpose,
        counted: CountedStream,
        ended: CancellationToken,
    ) -> Self {
        Self { node_id, purpose, stream: PeerStream::new(counted, ended) }
    }
}

/// Streams that members have opened. Bounded by
/// [`Options::incoming_stream_capacity`](crate::Options::incoming_stream_capacity): while it is full, and once it is dropped,
/// further streams are reset.
#[derive(Debug)]
pub struct IncomingStreams(mpsc::Receiver<IncomingStream>);

impl IncomingStreams {
    pub(crate) fn new(streams: mpsc::Receiver<IncomingStream>) -> Self {
        Self(streams)
    }

    /// Waits for the next stream; `None` once the transport has ended. Cancel-safe.
    pub async fn recv(&mut self) -> Option<IncomingStream> {
        self.0.recv().await
    }
}

/// Opens streams on the connection of an open channel.
#[derive(Debug)]
pub(crate) struct PeerStreams {
    pub(crate) opener: StreamOpener,
    /// Cancelled when the channel ends.
    pub(crate) ended: CancellationToken,
}

impl PeerStreams {
    pub(crate) async fn open(
        &self,
        node_id: u64,
        purpose: StreamPurpose,
    ) -> Result<PeerStream, OpenStreamError> {
        let opening = tokio::time::timeout(OPEN_TIMEOUT, self.opener.open(purpose));
        let opened =
            self.ended.run_until_cancelled(opening).await.ok_or(OpenStreamError::Gone { node_id })?;
        let opened = opened.map_err(|_| OpenStreamError::TimedOut { node_id })?;
        match opened.ok_or(OpenStreamError::Gone { node_id })? {
            Ok(counted) => Ok(PeerStream::new(counted, self.ended.clone())),
            Err(NoStream::Unsupported) => Err(OpenStreamError::Unsupported { node_id, purpose }),
            Err(NoStream::TimedOut) => Err(OpenStreamError::TimedOut { node_id }),
            Err(NoStream::Failed(error)) => {
                tracing::debug!(node_id, %error, "a stream cannot be opened");
                Err(OpenStreamError::Gone { node_id })
            }
        }
    }
}
