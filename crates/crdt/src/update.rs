//! Local operations on dotted values: what they take away and what they write.

use std::collections::{BTreeMap, BTreeSet};

use crate::context::Dot;
use crate::counter::Totals;
use crate::document::{Document, EditError, MAX_DOCUMENT_BYTES, actor};
use crate::dotted::{Dotted, Edited, Leaf, MAX_MAP_DEPTH, Path, Payload, Step};
use crate::error::ApplyError;
use crate::register::Written;
use crate::sequence::SequenceEdit;
use crate::{
    BoundedCounter, CounterOverflow, Field, FieldDelta, FieldType, GCounterOverflow, Hlc, Operation,
    ReplicaId, Timestamp, json,
};

/// How many amounts of one replica a counter in a map keeps apart.
const MAX_AMOUNTS: usize = 32;

/// What an operation does.
#[derive(Debug, Default)]
struct Plan {
    remove: Vec<Dot>,
    add: Option<(Vec<Step>, Payload)>,
    /// The new part of a bounded counter.
    bounded: Option<BoundedCounter>,
}

/// Who asks, and for what.
struct Request<'a> {
    name: String,
    dotted: &'a Dotted,
    /// What bounded counters hold, those that were removed included; none outside of a map.
    bounded: Option<&'a BTreeMap<Path, BoundedCounter>>,
    replica: ReplicaId,
    now: Hlc,
    /// The number of the update's dot.
    number: u64,
}

/// Carries out an operation on a field that stands on dotted values.
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

/// What an operation does to a value, whose dots are `dots` if it stands in a map.
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
            // Its own amounts are nobody else's to write: taken together they are the replica's total.
            let amount = if own.len() < MAX_AMOUNTS { new } else { all };
            let remove = if own.len() < MAX_AMOUNTS { Vec::new() } else { own };
            write(remove, path, Payload::Amount(amount))
        }
        (Field::GCounter(counter), Operation::GCounterAdd(amount)) => {
            let value = counter.value();
            let all = counter.tally.get(request.replica).checked_add(amount);
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
            // A removed one still holds what it held.
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
            // The actor goes on only after its own last edit: what others kept may lack some of its changes.
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

/// Carries out an operation on a document; `number` is its actor's.
pub(crate) fn edit(
    document: &mut Document,
    name: &str,
    operation: Operation,
    replica: ReplicaId,
    number: u64,
) -> Result<Document, ApplyError> {
    let (added, limit_bytes) = (operation.size_bytes(), MAX_DOCUMENT_BYTES);
    let bytes = document.history_bytes(limit_bytes.saturating_sub(added)) + added;
    // What takes something out is the way back from there.
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
        EditError::Json(problem) => ApplyError::BadJson { field, problem },
        EditError::TooDeep => ApplyError::TooDeep { field, limit: json::MAX_JSON_DEPTH },
        EditError::Engine(error) => ApplyError::Document { field, problem: error.to_string() },
    })
}

/// Carries out an operation on a bounded counter.
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
