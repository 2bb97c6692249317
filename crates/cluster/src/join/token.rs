//! Join tokens: one line of text that admits one node.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE32_NOPAD;
use libp2p::{Multiaddr, PeerId};
use prost::Message;

use crate::ClusterId;
use crate::known_addresses::{decode_addresses, encode_addresses};

/// Prefix of every token; the digit is the version of the format.
const PREFIX: &str = "efj1-";
const MAX_TOKEN_BYTES: usize = 2_048;
const CHECKSUM_BYTES: usize = 4;
pub(super) const SECRET_BYTES: usize = 16;

/// A one-time right to join a cluster. Printed by `Display` as one line without spaces, secret included;
/// `Debug` leaves the secret out.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    secret: [u8; SECRET_BYTES],
    cluster: ClusterId,
    issuer: PeerId,
    addresses: Vec<Multiaddr>,
}

/// Text that is not a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The prefix is missing.
    #[error("a join token begins with `{PREFIX}`; copy the whole line again")]
    NotAToken,
    /// A character was lost or changed.
    #[error("the join token is damaged; copy the whole line again")]
    Damaged,
}

impl Token {
    pub(crate) fn new(
        secret: [u8; SECRET_BYTES],
        cluster: ClusterId,
        issuer: PeerId,
        addresses: &[Multiaddr],
    ) -> Self {
        // The token has the addresses that decoding gives: at most 8, and only those that can be dialled.
        let addresses = decode_addresses(&encode_addresses(addresses));
        Self { secret, cluster, issuer, addresses }
    }

    /// The cluster that it is for.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The peer that made it.
    pub fn issuer(&self) -> PeerId {
        self.issuer
    }

    /// Addresses at which the issuer listens.
    pub fn addresses(&self) -> &[Multiaddr] {
        &self.addresses
    }

    pub(crate) fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }
}

impl fmt::Display for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = TokenWire {
            secret: self.secret.to_vec(),
            cluster: self.cluster.as_bytes().to_vec(),
            issuer: self.issuer.to_bytes(),
            addresses: encode_addresses(&self.addresses),
        }
        .encode_to_vec();
        let checksum = checksum(&bytes);
        bytes.extend_from_slice(&checksum);
        write!(out, "{PREFIX}{}", BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())
    }
}

impl FromStr for Token {
    type Err = TokenError;

    /// Reads a token; upper case and space around it do no harm. Never panics.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim().to_ascii_lowercase();
        let body = text.strip_prefix(PREFIX).ok_or(TokenError::NotAToken)?;
        if body.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Damaged);
        }
        let bytes =
            BASE32_NOPAD.decode(body.to_ascii_uppercase().as_bytes()).map_err(|_| TokenError::Damaged)?;
        let (body, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(TokenError::Damaged)?;
        if checksum(body) != *sum {
            return Err(TokenError::Damaged);
        }
        let wire = TokenWire::decode(body).map_err(|_| TokenError::Damaged)?;
        Ok(Self {
            secret: wire.secret.try_into().map_err(|_| TokenError::Damaged)?,
            cluster: ClusterId::from_bytes(&wire.cluster).ok_or(TokenError::Damaged)?,
            issuer: PeerId::from_bytes(&wire.issuer).map_err(|_| TokenError::Damaged)?,
            addresses: decode_addresses(&wire.addresses),
        })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Token")
            .field("cluster", &self.cluster)
            .field("issuer", &self.issuer)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct TokenWire {
    #[prost(bytes = "vec", tag = "1")]
    secret: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    cluster: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    issuer: Vec<u8>,
    #[prost(bytes = "vec", repeated, tag = "4")]
    addresses: Vec<Vec<u8>>,
}

/// Against slips of the hand, not of anybody's will.
fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let [a, b, c, d, ..] = *blake3::hash(bytes).as_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ClusterKey;

    fn token() -> Token {
        let addresses = ["/ip4/10.0.0.1/tcp/7071", "/ip4/10.0.0.1/udp/7071/quic-v1", "/ip4/0.0.0.0/tcp/1"];
        let addresses: Vec<Multiaddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Token::new([7; 16], ClusterKey::generate().public().id(), PeerId::random(), &addresses)
    }

    #[test]
    fn a_token_is_a_line_of_text() {
        let made = token();
        let line = made.to_string();
        assert!(line.starts_with("efj1-") && line.len() < 250, "{line}");
        assert_eq!(line.parse(), Ok(made.clone()));
        assert_eq!(format!("  {}\n", line.to_uppercase()).parse(), Ok(made.clone()));
        assert_eq!(made.addresses().len(), 2);
        assert!(!format!("{made:?}").contains("secret"));
        assert_eq!("hello".parse::<Token>(), Err(TokenError::NotAToken));
        assert_eq!("efj1-".parse::<Token>(), Err(TokenError::Damaged));
    }

    proptest! {
        #[test]
        fn a_slip_is_noticed(position in 5_usize..150, letter in "[a-z2-7]") {
            let line = token().to_string();
            let mut changed = line.clone();
            changed.replace_range(position..=position, &letter);
            if changed != line {
                prop_assert_eq!(changed.parse::<Token>(), Err(TokenError::Damaged));
            }
            prop_assert!(line[..position].parse::<Token>().is_err());
        }

        #[test]
        fn any_text_is_read_or_refused(text in "(efj1-)?\\PC{0,80}", bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = text.parse::<Token>();
            let mut bytes = bytes;
            let sum = checksum(&bytes);
            bytes.extend_from_slice(&sum);
            let _ = format!("efj1-{}", BASE32_NOPAD.encode(&bytes)).parse::<Token>();
        }
    }
}
