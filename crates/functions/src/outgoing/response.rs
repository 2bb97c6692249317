//! Bodies of answers: whole, or as the caller takes them.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use edgefaas_isolates::{IncomingResponse, ResponseBody, StreamedResponse};
use futures_util::stream;
use http::{HeaderMap, Response, Version};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use url::Url;

use super::HttpClient;
use super::caller::{Caller, ResponseLimit};
use super::connector::{HTTP1_BUFFER_BYTES, HTTP2_STREAM_BYTES};
use super::error::{FetchError, server};
use super::fair_pool::Share;

/// An answer whose body is not read yet.
pub(super) struct Answer {
    pub response: Response<Incoming>,
    /// The URL that answered.
    pub url: Url,
    pub redirected: bool,
    /// The share of requests, held until the body has ended.
    pub share: Share,
}

/// The bytes of a body that are in memory while it is streamed: those that the connection has received, and the piece that the
/// caller has taken.
pub(super) fn window_bytes(version: Version) -> usize {
    match version {
        Version::HTTP_2 => HTTP2_STREAM_BYTES as usize,
        _ => 2 * HTTP1_BUFFER_BYTES,
    }
}

/// A body that the caller reads.
struct Open {
    incoming: Incoming,
    url: Url,
    owner: Arc<str>,
    limit: ResponseLimit,
    received_bytes: u64,
    _request: Share,
    _buffered: Option<Share>,
}

impl Open {
    /// The next piece, and the rest; none at the end.
    async fn next(mut self) -> Option<(Result<Bytes, FetchError>, Option<Self>)> {
        loop {
            let frame = match self.incoming.frame().await? {
                Ok(frame) => frame,
                Err(error) => return Some((Err(FetchError::failed(&self.url, &error)), None)),
            };
            let Ok(data) = frame.into_data() else { continue };
            self.received_bytes += data.len() as u64;
            if self.received_bytes > self.limit.bytes() {
                return Some((Err(too_large(&self.url, &self.owner, self.limit)), None));
            }
            if !data.is_empty() {
                return Some((Ok(data), Some(self)));
            }
        }
    }
}

fn too_large(url: &Url, owner: &Arc<str>, limit: ResponseLimit) -> FetchError {
    FetchError::TooLarge { server: server(url), owner: owner.clone(), limit }
}

/// The announced size of a body.
///
/// # Errors
/// It is over the limit.
fn announced(caller: &Caller, incoming: &Incoming, url: &Url) -> Result<Option<u64>, FetchError> {
    let bytes = incoming.size_hint().exact();
    match bytes.is_some_and(|bytes| bytes > caller.response_limit.bytes()) {
        true => Err(too_large(url, caller.owner(), caller.response_limit)),
        false => Ok(bytes),
    }
}

fn header_pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let pair = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    headers.iter().map(pair).collect()
}

impl HttpClient {
    /// The answer with a body that the caller reads.
    pub(super) async fn streamed(
        &self,
        caller: &Caller,
        answer: Answer,
    ) -> Result<StreamedResponse, FetchError> {
        let Answer { response, url, redirected, share } = answer;
        let (parts, incoming) = response.into_parts();
        let body_bytes = announced(caller, &incoming, &url)?;
        // It waits for its memory before it holds any.
        let window = window_bytes(parts.version).min(self.buffered.capacity() / 8);
        let needed =
            body_bytes.map_or(window, |bytes| window.min(usize::try_from(bytes).unwrap_or(window)));
        let buffered = match needed {
            0 => None,
            bytes => {
                let room = self.buffered.take(caller.owner(), bytes).await;
                Some(room.map_err(|reason| FetchError::Overloaded { server: server(&url), reason })?)
            }
        };
        let shown_url = url.to_string();
        let open = Open {
            incoming,
            url,
            owner: caller.owner().clone(),
            limit: caller.response_limit,
            received_bytes: 0,
            _request: share,
            _buffered: buffered,
        };
        let body: ResponseBody = Box::pin(stream::unfold(Some(open), |open| async move {
            let (piece, rest) = open?.next().await?;
            Some((piece.map_err(edgefaas_isolates::FetchError::from), rest))
        }));
        Ok(StreamedResponse {
            status: parts.status.as_u16(),
            headers: header_pairs(&parts.headers),
            body_bytes,
            body,
            url: shown_url,
            redirected,
        })
    }

    /// The answer with its whole body.
    pub(super) async fn whole(
        &self,
        caller: &Caller,
        answer: Answer,
    ) -> Result<IncomingResponse, FetchError> {
        let Answer { response, url, redirected, share: _share } = answer;
        let (parts, mut incoming) = response.into_parts();
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        let mut total = 0;
        let mut taken: Option<Share> = None;
        // An answer with a known length waits for its memory once. Without a length, its memory grows while it is read, and it
        // must not wait for more while it holds memory that others wait for.
        if let Some(bytes) = announced(caller, &incoming, &url)?.filter(|bytes| *bytes > 0) {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            if bytes > self.buffered.capacity() {
                return Err(self.no_room(caller, &url));
            }
            let room = self.buffered.take(caller.owner(), bytes).await;
            taken = Some(room.map_err(|reason| FetchError::Overloaded { server: server(&url), reason })?);
        }
        let mut room = taken.as_ref().map_or(0, Share::amount);
        while let Some(frame) = incoming.frame().await {
            let frame = frame.map_err(|error| FetchError::failed(&url, &error))?;
            let Ok(data) = frame.into_data() else { continue };
            total += data.len();
            if total as u64 > caller.response_limit.bytes() {
                return Err(too_large(&url, caller.owner(), caller.response_limit));
            }
            if total > room {
                let more = total - room;
                let has_room = match &mut taken {
                    Some(taken) => taken.try_grow(more),
                    None => {
                        taken = self.buffered.try_take(caller.owner(), more);
                        taken.is_some()
                    }
                };
                if !has_room {
                    return Err(self.no_room(caller, &url));
                }
                room = total;
            }
            // Most bodies have one frame, and need no copy.
            if total == data.len() {
                first = data;
                continue;
            }
            rest.extend_from_slice(&std::mem::take(&mut first));
            rest.extend_from_slice(&data);
        }
        Ok(IncomingResponse {
            status: parts.status.as_u16(),
            headers: header_pairs(&parts.headers),
            body: if rest.is_empty() { first } else { rest.freeze() },
            url: url.into(),
            redirected,
        })
    }

    fn no_room(&self, caller: &Caller, url: &Url) -> FetchError {
        let (owner, capacity) = (caller.owner().clone(), self.buffered.capacity());
        FetchError::NoRoom { server: server(url), owner, capacity }
    }
}
