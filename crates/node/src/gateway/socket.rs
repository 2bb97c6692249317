//! The socket of a connection to the gateway, for the one who moves its bytes and for the one who watches over it.

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

use super::replies::UNSENT_BYTES;

/// The most that is read at a time.
const READ_BYTES: usize = 64 << 10;

thread_local! {
    /// Bytes that were just read. The readers' own buffers are not initialised, which costs more than to copy a request.
    static READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// A handle to a connection's socket, which is closed with the last one.
#[derive(Debug, Clone)]
pub struct GatewaySocket(Arc<TcpStream>);

impl GatewaySocket {
    /// Of a connection that was just accepted. The system will hold little of what its client does not read.
    pub fn new(stream: TcpStream) -> Self {
        let socket = SockRef::from(&stream);
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let limited = socket.set_tcp_notsent_lowat(UNSENT_BYTES);
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let limited = socket.set_send_buffer_size(UNSENT_BYTES as usize);
        if let Err(error) = limited {
            tracing::debug!(%error, "what the system holds of a connection could not be limited");
        }
        Self(Arc::new(stream))
    }

    /// Waits until the connection has failed, as it does when the client resets it. That a client has closed its own side
    /// is no failure.
    pub async fn failed(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if self.0.ready(Interest::ERROR).await.is_ok() {
            return;
        }
        std::future::pending::<()>().await;
    }

    /// Has the system drop what is not sent as soon as the socket is closed, instead of trying to send it for minutes.
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
        let room = buffer.remaining().min(READ_BYTES);
        loop {
            ready!(self.0.poll_read_ready(context))?;
            let mut is_partial = false;
            let read = READ.with_borrow_mut(|bytes| {
                self.0.try_io(Interest::READABLE, || {
                    let read = rustix::io::read(&*self.0, &mut bytes[..room])?;
                    buffer.put_slice(&bytes[..read]);
                    // Nothing is left: the next look is for when the system says that there is more.
                    is_partial = (1..room).contains(&read);
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
    fn poll_sent(
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
        self.poll_sent(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_sent(context, |stream| stream.try_write_vectored(slices))
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
