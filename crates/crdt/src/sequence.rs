//! Edits of lists and texts.

use automerge::transaction::Transactable;
use automerge::{ActorId, ROOT, ReadDoc};
use bytes::Bytes;

use crate::document::{Document, EditError, ROOT_KEY, root_object, root_type};

/// An edit of a list or text.
#[derive(Debug)]
pub(crate) enum SequenceEdit {
    Insert(u32, Bytes),
    Push(Bytes),
    Set(u32, Bytes),
    Remove(u32),
    Splice { at: u32, delete: u32, insert: String },
}

impl Document {
    /// Applies an edit as `actor` and returns the new change as a delta.
    pub(crate) fn edit_sequence(&mut self, actor: ActorId, edit: SequenceEdit) -> Result<Self, EditError> {
        let field_type = self.field_type();
        self.edit(actor, |doc| {
            let root = match root_object(doc, field_type) {
                Some(root) => root,
                None => doc.put_object(ROOT, ROOT_KEY, root_type(field_type))?,
            };
            let length = doc.length(&root) as u64;
            let within = |index: u32, end: u64| match u64::from(index) {
                index if index < end => Ok(index as usize),
                index => Err(EditError::Index { index, length }),
            };
            match edit {
                SequenceEdit::Insert(index, value) => {
                    doc.insert(&root, within(index, length + 1)?, value.to_vec())?
                }
                SequenceEdit::Push(value) => doc.insert(&root, length as usize, value.to_vec())?,
                SequenceEdit::Set(index, value) => {
                    doc.put(&root, within(index, length)?, value.to_vec())?
                }
                SequenceEdit::Remove(index) => doc.delete(&root, within(index, length)?)?,
                SequenceEdit::Splice { at, delete, insert } => {
                    let at = within(at, length + 1)?;
                    let end = at as u64 + u64::from(delete);
                    if end > length {
                        return Err(EditError::Index { index: end, length });
                    }
                    doc.splice_text(&root, at, delete as isize, &insert)?;
                }
            }
            Ok(())
        })
    }
}
