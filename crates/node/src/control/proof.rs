//! Proof that a control port belongs to the node whose token a client holds, before the client sends that token.
//!
//! The client sends a random nonce to `GET /proof/NONCE`, which needs no token. The node answers with a keyed hash over the
//! nonce and the port that it listens on. Whatever else listens where the client expected the node cannot answer, nor
//! can it pass the question on to the node at another port.

use std::fmt::Write as _;

/// Where the question is asked; 64 hexadecimal digits follow.
pub const PROOF_PATH: &str = "/proof/";
/// The header of the answer.
pub const PROOF_HEADER: &str = "edgefaas-proof";

/// Distinguishes this use of the token (BLAKE3 `derive_key`).
const CONTEXT: &str = "edgefaas 2026-11-22 control port proof of token";

/// A question that is asked once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonce([u8; 32]);

impl Nonce {
    /// A random one.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The path of its question.
    pub fn path(&self) -> String {
        self.0.iter().fold(PROOF_PATH.to_owned(), |mut path, byte| {
            let _ = write!(path, "{byte:02x}");
            path
        })
    }

    /// Reads what follows [`PROOF_PATH`]; none if it is not 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let hash = blake3::Hash::from_hex(text).ok()?;
        Some(Self(*hash.as_bytes()))
    }
}

/// The answer of the node with this token at this port.
pub fn proof(token: &str, nonce: Nonce, port: u16) -> blake3::Hash {
    let key = blake3::derive_key(CONTEXT, token.as_bytes());
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(&nonce.0).update(&port.to_be_bytes());
    hasher.finalize()
}

/// Whether an answer is that of the node with this token; takes the same time for every wrong one.
pub fn is_proof(answer: &str, token: &str, nonce: Nonce, port: u16) -> bool {
    blake3::Hash::from_hex(answer).is_ok_and(|answer| answer == proof(token, nonce, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_node_with_the_token_at_the_port_can_answer() {
        let nonce = Nonce::random();
        let answer = proof("token", nonce, 7070).to_hex();
        assert!(is_proof(&answer, "token", nonce, 7070));
        assert!(!is_proof(&answer, "other", nonce, 7070));
        assert!(!is_proof(&answer, "token", Nonce::random(), 7070));
        assert!(!is_proof(&answer, "token", nonce, 7071), "passed on from another port");
        assert!(!is_proof("", "token", nonce, 7070));
    }

    #[test]
    fn a_nonce_is_read_from_its_path_and_nothing_else_is() {
        let nonce = Nonce::random();
        assert_eq!(nonce.path().strip_prefix(PROOF_PATH).and_then(Nonce::parse), Some(nonce));
        for wrong in ["", "00", "../token", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64)] {
            assert_eq!(Nonce::parse(wrong), None, "{wrong}");
        }
    }
}
