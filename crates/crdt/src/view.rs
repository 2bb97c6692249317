//! Keeps the trees for readers consistent with the dotted values.

use std::collections::{BTreeMap, BTreeSet};

use crate::causal::{Map, Node, Slot};
use crate::content::Content;
use crate::context::Dot;
use crate::counter::Totals;
use crate::dotted::{Difference, Dotted, Path, Payload, Step};
use crate::gcounter::Sum;
use crate::register::Register;
use crate::{Document, Field, FieldType};

impl Field {
    /// Brings the tree up to date after its dotted values changed.
    pub(crate) fn show(&mut self, difference: &Difference) {
        let mut rebuild: BTreeSet<&Path> = BTreeSet::new();
        for (dot, leaf) in &difference.added {
            put(self, *dot, leaf.path.as_deref().unwrap_or_default(), &leaf.payload);
        }
        for (dot, leaf) in &difference.removed {
            take(self, *dot, leaf.path.as_deref().unwrap_or_default(), &leaf.payload);
        }
        for (_, leaf) in difference.added.iter().chain(&difference.removed) {
            rebuild.extend(leaf.path.as_ref().filter(|path| is_rebuilt(path)));
        }
        if let Self::Map(map) = self {
            for path in rebuild {
                map.rebuild(path);
            }
            for path in difference.documents.iter().flatten() {
                map.show_document(path);
            }
        }
    }

    /// Builds the tree of decoded dotted values.
    pub(crate) fn show_all(&mut self) {
        let leaves = match self.dotted() {
            Some(dotted) => dotted.leaves().iter().map(|(dot, leaf)| (*dot, leaf.clone())).collect(),
            None => Vec::new(),
        };
        let documents = self.dotted().map(|dotted| dotted.documents().keys().cloned().collect());
        let documents = documents.unwrap_or_default();
        self.show(&Difference { added: leaves, removed: Vec::new(), documents });
    }
}

impl Map {
    /// Rebuilds a value whose tree is not updated dot by dot. It has only few dots.
    pub(crate) fn rebuild(&mut self, path: &Path) {
        let Self { slots, dotted, bounded } = self;
        let Some((last, parents)) = path.split_last() else { return };
        let mut slots = slots;
        for step in parents {
            let Some(slot) = slots.get_mut(&*step.key) else { return };
            let Some(node) = slot.0.iter_mut().find(|node| node.field.field_type() == step.field_type)
            else {
                return;
            };
            let Field::Map(map) = &mut node.field else { return };
            slots = &mut map.slots;
        }
        let node = slots
            .get_mut(&*last.key)
            .and_then(|slot| slot.0.iter_mut().find(|node| node.field.field_type() == last.field_type));
        let Some(Node { field, dots }) = node else { return };
        match field {
            Field::Register(register) => *register = latest(dots, dotted),
            Field::BoundedCounter(counter) => *counter = bounded.get(path).cloned().unwrap_or_default(),
            _ => {}
        }
    }
}

impl Map {
    /// Shows a list, text or JSON document as it is now. Its copy shares the memory.
    fn show_document(&mut self, path: &Path) {
        let document = self.dotted.document(Some(path)).cloned();
        set_document(&mut self.slots, path, document);
    }
}

fn set_document(slots: &mut BTreeMap<String, Slot>, path: &[Step], content: Option<Content>) {
    let Some((step, rest)) = path.split_first() else { return };
    if !slots.contains_key(&*step.key) {
        if content.is_none() {
            return;
        }
        slots.insert(step.key.to_string(), Slot::default());
    }
    let Some(slot) = slots.get_mut(&*step.key) else { return };
    let field = &mut slot.node(step).field;
    let empty = match (&mut *field, content) {
        (Field::Map(map), content) => {
            set_document(&mut map.slots, rest, content);
            map.slots.is_empty()
        }
        (Field::List(document) | Field::Text(document) | Field::Json(document), Some(content)) => {
            *document = Document::in_map(step.field_type, content);
            false
        }
        _ => true,
    };
    if empty {
        slot.0.retain(|node| node.field.field_type() != step.field_type);
    }
    if slot.0.is_empty() {
        slots.remove(&*step.key);
    }
}

/// True if values of this type are rebuilt when their dots change.
fn is_rebuilt(path: &[Step]) -> bool {
    let rebuilt = |field_type| matches!(field_type, FieldType::Register | FieldType::BoundedCounter);
    path.last().is_some_and(|step| rebuilt(step.field_type))
}

fn latest(dots: &BTreeSet<Dot>, dotted: &Dotted) -> Register {
    let written = dots.iter().filter_map(|dot| match dotted.payload(dot) {
        Some(Payload::Written(written)) => Some(&**written),
        _ => None,
    });
    Register { written: written.max().cloned(), deleted: None }
}

fn put(field: &mut Field, dot: Dot, path: &[Step], payload: &Payload) {
    match (field, payload) {
        (Field::Map(map), _) => {
            let Some((step, rest)) = path.split_first() else { return };
            if !map.slots.contains_key(&*step.key) {
                map.slots.insert(step.key.to_string(), Default::default());
            }
            let Some(slot) = map.slots.get_mut(&*step.key) else { return };
            let node = slot.node(step);
            if rest.is_empty() {
                node.dots.insert(dot);
            }
            put(&mut node.field, dot, rest, payload);
        }
        (Field::MvRegister(register), Payload::Bytes(value)) => {
            register.values.insert(dot, value.clone());
        }
        (Field::GSet(set), Payload::Bytes(element)) => set.elements.put(dot, element),
        (Field::Set(set), Payload::Bytes(element)) => set.elements.put(dot, element),
        (Field::EwFlag(flag) | Field::DwFlag(flag), Payload::Flag(enabled)) => {
            flag.settings.insert(dot, *enabled);
        }
        (Field::Counter(counter), Payload::Amount(amount)) => {
            let total = counter.tally.get(dot.replica);
            counter.tally.replace(dot.replica, non_zero(total.wrapping_plus(*amount)));
        }
        (Field::GCounter(counter), Payload::Unsigned(amount)) => {
            let total = counter.tally.get(dot.replica);
            let added = total.added.wrapping_add(*amount);
            counter.tally.replace(dot.replica, non_zero(Sum { added, ..total }));
        }
        _ => {}
    }
}

fn take(field: &mut Field, dot: Dot, path: &[Step], payload: &Payload) {
    match (field, payload) {
        (Field::Map(map), _) => {
            let Some((step, rest)) = path.split_first() else { return };
            let Some(slot) = map.slots.get_mut(&*step.key) else { return };
            let Ok(place) = slot.0.binary_search_by_key(&step.field_type, |node| node.field.field_type())
            else {
                return;
            };
            let Some(node) = slot.0.get_mut(place) else { return };
            take(&mut node.field, dot, rest, payload);
            let empty = match &node.field {
                Field::Map(inner) => inner.slots.is_empty(),
                _ => {
                    node.dots.remove(&dot);
                    node.dots.is_empty()
                }
            };
            if empty {
                slot.0.remove(place);
            }
            if slot.0.is_empty() {
                map.slots.remove(&*step.key);
            }
        }
        (Field::MvRegister(register), _) => {
            register.values.remove(&dot);
        }
        (Field::GSet(set), Payload::Bytes(element)) => set.elements.take(dot, element),
        (Field::Set(set), Payload::Bytes(element)) => set.elements.take(dot, element),
        (Field::EwFlag(flag) | Field::DwFlag(flag), _) => {
            flag.settings.remove(&dot);
        }
        (Field::Counter(counter), Payload::Amount(amount)) => {
            let total = counter.tally.get(dot.replica);
            counter.tally.replace(dot.replica, non_zero(total.wrapping_minus(*amount)));
        }
        (Field::GCounter(counter), Payload::Unsigned(amount)) => {
            let total = counter.tally.get(dot.replica);
            let added = total.added.wrapping_sub(*amount);
            counter.tally.replace(dot.replica, non_zero(Sum { added, ..total }));
        }
        _ => {}
    }
}

fn non_zero<T: Default + PartialEq>(total: T) -> Option<T> {
    (total != T::default()).then_some(total)
}

impl Totals {
    // Only amounts that no well-behaved replica writes overflow; taking them away again must lead back.
    fn wrapping_plus(self, other: Self) -> Self {
        Self {
            added: self.added.wrapping_add(other.added),
            subtracted: self.subtracted.wrapping_add(other.subtracted),
            ..self
        }
    }

    fn wrapping_minus(self, other: Self) -> Self {
        Self {
            added: self.added.wrapping_sub(other.added),
            subtracted: self.subtracted.wrapping_sub(other.subtracted),
            ..self
        }
    }
}
