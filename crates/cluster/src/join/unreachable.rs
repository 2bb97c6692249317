//! The reason why a joining node could not reach the node that made its token, in words without peer ids.

use std::error::Error;
use std::io;
use std::net::SocketAddr;

use libp2p::swarm::DialError;
use libp2p::{Multiaddr, TransportError};

use crate::network::address::{TransportKind, kind, socket};

/// The reason why no connection came about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// The token has no address that can be dialled.
    #[error(
        "it has no address of the node that made it; make a new one there with `edgefaas cluster token`"
    )]
    NoAddress,
    /// The token was made here.
    #[error("this node made it; run `edgefaas cluster join` on the node that is to join")]
    OwnToken,
    /// A node answered, and it did not make the token.
    #[error(
        "another node answers at {at} than the one that made it; make a new one on a node that has the key of the cluster"
    )]
    OtherNode {
        /// Address of the node.
        at: DialAddress,
    },
    /// No address answered.
    #[error(
        "the node that made it does not answer: {}; check that it runs and that this node can reach it",
        dials.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    NoAnswer {
        /// The dials.
        dials: Vec<FailedDial>,
    },
    /// The dial ended before it began.
    #[error("the dial to the node that made it was cancelled; try again")]
    Cancelled,
}

/// A dial that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {reason}")]
pub struct FailedDial {
    /// The dialled address.
    pub at: DialAddress,
    /// The first cause.
    pub reason: String,
}

/// Address of a dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialAddress {
    /// A socket, by TCP or by QUIC.
    Socket(SocketAddr, TransportKind),
    /// An address of another form.
    Other(Multiaddr),
}

impl std::fmt::Display for DialAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(socket, TransportKind::Tcp) => write!(f, "{socket} (TCP)"),
            Self::Socket(socket, TransportKind::Quic) => write!(f, "{socket} (QUIC)"),
            Self::Other(address) => write!(f, "{address}"),
        }
    }
}

impl From<&Multiaddr> for DialAddress {
    /// Without the peer id at the end, which a dial appends.
    fn from(address: &Multiaddr) -> Self {
        match (socket(address), kind(address)) {
            (Some(socket), Some(kind)) => Self::Socket(socket, kind),
            _ => Self::Other(address.clone()),
        }
    }
}

impl From<DialError> for Unreachable {
    fn from(error: DialError) -> Self {
        match error {
            DialError::LocalPeerId { .. } => Self::OwnToken,
            DialError::WrongPeerId { address, .. } => Self::OtherNode { at: (&address).into() },
            DialError::Transport(failed) => {
                let dial = |(address, error): (Multiaddr, TransportError<io::Error>)| FailedDial {
                    at: (&address).into(),
                    reason: first_cause(&error),
                };
                Self::NoAnswer { dials: failed.into_iter().map(dial).collect() }
            }
            DialError::NoAddresses => Self::NoAddress,
            DialError::DialPeerConditionFalse(_) | DialError::Aborted | DialError::Denied { .. } => {
                Self::Cancelled
            }
        }
    }
}

fn first_cause(error: &(dyn Error + 'static)) -> String {
    // The wrapper of `io::Error` names its inner error, and hides it from `source` if that has none.
    let mut cause = error;
    loop {
        let inner = cause
            .downcast_ref::<io::Error>()
            .and_then(|error| error.get_ref())
            .map(|inner| inner as &(dyn Error + 'static));
        match inner.or_else(|| cause.source()) {
            Some(inner) => cause = inner,
            None => return cause.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use libp2p::PeerId;

    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_failed_dial_is_told_by_its_addresses_and_causes() {
        let peer = PeerId::random();
        let refused = io::Error::other(io::Error::from(io::ErrorKind::ConnectionRefused));
        let late = io::Error::new(io::ErrorKind::TimedOut, "no answer in 5 s");
        let error = DialError::Transport(vec![
            (address(&format!("/ip4/10.0.0.1/tcp/7071/p2p/{peer}")), TransportError::Other(refused)),
            (address(&format!("/ip6/fd00::1/udp/7071/quic-v1/p2p/{peer}")), TransportError::Other(late)),
        ]);
        assert_eq!(
            Unreachable::from(error).to_string(),
            "the node that made it does not answer: 10.0.0.1:7071 (TCP): connection refused, \
             [fd00::1]:7071 (QUIC): no answer in 5 s; check that it runs and that this node can reach it"
        );
    }

    #[test]
    fn another_node_is_told_by_its_address() {
        let (obtained, address) = (PeerId::random(), address("/ip4/10.0.0.1/tcp/7071"));
        let text = Unreachable::from(DialError::WrongPeerId { obtained, address }).to_string();
        assert!(text.starts_with("another node answers at 10.0.0.1:7071 (TCP) than"), "{text}");
    }
}
