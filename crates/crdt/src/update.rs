//! Local operations: checks and changes of this replica.

use std::collections::{BTreeMap, BTreeSet};

use crate::causal::GSet;
use crate::content::Content;
use crate::context::{Context, Dot};
use crate::counter::Totals;
use crate::document::{Edit, EditError, Editor, MAX_DOCUMENT_BYTES};
use crate::dotted::{Dotted, Leaf, MAX_MAP_DEPTH, Path, Payload, Step};
use crate::error::{ApplyError, LibraryError};
use crate::position::MAX_POSITION_DEPTH;
use crate::register::Written;
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
    /// Further dots to be removed.
    clear: Context,
    add: Option<(Vec<Step>, Payload)>,
    /// New values of a list, text or JSON document.
    document: Option<(Vec<Step>, Content)>,
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
    let as_path = |steps: Vec<Step>| -> Option<Path> { (!steps.is_empty()).then(|| steps.into()) };
    let add = plan.add.map(|(steps, payload)| Leaf { path: as_path(steps), payload });
    let bounded = add.as_ref().and_then(|leaf| leaf.path.clone()).zip(plan.bounded);
    if let (Some((path, part)), Field::Map(map), Field::Map(delta)) = (bounded, &mut *field, &mut delta) {
        map.bounded.entry(path.clone()).or_default().merge(&part);
        delta.bounded.insert(path, part);
    }
    if let (Some(dotted), Some(delta)) = (field.dotted_mut(), delta.dotted_mut()) {
        delta.context = plan.clear;
        for dot in plan.remove {
            delta.context.insert(dot);
        }
        if let Some(leaf) = add {
            delta.add(dot, leaf);
        }
        if let Some((steps, content)) = plan.document {
            delta.add_document(as_path(steps), content);
        }
        let (difference, _) = dotted.merge(delta.clone());
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
        ..Plan::default()
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
            let mut clear = Context::default();
            if let Some(slot) = map.slots.get(&key) {
                slot.add_dots(&mut clear);
            }
            Plan { clear, ..Plan::default() }
        }
        (Field::Map(map), Operation::MapClear) => {
            let mut clear = Context::default();
            map.add_dots(&mut clear);
            Plan { clear, ..Plan::default() }
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
            let none = Content::default();
            let content = document.content().unwrap_or(&none);
            let edit = edit(content, path.is_empty(), request, operation)?;
            Plan { clear: edit.removed, document: Some((path, edit.added)), ..Plan::default() }
        }
        (other, operation) => return Err(other.wrong_type(&request.name, operation.field_type()).into()),
    })
}

/// Plans an edit of a list, text or JSON document. `is_whole`: the field has the context for itself.
fn edit(
    content: &Content,
    is_whole: bool,
    request: Request<'_>,
    operation: Operation,
) -> Result<Edit, ApplyError> {
    let Request { name: field, dotted, replica, now, number, .. } = request;
    let seen = &dotted.context;
    // The latest edit wins, also if the clock stands still.
    let now = now.max(content.latest().successor());
    let edit = Edit::plan(content, operation, Editor { seen, replica, number, now });
    let edit = edit.map_err(|error| {
        let field = field.clone();
        match error {
            EditError::Index { index, length } => ApplyError::IndexOutOfRange { field, index, length },
            EditError::Pointer { pointer, problem } => ApplyError::BadPointer { field, pointer, problem },
            EditError::Json(error) => ApplyError::BadJson { field, error: LibraryError::new(error) },
            EditError::TooDeep => ApplyError::TooDeep { field, limit: json::MAX_JSON_DEPTH },
            EditError::TooCrowded => ApplyError::TooCrowded { field, limit: MAX_POSITION_DEPTH },
            EditError::Exhausted => ApplyError::Exhausted { field, replica },
        }
    })?;
    let context_bytes = if is_whole { seen.size_bytes() } else { 0 };
    let bytes = (content.bytes() + context_bytes + edit.added.bytes()).saturating_sub(edit.removed_bytes);
    // What makes it smaller is allowed above the limit.
    if bytes > MAX_DOCUMENT_BYTES && edit.added.bytes() > edit.removed_bytes {
        return Err(ApplyError::TooLarge { field, bytes, limit_bytes: MAX_DOCUMENT_BYTES });
    }
    Ok(edit)
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
