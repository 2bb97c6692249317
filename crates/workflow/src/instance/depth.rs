//! Maximum nesting depth of the values of an instance.

use serde_json::Value;

use crate::data::Data;
use crate::error::{ErrorKind, WorkflowError};

/// The maximum depth of a value. The parser of the event log accepts 128 levels, and the instance adds some around
/// each value.
const MAX_DEPTH: u32 = 100;
/// The maximum depth of an event. It is lower, because a listen and a rule add levels around it.
const EVENT_DEPTH: u32 = MAX_DEPTH - 8;

/// Returns the value, or an error if it nests too deep to be stored.
pub(super) fn bounded(value: Data) -> Result<Data, WorkflowError> {
    match value.depth() <= MAX_DEPTH {
        true => Ok(value),
        false => Err(too_deep()),
    }
}

/// Converts an external value; an error if it nests too deep to be stored.
pub(super) fn taken_in(value: &Value) -> Result<Data, WorkflowError> {
    bounded(Data::from_json(value).map_err(|_| too_deep())?)
}

/// Converts an event; `None` if it nests too deep to be stored.
pub(super) fn event_taken_in(event: &Value) -> Option<Data> {
    Data::from_json(event).ok().filter(|event| event.depth() <= EVENT_DEPTH)
}

fn too_deep() -> WorkflowError {
    WorkflowError::new(ErrorKind::Runtime, format!("a value nests more than {MAX_DEPTH} levels deep"))
}
