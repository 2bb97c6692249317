//! Checks of request heads that RFC 9112 requires and the HTTP library (hyper) omits: exactly one `Host`, no
//! `Transfer-Encoding` except `chunked`, and not both `Transfer-Encoding` and `Content-Length`.
//!
//! If a request has both, hyper removes `Content-Length` and uses `Transfer-Encoding`. A proxy in front of the node may have
//! used `Content-Length`; then the rest of the body would be parsed as another request (request smuggling). After hyper has
//! parsed the head, the conflict is no longer visible. So [`Scanned`] inspects the incoming bytes with hyper's own parser
//! (httparse), and finds the boundaries of the requests for that.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use edgefaas_functions::problem::Problem;
use http::header::{HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{Request, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum number of headers of a request; hyper has the same limit.
const MAX_HEADERS: usize = 100;
/// Maximum size of a request head: request line and headers. While a head is received it is in memory twice; the memory plan
/// of a connection is based on this size. hyper may read up to twice as much of a fast client before it refuses the head.
pub const MAX_HEAD_BYTES: usize = 32 << 10;
/// Maximum size of the line with the size of a chunk.
const MAX_SIZE_LINE_BYTES: usize = 16 << 10;

/// Results of the scan of one connection: [`Scanned`] writes them, the request handler reads them by [`check`](Self::check).
#[derive(Debug, Default)]
pub struct RequestHeads {
    /// Number of the request with both `Content-Length` and `Transfer-Encoding`; 0 if there is none. The first request is 1.
    ambiguous: AtomicU64,
    /// Number of the first request whose start is unknown; 0 if all are known.
    first_unknown: AtomicU64,
    /// Number of checked requests.
    checked: AtomicU64,
    /// The connection has switched to another protocol.
    is_stopped: AtomicBool,
}

impl RequestHeads {
    /// Checks the next request. Must be called once for each request, in order.
    ///
    /// # Errors
    /// Status 400 or 501; the caller must close the connection after the reply.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let number = self.checked.fetch_add(1, Relaxed) + 1;
        if request.version() > Version::HTTP_11 {
            return Ok(());
        }
        if self.ambiguous.load(Relaxed) == number {
            let detail = "a request may have `Transfer-Encoding` or `Content-Length`; this one has both";
            return Err(Problem::new(400, "Ambiguous length", detail));
        }
        let first_unknown = self.first_unknown.load(Relaxed);
        if first_unknown != 0 && number >= first_unknown {
            let detail = format!(
                "the end of the previous request or the head of this one does not follow RFC 9112, or the head is longer than \
                 {} KiB",
                MAX_HEAD_BYTES >> 10
            );
            return Err(Problem::new(400, "Ambiguous request", detail));
        }
        check_encoding(request.headers())?;
        let mut hosts = request.headers().get_all(HOST).into_iter();
        let detail = match (hosts.next(), hosts.next(), request.version()) {
            (Some(_), Some(_), _) => "a request must have one `Host` header; this one has several",
            (None, _, Version::HTTP_11) => {
                "an HTTP/1.1 request must have a `Host` header; this one has none"
            }
            (Some(host), None, _) if !is_host(host) => {
                "the `Host` header is not a host with an optional port"
            }
            _ => return Ok(()),
        };
        Err(Problem::new(400, "Bad host", detail))
    }

    /// Ends the scan: the connection has switched to another protocol.
    pub fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
    }
}

/// Accepts only a single `chunked` (RFC 9112, sections 6.1 and 7.1). hyper accepts every list that ends with `chunked`, and
/// does not decode the other codings.
fn check_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    let codings = headers
        .get_all(TRANSFER_ENCODING)
        .into_iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let mut count = 0;
    for coding in codings {
        if !coding.trim_ascii().eq_ignore_ascii_case(b"chunked") {
            let detail = "the node accepts only `Transfer-Encoding: chunked`; name the compression of a body in `Content-Encoding`";
            return Err(Problem::new(501, "Unknown transfer coding", detail));
        }
        count += 1;
    }
    if count > 1 {
        let detail = "`Transfer-Encoding` must contain `chunked` once; in this request it is repeated";
        return Err(Problem::new(400, "Ambiguous length", detail));
    }
    Ok(())
}

/// True if a header value is `uri-host [ ":" port ]` or empty (RFC 9110, section 7.2).
fn is_host(host: &HeaderValue) -> bool {
    host.is_empty()
        || host.to_str().is_ok_and(|host| !host.contains('@') && host.parse::<Authority>().is_ok())
}

/// A stream that scans the incoming requests. Bytes pass unchanged.
pub struct Scanned<S> {
    stream: S,
    scan: Scan,
    heads: Arc<RequestHeads>,
}

impl<S> Scanned<S> {
    /// For a connection of which nothing was read yet.
    pub fn new(stream: S, heads: Arc<RequestHeads>) -> Self {
        Self { stream, scan: Scan::default(), heads }
    }
}

/// Incremental scan of the requests on a connection.
#[derive(Debug, Default)]
struct Scan {
    position: Position,
    /// Number of heads so far: complete, ambiguous or invalid ones.
    requests: u64,
}

#[derive(Debug)]
enum Position {
    /// In a head; the bytes of it so far.
    Head(Vec<u8>),
    /// In a body with a length; the remaining bytes.
    Body(u64),
    /// In the line with the size of a chunk; the bytes of it so far.
    ChunkSize(Vec<u8>),
    /// In a chunk; the remaining bytes with the CRLF at its end.
    Chunk(u64),
    /// In the trailers.
    Trailers {
        /// True if the current line is empty so far.
        is_empty: bool,
        /// True if the last byte was a carriage return.
        is_return: bool,
    },
    /// The boundaries of the requests are unknown from here on.
    Unknown,
}

impl Default for Position {
    fn default() -> Self {
        Self::Head(Vec::new())
    }
}

/// Framing of the body after a head.
enum Framing {
    Length(u64),
    Chunked,
    Ambiguous,
}

impl Scan {
    /// Scans more bytes. True if they complete a head with both `Content-Length` and `Transfer-Encoding`; the scan ends there.
    fn scan(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let (next, used) = match std::mem::replace(&mut self.position, Position::Unknown) {
                Position::Head(before) => {
                    let (next, used) = scan_head(before, bytes);
                    self.requests +=
                        u64::from(!matches!(next, Some(Position::Head(ref rest)) if !rest.is_empty()));
                    match next {
                        Some(next) => (next, used),
                        None => return true,
                    }
                }
                Position::Body(left) => match left.saturating_sub(bytes.len() as u64) {
                    0 => (Position::default(), left as usize),
                    left => (Position::Body(left), bytes.len()),
                },
                Position::ChunkSize(before) => scan_chunk_size(before, bytes),
                Position::Chunk(left) => match left.saturating_sub(bytes.len() as u64) {
                    0 => (Position::ChunkSize(Vec::new()), left as usize),
                    left => (Position::Chunk(left), bytes.len()),
                },
                Position::Trailers { is_empty, is_return } => match bytes[0] {
                    // hyper does not end the line at a line feed without a carriage return.
                    b'\n' if !is_return => (Position::Unknown, 1),
                    b'\n' if is_empty => (Position::default(), 1),
                    b'\n' => (Position::Trailers { is_empty: true, is_return: false }, 1),
                    b'\r' => (Position::Trailers { is_empty, is_return: true }, 1),
                    _ => (Position::Trailers { is_empty: false, is_return: false }, 1),
                },
                Position::Unknown => return false,
            };
            self.position = next;
            bytes = &bytes[used..];
        }
        false
    }
}

/// Scans a head. Returns the position after the new bytes that belong to it, and their number; no position if the head is
/// ambiguous.
fn scan_head(mut before: Vec<u8>, bytes: &[u8]) -> (Option<Position>, usize) {
    // Most heads arrive in one piece and need no copy.
    let known = before.len();
    let all = if known == 0 {
        bytes
    } else {
        before.extend_from_slice(bytes);
        &before
    };
    // An incomplete head is not parsed again for each piece.
    let from = known.saturating_sub(3);
    let has_end = known == 0
        || all[from..].windows(2).any(|two| two == b"\n\n")
        || all[from..].windows(3).any(|end| end == b"\n\r\n");
    let parsed = if has_end { parse_head(all) } else { Ok(None) };
    match parsed {
        Ok(Some((Framing::Ambiguous, _))) => (None, bytes.len()),
        Ok(Some((Framing::Length(0), length))) => (Some(Position::default()), length.saturating_sub(known)),
        Ok(Some((Framing::Length(body), length))) => {
            (Some(Position::Body(body)), length.saturating_sub(known))
        }
        Ok(Some((Framing::Chunked, length))) => {
            (Some(Position::ChunkSize(Vec::new())), length.saturating_sub(known))
        }
        Ok(None) if all.len() <= MAX_HEAD_BYTES => {
            let rest = if known == 0 { bytes.to_vec() } else { before };
            (Some(Position::Head(rest)), bytes.len())
        }
        // hyper finds the same error and closes the connection.
        Ok(None) | Err(_) => (Some(Position::Unknown), bytes.len()),
    }
}

/// Parses a head; `None` if it is incomplete. Also returns its size in bytes.
fn parse_head(bytes: &[u8]) -> Result<Option<(Framing, usize)>, httparse::Error> {
    let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let parsed = request.parse_with_uninit_headers(bytes, &mut headers)?;
    let httparse::Status::Complete(length) = parsed else { return Ok(None) };
    let (mut body, mut chunked) = (None, false);
    for header in request.headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).unwrap_or_default();
            body = Some(text.parse().map_err(|_| httparse::Error::HeaderValue)?);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = true;
        }
    }
    let framing = match (body, chunked) {
        (Some(_), true) => Framing::Ambiguous,
        (None, true) => Framing::Chunked,
        (body, false) => Framing::Length(body.unwrap_or(0)),
    };
    Ok(Some((framing, length)))
}

/// Scans the line with the size of a chunk. Returns the position after it and the number of its new bytes.
fn scan_chunk_size(mut line: Vec<u8>, bytes: &[u8]) -> (Position, usize) {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        line.extend_from_slice(bytes);
        let next =
            if line.len() > MAX_SIZE_LINE_BYTES { Position::Unknown } else { Position::ChunkSize(line) };
        return (next, bytes.len());
    };
    line.extend_from_slice(&bytes[..end]);
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let size =
        std::str::from_utf8(&line[..digits]).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
    let next = match size {
        Some(0) => Position::Trailers { is_empty: true, is_return: false },
        // Plus CRLF after the chunk.
        Some(size) => Position::Chunk(size.saturating_add(2)),
        None => Position::Unknown,
    };
    (next, end + 1)
}

impl<S: AsyncRead + Unpin> AsyncRead for Scanned<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        if matches!(this.scan.position, Position::Unknown) {
            return Poll::Ready(Ok(()));
        }
        if this.heads.is_stopped.load(Relaxed) {
            this.scan.position = Position::Unknown;
        } else if this.scan.scan(&buffer.filled()[before..]) {
            this.heads.ambiguous.store(this.scan.requests, Relaxed);
        } else if matches!(this.scan.position, Position::Unknown) {
            this.heads.first_unknown.store(this.scan.requests + 1, Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Scanned<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    const SIZED: &str =
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 30\r\n\r\nTransfer-Encoding: x\r\n\r\nabcdef";
    const CHUNKED: &str = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
                           15;x=y\r\nContent-Length: 3\r\n\r\n\r\n1\r\n\n\r\n0\r\ncontent-length: 1\r\n\r\n";
    const AMBIGUOUS: [&str; 2] = [
        "POST / HTTP/1.1\r\nContent-Length: 3\r\nhost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\ntransfer-encoding: chunked\ncontent-length: 3\nhost: a\n\n",
    ];

    fn requests(sent: &[u8], cuts: &[usize]) -> (u64, bool) {
        let (mut scan, mut rest, mut found) = (Scan::default(), sent, false);
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            found |= scan.scan(now);
            rest = later;
        }
        (scan.requests, found)
    }

    proptest! {
        #[test]
        fn the_scan_finds_all_requests_for_any_split_of_the_input(
            kinds in prop::collection::vec(0_usize..4, 0..6),
            ambiguous in prop::option::of(0_usize..2),
            cuts in prop::collection::vec(1_usize..70, 1..20),
        ) {
            let mut sent: String = kinds.iter().map(|kind| [PLAIN, SIZED, CHUNKED, "\r\n\r\nGET /x HTTP/1.0\n\n"][*kind]).collect();
            let mut expected = kinds.len() as u64;
            if let Some(kind) = ambiguous {
                sent.push_str(AMBIGUOUS[kind]);
                expected += 1;
            }
            prop_assert_eq!(requests(sent.as_bytes(), &cuts), (expected, ambiguous.is_some()));
        }

        #[test]
        fn no_input_makes_the_scan_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 1_usize..50) {
            requests(&bytes, &[cut]);
            requests(&[CHUNKED.as_bytes(), &bytes].concat(), &[cut]);
            requests(&[&CHUNKED.as_bytes()[..62], &bytes].concat(), &[cut]);
        }
    }

    #[test]
    fn the_scan_ends_at_a_head_that_is_too_long() {
        let mut scan = Scan::default();
        for _ in 0..=MAX_HEAD_BYTES / 1000 {
            assert!(!scan.scan(&[b'a'; 1000]));
        }
        assert!(matches!(scan.position, Position::Unknown));
    }
}
