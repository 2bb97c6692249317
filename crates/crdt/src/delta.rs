//! Changes of fields that travel between replicas.

use crate::causal::{Flag, MvRegister, Set};
use crate::{Document, Field, FieldType};

/// The part of a field that an operation changed; deltas merge with one another while they wait to be
/// sent, so that backpressure never makes a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDelta(pub(crate) Field);

impl FieldDelta {
    /// The type of its field.
    pub fn field_type(&self) -> FieldType {
        self.0.field_type()
    }

    /// True if it changes nothing, because the operation had no effect.
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
            | Field::DwFlag(Flag { dotted, .. })
            | Field::List(Document { dotted, .. })
            | Field::Text(Document { dotted, .. })
            | Field::Json(Document { dotted, .. }) => dotted.is_empty(),
        }
    }

    /// Approximate size in memory, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.0.size_bytes()
    }
}

/// A whole state is also a delta, for a replica without state.
impl From<Field> for FieldDelta {
    fn from(field: Field) -> Self {
        Self(field)
    }
}

/// The state of an empty replica after a delta.
impl From<FieldDelta> for Field {
    fn from(delta: FieldDelta) -> Self {
        delta.0
    }
}
