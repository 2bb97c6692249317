//! What RFC 9112 asks of the head of a request and the HTTP library lets pass: one `Host`, no `Transfer-Encoding` but `chunked`,
//! and not both `Transfer-Encoding` and `Content-Length`.
//!
//! The library drops `Content-Length` where both are there, which is right for the message and wrong where a proxy before
//! the node went by it: the rest of the body would be the next request. So the bytes are looked at as they come in, with
//! the library's own parser, and the requests are told apart as far as that needs.

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

/// Headers of a request, as many as the library takes.
const MAX_HEADERS: usize = 100;
/// The longest head of a request, line and headers. It is in memory twice while it comes in: a longer one would be more than the plan has
/// for a connection. Of one that comes quickly the library reads up to twice as much before it refuses it.
pub const MAX_HEAD_BYTES: usize = 32 << 10;
/// The longest line with the size of a chunk.
const MAX_SIZE_LINE_BYTES: usize = 16 << 10;

/// The heads of the requests of one connection, for the one who reads them and the one who answers.
#[derive(Debug, Default)]
pub struct RequestHeads {
    /// The number of the request with a length and an encoding; 0 if there is none yet.
    ambiguous: AtomicU64,
    /// Of this request nobody knows where it begins, nor of those after it; 0 while that is known.
    lost: AtomicU64,
    answered: AtomicU64,
    /// What follows is no HTTP/1.
    is_over: AtomicBool,
}

impl RequestHeads {
    /// Checks the next request. To be called once for each, in order.
    ///
    /// # Errors
    /// 400 or 501, after which the connection is to be closed.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let number = self.answered.fetch_add(1, Relaxed) + 1;
        if request.version() > Version::HTTP_11 {
            return Ok(());
        }
        if self.ambiguous.load(Relaxed) == number {
            let detail = "a request has `Transfer-Encoding` or `Content-Length`; this one has both";
            return Err(Problem::new(400, "Ambiguous length", detail));
        }
        let lost = self.lost.load(Relaxed);
        if lost != 0 && number >= lost {
            let detail = format!(
                "the end of the request before this one, or the head of this one, is not as RFC 9112 has it, or the head is longer than {} \
                 KiB",
                MAX_HEAD_BYTES >> 10
            );
            return Err(Problem::new(400, "Ambiguous request", detail));
        }
        check_encoding(request.headers())?;
        let mut hosts = request.headers().get_all(HOST).into_iter();
        let detail = match (hosts.next(), hosts.next(), request.version()) {
            (Some(_), Some(_), _) => "a request has one `Host` header; this one has several",
            (None, _, Version::HTTP_11) => "a request of HTTP/1.1 has a `Host` header; this one has none",
            (Some(host), None, _) if !is_host(host) => "the `Host` header is no host with an optional port",
            _ => return Ok(()),
        };
        Err(Problem::new(400, "Bad host", detail))
    }

    /// The connection goes on with another protocol.
    pub fn end(&self) {
        self.is_over.store(true, Relaxed);
    }
}

/// What is not `chunked`, once, is refused (RFC 9112, sections 6.1 and 7.1): the library takes every list that ends with it, and leaves
/// the other encodings as they are.
fn check_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    let codings = headers
        .get_all(TRANSFER_ENCODING)
        .into_iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let mut count = 0;
    for coding in codings {
        if !coding.trim_ascii().eq_ignore_ascii_case(b"chunked") {
            let detail = "the node takes `Transfer-Encoding: chunked` and no other; say how a body is compressed in `Content-Encoding`";
            return Err(Problem::new(501, "Unknown transfer coding", detail));
        }
        count += 1;
    }
    if count > 1 {
        let detail =
            "a body is `chunked` once; the `Transfer-Encoding` of this request says so several times";
        return Err(Problem::new(400, "Ambiguous length", detail));
    }
    Ok(())
}

/// Whether a header is `uri-host [ ":" port ]`; it may be empty (RFC 9110, section 7.2).
fn is_host(host: &HeaderValue) -> bool {
    host.is_empty()
        || host.to_str().is_ok_and(|host| !host.contains('@') && host.parse::<Authority>().is_ok())
}

/// A stream whose incoming requests are looked at.
pub struct Scanned<S> {
    stream: S,
    scan: Scan,
    heads: Arc<RequestHeads>,
}

impl<S> Scanned<S> {
    /// A connection on which nothing was read yet.
    pub fn new(stream: S, heads: Arc<RequestHeads>) -> Self {
        Self { stream, scan: Scan::default(), heads }
    }
}

/// How far the requests have come.
#[derive(Debug, Default)]
struct Scan {
    at: At,
    requests: u64,
}

#[derive(Debug)]
enum At {
    /// In a head, of which these bytes came before.
    Head(Vec<u8>),
    Body(u64),
    /// In the line with the size of a chunk.
    ChunkSize(Vec<u8>),
    /// Bytes of a chunk, with the end of the line behind them.
    Chunk(u64),
    /// In the trailers; whether this line has anything in it, and whether a carriage return was the last of it.
    Trailers {
        is_empty: bool,
        is_return: bool,
    },
    /// Nobody knows, and nobody will.
    Lost,
}

impl Default for At {
    fn default() -> Self {
        Self::Head(Vec::new())
    }
}

/// The body that follows a head.
enum Framing {
    Length(u64),
    Chunked,
    Ambiguous,
}

impl Scan {
    /// Looks at more bytes; true if they hold the head of a request with a length and an encoding.
    fn see(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let (next, used) = match std::mem::replace(&mut self.at, At::Lost) {
                At::Head(before) => {
                    let (next, used) = head(before, bytes);
                    self.requests +=
                        u64::from(!matches!(next, Some(At::Head(ref rest)) if !rest.is_empty()));
                    match next {
                        Some(next) => (next, used),
                        None => return true,
                    }
                }
                At::Body(left) => match left.saturating_sub(bytes.len() as u64) {
                    0 => (At::default(), left as usize),
                    left => (At::Body(left), bytes.len()),
                },
                At::ChunkSize(before) => chunk_size(before, bytes),
                At::Chunk(left) => match left.saturating_sub(bytes.len() as u64) {
                    0 => (At::ChunkSize(Vec::new()), left as usize),
                    left => (At::Chunk(left), bytes.len()),
                },
                At::Trailers { is_empty, is_return } => match bytes[0] {
                    // The library reads on where a line ends without one.
                    b'\n' if !is_return => (At::Lost, 1),
                    b'\n' if is_empty => (At::default(), 1),
                    b'\n' => (At::Trailers { is_empty: true, is_return: false }, 1),
                    b'\r' => (At::Trailers { is_empty, is_return: true }, 1),
                    _ => (At::Trailers { is_empty: false, is_return: false }, 1),
                },
                At::Lost => return false,
            };
            self.at = next;
            bytes = &bytes[used..];
        }
        false
    }
}

/// Where a head leads to, and how many bytes of the new ones belong to it; nowhere if it is ambiguous.
fn head(mut before: Vec<u8>, bytes: &[u8]) -> (Option<At>, usize) {
    // Most heads come in one piece, and need no copy.
    let known = before.len();
    let all = if known == 0 {
        bytes
    } else {
        before.extend_from_slice(bytes);
        &before
    };
    // What is not whole is not parsed again and again.
    let from = known.saturating_sub(3);
    let has_end = known == 0
        || all[from..].windows(2).any(|two| two == b"\n\n")
        || all[from..].windows(3).any(|end| end == b"\n\r\n");
    let parsed = if has_end { parse(all) } else { Ok(None) };
    match parsed {
        Ok(Some((Framing::Ambiguous, _))) => (None, bytes.len()),
        Ok(Some((Framing::Length(0), length))) => (Some(At::default()), length.saturating_sub(known)),
        Ok(Some((Framing::Length(body), length))) => (Some(At::Body(body)), length.saturating_sub(known)),
        Ok(Some((Framing::Chunked, length))) => {
            (Some(At::ChunkSize(Vec::new())), length.saturating_sub(known))
        }
        Ok(None) if all.len() <= MAX_HEAD_BYTES => {
            let rest = if known == 0 { bytes.to_vec() } else { before };
            (Some(At::Head(rest)), bytes.len())
        }
        // The library says so too, and closes the connection.
        Ok(None) | Err(_) => (Some(At::Lost), bytes.len()),
    }
}

fn parse(bytes: &[u8]) -> Result<Option<(Framing, usize)>, httparse::Error> {
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

fn chunk_size(mut line: Vec<u8>, bytes: &[u8]) -> (At, usize) {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        line.extend_from_slice(bytes);
        let next = if line.len() > MAX_SIZE_LINE_BYTES { At::Lost } else { At::ChunkSize(line) };
        return (next, bytes.len());
    };
    line.extend_from_slice(&bytes[..end]);
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let size =
        std::str::from_utf8(&line[..digits]).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
    let next = match size {
        Some(0) => At::Trailers { is_empty: true, is_return: false },
        // With CRLF behind it.
        Some(size) => At::Chunk(size.saturating_add(2)),
        None => At::Lost,
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
        if matches!(this.scan.at, At::Lost) {
            return Poll::Ready(Ok(()));
        }
        if this.heads.is_over.load(Relaxed) {
            this.scan.at = At::Lost;
        } else if this.scan.see(&buffer.filled()[before..]) {
            this.heads.ambiguous.store(this.scan.requests, Relaxed);
        } else if matches!(this.scan.at, At::Lost) {
            this.heads.lost.store(this.scan.requests + 1, Relaxed);
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
            found |= scan.see(now);
            rest = later;
        }
        (scan.requests, found)
    }

    proptest! {
        #[test]
        fn requests_are_told_apart_however_they_are_cut(
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
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 1_usize..50) {
            requests(&bytes, &[cut]);
            requests(&[CHUNKED.as_bytes(), &bytes].concat(), &[cut]);
            requests(&[&CHUNKED.as_bytes()[..62], &bytes].concat(), &[cut]);
        }
    }

    #[test]
    fn heads_without_an_end_are_given_up() {
        let mut scan = Scan::default();
        for _ in 0..=MAX_HEAD_BYTES / 1000 {
            assert!(!scan.see(&[b'a'; 1000]));
        }
        assert!(matches!(scan.at, At::Lost));
    }
}
