use serde::de::DeserializeOwned;

use super::{
    BoundedCounter, Change, Counter, Document, FieldType, FieldValue, Flag, GCounter, GSet, List,
    MvRegister, Place, Read, Register, Set, Text, accessors,
};
use crate::HostError;

/// A field that holds fields of its own by key: it has the accessors of an object, and a map may hold maps. The first write
/// creates an entry; a change of an entry wins over a concurrent remove.
///
/// ```
/// # use edgefaas::prelude::*;
/// # fn order(context: Context) -> Result<i64, Error> {
/// let orders = context.object("kitchen").map("orders");
/// orders.map("table-4").counter("soup").add(2)?;
/// orders.map("table-4").register("waiter").set("Ada")?;
/// orders.remove("table-3")?;
/// let soups = orders.map("table-4").counter("soup").value()?;
/// # Ok(soups)
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Map {
    place: Place,
}

accessors!(Map, key);

impl Map {
    pub(super) fn at(place: Place) -> Self {
        Self { place }
    }

    /// The keys of its entries, in order.
    pub fn keys(&self) -> Result<Vec<String>, HostError> {
        Ok(self.types()?.into_iter().map(|(key, _)| key).collect())
    }

    /// The keys of its entries, in order, and their types.
    pub fn types(&self) -> Result<Vec<(String, FieldType)>, HostError> {
        match self.place.read(Read::MapKeys)? {
            FieldValue::Keys(keys) => Ok(keys),
            _ => Err(self.place.mistaken(FieldType::Map)),
        }
    }

    /// Whether it has an entry of that key.
    pub fn contains(&self, key: &str) -> Result<bool, HostError> {
        Ok(self.types()?.iter().any(|(known, _)| known == key))
    }

    /// Removes an entry with its content; no effect if it does not exist.
    pub fn remove(&self, key: &str) -> Result<(), HostError> {
        self.place.change(Change::MapRemove(key))
    }

    /// Removes all entries.
    pub fn clear(&self) -> Result<(), HostError> {
        self.place.change(Change::MapClear)
    }

    /// All entries, read as one JSON object, such as a struct or a `serde_json::Value`. `Invalid` if it has another
    /// shape.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T, HostError> {
        self.place.document(FieldType::Map)
    }

    fn place(&self, key: String) -> Place {
        self.place.entry(key)
    }
}
