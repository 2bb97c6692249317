//! Dotted values: the state of the types that can take something away again. Each value has the dot of the update that
//! wrote it; a dot that is in the context and has no value was removed. So nothing is kept of what is gone but its dot,
//! and dots become ranges (Almeida, Shoker, Baquero: Delta State Replicated Data Types, 2018, sections 7.2 to 7.4).
//!
//! All values of a field, those of nested maps included, stand in one flat map from dots to values and share one
//! context. The tree that readers want is kept beside it, see [`crate::view`]. Lists, texts and JSON documents have an order of
//! their own, so that their values stand in a [`Content`] for each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use postcard::Error;

use crate::chunked::{Chunked, Weighed};
use crate::content::Content;
use crate::context::{Context, Dot};
use crate::counter::Totals;
use crate::register::Written;
use crate::wire::{Reader, Wire};
use crate::{FieldType, Hlc, ReplicaId};

/// The maximum nesting depth of maps.
pub const MAX_MAP_DEPTH: usize = 16;

/// The dots and values of one field.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dotted {
    pub(crate) context: Context,
    leaves: BTreeMap<Dot, Leaf>,
    /// Lists, texts and JSON documents that are not empty, by their path as in [`Leaf`].
    documents: BTreeMap<Option<Path>, Content>,
    /// The documents in a map by their dots.
    owners: Chunked<Owned>,
    /// Size of the values, in bytes, kept up to date.
    bytes: usize,
}

/// A value and its location: no path for the field itself, else a path below the top of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) path: Option<Path>,
    pub(crate) payload: Payload,
}

pub(crate) type Path = Arc<[Step]>;

/// One key of a map, and the type of the value. Replicas may have created the key with different types.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Step {
    pub(crate) key: Arc<str>,
    pub(crate) field_type: FieldType,
}

/// The content that an update wrote. It never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Payload {
    /// A value of an MV register or an element of a set.
    Bytes(Bytes),
    Flag(bool),
    Unsigned(u64),
    Amount(Totals),
    Written(Box<Written>),
    /// A bounded counter was used. Its value is stored separately.
    Present,
}

/// Consecutive dots of a document in a map. The document may have lost some of them, but not all.
#[derive(Debug, Clone)]
struct Owned {
    first: Dot,
    last: Dot,
    path: Path,
}

impl Weighed for Owned {
    fn weight(&self) -> u64 {
        1
    }
}

/// The changes that a join or an update made.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    pub(crate) removed: Vec<(Dot, Leaf)>,
    pub(crate) added: Vec<(Dot, Leaf)>,
    /// Paths of changed documents.
    pub(crate) documents: BTreeSet<Option<Path>>,
}

impl Dotted {
    /// One document without its context.
    pub(crate) fn of_document(path: Option<Path>, content: Content) -> Self {
        let bytes = content.size_bytes();
        let documents = (!content.is_empty()).then_some((path, content)).into_iter().collect();
        Self { documents, bytes, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.context.is_empty() && self.is_vacant()
    }

    /// True if it has no values.
    pub(crate) fn is_vacant(&self) -> bool {
        self.leaves.is_empty() && self.documents.is_empty()
    }

    pub(crate) fn document(&self, path: Option<&Path>) -> Option<&Content> {
        self.documents.get(&path.cloned())
    }

    pub(crate) fn documents(&self) -> &BTreeMap<Option<Path>, Content> {
        &self.documents
    }

    /// The latest time in a document.
    pub(crate) fn latest(&self) -> Hlc {
        self.documents.values().map(Content::latest).max().unwrap_or_default()
    }

    pub(crate) fn leaves(&self) -> &BTreeMap<Dot, Leaf> {
        &self.leaves
    }

    pub(crate) fn payload(&self, dot: &Dot) -> Option<&Payload> {
        self.leaves.get(dot).map(|leaf| &leaf.payload)
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.context.size_bytes() + self.bytes + self.documents.len() * 128 + self.owners.len() * 64
    }

    /// Adds a value, also to the context. In a delta of an update.
    pub(crate) fn add(&mut self, dot: Dot, leaf: Leaf) {
        self.context.insert(dot);
        self.put(dot, leaf);
    }

    /// Adds the values of a document, also to the context. In a delta of an update.
    pub(crate) fn add_document(&mut self, path: Option<Path>, content: Content) {
        if !content.is_empty() {
            self.bytes += content.size_bytes();
            self.own(&path, &content, &Context::default());
            content.add_dots(&mut self.context);
            self.documents.insert(path, content);
        }
    }

    /// The join of the causal states: a value stays if both have it, or if one has it and the other never saw its dot.
    /// Takes time for the dots of `other`, not for those that only this one has.
    pub(crate) fn merge(&mut self, mut other: Self) -> (Difference, bool) {
        let none = Content::default();
        let mut difference = Difference::default();
        let mut gone = Vec::new();
        for (first, last) in other.context.spans() {
            let ours = self.leaves.range(first..=last).map(|(dot, _)| *dot);
            gone.extend(ours.filter(|dot| !other.leaves.contains_key(dot)));
        }
        for dot in gone {
            difference.removed.extend(self.take(dot).map(|leaf| (dot, leaf)));
        }
        for (dot, leaf) in std::mem::take(&mut other.leaves) {
            if !self.context.contains(dot) {
                self.put(dot, leaf.clone());
                difference.added.push((dot, leaf));
            }
        }
        let seen = std::mem::take(&mut self.context);
        for (path, theirs) in &other.documents {
            self.own(path, theirs, &seen);
        }
        self.context = seen;
        for path in self.touched_documents(&other) {
            let theirs = other.documents.get(&path).unwrap_or(&none);
            let ours = self.documents.entry(path.clone()).or_default();
            let before = ours.size_bytes();
            let changed = ours.merge(&self.context, theirs, &other.context);
            self.bytes = (self.bytes + ours.size_bytes()).saturating_sub(before);
            if ours.is_empty() {
                self.documents.remove(&path);
            }
            if changed {
                difference.documents.insert(path);
            }
        }
        self.disown(&other.context);
        let values = difference.removed.len() + difference.documents.len();
        let changed = self.context.merge(&other.context) || values > 0;
        (difference, changed)
    }

    /// The documents that a join with `other` may change.
    fn touched_documents(&self, other: &Self) -> BTreeSet<Option<Path>> {
        let mut touched: BTreeSet<_> = other.documents.keys().cloned().collect();
        touched.extend(self.documents.contains_key(&None).then_some(None));
        for (first, last) in other.context.spans() {
            touched.extend(self.owned(first, last).map(|owned| Some(owned.path.clone())));
        }
        touched
    }

    fn owned(&self, first: Dot, last: Dot) -> impl Iterator<Item = &Owned> {
        let from = self.owners.partition(|owned| owned.last < first);
        self.owners.iter_from(from).take_while(move |owned| owned.first <= last)
    }

    /// Notes the dots of a document in a map that `seen` does not have.
    fn own(&mut self, path: &Option<Path>, content: &Content, seen: &Context) {
        let Some(path) = path else { return };
        for (first, last) in content.spans() {
            for (start, end) in seen.missing(first.replica, first.number, last.number) {
                let first = Dot { number: start, ..first };
                let at = self.owners.partition(|owned| owned.first < first);
                let last = Dot { number: end, ..first };
                self.owners.insert(at, Owned { first, last, path: path.clone() });
            }
        }
    }

    /// Forgets the dots that no document has any more.
    fn disown(&mut self, seen: &Context) {
        let mut gone = Vec::new();
        for (first, last) in seen.spans() {
            let lost = self.owned(first, last).filter(|owned| {
                let count = owned.last.number - owned.first.number + 1;
                let document = self.documents.get(&Some(owned.path.clone()));
                !document.is_some_and(|document| document.has_any(owned.first, count))
            });
            gone.extend(lost.map(|owned| owned.first));
        }
        for first in gone {
            let at = self.owners.partition(|owned| owned.first < first);
            if self.owners.get(at).is_some_and(|owned| owned.first == first) {
                self.owners.remove(at);
            }
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let seen = self.context.seen();
        let mut replicas: BTreeSet<ReplicaId> =
            seen.keys().copied().chain(self.leaves.keys().map(|dot| dot.replica)).collect();
        self.documents.values().for_each(|content| content.add_replicas(&mut replicas));
        replicas.write(out);
        self.context.folded().write(out);
        for replica in &replicas {
            let ranges = seen.get(replica);
            (ranges.map_or(0, |ranges| ranges.iter().len()) as u64).write(out);
            let mut next = 0;
            for (first, last) in ranges.into_iter().flat_map(|ranges| ranges.iter()) {
                (first - next).write(out);
                (last - first).write(out);
                next = last;
            }
        }

        let places: BTreeMap<ReplicaId, u64> = replicas.into_iter().zip(0..).collect();
        let mut groups: BTreeMap<Option<&Path>, Vec<(&Dot, &Payload)>> = BTreeMap::new();
        for (dot, leaf) in &self.leaves {
            groups.entry(leaf.path.as_ref()).or_default().push((dot, &leaf.payload));
        }
        for path in self.documents.keys() {
            groups.entry(path.as_ref()).or_default();
        }
        (groups.len() as u64).write(out);
        for (path, leaves) in groups {
            let steps = path.map_or(&[][..], |path| path);
            (steps.len() as u64).write(out);
            for step in steps {
                step.write(out);
            }
            if let Some(content) = self.document(path) {
                content.write(&places, out);
                continue;
            }
            (leaves.len() as u64).write(out);
            for (dot, payload) in leaves {
                places.get(&dot.replica).copied().unwrap_or_default().write(out);
                dot.number.write(out);
                payload.write(out);
            }
        }
    }

    /// Reads the values of a field of type `top`.
    pub(crate) fn read(top: FieldType, from: &mut Reader<'_>) -> Result<Self, Error> {
        let mut dotted = Self::default();
        let replicas: Vec<ReplicaId> = BTreeSet::read(from)?.into_iter().collect();
        let folded: BTreeMap<u64, u32> = BTreeMap::read(from)?;
        for replica in &replicas {
            let mut next = 0u64;
            for _ in 0..u64::read(from)? {
                let first = next.checked_add(u64::read(from)?).ok_or(Error::DeserializeBadVarint)?;
                next = first.checked_add(u64::read(from)?).ok_or(Error::DeserializeBadVarint)?;
                dotted.context.insert_range(*replica, first, next);
            }
        }
        for _ in 0..u64::read(from)? {
            let path = read_path(top, from)?;
            let field_type = path.as_ref().and_then(|path| path.last()).map_or(top, |step| step.field_type);
            if field_type.is_document() {
                let content = Content::read(field_type, &replicas, from)?;
                if content.is_empty() || dotted.documents.contains_key(&path) {
                    return Err(Error::DeserializeBadEncoding);
                }
                dotted.add_document(path, content);
                continue;
            }
            for _ in 0..u64::read(from)? {
                let place = usize::try_from(u64::read(from)?).ok();
                let replica =
                    place.and_then(|place| replicas.get(place)).ok_or(Error::DeserializeBadEncoding)?;
                let dot = Dot { replica: *replica, number: u64::read(from)? };
                let payload = Payload::read(field_type, from)?;
                dotted.context.insert(dot);
                dotted.put(dot, Leaf { path: path.clone(), payload });
            }
        }
        for (node, up_to) in folded {
            dotted.context.take_folded(node, up_to);
        }
        Ok(dotted)
    }

    fn put(&mut self, dot: Dot, leaf: Leaf) {
        self.bytes += leaf.size_bytes();
        if let Some(before) = self.leaves.insert(dot, leaf) {
            self.bytes = self.bytes.saturating_sub(before.size_bytes());
        }
    }

    fn take(&mut self, dot: Dot) -> Option<Leaf> {
        let leaf = self.leaves.remove(&dot)?;
        self.bytes = self.bytes.saturating_sub(leaf.size_bytes());
        Some(leaf)
    }
}

impl PartialEq for Dotted {
    fn eq(&self, other: &Self) -> bool {
        (&self.context, &self.leaves, &self.documents) == (&other.context, &other.leaves, &other.documents)
    }
}

impl Eq for Dotted {}

impl Leaf {
    /// Approximate size in bytes, including its entry in the tree.
    fn size_bytes(&self) -> usize {
        let payload = match &self.payload {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Written(written) => 64 + written.value.len(),
            Payload::Flag(_) | Payload::Unsigned(_) | Payload::Amount(_) | Payload::Present => 0,
        };
        128 + payload
    }
}

impl Payload {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => bytes.write(out),
            Self::Flag(flag) => flag.write(out),
            Self::Unsigned(number) => number.write(out),
            Self::Amount(totals) => totals.write(out),
            Self::Written(written) => written.write(out),
            Self::Present => {}
        }
    }

    fn read(field_type: FieldType, from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(match field_type {
            FieldType::Counter => Self::Amount(Totals::read(from)?),
            FieldType::Register => Self::Written(Box::new(Written::read(from)?)),
            FieldType::GCounter => Self::Unsigned(u64::read(from)?),
            FieldType::BoundedCounter => Self::Present,
            FieldType::MvRegister | FieldType::GSet | FieldType::Set => Self::Bytes(Bytes::read(from)?),
            FieldType::EwFlag | FieldType::DwFlag => Self::Flag(bool::read(from)?),
            FieldType::Map | FieldType::List | FieldType::Text | FieldType::Json => {
                return Err(Error::DeserializeBadEncoding);
            }
        })
    }
}

impl Step {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        (self.key.len() as u64).write(out);
        out.extend_from_slice(self.key.as_bytes());
        out.push(self.field_type.number());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        let key = String::read(from)?.into();
        let field_type = from.field_type()?;
        Ok(Self { key, field_type })
    }
}

/// A path as it may be below a field of type `top`: only maps have one, and all but its last step are maps.
pub(crate) fn read_path(top: FieldType, from: &mut Reader<'_>) -> Result<Option<Path>, Error> {
    let length = u64::read(from)?;
    if length > MAX_MAP_DEPTH as u64 {
        return Err(Error::DeserializeBadEncoding);
    }
    let mut steps = Vec::new();
    let mut parent = top;
    for _ in 0..length {
        let step = Step::read(from)?;
        if parent != FieldType::Map {
            return Err(Error::DeserializeBadEncoding);
        }
        parent = step.field_type;
        steps.push(step);
    }
    if parent == FieldType::Map {
        return Err(Error::DeserializeBadEncoding);
    }
    Ok((!steps.is_empty()).then(|| steps.into()))
}
