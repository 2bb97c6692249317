//! A field of an object: one of the types, by name.

use bytes::Bytes;
use std::collections::BTreeSet;

use crate::causal::{Flag, GSet, Map, MvRegister, Set};
use crate::document::Document;
use crate::dotted::{Dotted, Payload};
use crate::{
    ApplyError, BoundedCounter, Counter, FieldDelta, FieldType, GCounter, Hlc, Merged, Operation, Register,
    ReplicaId, Value, WrongType, update,
};

/// The state of one field at one replica.
///
/// The order of the variants is part of the binary encoding and of [`merge`](Self::merge): new types
/// are added at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// A counter that goes up and down.
    Counter(Counter),
    /// A value whose last writer wins.
    Register(Register),
    /// A counter that only goes up.
    GCounter(GCounter),
    /// A counter that never goes below zero.
    BoundedCounter(BoundedCounter),
    /// A register that keeps concurrent values.
    MvRegister(MvRegister),
    /// A set that only grows.
    GSet(GSet),
    /// A set whose elements come and go; adding wins.
    Set(Set),
    /// Fields by name; updating wins.
    Map(Map),
    /// A flag whose enabling wins.
    EwFlag(Flag),
    /// A flag whose disabling wins.
    DwFlag(Flag),
    /// A list of byte strings.
    List(Document),
    /// A text.
    Text(Document),
    /// A JSON document.
    Json(Document),
}

impl Field {
    /// A field that nobody has written to.
    pub fn empty(field_type: FieldType) -> Self {
        match field_type {
            FieldType::Counter => Self::Counter(Counter::default()),
            FieldType::Register => Self::Register(Register::default()),
            FieldType::GCounter => Self::GCounter(GCounter::default()),
            FieldType::BoundedCounter => Self::BoundedCounter(BoundedCounter::default()),
            FieldType::MvRegister => Self::MvRegister(MvRegister::default()),
            FieldType::GSet => Self::GSet(GSet::default()),
            FieldType::Set => Self::Set(Set::default()),
            FieldType::Map => Self::Map(Map::default()),
            FieldType::EwFlag => Self::EwFlag(Flag::default()),
            FieldType::DwFlag => Self::DwFlag(Flag::default()),
            FieldType::List => Self::List(Document::empty(field_type)),
            FieldType::Text => Self::Text(Document::empty(field_type)),
            FieldType::Json => Self::Json(Document::empty(field_type)),
        }
    }

    /// Which type it is.
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::Counter(_) => FieldType::Counter,
            Self::Register(_) => FieldType::Register,
            Self::GCounter(_) => FieldType::GCounter,
            Self::BoundedCounter(_) => FieldType::BoundedCounter,
            Self::MvRegister(_) => FieldType::MvRegister,
            Self::GSet(_) => FieldType::GSet,
            Self::Set(_) => FieldType::Set,
            Self::Map(_) => FieldType::Map,
            Self::EwFlag(_) => FieldType::EwFlag,
            Self::DwFlag(_) => FieldType::DwFlag,
            Self::List(_) => FieldType::List,
            Self::Text(_) => FieldType::Text,
            Self::Json(_) => FieldType::Json,
        }
    }

    /// The counter that it is; `name` is for the error.
    pub fn counter(&self, name: &str) -> Result<&Counter, WrongType> {
        match self {
            Self::Counter(counter) => Ok(counter),
            other => Err(other.wrong_type(name, FieldType::Counter)),
        }
    }

    /// The register that it is; `name` is for the error.
    pub fn register(&self, name: &str) -> Result<&Register, WrongType> {
        match self {
            Self::Register(register) => Ok(register),
            other => Err(other.wrong_type(name, FieldType::Register)),
        }
    }

    /// The bounded counter that it is; `name` is for the error.
    pub fn bounded_counter(&self, name: &str) -> Result<&BoundedCounter, WrongType> {
        match self {
            Self::BoundedCounter(counter) => Ok(counter),
            other => Err(other.wrong_type(name, FieldType::BoundedCounter)),
        }
    }

    /// What it holds. Large sets, maps and documents are copied.
    pub fn value(&self) -> Value {
        match self {
            Self::Counter(counter) => Value::Integer(counter.value()),
            Self::Register(register) => Value::Register(register.get().cloned()),
            Self::GCounter(counter) => Value::Unsigned(counter.value()),
            Self::BoundedCounter(counter) => Value::Integer(counter.value()),
            Self::MvRegister(register) => Value::Values(register.values()),
            Self::GSet(set) => Value::Values(set.iter().cloned().collect()),
            Self::Set(set) => Value::Values(set.iter().cloned().collect()),
            Self::Map(map) => {
                let values =
                    map.iter().map(|(key, field)| (key.to_owned(), (field.field_type(), field.value())));
                Value::Map(values.collect())
            }
            Self::EwFlag(flag) => Value::Flag(flag.enable_wins()),
            Self::DwFlag(flag) => Value::Flag(flag.disable_wins()),
            Self::List(document) => Value::List(document.list()),
            Self::Text(document) => Value::Text(document.text()),
            Self::Json(document) => Value::Json(document.json()),
        }
    }

    /// The value at the end of the keys, through nested maps; none if a key is not there. It is for reading only: what
    /// makes it merge stands with the map.
    ///
    /// # Errors
    ///
    /// A key leads into what is no map; the error's `field` is the keys up to there.
    pub fn at_path(&self, path: &[String]) -> Result<Option<&Self>, WrongType> {
        let mut at = self;
        for (depth, key) in path.iter().enumerate() {
            let Self::Map(map) = at else {
                return Err(at.wrong_type(&path[..depth].join("/"), FieldType::Map));
            };
            match map.get(key) {
                Some(field) => at = field,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// Whether a set or g-set contains an element.
    ///
    /// # Errors
    ///
    /// It is no set; the error's `field` is empty, since a field does not know its name.
    pub fn contains(&self, element: &[u8]) -> Result<bool, WrongType> {
        match self {
            Self::GSet(set) => Ok(set.contains(element)),
            Self::Set(set) => Ok(set.contains(element)),
            other => Err(other.wrong_type("", FieldType::Set)),
        }
    }

    /// About how many bytes it takes in memory. Takes no time for the elements in it.
    pub fn size_bytes(&self) -> usize {
        let inner = match self {
            Self::Counter(counter) => counter.tally.size_bytes(),
            Self::Register(register) => register.get().map_or(0, Bytes::len),
            Self::GCounter(counter) => counter.tally.size_bytes(),
            Self::BoundedCounter(counter) => counter.size_bytes(),
            Self::GSet(set) => set.elements.size_bytes(),
            Self::Set(set) => set.elements.size_bytes() + set.dotted.size_bytes(),
            Self::Map(map) => {
                let bounded: usize = map.bounded.values().map(|counter| 128 + counter.size_bytes()).sum();
                bounded + map.dotted.size_bytes()
            }
            Self::MvRegister(MvRegister { dotted, .. })
            | Self::EwFlag(Flag { dotted, .. })
            | Self::DwFlag(Flag { dotted, .. }) => dotted.size_bytes(),
            Self::List(document) | Self::Text(document) | Self::Json(document) => document.size_bytes(),
        };
        size_of::<Self>() + inner
    }

    /// The latest time in it; zero if there is none. A clock that reads the field back should observe it.
    pub fn latest(&self) -> Hlc {
        match self {
            Self::Register(register) => register.written_at().map(|at| at.hlc).unwrap_or_default(),
            Self::Map(map) => {
                let times = map.dotted.leaves().values().filter_map(|leaf| match &leaf.payload {
                    Payload::Written(written) => Some(written.at.hlc),
                    _ => None,
                });
                times.max().unwrap_or_default()
            }
            _ => Hlc::default(),
        }
    }

    /// Makes one entry of all incarnations of `node` up to and with `up_to`; true if that changed anything.
    ///
    /// Only right once every living replica has seen everything those incarnations wrote, and none of them writes any
    /// more: what arrives of them afterwards counts as seen. Replicas may fold at different times, and those that have
    /// not yet merge with those that have. Documents and bounded counters have nothing to fold.
    pub fn fold(&mut self, node: u64, up_to_incarnation: u32) -> bool {
        match self {
            Self::Counter(counter) => counter.tally.fold(node, up_to_incarnation),
            Self::GCounter(counter) => counter.tally.fold(node, up_to_incarnation),
            other => other.dotted_mut().is_some_and(|dotted| dotted.context.fold(node, up_to_incarnation)),
        }
    }

    /// Carries out an operation of this replica and gives what changed. `now` comes from the replica's
    /// [`HybridClock`](crate::HybridClock); `name` is for the error.
    pub fn apply_local(
        &mut self,
        name: &str,
        operation: Operation,
        replica: ReplicaId,
        now: Hlc,
    ) -> Result<FieldDelta, ApplyError> {
        if operation.field_type() != self.field_type() {
            return Err(self.wrong_type(name, operation.field_type()).into());
        }
        if let Some(up_to) = self.folded_up_to(replica.node).filter(|up_to| replica.incarnation <= *up_to) {
            return Err(ApplyError::Folded { field: name.to_owned(), replica, up_to });
        }
        match (self, operation) {
            (Self::Counter(counter), Operation::CounterAdd(amount)) => {
                let delta = counter.add(amount, replica);
                delta
                    .map(|delta| FieldDelta(Self::Counter(delta)))
                    .map_err(|overflow| ApplyError::CounterOverflow { field: name.to_owned(), overflow })
            }
            (Self::Register(register), Operation::RegisterSet(value)) => {
                Ok(FieldDelta(Self::Register(register.set(value, replica, now))))
            }
            (Self::GCounter(counter), Operation::GCounterAdd(amount)) => {
                let delta = counter.add(amount, replica);
                delta
                    .map(|delta| FieldDelta(Self::GCounter(delta)))
                    .map_err(|overflow| ApplyError::GCounterOverflow { field: name.to_owned(), overflow })
            }
            (Self::BoundedCounter(counter), operation) => {
                let delta = update::apply_bounded(counter, name, &operation, replica)?;
                Ok(FieldDelta(Self::BoundedCounter(delta)))
            }
            (Self::GSet(set), Operation::GSetAdd(element)) => {
                let mut delta = GSet::default();
                if set.elements.insert(element.clone()) {
                    delta.elements.insert(element);
                }
                Ok(FieldDelta(Self::GSet(delta)))
            }
            (Self::List(document), operation) => update::edit(document, name, operation, replica, 0)
                .map(|delta| FieldDelta(Self::List(delta))),
            (Self::Text(document), operation) => update::edit(document, name, operation, replica, 0)
                .map(|delta| FieldDelta(Self::Text(delta))),
            (Self::Json(document), operation) => update::edit(document, name, operation, replica, 0)
                .map(|delta| FieldDelta(Self::Json(delta))),
            (field, operation) => update::apply(field, name, operation, replica, now),
        }
    }

    /// Takes in a delta of any replica.
    ///
    /// If the types differ, the one that comes first in [`FieldType`] is kept, here as everywhere else:
    /// a merge that failed would leave the replicas apart for good.
    pub fn merge(&mut self, delta: FieldDelta) -> Merged {
        let (ours, theirs) = (self.field_type(), delta.0.field_type());
        let changed = match (&mut *self, delta.0) {
            (Self::Counter(ours), Self::Counter(theirs)) => ours.merge(&theirs),
            (Self::Register(ours), Self::Register(theirs)) => ours.merge(theirs),
            (Self::GCounter(ours), Self::GCounter(theirs)) => ours.merge(&theirs),
            (Self::BoundedCounter(ours), Self::BoundedCounter(theirs)) => ours.merge(&theirs),
            (Self::GSet(ours), Self::GSet(theirs)) => ours.merge(theirs),
            (Self::List(ours), Self::List(theirs))
            | (Self::Text(ours), Self::Text(theirs))
            | (Self::Json(ours), Self::Json(theirs)) => ours.merge(theirs),
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

    pub(crate) fn wrong_type(&self, name: &str, wanted: FieldType) -> WrongType {
        WrongType { field: name.to_owned(), actual: self.field_type(), wanted }
    }

    /// The dotted values that it stands on, if its type does.
    pub(crate) fn dotted(&self) -> Option<&Dotted> {
        match self {
            Self::MvRegister(MvRegister { dotted, .. })
            | Self::Set(Set { dotted, .. })
            | Self::Map(Map { dotted, .. })
            | Self::EwFlag(Flag { dotted, .. })
            | Self::DwFlag(Flag { dotted, .. }) => Some(dotted),
            _ => None,
        }
    }

    pub(crate) fn dotted_mut(&mut self) -> Option<&mut Dotted> {
        match self {
            Self::MvRegister(MvRegister { dotted, .. })
            | Self::Set(Set { dotted, .. })
            | Self::Map(Map { dotted, .. })
            | Self::EwFlag(Flag { dotted, .. })
            | Self::DwFlag(Flag { dotted, .. }) => Some(dotted),
            _ => None,
        }
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

    fn folded_up_to(&self, node: u64) -> Option<u32> {
        match self {
            Self::Counter(counter) => counter.tally.folded_up_to(node),
            Self::GCounter(counter) => counter.tally.folded_up_to(node),
            other => other.dotted().and_then(|dotted| dotted.context.folded_up_to(node)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ReplicaId = ReplicaId::new(1, 0);
    const NOW: Hlc = Hlc { wall_ms: 1, logical: 0 };

    #[test]
    fn a_field_used_as_another_type_says_what_it_is() {
        let mut field = Field::empty(FieldType::Counter);
        let error = field.apply_local("x", Operation::RegisterSet("v".into()), A, NOW).unwrap_err();
        assert_eq!(error.to_string(), "field `x` is a counter, not a register");
        assert_eq!(field.register("x").unwrap_err().to_string(), error.to_string());
        let register = Field::empty(FieldType::Register);
        assert_eq!(
            register.counter("y").unwrap_err().to_string(),
            "field `y` is a register, not a counter"
        );
    }

    #[test]
    fn an_overflow_names_the_field() {
        let mut field = Field::empty(FieldType::Counter);
        field.apply_local("hits", Operation::CounterAdd(i64::MAX), A, NOW).unwrap();
        let error = field.apply_local("hits", Operation::CounterAdd(1), A, NOW).unwrap_err();
        assert_eq!(
            error.to_string(),
            "field `hits`: adding 1 to a counter of 9223372036854775807 leaves the range of a 64-bit integer"
        );
    }

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
