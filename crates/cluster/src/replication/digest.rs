//! What replicas compare.

/// Digest of an object at one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectDigest {
    /// Digest of all fields and deletions.
    pub whole: u64,
    /// Times of its deletions; `None` if no field of it is deleted.
    pub deletions: Option<DeletionTimes>,
}

/// The times of the deleted fields of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeletionTimes {
    /// The earliest one.
    pub oldest_ms: u64,
    /// The latest one.
    pub newest_ms: u64,
}

/// A part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All fields, deleted ones included.
    Whole,
    /// Deleted fields only, for nodes that the object does not concern.
    Deletions,
}

/// What of an object two nodes compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The part that both have.
    pub part: Part,
    /// Deletions up to this time are left out: every member has them.
    pub without_ms: u64,
}

impl View {
    /// All that a node has of an object.
    pub const ALL: Self = Self { part: Part::Whole, without_ms: 0 };
}

impl From<u64> for ObjectDigest {
    /// The digest of an object without deletions.
    fn from(whole: u64) -> Self {
        Self { whole, deletions: None }
    }
}
