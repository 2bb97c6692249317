//! Lists, texts and JSON documents: what an edit removes and adds, and the values for readers.

use bytes::Bytes;

use crate::content::{Atom, Content, Entry};
use crate::context::{Context, Dot};
use crate::dotted::Dotted;
use crate::{FieldType, Hlc, Operation, ReplicaId};

/// Maximum size of the live content of a list, text or JSON document: values, positions and causal context. It bounds the
/// duration of an edit, during which all other edits of the node wait.
pub const MAX_DOCUMENT_BYTES: usize = 256 << 10;

/// A list of byte strings, a text or a JSON document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    field_type: FieldType,
    /// In a map, the map has the context.
    pub(crate) dotted: Dotted,
}

/// The effect of an edit.
#[derive(Debug, Default)]
pub(crate) struct Edit {
    pub(crate) removed: Context,
    /// Size of the removed values, about as they count towards the limit.
    pub(crate) removed_bytes: usize,
    pub(crate) added: Content,
}

/// The origin of an edit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Editor<'a> {
    pub(crate) seen: &'a Context,
    pub(crate) replica: ReplicaId,
    /// The number of the first dot that the edit may use.
    pub(crate) number: u64,
    pub(crate) now: Hlc,
}

/// An edit was rejected.
#[derive(Debug)]
pub(crate) enum EditError {
    Index { index: u64, length: u64 },
    Pointer { pointer: String, problem: &'static str },
    Json(serde_json::Error),
    TooDeep,
    TooCrowded,
    Exhausted,
}

impl Document {
    pub(crate) fn empty(field_type: FieldType) -> Self {
        Self { field_type, dotted: Dotted::default() }
    }

    /// A document in a map.
    pub(crate) fn in_map(field_type: FieldType, content: Content) -> Self {
        Self { field_type, dotted: Dotted::of_document(None, content) }
    }

    pub(crate) fn content(&self) -> Option<&Content> {
        self.dotted.document(None)
    }

    /// The type of the document's field.
    pub fn field_type(&self) -> FieldType {
        self.field_type
    }

    /// The elements of a list; empty for other types.
    pub fn list(&self) -> Vec<Bytes> {
        let entries = self.content().into_iter().flat_map(|content| content.entries().iter());
        entries.filter_map(|entry| newest(entry.leaves())).map(|(_, value)| value.clone()).collect()
    }

    /// The characters of a text; empty for other types.
    pub fn text(&self) -> String {
        let entries = self.content().into_iter().flat_map(|content| content.entries().iter());
        entries.filter_map(|entry| entry.piece()).map(|(_, text, _)| &**text).collect()
    }

    /// A JSON document as JSON text with sorted keys.
    pub fn json(&self) -> String {
        self.content().map_or_else(|| "{}".to_owned(), crate::json::read)
    }
}

impl Edit {
    /// Plans an operation on the content of a document.
    pub(crate) fn plan(content: &Content, operation: Operation, by: Editor<'_>) -> Result<Self, EditError> {
        let edit = match operation {
            Operation::JsonSet { pointer, value } => crate::json::set(content, &pointer, &value, by)?,
            Operation::JsonRemove { pointer } => crate::json::remove(content, &pointer, by)?,
            other => crate::sequence::edit(content, other, by)?,
        };
        // The last number must stay free, so that a range of dots has an end.
        match by.number.checked_add(edit.added.length()) {
            Some(end) if end < u64::MAX - 1 => Ok(edit),
            _ => Err(EditError::Exhausted),
        }
    }

    /// Removes all values of an entry that is not a piece of text.
    pub(crate) fn remove(&mut self, entry: &Entry) {
        for (dot, _) in entry.leaves() {
            self.removed.insert(*dot);
        }
        self.removed_bytes += entry.bytes();
    }
}

impl Editor<'_> {
    pub(crate) fn dot(&self, offset: u64) -> Dot {
        Dot { replica: self.replica, number: self.number.saturating_add(offset) }
    }

    /// The number of the latest dot of a dot's replica.
    pub(crate) fn latest(&self, dot: Dot) -> u64 {
        self.seen.last(dot.replica)
    }
}

/// The value that readers of an element see: the same on every replica.
pub(crate) fn newest(leaves: &[(Dot, Atom)]) -> Option<(Dot, &Bytes)> {
    let values = leaves.iter().filter_map(|(dot, atom)| match atom {
        Atom::Bytes(value) => Some((*dot, value)),
        Atom::Json { .. } => None,
    });
    values.max_by_key(|(dot, _)| (dot.number, dot.replica))
}
