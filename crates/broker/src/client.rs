//! Clients, and origins of messages.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

use crate::message::Version;

/// Transport by which a client reached the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// WebSocket over TCP.
    WebSocket,
    /// WebSocket over TLS.
    SecureWebSocket,
    /// No network: the client is a part of the node itself. Limits on clients do not apply.
    Internal,
}

/// The other end of a connection, before its CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Remote address of the connection.
    pub address: SocketAddr,
    /// Transport of the connection.
    pub transport: Transport,
    /// The client's own certificate (end entity, DER), if it showed one that was verified.
    pub certificate: Option<Bytes>,
}

impl Peer {
    /// A part of the node itself.
    pub fn internal() -> Peer {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        Peer { address, transport: Transport::Internal, certificate: None }
    }

    /// A client over plain TCP.
    pub fn tcp(address: SocketAddr) -> Peer {
        Peer { address, transport: Transport::Tcp, certificate: None }
    }
}

/// A connected client, as of its CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Client identifier, also when the broker assigned it.
    pub client_id: Arc<str>,
    /// The user it was authenticated as; `None` for an anonymous client.
    pub username: Option<Arc<str>>,
    /// Remote address of the connection.
    pub peer: SocketAddr,
    /// Protocol version of the connection.
    pub version: Version,
    /// Transport of the connection.
    pub transport: Transport,
}

impl Client {
    /// If it reached the broker over a network. A part of the node itself is no connection.
    pub(crate) fn is_over_network(&self) -> bool {
        self.transport != Transport::Internal
    }
}

/// The origin of a message, by which hooks decide.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Origin {
    /// A client over a connection, or its will.
    Client(Arc<Client>),
    /// The node itself, on behalf of a function.
    Node {
        /// Name of the function.
        source: Arc<str>,
        /// Depth of the chain of functions that led to this publish.
        depth: u8,
        /// The client whose request is being answered: the message is to be published only if that client may.
        requester: Option<Arc<Client>>,
    },
    /// A bridge, with a message of another broker.
    Bridge {
        /// Client identifier of the bridge's own session here: its subscriptions with no-local do not get the message.
        client_id: Arc<str>,
    },
    /// The broker itself, under `$SYS/`.
    Broker,
}
