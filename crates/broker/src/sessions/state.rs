//! The state of one session beside its mailbox and the options of its subscriptions.

use std::collections::{HashSet, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Instant;

use crate::client::Client;
use crate::limits::Claim;
use crate::message::Message;
use crate::router::Replay;

/// The state of a session, which its connection owns while there is one.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// QoS 2 messages of the client that wait for PUBREL.
    pub unreleased: HashSet<NonZeroU16>,
    /// Retained messages that its subscriptions still have to get.
    pub replays: VecDeque<Replay>,
}

/// A message that is published when the connection to its client is lost.
#[derive(Debug)]
pub(crate) struct Will {
    pub message: Message,
    /// The will's share of the limit on the wills of all clients.
    pub claim: Claim,
}

/// A session that waits for its client.
#[derive(Debug)]
pub(super) struct Parked {
    pub state: State,
    /// The last client of the session.
    pub client: Arc<Client>,
    /// `u32::MAX` never expires.
    pub expiry_seconds: u32,
    pub will: Option<Will>,
    pub times: Times,
    /// Tells this waiting from an earlier one.
    pub parking: u64,
}

/// Deadlines of a waiting session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// Time at which the session's will is published.
    pub will_at: Option<Instant>,
    /// Time at which the session ends; `None` if it never expires.
    pub expires_at: Option<Instant>,
}

/// The effect of a timer of a waiting session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// Publishes its will.
    Will,
    /// Ends it.
    Expiry,
}

impl Times {
    pub(super) fn due(&self) -> impl Iterator<Item = (Instant, Due)> + use<> {
        let all = [(self.will_at, Due::Will), (self.expires_at, Due::Expiry)];
        all.into_iter().filter_map(|(at, due)| at.map(|at| (at, due)))
    }
}
