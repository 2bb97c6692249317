//! The types that stand on dotted values, as their readers see them: MV register, sets, flags and maps.
//!
//! Each is the tree that readers want, and at the top of a field also the [`Dotted`] values that it comes from; inside a
//! map those stand with the map.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::context::Dot;
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
}

/// A set whose elements come and go; of an addition and a concurrent removal the addition wins (OR-set).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    pub(crate) elements: Elements,
    pub(crate) dotted: Dotted,
}

/// A flag. Whether enabling or disabling wins over its concurrent opposite is up to the field's type; both start disabled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flag {
    pub(crate) settings: BTreeMap<Dot, bool>,
    pub(crate) dotted: Dotted,
}

/// Fields by name. An update wins over a concurrent removal of its key, which takes away what it has seen (OR-map).
///
/// A key is there as long as something is in it: a set that lost its last element is gone. What a removal does to a value
/// of each type while another replica updates it:
///
/// - counter, g-counter: the amounts that the removal has seen go, others stay. A replica's amounts on a key are kept
///   apart only up to the last 32; older ones are taken for one with the newest of them, and go or stay together.
/// - register, mv-register, flags: what was set concurrently stays.
/// - g-set, set: the elements added (again) concurrently stay.
/// - list, text, json: a concurrent edit stays and brings the document back as its author saw it. An update sends the
///   whole document, not the edit alone.
/// - bounded counter: it is out of sight until it is used again and comes back with what it had. Shares that were
///   forgotten here and not there would let it fall below its floor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Map {
    pub(crate) slots: BTreeMap<String, Slot>,
    pub(crate) dotted: Dotted,
    /// Bounded counters only grow, removed or not.
    pub(crate) bounded: BTreeMap<Path, BoundedCounter>,
}

/// The values of one key, by type; the first is the one that is seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) Vec<Node>);

/// A value in a map and the dots it comes from; those of a nested map stand with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) field: Field,
    pub(crate) dots: BTreeSet<Dot>,
}

/// The elements of a set, each with the dots that added it. At the top of a g-set there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Elements {
    by_value: BTreeMap<Bytes, Vec<Dot>>,
    bytes: usize,
}

impl MvRegister {
    /// The values, sorted, equal ones once.
    pub fn values(&self) -> Vec<Bytes> {
        let values: BTreeSet<&Bytes> = self.values.values().collect();
        values.into_iter().cloned().collect()
    }
}

impl GSet {
    /// Whether an element is in it.
    pub fn contains(&self, element: &[u8]) -> bool {
        self.elements.contains(element)
    }

    /// The elements, sorted.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.elements.iter()
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.elements.iter().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes in another state or delta; true if that changed anything.
    pub fn merge(&mut self, other: Self) -> bool {
        let mut changed = false;
        for (element, _) in other.elements.by_value {
            changed |= self.elements.insert(element);
        }
        changed
    }
}

impl Set {
    /// Whether an element is in it.
    pub fn contains(&self, element: &[u8]) -> bool {
        self.elements.contains(element)
    }

    /// The elements, sorted.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.elements.iter()
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.elements.iter().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Flag {
    /// Whether it is enabled where enabling wins.
    pub fn enable_wins(&self) -> bool {
        self.settings.values().any(|enabled| *enabled)
    }

    /// Whether it is enabled where disabling wins.
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

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The dots of all values below it.
    pub(crate) fn all_dots(&self, dots: &mut Vec<Dot>) {
        self.slots.values().for_each(|slot| slot.all_dots(dots));
    }
}

impl Slot {
    pub(crate) fn visible(&self) -> Option<&Node> {
        self.0.first()
    }

    pub(crate) fn all_dots(&self, dots: &mut Vec<Dot>) {
        for node in &self.0 {
            match &node.field {
                Field::Map(map) => map.all_dots(dots),
                _ => dots.extend(&node.dots),
            }
        }
    }

    /// The node of a step's type, made if it is missing.
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
