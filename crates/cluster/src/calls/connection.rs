//! The caller's side of one connection.

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Reason, client};
use http::{Method, Request, Uri, Version};
use tokio::io::{AsyncRead, AsyncWrite, BufWriter};
use tokio::time::{Instant, timeout_at};

use super::body::{self, Reader, StreamError};
use super::error::{CallError, MayHaveRun, NotStarted};
use super::limits::{
    CALL_WINDOW_BYTES, CONNECTION_WINDOW_BYTES, CallLimits, MAX_HEADER_BYTES, WRITE_BUFFER_BYTES,
};
use super::message::{OutcomeHead, encode};
use super::{CallHead, HeadError};

/// The answer to a call.
#[derive(Debug)]
pub struct Answer {
    /// The outcome.
    pub head: OutcomeHead,
    /// The body of the reply.
    pub body: Bytes,
}

/// A connection over which calls are made; clones are the same one.
#[derive(Clone)]
pub(super) struct Connection {
    requests: SendRequest<Bytes>,
}

/// The I/O of a connection: ends when the connection is lost, or when all its [`Connection`]s and calls have ended.
pub(super) type Driver<S> = client::Connection<BufWriter<S>, Bytes>;

impl Connection {
    /// Begins HTTP/2 on a stream. The caller has to poll the driver.
    pub async fn open<S>(io: S, limits: &CallLimits) -> Result<(Self, Driver<S>), h2::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let io = BufWriter::with_capacity(WRITE_BUFFER_BYTES, io);
        let calls = u32::try_from(limits.calls_per_peer).unwrap_or(u32::MAX);
        let (requests, driver) = Builder::new()
            .initial_window_size(CALL_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(MAX_HEADER_BYTES)
            .initial_max_send_streams(limits.calls_per_peer)
            .max_concurrent_streams(calls)
            .enable_push(false)
            .handshake(io)
            .await?;
        Ok((Self { requests }, driver))
    }

    /// Makes a call. Dropping the future cancels it.
    pub async fn call(
        mut self,
        head: &CallHead,
        body: Bytes,
        deadline: Instant,
        limits: &CallLimits,
    ) -> Result<Answer, CallError> {
        let too_large = |actual_bytes, limit_bytes| NotStarted::TooLarge { actual_bytes, limit_bytes };
        if body.len() > limits.body_bytes {
            return Err(too_large(body.len(), limits.body_bytes).into());
        }
        let parts = encode(head, body).map_err(|bytes| too_large(bytes, super::MAX_HEAD_BYTES))?;
        let lost_before = |error: h2::Error| NotStarted::Unreachable { reason: error.to_string() };
        let is_ready =
            timeout_at(deadline, std::future::poll_fn(|context| self.requests.poll_ready(context)));
        is_ready.await.map_err(|_| NotStarted::TimedOut)?.map_err(lost_before)?;
        let (response, mut stream) = self.requests.send_request(request(), false).map_err(lost_before)?;
        let mut response = std::pin::pin!(response);
        let mut progress = Progress::Sending;
        let exchange = async {
            // While a large body is sent, the member may already refuse the call.
            let sent = tokio::select! {
                biased;
                sent = body::send(&mut stream, parts, limits.stall) => sent,
                answer = &mut response => {
                    return Err(answer.err().map_or(MayHaveRun::GivenUp.into(), |error| lost(&error, progress)));
                }
            };
            match sent {
                Ok(()) => progress = Progress::Sent,
                // The response tells why.
                Err(StreamError::Lost(_)) => {}
                Err(_) => return Err(NotStarted::Stalled { after: limits.stall }.into()),
            }
            let answer = response.await.map_err(|error| lost(&error, progress))?;
            progress = Progress::Started;
            let mut answer = answer.into_body();
            // The outcome may take any time, up to the deadline of the call.
            let read = Reader::new(&mut answer, None).read::<OutcomeHead>(limits.body_bytes, None);
            let (head, body, _) = read.await.map_err(|error| match error {
                StreamError::Lost(Some(error)) => lost(&error, progress),
                StreamError::Head(HeadError::Incomplete) => MayHaveRun::GivenUp.into(),
                StreamError::Head(error) => MayHaveRun::Invalid(error).into(),
                StreamError::Lost(None) | StreamError::Stalled | StreamError::NoRoom => {
                    CallError::from(MayHaveRun::ConnectionLost { started: true })
                }
            })?;
            Ok(Answer { head, body })
        };
        match timeout_at(deadline, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(match progress {
                Progress::Sending => NotStarted::TimedOut.into(),
                Progress::Sent => MayHaveRun::TimedOut { started: false }.into(),
                Progress::Started => MayHaveRun::TimedOut { started: true }.into(),
            }),
        }
    }
}

/// How far a call has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Without its end the member cannot start it.
    Sending,
    Sent,
    Started,
}

fn request() -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static("http://c/");
    *request.version_mut() = Version::HTTP_2;
    request
}

fn lost(error: &h2::Error, progress: Progress) -> CallError {
    match error.reason() {
        Some(Reason::REFUSED_STREAM) => NotStarted::Refused.into(),
        _ if progress == Progress::Sending => NotStarted::Unreachable { reason: error.to_string() }.into(),
        Some(_) if error.is_reset() && error.is_remote() => MayHaveRun::GivenUp.into(),
        _ => MayHaveRun::ConnectionLost { started: progress == Progress::Started }.into(),
    }
}
