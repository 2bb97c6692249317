//! How a node becomes a member: it trades a one-time token for a certificate on `/edgefaas/join/1`.
//!
//! The token names the issuer's peer id, so the joining node knows the peer that it talks to, and a secret that goes over
//! the encrypted channel, so the issuer knows that the joining node was invited. `client` is the joining node's side,
//! `issuer` and `admit` are the issuer's side without I/O; `protocol` is shared by both. `unreachable` has failed dials in words.

pub(crate) mod admit;
mod client;
pub(crate) mod issuer;
pub(crate) mod protocol;
mod token;
mod unreachable;

pub use client::{JoinError, JoinRequest, NoAnswer, WrongReply, join};
pub use token::{Token, TokenError};
pub use unreachable::{DialAddress, FailedDial, Unreachable};
