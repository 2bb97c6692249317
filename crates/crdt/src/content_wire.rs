//! The binary form of lists, texts and JSON documents: entries in their order, each written by what distinguishes it from the one
//! before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use postcard::Error;

use crate::content::{Atom, Content, Entry, JsonNode, JsonPath, Place, Turn, Values};
use crate::context::Dot;
use crate::json::MAX_JSON_DEPTH;
use crate::position::{MAX_POSITION_DEPTH, Mark, Position};
use crate::wire::{Reader, Wire};
use crate::{FieldType, Hlc, ReplicaId, Timestamp};

/// A position is the next of its run; else the byte is one more than the number of marks that it shares.
const NEXT: u64 = 0;
/// The only value of an element has the dot of its position.
const OWN_DOT: u64 = 0;

const KEY: u8 = 0;
const ELEMENT: u8 = 1;

/// The head of a JSON value: what it is in the two lowest bits, and two flags.
const SCALAR: u8 = 0;
const OBJECT: u8 = 1;
const ARRAY: u8 = 2;
/// It has the time of the value before.
const SAME_TIME: u8 = 4;
/// Its dot is the next after that of the value before.
const NEXT_DOT: u8 = 8;

impl Content {
    /// Adds the replicas that its binary form names.
    pub(crate) fn add_replicas(&self, replicas: &mut BTreeSet<ReplicaId>) {
        let mut positions = Vec::new();
        for entry in self.entries().iter() {
            match &entry.place {
                Place::Element(position) => positions.push(position),
                Place::Json(path) => {
                    let turns = path.iter().flat_map(JsonPath::steps);
                    positions.extend(turns.filter_map(|turn| match turn {
                        Turn::Element(position) => Some(position),
                        Turn::Key(_) => None,
                    }));
                }
            }
            for (dot, atom) in entry.leaves() {
                replicas.insert(dot.replica);
                if let Atom::Json { at, .. } = atom {
                    replicas.insert(at.replica);
                }
            }
        }
        let mut before: Option<&Position> = None;
        for position in positions {
            let known = before.map_or(0, |before| before.shared(position));
            replicas.extend(position.steps_after(known).iter().map(|mark| mark.run.replica));
            before = Some(position);
        }
    }

    pub(crate) fn write(&self, places: &BTreeMap<ReplicaId, u64>, out: &mut Vec<u8>) {
        (self.entries().len() as u64).write(out);
        let mut writer = Writer { places, out, at: None, dot: None };
        let (mut position_before, mut path_before) = (None, None);
        for entry in self.entries().iter() {
            match &entry.place {
                Place::Element(position) => {
                    writer.position(position, position_before.as_ref());
                    position_before = Some(match entry.piece() {
                        Some((position, _, chars)) => position.shifted(chars - 1),
                        None => position.clone(),
                    });
                }
                Place::Json(path) => {
                    writer.path(path.as_ref(), path_before);
                    path_before = path.as_ref();
                }
            }
            writer.values(entry);
        }
    }

    pub(crate) fn read(
        field_type: FieldType,
        replicas: &[ReplicaId],
        from: &mut Reader<'_>,
    ) -> Result<Self, Error> {
        let mut content = Self::default();
        let count = u64::read(from)?;
        let mut reader = ContentReader { replicas, from, at: None, dot: None };
        let mut before: Option<Place> = None;
        for _ in 0..count {
            let place = match (field_type, &before) {
                (FieldType::Json, Some(Place::Json(before))) => Place::Json(reader.path(before.as_ref())?),
                (FieldType::Json, _) => Place::Json(reader.path(None)?),
                (_, Some(Place::Element(before))) => Place::Element(reader.position(Some(before))?),
                _ => Place::Element(reader.position(None)?),
            };
            if before.as_ref().is_some_and(|before| *before >= place) {
                return Err(Error::DeserializeBadEncoding);
            }
            before = Some(place.clone());
            if let (FieldType::Text, Place::Element(position)) = (field_type, &place) {
                let text = String::read(reader.from)?;
                let chars = text.chars().count() as u64;
                let first = position.dot();
                let mark = position.step;
                let end = mark.run.number.checked_add(mark.offset).and_then(|at| at.checked_add(chars));
                if text.is_empty() || end.is_none() || content.has_any(first, chars) {
                    return Err(Error::DeserializeBadEncoding);
                }
                content.put_text(position, &text);
                before = Some(Place::Element(position.shifted(chars - 1)));
            } else {
                reader.leaves(&place, &mut content)?;
            }
        }
        Ok(content)
    }
}

struct Writer<'a> {
    places: &'a BTreeMap<ReplicaId, u64>,
    out: &'a mut Vec<u8>,
    at: Option<Timestamp>,
    dot: Option<Dot>,
}

impl Writer<'_> {
    fn replica(&mut self, replica: ReplicaId) {
        self.places.get(&replica).copied().unwrap_or_default().write(self.out);
    }

    fn dot(&mut self, dot: Dot) {
        self.replica(dot.replica);
        dot.number.write(self.out);
    }

    fn position(&mut self, position: &Position, before: Option<&Position>) {
        if before.is_some_and(|before| before.is_in_run_of(position) && before.shifted(1) == *position) {
            return NEXT.write(self.out);
        }
        let shared = before.map_or(0, |before| before.shared(position));
        let marks = position.steps_after(shared);
        (shared as u64 + 1).write(self.out);
        (marks.len() as u64).write(self.out);
        for mark in marks {
            // Digits are near the middle: the distance from there has few bytes.
            let distance = (mark.digit ^ (1 << 63)) as i64;
            (((distance << 1) ^ (distance >> 63)) as u64).write(self.out);
            self.dot(mark.run);
            mark.offset.write(self.out);
        }
    }

    fn path(&mut self, path: Option<&JsonPath>, before: Option<&JsonPath>) {
        let shared = path.zip(before).map_or(0, |(path, before)| before.shared(path));
        let turns = path.map(|path| path.steps_after(shared)).unwrap_or_default();
        let mut beside = before.filter(|before| before.depth() > shared);
        (shared as u64).write(self.out);
        (turns.len() as u64).write(self.out);
        for turn in turns {
            match turn {
                Turn::Key(key) => {
                    self.out.push(KEY);
                    (key.len() as u64).write(self.out);
                    self.out.extend_from_slice(key.as_bytes());
                }
                Turn::Element(position) => {
                    self.out.push(ELEMENT);
                    self.position(
                        position,
                        beside.map(|path| &path.beginning(shared + 1).step).and_then(element),
                    );
                }
            }
            beside = None;
        }
    }

    fn values(&mut self, entry: &Entry) {
        let leaves = match (&entry.place, &entry.values) {
            (_, Values::Text { text, .. }) => {
                (text.len() as u64).write(self.out);
                return self.out.extend_from_slice(text.as_bytes());
            }
            (Place::Element(position), Values::Leaves(leaves))
                if leaves.len() == 1 && leaves[0].0 == position.dot() =>
            {
                OWN_DOT.write(self.out);
                leaves
            }
            (place, Values::Leaves(leaves)) => {
                (leaves.len() as u64).write(self.out);
                if let Place::Element(_) = place {
                    leaves.iter().for_each(|(dot, _)| self.dot(*dot));
                }
                leaves
            }
        };
        for (dot, atom) in leaves.iter() {
            match atom {
                Atom::Bytes(bytes) => bytes.write(self.out),
                Atom::Json { at, node } => self.json(*dot, *at, node),
            }
        }
    }

    fn json(&mut self, dot: Dot, at: Timestamp, node: &JsonNode) {
        let kind = match node {
            JsonNode::Scalar(_) => SCALAR,
            JsonNode::Object => OBJECT,
            JsonNode::Array => ARRAY,
        };
        let same_time = self.at == Some(at);
        let next_dot = self.dot.and_then(next) == Some(dot);
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        self.out.push(kind | flag(same_time, SAME_TIME) | flag(next_dot, NEXT_DOT));
        if !same_time {
            at.hlc.wall_ms.write(self.out);
            at.hlc.logical.write(self.out);
            self.replica(at.replica);
        }
        if !next_dot {
            self.dot(dot);
        }
        if let JsonNode::Scalar(text) = node {
            (text.len() as u64).write(self.out);
            self.out.extend_from_slice(text.as_bytes());
        }
        (self.at, self.dot) = (Some(at), Some(dot));
    }
}

struct ContentReader<'a, 'b> {
    replicas: &'a [ReplicaId],
    from: &'a mut Reader<'b>,
    at: Option<Timestamp>,
    dot: Option<Dot>,
}

impl ContentReader<'_, '_> {
    fn replica(&mut self) -> Result<ReplicaId, Error> {
        let place = usize::try_from(u64::read(self.from)?).ok();
        place.and_then(|place| self.replicas.get(place)).copied().ok_or(Error::DeserializeBadEncoding)
    }

    fn dot(&mut self) -> Result<Dot, Error> {
        let dot = Dot { replica: self.replica()?, number: u64::read(self.from)? };
        // The last number is never used, so that a range of dots has an end.
        if dot.number == u64::MAX { Err(Error::DeserializeBadEncoding) } else { Ok(dot) }
    }

    fn position(&mut self, before: Option<&Position>) -> Result<Position, Error> {
        let head = u64::read(self.from)?;
        if head == NEXT {
            return Ok(before.ok_or(Error::DeserializeBadEncoding)?.shifted(1));
        }
        let (shared, new) = (head - 1, u64::read(self.from)?);
        let depth = before.map_or(0, Position::depth) as u64;
        if shared > depth || new == 0 || new > MAX_POSITION_DEPTH as u64 - shared {
            return Err(Error::DeserializeBadEncoding);
        }
        let mut above = match before {
            Some(before) if shared > 0 => before.beginning_to_continue(shared as usize),
            _ => None,
        };
        let mut position = None;
        for _ in 0..new {
            above = position.take().map(Arc::new).or(above);
            let distance = u64::read(self.from)?;
            let distance = (distance >> 1) as i64 ^ -((distance & 1) as i64);
            let digit = distance as u64 ^ (1 << 63);
            let run = self.dot()?;
            let mark = Mark { digit, run, offset: u64::read(self.from)? };
            // A dot after this one must exist.
            if run.number.checked_add(mark.offset).is_none_or(|number| number >= u64::MAX - 1) {
                return Err(Error::DeserializeBadEncoding);
            }
            position = Some(Position::new(above.take(), mark));
        }
        position.ok_or(Error::DeserializeBadEncoding)
    }

    fn path(&mut self, before: Option<&JsonPath>) -> Result<Option<JsonPath>, Error> {
        let (shared, new) = (u64::read(self.from)?, u64::read(self.from)?);
        let depth = before.map_or(0, JsonPath::depth) as u64;
        if shared > depth || new > (MAX_JSON_DEPTH as u64).saturating_sub(shared) {
            return Err(Error::DeserializeBadEncoding);
        }
        let mut path =
            before.filter(|_| shared > 0).map(|before| before.beginning(shared as usize).clone());
        let mut above =
            before.filter(|_| shared > 0).and_then(|before| before.beginning_to_continue(shared as usize));
        let beside =
            before.filter(|_| shared < depth).map(|path| &path.beginning(shared as usize + 1).step);
        for number in 0..new {
            let turn = match self.from.byte()? {
                KEY => Turn::Key(String::read(self.from)?.into()),
                ELEMENT => Turn::Element(self.position(beside.filter(|_| number == 0).and_then(element))?),
                _ => return Err(Error::DeserializeBadEncoding),
            };
            let next = JsonPath::new(above.take(), turn);
            above = (number + 1 < new).then(|| Arc::new(next.clone()));
            path = Some(next);
        }
        Ok(path)
    }

    fn leaves(&mut self, place: &Place, content: &mut Content) -> Result<(), Error> {
        let count = u64::read(self.from)?;
        let put = |content: &mut Content, dot: Dot, atom: Atom| {
            let is_new = !content.has_any(dot, 1);
            content.put(place, dot, atom);
            if is_new { Ok(()) } else { Err(Error::DeserializeBadEncoding) }
        };
        if let Place::Element(position) = place {
            let mut dots = BTreeSet::new();
            for _ in 0..count {
                dots.insert(self.dot()?);
            }
            if count == OWN_DOT {
                dots.insert(position.dot());
            }
            for dot in dots {
                put(content, dot, Atom::Bytes(Bytes::read(self.from)?))?;
            }
            return Ok(());
        }
        if count == 0 {
            return Err(Error::DeserializeBadEncoding);
        }
        for _ in 0..count {
            let (dot, atom) = self.json()?;
            put(content, dot, atom)?;
        }
        Ok(())
    }

    fn json(&mut self) -> Result<(Dot, Atom), Error> {
        let head = self.from.byte()?;
        let at = match self.at.filter(|_| head & SAME_TIME != 0) {
            Some(at) => at,
            None if head & SAME_TIME != 0 => return Err(Error::DeserializeBadEncoding),
            None => {
                let hlc = Hlc { wall_ms: u64::read(self.from)?, logical: u32::read(self.from)? };
                Timestamp { hlc, replica: self.replica()? }
            }
        };
        let dot = match head & NEXT_DOT {
            0 => self.dot()?,
            _ => self.dot.and_then(next).ok_or(Error::DeserializeBadEncoding)?,
        };
        let node = match head & !(SAME_TIME | NEXT_DOT) {
            SCALAR => {
                let text = String::read(self.from)?;
                if !crate::json::is_scalar(&text) {
                    return Err(Error::DeserializeBadEncoding);
                }
                JsonNode::Scalar(text.into())
            }
            OBJECT => JsonNode::Object,
            ARRAY => JsonNode::Array,
            _ => return Err(Error::DeserializeBadEnum),
        };
        (self.at, self.dot) = (Some(at), Some(dot));
        Ok((dot, Atom::Json { at, node }))
    }
}

fn next(dot: Dot) -> Option<Dot> {
    let number = dot.number.checked_add(1).filter(|number| *number < u64::MAX)?;
    Some(Dot { number, ..dot })
}

fn element(turn: &Turn) -> Option<&Position> {
    match turn {
        Turn::Element(position) => Some(position),
        Turn::Key(_) => None,
    }
}
