//! Deletion of fields.
//!
//! A deletion removes what its replica has seen of a field, by the means of the field's type: counters mark the amounts that do
//! not count any more, sets, maps, flags, lists, texts and documents remove the values that they have seen, a register writes
//! nothing. A change that the deletion has not seen stays and makes the field exist again, except that the later one of a
//! deletion and a write of a register wins, and that a deletion of a g-set or a bounded counter also removes concurrent
//! changes.
//!
//! What is left of a deleted field is a tombstone: it tells other replicas what was removed. Once all replicas have it, each of
//! them may drop it. The replica then must not use numbers again that a tombstone elsewhere covers: see [`Origin`].

use crate::causal::GSet;
use crate::dotted::Dotted;
use crate::{ApplyError, BoundedCounter, Field, FieldDelta, FieldType, Hlc, Merged, Operation, ReplicaId};

/// The state of a field at one replica, or of a field that was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldState {
    field: Field,
    /// Time of the latest deletion; 0 without one.
    deleted_at_ms: u64,
}

/// A change of a [`FieldState`]. Deltas merge with one another while they wait to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDelta {
    pub(crate) delta: FieldDelta,
    pub(crate) deleted_at_ms: u64,
}

/// The replica of a local change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The replica.
    pub replica: ReplicaId,
    /// The replica may have used numbers up to this one in tombstones that it has dropped; see [`FieldState::highest_of`].
    pub dropped_numbers: u64,
    /// The same for the generations of g-sets and bounded counters; see [`FieldState::generation`].
    pub dropped_generations: u64,
}

impl From<ReplicaId> for Origin {
    /// A replica that has dropped no tombstone.
    fn from(replica: ReplicaId) -> Self {
        Self { replica, dropped_numbers: 0, dropped_generations: 0 }
    }
}

impl FieldState {
    /// A field without writes.
    pub fn empty(field_type: FieldType) -> Self {
        Field::empty(field_type).into()
    }

    /// The field; `None` if it is deleted.
    pub fn live(&self) -> Option<&Field> {
        (!self.is_deleted()).then_some(&self.field)
    }

    /// The field, or what a deletion has left of it.
    pub fn field(&self) -> &Field {
        &self.field
    }

    /// True if a deletion has removed all of the field: it is a tombstone.
    pub fn is_deleted(&self) -> bool {
        self.deleted_at_ms > 0 && self.field.is_vacant()
    }

    /// Wall time of the latest deletion, in milliseconds since the Unix epoch, by the hybrid clock of the replica that deleted;
    /// 0 without one.
    pub fn deleted_at_ms(&self) -> u64 {
        self.deleted_at_ms
    }

    /// Applies an operation; see [`Field::apply_local`].
    ///
    /// # Errors
    /// Those of [`Field::apply_local`], and [`ApplyError::DeletedAs`] for an operation of another type than that of the
    /// tombstone.
    pub fn apply_local(
        &mut self,
        name: &str,
        operation: Operation,
        origin: Origin,
        now: Hlc,
    ) -> Result<StateDelta, ApplyError> {
        let (wanted, was) = (operation.field_type(), self.field.field_type());
        if wanted != was && self.is_deleted() {
            return Err(ApplyError::DeletedAs { field: name.to_owned(), was, wanted });
        }
        let Some(mut reserved) = self.field.reserve(origin) else {
            return Ok(self.field.apply_local(name, operation, origin.replica, now)?.into());
        };
        // A refused operation leaves the field as it was.
        let mut field = self.field.clone();
        field.merge(reserved.clone());
        let delta = field.apply_local(name, operation, origin.replica, now)?;
        self.field = field;
        reserved.merge(delta);
        Ok(reserved.into())
    }

    /// Deletes the field as far as this replica has seen it. The delta is empty if it is deleted already.
    pub fn delete(&mut self, replica: ReplicaId, now: Hlc) -> StateDelta {
        if self.is_deleted() {
            return FieldDelta(Field::empty(self.field.field_type())).into();
        }
        let deleted_at_ms = now.wall_ms.max(1);
        let delta = StateDelta { delta: self.field.vacate(replica, now), deleted_at_ms };
        self.merge(delta.clone());
        delta
    }

    /// Marks the deletion as made at `now`, so that replicas that lack it get it again; returns the delta.
    pub fn delete_again(&mut self, now: Hlc) -> StateDelta {
        self.deleted_at_ms = self.deleted_at_ms.max(now.wall_ms);
        StateDelta { delta: self.field.clone().into(), deleted_at_ms: self.deleted_at_ms }
    }

    /// Merges a delta of any replica; see [`Field::merge`].
    pub fn merge(&mut self, delta: StateDelta) -> Merged {
        let StateDelta { delta, deleted_at_ms } = delta;
        let (ours, theirs) = (self.field.field_type(), delta.field_type());
        let merged = self.field.merge(delta);
        if ours != theirs {
            // The deletion is one of the field that is kept.
            if theirs < ours {
                self.deleted_at_ms = deleted_at_ms;
            }
            return merged;
        }
        if deleted_at_ms <= self.deleted_at_ms {
            return merged;
        }
        self.deleted_at_ms = deleted_at_ms;
        Merged::Changed
    }

    /// Combines incarnations of a node; see [`Field::fold`].
    pub fn fold(&mut self, node: u64, up_to_incarnation: u32) -> bool {
        self.field.fold(node, up_to_incarnation)
    }

    /// Approximate size in memory, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.field.size_bytes()
    }

    /// The latest timestamp in the field or of its deletion. A clock should observe this time when the field is read from the
    /// store.
    pub fn latest(&self) -> Hlc {
        self.field.latest().max(Hlc { wall_ms: self.deleted_at_ms, logical: 0 })
    }

    /// The highest number that a replica has used in the field: of an update, or an amount of a counter.
    pub fn highest_of(&self, replica: ReplicaId) -> u64 {
        match &self.field {
            Field::Counter(counter) => counter.tally.highest_of(replica),
            Field::GCounter(counter) => counter.tally.highest_of(replica),
            other => other.dotted().map_or(0, |dotted| dotted.context.last(replica)),
        }
    }

    /// The generation of a g-set or bounded counter: each deletion begins a higher one. 0 for other types.
    pub fn generation(&self) -> u64 {
        match &self.field {
            Field::GSet(set) => set.generation,
            Field::BoundedCounter(counter) => counter.generation(),
            _ => 0,
        }
    }
}

impl From<Field> for FieldState {
    fn from(field: Field) -> Self {
        Self { field, deleted_at_ms: 0 }
    }
}

/// The state of an empty replica after a delta.
impl From<StateDelta> for FieldState {
    fn from(state: StateDelta) -> Self {
        Self { field: state.delta.into(), deleted_at_ms: state.deleted_at_ms }
    }
}

/// A whole state is also a delta, for a replica without state.
impl From<FieldState> for StateDelta {
    fn from(state: FieldState) -> Self {
        Self { delta: state.field.into(), deleted_at_ms: state.deleted_at_ms }
    }
}

impl From<FieldDelta> for StateDelta {
    fn from(delta: FieldDelta) -> Self {
        Self { delta, deleted_at_ms: 0 }
    }
}

impl From<Field> for StateDelta {
    fn from(field: Field) -> Self {
        FieldDelta::from(field).into()
    }
}

impl StateDelta {
    /// The type of its field.
    pub fn field_type(&self) -> FieldType {
        self.delta.field_type()
    }

    /// True if it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.deleted_at_ms == 0 && self.delta.is_empty()
    }

    /// Approximate size in memory, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.delta.size_bytes()
    }

    /// The latest timestamp in it.
    pub fn latest(&self) -> Hlc {
        self.delta.0.latest().max(Hlc { wall_ms: self.deleted_at_ms, logical: 0 })
    }

    /// Time of the deletion, if the delta has nothing but what a deletion left.
    pub fn tombstone_ms(&self) -> Option<u64> {
        (self.deleted_at_ms > 0 && !self.is_live()).then_some(self.deleted_at_ms)
    }

    /// True if it has values that are not deleted: a replica that deleted the field has to tell the sender if these
    /// change nothing.
    pub fn is_live(&self) -> bool {
        !self.delta.0.is_vacant()
    }

    /// Merges another delta of the same field into this one.
    pub fn merge(&mut self, other: Self) -> Merged {
        let (ours, theirs) = (self.field_type(), other.field_type());
        let merged = self.delta.merge(other.delta);
        self.deleted_at_ms = match ours.cmp(&theirs) {
            std::cmp::Ordering::Less => self.deleted_at_ms,
            std::cmp::Ordering::Equal => self.deleted_at_ms.max(other.deleted_at_ms),
            std::cmp::Ordering::Greater => other.deleted_at_ms,
        };
        merged
    }
}

impl Field {
    /// True if it has no values: it was never written, or all was removed.
    fn is_vacant(&self) -> bool {
        match self {
            Self::Counter(counter) => counter.tally.is_removed(),
            Self::Register(register) => register.written.is_none(),
            Self::GCounter(counter) => counter.tally.is_removed(),
            Self::BoundedCounter(counter) => counter.is_empty(),
            Self::GSet(set) => set.is_empty(),
            other => other.dotted().is_none_or(Dotted::is_vacant),
        }
    }

    /// The delta that removes all that this replica has seen.
    fn vacate(&self, replica: ReplicaId, now: Hlc) -> FieldDelta {
        FieldDelta(match self {
            Self::Counter(counter) => {
                let mut delta = counter.clone();
                delta.tally.remove_all();
                Self::Counter(delta)
            }
            Self::GCounter(counter) => {
                let mut delta = counter.clone();
                delta.tally.remove_all();
                Self::GCounter(delta)
            }
            Self::Register(register) => Self::Register(register.clone().delete(replica, now)),
            Self::BoundedCounter(counter) => {
                let generation = now.wall_ms.max(counter.generation().saturating_add(1));
                Self::BoundedCounter(BoundedCounter::of_generation(generation))
            }
            Self::GSet(set) => {
                let generation = now.wall_ms.max(set.generation.saturating_add(1));
                Self::GSet(GSet { generation, ..GSet::default() })
            }
            other => {
                let mut delta = Self::empty(other.field_type());
                if let (Some(ours), Some(removal)) = (other.dotted(), delta.dotted_mut()) {
                    removal.context = ours.context.clone();
                }
                delta
            }
        })
    }

    /// The delta by which the numbers that a replica may have used in dropped tombstones are not used again; `None` if the
    /// replica has an entry of its own, or has dropped none.
    fn reserve(&self, origin: Origin) -> Option<FieldDelta> {
        let Origin { replica, dropped_numbers, dropped_generations } = origin;
        let up_to = |used: u64, dropped: u64| (used == 0 && dropped > 0).then_some(dropped);
        let mut delta = Self::empty(self.field_type());
        match (self, &mut delta) {
            (Self::Counter(counter), Self::Counter(delta)) => {
                delta.tally.reserve(replica, up_to(counter.tally.highest_of(replica), dropped_numbers)?);
            }
            (Self::GCounter(counter), Self::GCounter(delta)) => {
                delta.tally.reserve(replica, up_to(counter.tally.highest_of(replica), dropped_numbers)?);
            }
            (Self::GSet(set), Self::GSet(delta)) => {
                let is_new = set.is_empty() && set.generation == 0;
                delta.generation = up_to(u64::from(!is_new), dropped_generations)?;
            }
            (Self::BoundedCounter(counter), Self::BoundedCounter(delta)) => {
                let is_new = counter.is_empty() && counter.generation() == 0;
                let generation = up_to(u64::from(!is_new), dropped_generations)?;
                *delta = BoundedCounter::of_generation(generation);
            }
            (other, delta) => {
                let (dotted, reserved) = other.dotted().zip(delta.dotted_mut())?;
                let last = up_to(dotted.context.last(replica), dropped_numbers)?;
                reserved.context.insert_range(replica, 1, last);
            }
        }
        Some(FieldDelta(delta))
    }
}
