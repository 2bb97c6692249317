//! Local operations: checks and changes of this replica.

use std::collections::{BTreeMap, BTreeSet};

use crate::causal::GSet;
use crate::context::Dot;
use crate::counter::Totals;
use crate::document::{Document, EditError, MAX_DOCUMENT_BYTES, actor};
use crate::dotted::{Dotted, Edited, Leaf, MAX_MAP_DEPTH, Path, Payload, Step};
use crate::error::{ApplyError, LibraryError};
use crate::register::Written;
use crate::sequence::SequenceEdit;
use crate::{
    BoundedCounter, CounterOverflow, Field, FieldDelta, FieldType, GCounterOverflow, Hlc, Operation,
    ReplicaId, Timestamp, json,
};

/// Maximum number of separate amounts of one replica in a counter of a map.
const MAX_AMOUNTS: usize = 32;

/// The effect of an operation on dotted values.
#[derive(Debug, Default)]
struct Plan {
    remove: Vec<Dot>,
    add: Option<(Vec<Step>, Payload)>,
    /// The new part of a bounded counter.
    bounded: Option<BoundedCounter>,
}

/// The replica that applies the operation, and its target field.
struct Request<'a> {
    name: String,
    dotted: &'a Dotted,
    /// The values of bounded counters, including removed ones; `None` outside of a map.
    bounded: Option<&'a BTreeMap<Path, BoundedCounter>>,
    replica: ReplicaId,
    now: Hlc,
    /// The number of the update's dot.
    number: u64,
}

impl Field {
    /// Applies an operation of this replica and gives the change. `now` comes from the replica's
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
                let delta = apply_bounded(counter, name, &operation, replica)?;
                Ok(FieldDelta(Self::BoundedCounter(delta)))
            }
            (Self::GSet(set), Operation::GSetAdd(element)) => {
                let mut delta = GSet { generation: set.generation, ..GSet::default() };
                if set.elements.insert(element.clone()) {
                    delta.elements.insert(element);
                }
                Ok(FieldDelta(Self::GSet(delta)))
            }
            (Self::List(document), operation) => {
                edit(document, name, operation, replica, 0).map(|delta| FieldDelta(Self::List(delta)))
            }
            (Self::Text(document), operation) => {
                edit(document, name, operation, replica, 0).map(|delta| FieldDelta(Self::Text(delta)))
            }
            (Self::Json(document), operation) => {
                edit(document, name, operation, replica, 0).map(|delta| FieldDelta(Self::Json(delta)))
            }
            (field, operation) => apply(field, name, operation, replica, now),
        }
    }

    fn folded_up_to(&self, node: u64) -> Option<u32> {
        match self {
            Self::Counter(counter) => counter.tally.folded_up_to(node),
            Self::GCounter(counter) => counter.tally.folded_up_to(node),
            other => other.dotted().and_then(|dotted| dotted.context.folded_up_to(node)),
        }
    }
}

/// Applies an operation to a field that is based on dotted values.
pub(crate) fn apply(
    field: &mut Field,
    name: &str,
    operation: Operation,
    replica: ReplicaId,
    now: Hlc,
) -> Result<FieldDelta, ApplyError> {
    let field_type = field.field_type();
    let empty = Field::empty(field_type);
    let Some(dotted) = field.dotted() else { return Ok(FieldDelta(empty)) };
    let dot = dotted
        .context
        .next(replica)
        .ok_or_else(|| ApplyError::Exhausted { field: name.to_owned(), replica })?;
    let bounded = match &*field {
        Field::Map(map) => Some(&map.bounded),
        _ => None,
    };
    let request = Request { name: name.to_owned(), dotted, bounded, replica, now, number: dot.number };
    let plan = plan(field, &BTreeSet::new(), request, operation, Vec::new())?;

    let mut delta = empty;
    let mut bounded = None;
    let add = plan.add.map(|(steps, payload)| {
        let path: Option<Path> = (!steps.is_empty()).then(|| steps.into());
        bounded = path.clone().zip(plan.bounded);
        (dot, Leaf { path, payload })
    });
    if let (Some((path, part)), Field::Map(map), Field::Map(delta)) = (bounded, &mut *field, &mut delta) {
        map.bounded.entry(path.clone()).or_default().merge(&part);
        delta.bounded.insert(path, part);
    }
    if let (Some(dotted), Some(delta)) = (field.dotted_mut(), delta.dotted_mut()) {
        let (difference, changed) = dotted.update(plan.remove, add);
        *delta = changed;
        field.show(&difference);
    }
    delta.show_all();
    Ok(FieldDelta(delta))
}

/// The effect of an operation on a value. `dots`: the dots of the value, if it is in a map.
fn plan(
    field: &Field,
    dots: &BTreeSet<Dot>,
    request: Request<'_>,
    operation: Operation,
    mut path: Vec<Step>,
) -> Result<Plan, ApplyError> {
    let write = |remove: Vec<Dot>, path: Vec<Step>, payload: Payload| Plan {
        remove,
        add: Some((path, payload)),
        bounded: None,
    };
    let only_remove = |remove: Vec<Dot>| Plan { remove, ..Plan::default() };
    Ok(match (field, operation) {
        (Field::Map(map), Operation::MapUpdate(key, inner)) => {
            if path.len() >= MAX_MAP_DEPTH {
                return Err(ApplyError::TooDeep { field: request.name, limit: MAX_MAP_DEPTH });
            }
            let name = format!("{}/{key}", request.name);
            let field_type = inner.field_type();
            path.push(Step { key: key.as_str().into(), field_type });
            let request = Request { name, ..request };
            match map.slots.get(&key).and_then(|slot| slot.visible()) {
                Some(node) => plan(&node.field, &node.dots, request, *inner, path)?,
                None => plan(&Field::empty(field_type), &BTreeSet::new(), request, *inner, path)?,
            }
        }
        (Field::Map(map), Operation::MapRemove(key)) => {
            let mut gone = Vec::new();
            if let Some(slot) = map.slots.get(&key) {
                slot.all_dots(&mut gone);
            }
            only_remove(gone)
        }
        (Field::Map(map), Operation::MapClear) => {
            let mut gone = Vec::new();
            map.all_dots(&mut gone);
            only_remove(gone)
        }
        (Field::MvRegister(register), Operation::MvRegisterSet(value)) => {
            write(register.values.keys().copied().collect(), path, Payload::Bytes(value))
        }
        (Field::GSet(set), Operation::GSetAdd(element)) => {
            write(set.elements.dots(&element).to_vec(), path, Payload::Bytes(element))
        }
        (Field::Set(set), Operation::SetAdd(element)) => {
            write(set.elements.dots(&element).to_vec(), path, Payload::Bytes(element))
        }
        (Field::Set(set), Operation::SetRemove(element)) => {
            only_remove(set.elements.dots(&element).to_vec())
        }
        (Field::Set(set), Operation::SetClear) => only_remove(set.elements.all_dots().collect()),
        (Field::EwFlag(flag), Operation::EwFlagSet(enabled))
        | (Field::DwFlag(flag), Operation::DwFlagSet(enabled)) => {
            write(flag.settings.keys().copied().collect(), path, Payload::Flag(enabled))
        }
        (Field::Counter(counter), Operation::CounterAdd(amount)) => {
            let value = counter.value();
            let overflow = CounterOverflow { value, amount };
            let overflow = ApplyError::CounterOverflow { field: request.name.clone(), overflow };
            let all = counter.tally.get(request.replica).plus(amount);
            let (Some(_), Some(all), Some(new)) =
                (value.checked_add(amount), all, Totals::default().plus(amount))
            else {
                return Err(overflow);
            };
            let own = own_dots(dots, request.replica);
            // Only this replica writes its amounts: their sum is the replica's total.
            let amount = if own.len() < MAX_AMOUNTS { new } else { all };
            let remove = if own.len() < MAX_AMOUNTS { Vec::new() } else { own };
            write(remove, path, Payload::Amount(amount))
        }
        (Field::GCounter(counter), Operation::GCounterAdd(amount)) => {
            let value = counter.value();
            let all = counter.tally.get(request.replica).plus(amount).map(|sum| sum.added);
            let (Some(_), Some(all)) = (value.checked_add(amount), all) else {
                let overflow = GCounterOverflow { value, amount };
                return Err(ApplyError::GCounterOverflow { field: request.name, overflow });
            };
            let own = own_dots(dots, request.replica);
            let amount = if own.len() < MAX_AMOUNTS { amount } else { all };
            let remove = if own.len() < MAX_AMOUNTS { Vec::new() } else { own };
            write(remove, path, Payload::Unsigned(amount))
        }
        (Field::Register(register), Operation::RegisterSet(value)) => {
            let now = match &register.written {
                Some(current) => request.now.max(current.at.hlc.successor()),
                None => request.now,
            };
            let at = Timestamp { hlc: now, replica: request.replica };
            let written = Payload::Written(Box::new(Written { at, value }));
            write(dots.iter().copied().collect(), path, written)
        }
        (Field::BoundedCounter(_), operation) if operation.field_type() == FieldType::BoundedCounter => {
            // A removed counter keeps its value.
            let held = request.bounded.and_then(|bounded| bounded.get(path.as_slice()));
            let mut counter = held.cloned().unwrap_or_default();
            let delta = apply_bounded(&mut counter, &request.name, &operation, request.replica)?;
            if delta.is_empty() {
                Plan::default()
            } else {
                let plan = write(dots.iter().copied().collect(), path, Payload::Present);
                Plan { bounded: Some(delta), ..plan }
            }
        }
        (Field::List(document) | Field::Text(document) | Field::Json(document), operation)
            if operation.field_type() == field.field_type() =>
        {
            // The actor continues only after its own last edit. Edits that others kept may lack some of its changes.
            let number =
                dots.iter().rev().find(|dot| dot.replica == request.replica).and_then(|dot| match request
                    .dotted
                    .payload(dot)
                {
                    Some(Payload::Document(edited)) => Some(edited.actor),
                    _ => None,
                });
            let number = number.unwrap_or(request.number);
            let mut document = document.clone();
            let delta = edit(&mut document, &request.name, operation, request.replica, number)?;
            if delta.is_empty() {
                Plan::default()
            } else {
                let edited = Edited { actor: number, document };
                write(dots.iter().copied().collect(), path, Payload::Document(Box::new(edited)))
            }
        }
        (other, operation) => return Err(other.wrong_type(&request.name, operation.field_type()).into()),
    })
}

/// Applies an operation to a document; `number` is the number of its actor.
pub(crate) fn edit(
    document: &mut Document,
    name: &str,
    operation: Operation,
    replica: ReplicaId,
    number: u64,
) -> Result<Document, ApplyError> {
    let (added, limit_bytes) = (operation.size_bytes(), MAX_DOCUMENT_BYTES);
    let bytes = document.history_bytes(limit_bytes.saturating_sub(added)) + added;
    // Removals are allowed above the limit, because they reduce the size.
    if bytes > limit_bytes && !operation.only_removes() {
        return Err(ApplyError::TooLarge { field: name.to_owned(), bytes, limit_bytes });
    }
    let actor = actor(replica, number);
    let (mut pointer_of, mut done) = (String::new(), |edit| document.edit_sequence(actor.clone(), edit));
    let result = match operation {
        Operation::ListInsert(index, value) => done(SequenceEdit::Insert(index, value)),
        Operation::ListPush(value) => done(SequenceEdit::Push(value)),
        Operation::ListSet(index, value) => done(SequenceEdit::Set(index, value)),
        Operation::ListRemove(index) => done(SequenceEdit::Remove(index)),
        Operation::TextSplice { at, delete, insert } => done(SequenceEdit::Splice { at, delete, insert }),
        Operation::JsonSet { pointer, value } => {
            let result = document.edit(actor, |doc| json::set(doc, &pointer, &value));
            pointer_of = pointer;
            result
        }
        Operation::JsonRemove { pointer } => {
            let result = document.edit(actor, |doc| json::remove(doc, &pointer));
            pointer_of = pointer;
            result
        }
        _ => Ok(Document::empty(document.field_type())),
    };
    let field = name.to_owned();
    result.map_err(|error| match error {
        EditError::Index { index, length } => ApplyError::IndexOutOfRange { field, index, length },
        EditError::Pointer(problem) => ApplyError::BadPointer { field, pointer: pointer_of, problem },
        EditError::Json(error) => ApplyError::BadJson { field, error: LibraryError::new(error) },
        EditError::TooDeep => ApplyError::TooDeep { field, limit: json::MAX_JSON_DEPTH },
        EditError::Engine(error) => ApplyError::Document { field, error: LibraryError::new(error) },
    })
}

/// Applies an operation to a bounded counter.
pub(crate) fn apply_bounded(
    counter: &mut BoundedCounter,
    name: &str,
    operation: &Operation,
    replica: ReplicaId,
) -> Result<BoundedCounter, ApplyError> {
    match operation {
        Operation::BoundedCounterAdd(amount) => {
            counter.add(*amount, replica.node).map_err(|error| ApplyError::bounded(name, error))
        }
        Operation::BoundedCounterWant(amount) => Ok(counter.want(*amount, replica.node)),
        Operation::BoundedCounterGrant => Ok(counter.grant(replica.node)),
        _ => Ok(BoundedCounter::default()),
    }
}

fn own_dots(dots: &BTreeSet<Dot>, replica: ReplicaId) -> Vec<Dot> {
    dots.range(Dot { replica, number: 0 }..=Dot { replica, number: u64::MAX }).copied().collect()
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
}
