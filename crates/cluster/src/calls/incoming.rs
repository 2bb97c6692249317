//! The executing node's side of one connection.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use edgefaas_platform::{Budget, Taken};
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{Response, Version};
use tokio::io::{AsyncRead, AsyncWrite, BufWriter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::body::{self, Reader, StreamError};
use super::error::IncomingError;
use super::limits::{
    CALL_WINDOW_BYTES, CONNECTION_WINDOW_BYTES, CallLimits, MAX_HEADER_BYTES, WRITE_BUFFER_BYTES,
};
use super::message::{OutcomeHead, encode};
use super::{CallHead, HeadError};

/// Serves the calls of one member until its connection ends. `handle` must not block: it moves the call to a task, which the
/// node owns. At most [`CallLimits::calls_per_peer`] calls exist at a time; others are refused.
///
/// # Errors
/// The peer breaks the protocol, or the connection is lost.
pub async fn serve<S>(
    io: S,
    peer: u64,
    limits: CallLimits,
    handle: impl FnMut(IncomingCall),
) -> Result<(), h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    serve_until(io, peer, limits, std::future::pending(), handle).await
}

/// [`serve`] until `stop` completes: then no further call is accepted, those that have begun are answered, and the connection
/// is closed.
///
/// # Errors
/// Those of [`serve`].
pub async fn serve_until<S>(
    io: S,
    peer: u64,
    limits: CallLimits,
    stop: impl Future<Output = ()>,
    mut handle: impl FnMut(IncomingCall),
) -> Result<(), h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let calls = IncomingCalls::new(peer, limits);
    let io = BufWriter::with_capacity(WRITE_BUFFER_BYTES, io);
    let handshake = Builder::new()
        .initial_window_size(CALL_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_concurrent_streams(u32::try_from(limits.calls_per_peer).unwrap_or(u32::MAX))
        // A caller may cancel all its calls at the same time.
        .max_pending_accept_reset_streams(limits.calls_per_peer)
        .handshake(io);
    let Ok(connection) = tokio::time::timeout(limits.open, handshake).await else { return Ok(()) };
    let mut connection = connection?;
    let mut stop = pin!(stop);
    let mut is_stopping = false;
    loop {
        let accepted = tokio::select! {
            () = &mut stop, if !is_stopping => {
                is_stopping = true;
                connection.graceful_shutdown();
                continue;
            }
            accepted = connection.accept() => accepted,
        };
        let Some(accepted) = accepted else { return Ok(()) };
        let (request, mut response) = accepted?;
        match calls.begin() {
            Some(slot) => {
                let (call, response) = (request.into_body(), Some(response));
                handle(IncomingCall { calls: calls.clone(), slot, request: call, response, answer: None });
            }
            None => response.send_reset(Reason::REFUSED_STREAM),
        }
    }
}

/// The calls of one member.
#[derive(Clone)]
pub struct IncomingCalls {
    peer: u64,
    limits: CallLimits,
    slots: Arc<Semaphore>,
    bodies: Budget,
}

impl IncomingCalls {
    fn new(peer: u64, limits: CallLimits) -> Self {
        let slots = Arc::new(Semaphore::new(limits.calls_per_peer));
        Self { peer, limits, slots, bodies: Budget::new(limits.peer_body_bytes) }
    }

    fn begin(&self) -> Option<OwnedSemaphorePermit> {
        self.slots.clone().try_acquire_owned().ok()
    }
}

/// The end of a call without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The caller stopped waiting.
    ByCaller,
    /// The connection was lost. The caller may repeat the call.
    ConnectionLost,
}

/// A call of another member. Dropping it without an answer resets its stream.
pub struct IncomingCall {
    calls: IncomingCalls,
    /// Held until the call is dropped, also if its caller is gone before.
    slot: OwnedSemaphorePermit,
    request: RecvStream,
    response: Option<SendResponse<Bytes>>,
    /// Set once the call was said to have started.
    answer: Option<SendStream<Bytes>>,
}

impl IncomingCall {
    /// The number of the calling member, from its certificate.
    pub fn peer(&self) -> u64 {
        self.calls.peer
    }

    /// Reads the call. Its body stays charged to the limit of its member while [`Taken`] exists.
    ///
    /// # Errors
    /// The call is invalid, too large, cancelled, or makes no progress; its stream was reset.
    pub async fn read(&mut self) -> Result<(CallHead, Bytes, Option<Taken>), IncomingError> {
        let CallLimits { stall, body_bytes, peer_body_bytes, .. } = self.calls.limits;
        let read = Reader::new(&mut self.request, Some(stall)).read(body_bytes, Some(&self.calls.bodies));
        let (reason, error) = match read.await {
            Ok(call) => return Ok(call),
            Err(StreamError::NoRoom) => {
                (Reason::REFUSED_STREAM, IncomingError::NoRoom { max_bytes: peer_body_bytes })
            }
            Err(StreamError::Head(error @ HeadError::BodyTooLarge { .. })) => {
                (Reason::REFUSED_STREAM, error.into())
            }
            Err(StreamError::Head(error)) => (Reason::PROTOCOL_ERROR, error.into()),
            Err(StreamError::Stalled) => (Reason::REFUSED_STREAM, IncomingError::Stalled { after: stall }),
            Err(StreamError::Lost(_)) => (Reason::CANCEL, IncomingError::Cancelled),
        };
        self.reset(reason);
        Err(error)
    }

    /// Says that the call has started. Only the first call has an effect.
    pub fn started(&mut self) -> Result<(), IncomingError> {
        let Some(mut response) = self.response.take() else { return Ok(()) };
        let mut head = Response::new(());
        *head.version_mut() = Version::HTTP_2;
        let answer = response.send_response(head, false).map_err(|_| IncomingError::Cancelled)?;
        self.answer = Some(answer);
        Ok(())
    }

    /// Completes when the caller has cancelled the call, or its connection was lost.
    pub async fn cancelled(&mut self) -> Cancelled {
        let reset = match (&mut self.response, &mut self.answer) {
            (Some(response), _) => poll_fn(|context| response.poll_reset(context)).await,
            (None, Some(answer)) => poll_fn(|context| answer.poll_reset(context)).await,
            (None, None) => return Cancelled::ConnectionLost,
        };
        match reset {
            Ok(_) => Cancelled::ByCaller,
            Err(_) => Cancelled::ConnectionLost,
        }
    }

    /// Sends the outcome. `head.body_bytes` is set here.
    ///
    /// # Errors
    /// The caller is gone or does not read, or the answer is too large: the caller gets a reset.
    pub async fn finish(mut self, mut head: OutcomeHead, body: Bytes) -> Result<(), IncomingError> {
        head.body_bytes = body.len() as u64;
        let parts = match encode(&head, body) {
            Ok(parts) => parts,
            Err(actual_bytes) => {
                self.reset(Reason::INTERNAL_ERROR);
                return Err(HeadError::TooLong { actual_bytes }.into());
            }
        };
        self.started()?;
        let Some(answer) = &mut self.answer else { return Err(IncomingError::Cancelled) };
        let stall = self.calls.limits.stall;
        match body::send(answer, parts, stall).await {
            Ok(()) => Ok(()),
            Err(StreamError::Stalled) => {
                self.reset(Reason::CANCEL);
                Err(IncomingError::Stalled { after: stall })
            }
            Err(_) => Err(IncomingError::Cancelled),
        }
    }

    /// Refuses the call: nothing of it was started. The caller backs off from this node.
    pub fn refuse(mut self) {
        self.reset(Reason::REFUSED_STREAM);
    }

    fn reset(&mut self, reason: Reason) {
        match (&mut self.response, &mut self.answer) {
            (Some(response), _) => response.send_reset(reason),
            (None, Some(answer)) => answer.send_reset(reason),
            (None, None) => {}
        }
    }
}

impl std::fmt::Debug for IncomingCall {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("IncomingCall").field("peer", &self.calls.peer).field("slot", &self.slot).finish()
    }
}
