//! What is stored of durable invocations: keys and records. Pure functions.
//!
//! ```text
//! p FUNCTION 0 SEQUENCE   Pending: an invocation that was accepted and has not ended
//! i ID                    Known: what is known about an invocation whose outcome somebody may ask for
//! k HASH                  Reserved: the invocation that an idempotency key stands for
//! e FINISHED ID           Expiry: when an outcome ended, in the order in which outcomes are forgotten
//! ```
//!
//! SEQUENCE and FINISHED (milliseconds since the Unix epoch) are 8 bytes, ID and HASH 16, big-endian, so that keys sort
//! as numbers do. [`records`](crate::records) has the form of a record.

use std::time::Duration;

use bytes::Bytes;
use edgefaas_isolates::{Event, Reply};
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::invocation::{Principal, Timing};
use crate::problem::Problem;
use crate::publisher::ClientRecord;
use crate::records::prefixed;

pub const PENDING: u8 = b'p';
pub const KNOWN: u8 = b'i';
pub const RESERVED: u8 = b'k';
pub const EXPIRY: u8 = b'e';

/// A digest that stands for an idempotency key, or for what it was used with.
pub type Digest = [u8; 16];

/// An invocation that was accepted and has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// The invocation's id.
    pub id: u128,
    /// The number of the next attempt; the first is 1.
    pub attempt: u32,
    /// Not before, in milliseconds since the Unix epoch; 0 for at once.
    pub due_unix_ms: u64,
    /// Those with the same key run one after another.
    pub order_key: Option<u64>,
    /// Whether somebody may ask for the outcome, and what with.
    pub keep: Option<Keep>,
    /// Where the answer is published.
    pub answer: Option<AnswerTo>,
    /// On whose behalf.
    pub principal: Principal,
    /// W3C trace context.
    pub trace_parent: Option<String>,
    /// How many functions have called or triggered one another before.
    pub depth: u8,
    /// What it is to handle.
    pub event: Event,
}

/// An outcome that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Keep {
    /// The idempotency key that stands for it.
    pub key: Option<Digest>,
    /// What a request for it needs at the gateway: 0 nothing, 1 a JSON Web Token, 2 the node's token; without it what
    /// calls of the function need.
    pub auth: Option<u8>,
}

/// Where an answer is published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerTo {
    /// The topic.
    pub topic: String,
    /// MQTT 5 correlation data.
    pub correlation_data: Option<Bytes>,
    /// Whose rules say whether it may go there.
    pub requester: Option<ClientRecord>,
}

/// What is known about an invocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// The function.
    pub function: String,
    /// See [`Keep::auth`].
    pub auth: Option<u8>,
    /// How far it has got.
    pub state: KnownState,
}

/// How far an invocation has got.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum KnownState {
    /// Its number in the journal.
    Pending(u64),
    /// It has ended.
    Done(StoredOutcome),
}

/// How an invocation ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredOutcome {
    /// The answer, or why there is none.
    pub result: Result<Reply, StoredProblem>,
    /// Runs, the last one included.
    pub attempts: u32,
    /// Of the last run, in microseconds: queue, start, execution.
    timing_us: [u64; 3],
}

/// An error as it is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredProblem {
    title: String,
    status: u16,
    detail: String,
    near: Vec<String>,
}

/// What an idempotency key stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The invocation.
    pub id: u128,
    /// What it was asked with.
    pub request: Digest,
}

/// An outcome, in the order in which they are forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expiry {
    /// The size of the outcome.
    pub bytes: u32,
    /// The idempotency key that goes with it.
    pub key: Option<Digest>,
}

impl StoredOutcome {
    /// An outcome to keep.
    pub fn new(result: Result<Reply, Problem>, attempts: u32, timing: Timing) -> Self {
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let result = result.map_err(|problem| StoredProblem {
            title: problem.title.into_owned(),
            status: problem.status,
            detail: problem.detail,
            near: problem.near,
        });
        let timing_us = [us(timing.queue), us(timing.start), us(timing.execution)];
        Self { result, attempts, timing_us }
    }

    /// The answer or the problem, as it was.
    pub fn into_result(self, id: Ulid) -> (Result<Reply, Problem>, Timing) {
        let [queue, start, execution] = self.timing_us.map(Duration::from_micros);
        let result = self.result.map_err(|stored| Problem {
            fault: None,
            title: stored.title.into(),
            status: stored.status,
            detail: stored.detail,
            invocation: Some(id.to_string()),
            near: stored.near,
        });
        (result, Timing { queue, start, execution })
    }
}

/// The key of a pending invocation.
pub fn pending_key(function: &str, sequence: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(function.len() + 10);
    key.push(PENDING);
    key.extend_from_slice(function.as_bytes());
    key.push(0);
    key.extend_from_slice(&sequence.to_be_bytes());
    key
}

/// Function and sequence from a pending invocation's key.
pub fn parse_pending_key(key: &[u8]) -> Option<(&str, u64)> {
    let (rest, sequence) = key.strip_prefix(&[PENDING])?.split_last_chunk::<8>()?;
    let function = std::str::from_utf8(rest.strip_suffix(&[0])?).ok()?;
    Some((function, u64::from_be_bytes(*sequence)))
}

/// The key of what is known about an invocation.
pub fn known_key(id: Ulid) -> Vec<u8> {
    prefixed(KNOWN, &id.0.to_be_bytes())
}

/// The key of what an idempotency key stands for.
pub fn reserved_key(digest: &Digest) -> Vec<u8> {
    prefixed(RESERVED, digest)
}

/// The key of an outcome's expiry.
pub fn expiry_key(finished_unix_ms: u64, id: Ulid) -> Vec<u8> {
    let mut key = prefixed(EXPIRY, &finished_unix_ms.to_be_bytes());
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

/// Time and id from an expiry's key.
pub fn parse_expiry_key(key: &[u8]) -> Option<(u64, Ulid)> {
    let (finished, id) = key.strip_prefix(&[EXPIRY])?.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*finished), Ulid(u128::from_be_bytes(id.try_into().ok()?))))
}

#[cfg(test)]
mod tests;
