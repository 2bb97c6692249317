//! Fields of an object, in insertion order.

use std::collections::HashMap;
use std::sync::Arc;

use super::Data;
use super::memory::{FIELD_BYTES, INDEX_BYTES};

/// The maximum number of fields without an index. Up to this number, a linear search is the fastest and needs the
/// least memory.
const FEW: usize = 16;

/// Keys with their values.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    entries: Vec<(Arc<str>, Data)>,
    /// The positions of the keys, if there are more than [`FEW`].
    #[expect(
        clippy::box_collection,
        reason = "most objects have no index, and a box is 40 bytes less of each"
    )]
    index: Option<Box<HashMap<Arc<str>, usize>>>,
}

impl Fields {
    /// An empty object with capacity for `fields` fields.
    pub fn with_capacity(fields: usize) -> Self {
        Self { entries: Vec::with_capacity(fields), index: None }
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no fields.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Data> {
        self.place(key).and_then(|at| self.entries.get(at)).map(|(_, value)| value)
    }

    /// The field at a position.
    pub fn get_index(&self, at: usize) -> Option<(&Arc<str>, &Data)> {
        self.entries.get(at).map(|(key, value)| (key, value))
    }

    /// The fields in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Arc<str>, &Data)> + ExactSizeIterator {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// Sets a field. An existing key keeps its position, a new key is appended.
    pub fn insert(&mut self, key: Arc<str>, value: Data) {
        if let Some(at) = self.place(&key) {
            if let Some(entry) = self.entries.get_mut(at) {
                entry.1 = value;
            }
            return;
        }
        if let Some(index) = &mut self.index {
            index.insert(key.clone(), self.entries.len());
        }
        self.entries.push((key, value));
        if self.index.is_none() && self.entries.len() > FEW {
            self.index_all();
        }
    }

    /// Removes a field. The fields after it move up.
    pub fn remove(&mut self, key: &str) {
        if let Some(at) = self.place(key) {
            self.entries.remove(at);
            self.index = None;
            if self.entries.len() > FEW {
                self.index_all();
            }
        }
    }

    /// Releases spare capacity.
    pub(super) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// Memory of each field, without the text of its key and without the memory that its value points to.
    pub(super) fn field_bytes(&self) -> u64 {
        if self.len() > FEW { FIELD_BYTES + INDEX_BYTES } else { FIELD_BYTES }
    }

    fn index_all(&mut self) {
        let keys = self.entries.iter().enumerate();
        self.index = Some(Box::new(keys.map(|(at, (key, _))| (key.clone(), at)).collect()));
    }

    fn place(&self, key: &str) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(key).copied(),
            None => self.entries.iter().position(|(known, _)| **known == *key),
        }
    }
}

impl FromIterator<(Arc<str>, Data)> for Fields {
    fn from_iter<T: IntoIterator<Item = (Arc<str>, Data)>>(fields: T) -> Self {
        let fields = fields.into_iter();
        let mut all = Self::with_capacity(fields.size_hint().0);
        fields.for_each(|(key, value)| all.insert(key, value));
        all
    }
}
