//! Proof that a control API belongs to the node of a token, before the client sends that token.
//!
//! The client sends a random nonce to `GET /proof/NONCE`, which needs no token. The node answers with a keyed hash over the
//! nonce and the address and port at which it accepted the connection. Another program at the
//! node's address cannot answer. It cannot forward the request either, since the node accepts that connection at another address or port.
//!
//! The node answers only connections without TLS, which exist only on loopback: elsewhere the certificate proves its identity, and
//! a stranger gets no hash of the token for offline guesses.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

/// Path of the request; 64 hexadecimal digits follow.
pub const PROOF_PATH: &str = "/proof/";
/// Header of the answer.
pub const PROOF_HEADER: &str = "edgefaas-proof";

/// Distinguishes this use of the token (BLAKE3 `derive_key`).
const CONTEXT: &str = "edgefaas 2026-11-22 control port proof of token";

/// 32 random bytes, used for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonce([u8; 32]);

impl Nonce {
    /// A new nonce from the system's randomness.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The path of its request.
    pub fn path(&self) -> String {
        self.0.iter().fold(PROOF_PATH.to_owned(), |mut path, byte| {
            let _ = write!(path, "{byte:02x}");
            path
        })
    }

    /// Reads the nonce from the path of a request; `None` if 64 hexadecimal digits are missing.
    pub fn from_path(path: &str) -> Option<Self> {
        let hash = blake3::Hash::from_hex(path.strip_prefix(PROOF_PATH)?).ok()?;
        Some(Self(*hash.as_bytes()))
    }
}

/// The proof of the node that has `token` and accepted the connection at `at`, as hexadecimal digits.
pub fn proof(token: &str, nonce: Nonce, at: SocketAddr) -> String {
    hash(token, nonce, at).to_hex().to_string()
}

/// True if `answer` is the proof of the node that has `token`, over a connection to `at`. The comparison takes constant time.
pub fn is_proof(answer: &str, token: &str, nonce: Nonce, at: SocketAddr) -> bool {
    blake3::Hash::from_hex(answer).is_ok_and(|answer| answer == hash(token, nonce, at))
}

fn hash(token: &str, nonce: Nonce, at: SocketAddr) -> blake3::Hash {
    let key = blake3::derive_key(CONTEXT, token.as_bytes());
    // A listener of both families sees clients of IPv4 at mapped addresses.
    let address = match at.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(&nonce.0).update(&address.octets()).update(&at.port().to_be_bytes());
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_node_with_the_token_at_the_address_can_answer() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (nonce, here) = (Nonce::random(), at("127.0.0.1:7070"));
        let answer = proof("token", nonce, here);
        assert!(is_proof(&answer, "token", nonce, here));
        assert!(is_proof(&answer, "token", nonce, at("[::ffff:127.0.0.1]:7070")));
        assert!(!is_proof(&answer, "other", nonce, here));
        assert!(!is_proof(&answer, "token", Nonce::random(), here), "a replay");
        assert!(!is_proof(&answer, "token", nonce, at("127.0.0.1:7071")), "passed on from another port");
        assert!(!is_proof(&answer, "token", nonce, at("[::1]:7070")), "passed on from another address");
        assert!(!is_proof("", "token", nonce, here));
    }

    #[test]
    fn a_nonce_is_read_from_its_path_only() {
        let nonce = Nonce::random();
        assert_eq!(Nonce::from_path(&nonce.path()), Some(nonce));
        for wrong in ["", "00", "../token", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64)] {
            assert_eq!(Nonce::from_path(&format!("{PROOF_PATH}{wrong}")), None, "{wrong}");
        }
        assert_eq!(Nonce::from_path(&"0".repeat(64)), None);
    }
}
