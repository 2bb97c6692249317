use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Change, FieldType, FieldValue, Place, Read};
use crate::HostError;

/// A field that holds values in an order. Indexes count from 0. Concurrent inserts at one index are all kept,
/// in the same order everywhere. Removed values take no room, so that a list may be a queue: `push` and `remove(0)`.
#[derive(Debug, Clone)]
pub struct List {
    place: Place,
}

/// A field that holds text, which several nodes may edit concurrently. Positions and lengths count Unicode code points, as
/// `str::chars` does. Deleted characters take no room.
#[derive(Debug, Clone)]
pub struct Text {
    place: Place,
}

/// A field that holds a JSON document, which several nodes may edit concurrently. Pointers are those of RFC 6901, such as
/// `/limits/0/high`; the empty one is the whole document.
#[derive(Debug, Clone)]
pub struct Document {
    place: Place,
}

impl List {
    pub(super) fn at(place: Place) -> Self {
        Self { place }
    }

    /// Adds a value at the end.
    pub fn push<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), HostError> {
        let json = self.place.json(FieldType::List, value)?;
        self.place.change(Change::ListPush(json.as_bytes()))
    }

    /// Puts a value before the one at `index`. `Invalid` if the list is shorter than that.
    pub fn insert<T: Serialize + ?Sized>(&self, index: u32, value: &T) -> Result<(), HostError> {
        let json = self.place.json(FieldType::List, value)?;
        self.place.change(Change::ListInsert { index, value: json.as_bytes() })
    }

    /// Replaces the value at `index`. `Invalid` if there is none.
    pub fn set<T: Serialize + ?Sized>(&self, index: u32, value: &T) -> Result<(), HostError> {
        let json = self.place.json(FieldType::List, value)?;
        self.place.change(Change::ListSet { index, value: json.as_bytes() })
    }

    /// Removes the value at `index`. `Invalid` if there is none.
    pub fn remove(&self, index: u32) -> Result<(), HostError> {
        self.place.change(Change::ListRemove(index))
    }

    /// Its values. `Invalid` if one is JSON of another shape.
    pub fn values<T: DeserializeOwned>(&self) -> Result<Vec<T>, HostError> {
        self.place.values(FieldType::List)
    }

    /// The number of its values.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> Result<usize, HostError> {
        match self.place.read(Read::Value(FieldType::List))? {
            FieldValue::Values(values) => Ok(values.len()),
            _ => Err(self.place.mistaken(FieldType::List)),
        }
    }
}

impl Text {
    pub(super) fn at(place: Place) -> Self {
        Self { place }
    }

    /// Inserts text at a position. `Invalid` if the text is shorter than that.
    pub fn insert(&self, at: u32, text: &str) -> Result<(), HostError> {
        self.splice(at, 0, text)
    }

    /// Deletes `count` code points from a position on. `Invalid` if there are fewer.
    pub fn delete(&self, at: u32, count: u32) -> Result<(), HostError> {
        self.splice(at, count, "")
    }

    /// Deletes `count` code points from a position on and inserts text there. `Invalid` if there are fewer.
    pub fn splice(&self, at: u32, count: u32, text: &str) -> Result<(), HostError> {
        self.place.change(Change::TextSplice { at, delete: count, insert: text })
    }

    /// The text; empty if nothing was ever inserted.
    pub fn value(&self) -> Result<String, HostError> {
        match self.place.read(Read::Value(FieldType::Text))? {
            FieldValue::Text(text) => Ok(text),
            _ => Err(self.place.mistaken(FieldType::Text)),
        }
    }
}

impl Document {
    pub(super) fn at(place: Place) -> Self {
        Self { place }
    }

    /// Sets a part of it. `Invalid` if the pointer is malformed, its parent does not exist, or the value has no JSON form.
    ///
    /// ```
    /// # use edgefaas::prelude::*;
    /// # fn limit(context: Context) -> Result<(), Error> {
    /// let settings = context.object("house").json("settings");
    /// settings.set("", &serde_json::json!({ "heating": { "target_c": 21 } }))?;
    /// settings.set("/heating/target_c", &22.5)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set<T: Serialize + ?Sized>(&self, pointer: &str, value: &T) -> Result<(), HostError> {
        let json = self.place.json(FieldType::Json, value)?;
        self.place.change(Change::JsonSet { pointer, value: &json })
    }

    /// Removes a part of it. `Invalid` if the pointer is malformed.
    pub fn remove(&self, pointer: &str) -> Result<(), HostError> {
        self.place.change(Change::JsonRemove(pointer))
    }

    /// The whole document, as a struct or a `serde_json::Value`. `Invalid` if it has another shape.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T, HostError> {
        self.place.document(FieldType::Json)
    }
}
