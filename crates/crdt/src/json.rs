//! JSON documents: JSON pointers (RFC 6901), and values at paths.
//!
//! A scalar is a value at its path; an object or array is a mark at its path, with members at longer paths. A value also exists
//! while there is anything below its path, so that an edit wins over a concurrent removal of what it is in. Where concurrent edits
//! left values of several kinds at one path, the kind with the latest edit counts, of the value itself or of anything below it.

use std::sync::Arc;

use serde_json::Value as Json;

use crate::Timestamp;
use crate::content::{Atom, Content, Entry, JsonNode, JsonPath, Place, Turn};
use crate::context::Dot;
use crate::document::{Edit, EditError, Editor};
use crate::position::{Neighbour, Position};

/// The maximum nesting depth of a JSON document.
pub const MAX_JSON_DEPTH: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Scalar,
    Object,
    Array,
}

/// A problem with a step of a pointer; the caller adds the pointer.
enum Fault {
    Pointer(&'static str),
    Index { index: u64, length: u64 },
}

impl Fault {
    fn of(self, pointer: &str) -> EditError {
        match self {
            Self::Pointer(problem) => EditError::Pointer { pointer: pointer.to_owned(), problem },
            Self::Index { index, length } => EditError::Index { index, length },
        }
    }
}

/// The document as JSON text with sorted keys.
pub(crate) fn read(content: &Content) -> String {
    let entries: Vec<_> = content.entries().iter().map(|entry| (steps(entry), entry)).collect();
    let mut out = String::new();
    write(&entries, 0, &mut out);
    out
}

/// Sets the value at a pointer. A `-` after an array, or the array's length, appends to it.
pub(crate) fn set(
    content: &Content,
    pointer: &str,
    value: &str,
    by: Editor<'_>,
) -> Result<Edit, EditError> {
    let value: Json = serde_json::from_str(value).map_err(EditError::Json)?;
    let tokens = parse(pointer).map_err(|fault| fault.of(pointer))?;
    if tokens.len() + depth(&value) > MAX_JSON_DEPTH {
        return Err(EditError::TooDeep);
    }
    let path = match tokens.split_last() {
        None => None,
        Some((last, parents)) => {
            let (parent, kind) = walk(content, parents).map_err(|fault| fault.of(pointer))?;
            let turn = match kind {
                Kind::Array => match place(content, &parent, last).map_err(|fault| fault.of(pointer))? {
                    Some(position) => Turn::Element(position),
                    None => Turn::Element(end(content, &parent, by)?),
                },
                _ => Turn::Key(last.as_str().into()),
            };
            Some(JsonPath::new(parent.map(Arc::new), turn))
        }
    };
    let mut edit = Edit::default();
    below(content, path.as_ref()).for_each(|entry| edit.remove(entry));
    fill(&mut edit.added, path, &value, by);
    Ok(edit)
}

/// Removes the value at a pointer; nothing happens if it does not exist. Without the whole, null is left.
pub(crate) fn remove(content: &Content, pointer: &str, by: Editor<'_>) -> Result<Edit, EditError> {
    let tokens = parse(pointer).map_err(|fault| fault.of(pointer))?;
    let Some((last, parents)) = tokens.split_last() else { return set(content, "", "null", by) };
    let mut edit = Edit::default();
    let Ok((parent, kind)) = walk(content, parents) else { return Ok(edit) };
    let turn = match kind {
        Kind::Array => match place(content, &parent, last) {
            Ok(Some(position)) => Turn::Element(position),
            _ => return Ok(edit),
        },
        _ => Turn::Key(last.as_str().into()),
    };
    let path = JsonPath::new(parent.map(Arc::new), turn);
    below(content, Some(&path)).for_each(|entry| edit.remove(entry));
    Ok(edit)
}

/// True for JSON text as a scalar is stored.
pub(crate) fn is_scalar(text: &str) -> bool {
    match serde_json::from_str::<Json>(text) {
        Ok(Json::Object(_) | Json::Array(_)) | Err(_) => false,
        Ok(value) => serde_json::to_string(&value).is_ok_and(|stored| stored == text),
    }
}

/// The reference tokens of a pointer.
fn parse(pointer: &str) -> Result<Vec<String>, Fault> {
    let Some(rest) = pointer.strip_prefix('/') else {
        return if pointer.is_empty() {
            Ok(Vec::new())
        } else {
            Err(Fault::Pointer("it does not start with `/`"))
        };
    };
    rest.split('/')
        .map(|token| {
            let mut escapes = token.split('~');
            escapes.next();
            if escapes.all(|after| after.starts_with(['0', '1'])) {
                Ok(token.replace("~1", "/").replace("~0", "~"))
            } else {
                Err(Fault::Pointer("`~` is followed by neither 0 nor 1"))
            }
        })
        .collect()
}

/// The object or array at the end of the tokens.
fn walk(content: &Content, tokens: &[String]) -> Result<(Option<JsonPath>, Kind), Fault> {
    const MISSING: Fault = Fault::Pointer("what it goes through does not exist");
    let mut path = None;
    let mut kind = kind(content, None).unwrap_or(Kind::Object);
    for token in tokens {
        let turn = match kind {
            Kind::Array => Turn::Element(place(content, &path, token)?.ok_or(MISSING)?),
            Kind::Object => Turn::Key(token.as_str().into()),
            Kind::Scalar => break,
        };
        let next = JsonPath::new(path.map(Arc::new), turn);
        kind = self::kind(content, Some(&next)).ok_or(MISSING)?;
        path = Some(next);
    }
    match kind {
        Kind::Scalar => Err(Fault::Pointer("what it goes through is neither an object nor an array")),
        kind => Ok((path, kind)),
    }
}

/// The position of an element of an array; `None` for the place after the end.
fn place(content: &Content, array: &Option<JsonPath>, token: &str) -> Result<Option<Position>, Fault> {
    if token == "-" {
        return Ok(None);
    }
    let digits = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (token.len() > 1 && token.starts_with('0')) {
        return Err(Fault::Pointer("an array is indexed by a number without leading zeros"));
    }
    let index = token.parse::<u64>().unwrap_or(u64::MAX);
    let depth = array.as_ref().map_or(0, JsonPath::depth) + 1;
    let mut length = 0;
    let mut last: Option<&Position> = None;
    for entry in below(content, array.as_ref()) {
        let Place::Json(Some(path)) = &entry.place else { continue };
        if path.depth() < depth {
            continue;
        }
        let Turn::Element(position) = &path.beginning(depth).step else { continue };
        if last.is_some_and(|last| last == position) {
            continue;
        }
        if length == index {
            return Ok(Some(position.clone()));
        }
        length += 1;
        last = Some(position);
    }
    if index == length { Ok(None) } else { Err(Fault::Index { index, length }) }
}

/// The position of an element that is appended to an array.
fn end(content: &Content, array: &Option<JsonPath>, by: Editor<'_>) -> Result<Position, EditError> {
    let depth = array.as_ref().map_or(0, JsonPath::depth) + 1;
    let entries = content.entries();
    let after = entries.partition(|entry| is_up_to(entry, array.as_ref()));
    let last = entries.previous(after).and_then(|last| entries.get(last));
    let left = last.and_then(|entry| match &entry.place {
        Place::Json(Some(path)) if path.depth() >= depth => match &path.beginning(depth).step {
            Turn::Element(position) => {
                // The dot counts only if the element has a value of its own and nothing below it.
                let own = entry.leaves().last().filter(|_| path.depth() == depth).map(|(dot, _)| *dot);
                let dot = own.unwrap_or(Dot { replica: by.replica, number: 0 });
                Some(Neighbour { position: position.clone(), dot })
            }
            Turn::Key(_) => None,
        },
        _ => None,
    });
    Position::between(left.as_ref(), None, by.dot(0), |dot| by.latest(dot)).ok_or(EditError::TooCrowded)
}

/// The entries at a path and below it.
fn below<'a>(content: &'a Content, path: Option<&JsonPath>) -> impl Iterator<Item = &'a Entry> {
    let start = content.entries().partition(|entry| match (&entry.place, path) {
        (Place::Json(Some(place)), Some(path)) => place < path,
        (Place::Json(None), Some(_)) => true,
        _ => false,
    });
    let path = path.cloned();
    content.entries().iter_from(start).take_while(move |entry| is_up_to(entry, path.as_ref()))
}

/// True if an entry is before a path, at it, or below it.
fn is_up_to(entry: &Entry, path: Option<&JsonPath>) -> bool {
    match (&entry.place, path) {
        (Place::Json(Some(place)), Some(path)) => place < path || path.is_beginning_of(place),
        _ => true,
    }
}

/// The kind of the value at a path; `None` if nothing is there.
fn kind(content: &Content, path: Option<&JsonPath>) -> Option<Kind> {
    let depth = path.map_or(0, JsonPath::depth);
    let mut entries = below(content, path);
    let first = entries.next()?;
    // The value itself comes first, then members by key, then elements: these three have all kinds that there are.
    let end = content.entries().partition(|entry| is_up_to(entry, path));
    let last = content.entries().previous(end).and_then(|last| content.entries().get(last));
    let mut kinds = [None; 3];
    [Some(first), entries.next(), last]
        .into_iter()
        .flatten()
        .for_each(|entry| note(entry, depth, &mut kinds));
    if noted(&kinds).count() > 1 {
        below(content, path).for_each(|entry| note(entry, depth, &mut kinds));
    }
    latest(&kinds)
}

/// Notes the times of an entry for the kind that they give to the value at its first `depth` steps.
fn note(entry: &Entry, depth: usize, kinds: &mut [Option<Timestamp>; 3]) {
    let below = match &entry.place {
        Place::Json(Some(path)) if path.depth() > depth => match &path.beginning(depth + 1).step {
            Turn::Key(_) => Some(Kind::Object),
            Turn::Element(_) => Some(Kind::Array),
        },
        _ => None,
    };
    for (_, atom) in entry.leaves() {
        let Atom::Json { at, node } = atom else { continue };
        let kind = below.unwrap_or(match node {
            JsonNode::Scalar(_) => Kind::Scalar,
            JsonNode::Object => Kind::Object,
            JsonNode::Array => Kind::Array,
        });
        let time = &mut kinds[kind as usize];
        *time = (*time).max(Some(*at));
    }
}

fn noted(kinds: &[Option<Timestamp>; 3]) -> impl Iterator<Item = (Kind, Timestamp)> + '_ {
    let all = [Kind::Scalar, Kind::Object, Kind::Array];
    all.into_iter().zip(kinds).filter_map(|(kind, at)| at.map(|at| (kind, at)))
}

fn latest(kinds: &[Option<Timestamp>; 3]) -> Option<Kind> {
    noted(kinds).max_by_key(|(kind, at)| (*at, *kind)).map(|(kind, _)| kind)
}

fn steps(entry: &Entry) -> Vec<&Turn> {
    match &entry.place {
        Place::Json(Some(path)) => path.steps(),
        _ => Vec::new(),
    }
}

/// Writes the value whose entries have the first `depth` steps in common.
fn write(entries: &[(Vec<&Turn>, &Entry)], depth: usize, out: &mut String) {
    let mut kinds = [None; 3];
    entries.iter().for_each(|(_, entry)| note(entry, depth, &mut kinds));
    let kind = latest(&kinds).unwrap_or(Kind::Object);
    if kind == Kind::Scalar {
        let own = entries.first().map_or(&[][..], |(_, entry)| entry.leaves());
        let scalars = own.iter().filter_map(|(dot, atom)| match atom {
            Atom::Json { at, node: JsonNode::Scalar(text) } => Some((*at, *dot, text)),
            _ => None,
        });
        return out.push_str(scalars.max().map_or("null", |(.., text)| text));
    }
    let (open, close) = if kind == Kind::Array { ('[', ']') } else { ('{', '}') };
    out.push(open);
    let mut is_first = true;
    for member in entries.chunk_by(|(one, _), (other, _)| one.get(depth) == other.get(depth)) {
        let turn = member.first().and_then(|(steps, _)| steps.get(depth).copied());
        let key = match (turn, kind) {
            (Some(Turn::Key(key)), Kind::Object) => Some(key),
            (Some(Turn::Element(_)), Kind::Array) => None,
            _ => continue,
        };
        if !std::mem::take(&mut is_first) {
            out.push(',');
        }
        if let Some(key) = key {
            out.push_str(&Json::from(&**key).to_string());
            out.push(':');
        }
        write(member, depth + 1, out);
    }
    out.push(close);
}

/// Adds a value at a path. The recursion ends: the depth was checked.
fn fill(added: &mut Content, path: Option<JsonPath>, value: &Json, by: Editor<'_>) {
    // Each value has one entry, so that their number is that of the dots used.
    let dot = by.dot(added.length());
    let hlc = by.now;
    let node = match value {
        Json::Object(_) => JsonNode::Object,
        Json::Array(_) => JsonNode::Array,
        scalar => JsonNode::Scalar(scalar.to_string().into()),
    };
    let at = Timestamp { hlc, replica: by.replica };
    added.put(&Place::Json(path.clone()), dot, Atom::Json { at, node });
    let above = path.map(Arc::new);
    match value {
        Json::Object(members) => {
            for (key, value) in members {
                let turn = Turn::Key(key.as_str().into());
                fill(added, Some(JsonPath::new(above.clone(), turn)), value, by);
            }
        }
        Json::Array(items) => {
            // The dots of elements with members are not consecutive; their run only needs a name of its own.
            let first = by.dot(added.length());
            let Some(first) = Position::between(None, None, first, |_| 0) else { return };
            for (offset, value) in (0..).zip(items) {
                let turn = Turn::Element(first.shifted(offset));
                fill(added, Some(JsonPath::new(above.clone(), turn)), value, by);
            }
        }
        _ => {}
    }
}

fn depth(value: &Json) -> usize {
    let inner = match value {
        Json::Array(items) => items.iter().map(depth).max(),
        Json::Object(members) => members.values().map(depth).max(),
        _ => return 0,
    };
    1 + inner.unwrap_or(0)
}
