//! jq's arithmetic on values: `+`, `-`, `*`, `/`, `%` and the sign.

use std::ops::{Add, Div, Mul, Neg, Rem, Sub};
use std::sync::Arc;

use jaq_core::{Error, ValR, ops};

use super::access::ended;
use super::meter::{self, Stop};
use super::value::V;
use crate::data::Num;

impl Add for V {
    type Output = ValR<V>;

    fn add(self, other: Self) -> ValR<V> {
        match (self, other) {
            (V::Null, other) | (other, V::Null) => Ok(other),
            (V::Num(left), V::Num(right)) => Ok(V::Num(left.add(right))),
            (V::Str(left), V::Str(right)) => {
                meter::allocate(0).map_err(ended)?;
                V::string([&*left, &*right].concat()).map_err(ended)
            }
            (V::Arr(left), V::Arr(right)) => V::concat(left, &right).map_err(ended),
            (V::Obj(left), V::Obj(right)) => V::merge(&left, &right, false).map_err(ended),
            (left, right) => Err(Error::math(left, ops::Math::Add, right)),
        }
    }
}

impl Sub for V {
    type Output = ValR<V>;

    fn sub(self, other: Self) -> ValR<V> {
        match (&self, &other) {
            (V::Num(left), V::Num(right)) => Ok(V::Num(left.sub(*right))),
            (V::Arr(left), V::Arr(right)) => {
                // Counts all comparisons before the work, because building the set cannot be interrupted.
                let levels = u64::from(u64::BITS - (right.items().len() as u64).leading_zeros()) + 1;
                meter::work((self.bytes() + other.bytes()).saturating_mul(levels)).map_err(ended)?;
                let out: std::collections::BTreeSet<&V> = right.items().iter().collect();
                let left = left.items().iter();
                V::array(left.filter(|item| !out.contains(item)).cloned().collect()).map_err(ended)
            }
            _ => Err(Error::math(self, ops::Math::Sub, other)),
        }
    }
}

impl Mul for V {
    type Output = ValR<V>;

    fn mul(self, other: Self) -> ValR<V> {
        match (self, other) {
            (V::Num(left), V::Num(right)) => Ok(V::Num(left.mul(right))),
            (V::Str(text), V::Num(Num::Int(times))) | (V::Num(Num::Int(times)), V::Str(text)) => {
                repeat(&text, times).map_err(ended)
            }
            (V::Obj(left), V::Obj(right)) => V::merge(&left, &right, true).map_err(ended),
            (left, right) => Err(Error::math(left, ops::Math::Mul, right)),
        }
    }
}

fn repeat(text: &Arc<str>, times: i128) -> Result<V, Stop> {
    if times <= 0 {
        return Ok(V::Null);
    }
    if text.is_empty() {
        return Ok(V::Str(text.clone()));
    }
    let times = usize::try_from(times).unwrap_or(usize::MAX);
    // Checks the size before the string is created.
    meter::string(text.len().saturating_mul(times))?;
    V::string(text.repeat(times))
}

impl Div for V {
    type Output = ValR<V>;

    fn div(self, other: Self) -> ValR<V> {
        match (self, other) {
            (V::Num(left), V::Num(right)) => Ok(V::Num(left.div(right))),
            (V::Str(text), V::Str(separator)) => split(&text, &separator).map_err(ended),
            (left, right) => Err(Error::math(left, ops::Math::Div, right)),
        }
    }
}

fn split(text: &str, separator: &str) -> Result<V, Stop> {
    meter::work(text.len() as u64)?;
    let pieces: Result<Vec<V>, Stop> = if text.is_empty() {
        Ok(Vec::new())
    } else if separator.is_empty() {
        text.chars().map(|c| V::string(String::from(c))).collect()
    } else {
        text.split(separator).map(V::string).collect()
    };
    V::array(pieces?)
}

impl Rem for V {
    type Output = ValR<V>;

    fn rem(self, other: Self) -> ValR<V> {
        if let (V::Num(left), V::Num(right)) = (&self, &other)
            && let Some(rest) = left.rem(*right)
        {
            return Ok(V::Num(rest));
        }
        Err(Error::math(self, ops::Math::Rem, other))
    }
}

impl Neg for V {
    type Output = ValR<V>;

    fn neg(self) -> ValR<V> {
        match self {
            V::Num(number) => Ok(V::Num(number.neg())),
            other => Err(Error::typ(other, "number")),
        }
    }
}
