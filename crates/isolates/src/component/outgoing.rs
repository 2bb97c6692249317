//! `wasi:http/outgoing-handler`: requests of components go to the [`Host`].

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use wasmtime_wasi_http::{DEFAULT_FORBIDDEN_HEADERS, Error, RequestOptions, WasiBody, WasiHttpHooks};

use crate::event::{OutgoingRequest, Redirect, ResponseBody, StreamedResponse};
use crate::host::{FetchCause, FetchError, Host, HostError, LogLevel};

/// The size of a piece of a body.
const CHUNK_BYTES: usize = 32 << 10;

/// Requests of a component over wasi:http, and the host that sends them.
pub(super) struct Outgoing {
    /// Host of the current invocation; `None` between two invocations.
    host: Option<Box<dyn Host>>,
    /// Bytes left for the bodies of all requests of the invocation. Made for the first request.
    room: Option<Arc<AtomicUsize>>,
    room_bytes: usize,
    /// A clone is held by each request in flight, and by the body of its response.
    in_flight: Arc<()>,
    /// Texts for the log of the function. The error codes of wasi:http say less.
    lines: Arc<Mutex<Vec<String>>>,
    /// Tasks that read bodies of refused requests. They end with the body, at the latest with the instance.
    discarding: Option<JoinSet<()>>,
}

/// A request and its response, until the body of the response has ended or is dropped.
struct Exchange {
    lines: Arc<Mutex<Vec<String>>>,
    _in_flight: Arc<()>,
}

impl Exchange {
    /// The error code of wasi:http. The log gets what it does not say.
    fn failed(&self, error: FetchError) -> Error {
        if matches!(error.cause, FetchCause::TooLarge { .. }) {
            self.lines.lock().push(format!("wasi:http: {error}"));
        }
        code(error)
    }
}

/// Resolves when a request or a response was transferred.
type Done = Box<dyn Future<Output = Result<(), Error>> + Send>;
type Sent = Result<(Response<WasiBody>, Done), Error>;

impl Outgoing {
    /// `room_bytes` bounds the bodies of all requests together.
    pub fn new(host: Box<dyn Host>, room_bytes: usize) -> Self {
        Self {
            host: Some(host),
            room: None,
            room_bytes,
            in_flight: Arc::default(),
            lines: Arc::default(),
            discarding: None,
        }
    }

    /// The host of the invocation. No code of a component runs between two invocations.
    pub fn host(&mut self) -> &mut dyn Host {
        self.host.as_mut().expect("there is one while the component runs").as_mut()
    }

    /// Ends the invocation. The next one has its own host and room.
    pub fn retire(&mut self) {
        (self.host, self.room) = (None, None);
    }

    /// Begins the next invocation of the same instance.
    pub fn renew(&mut self, host: Box<dyn Host>, room_bytes: usize) {
        (self.host, self.room_bytes) = (Some(host), room_bytes);
    }

    /// Writes what happened to responses to the log of the function.
    pub fn flush_log(&mut self) {
        let lines = std::mem::take(&mut *self.lines.lock());
        for line in lines {
            self.host().log(LogLevel::Warn, line);
        }
    }

    /// True if no request is in flight.
    pub fn is_idle(&self) -> bool {
        Arc::strong_count(&self.in_flight) == 1
    }

    /// Reads the body of a refused request to its end. Many components write the body before they look at the response, and
    /// writing to a body without a reader would be another error.
    fn discard(&mut self, mut body: WasiBody) {
        let tasks = self.discarding.get_or_insert_with(JoinSet::new);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move { while let Some(Ok(_)) = body.frame().await {} });
    }
}

impl WasiHttpHooks for Outgoing {
    // The default makes a closure for every header.
    fn is_forbidden_header(&mut self, name: &HeaderName) -> bool {
        DEFAULT_FORBIDDEN_HEADERS.contains(name)
    }

    // A body that is not read keeps two pieces.
    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK_BYTES
    }

    // The host's client sets it.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Done,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        self.flush_log();
        let (parts, body) = request.into_parts();
        let mut headers = Vec::with_capacity(parts.headers.len());
        for (name, value) in &parts.headers {
            let Ok(value) = value.to_str() else {
                return Box::new(std::future::ready(Err(Error::HttpRequestHeaderSize {
                    field_name: Some(name.as_str().to_owned()),
                    field_size: None,
                })));
            };
            headers.push((name.as_str().to_owned(), value.to_owned()));
        }
        let request = OutgoingRequest {
            method: parts.method.as_str().to_owned(),
            url: parts.uri.to_string(),
            headers,
            body: Bytes::new(),
            // A client over wasi:http decides about redirections itself.
            redirect: Redirect::Manual,
        };
        let room = self.room.get_or_insert_with(|| Arc::new(AtomicUsize::new(self.room_bytes))).clone();
        let exchange = Exchange { lines: self.lines.clone(), _in_flight: self.in_flight.clone() };
        let (give, given) = oneshot::channel();
        let whole = async move {
            let body = given.await.map_err(|_| HostError::Failed("the request was not sent".to_owned()))?;
            collect(body, room).await
        };
        let answer = match self.host().fetch_streamed(request, Box::pin(whole)) {
            Ok(answer) => answer,
            Err(error) => {
                // The error code of wasi:http does not say what to do about it.
                self.host().log(LogLevel::Warn, format!("wasi:http: {error}"));
                self.discard(body);
                return Box::new(std::future::ready(Err(code(error.into()))));
            }
        };
        // Fails if the host has dropped the request.
        let _ = give.send(body);
        let between_bytes = options.as_ref().and_then(|options| options.between_bytes_timeout);
        let limit = options.and_then(|options| {
            let (connect, first_byte) = (options.connect_timeout, options.first_byte_timeout);
            first_byte.map(|first| first + connect.unwrap_or_default())
        });
        Box::new(async move {
            let answer = match limit {
                None => answer.await,
                Some(limit) => {
                    tokio::time::timeout(limit, answer).await.map_err(|_| Error::HttpResponseTimeout)?
                }
            };
            let done: Done = Box::new(std::future::ready(Ok(())));
            let answer = answer.map_err(|error| exchange.failed(error))?;
            Ok((response(answer, between_bytes, exchange)?, done))
        })
    }
}

/// Collects the body of a request, within the room of its invocation.
async fn collect(mut body: WasiBody, room: Arc<AtomicUsize>) -> Result<Bytes, HostError> {
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            HostError::Invalid(
                "the request's body was not finished, or is not as long as it said".to_owned(),
            )
        })?;
        let Ok(data) = frame.into_data() else { continue };
        let taken = room.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(data.len()));
        if taken.is_err() {
            return Err(HostError::Overloaded(
                "the bodies of an invocation's requests have more bytes than its limits.memory".to_owned(),
            ));
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        rest.extend_from_slice(&std::mem::take(&mut first));
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// The response as the component reads it.
fn response(
    answer: StreamedResponse,
    between_bytes: Option<Duration>,
    exchange: Exchange,
) -> Result<Response<WasiBody>, Error> {
    let mut response = Response::new(body(answer.body, between_bytes, exchange));
    *response.status_mut() = StatusCode::from_u16(answer.status).map_err(|_| Error::HttpProtocolError)?;
    let headers = response.headers_mut();
    headers.reserve(answer.headers.len());
    for (name, value) in answer.headers {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_maybe_shared(Bytes::from(value)))
        {
            headers.append(name, value);
        }
    }
    Ok(response)
}

/// A body that the component reads piece by piece.
fn body(body: ResponseBody, between_bytes: Option<Duration>, exchange: Exchange) -> WasiBody {
    let frames = stream::unfold(Some((body, exchange)), move |open| async move {
        let (mut body, exchange) = open?;
        let next = match between_bytes {
            None => body.next().await,
            Some(limit) => match tokio::time::timeout(limit, body.next()).await {
                Ok(next) => next,
                Err(_) => return Some((Err(Error::ConnectionReadTimeout), None)),
            },
        };
        match next? {
            Ok(data) => Some((Ok(Frame::data(data)), Some((body, exchange)))),
            Err(error) => Some((Err(exchange.failed(error)), None)),
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

/// The error code of wasi:http that is nearest.
fn code(error: FetchError) -> Error {
    let FetchError { cause, error } = error;
    match cause {
        FetchCause::Denied => Error::HttpRequestDenied,
        FetchCause::Invalid => Error::HttpRequestUriInvalid,
        FetchCause::Overloaded => Error::ConnectionLimitReached,
        FetchCause::NoAddress => Error::DnsError { rcode: Some(error.to_string()), info_code: None },
        FetchCause::AddressDenied => Error::DestinationIpProhibited,
        FetchCause::Unreachable => Error::DestinationUnavailable,
        FetchCause::Refused => Error::ConnectionRefused,
        FetchCause::ConnectTimeout => Error::ConnectionTimeout,
        FetchCause::Certificate => Error::TlsCertificateError,
        FetchCause::Tls => Error::TlsProtocolError,
        FetchCause::Closed => Error::ConnectionTerminated,
        FetchCause::Protocol => Error::HttpProtocolError,
        FetchCause::TooLarge { limit_bytes } => Error::HttpResponseBodySize(Some(limit_bytes)),
        FetchCause::Other => Error::InternalError(Some(error.to_string())),
    }
}
