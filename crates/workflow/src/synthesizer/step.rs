//! One step of a condition: the event that arrives, and the outcome.

use std::sync::Arc;

use serde_json::{Number, Value};

/// The input of a condition: an event with its key data.
pub(super) struct Arrival<'e> {
    pub(super) source: usize,
    pub(super) event: &'e Arc<Value>,
    /// The result of the threshold's expression.
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

/// The result of a step.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) happening: Option<Happening>,
    /// Number of events that were dropped without a firing that contained them.
    pub(super) lost: u64,
}
