//! How deep the values of an instance may nest.

use serde_json::Value;

use crate::data::Data;
use crate::error::{ErrorKind, WorkflowError};

/// Levels that a value may nest: the parser of the event log reads 128, and an instance has some around each value.
const MAX_DEPTH: u32 = 100;
/// What a listen makes of an event, and a rule of several, has some levels more.
const EVENT_DEPTH: u32 = MAX_DEPTH - 8;

/// The value, or an error if it nests too deep to be kept.
pub(super) fn bounded(value: Data) -> Result<Data, WorkflowError> {
    match value.depth() <= MAX_DEPTH {
        true => Ok(value),
        false => Err(too_deep()),
    }
}

/// What comes from outside, or an error if it nests too deep to be kept.
pub(super) fn taken_in(value: &Value) -> Result<Data, WorkflowError> {
    bounded(Data::from_json(value).map_err(|_| too_deep())?)
}

/// An event as it can be kept.
pub(super) fn event_taken_in(event: &Value) -> Option<Data> {
    Data::from_json(event).ok().filter(|event| event.depth() <= EVENT_DEPTH)
}

fn too_deep() -> WorkflowError {
    WorkflowError::new(ErrorKind::Runtime, format!("a value nests more than {MAX_DEPTH} levels deep"))
}
