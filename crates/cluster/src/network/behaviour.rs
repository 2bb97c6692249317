//! One stream per connection, opened by the side that dialled; no other stream is served.
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

/// The protocol of a stream.
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
    pub(crate) stream: Result<(Purpose, Stream), NoStream>,
}

/// The reason why a connection has no stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoStream {
    #[error("the other side does not speak the protocol")]
    Unsupported,
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

/// The behaviour of libp2p that gives each connection one stream.
pub(crate) struct Channels {
    role: Role,
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
        Self { role: Role::Member { serves_joins, gate }, ready: VecDeque::new(), waker: None }
    }

    /// A joining node: dials to join and serves nothing.
    pub(crate) fn joining() -> Self {
        Self { role: Role::Joining, ready: VecDeque::new(), waker: None }
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
        Ok(Handler { side, ready: None })
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
        Ok(Handler { side: Side::Dialer { wants }, ready: None })
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

/// The stream of one connection.
pub(crate) struct Handler {
    side: Side,
    ready: Option<Result<(Purpose, Stream), NoStream>>,
}

/// The side of a connection, and whether it still opens or accepts its stream.
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
    type ToBehaviour = Result<(Purpose, Stream), NoStream>;
    type InboundProtocol = Protocols;
    type OutboundProtocol = Protocols;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<Protocols, ()> {
        let mut purposes = Vec::new();
        if let Side::Listener { serves_joins } = &self.side {
            purposes.push(Purpose::Cluster);
            if serves_joins.load(Ordering::Relaxed) {
                purposes.push(Purpose::Join);
            }
        }
        SubstreamProtocol::new(Protocols { purposes }, ())
    }

    /// Idle connections are detected by the channel, not by libp2p.
    fn connection_keep_alive(&self) -> bool {
        true
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Protocols, (), Self::ToBehaviour>> {
        if let Some(stream) = self.ready.take() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(stream));
        }
        if let Side::Dialer { wants: purpose } = self.side {
            self.side = Side::Idle;
            let protocol = SubstreamProtocol::new(Protocols { purposes: vec![purpose] }, ());
            return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
        }
        Poll::Pending
    }

    fn on_behaviour_event(&mut self, event: Infallible) {
        match event {}
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Protocols, Protocols>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) => {
                if let Side::Listener { .. } = self.side {
                    self.side = Side::Idle;
                    self.ready = Some(Ok(protocol));
                }
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, .. }) => {
                self.ready = Some(Ok(protocol));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { error, .. }) => {
                self.ready = Some(Err(match error {
                    StreamUpgradeError::NegotiationFailed => NoStream::Unsupported,
                    other => NoStream::Failed(Box::new(other)),
                }));
            }
            _ => {}
        }
    }
}

/// The protocols that a stream may be opened with.
#[derive(Debug)]
pub(crate) struct Protocols {
    purposes: Vec<Purpose>,
}

impl UpgradeInfo for Protocols {
    type Info = Purpose;
    type InfoIter = std::vec::IntoIter<Purpose>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.purposes.clone().into_iter()
    }
}

impl AsRef<str> for Purpose {
    fn as_ref(&self) -> &str {
        match self {
            Self::Cluster => "/edgefaas/cluster/1",
            Self::Join => "/edgefaas/join/1",
        }
    }
}

impl InboundUpgrade<Stream> for Protocols {
    type Output = (Purpose, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, purpose: Purpose) -> Self::Future {
        ready(Ok((purpose, stream)))
    }
}

impl OutboundUpgrade<Stream> for Protocols {
    type Output = (Purpose, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, purpose: Purpose) -> Self::Future {
        ready(Ok((purpose, stream)))
    }
}
