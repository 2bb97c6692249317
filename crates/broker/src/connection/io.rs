//! A stream with its buffers.

use std::future::ready;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::timeout;

use crate::broker::Shared;

/// Room for one read at first, doubled by every read that fills it.
const FIRST_READ_BYTES: usize = 4 * 1024;
const LARGEST_READ_BYTES: usize = 64 * 1024;

/// How long the last bytes may take to leave.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long the client's last bytes are read and ignored: closing a socket with unread bytes resets the connection,
/// and the client would lose the DISCONNECT.
const LINGER: Duration = Duration::from_millis(500);

/// The stream with its buffers.
pub(super) struct Io<S> {
    pub reader: ReadHalf<S>,
    pub writer: WriteHalf<S>,
    pub inbound: BytesMut,
    /// Room wanted for the next read.
    read_bytes: usize,
    pub outbound: BytesMut,
    /// How much of `outbound` is written.
    pub sent: usize,
    /// The stream buffers what was written, as TLS may do; a socket does not.
    pub unflushed: bool,
}

impl<S: AsyncRead + AsyncWrite> Io<S> {
    pub(super) fn new(stream: S) -> Io<S> {
        let (reader, writer) = tokio::io::split(stream);
        Io {
            reader,
            writer,
            inbound: BytesMut::new(),
            read_bytes: FIRST_READ_BYTES,
            outbound: BytesMut::new(),
            sent: 0,
            unflushed: false,
        }
    }

    pub(super) fn unsent(&self) -> usize {
        self.outbound.len() - self.sent
    }

    pub(super) async fn written(&mut self, bytes: usize) -> std::io::Result<()> {
        self.sent += bytes;
        if self.sent == self.outbound.len() {
            self.outbound.clear();
            self.sent = 0;
            self.unflushed = tokio::select! {
                biased;
                flushed = self.writer.flush() => flushed.map(|()| false)?,
                () = ready(()) => true,
            };
        }
        Ok(())
    }

    pub(super) fn make_room(&mut self) {
        if self.inbound.capacity() - self.inbound.len() < self.read_bytes / 2 {
            self.inbound.reserve(self.read_bytes);
        }
    }

    /// Makes the next read larger when this one took all the room there was.
    pub(super) fn read(&mut self, bytes: usize) {
        if self.inbound.len() == self.inbound.capacity() && bytes >= self.read_bytes / 2 {
            self.read_bytes = (2 * self.read_bytes).min(LARGEST_READ_BYTES);
        }
    }

    /// Writes what is left and closes in a way that lets the client read it.
    pub(super) async fn farewell(&mut self, shared: &Shared) {
        let written = timeout(FAREWELL, async {
            self.writer.write_all(&self.outbound[self.sent..]).await?;
            self.writer.flush().await?;
            self.writer.shutdown().await
        });
        if let Ok(Ok(())) = written.await {
            shared.counters.bytes_out.add(self.unsent() as u64);
            let _ = timeout(LINGER, async {
                let mut ignored = BytesMut::with_capacity(FIRST_READ_BYTES);
                while let Ok(1..) = self.reader.read_buf(&mut ignored).await {
                    ignored.clear();
                }
            })
            .await;
        }
    }
}

/// Writes some of `bytes`; with none left, waits until all are on their way.
pub(super) async fn write_or_flush<S: AsyncWrite>(
    writer: &mut WriteHalf<S>,
    bytes: &[u8],
) -> std::io::Result<usize> {
    if bytes.is_empty() { writer.flush().await.map(|()| 0) } else { writer.write(bytes).await }
}
