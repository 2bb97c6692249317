//! Timeout of writes: ends a connection whose client does not read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::write_progress::WriteProgress;

/// A stream whose writes, flushes and shutdown fail with [`TimedOut`](io::ErrorKind::TimedOut) if they are blocked for the
/// limit. It reports its writes to a [`WriteProgress`].
pub struct WriteTimeout<S> {
    stream: S,
    limit: Duration,
    progress: Arc<WriteProgress>,
    /// Timer of the blocked operation.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    /// `limit` is the maximum time without progress.
    pub fn new(stream: S, limit: Duration, progress: Arc<WriteProgress>) -> Self {
        Self { stream, limit, progress, timer: None }
    }

    fn watch_write(
        &mut self,
        done: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match &done {
            Poll::Ready(Ok(bytes)) => self.progress.wrote(*bytes),
            Poll::Pending => self.progress.write_blocked(),
            Poll::Ready(Err(_)) => {}
        }
        self.watch(done, context)
    }

    fn watch<T>(&mut self, done: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.timer = None;
            return done;
        }
        let deadline = Instant::now() + self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch_write(done, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch_write(done, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(done, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(done, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_blocked_write_fails_and_later_writes_succeed_once_the_client_reads() {
        let (mut client, server) = tokio::io::duplex(16);
        let progress = Arc::new(WriteProgress::new([127, 0, 0, 1].into()));
        let mut server = WriteTimeout::new(server, Duration::from_millis(50), progress);
        server.write_all(&[0; 16]).await.unwrap();
        let error = server.write_all(&[0; 16]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        client.read_exact(&mut [0; 16]).await.unwrap();
        server.write_all(&[0; 16]).await.unwrap();
    }
}
