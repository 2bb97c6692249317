//! Edits of lists and texts.

use bytes::Bytes;

use crate::Operation;
use crate::content::{Atom, Content, Entry, Place};
use crate::document::{Edit, EditError, Editor};
use crate::position::{Neighbour, Position};

/// Plans an operation on a list or text.
pub(crate) fn edit(content: &Content, operation: Operation, by: Editor<'_>) -> Result<Edit, EditError> {
    let length = content.length();
    let within = |index: u32, end: u64| match u64::from(index) {
        index if index < end => Ok(index),
        index => Err(EditError::Index { index, length }),
    };
    let mut edit = Edit::default();
    match operation {
        Operation::ListInsert(index, value) => {
            insert(&mut edit, content, within(index, length + 1)?, value, by)?
        }
        Operation::ListPush(value) => insert(&mut edit, content, length, value, by)?,
        Operation::ListSet(index, value) => {
            if let Some(entry) = element(content, within(index, length)?) {
                edit.remove(entry);
                // It keeps its position.
                edit.added.put(&entry.place, by.dot(0), Atom::Bytes(value));
            }
        }
        Operation::ListRemove(index) => {
            if let Some(entry) = element(content, within(index, length)?) {
                edit.remove(entry);
            }
        }
        Operation::TextSplice { at, delete, insert } => {
            let at = within(at, length + 1)?;
            let end = at + u64::from(delete);
            if end > length {
                return Err(EditError::Index { index: end, length });
            }
            delete_text(&mut edit, content, at, u64::from(delete));
            if !insert.is_empty() {
                let position = place(content, at, end, by)?;
                edit.added.put_text(&position, &insert);
            }
        }
        _ => {}
    }
    Ok(edit)
}

fn insert(
    edit: &mut Edit,
    content: &Content,
    index: u64,
    value: Bytes,
    by: Editor<'_>,
) -> Result<(), EditError> {
    let position = place(content, index, index, by)?;
    edit.added.put(&Place::Element(position), by.dot(0), Atom::Bytes(value));
    Ok(())
}

/// A position between the element before `start` and the one at `end`.
fn place(content: &Content, start: u64, end: u64, by: Editor<'_>) -> Result<Position, EditError> {
    let left = start.checked_sub(1).and_then(|index| neighbour(content, index));
    let right = neighbour(content, end);
    Position::between(left.as_ref(), right.as_ref(), by.dot(0), |dot| by.latest(dot))
        .ok_or(EditError::TooCrowded)
}

fn neighbour(content: &Content, index: u64) -> Option<Neighbour> {
    let (cursor, within) = content.entries().at_weight(index)?;
    let entry = content.entries().get(cursor)?;
    let Place::Element(position) = &entry.place else { return None };
    let position = position.shifted(within);
    let dot = entry.leaves().last().map_or_else(|| position.dot(), |(dot, _)| *dot);
    Some(Neighbour { position, dot })
}

fn element(content: &Content, index: u64) -> Option<&Entry> {
    content.entries().at_weight(index).and_then(|(cursor, _)| content.entries().get(cursor))
}

fn delete_text(edit: &mut Edit, content: &Content, at: u64, mut count: u64) {
    let Some((cursor, mut from)) = content.entries().at_weight(at) else { return };
    for entry in content.entries().iter_from(cursor) {
        let Some((position, text, chars)) = entry.piece().filter(|_| count > 0) else { return };
        let to = chars.min(from + count);
        let (first, last) = (position.shifted(from).dot(), position.shifted(to - 1).dot());
        edit.removed.insert_range(first.replica, first.number, last.number);
        edit.removed_bytes += crate::content::part(text, chars, from, to).len();
        count -= to - from;
        from = 0;
    }
}
