//! Evaluates the expressions of a rule for one event. This needs no state, so the caller holds no lock during it.

use std::sync::Arc;

use serde_json::{Number, Value};

use super::charged::Charged;
use super::error::SynthesisError;
use super::keys::Key;
use super::rule::{Kind, Rule};
use crate::data::kind_of;

/// The maximum length of a key, in bytes as JSON.
const KEY_BYTES: usize = 1_024;

/// The values of a rule's expressions for one event.
#[derive(Debug)]
pub struct Reading {
    pub(super) key: Key,
    pub(super) value: Option<Number>,
}

impl Rule {
    /// Evaluates the rule's expressions over an event.
    ///
    /// # Errors
    ///
    /// The event has no key or no value.
    pub fn read(&self, event: &Value) -> Result<Reading, SynthesisError> {
        Ok(Reading { key: self.key_of(event)?, value: self.value_of(event)? })
    }

    fn key_of(&self, event: &Value) -> Result<Key, SynthesisError> {
        let Some(compute) = &self.key else {
            return Ok(None);
        };
        let key = compute(event).map_err(|reason| SynthesisError::Key { reason })?;
        let bytes = match &key {
            Value::Null => return Err(SynthesisError::NoKey),
            Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(_) | Value::Object(_) => key.to_string().len(),
        };
        match bytes > KEY_BYTES {
            true => Err(SynthesisError::LongKey { bytes, max_bytes: KEY_BYTES }),
            false => Ok(Some(Charged::new(Arc::new(key)))),
        }
    }

    fn value_of(&self, event: &Value) -> Result<Option<Number>, SynthesisError> {
        let Kind::Threshold { value, .. } = &self.kind else {
            return Ok(None);
        };
        match value(event).map_err(|reason| SynthesisError::Value { reason })? {
            Value::Number(number) => Ok(Some(number)),
            other => Err(SynthesisError::NotANumber { found: kind_of(&other) }),
        }
    }
}
