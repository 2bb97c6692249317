//! One connection: the only module with I/O and timers.
//!
//! ```text
//! handshake        the first packet, and the decision about it
//! run              the loop over stream, mailbox, store and timer
//! packets          what the packets of a client do
//! inbound_publish  a PUBLISH that waits for a hook or for room
//! pending_acks     acknowledgements that wait for their sync
//! outbound         messages for the client
//! ```

mod admission;
mod attached;
mod client_ids;
mod context;
mod handshake;
mod inbound_publish;
mod io;
mod keep_alive;
mod outbound;
mod packets;
mod pending_acks;
mod refusal;
mod run;
mod shared_tcp;
mod state;
mod throttle;

use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

pub(crate) use self::context::ConnectionContext;
use self::handshake::handshake;
use self::io::{Buffers, Io};
use self::refusal::{Refusal, refuse};
use self::shared_tcp::SharedTcp;
use self::state::Connection;
use crate::client::{Peer, Transport};
use crate::wire::Decoder;

/// A stream of any kind, behind a pointer.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// The task of one connection. Its code is generated in this crate, once for each kind of stream that a function here
/// takes, and not in every crate that polls it.
pub(crate) type Serving<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Serves a connection over plain TCP.
pub(crate) fn serve_tcp<'a>(
    context: &'a ConnectionContext,
    stream: TcpStream,
    peer: Peer,
    cancel: CancellationToken,
) -> Serving<'a> {
    let stream = Arc::new(stream);
    Box::pin(serve(context, SharedTcp(stream.clone()), Some(stream), peer, cancel))
}

/// Serves a connection over any other stream: TLS, WebSocket, or none at all.
pub(crate) fn serve_stream<'a>(
    context: &'a ConnectionContext,
    stream: Box<dyn Stream + 'a>,
    peer: Peer,
    cancel: CancellationToken,
) -> Serving<'a> {
    Box::pin(serve(context, stream, None, peer, cancel))
}

/// Serves a connection. `socket` is that of `stream`, if others may write to it.
async fn serve<S: Stream>(
    context: &ConnectionContext,
    stream: S,
    socket: Option<Arc<TcpStream>>,
    peer: Peer,
    cancel: CancellationToken,
) {
    let entered = match peer.transport {
        Transport::Internal => Ok(None),
        _ => context.admission.enter(peer.address.ip()),
    };
    let _place = match entered {
        Ok(place) => place,
        Err(limit) => {
            context.counters.refused.add(1);
            tracing::debug!(peer = %peer.address, %limit, "connection refused");
            return;
        }
    };
    // The phases of a connection use the same memory one after another: there may be thousands of idle connections.
    let (mut io, mut connection) = match begin(context, stream, socket, &peer, &cancel).await {
        Begun::Accepted(io, connection) => (io, connection),
        Begun::Refused(io, mut buffers, refusal) => {
            refuse(context, &mut buffers, *refusal, peer.address);
            return Box::pin(io.shut_down(buffers, &context.counters)).await;
        }
        Begun::Cancelled => return,
    };
    let end = connection.run(&mut io, &cancel).await;
    let buffers = connection.close(end);
    Box::pin(io.shut_down(buffers, &context.counters)).await;
}

/// The outcome of a stream's first packets.
enum Begun<'a, S> {
    Accepted(Io<S>, Box<Connection<'a>>),
    Refused(Io<S>, Buffers, Box<Refusal>),
    Cancelled,
}

async fn begin<'a, S: Stream>(
    context: &'a ConnectionContext,
    stream: S,
    socket: Option<Arc<TcpStream>>,
    peer: &Peer,
    cancel: &CancellationToken,
) -> Begun<'a, S> {
    Box::pin(async move {
        let mut io = Io::new(stream);
        let mut buffers = Buffers::default();
        let mut decoder = Decoder::new(context.config.max_packet_bytes as usize);
        let accepted = tokio::select! {
            accepted = handshake(context, &mut io, &mut buffers, &mut decoder, peer) => accepted,
            () = cancel.cancelled() => return Begun::Cancelled,
        };
        match accepted {
            Ok(accepted) => {
                let connection = Connection::attach(context, buffers, decoder, accepted, socket);
                Begun::Accepted(io, Box::new(connection))
            }
            Err(refusal) => Begun::Refused(io, buffers, Box::new(refusal)),
        }
    })
    .await
}
