//! What is stored of durable invocations: keys and records. Pure functions.
//!
//! ```text
//! p FUNCTION 0 SEQUENCE   Pending: an invocation that was accepted and has not ended
//! i ID                    Known: what is known about an invocation whose outcome somebody may ask for
//! k HASH                  Reserved: the invocation that an idempotency key stands for
//! e FINISHED ID           Expiry: when an outcome ended, in the order in which outcomes are forgotten
//! o SEQUENCE              Outgoing: a message of an invocation that is committed, to be published
//! ```
//!
//! SEQUENCE and FINISHED (milliseconds since the Unix epoch) are 8 bytes, ID and HASH 16, big-endian, so that keys sort
//! as numbers do. A record is a version byte, its fields (postcard), and a CRC-32 of both.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{Client, Message, Properties, QoS, Transport, Version};
use edgefaas_isolates::{Event, Reply};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::invocation::{Principal, Timing};
use crate::problem::Problem;

const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 4;

pub const PENDING: u8 = b'p';
pub const KNOWN: u8 = b'i';
pub const RESERVED: u8 = b'k';
pub const EXPIRY: u8 = b'e';
pub const OUTGOING: u8 = b'o';

/// A digest that stands for an idempotency key, or for what it was used with.
pub type Digest = [u8; 16];

/// Why a record can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Its bytes are not those that were written.
    #[error("it is cut off or its checksum is wrong")]
    Checksum,
    /// Written by another version.
    #[error("its format {0} is not known; was it written by a newer version?")]
    Version(u8),
    /// The bytes are right and mean nothing.
    #[error("its fields make no sense")]
    Fields,
}

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

/// A client as it was when it asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    client_id: String,
    username: Option<String>,
    peer: SocketAddr,
    v5: bool,
    transport: u8,
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

/// A message that is to be published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outgoing {
    /// The function that published it.
    pub source: String,
    /// How many functions deep.
    pub depth: u8,
    /// For answers: whose rules say whether it may be published.
    pub requester: Option<ClientRecord>,
    topic: String,
    payload: Bytes,
    qos: u8,
    retain: bool,
    payload_is_utf8: bool,
    expiry_seconds: Option<u32>,
    content_type: Option<String>,
    response_topic: Option<String>,
    correlation_data: Option<Bytes>,
    user: Vec<(String, String)>,
}

impl From<&Client> for ClientRecord {
    fn from(client: &Client) -> Self {
        Self {
            client_id: client.client_id.to_string(),
            username: client.username.as_ref().map(ToString::to_string),
            peer: client.peer,
            v5: client.version == Version::V5,
            transport: match client.transport {
                Transport::Tcp => 0,
                Transport::Tls => 1,
                Transport::WebSocket => 2,
                Transport::SecureWebSocket => 3,
                Transport::Internal => 4,
            },
        }
    }
}

impl ClientRecord {
    /// The client.
    pub fn client(&self) -> Arc<Client> {
        Arc::new(Client {
            client_id: self.client_id.as_str().into(),
            username: self.username.as_deref().map(Into::into),
            peer: self.peer,
            version: if self.v5 { Version::V5 } else { Version::V311 },
            transport: match self.transport {
                0 => Transport::Tcp,
                1 => Transport::Tls,
                2 => Transport::WebSocket,
                4 => Transport::Internal,
                _ => Transport::SecureWebSocket,
            },
        })
    }
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

impl Outgoing {
    /// A message of `source`.
    pub fn new(source: &str, depth: u8, requester: Option<ClientRecord>, message: &Message) -> Self {
        let default = Properties::default();
        let properties = message.properties().unwrap_or(&default);
        Self {
            source: source.to_owned(),
            depth,
            requester,
            topic: message.topic().as_str().to_owned(),
            payload: message.payload_bytes(),
            qos: message.qos() as u8,
            retain: message.retain(),
            payload_is_utf8: properties.payload_is_utf8,
            expiry_seconds: properties.expiry_seconds,
            content_type: properties.content_type.as_ref().map(ToString::to_string),
            response_topic: properties.response_topic.as_ref().map(|topic| topic.as_str().to_owned()),
            correlation_data: properties.correlation_data.clone(),
            user: properties.user.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
        }
    }

    /// The message.
    ///
    /// # Errors
    /// A topic is none: the record was not written by [`new`](Self::new).
    pub fn message(&self) -> Result<Message, Damage> {
        let topic = |name: &String| TopicName::new(name.as_str()).map_err(|_| Damage::Fields);
        let properties = Properties {
            payload_is_utf8: self.payload_is_utf8,
            expiry_seconds: self.expiry_seconds,
            content_type: self.content_type.as_deref().map(Into::into),
            response_topic: self.response_topic.as_ref().map(topic).transpose()?,
            correlation_data: self.correlation_data.clone(),
            user: self.user.iter().map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect(),
        };
        let qos = match self.qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            2 => QoS::ExactlyOnce,
            _ => return Err(Damage::Fields),
        };
        Ok(Message::new(topic(&self.topic)?, self.payload.clone())
            .with_qos(qos)
            .with_retain(self.retain)
            .with_properties(properties))
    }
}

/// A record as it is stored.
pub fn encode(record: &impl Serialize) -> Vec<u8> {
    // Into memory, of types that are all plain: this cannot fail.
    let mut bytes = postcard::to_extend(record, vec![VERSION]).unwrap_or_default();
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// A record from what is stored.
///
/// # Errors
/// What is wrong with it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damage> {
    let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(Damage::Checksum)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
        return Err(Damage::Checksum);
    }
    match body.split_first() {
        Some((&VERSION, fields)) => postcard::from_bytes(fields).map_err(|_| Damage::Fields),
        Some((version, _)) => Err(Damage::Version(*version)),
        None => Err(Damage::Checksum),
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

/// The key of an outgoing message.
pub fn outgoing_key(sequence: u64) -> Vec<u8> {
    prefixed(OUTGOING, &sequence.to_be_bytes())
}

/// The sequence from an outgoing message's key.
pub fn parse_outgoing_key(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.strip_prefix(&[OUTGOING])?.try_into().ok()?))
}

fn prefixed(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + rest.len());
    key.push(kind);
    key.extend_from_slice(rest);
    key
}

#[cfg(test)]
mod tests;
