//! What travels between replicas: the part of a field that changed.

use crate::causal::{Flag, MvRegister, Set};
use crate::{Field, FieldType};

/// The part of a field that an operation changed; deltas merge with one another while they wait to be
/// sent, so that backpressure never makes a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDelta(pub(crate) Field);

/// What a merge did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merged {
    /// The field had seen all of it already.
    Unchanged,
    /// The field is different now: keep it and tell others.
    Changed,
    /// Replicas that did not know of each other made the field with different types. Every replica
    /// keeps `kept` and loses the data of `lost`.
    TypeConflict {
        /// The type that the field has now.
        kept: FieldType,
        /// The type whose data is gone.
        lost: FieldType,
    },
}

impl FieldDelta {
    /// Which type of field it belongs to.
    pub fn field_type(&self) -> FieldType {
        self.0.field_type()
    }

    /// Whether it changes nothing: the operation found nothing to do.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            Field::Counter(counter) => counter.tally.is_empty(),
            Field::Register(register) => register.get().is_none(),
            Field::GCounter(counter) => counter.tally.is_empty(),
            Field::BoundedCounter(counter) => counter.is_empty(),
            Field::GSet(set) => set.is_empty(),
            Field::Map(map) => map.dotted.is_empty() && map.bounded.is_empty(),
            Field::MvRegister(MvRegister { dotted, .. })
            | Field::Set(Set { dotted, .. })
            | Field::EwFlag(Flag { dotted, .. })
            | Field::DwFlag(Flag { dotted, .. }) => dotted.is_empty(),
            Field::List(document) | Field::Text(document) | Field::Json(document) => document.is_empty(),
        }
    }

    /// About how many bytes it takes in memory.
    pub fn size_bytes(&self) -> usize {
        self.0.size_bytes()
    }

    /// Takes another delta of the same field into this one.
    pub fn merge(&mut self, other: Self) -> Merged {
        match (&mut self.0, other.0) {
            (Field::List(ours), Field::List(theirs))
            | (Field::Text(ours), Field::Text(theirs))
            | (Field::Json(ours), Field::Json(theirs)) => {
                if ours.gather(theirs) {
                    Merged::Changed
                } else {
                    Merged::Unchanged
                }
            }
            (ours, theirs) => ours.merge(Self(theirs)),
        }
    }
}

/// A whole state is a delta too: what a replica that knows nothing is sent.
impl From<Field> for FieldDelta {
    fn from(field: Field) -> Self {
        Self(field)
    }
}

/// What a replica that knew nothing makes of a delta.
impl From<FieldDelta> for Field {
    fn from(delta: FieldDelta) -> Self {
        let mut field = delta.0;
        if let Self::List(document) | Self::Text(document) | Self::Json(document) = &mut field {
            document.settle();
        }
        field
    }
}
