//! Heads of calls and outcomes, as protocol buffers. An unknown field of a newer version is skipped.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

/// Maximum size of an encoded head, in bytes.
pub const MAX_HEAD_BYTES: usize = 256 << 10;
/// Bytes before a head: its length.
pub(super) const LENGTH_BYTES: usize = 4;
/// A body up to this size is copied behind its head: one frame costs less than two.
const COPIED_BODY_BYTES: usize = 8 << 10;

const MAX_ID_BYTES: usize = 128;
const MAX_NAME_BYTES: usize = 255;
const MAX_PRINCIPAL_BYTES: usize = 64 << 10;
/// Maximum size of `OutcomeHead::spans`, in bytes.
pub const MAX_SPANS_BYTES: usize = 64 << 10;

/// A call without its body.
#[derive(Clone, PartialEq, Message)]
pub struct CallHead {
    /// The id of the invocation; 1 to 128 bytes of visible ASCII.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The name of the function; 1 to 255 bytes.
    #[prost(string, tag = "2")]
    pub function: String,
    /// The name of its app; 1 to 255 bytes.
    #[prost(string, tag = "3")]
    pub app: String,
    /// The origin of the invocation, encoded by the caller.
    #[prost(bytes = "bytes", tag = "4")]
    pub principal: Bytes,
    /// The event without its body, encoded by the caller.
    #[prost(bytes = "bytes", tag = "5")]
    pub event: Bytes,
    /// The remaining time until the caller stops waiting, in milliseconds. Clocks of nodes may differ by days.
    #[prost(uint32, tag = "6")]
    pub remaining_ms: u32,
    /// W3C trace context (`traceparent`).
    #[prost(string, optional, tag = "7")]
    pub trace_parent: Option<String>,
    /// The id of the calling invocation.
    #[prost(string, optional, tag = "8")]
    pub parent: Option<String>,
    /// The number of the attempt, from 1.
    #[prost(uint32, tag = "9")]
    pub attempt: u32,
    /// Number of functions that called or triggered one another before.
    #[prost(uint32, tag = "10")]
    pub depth: u32,
    /// Number of nodes that the call has passed, from 1.
    #[prost(uint32, tag = "11")]
    pub hops: u32,
    /// True if the caller repeats the call until it has an outcome: the executing node remembers it, and applies its effects
    /// once.
    #[prost(bool, tag = "12")]
    pub is_repeated: bool,
    /// The node at which the event arrived.
    #[prost(uint64, tag = "13")]
    pub entry_node: u64,
    /// The zone of that node; empty if it has none.
    #[prost(string, tag = "14")]
    pub entry_zone: String,
    /// The size of the body that follows, in bytes.
    #[prost(uint64, tag = "15")]
    pub body_bytes: u64,
    /// The root of the workflow instances that the call descends from: its id.
    #[prost(string, optional, tag = "16")]
    pub root: Option<String>,
}

/// The outcome of a call without its body.
#[derive(Clone, PartialEq, Message)]
pub struct OutcomeHead {
    /// True if nothing was started, and the call may be placed elsewhere.
    #[prost(bool, tag = "1")]
    pub is_refused: bool,
    /// The kind of the reply or the error, encoded by the executing node.
    #[prost(bytes = "bytes", tag = "2")]
    pub result: Bytes,
    /// Times of the invocation in microseconds: waiting, starting, running.
    #[prost(uint64, tag = "3")]
    pub queue_us: u64,
    /// See `queue_us`.
    #[prost(uint64, tag = "4")]
    pub start_us: u64,
    /// See `queue_us`.
    #[prost(uint64, tag = "5")]
    pub execution_us: u64,
    /// Spans of the invocation and of the functions that it called, encoded by the executing node.
    #[prost(bytes = "bytes", tag = "6")]
    pub spans: Bytes,
    /// The size of the body that follows, in bytes.
    #[prost(uint64, tag = "7")]
    pub body_bytes: u64,
}

/// A head that is not what its sender may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// The stream ended within the head or the body.
    #[error("it ended early")]
    Incomplete,
    /// The head is too long.
    #[error("its head has {actual_bytes} bytes; the limit is {MAX_HEAD_BYTES}")]
    TooLong {
        /// The announced size.
        actual_bytes: usize,
    },
    /// The head is not a protocol buffer of its type.
    #[error("its head cannot be decoded")]
    Undecodable,
    /// A field is missing, too long or has invalid characters.
    #[error("the field `{field}` of its head is invalid")]
    Field {
        /// The name of the field.
        field: &'static str,
    },
    /// The announced body is too large.
    #[error("its body has {actual_bytes} bytes; the limit is {limit_bytes}")]
    BodyTooLarge {
        /// The announced size.
        actual_bytes: u64,
        /// The limit.
        limit_bytes: usize,
    },
    /// There is more data than the announced body.
    #[error("its body is longer than announced")]
    TooMuchData,
}

/// A head that precedes a body.
pub(super) trait Head: Message + Default {
    /// The announced size of the body.
    fn body_bytes(&self) -> u64;
    /// Checks the fields that a peer has sent.
    fn check(&self) -> Result<(), HeadError>;
}

impl Head for CallHead {
    fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    fn check(&self) -> Result<(), HeadError> {
        let is_id = |id: &str| {
            (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let is_name =
            |name: &str| (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control);
        let rules = [
            ("id", is_id(&self.id)),
            ("function", is_name(&self.function)),
            ("app", is_name(&self.app)),
            ("principal", self.principal.len() <= MAX_PRINCIPAL_BYTES),
            ("trace_parent", self.trace_parent.as_deref().is_none_or(is_id)),
            ("parent", self.parent.as_deref().is_none_or(is_id)),
            ("root", self.root.as_deref().is_none_or(is_id)),
            ("attempt", self.attempt >= 1),
            ("depth", self.depth <= u8::MAX.into()),
            ("hops", self.hops >= 1),
            ("entry_zone", self.entry_zone.is_empty() || is_name(&self.entry_zone)),
        ];
        match rules.iter().find(|(_, is_valid)| !is_valid) {
            Some((field, _)) => Err(HeadError::Field { field }),
            None => Ok(()),
        }
    }
}

impl Head for OutcomeHead {
    fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    fn check(&self) -> Result<(), HeadError> {
        match self.spans.len() <= MAX_SPANS_BYTES {
            true => Ok(()),
            false => Err(HeadError::Field { field: "spans" }),
        }
    }
}

/// The bytes of a head, with a small body behind it, and the rest of the body. `head.body_bytes` must be the size of `body`.
///
/// # Errors
/// The size of the head, if it is over [`MAX_HEAD_BYTES`].
pub(super) fn encode(head: &impl Head, body: Bytes) -> Result<(Bytes, Bytes), usize> {
    let head_bytes = head.encoded_len();
    if head_bytes > MAX_HEAD_BYTES {
        return Err(head_bytes);
    }
    let copied = if body.len() <= COPIED_BODY_BYTES { body.len() } else { 0 };
    let mut bytes = BytesMut::with_capacity(LENGTH_BYTES + head_bytes + copied);
    bytes.put_u32(head_bytes as u32);
    head.encode_raw(&mut bytes);
    if copied == body.len() {
        bytes.extend_from_slice(&body);
        return Ok((bytes.freeze(), Bytes::new()));
    }
    Ok((bytes.freeze(), body))
}
