//! The values of one list, text or JSON document: sorted entries with dots, without the context.
//!
//! Equal contents have equal entries: pieces of a text are as long as possible, but end at fixed places of a run.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;

use crate::chunked::{Chunked, Cursor, Weighed};
use crate::context::{Context, Dot};
use crate::position::Position;
use crate::trail::Trail;
use crate::{Hlc, Timestamp};

/// A piece of a text ends where the offset in its run is a multiple of this, so that an edit copies no more.
const PIECE_CHARS: u64 = 1024;

/// What a position counts towards the size of a document unless it continues a run, in bytes: about what distinguishes it from
/// the positions beside it.
const POSITION_BYTES: usize = 12;

#[derive(Debug, Clone, Default)]
pub(crate) struct Content {
    entries: Chunked<Entry>,
    /// The places of the dots.
    index: Chunked<Span>,
    bytes: usize,
    /// The latest time that it has ever had.
    latest: Hlc,
}

/// The values at one place. A list has one entry for each element, a text one for each piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) place: Place,
    pub(crate) values: Values,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// An element of a list, or the first character of a piece.
    Element(Position),
    /// A value in a JSON document; `None` for the whole.
    Json(Option<JsonPath>),
}

pub(crate) type JsonPath = Trail<Turn>;

/// A step of a path in a JSON document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    Key(Arc<str>),
    Element(Position),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Values {
    /// A piece of a text. The dots follow from the position.
    Text { text: Arc<str>, chars: u64 },
    /// Values that were set concurrently, sorted by dot; never empty.
    Leaves(Arc<[(Dot, Atom)]>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Atom {
    /// A value of a list.
    Bytes(Bytes),
    Json {
        at: Timestamp,
        node: JsonNode,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JsonNode {
    /// JSON text of a value that is neither an object nor an array.
    Scalar(Arc<str>),
    /// An object was made here. Its members have places of their own.
    Object,
    Array,
}

/// Consecutive dots of one replica, and the place of the first.
#[derive(Debug, Clone)]
struct Span {
    first: Dot,
    count: u64,
    place: Place,
}

impl Weighed for Entry {
    fn weight(&self) -> u64 {
        match &self.values {
            Values::Text { chars, .. } => *chars,
            Values::Leaves(_) => 1,
        }
    }
}

impl Weighed for Span {
    fn weight(&self) -> u64 {
        self.count
    }
}

impl Span {
    fn last(&self) -> Dot {
        Dot { number: self.first.number + (self.count - 1), ..self.first }
    }
}

impl Entry {
    /// Position and length of a piece of text.
    pub(crate) fn piece(&self) -> Option<(&Position, &Arc<str>, u64)> {
        match (&self.place, &self.values) {
            (Place::Element(position), Values::Text { text, chars }) => Some((position, text, *chars)),
            _ => None,
        }
    }

    pub(crate) fn leaves(&self) -> &[(Dot, Atom)] {
        match &self.values {
            Values::Leaves(leaves) => leaves,
            Values::Text { .. } => &[],
        }
    }

    /// The size of the values and of what distinguishes the place, about as it is encoded.
    pub(crate) fn bytes(&self) -> usize {
        let place = |position: &Position| match position.step.offset {
            0 => POSITION_BYTES,
            _ => 2,
        };
        let place = match &self.place {
            Place::Element(position) => place(position),
            Place::Json(None) => 0,
            Place::Json(Some(path)) => match &path.step {
                Turn::Key(key) => 2 + key.len(),
                Turn::Element(position) => place(position),
            },
        };
        place
            + match &self.values {
                Values::Text { text, .. } => 2 + text.len(),
                Values::Leaves(leaves) => leaves.iter().map(|(_, atom)| atom.bytes()).sum(),
            }
    }

    fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        let piece = self.piece().map(|(position, _, count)| (position.dot(), count));
        let leaves = self.leaves().iter().map(|(dot, _)| (*dot, 1));
        piece.into_iter().chain(leaves).map(|(first, count)| Span {
            first,
            count,
            place: self.place.clone(),
        })
    }
}

impl Atom {
    fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => 2 + bytes.len(),
            Self::Json { node: JsonNode::Scalar(text), .. } => 6 + text.len(),
            Self::Json { .. } => 6,
        }
    }
}

impl Content {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn entries(&self) -> &Chunked<Entry> {
        &self.entries
    }

    /// The number of elements or characters.
    pub(crate) fn length(&self) -> u64 {
        self.entries.weight()
    }

    /// The size that counts towards the limit.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Approximate size in memory, in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes + self.entries.len() * 160 + self.index.len() * 96
    }

    pub(crate) fn latest(&self) -> Hlc {
        self.latest
    }

    /// Adds its dots to a context.
    pub(crate) fn add_dots(&self, dots: &mut Context) {
        for (first, last) in self.spans() {
            dots.insert_range(first.replica, first.number, last.number);
        }
    }

    /// True if it has any of the dots.
    pub(crate) fn has_any(&self, first: Dot, count: u64) -> bool {
        let last = first.number.saturating_add(count.saturating_sub(1));
        self.overlaps(first, Dot { number: last, ..first }).next().is_some()
    }

    /// Its dots, as the first and the last of consecutive ones.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (Dot, Dot)> + '_ {
        self.index.iter().map(|span| (span.first, span.last()))
    }

    /// The join with another content. `seen` and `other_seen` are the contexts; true if this one changed.
    pub(crate) fn merge(&mut self, seen: &Context, other: &Self, other_seen: &Context) -> bool {
        let removed = self.remove_seen(other_seen, Some(other));
        let mut added = false;
        for entry in other.entries.iter() {
            if let Some((position, text, chars)) = entry.piece() {
                let dot = position.dot();
                for (first, last) in seen.missing(dot.replica, dot.number, dot.number + (chars - 1)) {
                    let from = first - dot.number;
                    self.put_text(&position.shifted(from), part(text, chars, from, last - dot.number + 1));
                    added = true;
                }
            }
            for (dot, atom) in entry.leaves() {
                if !seen.contains(*dot) {
                    self.put(&entry.place, *dot, atom.clone());
                    added = true;
                }
            }
        }
        removed | added
    }

    /// Removes the values of dots in `seen`, except those in `kept`; true if there were any.
    pub(crate) fn remove_seen(&mut self, seen: &Context, kept: Option<&Self>) -> bool {
        let mut gone = Vec::new();
        for (first, last) in seen.spans() {
            for (mut from, to) in self.overlaps(first, last) {
                let kept = kept.into_iter().flat_map(|kept| kept.overlaps(from, to));
                for (start, end) in kept.collect::<Vec<_>>() {
                    if from < start {
                        gone.push((from, start.number - 1));
                    }
                    from.number = end.number.saturating_add(1);
                }
                if from <= to {
                    gone.push((from, to.number));
                }
            }
        }
        for (from, to) in &gone {
            self.take(*from, *to);
        }
        !gone.is_empty()
    }

    /// Adds a value. No other value has its dot.
    pub(crate) fn put(&mut self, place: &Place, dot: Dot, atom: Atom) {
        if let Atom::Json { at, .. } = &atom {
            self.latest = self.latest.max(at.hlc);
        }
        let cursor = self.entries.partition(|entry| entry.place < *place);
        let leaves: Arc<[_]> = match self.entries.get(cursor) {
            Some(entry) if entry.place == *place => {
                let mut leaves = self.drop_entry(cursor).leaves().to_vec();
                leaves.insert(leaves.partition_point(|(other, _)| *other < dot), (dot, atom));
                leaves.into()
            }
            _ => Arc::new([(dot, atom)]),
        };
        let cursor = self.entries.partition(|entry| entry.place < *place);
        self.add_entry(cursor, Entry { place: place.clone(), values: Values::Leaves(leaves) });
    }

    /// Adds characters of one run. No other character has one of their dots.
    pub(crate) fn put_text(&mut self, position: &Position, mut text: &str) {
        let mut position = position.clone();
        while !text.is_empty() {
            let offset = position.step.offset;
            self.split_around(&position);
            let mut chars = PIECE_CHARS - offset % PIECE_CHARS;
            let cursor = self.find(&position);
            // An element that was inserted inside of this run may be known already.
            if let Some(Place::Element(next)) = self.entries.get(cursor).map(|entry| &entry.place)
                && *next < position.shifted(chars - 1)
            {
                let within = next.beginning(position.depth()).step.offset.saturating_sub(offset);
                chars = chars.min(within + u64::from(next.depth() > position.depth())).max(1);
            }
            let end = text.char_indices().nth(chars as usize).map_or(text.len(), |(end, _)| end);
            let (piece, rest) = text.split_at(end);
            if !rest.is_empty() || chars > 1 {
                chars = piece.chars().count() as u64;
            }
            let place = Place::Element(position.clone());
            self.add_entry(cursor, Entry { place, values: Values::Text { text: piece.into(), chars } });
            self.join(&position.shifted(chars));
            self.join(&position);
            position = position.shifted(chars);
            text = rest;
        }
    }

    /// Removes the values of the dots from `first` to the number `last`, which are in one entry of the index.
    fn take(&mut self, first: Dot, last: u64) {
        let cursor = self.index.partition(|span| span.last() < first);
        let Some(Span { first: start, place, .. }) = self.index.get(cursor).cloned() else { return };
        let cursor = self.entries.partition(|entry| entry.place < place);
        if self.entries.get(cursor).is_none_or(|entry| entry.place != place) {
            return;
        }
        let entry = self.drop_entry(cursor);
        if let Some((position, text, chars)) = entry.piece() {
            let (from, to) = (first.number - start.number, last - start.number + 1);
            for (from, to) in [(0, from), (to, chars)] {
                if from < to {
                    self.add_piece(&position.shifted(from), part(text, chars, from, to), to - from);
                }
            }
            if (from, to) == (0, chars) {
                self.join_at(self.find(position));
            }
            return;
        }
        let left: Arc<[_]> = entry.leaves().iter().filter(|(dot, _)| *dot != first).cloned().collect();
        if !left.is_empty() {
            self.add_entry(cursor, Entry { place, values: Values::Leaves(left) });
        } else if let Place::Element(position) = &place {
            self.join_at(self.find(position));
        }
    }

    /// The parts of its spans that are between two dots.
    fn overlaps(&self, first: Dot, last: Dot) -> impl Iterator<Item = (Dot, Dot)> + '_ {
        let from = self.index.partition(|span| span.last() < first);
        let spans = self.index.iter_from(from).take_while(move |span| span.first <= last);
        spans.map(move |span| (span.first.max(first), span.last().min(last)))
    }

    fn find(&self, position: &Position) -> Cursor {
        self.entries.partition(|entry| match &entry.place {
            Place::Element(other) => other.cmp(position) == Ordering::Less,
            Place::Json(_) => false,
        })
    }

    /// Splits the piece of text in the middle of which a position is.
    fn split_around(&mut self, position: &Position) {
        let Some(before) = self.entries.previous(self.find(position)) else { return };
        let Some((start, text, chars)) = self.entries.get(before).and_then(Entry::piece) else { return };
        if position.depth() <= start.depth() || *position > start.shifted(chars - 1) {
            return;
        }
        let at = position.beginning(start.depth()).step.offset.saturating_sub(start.step.offset) + 1;
        if at >= chars {
            return;
        }
        let (start, text) = (start.clone(), text.clone());
        self.drop_entry(before);
        self.add_piece(&start, part(&text, chars, 0, at), at);
        self.add_piece(&start.shifted(at), part(&text, chars, at, chars), chars - at);
    }

    /// Joins the piece that begins at a position with the one before it, if they are parts of one.
    fn join(&mut self, position: &Position) {
        self.join_at(self.find(position));
    }

    fn join_at(&mut self, cursor: Cursor) {
        let Some(before) = self.entries.previous(cursor) else { return };
        let (Some((one, text, chars)), Some((other, more, others))) = (
            self.entries.get(before).and_then(Entry::piece),
            self.entries.get(cursor).and_then(Entry::piece),
        ) else {
            return;
        };
        let end = one.step.offset + chars;
        if end != other.step.offset || end.is_multiple_of(PIECE_CHARS) || !other.is_in_run_of(one) {
            return;
        }
        let (one, text, chars) = (one.clone(), format!("{text}{more}"), chars + others);
        self.drop_entry(cursor);
        self.drop_entry(before);
        self.add_piece(&one, &text, chars);
    }

    fn add_piece(&mut self, position: &Position, text: &str, chars: u64) {
        let place = Place::Element(position.clone());
        self.add_entry(
            self.find(position),
            Entry { place, values: Values::Text { text: text.into(), chars } },
        );
    }

    fn add_entry(&mut self, at: Cursor, entry: Entry) {
        for span in entry.spans() {
            self.index.insert(self.index.partition(|other| other.first < span.first), span);
        }
        self.bytes += entry.bytes();
        self.entries.insert(at, entry);
    }

    fn drop_entry(&mut self, at: Cursor) -> Entry {
        let entry = self.entries.remove(at);
        for span in entry.spans() {
            let at = self.index.partition(|other| other.first < span.first);
            if self.index.get(at).is_some_and(|other| other.first == span.first) {
                self.index.remove(at);
            }
        }
        self.bytes = self.bytes.saturating_sub(entry.bytes());
        entry
    }
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        self.entries.len() == other.entries.len() && self.entries.iter().eq(other.entries.iter())
    }
}

impl Eq for Content {}

/// The characters of a text from one number to another.
pub(crate) fn part(text: &str, chars: u64, from: u64, to: u64) -> &str {
    if text.len() as u64 == chars {
        return text.get(from as usize..to as usize).unwrap_or_default();
    }
    let mut ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    let start = ends.nth(from as usize).unwrap_or(text.len());
    let end = match (to - from).checked_sub(1) {
        Some(count) => ends.nth(count as usize).unwrap_or(text.len()),
        None => start,
    };
    &text[start..end]
}
