//! Values of expressions, within limits. Strings, lists and objects are shared, so a small value in memory could
//! represent a huge written value. The limits prevent such values. So every operation that visits a value (comparing,
//! writing, freeing) takes limited time, and counts its work.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::meter::{self, DEPTH, ITEMS, STRING_BYTES, Stop};
use crate::data::{self, ARRAY_BYTES, CHUNK, Data, Fields, ITEM_BYTES, Limited, OBJECT_BYTES, Object};

pub(super) use crate::data::Data as V;

/// Maximum length of a value in a message, in bytes.
const SHOWN_BYTES: usize = 40;

fn check(value: V, items: usize) -> Result<V, Stop> {
    if items > ITEMS {
        Err(meter::stop(Stop::Items))
    } else if value.depth() > DEPTH {
        Err(meter::stop(Stop::Depth))
    } else {
        meter::value(value.bytes())?;
        Ok(value)
    }
}

impl V {
    pub(super) fn string(text: impl Into<Arc<str>> + AsRef<str>) -> Result<Self, Stop> {
        let len = text.as_ref().len();
        meter::string(len)?;
        meter::allocate_with(data::STRING_BYTES, len as u64)?;
        Ok(Self::Str(text.into()))
    }

    pub(super) fn array(items: Vec<V>) -> Result<Self, Stop> {
        meter::allocate_with(ARRAY_BYTES, ITEM_BYTES * items.len() as u64)?;
        let len = items.len();
        check(Self::list(items), len)
    }

    pub(super) fn object(fields: Fields) -> Result<Self, Stop> {
        meter::allocate_with(OBJECT_BYTES, 2 * ITEM_BYTES * fields.len() as u64)?;
        let len = fields.len();
        check(Self::object_of(fields), len)
    }

    /// `left` with the items of `right` appended. The items of `left` are not copied, so appending item by item is
    /// cheap.
    pub(super) fn concat(left: Arc<crate::data::Array>, right: &crate::data::Array) -> Result<Self, Stop> {
        // The count must not depend on sharing: it is the same whether `left` is shared or not.
        let (before, more) = (left.len(), right.len());
        meter::allocate_with(ARRAY_BYTES, ITEM_BYTES * (before.min(CHUNK) + more) as u64)?;
        check(Self::joined(left, right), before + more)
    }

    /// `left` with the fields of `right`. With `deep`, objects under the same key are merged in the same way.
    pub(super) fn merge(left: &Object, right: &Object, deep: bool) -> Result<Self, Stop> {
        meter::work(2 * ITEM_BYTES * left.fields().len() as u64)?;
        let mut fields = left.fields().clone();
        for (key, value) in right.fields().iter() {
            let merged = match (fields.get(key), value) {
                (Some(Self::Obj(old)), Self::Obj(new)) if deep => Self::merge(old, new, true)?,
                _ => value.clone(),
            };
            fields.insert(key.clone(), merged);
        }
        Self::object(fields)
    }

    pub(super) fn json_text(&self) -> Result<Self, Stop> {
        meter::work(self.bytes().min(STRING_BYTES as u64))?;
        let mut out = Limited::new(STRING_BYTES);
        match self.write(&mut out) {
            Ok(()) => Self::string(out.text),
            Err(_) => Err(meter::stop(Stop::StringBytes)),
        }
    }

    /// jq's truth: everything but null and false.
    pub(crate) fn is_true(&self) -> bool {
        !matches!(self, Self::Null | Self::Bool(false))
    }

    /// jq's order. Returns an error when the steps are used up.
    pub(super) fn order(&self, other: &Self) -> Result<Ordering, Stop> {
        if let Some(stop) = meter::stopped() {
            return Err(stop);
        }
        let order = self.cmp(other);
        match meter::stopped() {
            Some(stop) => Err(stop),
            None => Ok(order),
        }
    }
}

/// Sorts `items`; the sort is stable. It stops as soon as the steps are used up.
pub(super) fn sort<T: Clone>(
    mut items: Vec<T>,
    order: impl Fn(&T, &T) -> Result<Ordering, Stop>,
) -> Result<Vec<T>, Stop> {
    let mut width = 1;
    while width < items.len() {
        meter::work(ITEM_BYTES * items.len() as u64)?;
        let mut sorted = Vec::with_capacity(items.len());
        for pair in items.chunks(2 * width) {
            let (left, right) = pair.split_at(width.min(pair.len()));
            let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
            loop {
                let next = match (left.peek(), right.peek()) {
                    (Some(one), Some(other)) if order(one, other)?.is_le() => left.next(),
                    (_, Some(_)) => right.next(),
                    (_, None) => left.next(),
                };
                match next {
                    Some(item) => sorted.push(item.clone()),
                    None => break,
                }
            }
        }
        items = sorted;
        width *= 2;
    }
    Ok(items)
}

/// For messages: JSON, cut to a small length.
impl fmt::Display for Data {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = Limited::new(SHOWN_BYTES);
        let cut = self.write(&mut shown).is_err();
        out.write_str(&shown.text)?;
        if cut { out.write_str("…") } else { Ok(()) }
    }
}

impl PartialEq for Data {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Obj(left), Self::Obj(right)) if left.fields().len() != right.fields().len() => false,
            _ => self.cmp(other) == Ordering::Equal,
        }
    }
}

impl Eq for Data {}

impl PartialOrd for Data {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// jq's order: null, false, true, numbers, strings, arrays, objects. The cost of a comparison is counted, but the
/// comparison always returns the correct result, because sorting relies on it.
impl Ord for Data {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(left), Self::Bool(right)) => left.cmp(right),
            (Self::Num(left), Self::Num(right)) => left.order(*right),
            (Self::Str(left), Self::Str(right)) => {
                if Arc::ptr_eq(left, right) {
                    return Ordering::Equal;
                }
                let _ = meter::work(left.len().min(right.len()) as u64);
                left.cmp(right)
            }
            (Self::Arr(left), Self::Arr(right)) => {
                let _ = meter::work(ITEM_BYTES);
                left.items().iter().cmp(right.items().iter())
            }
            (Self::Obj(left), Self::Obj(right)) => {
                let _ = meter::work(2 * ITEM_BYTES * (left.fields().len() + right.fields().len()) as u64);
                let sorted = |object: &Object| {
                    let mut keys: Vec<(Arc<str>, V)> =
                        object.fields().iter().map(|(key, value)| (key.clone(), value.clone())).collect();
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
