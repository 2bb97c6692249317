//! jaq's accesses to values ([`jaq_core::ValT`]), for [`V`]; its arithmetic is in [`super::arithmetic`].

use std::sync::Arc;

use jaq_core::path::Opt;
use jaq_core::val::Range;
use jaq_core::{Error, Exn, ValR, ValX};

use super::meter::{self, Stop};
use super::value::V;
use crate::data::{Fields, Num};

/// The error that jq text sees when the evaluation is stopped. [`meter::stopped`] has the reason.
pub(super) fn ended(_: Stop) -> Error<V> {
    Error::new(V::Null)
}

/// The value, or null if the evaluation was stopped, for places where jaq accepts no error. The next step returns the
/// error.
fn or_null(value: Result<V, Stop>) -> V {
    value.unwrap_or_default()
}

impl V {
    /// `Some(None)`: there is no value at the index.
    pub(super) fn index_opt(&self, index: &Self) -> ValR<Option<V>, V> {
        Ok(match (self, index) {
            (V::Null, _) => None,
            (V::Arr(array), V::Num(number @ Num::Int(_))) => {
                let items = array.items();
                number.place(items.len()).and_then(|at| items.get(at)).cloned()
            }
            (V::Arr(_), V::Arr(_)) => Some(self.indices(index)?),
            (V::Obj(object), V::Str(key)) => object.fields().get(key).cloned(),
            (V::Obj(_), _) => None,
            (V::Str(_) | V::Arr(_), V::Obj(_)) => {
                let end = |name: &str| index.get(name);
                Some(jaq_core::ValT::range(self.clone(), end("start")..end("end"))?)
            }
            _ => return Err(Error::index(self.clone(), index.clone())),
        })
    }

    /// The positions at which `wanted` occurs.
    pub(super) fn indices(&self, wanted: &Self) -> ValR<V> {
        let cost = self.bytes().saturating_mul(4 + wanted.bytes() / 16);
        meter::work(cost).map_err(ended)?;
        let places: Vec<usize> = match (self, wanted) {
            (V::Str(_), V::Str(wanted)) if wanted.is_empty() => Vec::new(),
            (V::Str(text), V::Str(wanted)) => {
                let starts = text.char_indices().enumerate();
                starts
                    .filter(|(_, (at, _))| text.get(*at..).is_some_and(|rest| rest.starts_with(&**wanted)))
                    .map(|(place, _)| place)
                    .take(meter::ITEMS + 1)
                    .collect()
            }
            (V::Arr(items), V::Arr(wanted)) => {
                let (items, wanted) = (items.items(), wanted.items());
                let mut places = Vec::new();
                if !wanted.is_empty() {
                    for at in 0..(items.len() + 1).saturating_sub(wanted.len()) {
                        let mut same = true;
                        for (left, right) in items.range(at, at + wanted.len()).zip(wanted.iter()) {
                            same = left.order(right).map_err(ended)?.is_eq();
                            if !same {
                                break;
                            }
                        }
                        if same {
                            places.push(at);
                        }
                    }
                }
                places
            }
            (V::Arr(array), _) => {
                let items = array.items().iter().enumerate();
                items.filter(|(_, item)| *item == wanted).map(|(at, _)| at).collect()
            }
            _ => return Err(Error::index(self.clone(), wanted.clone())),
        };
        V::array(places.into_iter().map(V::from).collect()).map_err(ended)
    }

    fn bounds(range: &Range<&Self>, len: usize) -> Result<(usize, usize), Error<V>> {
        let bound = |end: Option<&V>, default| match end {
            None | Some(V::Null) => Ok(default),
            Some(V::Num(number)) => number.bound(len).ok_or_else(|| Error::typ(V::Num(*number), "integer")),
            Some(other) => Err(Error::typ(other.clone(), "integer")),
        };
        let (from, upto) = (bound(range.start, 0)?, bound(range.end, len)?);
        Ok((from, upto.max(from)))
    }
}

/// The byte offsets of the characters `from` and `upto` of `text`.
pub(super) fn char_bytes(text: &str, from: usize, upto: usize) -> (usize, usize) {
    let byte = |place| text.char_indices().nth(place).map_or(text.len(), |(at, _)| at);
    (byte(from), byte(upto))
}

impl jaq_core::ValT for V {
    fn from_num(text: &str) -> ValR<Self> {
        Ok(V::Num(Num::parse(text)))
    }

    fn from_map<I: IntoIterator<Item = (Self, Self)>>(pairs: I) -> ValR<Self> {
        let key = |(key, value)| match key {
            V::Str(key) => Ok((key, value)),
            other => Err(Error::typ(other, "object key, which is a string")),
        };
        V::object(pairs.into_iter().map(key).collect::<Result<_, _>>()?).map_err(ended)
    }

    fn key_values(self) -> Box<dyn Iterator<Item = ValR<(Self, Self), Self>>> {
        let pairs: Vec<(V, V)> = match &self {
            V::Arr(array) => {
                array.items().iter().enumerate().map(|(at, item)| (V::from(at), item.clone())).collect()
            }
            V::Obj(object) => {
                object.fields().iter().map(|(key, value)| (V::Str(key.clone()), value.clone())).collect()
            }
            _ => return once(Err(not_iterable(self))),
        };
        match meter::allocate(64 * pairs.len() as u64) {
            Ok(()) => Box::new(pairs.into_iter().map(Ok)),
            Err(stop) => once(Err(ended(stop))),
        }
    }

    fn values(self) -> Box<dyn Iterator<Item = ValR<Self>>> {
        let len = match &self {
            V::Arr(array) => array.items().len(),
            V::Obj(object) => object.fields().len(),
            _ => return once(Err(not_iterable(self))),
        };
        // By index, because the items stay in the array.
        Box::new((0..len).map(move |at| {
            let item = match &self {
                V::Arr(array) => array.items().get(at),
                V::Obj(object) => object.fields().get_index(at).map(|(_, value)| value),
                _ => None,
            };
            Ok(item.cloned().unwrap_or_default())
        }))
    }

    fn index(self, index: &Self) -> ValR<Self> {
        self.index_opt(index).map(Option::unwrap_or_default)
    }

    fn range(self, range: Range<&Self>) -> ValR<Self> {
        match &self {
            V::Arr(array) => {
                let items = array.items();
                let (from, upto) = V::bounds(&range, items.len())?;
                meter::work(32 * (upto - from) as u64).map_err(ended)?;
                V::array(items.range(from, upto).cloned().collect()).map_err(ended)
            }
            V::Str(text) => {
                meter::work(text.len() as u64).map_err(ended)?;
                let (from, upto) = V::bounds(&range, text.chars().count())?;
                let (from, upto) = char_bytes(text, from, upto);
                V::string(text.get(from..upto).unwrap_or_default()).map_err(ended)
            }
            _ => Err(Error::typ(self, "array or string, which have slices")),
        }
    }

    fn map_values<'a, I: Iterator<Item = ValX<'a, Self>>>(
        self,
        opt: Opt,
        f: impl Fn(Self) -> I,
    ) -> ValX<'a, Self> {
        match &self {
            V::Arr(array) => {
                let items = array.items().iter().cloned().flat_map(f);
                Ok(V::array(items.collect::<Result<_, _>>()?).map_err(ended)?)
            }
            V::Obj(object) => {
                let keys = object.fields().iter().filter_map(|(key, value)| {
                    f(value.clone()).next().map(|value| Ok((key.clone(), value?)))
                });
                Ok(V::object(keys.collect::<Result<_, Exn<'a, V>>>()?).map_err(ended)?)
            }
            _ => opt.fail(self, |value| Exn::from(not_iterable(value))),
        }
    }

    fn map_index<'a, I: Iterator<Item = ValX<'a, Self>>>(
        self,
        index: &Self,
        opt: Opt,
        f: impl Fn(Self) -> I,
    ) -> ValX<'a, Self> {
        match (&self, index) {
            (V::Str(_) | V::Arr(_), V::Obj(_)) => {
                let end = |name: &str| index.get(name);
                self.clone().map_range(end("start")..end("end"), opt, f)
            }
            (V::Obj(_) | V::Null, V::Str(key)) => {
                let mut keys = self.fields().cloned().unwrap_or_default();
                let old = keys.get(key).cloned().unwrap_or_default();
                match f(old).next().transpose()? {
                    Some(new) => {
                        keys.insert(key.clone(), new);
                    }
                    None if matches!(self, V::Null) => return Ok(V::Null),
                    None => {
                        keys.remove(key);
                    }
                }
                Ok(V::object(keys).map_err(ended)?)
            }
            (V::Arr(array), V::Num(number)) => {
                let mut items: Vec<V> = array.items().iter().cloned().collect();
                let Some(at) = number.place(items.len()) else {
                    let outside = Error::str(format_args!("index {index} is not in the array"));
                    return opt.fail(self, |_| Exn::from(outside));
                };
                let old = items.get(at).cloned().unwrap_or_default();
                match f(old).next().transpose()? {
                    Some(new) => {
                        if let Some(item) = items.get_mut(at) {
                            *item = new;
                        }
                    }
                    None => {
                        items.remove(at);
                    }
                }
                Ok(V::array(items).map_err(ended)?)
            }
            _ => opt.fail(self, |value| Exn::from(Error::index(value, index.clone()))),
        }
    }

    fn map_range<'a, I: Iterator<Item = ValX<'a, Self>>>(
        self,
        range: Range<&Self>,
        opt: Opt,
        f: impl Fn(Self) -> I,
    ) -> ValX<'a, Self> {
        let V::Arr(array) = &self else {
            return opt.fail(self, |value| Exn::from(Error::typ(value, "array")));
        };
        let mut items: Vec<V> = array.items().iter().cloned().collect();
        let (from, upto) = match V::bounds(&range, items.len()) {
            Ok(bounds) => bounds,
            Err(error) => return opt.fail(self, |_| Exn::from(error)),
        };
        let part = items.get(from..upto).unwrap_or_default().to_vec();
        let new = match f(V::array(part).map_err(ended)?).next().transpose()? {
            Some(new) if new.items().is_some() => new,
            Some(other) => return Err(Exn::from(Error::typ(other, "array"))),
            None => V::default(),
        };
        let new: Vec<V> = new.items().map(|items| items.iter().cloned().collect()).unwrap_or_default();
        items.splice(from..upto, new);
        Ok(V::array(items).map_err(ended)?)
    }

    fn as_bool(&self) -> bool {
        !matches!(self, V::Null | V::Bool(false))
    }

    fn into_string(self) -> Self {
        match self {
            V::Str(_) => self,
            other => or_null(other.json_text()),
        }
    }
}

impl jaq_std::ValT for V {
    fn into_seq<S: FromIterator<Self>>(self) -> Result<S, Self> {
        match self.items() {
            Some(items) if meter::allocate(32 * items.len() as u64).is_ok() => {
                Ok(items.iter().cloned().collect())
            }
            _ => Err(self),
        }
    }

    fn is_int(&self) -> bool {
        matches!(self, V::Num(Num::Int(_)))
    }

    fn as_isize(&self) -> Option<isize> {
        match self {
            V::Num(Num::Int(int)) => isize::try_from(*int).ok(),
            _ => None,
        }
    }

    fn as_f64(&self) -> Option<f64> {
        match self {
            V::Num(number) => Some(number.float()),
            _ => None,
        }
    }

    fn is_utf8_str(&self) -> bool {
        matches!(self, V::Str(_))
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            // A function that reads the bytes visits all of them, so this counts as work.
            V::Str(text) if meter::work(text.len() as u64).is_ok() => Some(text.as_bytes()),
            _ => None,
        }
    }

    fn as_sub_str(&self, sub: &[u8]) -> Self {
        or_null(V::string(String::from_utf8_lossy(sub)))
    }

    fn from_utf8_bytes(bytes: impl AsRef<[u8]> + Send + 'static) -> Self {
        or_null(V::string(String::from_utf8_lossy(bytes.as_ref())))
    }
}

impl From<bool> for V {
    fn from(value: bool) -> Self {
        V::Bool(value)
    }
}

impl From<isize> for V {
    fn from(value: isize) -> Self {
        V::Num(Num::Int(value as i128))
    }
}

impl From<usize> for V {
    fn from(value: usize) -> Self {
        V::Num(Num::Int(value as i128))
    }
}

impl From<f64> for V {
    fn from(value: f64) -> Self {
        V::Num(Num::Float(value))
    }
}

impl From<String> for V {
    fn from(text: String) -> Self {
        or_null(V::string(text))
    }
}

impl From<Range<V>> for V {
    fn from(range: Range<V>) -> Self {
        let ends = [("start", range.start), ("end", range.end)];
        let keys = ends.into_iter().filter_map(|(name, end)| Some((Arc::from(name), end?)));
        or_null(V::object(keys.collect::<Fields>()))
    }
}

impl FromIterator<V> for V {
    fn from_iter<T: IntoIterator<Item = V>>(items: T) -> Self {
        or_null(V::array(items.into_iter().collect()))
    }
}

fn once<T: 'static>(item: T) -> Box<dyn Iterator<Item = T>> {
    Box::new(std::iter::once(item))
}

fn not_iterable(value: V) -> Error<V> {
    Error::typ(value, "array or object, which have values")
}
