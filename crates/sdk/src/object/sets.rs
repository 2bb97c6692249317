use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Change, FieldType, Place, Read};
use crate::HostError;

/// A grow-only set: elements are never removed. Elements are JSON; two are the same if they are equal as JSON
/// (`1.0` and `1`, members in any order).
#[derive(Debug, Clone)]
pub struct GSet {
    place: Place,
}

/// A field that holds elements that come and go; an add that a remove did not know of wins. Elements are JSON; two are the
/// same if they are equal as JSON (`1.0` and `1`, members in any order).
///
/// ```
/// # use edgefaas::prelude::*;
/// # fn present(context: Context) -> Result<Vec<String>, Error> {
/// let badges = context.object("room-7").set("badges");
/// badges.add("K-1204")?;
/// badges.remove("K-0007")?;
/// let present: Vec<String> = badges.values()?;
/// # Ok(present)
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Set {
    place: Place,
}

impl GSet {
    pub(super) fn at(place: Place) -> Self {
        Self { place }
    }

    /// Adds an element. `Invalid` if it can't be made JSON or is over the node's limit.
    pub fn add<T: Serialize + ?Sized>(&self, element: &T) -> Result<(), HostError> {
        let json = self.place.element(FieldType::GSet, element)?;
        self.place.change(Change::GSetAdd(json.as_bytes()))
    }

    /// Whether an element is in it.
    pub fn contains<T: Serialize + ?Sized>(&self, element: &T) -> Result<bool, HostError> {
        contains(&self.place, FieldType::GSet, element)
    }

    /// Its elements, in no order that means anything. `Invalid` if one is JSON of another shape.
    pub fn values<T: DeserializeOwned>(&self) -> Result<Vec<T>, HostError> {
        self.place.values(FieldType::GSet)
    }
}

impl Set {
    pub(super) fn at(place: Place) -> Self {
        Self { place }
    }

    /// Adds an element. `Invalid` if it can't be made JSON or is over the node's limit.
    pub fn add<T: Serialize + ?Sized>(&self, element: &T) -> Result<(), HostError> {
        let json = self.place.element(FieldType::Set, element)?;
        self.place.change(Change::SetAdd(json.as_bytes()))
    }

    /// Removes an element; nothing happens if it is not there.
    pub fn remove<T: Serialize + ?Sized>(&self, element: &T) -> Result<(), HostError> {
        let json = self.place.element(FieldType::Set, element)?;
        self.place.change(Change::SetRemove(json.as_bytes()))
    }

    /// Whether an element is in it.
    pub fn contains<T: Serialize + ?Sized>(&self, element: &T) -> Result<bool, HostError> {
        contains(&self.place, FieldType::Set, element)
    }

    /// Removes all elements.
    pub fn clear(&self) -> Result<(), HostError> {
        self.place.change(Change::SetClear)
    }

    /// Its elements, in no order that means anything. `Invalid` if one is JSON of another shape.
    pub fn values<T: DeserializeOwned>(&self) -> Result<Vec<T>, HostError> {
        self.place.values(FieldType::Set)
    }
}

fn contains<T: Serialize + ?Sized>(
    place: &Place,
    field_type: FieldType,
    element: &T,
) -> Result<bool, HostError> {
    let json = place.element(field_type, element)?;
    place.flag(Read::Contains { field_type, element: json.as_bytes() })
}
