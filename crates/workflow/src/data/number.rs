//! jq's numbers: integers, which are exact, and floating-point numbers.

use std::cmp::Ordering;
use std::fmt::{self, Write as _};

use serde_json::Value;

/// A number. Sums, differences, products and remainders of integers are integers (floating-point beyond 127 bits).
/// Quotients are always floating-point.
#[derive(Clone, Copy, Debug)]
pub enum Num {
    /// An integer.
    Int(i128),
    /// Any other number.
    Float(f64),
}

impl Num {
    pub(crate) fn of(number: &serde_json::Number) -> Self {
        if let Some(int) = number.as_i64() {
            Self::Int(int.into())
        } else if let Some(int) = number.as_u64() {
            Self::Int(int.into())
        } else {
            Self::Float(number.as_f64().unwrap_or(f64::NAN))
        }
    }

    /// Reads a number in the syntax of jq and JSON.
    pub(crate) fn parse(text: &str) -> Self {
        match text.parse() {
            Ok(int) => Self::Int(int),
            Err(_) => Self::Float(text.parse().unwrap_or(f64::NAN)),
        }
    }

    pub(crate) fn float(self) -> f64 {
        match self {
            Self::Int(int) => int as f64,
            Self::Float(float) => float,
        }
    }

    /// The number as JSON, if JSON represents it exactly. `None` for NaN, infinite numbers and integers beyond 64
    /// bits.
    pub(crate) fn exact_json(self) -> Option<Value> {
        match self {
            Self::Int(int) => {
                i64::try_from(int).map(Value::from).or_else(|_| u64::try_from(int).map(Value::from)).ok()
            }
            Self::Float(float) => serde_json::Number::from_f64(float).map(Value::Number),
        }
    }

    /// The number as JSON represents it: integers beyond 64 bits lose digits. `None` for NaN and infinite numbers.
    pub(crate) fn exact(self) -> Option<Self> {
        match self {
            Self::Int(int) if i64::try_from(int).is_err() && u64::try_from(int).is_err() => {
                Some(Self::Float(int as f64))
            }
            Self::Float(float) if !float.is_finite() => None,
            exact => Some(exact),
        }
    }

    pub(crate) fn is_exact(self) -> bool {
        match self {
            Self::Int(int) => i64::try_from(int).is_ok() || u64::try_from(int).is_ok(),
            Self::Float(float) => float.is_finite(),
        }
    }

    /// The number as JSON: NaN and infinite numbers become null, integers beyond 64 bits lose digits.
    pub(crate) fn json(self) -> Value {
        self.exact_json().unwrap_or_else(|| {
            serde_json::Number::from_f64(self.float()).map_or(Value::Null, Value::Number)
        })
    }

    pub(crate) fn add(self, other: Self) -> Self {
        both(self, other, i128::checked_add, |left, right| left + right)
    }

    pub(crate) fn sub(self, other: Self) -> Self {
        both(self, other, i128::checked_sub, |left, right| left - right)
    }

    pub(crate) fn mul(self, other: Self) -> Self {
        both(self, other, i128::checked_mul, |left, right| left * right)
    }

    pub(crate) fn div(self, other: Self) -> Self {
        Self::Float(self.float() / other.float())
    }

    /// The remainder. `None` if an integer is divided by 0.
    pub(crate) fn rem(self, other: Self) -> Option<Self> {
        if let (Self::Int(_), Self::Int(0)) = (self, other) {
            return None;
        }
        Some(both(
            self,
            other,
            |left, right| left.checked_rem(right).or(Some(0)),
            |left, right| left % right,
        ))
    }

    pub(crate) fn neg(self) -> Self {
        match self {
            Self::Int(int) => int.checked_neg().map_or(Self::Float(-(int as f64)), Self::Int),
            Self::Float(float) => Self::Float(-float),
        }
    }

    pub(crate) fn abs(self) -> Self {
        match self {
            Self::Int(int) if int < 0 => self.neg(),
            Self::Int(_) => self,
            Self::Float(float) => Self::Float(float.abs()),
        }
    }

    /// jq's order: NaN is below every number, including NaN.
    pub(crate) fn order(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Int(left), Self::Int(right)) => left.cmp(&right),
            _ => {
                let (left, right) = (self.float(), other.float());
                if left.is_nan() {
                    Ordering::Less
                } else {
                    left.partial_cmp(&right).unwrap_or(Ordering::Greater)
                }
            }
        }
    }

    /// The index in a sequence of `len` items; a negative number counts from the end. `None` if it is out of range or
    /// not an integer.
    pub(crate) fn place(self, len: usize) -> Option<usize> {
        let Self::Int(int) = self else { return None };
        let at = if int < 0 { int + len as i128 } else { int };
        usize::try_from(at).ok().filter(|at| *at < len)
    }

    /// The end of a slice in a sequence of `len` items, clamped to its range. `None` if it is not an integer.
    pub(crate) fn bound(self, len: usize) -> Option<usize> {
        let Self::Int(int) = self else { return None };
        let at = if int < 0 { int.saturating_add(len as i128) } else { int };
        Some(usize::try_from(at.max(0)).unwrap_or(len).min(len))
    }
}

fn both(
    left: Num,
    right: Num,
    ints: impl Fn(i128, i128) -> Option<i128>,
    floats: impl Fn(f64, f64) -> f64,
) -> Num {
    if let (Num::Int(left), Num::Int(right)) = (left, right)
        && let Some(int) = ints(left, right)
    {
        return Num::Int(int);
    }
    Num::Float(floats(left.float(), right.float()))
}

impl fmt::Display for Num {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(int) => write!(out, "{int}"),
            Self::Float(float) if float.is_nan() => out.write_str("NaN"),
            Self::Float(float) if *float == f64::INFINITY => out.write_str("Infinity"),
            Self::Float(float) if *float == f64::NEG_INFINITY => out.write_str("-Infinity"),
            Self::Float(float) => match serde_json::Number::from_f64(*float) {
                // Large numbers in jaq's format: `1e16`, not `1e+16`.
                Some(number) => out.write_str(&number.to_string().replace("e+", "e")),
                None => Ok(()),
            },
        }
    }
}

/// A text buffer with a maximum length in bytes. A write beyond it returns an error, which stops the writing of a
/// large value.
pub(crate) struct Limited {
    pub(crate) text: String,
    limit_bytes: usize,
}

impl Limited {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { text: String::new(), limit_bytes }
    }

    /// The text of `shown`, cut at `limit_bytes`; `…` marks the cut.
    pub(crate) fn of(limit_bytes: usize, shown: &dyn fmt::Display) -> String {
        let mut limited = Self::new(limit_bytes);
        if write!(limited, "{shown}").is_err() {
            limited.text.push('…');
        }
        limited.text
    }
}

impl fmt::Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.limit_bytes.saturating_sub(self.text.len());
        if text.len() <= room {
            self.text.push_str(text);
            return Ok(());
        }
        let end = text.floor_char_boundary(room);
        self.text.push_str(text.get(..end).unwrap_or_default());
        Err(fmt::Error)
    }
}
