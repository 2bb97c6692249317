use super::{Change, FieldType, FieldValue, Place, Read};
use crate::HostError;

/// A field that counts up and down; additions on several nodes add up.
#[derive(Debug, Clone)]
pub struct Counter {
    place: Place,
}

/// A field that only counts up; additions on several nodes add up.
#[derive(Debug, Clone)]
pub struct GCounter {
    place: Place,
}

/// A field that counts up and down, but never below 0, also with concurrent changes of several nodes: each node has a share
/// of the value and takes only from it. Nodes pass shares on to one another.
///
/// ```
/// # use edgefaas::prelude::*;
/// # fn sell(context: Context) -> Result<bool, Error> {
/// let tickets = context.object("concert").bounded_counter("tickets");
/// if tickets.share()? == 0 {
///     return Ok(false);
/// }
/// tickets.subtract(1)?;
/// # Ok(true)
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct BoundedCounter {
    place: Place,
}

impl Counter {
    pub(super) fn at(place: Place) -> Self {
        Self { place }
    }

    /// Adds to it; negative to subtract. `Invalid` if the value would leave the range of `i64`.
    pub fn add(&self, amount: i64) -> Result<(), HostError> {
        let Place { host, object, field, path } = &self.place;
        if path.is_empty() {
            return host.counter_add(object, field, amount);
        }
        self.place.change(Change::CounterAdd(amount))
    }

    /// Subtracts from it. `Invalid` if the value would leave the range of `i64`.
    pub fn subtract(&self, amount: i64) -> Result<(), HostError> {
        self.add(negated(&self.place, FieldType::Counter, amount)?)
    }

    /// Its value; 0 if it was never added to.
    pub fn value(&self) -> Result<i64, HostError> {
        let Place { host, object, field, path } = &self.place;
        if path.is_empty() {
            return host.counter_value(object, field);
        }
        self.place.integer(FieldType::Counter)
    }
}

impl GCounter {
    pub(super) fn at(place: Place) -> Self {
        Self { place }
    }

    /// Adds to it. `Invalid` if the value would leave the range of `u64`.
    pub fn add(&self, amount: u64) -> Result<(), HostError> {
        self.place.change(Change::GCounterAdd(amount))
    }

    /// Its value; 0 if it was never added to.
    pub fn value(&self) -> Result<u64, HostError> {
        match self.place.read(Read::Value(FieldType::GCounter))? {
            FieldValue::Unsigned(value) => Ok(value),
            _ => Err(self.place.mistaken(FieldType::GCounter)),
        }
    }
}

impl BoundedCounter {
    pub(super) fn at(place: Place) -> Self {
        Self { place }
    }

    /// Adds to it, to this node's share. `Invalid` if the value would leave the range of `i64`.
    pub fn add(&self, amount: i64) -> Result<(), HostError> {
        self.place.change(Change::BoundedCounterAdd(amount))
    }

    /// Takes from it; refused if this node's share is too small.
    pub fn subtract(&self, amount: i64) -> Result<(), HostError> {
        self.add(negated(&self.place, FieldType::BoundedCounter, amount)?)
    }

    /// Its value; 0 if it was never added to.
    pub fn value(&self) -> Result<i64, HostError> {
        self.place.integer(FieldType::BoundedCounter)
    }

    /// This node's share: the amount that it may take.
    pub fn share(&self) -> Result<u64, HostError> {
        match self.place.read(Read::Share)? {
            FieldValue::Unsigned(share) => Ok(share),
            _ => Err(self.place.mistaken(FieldType::BoundedCounter)),
        }
    }
}

fn negated(place: &Place, field_type: FieldType, amount: i64) -> Result<i64, HostError> {
    amount
        .checked_neg()
        .ok_or_else(|| place.invalid(field_type, format_args!("{amount} is too much to subtract at once")))
}
