//! A stream and its buffers.

use std::cell::RefCell;
use std::future::{poll_fn, ready as immediately};
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::time::timeout;

use crate::stats::ConnectionCounters;

/// Bytes read at a time, at most.
const READ_BYTES: usize = 64 * 1024;
/// Capacity that an empty buffer keeps although little went through it.
const KEPT_CAPACITY_BYTES: usize = 512;
/// Bytes read and ignored at a time after the shutdown.
const IGNORED_BYTES: usize = 4 * 1024;

thread_local! {
    /// Bytes are read into this buffer, and copied to one of their size: an idle connection has no buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// Maximum time for sending the last bytes.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for which the client's last bytes are read and ignored after the shutdown: closing a socket with unread bytes
/// resets the connection, and the client would lose the DISCONNECT.
const LINGER: Duration = Duration::from_millis(500);

/// A stream.
pub(super) struct Io<S> {
    pub reader: ReadHalf<S>,
    pub writer: WriteHalf<S>,
}

/// Bytes of a stream that were read and not handled, and that are to be written.
#[derive(Default)]
pub(super) struct Buffers {
    pub inbound: BytesMut,
    pub outbound: BytesMut,
    /// Number of bytes of `outbound` that are written.
    pub sent: usize,
    /// The stream has buffered bytes, as TLS may do; a socket does not.
    pub unflushed: bool,
}

impl Buffers {
    /// Bytes that are left to be written.
    pub(super) fn unsent(&self) -> usize {
        self.outbound.len() - self.sent
    }

    /// Drops the bytes to be written: the client has closed its end.
    pub(super) fn discard(&mut self) {
        (self.sent, self.unflushed) = (0, false);
        release(&mut self.outbound, 0);
    }

    /// Gives the read buffer back when it is empty.
    pub(super) fn settle(&mut self) {
        if self.inbound.is_empty() {
            release(&mut self.inbound, 0);
        }
    }
}

impl<S: AsyncRead + AsyncWrite> Io<S> {
    pub(super) fn new(stream: S) -> Io<S> {
        let (reader, writer) = tokio::io::split(stream);
        Io { reader, writer }
    }

    /// Some bytes were written; with the last of them, begins to flush.
    pub(super) async fn written(&mut self, buffers: &mut Buffers, bytes: usize) -> std::io::Result<()> {
        buffers.sent += bytes;
        if buffers.sent == buffers.outbound.len() {
            release(&mut buffers.outbound, buffers.sent);
            buffers.sent = 0;
            buffers.unflushed = tokio::select! {
                biased;
                flushed = self.writer.flush() => flushed.map(|()| false)?,
                () = immediately(()) => true,
            };
        }
        Ok(())
    }

    /// Writes the remaining bytes and closes in a way that lets the client read it. Takes at most 2.5 s.
    pub(super) async fn shut_down(mut self, buffers: Buffers, counters: &ConnectionCounters) {
        let written = timeout(SHUTDOWN_TIMEOUT, async {
            self.writer.write_all(&buffers.outbound[buffers.sent..]).await?;
            self.writer.flush().await?;
            self.writer.shutdown().await
        });
        if let Ok(Ok(())) = written.await {
            counters.bytes_out.add(buffers.unsent() as u64);
            let _ = timeout(LINGER, async {
                let mut ignored = BytesMut::with_capacity(IGNORED_BYTES);
                while let Ok(1..) = self.reader.read_buf(&mut ignored).await {
                    ignored.clear();
                }
            })
            .await;
        }
    }
}

/// Empties a buffer; it keeps its memory only if `used_bytes` needed about as much.
fn release(buffer: &mut BytesMut, used_bytes: usize) {
    buffer.clear();
    if buffer.capacity() > KEPT_CAPACITY_BYTES.max(2 * used_bytes) {
        *buffer = BytesMut::new();
    }
}

/// Appends available bytes to `inbound`; 0 at the end of the stream. Cancel-safe: nothing is lost.
pub(super) async fn read<S: AsyncRead>(
    reader: &mut ReadHalf<S>,
    inbound: &mut BytesMut,
) -> std::io::Result<usize> {
    poll_fn(|context| {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            ready!(Pin::new(&mut *reader).poll_read(context, &mut buffer))?;
            inbound.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    })
    .await
}

/// Writes some of `bytes`; with none left, flushes the stream.
pub(super) async fn write_or_flush<S: AsyncWrite>(
    writer: &mut WriteHalf<S>,
    bytes: &[u8],
) -> std::io::Result<usize> {
    if bytes.is_empty() { writer.flush().await.map(|()| 0) } else { writer.write(bytes).await }
}
