//! Nodes of one cluster find each other and have one authenticated, ordered and bounded channel of byte
//! frames per pair. The [`Transport`] does not read the content of the frames.
//!
//! The cluster's key ([`ClusterKey`]) decides the membership: it signs a [`Certificate`] over the peer
//! id of every node. There is no server and nothing expires, since a small node has no clock that could be
//! trusted; a node is removed by a [`Revocation`] that the cluster key signs.
//!
//! [`replication`], a machine without I/O, decides which node sends which object to which peer, and when.
//! It knows neither the transport nor what an object is made of; [`simulation`] runs many of it in virtual
//! time.
//!
//! [`placement`] decides where a call runs, by the policies of the cluster, without I/O as well.
//!
//! ```no_run
//! # use std::{path::Path, sync::Arc, time::Duration};
//! # use edgefaas_cluster::{ClusterKey, Event, Identity, Membership, NewCertificate, Options, Transport};
//! # async fn node() -> Result<(), Box<dyn std::error::Error>> {
//! let identity = Identity::load_or_create(Path::new("identity"))?;
//! let key = ClusterKey::generate();
//! let first = NewCertificate {
//!     peer_id: identity.peer_id(),
//!     node_id: 1,
//!     name: "hall".into(),
//!     serial: 1,
//!     issued_unix_ms: 0,
//! };
//! let membership = Arc::new(parking_lot::Mutex::new(Membership::found(&key, first)?));
//! let options = Options { mdns: true, ..Options::new(identity, membership, "0.0.0.0:7071".parse()?) };
//! let (handle, mut events, _streams) = Transport::start(options, Default::default()).await?;
//! println!("on another node: join {}", handle.open_join(&key, Duration::from_secs(600))?);
//! while let Some(event) = events.recv().await {
//!     match event {
//!         Event::PeerUp { node_id, .. } => handle.try_send(node_id, "hello".into())?,
//!         Event::Frame { node_id, bytes } => println!("node {node_id}: {bytes:?}"),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```

pub mod artefacts;
pub mod calls;
mod certificate;
mod cluster_key;
mod handshake;
mod identity;
mod join;
mod known_addresses;
mod liveness;
mod membership;
mod network;
pub mod occurrences;
mod penalties;
pub mod placement;
pub mod replication;
mod revocation;
pub mod simulation;
pub mod status;
mod streams;
mod transport;
pub mod wire;

pub use certificate::{Certificate, CertificateError, NewCertificate};
pub use cluster_key::{ClusterId, ClusterKey, ClusterKeyError, ClusterPublicKey};
pub use handshake::{PROTOCOL_VERSIONS, Refusal};
pub use identity::{Identity, IdentityError};
pub use join::{
    DialAddress, FailedDial, JoinError, JoinRequest, NoAnswer, Token, TokenError, Unreachable, WrongReply,
    join,
};
pub use known_addresses::KnownAddresses;
pub use libp2p::{Multiaddr, PeerId};
pub use membership::{Member, Membership, MembershipError};
pub use network::address::{BootstrapError, TransportKind};
pub use network::frame::ReadError;
pub use network::side_streams::StreamPurpose;
pub use network::swarm::{ListenFailure, SetupError};
pub use network::task_time::{TaskTime, TaskTimer};
pub use revocation::{Revocation, RevocationList, Revocations};
pub use streams::{ByteStream, MemberStream, OpenStream};
pub use transport::{
    Copy, Counters, DownReason, Event, EventReceiver, Handle, IncomingStream, IncomingStreams,
    OpenStreamError, Options, PeerInfo, PeerStatus, PeerStream, SendError, StartError, Transport,
};
