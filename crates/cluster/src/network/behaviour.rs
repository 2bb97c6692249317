//! The first stream of a connection, opened by the side that dialled, and the streams beside it, which both sides may open.
//!
//! libp2p's own stream behaviour goes by peer and not by connection, which is too little here: of two
//! connections to one peer a certain one has to be closed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
    StreamUpgradeError, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, Stream};

use super::side_streams::{self, OpenRequest, SideStreams, StreamPort, StreamPurpose};

/// The protocol of a connection's first stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The channel of two members.
    Cluster,
    /// Exchange of a token for a certificate.
    Join,
}

/// A connection's stream, or that it will have none.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) connection: ConnectionId,
    pub(crate) peer: PeerId,
    pub(crate) stream: Result<FirstStream, NoStream>,
}

/// A connection's first stream.
#[derive(Debug)]
pub(crate) struct FirstStream {
    pub(crate) purpose: Purpose,
    pub(crate) stream: Stream,
    /// The streams beside it.
    pub(crate) side_streams: SideStreams,
}

/// The reason why a connection has no stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoStream {
    #[error("the other side does not speak the protocol")]
    Unsupported,
    /// A later attempt may succeed.
    #[error("the other side did not answer in time")]
    TimedOut,
    /// A later attempt may succeed.
    #[error(transparent)]
    Failed(Box<StreamUpgradeError<Infallible>>),
}

/// Decides about a connection before anything is read from it.
pub(crate) type Gate =
    Arc<dyn Fn(ConnectionId, PeerId, &Multiaddr) -> Result<(), GateClosed> + Send + Sync>;

/// A connection that is closed before anything is read from it.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub(crate) enum GateClosed {
    #[error("the peer was refused a short while ago")]
    BackingOff,
    #[error("too many connections of unknown peers")]
    Crowded,
}

/// The behaviour of libp2p that gives each connection its streams.
pub(crate) struct Channels {
    role: Role,
    serves_side_streams: bool,
    ready: VecDeque<Opened>,
    waker: Option<Waker>,
}

/// The side of the cluster's border that this node is on.
enum Role {
    /// Dials other members, serves them, and joining nodes while `serves_joins` is set.
    Member { serves_joins: Arc<AtomicBool>, gate: Gate },
    /// Dials to join and serves nothing.
    Joining,
}

impl Channels {
    /// A member: dials other members, serves them, and joining nodes while `serves_joins` is set.
    pub(crate) fn member(serves_joins: Arc<AtomicBool>, gate: Gate) -> Self {
        Self {
            role: Role::Member { serves_joins, gate },
            serves_side_streams: true,
            ready: VecDeque::new(),
            waker: None,
        }
    }

    /// A joining node: dials to join and serves nothing.
    pub(crate) fn joining() -> Self {
        Self { role: Role::Joining, serves_side_streams: false, ready: VecDeque::new(), waker: None }
    }

    /// Serves no streams beside the first one, as versions up to 0.1.
    #[cfg(test)]
    pub(crate) fn without_side_streams(self) -> Self {
        Self { serves_side_streams: false, ..self }
    }
}

impl NetworkBehaviour for Channels {
    type ConnectionHandler = Handler;
    type ToSwarm = Opened;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let side = match &self.role {
            Role::Member { serves_joins, gate } => {
                gate(connection, peer, remote).map_err(ConnectionDenied::new)?;
                Side::Listener { serves_joins: serves_joins.clone() }
            }
            Role::Joining => Side::Idle,
        };
        Ok(Handler::new(side, self.serves_side_streams))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let wants = match self.role {
            Role::Member { .. } => Purpose::Cluster,
            Role::Joining => Purpose::Join,
        };
        Ok(Handler::new(Side::Dialer { wants }, self.serves_side_streams))
    }

    fn on_swarm_event(&mut self, _: FromSwarm<'_>) {}

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        stream: THandlerOutEvent<Self>,
    ) {
        self.ready.push_back(Opened { connection, peer, stream });
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        if let Some(opened) = self.ready.pop_front() {
            return Poll::Ready(ToSwarm::GenerateEvent(opened));
        }
        self.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// The streams of one connection.
pub(crate) struct Handler {
    side: Side,
    ready: Option<Result<FirstStream, NoStream>>,
    serves_side_streams: bool,
    port: StreamPort,
    /// The other end of `port`, until there is a first stream.
    side_streams: Option<SideStreams>,
}

impl Handler {
    fn new(side: Side, serves_side_streams: bool) -> Self {
        let (port, side_streams) = side_streams::pair();
        Self { side, ready: None, serves_side_streams, port, side_streams: Some(side_streams) }
    }

    /// The first stream is open.
    fn opened(&mut self, purpose: Purpose, stream: Stream) {
        if let Some(side_streams) = self.side_streams.take() {
            self.ready = Some(Ok(FirstStream { purpose, stream, side_streams }));
        }
    }
}

/// The side of a connection, and whether it still opens or accepts its first stream.
enum Side {
    /// Opens a stream.
    Dialer { wants: Purpose },
    /// Accepts a stream.
    Listener { serves_joins: Arc<AtomicBool> },
    /// The stream was requested or accepted, or there will be none.
    Idle,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Result<FirstStream, NoStream>;
    type InboundProtocol = Protocols;
    type OutboundProtocol = Protocols;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = OpenFor;

    fn listen_protocol(&self) -> SubstreamProtocol<Protocols, ()> {
        let mut protocols = Vec::new();
        if let Side::Listener { serves_joins } = &self.side {
            protocols.push(Protocol::First(Purpose::Cluster));
            if serves_joins.load(Ordering::Relaxed) {
                protocols.push(Protocol::First(Purpose::Join));
            }
        }
        // Offered before the peer has proved that it is a member: its channel may be open already where this side still
        // waits for the end of the handshake.
        if self.serves_side_streams {
            protocols.extend(StreamPurpose::ALL.map(Protocol::Side));
        }
        SubstreamProtocol::new(Protocols(protocols), ())
    }

    /// Idle connections are detected by the channel, not by libp2p.
    fn connection_keep_alive(&self) -> bool {
        true
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Protocols, OpenFor, Self::ToBehaviour>> {
        if let Some(stream) = self.ready.take() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(stream));
        }
        if let Side::Dialer { wants: purpose } = self.side {
            self.side = Side::Idle;
            let protocols = Protocols(vec![Protocol::First(purpose)]);
            let protocol = SubstreamProtocol::new(protocols, OpenFor::First);
            return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
        }
        self.port.poll_request(context).map(|request| {
            let protocols = Protocols(vec![Protocol::Side(request.purpose)]);
            let protocol = SubstreamProtocol::new(protocols, OpenFor::Side(request));
            ConnectionHandlerEvent::OutboundSubstreamRequest { protocol }
        })
    }

    fn on_behaviour_event(&mut self, event: Infallible) {
        match event {}
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Protocols, Protocols, (), OpenFor>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) => {
                match protocol {
                    (Protocol::First(purpose), stream) => {
                        if let Side::Listener { .. } = self.side {
                            self.side = Side::Idle;
                            self.opened(purpose, stream);
                        }
                    }
                    (Protocol::Side(purpose), stream) => self.port.accept(purpose, stream),
                }
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                match (protocol, info) {
                    ((Protocol::First(purpose), stream), OpenFor::First) => self.opened(purpose, stream),
                    ((_, stream), OpenFor::Side(request)) => request.fulfil(Ok(stream)),
                    // A request of a first stream offers no other protocol.
                    ((Protocol::Side(_), _), OpenFor::First) => {}
                }
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { error, info }) => {
                let error = match error {
                    StreamUpgradeError::NegotiationFailed => NoStream::Unsupported,
                    StreamUpgradeError::Timeout => NoStream::TimedOut,
                    other => NoStream::Failed(Box::new(other)),
                };
                match info {
                    OpenFor::First => self.ready = Some(Err(error)),
                    OpenFor::Side(request) => request.fulfil(Err(error)),
                }
            }
            _ => {}
        }
    }
}

/// Subject of a stream that is being opened.
#[derive(Debug)]
pub(crate) enum OpenFor {
    /// The connection's first stream.
    First,
    /// A stream beside it.
    Side(OpenRequest),
}

/// The protocol of any stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    First(Purpose),
    Side(StreamPurpose),
}

/// The protocols that a stream may be opened with.
#[derive(Debug)]
pub(crate) struct Protocols(Vec<Protocol>);

impl UpgradeInfo for Protocols {
    type Info = Protocol;
    type InfoIter = std::vec::IntoIter<Protocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl AsRef<str> for Protocol {
    fn as_ref(&self) -> &str {
        match self {
            Self::First(Purpose::Cluster) => "/edgefaas/cluster/1",
            Self::First(Purpose::Join) => "/edgefaas/join/1",
            Self::Side(StreamPurpose::Calls) => "/edgefaas/calls/1",
            Self::Side(StreamPurpose::Artefacts) => "/edgefaas/artefacts/1",
        }
    }
}

impl InboundUpgrade<Stream> for Protocols {
    type Output = (Protocol, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: Protocol) -> Self::Future {
        ready(Ok((protocol, stream)))
    }
}

impl OutboundUpgrade<Stream> for Protocols {
    type Output = (Protocol, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, protocol: Protocol) -> Self::Future {
        ready(Ok((protocol, stream)))
    }
}
