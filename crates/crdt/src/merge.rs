//! Merges deltas into fields, and deltas with each other.

use std::collections::BTreeSet;

use crate::delta::FieldDelta;
use crate::{Field, FieldType};

/// The result of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merged {
    /// The field already contained the whole delta.
    Unchanged,
    /// The field has changed: store it and send it to others.
    Changed,
    /// Replicas created the field independently with different types. Every replica keeps the data of
    /// type `kept` and discards the data of type `lost`.
    TypeConflict {
        /// The type that the field has after the merge.
        kept: FieldType,
        /// The type whose data is discarded.
        lost: FieldType,
    },
}

impl FieldDelta {
    /// Merges another delta of the same field into this one.
    pub fn merge(&mut self, other: Self) -> Merged {
        self.0.merge(other)
    }
}

impl Field {
    /// Merges a delta of any replica.
    ///
    /// If the types differ, every replica keeps the type that comes first in [`FieldType`]. If the merge
    /// failed instead, the replicas would stay different permanently.
    pub fn merge(&mut self, delta: FieldDelta) -> Merged {
        let (ours, theirs) = (self.field_type(), delta.0.field_type());
        let changed = match (&mut *self, delta.0) {
            (Self::Counter(ours), Self::Counter(theirs)) => ours.merge(&theirs),
            (Self::Register(ours), Self::Register(theirs)) => ours.merge(theirs),
            (Self::GCounter(ours), Self::GCounter(theirs)) => ours.merge(&theirs),
            (Self::BoundedCounter(ours), Self::BoundedCounter(theirs)) => ours.merge(&theirs),
            (Self::GSet(ours), Self::GSet(theirs)) => ours.merge(theirs),
            (_, other) if ours == theirs => self.merge_dotted(other),
            (ours_field, other) => {
                if theirs < ours {
                    *ours_field = FieldDelta(other).into();
                }
                return Merged::TypeConflict { kept: ours.min(theirs), lost: ours.max(theirs) };
            }
        };
        if changed { Merged::Changed } else { Merged::Unchanged }
    }

    fn merge_dotted(&mut self, mut other: Self) -> bool {
        let mut changed = false;
        let mut touched = BTreeSet::new();
        if let (Self::Map(ours), Self::Map(theirs)) = (&mut *self, &mut other) {
            for (path, counter) in std::mem::take(&mut theirs.bounded) {
                if ours.bounded.entry(path.clone()).or_default().merge(&counter) {
                    touched.insert(path);
                    changed = true;
                }
            }
        }
        let theirs = other.dotted_mut().map(std::mem::take).unwrap_or_default();
        let Some(ours) = self.dotted_mut() else { return changed };
        let (difference, news) = ours.merge(theirs);
        self.show(&difference);
        if let Self::Map(map) = self {
            touched.iter().for_each(|path| map.rebuild(path));
        }
        changed | news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hlc, Operation, ReplicaId};

    const A: ReplicaId = ReplicaId::new(1, 0);
    const NOW: Hlc = Hlc { wall_ms: 1, logical: 0 };

    #[test]
    fn merges_tell_whether_there_was_news() {
        let mut there = Field::empty(FieldType::Counter);
        let delta = there.apply_local("x", Operation::CounterAdd(1), A, NOW).unwrap();
        let mut here = Field::empty(FieldType::Counter);
        assert_eq!(here.merge(delta.clone()), Merged::Changed);
        assert_eq!(here.merge(delta), Merged::Unchanged);
    }

    #[test]
    fn fields_made_with_different_types_agree_on_the_first() {
        let mut counter = Field::empty(FieldType::Counter);
        let mut register = Field::empty(FieldType::Register);
        let added = counter.apply_local("x", Operation::CounterAdd(1), A, NOW).unwrap();
        let set = register.apply_local("x", Operation::RegisterSet("v".into()), A, NOW).unwrap();
        let conflict = Merged::TypeConflict { kept: FieldType::Counter, lost: FieldType::Register };
        assert_eq!(counter.merge(set), conflict);
        assert_eq!(register.merge(added), conflict);
        assert_eq!(counter, register);
        assert_eq!(counter.counter("x").unwrap().value(), 1);
    }
}
