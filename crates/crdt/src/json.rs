//! JSON documents: JSON pointers (RFC 6901) and values in an automerge document.

use automerge::transaction::{Transactable, Transaction};
use automerge::{ObjId, ObjType, Prop, ROOT, ReadDoc, ScalarValue, Value};
use serde_json::{Map, Number, Value as Json};

use crate::document::{EditError, ROOT_KEY};

/// The maximum nesting depth of a JSON document.
pub const MAX_JSON_DEPTH: usize = 64;

/// The document as JSON. Values that JSON cannot represent become null; no correct replica writes them.
pub(crate) fn read(doc: &impl ReadDoc) -> Json {
    match doc.get(ROOT, ROOT_KEY) {
        Ok(Some((value, id))) => to_json(doc, value, &id, 0),
        _ => Json::Null,
    }
}

/// Sets the value at a pointer. A `-` after an array, or the array's length, appends to it.
pub(crate) fn set(doc: &mut Transaction<'_>, pointer: &str, value: &str) -> Result<(), EditError> {
    let value: Json = serde_json::from_str(value).map_err(EditError::Json)?;
    let tokens = parse(pointer)?;
    if tokens.len() + depth(&value) > MAX_JSON_DEPTH {
        return Err(EditError::TooDeep);
    }
    let Some((last, parents)) = tokens.split_last() else {
        return put(doc, &ROOT, ROOT_KEY.into(), &value);
    };
    let (parent, object_type) = walk(doc, parents)?;
    if object_type == ObjType::List {
        let length = doc.length(&parent);
        match if last == "-" { length } else { index(last, length)? } {
            place if place == length => insert(doc, &parent, place, &value),
            place => put(doc, &parent, place.into(), &value),
        }
    } else {
        put(doc, &parent, last.as_str().into(), &value)
    }
}

/// Removes the value at a pointer; nothing happens if it does not exist. Without the whole, null is left.
pub(crate) fn remove(doc: &mut Transaction<'_>, pointer: &str) -> Result<(), EditError> {
    let tokens = parse(pointer)?;
    let Some((last, parents)) = tokens.split_last() else {
        return put(doc, &ROOT, ROOT_KEY.into(), &Json::Null);
    };
    let Ok((parent, object_type)) = walk(doc, parents) else { return Ok(()) };
    let prop: Prop = if object_type == ObjType::List {
        let length = doc.length(&parent);
        match index(last, length) {
            Ok(place) if place < length => place.into(),
            _ => return Ok(()),
        }
    } else {
        last.as_str().into()
    };
    if doc.get(&parent, prop.clone())?.is_some() {
        doc.delete(&parent, prop)?;
    }
    Ok(())
}

/// The reference tokens of a pointer.
fn parse(pointer: &str) -> Result<Vec<String>, EditError> {
    let Some(rest) = pointer.strip_prefix('/') else {
        return if pointer.is_empty() {
            Ok(Vec::new())
        } else {
            Err(EditError::Pointer("it does not start with `/`"))
        };
    };
    rest.split('/')
        .map(|token| {
            let mut escapes = token.split('~');
            escapes.next();
            if escapes.all(|after| after.starts_with(['0', '1'])) {
                Ok(token.replace("~1", "/").replace("~0", "~"))
            } else {
                Err(EditError::Pointer("`~` is followed by neither 0 nor 1"))
            }
        })
        .collect()
}

/// An index into an array. The array's length is also valid: the position after the end.
fn index(token: &str, length: usize) -> Result<usize, EditError> {
    let digits = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (token.len() > 1 && token.starts_with('0')) {
        return Err(EditError::Pointer("an array is indexed by a number without leading zeros"));
    }
    match token.parse::<u64>() {
        Ok(index) if index <= length as u64 => Ok(index as usize),
        Ok(index) => Err(EditError::Index { index, length: length as u64 }),
        Err(_) => Err(EditError::Index { index: u64::MAX, length: length as u64 }),
    }
}

/// The object at the end of the tokens.
fn walk(doc: &Transaction<'_>, tokens: &[String]) -> Result<(ObjId, ObjType), EditError> {
    let mut at = object(doc.get(ROOT, ROOT_KEY)?)?;
    for token in tokens {
        let found = if at.1 == ObjType::List {
            let length = doc.length(&at.0);
            doc.get(&at.0, index(token, length)?)?
        } else {
            doc.get(&at.0, token.as_str())?
        };
        at = object(found)?;
    }
    Ok(at)
}

fn object(found: Option<(Value<'_>, ObjId)>) -> Result<(ObjId, ObjType), EditError> {
    match found {
        Some((Value::Object(ObjType::Text), _)) | Some((Value::Scalar(_), _)) => {
            Err(EditError::Pointer("what it goes through is neither an object nor an array"))
        }
        Some((Value::Object(object_type), id)) => Ok((id, object_type)),
        None => Err(EditError::Pointer("what it goes through does not exist")),
    }
}

fn put(doc: &mut Transaction<'_>, parent: &ObjId, prop: Prop, value: &Json) -> Result<(), EditError> {
    match value {
        Json::Object(_) | Json::Array(_) => {
            let id = doc.put_object(parent, prop, object_type(value))?;
            fill(doc, &id, value)
        }
        _ => Ok(doc.put(parent, prop, scalar(value))?),
    }
}

fn insert(doc: &mut Transaction<'_>, parent: &ObjId, index: usize, value: &Json) -> Result<(), EditError> {
    match value {
        Json::Object(_) | Json::Array(_) => {
            let id = doc.insert_object(parent, index, object_type(value))?;
            fill(doc, &id, value)
        }
        _ => Ok(doc.insert(parent, index, scalar(value))?),
    }
}

/// Fills a new object. Recursion ends: the depth was checked.
fn fill(doc: &mut Transaction<'_>, id: &ObjId, value: &Json) -> Result<(), EditError> {
    match value {
        Json::Object(members) => {
            members.iter().try_for_each(|(key, value)| put(doc, id, key.as_str().into(), value))
        }
        Json::Array(items) => {
            items.iter().enumerate().try_for_each(|(index, value)| insert(doc, id, index, value))
        }
        _ => Ok(()),
    }
}

fn object_type(value: &Json) -> ObjType {
    if value.is_array() { ObjType::List } else { ObjType::Map }
}

fn scalar(value: &Json) -> ScalarValue {
    match value {
        Json::Bool(value) => ScalarValue::Boolean(*value),
        Json::String(text) => ScalarValue::Str(text.as_str().into()),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => ScalarValue::Int(number),
            (_, Some(number), _) => ScalarValue::Uint(number),
            (.., Some(number)) => ScalarValue::F64(number),
            _ => ScalarValue::Null,
        },
        Json::Null | Json::Array(_) | Json::Object(_) => ScalarValue::Null,
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

fn to_json(doc: &impl ReadDoc, value: Value<'_>, id: &ObjId, depth: usize) -> Json {
    if depth > MAX_JSON_DEPTH {
        return Json::Null;
    }
    match value {
        Value::Scalar(scalar) => match scalar.as_ref() {
            ScalarValue::Str(text) => Json::String(text.to_string()),
            ScalarValue::Int(number) => Json::from(*number),
            ScalarValue::Uint(number) => Json::from(*number),
            ScalarValue::F64(number) => Number::from_f64(*number).map_or(Json::Null, Json::Number),
            ScalarValue::Boolean(value) => Json::Bool(*value),
            _ => Json::Null,
        },
        Value::Object(ObjType::List) => {
            let items = (0..doc.length(id)).map(|index| member(doc, id, index.into(), depth));
            Json::Array(items.collect())
        }
        Value::Object(ObjType::Text) => Json::String(doc.text(id).unwrap_or_default()),
        Value::Object(_) => {
            let members = doc.keys(id).map(|key| {
                let value = member(doc, id, key.as_str().into(), depth);
                (key, value)
            });
            Json::Object(members.collect::<Map<_, _>>())
        }
    }
}

fn member(doc: &impl ReadDoc, id: &ObjId, prop: Prop, depth: usize) -> Json {
    match doc.get(id, prop) {
        Ok(Some((value, id))) => to_json(doc, value, &id, depth + 1),
        _ => Json::Null,
    }
}
