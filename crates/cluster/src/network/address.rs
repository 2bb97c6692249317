//! Addresses as people write them and as libp2p does.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

/// The protocol that a connection runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    /// TCP with Noise and Yamux.
    Tcp,
    /// QUIC (RFC 9000).
    Quic,
}

/// An address to dial, whichever peer answers there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bootstrap {
    /// A multiaddress in the notation of libp2p, perhaps with the peer that is expected there.
    Exact { address: Multiaddr, peer: Option<PeerId> },
    /// `HOST:PORT`: a name or an IP address, dialled by TCP and by QUIC.
    Host { text: String },
}

/// Text that is not a bootstrap address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// The text begins with `/` and is not a multiaddress.
    #[error("it is not a multiaddress")]
    NotAMultiaddress,
    /// A multiaddress that neither TCP nor QUIC can dial.
    #[error("it has to look like /ip4/10.0.0.1/tcp/7071 or /ip4/10.0.0.1/udp/7071/quic-v1")]
    Unsupported,
    /// The text has no colon.
    #[error("it has no port; write HOST:PORT")]
    NoPort,
    /// The port is outside 1 to 65535.
    #[error("its port is not a number from 1 to 65535")]
    BadPort,
    /// The host is empty, has spaces, or is an IPv6 address without brackets.
    #[error("it names no host; write HOST:PORT, and an IPv6 address in brackets")]
    NoHost,
}

impl FromStr for Bootstrap {
    type Err = BootstrapError;

    fn from_str(text: &str) -> Result<Self, BootstrapError> {
        if text.starts_with('/') {
            let mut address: Multiaddr = text.parse().map_err(|_| BootstrapError::NotAMultiaddress)?;
            let peer = match address.iter().last() {
                Some(Protocol::P2p(peer)) => {
                    address.pop();
                    Some(peer)
                }
                _ => None,
            };
            if kind(&address).is_none() || socket(&address).is_none() {
                return Err(BootstrapError::Unsupported);
            }
            return Ok(Self::Exact { address, peer });
        }
        let (host, port) = text.rsplit_once(':').ok_or(BootstrapError::NoPort)?;
        if !port.parse().is_ok_and(|port: u16| port > 0) {
            return Err(BootstrapError::BadPort);
        }
        let bracketed = host.starts_with('[') && host.ends_with(']');
        if host.is_empty() || host.contains(char::is_whitespace) || (host.contains(':') && !bracketed) {
            return Err(BootstrapError::NoHost);
        }
        Ok(Self::Host { text: text.to_owned() })
    }
}

/// A socket address by TCP and by QUIC.
pub(crate) fn both(socket: SocketAddr) -> [Multiaddr; 2] {
    [tcp(socket), quic(socket)]
}

pub(crate) fn tcp(socket: SocketAddr) -> Multiaddr {
    Multiaddr::from(socket.ip().to_canonical()).with(Protocol::Tcp(socket.port()))
}

pub(crate) fn quic(socket: SocketAddr) -> Multiaddr {
    Multiaddr::from(socket.ip().to_canonical()).with(Protocol::Udp(socket.port())).with(Protocol::QuicV1)
}

/// The transport of an address; `None` if neither TCP nor QUIC can dial it.
pub(crate) fn kind(address: &Multiaddr) -> Option<TransportKind> {
    let mut parts = address.iter().skip(1);
    match (parts.next(), parts.next()) {
        (Some(Protocol::Tcp(_)), _) => Some(TransportKind::Tcp),
        (Some(Protocol::Udp(_)), Some(Protocol::QuicV1)) => Some(TransportKind::Quic),
        _ => None,
    }
}

/// The IP address and port.
pub(crate) fn socket(address: &Multiaddr) -> Option<SocketAddr> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) | Protocol::Udp(port) => Some(SocketAddr::new(ip, port)),
        _ => None,
    }
}

/// True if an address is a loopback address, which means the machine that reads it.
pub(crate) fn is_loopback(address: &Multiaddr) -> bool {
    socket(address).is_some_and(|socket| socket.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_bootstrap_address_may_look_like() {
        for text in ["/ip4/10.0.0.1/tcp/7071", "/ip4/10.0.0.1/udp/7071/quic-v1", "/ip6/fd00::1/tcp/1"] {
            let Ok(Bootstrap::Exact { address, peer: None }) = text.parse() else { panic!("{text}") };
            assert_eq!(address.to_string(), text);
        }
        for text in ["pi:7071", "10.0.0.1:7071", "[fd00::1]:7071", "pi.local:1"] {
            assert_eq!(text.parse(), Ok(Bootstrap::Host { text: text.into() }));
        }
        let peer = PeerId::random();
        let Ok(Bootstrap::Exact { peer: found, .. }) = format!("/ip4/10.0.0.1/tcp/1/p2p/{peer}").parse()
        else {
            panic!()
        };
        assert_eq!(found, Some(peer));
        for text in [
            "",
            "pi",
            "pi:",
            "pi:0",
            "pi:70000",
            ":1",
            "fd00::1:7071",
            "/ip4/1.2.3.4",
            "/dns/a/tcp/1",
            "/x",
            "a b:1",
        ] {
            assert!(text.parse::<Bootstrap>().is_err(), "{text}");
        }
    }

    #[test]
    fn sockets_and_addresses_go_both_ways() {
        let socket_address: SocketAddr = "127.0.0.1:7071".parse().unwrap();
        let [tcp, quic] = both(socket_address);
        assert_eq!((kind(&tcp), kind(&quic)), (Some(TransportKind::Tcp), Some(TransportKind::Quic)));
        assert_eq!((socket(&tcp), socket(&quic)), (Some(socket_address), Some(socket_address)));
        assert!(is_loopback(&tcp));
        assert!(!is_loopback(&"/ip4/10.0.0.1/tcp/1".parse().unwrap()));
    }
}
