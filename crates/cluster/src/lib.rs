//! Nodes of one cluster find each other and have one authenticated, ordered and bounded channel of byte
//! frames per pair. What is in the frames is no matter of this crate's [`transport`](Transport).
//!
//! Who belongs to a cluster is decided by its key ([`ClusterKey`]): it signs a [`Certificate`] over the peer
//! id of every node. There is no server and nothing expires, since a small node has no clock that could be
//! trusted; a node is put out by a [`RevocationList`] that the cluster key signs.

mod certificate;
mod cluster_key;
mod handshake;
mod identity;
mod join;
mod liveness;
mod membership;
mod revocation;
mod transport;

pub use certificate::{Certificate, CertificateError, NewCertificate};
pub use cluster_key::{ClusterId, ClusterKey, ClusterKeyError, ClusterPublicKey};
pub use handshake::{PROTOCOL_VERSIONS, Refusal};
pub use identity::{Identity, IdentityError};
pub use join::{JoinError, JoinRequest, Token, TokenError, join};
pub use libp2p::{Multiaddr, PeerId};
pub use membership::{Member, Membership, MembershipError};
pub use revocation::RevocationList;
pub use transport::{
    Counters, DownReason, Event, Handle, Options, PeerInfo, SendError, StartError, Transport, TransportKind,
};
