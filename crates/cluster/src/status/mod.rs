//! Status of a node, which it sends to all members with its heartbeat: [`Load`] each second, [`Facts`] on change.
//!
//! Ephemeral: it is not stored, and holds while the channel is open. Fields that newer versions add are skipped.

mod facts;
mod load;
mod wire;

pub use facts::{
    AppFact, Facts, LiveRevision, MAX_LABELS, MAX_REASON_BYTES, NextRevision, NextState, PolicyFact, Runs,
    Zone, ZoneSource,
};
pub use load::{Load, MAX_RUNNING_FUNCTIONS, Readiness, function_digest};

/// Maximum length of an encoded [`Load`], in bytes.
pub const MAX_LOAD_BYTES: usize = 512;
/// Maximum length of encoded [`Facts`], in bytes.
pub const MAX_FACTS_BYTES: usize = 64 * 1_024;

/// The status of a peer cannot be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StatusError {
    /// It is over the limit.
    #[error("a status of {bytes} bytes; at most {limit_bytes} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// It is not valid protocol buffers.
    #[error("not a status: {0}")]
    Undecodable(#[from] prost::DecodeError),
    /// A field has too many elements or bytes.
    #[error("a status with {count} of `{field}`; at most {limit} are allowed")]
    TooMany {
        /// The field.
        field: &'static str,
        /// Number of elements of the field, or its length in bytes.
        count: usize,
        /// Maximum of `count`.
        limit: usize,
    },
    /// A name or number is not of the form of its field.
    #[error("a status whose `{field}` is invalid")]
    Invalid {
        /// The field.
        field: &'static str,
    },
}

fn at_most(field: &'static str, count: usize, limit: usize) -> Result<(), StatusError> {
    if count > limit { Err(StatusError::TooMany { field, count, limit }) } else { Ok(()) }
}

/// Accepts `bytes` of at most `limit_bytes`.
fn check_length(bytes: &[u8], limit_bytes: usize) -> Result<(), StatusError> {
    match bytes.len() {
        bytes if bytes > limit_bytes => Err(StatusError::TooLong { bytes, limit_bytes }),
        _ => Ok(()),
    }
}
