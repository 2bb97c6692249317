//! One step of a condition: the event that arrives, and the outcome.

use std::sync::Arc;

use serde_json::{Number, Value};

/// An event as the conditions see it.
pub(super) struct Arrival<'e> {
    pub(super) source: usize,
    pub(super) event: &'e Arc<Value>,
    /// What the threshold's expression gave.
    pub(super) value: Option<Number>,
    pub(super) now: i64,
}

/// A firing without its key.
#[derive(Debug, PartialEq)]
pub(super) struct Happening {
    pub(super) at: i64,
    pub(super) events: Vec<Arc<Value>>,
    pub(super) dropped: u64,
    pub(super) facts: Value,
}

/// What a step did.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) happening: Option<Happening>,
    /// Events that were let go without having been in a firing.
    pub(super) lost: u64,
}
