//! The socket of a gateway connection. The HTTP stack reads and writes it while the gateway watches it for errors and can
//! reset it.

use std::cell::RefCell;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::reply_budget::UNSENT_BYTES;

/// Maximum size of one read.
const READ_BYTES: usize = 64 << 10;

thread_local! {
    /// Buffer of one read. The buffer of the caller is uninitialised; initialising it costs more than copying a request.
    static READ_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// A handle to the socket of a connection. The socket is closed when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct GatewaySocket(Arc<TcpStream>);

impl GatewaySocket {
    /// Takes the socket of a new connection and limits the unsent bytes that the operating system buffers for it.
    pub fn new(stream: TcpStream) -> Self {
        let socket = SockRef::from(&stream);
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let limited = socket.set_tcp_notsent_lowat(UNSENT_BYTES);
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let limited = socket.set_send_buffer_size(UNSENT_BYTES as usize);
        if let Err(error) = limited {
            tracing::debug!(%error, "the unsent bytes of a connection could not be limited");
        }
        Self(Arc::new(stream))
    }

    /// Waits until the connection has failed, for example after a reset by the client. A client that closes only its sending
    /// side is not a failure. On systems other than Linux and Android this waits without end.
    pub async fn failed(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if self.0.ready(Interest::ERROR).await.is_ok() {
            return;
        }
        std::future::pending::<()>().await;
    }

    /// Makes the operating system discard the unsent bytes and reset the connection when the socket is closed. Without this
    /// it would try to send them for minutes.
    pub fn reset_on_close(&self) {
        if let Err(error) = SockRef::from(&*self.0).set_linger(Some(Duration::ZERO)) {
            tracing::debug!(%error, "a connection could not be reset");
        }
    }
}

impl AsyncRead for GatewaySocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let max_bytes = buffer.remaining().min(READ_BYTES);
        loop {
            ready!(self.0.poll_read_ready(context))?;
            let mut is_partial = false;
            let read = READ_BUFFER.with_borrow_mut(|bytes| {
                self.0.try_io(Interest::READABLE, || {
                    let read = rustix::io::read(&*self.0, &mut bytes[..max_bytes])?;
                    buffer.put_slice(&bytes[..read]);
                    // A short read has emptied the socket. `WouldBlock` clears its readiness, so the next read first
                    // waits for the operating system's event instead of trying in vain.
                    is_partial = (1..max_bytes).contains(&read);
                    if is_partial { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
                })
            });
            return match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !is_partial => continue,
                Err(_) if is_partial => Poll::Ready(Ok(())),
                read => Poll::Ready(read),
            };
        }
    }
}

impl GatewaySocket {
    fn poll_send(
        &self,
        context: &mut Context<'_>,
        send: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match send(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }
}

impl AsyncWrite for GatewaySocket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}
