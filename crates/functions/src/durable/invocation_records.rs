//! On-disk format of durable invocations: keys and records. Pure functions.
//!
//! ```text
//! p FUNCTION 0 SEQUENCE   Pending: an invocation that was accepted and has not ended
//! i ID                    Known: the state of an invocation whose outcome is kept
//! k HASH                  Reserved: the invocation of an idempotency key
//! e FINISHED ID [NAME]    Expiry: an outcome, in the order in which outcomes expire
//! h FINISHED ID NAME      Expiry of a record that is kept for lists only
//! u FINISHED ID FUNCTION  Dead: an invocation that failed for good, with its event
//! ```
//!
//! An expiry with NAME is that of an external invocation: the name of what ran.
//!
//! SEQUENCE and FINISHED (milliseconds since the Unix epoch) have 8 bytes, ID and HASH 16, big-endian, so that keys sort
//! like numbers. [`records`](crate::records) encodes the records.

use std::time::Duration;

use bytes::Bytes;
use edgefaas_isolates::{Event, Reply};
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::dead_letters::DeadKey;
use crate::invocation::{Principal, Timing};
use crate::problem::{Fault, Problem};
use crate::publisher::ClientRecord;
use crate::records::prefixed;

pub const PENDING: u8 = b'p';
pub const KNOWN: u8 = b'i';
pub const RESERVED: u8 = b'k';
pub const EXPIRY: u8 = b'e';
pub const LISTED_EXPIRY: u8 = b'h';
pub const DEAD: u8 = b'u';
pub const LAST_ERROR: u8 = b'l';

/// Digest of an idempotency key, or of the request that it was used with.
pub type Digest = [u8; 16];

/// An invocation that was accepted and has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// The invocation's id.
    pub id: u128,
    /// The number of the next attempt; the first is 1.
    pub attempt: u32,
    /// The earliest start of the next attempt, in milliseconds since the Unix epoch; 0 for immediately.
    pub due_unix_ms: u64,
    /// Invocations with the same key run one after another.
    pub order_key: Option<u64>,
    /// Set if the outcome is kept.
    pub keep: Option<Keep>,
    /// The destination of the answer.
    pub answer: Option<AnswerTo>,
    /// The origin of the invocation.
    pub principal: Principal,
    /// W3C trace context (`traceparent`).
    pub trace_parent: Option<String>,
    /// Number of functions that called or triggered one another before.
    pub depth: u8,
    /// The event to handle.
    pub event: Event,
}

/// An invocation that failed for good. Its function is in the key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dead {
    /// As it was before its last attempt.
    pub pending: Pending,
    /// The number of attempts that it got.
    pub attempts: u32,
    /// The error of the last one.
    pub problem: StoredProblem,
}

/// How an outcome is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Keep {
    /// The idempotency key of the request.
    pub key: Option<Digest>,
    /// The authentication that a request for the outcome needs at the gateway: 0 none, 1 a JSON Web Token, 2 the gateway
    /// token. `None`: the same as for calls of the function.
    pub auth: Option<u8>,
}

/// The destination of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerTo {
    /// The topic.
    pub topic: String,
    /// MQTT 5 correlation data.
    pub correlation_data: Option<Bytes>,
    /// The client whose rules must allow the publish.
    pub requester: Option<ClientRecord>,
}

/// The state of an invocation whose outcome is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// The name of the function.
    pub function: String,
    /// See [`Keep::auth`].
    pub auth: Option<u8>,
    /// Pending, or the outcome.
    pub state: KnownState,
}

/// Pending, or the outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum KnownState {
    /// The sequence number of the [`Pending`] record.
    Pending(u64),
    /// The outcome, in no cluster.
    Done(StoredOutcome),
    /// The outcome, and the name of the node that ran the last attempt.
    DoneOn(StoredOutcome, String),
    /// An invocation that another part of the node runs.
    External(Box<External>),
}

/// The outcome of an invocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredOutcome {
    /// The reply or the error.
    pub result: Result<Reply, StoredProblem>,
    /// Number of attempts.
    pub attempts: u32,
    /// Times of the last attempt in microseconds: queue, start, execution.
    timing_us: [u64; 3],
    /// Of the error of a workflow. [`External`] stores it.
    #[serde(skip)]
    fault: Option<Fault>,
}

/// The outcome of an invocation, and the node that ran its last attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The outcome.
    pub outcome: StoredOutcome,
    /// The name of the node; `None` in no cluster.
    pub node: Option<String>,
}

impl From<Ended> for KnownState {
    fn from(ended: Ended) -> Self {
        match ended.node {
            None => Self::Done(ended.outcome),
            Some(node) => Self::DoneOn(ended.outcome, node),
        }
    }
}

/// The stored form of a [`Problem`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredProblem {
    /// The same for all errors of one kind.
    pub title: String,
    /// HTTP status code.
    pub status: u16,
    /// What failed, without secrets.
    pub detail: String,
    near: Vec<String>,
}

impl From<Problem> for StoredProblem {
    fn from(problem: Problem) -> Self {
        let Problem { title, status, detail, near, .. } = problem;
        Self { title: title.into_owned(), status, detail, near }
    }
}

/// The record of an external invocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct External {
    /// Its idempotency key.
    pub key: Option<Digest>,
    /// The destination of its answer.
    pub answer: Option<AnswerTo>,
    /// What a list shows of it, in the format of its runner.
    pub details: Vec<u8>,
    /// Open, or ended.
    pub state: ExternalState,
}

/// The state of an external invocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ExternalState {
    /// It has not ended.
    Open,
    /// It has ended.
    Ended {
        /// In milliseconds since the Unix epoch.
        finished_unix_ms: u64,
        /// The outcome; `None` if the record is kept for lists only.
        outcome: Option<Box<ExternalOutcome>>,
    },
}

/// The outcome of an external invocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExternalOutcome {
    outcome: StoredOutcome,
    /// Type and task of the error of a workflow.
    fault: Option<(String, Option<String>)>,
}

/// The use of an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The id of the invocation.
    pub id: u128,
    /// The digest of the request.
    pub request: Digest,
}

/// An entry of the index by which outcomes expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expiry {
    /// The size of the [`Known`] record.
    pub bytes: u32,
    /// The idempotency key to delete with the outcome.
    pub key: Option<Digest>,
}

impl ExternalOutcome {
    /// The stored form of an outcome.
    pub fn new(mut outcome: StoredOutcome) -> Self {
        let fault = outcome.fault.take().map(|fault| (fault.kind, fault.instance));
        Self { outcome, fault }
    }

    /// The outcome.
    pub fn restored(self) -> StoredOutcome {
        let mut outcome = self.outcome;
        outcome.fault = self.fault.map(|(kind, instance)| Fault { kind, instance });
        outcome
    }
}

impl StoredOutcome {
    /// The stored form of an outcome.
    pub fn new(result: Result<Reply, Problem>, attempts: u32, timing: Timing) -> Self {
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let mut fault = None;
        let result = result.map_err(|mut problem| {
            fault = problem.fault.take().map(|fault| *fault);
            StoredProblem::from(problem)
        });
        let timing_us = [us(timing.queue), us(timing.start), us(timing.execution)];
        Self { result, attempts, timing_us, fault }
    }

    /// The reply or the problem, and the times of the last attempt.
    pub fn into_result(self, id: Ulid) -> (Result<Reply, Problem>, Timing) {
        let [queue, start, execution] = self.timing_us.map(Duration::from_micros);
        let fault = self.fault.map(Box::new);
        let result = self.result.map_err(|stored| Problem {
            fault,
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

/// The function and the sequence number in the key of a pending invocation.
pub fn parse_pending_key(key: &[u8]) -> Option<(&str, u64)> {
    let (rest, sequence) = key.strip_prefix(&[PENDING])?.split_last_chunk::<8>()?;
    let function = std::str::from_utf8(rest.strip_suffix(&[0])?).ok()?;
    Some((function, u64::from_be_bytes(*sequence)))
}

/// The id in a stored [`Pending`] record, read without the rest of it. The record may be damaged behind it.
pub fn pending_id(value: &[u8]) -> Option<u128> {
    let (_version, fields) = value.split_first()?;
    postcard::take_from_bytes(fields).ok().map(|(id, _)| id)
}

/// The key of a [`Known`] record.
pub fn known_key(id: Ulid) -> Vec<u8> {
    prefixed(KNOWN, &id.0.to_be_bytes())
}

/// The key of a [`Reserved`] record.
pub fn reserved_key(digest: &Digest) -> Vec<u8> {
    prefixed(RESERVED, digest)
}

/// The key of an [`Expiry`] record.
pub fn expiry_key(finished_unix_ms: u64, id: Ulid) -> Vec<u8> {
    let mut key = prefixed(EXPIRY, &finished_unix_ms.to_be_bytes());
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

/// The key of an [`Expiry`] record of an external invocation. `kind` is [`EXPIRY`] or [`LISTED_EXPIRY`].
pub fn external_expiry_key(kind: u8, finished_unix_ms: u64, id: Ulid, name: &str) -> Vec<u8> {
    let mut key = expiry_key(finished_unix_ms, id);
    key[0] = kind;
    key.extend_from_slice(name.as_bytes());
    key
}

/// The parts of the key of an [`Expiry`] record.
#[derive(Debug, PartialEq, Eq)]
pub struct ExpiryKey<'a> {
    /// In milliseconds since the Unix epoch.
    pub finished_unix_ms: u64,
    /// The invocation.
    pub id: Ulid,
    /// What ran, of an external invocation.
    pub external: Option<&'a str>,
}

/// The parts of the key of an [`Expiry`] record, of either kind.
pub fn parse_expiry_key(key: &[u8]) -> Option<ExpiryKey<'_>> {
    let (kind, rest) = key.split_first()?;
    if ![EXPIRY, LISTED_EXPIRY].contains(kind) {
        return None;
    }
    let (finished, rest) = rest.split_first_chunk::<8>()?;
    let (id, name) = rest.split_first_chunk::<16>()?;
    let name = std::str::from_utf8(name).ok()?;
    Some(ExpiryKey {
        finished_unix_ms: u64::from_be_bytes(*finished),
        id: Ulid(u128::from_be_bytes(*id)),
        external: (!name.is_empty()).then_some(name),
    })
}

/// The key of the error of a pending invocation's last attempt, a [`StoredProblem`].
pub fn last_error_key(id: u128) -> Vec<u8> {
    prefixed(LAST_ERROR, &id.to_be_bytes())
}

/// The id in the key of the error of a last attempt.
pub fn parse_last_error_key(key: &[u8]) -> Option<u128> {
    Some(u128::from_be_bytes(key.strip_prefix(&[LAST_ERROR])?.try_into().ok()?))
}

/// The key of a [`Dead`] record.
pub fn dead_key(key: DeadKey, function: &str) -> Vec<u8> {
    let mut bytes = prefixed(DEAD, &key.ended_unix_ms.to_be_bytes());
    bytes.extend_from_slice(&key.id.0.to_be_bytes());
    bytes.extend_from_slice(function.as_bytes());
    bytes
}

/// The parts of the key of a [`Dead`] record, with the name of its function.
pub fn parse_dead_key(key: &[u8]) -> Option<(DeadKey, &str)> {
    let (ended, rest) = key.strip_prefix(&[DEAD])?.split_first_chunk::<8>()?;
    let (id, function) = rest.split_first_chunk::<16>()?;
    let function = std::str::from_utf8(function).ok().filter(|function| !function.is_empty())?;
    let (ended_unix_ms, id) = (u64::from_be_bytes(*ended), Ulid(u128::from_be_bytes(*id)));
    Some((DeadKey { ended_unix_ms, id }, function))
}

#[cfg(test)]
mod tests;
