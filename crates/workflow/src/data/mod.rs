//! JSON values of running workflows. Strings, lists and objects are shared: a clone copies nothing, and a list with
//! an appended item shares all other items with the original list. Each value stores its size and its depth.

mod fields;
mod json;
mod list;
mod memory;
mod number;

use std::sync::Arc;

pub use fields::Fields;
pub(crate) use list::CHUNK;
pub use list::List;
use memory::LIST_ITEM_BYTES;
pub(crate) use memory::{ARRAY_BYTES, ITEM_BYTES, OBJECT_BYTES, STRING_BYTES};
pub(crate) use number::Limited;
pub use number::Num;

/// The type of a JSON value, with its article.
pub(crate) fn kind_of(value: &serde_json::Value) -> &'static str {
    use serde_json::Value;
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The maximum nesting depth of a value that is converted from [`serde_json::Value`].
const MAX_DEPTH: u32 = 256;

/// A JSON value, cheap to clone.
#[derive(Clone, Debug, Default)]
pub enum Data {
    /// `null`
    #[default]
    Null,
    /// `true` and `false`
    Bool(bool),
    /// A number; see [`Data::exact`].
    Num(Num),
    /// A string.
    Str(Arc<str>),
    /// An array.
    Arr(Arc<Array>),
    /// An object.
    Obj(Arc<Object>),
}

/// The items of an array, with their size.
#[derive(Clone, Debug)]
pub struct Array {
    items: List,
    extent: Extent,
}

/// The fields of an object, with their size.
#[derive(Clone, Debug)]
pub struct Object {
    fields: Fields,
    extent: Extent,
}

impl Array {
    /// The items.
    pub fn items(&self) -> &List {
        &self.items
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// True if there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl Object {
    /// The fields.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }
}

/// A value nests too deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooDeep;

/// The size of a value.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    /// Memory in bytes; parts that occur several times count each time.
    bytes: u64,
    /// Nesting depth; 0 for a value that is not nested.
    depth: u32,
    /// True if the value contains numbers that JSON cannot represent.
    inexact: bool,
}

impl Extent {
    /// The extent of a value that has no parts yet.
    fn of(own_bytes: u64) -> Self {
        Self { bytes: own_bytes, ..Self::default() }
    }

    /// Adds a part, whose slot takes `place_bytes`.
    fn add(&mut self, place_bytes: u64, value: &Data) {
        let inner = value.extent();
        self.bytes = self.bytes.saturating_add(place_bytes).saturating_add(inner.bytes);
        self.depth = self.depth.max(inner.depth + 1);
        self.inexact |= inner.inexact;
    }

    /// Adds the items of another array.
    fn join(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes.saturating_sub(ARRAY_BYTES));
        self.depth = self.depth.max(other.depth);
        self.inexact |= other.inexact;
    }
}

impl Data {
    /// Creates an array.
    pub fn list(items: Vec<Data>) -> Self {
        let mut extent = Extent::of(ARRAY_BYTES);
        items.iter().for_each(|item| extent.add(LIST_ITEM_BYTES, item));
        Self::Arr(Arc::new(Array { items: items.into_iter().collect(), extent }))
    }

    /// Creates an object.
    pub fn object_of(mut fields: Fields) -> Self {
        fields.shrink();
        let mut extent = Extent::of(OBJECT_BYTES);
        let field_bytes = fields.field_bytes();
        fields.iter().for_each(|(key, value)| extent.add(field_bytes + key.len() as u64, value));
        Self::Obj(Arc::new(Object { fields, extent }))
    }

    /// `left` with the items of `right` appended. The cost depends on `right` only.
    pub(crate) fn joined(mut left: Arc<Array>, right: &Array) -> Self {
        let array = Arc::make_mut(&mut left);
        right.items.iter().for_each(|item| array.items.push(item.clone()));
        array.extent.join(right.extent);
        Self::Arr(left)
    }

    /// Appends an item to an array, without copying the other items. Null becomes an array with one item.
    pub(crate) fn push(&mut self, item: Data) {
        match self {
            Self::Arr(array) => {
                let array = Arc::make_mut(array);
                array.extent.add(LIST_ITEM_BYTES, &item);
                array.items.push(item);
            }
            other => *other = Self::list(vec![item]),
        }
    }

    /// Creates an object with a fixed number of fields.
    pub(crate) fn of<const N: usize>(fields: [(&str, Data); N]) -> Self {
        Self::object_of(fields.into_iter().map(|(key, value)| (Arc::from(key), value)).collect())
    }

    /// The items of an array.
    pub fn items(&self) -> Option<&List> {
        match self {
            Self::Arr(array) => Some(&array.items),
            _ => None,
        }
    }

    /// The fields of an object.
    pub fn fields(&self) -> Option<&Fields> {
        match self {
            Self::Obj(object) => Some(&object.fields),
            _ => None,
        }
    }

    /// The value of a field of an object.
    pub fn get(&self, key: &str) -> Option<&Data> {
        self.fields()?.get(key)
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Estimated memory of the value in bytes, without its own slot in its container. The estimate is rather too high
    /// than too low. A part that occurs several times counts each time.
    pub fn bytes(&self) -> u64 {
        self.extent().bytes
    }

    /// Nesting depth; 0 for a value that is neither an array nor an object.
    pub fn depth(&self) -> u32 {
        self.extent().depth
    }

    /// True if both values share the same memory, or are of a type that needs no shared memory.
    pub(crate) fn is_shared_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Str(left), Self::Str(right)) => Arc::ptr_eq(left, right),
            (Self::Arr(left), Self::Arr(right)) => Arc::ptr_eq(left, right),
            (Self::Obj(left), Self::Obj(right)) => Arc::ptr_eq(left, right),
            (Self::Null | Self::Bool(_) | Self::Num(_), _) => true,
            _ => false,
        }
    }

    /// True if both values have the same JSON text: 1 differs from 1.0, and the order of fields counts.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(left), Self::Bool(right)) => left == right,
            (Self::Num(Num::Int(left)), Self::Num(Num::Int(right))) => left == right,
            (Self::Num(Num::Float(left)), Self::Num(Num::Float(right))) => {
                left.to_bits() == right.to_bits()
            }
            (Self::Str(left), Self::Str(right)) => left == right,
            (Self::Arr(left), Self::Arr(right)) => {
                let mut pairs = left.items.iter().zip(right.items.iter());
                left.len() == right.len() && pairs.all(|(left, right)| left.is_same(right))
            }
            (Self::Obj(left), Self::Obj(right)) => {
                let mut pairs = left.fields.iter().zip(right.fields.iter());
                left.fields.len() == right.fields.len()
                    && pairs.all(|(left, right)| left.0 == right.0 && left.1.is_same(right.1))
            }
            _ => false,
        }
    }

    /// Returns the value with only numbers that JSON can represent: NaN and infinite numbers become null, whole
    /// numbers beyond 64 bits lose digits.
    pub(crate) fn exact(self) -> Self {
        if !self.extent().inexact {
            return self;
        }
        match self {
            Self::Num(number) => number.exact().map_or(Self::Null, Self::Num),
            Self::Arr(array) => Self::list(array.items.iter().map(|item| item.clone().exact()).collect()),
            Self::Obj(object) => Self::object_of(
                object.fields.iter().map(|(key, value)| (key.clone(), value.clone().exact())).collect(),
            ),
            other => other,
        }
    }

    fn extent(&self) -> Extent {
        match self {
            Self::Str(text) => Extent::of(STRING_BYTES + text.len() as u64),
            Self::Arr(array) => array.extent,
            Self::Obj(object) => object.extent,
            Self::Num(number) => Extent { inexact: !number.is_exact(), ..Extent::default() },
            _ => Extent::default(),
        }
    }
}

impl From<&str> for Data {
    fn from(text: &str) -> Self {
        Self::Str(text.into())
    }
}

impl From<u32> for Data {
    fn from(number: u32) -> Self {
        Self::Num(Num::Int(number.into()))
    }
}

#[cfg(test)]
mod tests;
