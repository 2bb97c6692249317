//! A sorted sequence in chunks that clones share: a clone copies no items, and a change copies one chunk.

use std::sync::Arc;

/// Maximum number of items of a chunk.
const MAX_ITEMS: usize = 64;
/// A chunk with fewer items is joined with the one after it if both together leave room.
const FEW_ITEMS: usize = 16;

/// An item that stands for a number of places in the sequence, such as the characters of a piece of text.
pub(crate) trait Weighed {
    fn weight(&self) -> u64;
}

#[derive(Debug, Clone)]
pub(crate) struct Chunked<T> {
    chunks: Vec<Chunk<T>>,
    items: usize,
    weight: u64,
}

#[derive(Debug)]
struct Chunk<T> {
    weight: u64,
    items: Arc<Vec<T>>,
}

/// The place of an item, or the end. A change of the sequence makes it invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cursor {
    chunk: usize,
    item: usize,
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), items: 0, weight: 0 }
    }
}

impl<T> Clone for Chunk<T> {
    fn clone(&self) -> Self {
        Self { weight: self.weight, items: self.items.clone() }
    }
}

impl<T: Clone + Weighed> Chunked<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// The number of items.
    pub(crate) fn len(&self) -> usize {
        self.items
    }

    /// The weight of all items.
    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.items.iter())
    }

    /// The items from a cursor to the end.
    pub(crate) fn iter_from(&self, from: Cursor) -> impl Iterator<Item = &T> {
        let first = self.chunks.get(from.chunk).map_or(&[][..], |chunk| &chunk.items[from.item..]);
        let rest = self.chunks.get(from.chunk + 1..).unwrap_or_default();
        first.iter().chain(rest.iter().flat_map(|chunk| chunk.items.iter()))
    }

    pub(crate) fn get(&self, at: Cursor) -> Option<&T> {
        self.chunks.get(at.chunk)?.items.get(at.item)
    }

    /// The first item for which `is_before` is false. It is true for all items before that one.
    pub(crate) fn partition(&self, mut is_before: impl FnMut(&T) -> bool) -> Cursor {
        let chunk = self.chunks.partition_point(|chunk| chunk.items.last().is_some_and(&mut is_before));
        let item = self.chunks.get(chunk).map_or(0, |chunk| chunk.items.partition_point(is_before));
        Cursor { chunk, item }
    }

    /// The item that holds the place `at`, and the place within it; `None` at the end.
    pub(crate) fn at_weight(&self, mut at: u64) -> Option<(Cursor, u64)> {
        for (number, chunk) in self.chunks.iter().enumerate() {
            if at >= chunk.weight {
                at -= chunk.weight;
                continue;
            }
            for (item, each) in chunk.items.iter().enumerate() {
                if at < each.weight() {
                    return Some((Cursor { chunk: number, item }, at));
                }
                at -= each.weight();
            }
        }
        None
    }

    pub(crate) fn previous(&self, at: Cursor) -> Option<Cursor> {
        match at.item.checked_sub(1) {
            Some(item) => Some(Cursor { item, ..at }),
            None => {
                let chunk = at.chunk.checked_sub(1)?;
                Some(Cursor { chunk, item: self.chunks.get(chunk)?.items.len() - 1 })
            }
        }
    }

    /// Inserts an item before the one at the cursor.
    pub(crate) fn insert(&mut self, at: Cursor, item: T) {
        let weight = item.weight();
        self.items += 1;
        self.weight += weight;
        // Between two chunks, the item goes to the end of the first.
        let (number, place) = match (at.item, at.chunk.checked_sub(1)) {
            (0, Some(before)) => (before, self.chunks[before].items.len()),
            _ => (at.chunk, at.item),
        };
        let Some(chunk) = self.chunks.get_mut(number) else {
            self.chunks.push(Chunk { weight, items: Arc::new(vec![item]) });
            return;
        };
        let items = Arc::make_mut(&mut chunk.items);
        items.insert(place, item);
        chunk.weight += weight;
        if items.len() > MAX_ITEMS {
            // After appending, the old chunk stays full.
            let from = if place + 1 == items.len() { place } else { items.len() / 2 };
            let moved = items.split_off(from);
            let weight = moved.iter().map(Weighed::weight).sum();
            chunk.weight -= weight;
            self.chunks.insert(number + 1, Chunk { weight, items: Arc::new(moved) });
        }
    }

    /// Removes the item at the cursor, which must exist.
    pub(crate) fn remove(&mut self, at: Cursor) -> T {
        let chunk = &mut self.chunks[at.chunk];
        let items = Arc::make_mut(&mut chunk.items);
        let item = items.remove(at.item);
        let (left, weight) = (items.len(), item.weight());
        chunk.weight -= weight;
        self.items -= 1;
        self.weight -= weight;
        if left == 0 {
            self.chunks.remove(at.chunk);
        } else if left < FEW_ITEMS
            && self
                .chunks
                .get(at.chunk + 1)
                .is_some_and(|next| left + next.items.len() <= MAX_ITEMS * 3 / 4)
        {
            let next = self.chunks.remove(at.chunk + 1);
            let chunk = &mut self.chunks[at.chunk];
            chunk.weight += next.weight;
            Arc::make_mut(&mut chunk.items).extend(next.items.iter().cloned());
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Weighed for u64 {
        fn weight(&self) -> u64 {
            *self
        }
    }

    #[test]
    fn it_is_a_sorted_vec_with_sums() {
        let (mut chunked, mut model, mut random) = (Chunked::default(), Vec::new(), 7u64);
        for round in 0..5_000u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let value = (random >> 33) % 1_000 + 1;
            let at = chunked.partition(|item: &u64| *item < value);
            let place = model.partition_point(|item| *item < value);
            if round % 3 == 2 && place < model.len() {
                assert_eq!(chunked.remove(at), model.remove(place));
            } else {
                chunked.insert(at, value);
                model.insert(place, value);
            }
            let kept = chunked.clone();
            assert_eq!((kept.len(), kept.weight()), (model.len(), model.iter().sum()));
            let start = value % kept.weight();
            let (found, rest) = kept.at_weight(start).unwrap();
            let before = model.iter().scan(0, |sum, item| {
                *sum += item;
                Some(*sum)
            });
            let index = before.take_while(|sum| *sum <= start).count();
            assert_eq!(kept.get(found), model.get(index));
            assert!(rest < model[index]);
            assert!(kept.iter_from(found).eq(&model[index..]));
            let previous = kept.previous(found).and_then(|at| kept.get(at));
            assert_eq!(previous, index.checked_sub(1).map(|index| &model[index]));
        }
        assert!(chunked.iter().eq(&model));
        while !chunked.is_empty() {
            let last = chunked.previous(chunked.partition(|_| true)).unwrap();
            assert_eq!(chunked.remove(last), model.pop().unwrap());
        }
        assert_eq!(chunked.weight(), 0);
    }
}
