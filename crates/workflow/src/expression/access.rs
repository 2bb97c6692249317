//! Accesses, comparisons and functions of [`super::native`], on JSON values.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use jaq_core::ops::Cmp;
use serde_json::Value;

use super::meter::{DEPTH, STRING_BYTES, Stop};
use super::native::{Budget, Call, End, Output, bool, is_true};
use super::number::{Limited, Num, write_string};
use super::operators::char_bytes;

/// What a message shows of a value, in bytes.
const SHOWN_BYTES: usize = 40;

/// What is at an index.
pub(super) enum Found<'a> {
    Nothing,
    Here(&'a Value),
    Made(Value),
}

/// `value[index]`.
pub(super) fn index<'v>(value: &'v Value, index: &Value, budget: &Budget) -> Result<Found<'v>, End> {
    let found = match (value, index) {
        (Value::Null, _) => None,
        (Value::Object(keys), Value::String(key)) => keys.get(key),
        (Value::Object(_), _) => None,
        (Value::Array(items), Value::Number(number)) => match Num::of(number) {
            Num::Float(_) => return Err(no_index(value, index)),
            int => int.place(items.len()).and_then(|at| items.get(at)),
        },
        (Value::Array(items), Value::Array(wanted)) => {
            let places = if wanted.is_empty() {
                Vec::new()
            } else {
                budget.take(items.len().saturating_mul(wanted.len()))?;
                let windows = items.windows(wanted.len()).enumerate();
                let mut places = Vec::new();
                for (at, window) in windows {
                    if same(window, wanted)? {
                        places.push(Value::from(at));
                    }
                }
                places
            };
            return Ok(Found::Made(Value::Array(places)));
        }
        (Value::String(_) | Value::Array(_), Value::Object(ends)) => {
            return slice(value, ends.get("start"), ends.get("end"), budget).map(Found::Made);
        }
        _ => return Err(no_index(value, index)),
    };
    Ok(found.map_or(Found::Nothing, Found::Here))
}

/// True if both have the same items.
pub(super) fn same(left: &[Value], right: &[Value]) -> Result<bool, End> {
    for (left, right) in left.iter().zip(right) {
        if order(left, right)?.is_ne() {
            return Ok(false);
        }
    }
    Ok(left.len() == right.len())
}

/// Goes from `at` to what `find` finds there.
pub(super) fn step<'a>(
    at: Cow<'a, Value>,
    find: impl for<'v> Fn(&'v Value) -> Result<Found<'v>, End>,
    budget: &Budget,
) -> Output<'a> {
    Ok(match at {
        Cow::Borrowed(value) => match find(value)? {
            Found::Nothing => Cow::Owned(Value::Null),
            Found::Here(value) => Cow::Borrowed(value),
            Found::Made(value) => Cow::Owned(value),
        },
        Cow::Owned(value) => Cow::Owned(match find(&value)? {
            Found::Nothing => Value::Null,
            Found::Here(value) => budget.copy(value)?,
            Found::Made(value) => value,
        }),
    })
}

/// `value[from:upto]`; null is no bound.
pub(super) fn slice(
    value: &Value,
    from: Option<&Value>,
    upto: Option<&Value>,
    budget: &Budget,
) -> Result<Value, End> {
    let bounds = |len: usize| -> Result<(usize, usize), End> {
        let bound = |end: Option<&Value>, default| match end {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Number(number)) if let Some(at) = Num::of(number).bound(len) => Ok(at),
            Some(other) => Err(no_use(other, "integer")),
        };
        let (from, upto) = (bound(from, 0)?, bound(upto, len)?);
        Ok((from, upto.max(from)))
    };
    match value {
        Value::Array(items) => {
            let (from, upto) = bounds(items.len())?;
            let part = items.get(from..upto).unwrap_or_default();
            part.iter().map(|item| budget.copy(item)).collect::<Result<_, _>>().map(Value::Array)
        }
        Value::String(text) => {
            budget.take(text.len())?;
            let (from, upto) = bounds(text.chars().count())?;
            let (from, upto) = char_bytes(text, from, upto);
            Ok(Value::String(text.get(from..upto).unwrap_or_default().to_owned()))
        }
        _ => Err(no_use(value, "array or string, which have slices")),
    }
}

/// `left < right` and so on, in jq's order.
pub(super) fn compare(operator: Cmp, left: &Value, right: &Value) -> Result<bool, End> {
    let order = order(left, right)?;
    Ok(match operator {
        Cmp::Lt => order.is_lt(),
        Cmp::Le => order.is_le(),
        Cmp::Gt => order.is_gt(),
        Cmp::Ge => order.is_ge(),
        Cmp::Eq => order.is_eq(),
        Cmp::Ne => order.is_ne(),
    })
}

/// jq's order: null, false, true, numbers, strings, arrays, objects.
pub(super) fn order(left: &Value, right: &Value) -> Result<Ordering, End> {
    order_at(left, right, 0)
}

fn order_at(left: &Value, right: &Value, depth: u32) -> Result<Ordering, End> {
    if depth > DEPTH {
        return Err(End::Stop(Stop::Depth));
    }
    Ok(match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        (Value::Number(left), Value::Number(right)) => Num::of(left).cmp(Num::of(right)),
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => {
            for (left, right) in left.iter().zip(right) {
                let order = order_at(left, right, depth + 1)?;
                if order.is_ne() {
                    return Ok(order);
                }
            }
            left.len().cmp(&right.len())
        }
        (Value::Object(left), Value::Object(right)) => {
            let sorted = |object| -> Vec<(&String, &Value)> {
                let mut keys: Vec<_> = serde_json::Map::iter(object).collect();
                keys.sort_by_key(|(key, _)| *key);
                keys
            };
            let (left, right) = (sorted(left), sorted(right));
            let keys = left.iter().map(|(key, _)| key).cmp(right.iter().map(|(key, _)| key));
            if keys.is_ne() {
                return Ok(keys);
            }
            for ((_, left), (_, right)) in left.iter().zip(&right) {
                let order = order_at(left, right, depth + 1)?;
                if order.is_ne() {
                    return Ok(order);
                }
            }
            Ordering::Equal
        }
        _ => rank(left).cmp(&rank(right)),
    })
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    }
}

/// A function of `input`.
pub(super) fn call<'a>(call: Call, input: &'a Value, budget: &Budget) -> Output<'a> {
    Ok(match call {
        Call::Empty => return Err(End::Empty),
        Call::Not => bool(!is_true(input)),
        Call::Length => Cow::Owned(match input {
            Value::Null => Value::from(0),
            Value::Bool(_) => return Err(End::Error(format!("{} has no length", shown(input)))),
            Value::Number(number) => Num::of(number).abs().exact_json().ok_or(End::Elsewhere)?,
            Value::String(text) => Value::from(text.chars().count()),
            Value::Array(items) => Value::from(items.len()),
            Value::Object(keys) => Value::from(keys.len()),
        }),
        Call::ToString => match input {
            Value::String(_) => Cow::Borrowed(input),
            _ => {
                let mut text = String::new();
                write_text(&mut text, input, budget)?;
                Cow::Owned(Value::String(text))
            }
        },
        Call::ToNumber => match input {
            Value::Number(_) => Cow::Borrowed(input),
            Value::String(text) => match serde_json::from_str(text) {
                Ok(Value::Number(number)) => Cow::Owned(Value::Number(number)),
                // jaq has more forms, and says what is wrong.
                _ => return Err(End::Elsewhere),
            },
            _ => return Err(no_use(input, "string")),
        },
        Call::Type => Cow::Owned(Value::from(match input {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        })),
        Call::Keys => Cow::Owned(match input {
            Value::Array(items) => {
                budget.take(items.len())?;
                (0..items.len()).map(Value::from).collect()
            }
            Value::Object(keys) => {
                let mut sorted: Vec<&String> = keys.keys().collect();
                sorted.sort();
                for key in &sorted {
                    budget.take(key.len())?;
                }
                sorted.into_iter().map(|key| Value::from(key.as_str())).collect()
            }
            _ => return Err(no_use(input, "array or object, which have values")),
        }),
    })
}

/// The key that `value` is.
pub(super) fn key(value: Cow<'_, Value>) -> Result<String, End> {
    match value {
        Cow::Owned(Value::String(key)) => Ok(key),
        Cow::Borrowed(Value::String(key)) => Ok(key.clone()),
        other => Err(no_use(&other, "object key, which is a string")),
    }
}

/// `"\(value)"`: a string as it is, everything else as JSON.
pub(super) fn write_text(text: &mut String, value: &Value, budget: &Budget) -> Result<(), End> {
    let before = text.len();
    match value {
        Value::String(part) if text.len() + part.len() <= STRING_BYTES => text.push_str(part),
        Value::String(_) => return Err(End::Stop(Stop::StringBytes)),
        other => {
            let mut out = Limited::new(STRING_BYTES.saturating_sub(before));
            match write_json(&mut out, other, 0) {
                Ok(()) => {}
                Err(_) if out.is_full() => return Err(End::Stop(Stop::StringBytes)),
                Err(_) => return Err(End::Stop(Stop::Depth)),
            }
            text.push_str(&out.text);
        }
    }
    budget.take(text.len() - before)
}

fn write_json(out: &mut impl fmt::Write, value: &Value, depth: u32) -> fmt::Result {
    if depth > DEPTH {
        return Err(fmt::Error);
    }
    match value {
        Value::Null => out.write_str("null"),
        Value::Bool(value) => write!(out, "{value}"),
        Value::Number(number) => write!(out, "{}", Num::of(number)),
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.write_char('[')?;
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.write_char(',')?;
                }
                write_json(out, item, depth + 1)?;
            }
            out.write_char(']')
        }
        Value::Object(keys) => {
            out.write_char('{')?;
            for (at, (key, value)) in keys.iter().enumerate() {
                if at > 0 {
                    out.write_char(',')?;
                }
                write_string(out, key)?;
                out.write_char(':')?;
                write_json(out, value, depth + 1)?;
            }
            out.write_char('}')
        }
    }
}

/// The start of `value` as JSON, for messages.
pub(super) fn shown(value: &Value) -> String {
    let mut text = Limited::new(SHOWN_BYTES);
    let cut = write_json(&mut text, value, 0).is_err();
    if cut {
        text.text.push('…');
    }
    text.text
}

pub(super) fn no_index(value: &Value, index: &Value) -> End {
    End::Error(format!("cannot index {} with {}", shown(value), shown(index)))
}

pub(super) fn no_use(value: &Value, wanted: &str) -> End {
    End::Error(format!("cannot use {} as {wanted}", shown(value)))
}
