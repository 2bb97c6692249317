//! Stateful objects and the types that their fields may have.
//!
//! | accessor | type | value |
//! |---|---|---|
//! | `counter` | [`Counter`] | counts up and down; additions on several nodes add up |
//! | `g_counter` | [`GCounter`] | only counts up |
//! | `bounded_counter` | [`BoundedCounter`] | counts up and down, but never below 0, also with concurrent changes |
//! | `register` | [`Register`] | a value; the last write wins |
//! | `mv_register` | [`MvRegister`] | a value; concurrent writes are all kept |
//! | `g_set` | [`GSet`] | elements that are never removed |
//! | `set` | [`Set`] | elements; an add wins over a concurrent remove |
//! | `map` | [`Map`] | fields of all these types by key, maps among them |
//! | `ew_flag` | [`Flag`] | on or off; an enable wins over a concurrent disable |
//! | `dw_flag` | [`Flag`] | on or off; a disable wins over a concurrent enable |
//! | `list` | [`List`] | values in an order |
//! | `text` | [`Text`] | text for concurrent edits |
//! | `json` | [`Document`] | a JSON document for concurrent edits |
//!
//! A field has the type of its first use, until [`Object::delete_field`] or [`Object::delete`] deletes it. Values are JSON, so that functions in all languages share them.
//!
//! Every operation may fail with `NotPermitted` if no `objects` permission covers the object, and with `Invalid` if the
//! field has another type, or a name or value is over the node's limits; nothing is changed then.

mod canonical;
mod change;
mod counters;
mod documents;
mod flag;
mod map;
mod place;
mod registers;
mod request;
mod sets;

pub use change::Origin;
pub use counters::{BoundedCounter, Counter, GCounter};
pub use documents::{Document, List, Text};
pub use flag::Flag;
pub use map::Map;
use place::Place;
pub use registers::{MvRegister, Register};
pub use request::FieldType;
pub(crate) use request::{Change, FieldValue, Read};
pub use sets::{GSet, Set};

use crate::HostError;
use crate::host::Host;

/// A stateful object: fields that outlive the invocation and that all functions of the app share.
///
/// Reads see the state of this node and the writes of the invocation itself. Writes take effect together
/// when the invocation succeeds, and not at all if it fails. `NotPermitted` if no `objects` permission covers
/// the name, `Invalid` if a field has another type.
///
/// ```
/// # use edgefaas::prelude::*;
/// # fn enter(context: Context) -> Result<(), Error> {
/// let room = context.object("room-7");
/// room.counter("people").add(1)?;
/// room.set("badges").add("K-1204")?;
/// room.map("doors").map("north").register("last").set("09:15")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Object {
    pub(crate) host: Host,
    pub(crate) name: String,
}

/// The accessors of something that has fields.
macro_rules! accessors {
    ($owner:ident, $name:ident) => {
        impl $owner {
            /// A field that counts up and down.
            pub fn counter(&self, $name: impl Into<String>) -> Counter {
                Counter::at(self.place($name.into()))
            }

            /// A field that only counts up.
            pub fn g_counter(&self, $name: impl Into<String>) -> GCounter {
                GCounter::at(self.place($name.into()))
            }

            /// A field that counts up and down, but never below its floor.
            pub fn bounded_counter(&self, $name: impl Into<String>) -> BoundedCounter {
                BoundedCounter::at(self.place($name.into()))
            }

            /// A field that holds a value; the last write wins.
            pub fn register(&self, $name: impl Into<String>) -> Register {
                Register::at(self.place($name.into()))
            }

            /// A field that keeps the values of concurrent writes.
            pub fn mv_register(&self, $name: impl Into<String>) -> MvRegister {
                MvRegister::at(self.place($name.into()))
            }

            /// A grow-only set: elements are never removed.
            pub fn g_set(&self, $name: impl Into<String>) -> GSet {
                GSet::at(self.place($name.into()))
            }

            /// A field that holds elements, which come and go.
            pub fn set(&self, $name: impl Into<String>) -> Set {
                Set::at(self.place($name.into()))
            }

            /// A field that holds fields of its own, by key.
            pub fn map(&self, $name: impl Into<String>) -> Map {
                Map::at(self.place($name.into()))
            }

            /// A flag whose enabling wins over a disabling that did not know of it.
            pub fn ew_flag(&self, $name: impl Into<String>) -> Flag {
                Flag::at(self.place($name.into()), true)
            }

            /// A flag whose disabling wins over an enabling that did not know of it.
            pub fn dw_flag(&self, $name: impl Into<String>) -> Flag {
                Flag::at(self.place($name.into()), false)
            }

            /// A field that holds values in an order.
            pub fn list(&self, $name: impl Into<String>) -> List {
                List::at(self.place($name.into()))
            }

            /// A field that holds text.
            pub fn text(&self, $name: impl Into<String>) -> Text {
                Text::at(self.place($name.into()))
            }

            /// A field that holds a JSON document.
            pub fn json(&self, $name: impl Into<String>) -> Document {
                Document::at(self.place($name.into()))
            }
        }
    };
}
use accessors;

accessors!(Object, field);

impl Object {
    /// The object's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Deletes a field with all that this node has seen of it; the next write makes a new field, which may have another type.
    /// In a cluster its type stays reserved until all members know of the deletion. A field that does not exist is no error.
    ///
    /// ```
    /// # use edgefaas::TestNode;
    /// let room = TestNode::new().context().object("room-7");
    /// room.counter("people").add(1)?;
    /// room.delete_field("people")?;
    /// assert_eq!(room.register("people").get::<i64>()?, None);
    /// # Ok::<(), edgefaas::HostError>(())
    /// ```
    pub fn delete_field(&self, field: impl AsRef<str>) -> Result<(), HostError> {
        self.host.object_delete(&self.name, Some(field.as_ref()))
    }

    /// Deletes all fields of the object, also those that this invocation has written. `Overloaded` if the invocation changes more
    /// fields than it may.
    pub fn delete(&self) -> Result<(), HostError> {
        self.host.object_delete(&self.name, None)
    }

    fn place(&self, field: String) -> Place {
        Place { host: self.host.clone(), object: self.name.clone(), field, path: Vec::new() }
    }
}
