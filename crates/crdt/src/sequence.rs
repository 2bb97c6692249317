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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;
    use crate::dotted::Dotted;
    use crate::{Hlc, ReplicaId};

    /// A list without a limit of its size.
    #[derive(Default)]
    struct List {
        dotted: Dotted,
    }

    impl List {
        fn apply(&mut self, node: u64, operation: Operation) {
            let replica = ReplicaId::new(node + u64::MAX / 3, 1);
            let number = self.dotted.context.next(replica).unwrap().number;
            let none = Content::default();
            let content = self.dotted.document(None).unwrap_or(&none);
            let editor = Editor { seen: &self.dotted.context, replica, number, now: Hlc::default() };
            let edit = Edit::plan(content, operation, editor).unwrap();
            let mut delta = Dotted::default();
            delta.context.merge(&edit.removed);
            delta.add_document(None, edit.added);
            self.dotted.merge(delta);
        }

        /// Inserts single bytes and checks the mean size of an element, the mean and the maximum depth of the positions.
        fn takes(&self, what: &str, elements: u64, mean_bytes: f64, depths: (f64, usize)) {
            let content = self.dotted.document(None).unwrap();
            assert_eq!(content.length(), elements);
            let mut out = Vec::new();
            self.dotted.write(&mut out);
            let all: Vec<usize> = content
                .entries()
                .iter()
                .map(|entry| match &entry.place {
                    Place::Element(position) => position.depth(),
                    Place::Json(_) => 0,
                })
                .collect();
            let mean = |sum: usize| sum as f64 / elements as f64;
            let (bytes, depth) = (mean(out.len()), mean(all.iter().sum()));
            let deepest = all.into_iter().max().unwrap();
            eprintln!("{what}: {bytes:.1} bytes an element, depth {depth:.2}, at most {deepest}");
            assert!(bytes <= mean_bytes && depth <= depths.0 && deepest <= depths.1, "{what}");
        }
    }

    fn value() -> Bytes {
        Bytes::from_static(b"v")
    }

    const MANY: u32 = 100_000;

    #[test]
    fn positions_stay_short_however_elements_are_inserted() {
        let mut list = List::default();
        for _ in 0..MANY {
            list.apply(0, Operation::ListPush(value()));
        }
        list.takes("pushes of one replica", MANY.into(), 5.0, (1.0, 1));

        let mut list = List::default();
        for number in 0..MANY {
            list.apply(u64::from(number % 2), Operation::ListPush(value()));
        }
        list.takes("pushes of two replicas in turn", MANY.into(), 20.0, (1.0, 1));

        for (what, at) in [("at the front", 0), ("at index 1", 1)] {
            let mut list = List::default();
            (0..2).for_each(|_| list.apply(0, Operation::ListPush(value())));
            for _ in 0..MANY {
                list.apply(0, Operation::ListInsert(at, value()));
            }
            list.takes(what, u64::from(MANY) + 2, 20.0, (2.0, 2));
        }

        for replicas in [1, 2] {
            let mut list = List::default();
            (0..2).for_each(|_| list.apply(0, Operation::ListPush(value())));
            for number in 0..MANY {
                list.apply(u64::from(number % replicas), Operation::ListInsert(1 + number, value()));
            }
            list.takes("before the last", u64::from(MANY) + 2, 25.0, (2.0, 2));
        }

        let (mut list, mut random) = (List::default(), 7u64);
        for length in 0..u64::from(MANY) {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = ((random >> 33) % (length + 1)) as u32;
            list.apply(random >> 63, Operation::ListInsert(at, value()));
        }
        list.takes("at random", MANY.into(), 25.0, (3.0, 6));
    }

    /// Insertion between the two elements that were inserted last is the worst that there is: each takes a bit.
    #[test]
    fn insertion_in_the_middle_has_room_for_thousands() {
        let mut list = List::default();
        let count = 10_000;
        for length in 0..count {
            list.apply(0, Operation::ListInsert(length / 2, value()));
        }
        list.takes("in the middle", count.into(), 20.0, (160.0, 320));
    }

    #[test]
    fn a_queue_leaves_nothing() {
        let mut list = List::default();
        for number in 0..1_000_000 {
            list.apply(number / 7 % 2, Operation::ListPush(value()));
            if number >= 20 {
                list.apply(number % 2, Operation::ListRemove(0));
            }
        }
        list.takes("a queue", 20, 40.0, (1.0, 1));
        let mut context = Context::default();
        list.dotted.document(None).unwrap().add_dots(&mut context);
        assert!(list.dotted.context.seen().values().all(|ranges| ranges.iter().len() == 1));
    }
}
