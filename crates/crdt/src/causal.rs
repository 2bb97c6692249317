//! Types based on dotted values, in the form for readers: MV register, sets, flags and maps.
//!
//! Each type has a tree for readers. At the top level of a field it also has the [`Dotted`] values from which the
//! tree is built. Inside a map, the map has those values.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::context::{Context, Dot};
use crate::dotted::{Dotted, Path, Step};
use crate::{BoundedCounter, Field};

/// A register that keeps concurrent values side by side until one overwrites them all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MvRegister {
    pub(crate) values: BTreeMap<Dot, Bytes>,
    pub(crate) dotted: Dotted,
}

/// A set that only grows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GSet {
    pub(crate) elements: Elements,
    /// A deletion begins a higher generation, which replaces the elements of lower ones.
    pub(crate) generation: u64,
}

/// A set with additions and removals. An addition wins over a concurrent removal (OR-set).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    pub(crate) elements: Elements,
    pub(crate) dotted: Dotted,
}

/// A flag. The field's type decides if enabling or disabling wins over a concurrent opposite. Both types start
/// disabled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flag {
    pub(crate) settings: BTreeMap<Dot, bool>,
    pub(crate) dotted: Dotted,
}

/// Fields by name. An update wins over a concurrent removal of its key, which removes only the updates that it has
/// seen (OR-map).
///
/// A key exists while its value is not empty: a set that lost its last element does not exist. The effect of a
/// removal on each type, while another replica updates the value:
///
/// - counter, g-counter: the amounts that the removal has seen are removed, others stay. Only the last 32 amounts of
///   a replica on a key are kept separate. Older amounts are combined with the newest of them, and are removed or kept
///   together.
/// - register, mv-register, flags: a concurrently set value stays.
/// - g-set, set: concurrently added elements stay, also those that were added again.
/// - list, text, json: concurrently added elements, characters and values stay, and the objects and arrays around the
///   values; all that the removal has seen is removed.
/// - bounded counter: it is hidden until it is used again, and then has its old value. If one replica dropped shares
///   that another still has, the value could fall below zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Map {
    pub(crate) slots: BTreeMap<String, Slot>,
    pub(crate) dotted: Dotted,
    /// Bounded counters are never removed here, even if their key was.
    pub(crate) bounded: BTreeMap<Path, BoundedCounter>,
}

/// The values of one key, sorted by type. Readers see the first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) Vec<Node>);

/// A value in a map, and the dots from which it was built. The dots of a nested map are in its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) field: Field,
    pub(crate) dots: BTreeSet<Dot>,
}

/// The elements of a set, each with the dots that added it. The top level of a g-set has no dots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Elements {
    by_value: BTreeMap<Bytes, Vec<Dot>>,
    bytes: usize,
}

impl MvRegister {
    /// The values, sorted and unique.
    pub fn values(&self) -> Vec<Bytes> {
        let values: BTreeSet<&Bytes> = self.values.values().collect();
        values.into_iter().cloned().collect()
    }
}

impl GSet {
    /// True if the set contains the element.
    pub fn contains(&self, element: &[u8]) -> bool {
        self.elements.contains(element)
    }

    /// The elements, sorted.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.elements.iter()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.elements.iter().len()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Merges another state or delta; true if this changed anything.
    pub fn merge(&mut self, other: Self) -> bool {
        if other.generation != self.generation {
            let is_later = other.generation > self.generation;
            if is_later {
                *self = other;
            }
            return is_later;
        }
        let mut changed = false;
        for (element, _) in other.elements.by_value {
            changed |= self.elements.insert(element);
        }
        changed
    }
}

impl Set {
    /// True if the set contains the element.
    pub fn contains(&self, element: &[u8]) -> bool {
        self.elements.contains(element)
    }

    /// The elements, sorted.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.elements.iter()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.elements.iter().len()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Flag {
    /// True if the flag is enabled, for the type in which enabling wins.
    pub fn enable_wins(&self) -> bool {
        self.settings.values().any(|enabled| *enabled)
    }

    /// True if the flag is enabled, for the type in which disabling wins.
    pub fn disable_wins(&self) -> bool {
        !self.settings.is_empty() && self.settings.values().all(|enabled| *enabled)
    }
}

impl Map {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Field> {
        self.slots.get(key).and_then(Slot::visible).map(|node| &node.field)
    }

    /// The keys, sorted, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Field)> {
        self.slots.iter().filter_map(|(key, slot)| slot.visible().map(|node| (key.as_str(), &node.field)))
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds the dots of all values below it to a context.
    pub(crate) fn add_dots(&self, dots: &mut Context) {
        self.slots.values().for_each(|slot| slot.add_dots(dots));
    }
}

impl Slot {
    pub(crate) fn visible(&self) -> Option<&Node> {
        self.0.first()
    }

    pub(crate) fn add_dots(&self, dots: &mut Context) {
        for node in &self.0 {
            match &node.field {
                Field::Map(map) => map.add_dots(dots),
                Field::List(document) | Field::Text(document) | Field::Json(document) => {
                    document.content().into_iter().for_each(|content| content.add_dots(dots));
                }
                _ => {
                    for dot in &node.dots {
                        dots.insert(*dot);
                    }
                }
            }
        }
    }

    /// The node of a step's type. A missing node is created.
    pub(crate) fn node(&mut self, step: &Step) -> &mut Node {
        let place = match self.0.binary_search_by_key(&step.field_type, |node| node.field.field_type()) {
            Ok(place) => place,
            Err(place) => {
                let node = Node { field: Field::empty(step.field_type), dots: BTreeSet::new() };
                self.0.insert(place, node);
                place
            }
        };
        &mut self.0[place]
    }
}

impl Elements {
    pub(crate) fn contains(&self, element: &[u8]) -> bool {
        self.by_value.contains_key(element)
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.by_value.keys()
    }

    pub(crate) fn dots(&self, element: &[u8]) -> &[Dot] {
        self.by_value.get(element).map_or(&[], |dots| dots)
    }

    pub(crate) fn all_dots(&self) -> impl Iterator<Item = Dot> + '_ {
        self.by_value.values().flatten().copied()
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes + self.by_value.len() * 72
    }

    /// Adds an element without a dot; true if it is new.
    pub(crate) fn insert(&mut self, element: Bytes) -> bool {
        let length = element.len();
        let Entry::Vacant(vacant) = self.by_value.entry(element) else { return false };
        vacant.insert(Vec::new());
        self.bytes += length;
        true
    }

    pub(crate) fn put(&mut self, dot: Dot, element: &Bytes) {
        match self.by_value.get_mut(element) {
            Some(dots) => {
                if let Err(place) = dots.binary_search(&dot) {
                    dots.insert(place, dot);
                }
            }
            None => {
                self.bytes += element.len();
                self.by_value.insert(element.clone(), vec![dot]);
            }
        }
    }

    pub(crate) fn take(&mut self, dot: Dot, element: &Bytes) {
        if let Some(dots) = self.by_value.get_mut(element) {
            dots.retain(|other| *other != dot);
            if dots.is_empty() {
                self.bytes -= element.len();
                self.by_value.remove(element);
            }
        }
    }
}
