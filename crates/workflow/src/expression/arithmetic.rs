//! Arithmetic of [`super::native`], on JSON values.

use std::borrow::Cow;

use jaq_core::ops::Math;
use serde_json::{Map, Value};

use super::access::{no_use, order, shown};
use super::meter::{ITEMS, STRING_BYTES, Stop};
use super::native::{Budget, End};
use super::number::Num;

/// `-value`.
pub(super) fn neg(value: &Value) -> Result<Value, End> {
    match value {
        Value::Number(number) => exact(Num::of(number).neg()),
        other => Err(no_use(other, "number")),
    }
}

/// `left + right` and so on.
pub(super) fn math(
    left: Cow<'_, Value>,
    operator: Math,
    right: Cow<'_, Value>,
    budget: &Budget,
) -> Result<Value, End> {
    if let (Value::Number(left), Value::Number(right)) = (&*left, &*right) {
        let (one, other) = (Num::of(left), Num::of(right));
        return exact(match operator {
            Math::Add => one.add(other),
            Math::Sub => one.sub(other),
            Math::Mul => one.mul(other),
            Math::Div => one.div(other),
            Math::Rem => {
                one.rem(other).ok_or_else(|| End::Error(format!("cannot calculate {left} % {right}")))?
            }
        });
    }
    match operator {
        Math::Add => add(left, right, budget),
        Math::Sub => match (&*left, &*right) {
            (Value::Array(items), Value::Array(out)) => {
                budget.take(items.len().saturating_mul(out.len()))?;
                let mut kept = Vec::new();
                'items: for item in items {
                    for out in out {
                        if order(item, out)?.is_eq() {
                            continue 'items;
                        }
                    }
                    kept.push(budget.copy(item)?);
                }
                Ok(Value::Array(kept))
            }
            _ => Err(impossible(&left, operator, &right)),
        },
        Math::Mul => multiply(left, right, budget),
        Math::Div => match (&*left, &*right) {
            (Value::String(text), Value::String(separator)) => split(text, separator, budget),
            _ => Err(impossible(&left, operator, &right)),
        },
        Math::Rem => Err(impossible(&left, operator, &right)),
    }
}

fn exact(number: Num) -> Result<Value, End> {
    number.exact_json().ok_or(End::Elsewhere)
}

fn add(left: Cow<'_, Value>, right: Cow<'_, Value>, budget: &Budget) -> Result<Value, End> {
    match (&*left, &*right) {
        (Value::Null, _) => budget.own(right),
        (_, Value::Null) => budget.own(left),
        (Value::String(_), Value::String(end)) => {
            let Value::String(mut text) = budget.own(left)? else { return Err(End::Elsewhere) };
            if text.len() + end.len() > STRING_BYTES {
                return Err(End::Stop(Stop::StringBytes));
            }
            budget.take(end.len())?;
            text.push_str(end);
            Ok(Value::String(text))
        }
        (Value::Array(_), Value::Array(_)) => {
            let (Value::Array(mut items), Value::Array(more)) = (budget.own(left)?, budget.own(right)?)
            else {
                return Err(End::Elsewhere);
            };
            if items.len() + more.len() > ITEMS {
                return Err(End::Stop(Stop::Items));
            }
            items.extend(more);
            Ok(Value::Array(items))
        }
        (Value::Object(_), Value::Object(_)) => {
            let (Value::Object(mut keys), Value::Object(more)) = (budget.own(left)?, budget.own(right)?)
            else {
                return Err(End::Elsewhere);
            };
            keys.extend(more);
            Ok(Value::Object(keys))
        }
        _ => Err(impossible(&left, Math::Add, &right)),
    }
}

fn multiply(left: Cow<'_, Value>, right: Cow<'_, Value>, budget: &Budget) -> Result<Value, End> {
    match (&*left, &*right) {
        (Value::String(text), Value::Number(times)) | (Value::Number(times), Value::String(text)) => {
            let Num::Int(times) = Num::of(times) else { return Err(impossible(&left, Math::Mul, &right)) };
            if times <= 0 {
                return Ok(Value::Null);
            }
            if text.is_empty() {
                return Ok(Value::String(String::new()));
            }
            let times = usize::try_from(times).unwrap_or(usize::MAX);
            match text.len().checked_mul(times) {
                Some(bytes) if bytes <= STRING_BYTES => {
                    budget.take(bytes)?;
                    Ok(Value::String(text.repeat(times)))
                }
                _ => Err(End::Stop(Stop::StringBytes)),
            }
        }
        (Value::Object(_), Value::Object(_)) => {
            let (Value::Object(mut keys), Value::Object(more)) = (budget.own(left)?, budget.own(right)?)
            else {
                return Err(End::Elsewhere);
            };
            merge(&mut keys, more);
            Ok(Value::Object(keys))
        }
        _ => Err(impossible(&left, Math::Mul, &right)),
    }
}

/// Objects under the same key are merged too; everything else is replaced.
fn merge(keys: &mut Map<String, Value>, more: Map<String, Value>) {
    for (key, value) in more {
        match (keys.get_mut(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            (Some(old), new) => *old = new,
            (None, new) => {
                keys.insert(key, new);
            }
        }
    }
}

fn split(text: &str, separator: &str, budget: &Budget) -> Result<Value, End> {
    budget.take(text.len().saturating_mul(8))?;
    Ok(Value::Array(if text.is_empty() {
        Vec::new()
    } else if separator.is_empty() {
        text.chars().map(|c| Value::from(c.to_string())).collect()
    } else {
        text.split(separator).map(Value::from).collect()
    }))
}

fn impossible(left: &Value, operator: Math, right: &Value) -> End {
    End::Error(format!("cannot calculate {} {} {}", shown(left), operator.as_str(), shown(right)))
}
