//! The values of guarded expressions. Strings, arrays and objects are shared, so a small one can stand for
//! one that is huge when written out; each therefore knows how large and how deep it is, and none beyond
//! the limits comes to be. What walks a value (comparing, writing, freeing) thus ends soon.

use std::cmp::Ordering;
use std::fmt;
use std::rc::Rc;

use indexmap::IndexMap;
use serde_json::Value;

use super::meter::{self, DEPTH, ITEMS, STRING_BYTES, Stop, VALUE_BYTES};
use super::number::{Limited, Num, write_string};

/// What an item or a key with its value takes at least, in bytes.
const ITEM_BYTES: u64 = 32;
/// What a message shows of a value, in bytes.
const SHOWN_BYTES: usize = 40;

/// A JSON value, cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) enum V {
    #[default]
    Null,
    Bool(bool),
    Num(Num),
    Str(Rc<str>),
    Arr(Rc<Array>),
    Obj(Rc<Object>),
}

/// Items and what they come to.
#[derive(Clone, Debug, Default)]
pub(super) struct Array {
    items: Vec<V>,
    extent: Extent,
}

/// Keys with values and what they come to.
#[derive(Clone, Debug, Default)]
pub(super) struct Object {
    keys: IndexMap<Rc<str>, V>,
    extent: Extent,
}

#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    /// With what is there several times counted as often.
    bytes: u64,
    /// 0: nothing in it nests.
    depth: u32,
}

impl Extent {
    fn add(&mut self, key_bytes: usize, value: &V) {
        let inner = value.extent();
        self.bytes = self.bytes.saturating_add(ITEM_BYTES + key_bytes as u64).saturating_add(inner.bytes);
        self.depth = self.depth.max(inner.depth + 1);
    }

    fn check(self, items: usize) -> Result<(), Stop> {
        if items > ITEMS {
            Err(meter::stop(Stop::Items))
        } else if self.bytes > VALUE_BYTES {
            Err(meter::stop(Stop::ValueBytes))
        } else if self.depth > DEPTH {
            Err(meter::stop(Stop::Depth))
        } else {
            Ok(())
        }
    }
}

impl V {
    pub(super) fn string(text: impl Into<Rc<str>> + AsRef<str>) -> Result<Self, Stop> {
        let len = text.as_ref().len();
        if len > STRING_BYTES {
            return Err(meter::stop(Stop::StringBytes));
        }
        meter::allocate(len as u64)?;
        Ok(Self::Str(text.into()))
    }

    pub(super) fn array(items: Vec<V>) -> Result<Self, Stop> {
        meter::allocate(ITEM_BYTES * items.len() as u64)?;
        let mut extent = Extent::default();
        items.iter().for_each(|item| extent.add(0, item));
        extent.check(items.len())?;
        Ok(Self::Arr(Rc::new(Array { items, extent })))
    }

    pub(super) fn object(keys: IndexMap<Rc<str>, V>) -> Result<Self, Stop> {
        meter::allocate(2 * ITEM_BYTES * keys.len() as u64)?;
        let mut extent = Extent::default();
        keys.iter().for_each(|(key, value)| extent.add(key.len(), value));
        extent.check(keys.len())?;
        Ok(Self::Obj(Rc::new(Object { keys, extent })))
    }

    /// `left` with `right`'s items behind its own, in place if nobody else has it.
    pub(super) fn concat(mut left: Rc<Array>, right: &Rc<Array>) -> Result<Self, Stop> {
        let copied = if Rc::strong_count(&left) == 1 { 0 } else { left.items.len() };
        meter::allocate(ITEM_BYTES * (copied + right.items.len()) as u64)?;
        let array = Rc::make_mut(&mut left);
        array.items.extend(right.items.iter().cloned());
        let mut extent = array.extent;
        extent.bytes = extent.bytes.saturating_add(right.extent.bytes);
        extent.depth = extent.depth.max(right.extent.depth);
        array.extent = extent;
        extent.check(array.items.len())?;
        Ok(Self::Arr(left))
    }

    /// `left` with `right`'s keys put in, or with objects under the same key merged the same way (`deep`).
    pub(super) fn merge(left: &Rc<Object>, right: &Rc<Object>, deep: bool) -> Result<Self, Stop> {
        let mut keys = left.keys.clone();
        for (key, value) in &right.keys {
            let merged = match (keys.get(key), value) {
                (Some(Self::Obj(old)), Self::Obj(new)) if deep => Self::merge(old, new, true)?,
                _ => value.clone(),
            };
            keys.insert(key.clone(), merged);
        }
        Self::object(keys)
    }

    pub(super) fn items(&self) -> Option<&[V]> {
        match self {
            Self::Arr(array) => Some(&array.items),
            _ => None,
        }
    }

    pub(super) fn keys(&self) -> Option<&IndexMap<Rc<str>, V>> {
        match self {
            Self::Obj(object) => Some(&object.keys),
            _ => None,
        }
    }

    /// What it would take written out, roughly, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.extent().bytes
    }

    fn extent(&self) -> Extent {
        match self {
            Self::Str(text) => Extent { bytes: text.len() as u64, depth: 0 },
            Self::Arr(array) => array.extent,
            Self::Obj(object) => object.extent,
            _ => Extent::default(),
        }
    }

    pub(super) fn from_json(value: &Value) -> Result<Self, Stop> {
        Self::from_json_at(value, 0)
    }

    fn from_json_at(value: &Value, depth: u32) -> Result<Self, Stop> {
        if depth > DEPTH {
            return Err(meter::stop(Stop::Depth));
        }
        Ok(match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => Self::Num(Num::of(number)),
            Value::String(text) => Self::string(text.as_str())?,
            Value::Array(items) => Self::array(
                items.iter().map(|item| Self::from_json_at(item, depth + 1)).collect::<Result<_, _>>()?,
            )?,
            Value::Object(keys) => Self::object(
                keys.iter()
                    .map(|(key, value)| Ok((Rc::from(key.as_str()), Self::from_json_at(value, depth + 1)?)))
                    .collect::<Result<_, _>>()?,
            )?,
        })
    }

    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Num(number) => number.json(),
            Self::Str(text) => Value::String(text.to_string()),
            Self::Arr(array) => Value::Array(array.items.iter().map(Self::to_json).collect()),
            Self::Obj(object) => Value::Object(
                object.keys.iter().map(|(key, value)| (key.to_string(), value.to_json())).collect(),
            ),
        }
    }

    /// JSON text.
    pub(super) fn write(&self, out: &mut impl fmt::Write) -> fmt::Result {
        match self {
            Self::Null => out.write_str("null"),
            Self::Bool(value) => write!(out, "{value}"),
            Self::Num(number) => write!(out, "{number}"),
            Self::Str(text) => write_string(out, text),
            Self::Arr(array) => {
                out.write_char('[')?;
                for (at, item) in array.items.iter().enumerate() {
                    if at > 0 {
                        out.write_char(',')?;
                    }
                    item.write(out)?;
                }
                out.write_char(']')
            }
            Self::Obj(object) => {
                out.write_char('{')?;
                for (at, (key, value)) in object.keys.iter().enumerate() {
                    if at > 0 {
                        out.write_char(',')?;
                    }
                    write_string(out, key)?;
                    out.write_char(':')?;
                    value.write(out)?;
                }
                out.write_char('}')
            }
        }
    }

    pub(super) fn json_text(&self) -> Result<Self, Stop> {
        let mut out = Limited::new(STRING_BYTES);
        match self.write(&mut out) {
            Ok(()) => Self::string(out.text),
            Err(_) => Err(meter::stop(Stop::StringBytes)),
        }
    }
}

/// For messages: JSON, cut off soon.
impl fmt::Display for V {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = Limited::new(SHOWN_BYTES);
        let cut = self.write(&mut shown).is_err();
        out.write_str(&shown.text)?;
        if cut { out.write_str("…") } else { Ok(()) }
    }
}

impl PartialEq for V {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Obj(left), Self::Obj(right)) if left.keys.len() != right.keys.len() => false,
            _ => self.cmp(other) == Ordering::Equal,
        }
    }
}

impl Eq for V {}

impl PartialOrd for V {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// jq's order: null, false, true, numbers, strings, arrays, objects. What a comparison costs is counted, but
/// it always ends with the right answer: sorting relies on it.
impl Ord for V {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(left), Self::Bool(right)) => left.cmp(right),
            (Self::Num(left), Self::Num(right)) => left.cmp(*right),
            (Self::Str(left), Self::Str(right)) => {
                if Rc::ptr_eq(left, right) {
                    return Ordering::Equal;
                }
                let _ = meter::work(left.len().min(right.len()) as u64);
                left.cmp(right)
            }
            (Self::Arr(left), Self::Arr(right)) => {
                let _ = meter::work(ITEM_BYTES);
                left.items.cmp(&right.items)
            }
            (Self::Obj(left), Self::Obj(right)) => {
                let _ = meter::work(2 * ITEM_BYTES * (left.keys.len() + right.keys.len()) as u64);
                let sorted = |object: &Object| {
                    let mut keys: Vec<(Rc<str>, V)> =
                        object.keys.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
                    keys.sort_by(|left, right| left.0.cmp(&right.0));
                    keys
                };
                let (left, right) = (sorted(left), sorted(right));
                let keys = left.iter().map(|(key, _)| key).cmp(right.iter().map(|(key, _)| key));
                keys.then_with(|| {
                    left.iter().map(|(_, value)| value).cmp(right.iter().map(|(_, value)| value))
                })
            }
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl V {
    fn rank(&self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Bool(_) => 1,
            Self::Num(_) => 2,
            Self::Str(_) => 3,
            Self::Arr(_) => 4,
            Self::Obj(_) => 5,
        }
    }
}
