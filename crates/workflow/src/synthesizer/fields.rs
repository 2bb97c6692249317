//! Reads an object of the rule and checks its keys. Every error has the location in the rule.

use serde_json::{Map, Number, Value};

use super::Predicate;
use super::error::{RuleError, RuleExpressionError};
use crate::data::kind_of;
use crate::duration::{self, TextError};
use crate::expression::ExpressionError;

/// Compiles the jq text of an expression.
pub(super) type Compile<'c> = dyn Fn(&str) -> Result<Predicate, ExpressionError> + 'c;

/// The units of a duration as an object, with their milliseconds.
const UNITS: [(&str, u64); 5] = [
    ("days", 86_400_000),
    ("hours", 3_600_000),
    ("minutes", 60_000),
    ("seconds", 1_000),
    ("milliseconds", 1),
];
const UNIT_KEYS: &[&str] = &["days", "hours", "minutes", "seconds", "milliseconds"];
/// The maximum duration, in milliseconds: about ten years.
const MAX_MS: u64 = duration::MAX_MS;

/// An object that has only known keys, with its location in the rule.
pub(super) struct Fields<'v> {
    map: &'v Map<String, Value>,
    pointer: String,
}

impl<'v> Fields<'v> {
    /// Returns an error if `value` is not an object or has a key that is not in `known`.
    pub(super) fn new(
        value: &'v Value,
        pointer: String,
        known: &'static [&'static str],
    ) -> Result<Self, RuleError> {
        let Value::Object(map) = value else {
            return Err(RuleError::Type { pointer, expected: "an object", found: kind_of(value) });
        };
        let fields = Self { map, pointer };
        match map.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => {
                Err(RuleError::UnknownKey { pointer: fields.at(key), near: nearest(key, known), known })
            }
            None => Ok(fields),
        }
    }

    /// The pointer of a key.
    pub(super) fn at(&self, key: &str) -> String {
        format!("{}/{}", self.pointer, key.replace('~', "~0").replace('/', "~1"))
    }

    pub(super) fn get(&self, key: &str) -> Option<&'v Value> {
        self.map.get(key)
    }

    /// Returns an error if both keys exist.
    pub(super) fn not_both(&self, key: &str, other: &str, help: &'static str) -> Result<(), RuleError> {
        if self.map.contains_key(key) && self.map.contains_key(other) {
            return Err(RuleError::Conflict { pointer: self.at(key), other: self.at(other), help });
        }
        Ok(())
    }

    /// Reads an object below this one.
    pub(super) fn object(
        &self,
        key: &str,
        known: &'static [&'static str],
    ) -> Result<Option<Fields<'v>>, RuleError> {
        self.get(key).map(|value| Fields::new(value, self.at(key), known)).transpose()
    }

    /// Returns the value that `read` found. Without a value, returns an error whose message says what to write.
    pub(super) fn required<T>(
        &self,
        key: &str,
        read: Option<T>,
        help: &'static str,
    ) -> Result<T, RuleError> {
        read.ok_or_else(|| RuleError::Missing { pointer: self.at(key), help })
    }

    /// Milliseconds, at least 1: a text, or an object of `days` to `milliseconds`.
    pub(super) fn duration_ms(&self, key: &str) -> Result<Option<i64>, RuleError> {
        let (Some(value), pointer) = (self.get(key), self.at(key)) else {
            return Ok(None);
        };
        let ms = match value {
            Value::String(text) => match duration::parse_text(text) {
                Ok(0) => {
                    let reason = TextError::Zero;
                    return Err(RuleError::Duration { pointer, text: text.clone(), reason });
                }
                Ok(ms) => ms,
                Err(reason) => return Err(RuleError::Duration { pointer, text: text.clone(), reason }),
            },
            Value::Object(_) => {
                let parts = Fields::new(value, pointer.clone(), UNIT_KEYS)?;
                let mut ms = 0u64;
                for (unit, unit_ms) in UNITS {
                    let number = parts.whole(unit, 0, MAX_MS)?.unwrap_or(0);
                    ms = ms.saturating_add(number.saturating_mul(unit_ms));
                }
                if ms == 0 || ms > MAX_MS {
                    let reason = if ms == 0 { TextError::Zero } else { TextError::TooLong };
                    return Err(RuleError::Duration { pointer, text: value.to_string(), reason });
                }
                ms
            }
            _ => {
                let expected = "a duration such as `30s`";
                return Err(RuleError::Type { pointer, expected, found: kind_of(value) });
            }
        };
        Ok(i64::try_from(ms).ok())
    }

    /// A whole number from `least` to `max`, both included.
    pub(super) fn whole(&self, key: &str, least: u64, max: u64) -> Result<Option<u64>, RuleError> {
        let Some(number) = self.number(key)? else {
            return Ok(None);
        };
        // YAML and jq may give 5 as 5.0.
        let whole = number.as_u64().or_else(|| {
            let float =
                number.as_f64().filter(|float| float.fract() == 0.0 && (0.0..9e15).contains(float))?;
            Some(float as u64)
        });
        match whole.filter(|whole| (least..=max).contains(whole)) {
            Some(whole) => Ok(Some(whole)),
            None => Err(RuleError::Number {
                pointer: self.at(key),
                found: number.to_string(),
                allowed: format!("a whole number from {least} to {max}"),
            }),
        }
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<&'v Number>, RuleError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(Some(number)),
            Some(other) => Err(self.wrong_type(key, "a number", other)),
        }
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, RuleError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(self.wrong_type(key, "`true` or `false`", other)),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'v str>, RuleError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_type(key, "a text", other)),
        }
    }

    /// `${ … }`, compiled without the braces.
    pub(super) fn expression(
        &self,
        key: &str,
        compile: &Compile<'_>,
    ) -> Result<Option<Predicate>, RuleError> {
        let text = match self.get(key) {
            None => return Ok(None),
            Some(Value::String(text)) => text,
            Some(other) => {
                return Err(self.wrong_type(key, "an expression such as `${ .data.room }`", other));
            }
        };
        let inside = text.trim().strip_prefix("${").and_then(|rest| rest.strip_suffix('}')).map(str::trim);
        let compiled = match inside {
            Some("") => Err(RuleExpressionError::Empty),
            Some(inside) => compile(inside).map_err(RuleExpressionError::from),
            None => Err(RuleExpressionError::NoBraces),
        };
        let failed = |reason| RuleError::Expression { pointer: self.at(key), text: text.clone(), reason };
        compiled.map(Some).map_err(failed)
    }

    pub(super) fn wrong_type(&self, key: &str, expected: &'static str, found: &Value) -> RuleError {
        RuleError::Type { pointer: self.at(key), expected, found: kind_of(found) }
    }
}

fn nearest(word: &str, known: &[&'static str]) -> Option<&'static str> {
    // A long word is not similar to any key, and the comparison would be slow.
    if word.len() > 64 {
        return None;
    }
    let word = word.to_lowercase();
    known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(&word, known), *known))
        .filter(|(distance, known)| *distance <= (known.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}
