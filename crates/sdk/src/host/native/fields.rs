//! Fields of objects in memory: what functions see of one node whose changes nobody else makes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::HostError;
use crate::object::{Change, FieldType, FieldValue, Read};

/// A field, or an entry of a map.
#[derive(Debug, Clone)]
pub enum Field {
    Counter(i64),
    Register(Option<Vec<u8>>),
    GCounter(u64),
    BoundedCounter(i64),
    MvRegister(Option<Vec<u8>>),
    GSet(BTreeSet<Vec<u8>>),
    Set(BTreeSet<Vec<u8>>),
    Map(BTreeMap<String, Field>),
    EwFlag(bool),
    DwFlag(bool),
    List(Vec<Vec<u8>>),
    Text(String),
    Json(Value),
}

/// Carries out a change at `path` of the field `name`, which may not be there yet. Nothing is changed if it fails.
pub fn change(
    field: Option<&Field>,
    name: &str,
    path: &[String],
    change: Change<'_>,
) -> Result<Field, HostError> {
    let Some((key, rest)) = path.split_first() else {
        let mut field = field.cloned().unwrap_or_else(|| Field::empty(field_type(&change)));
        if field.field_type() != field_type(&change) {
            return Err(wrong_type(name, field.field_type(), field_type(&change)));
        }
        field.apply(change).map_err(|reason| HostError::Invalid(format!("field `{name}`: {reason}")))?;
        return Ok(field);
    };
    let mut entries = match field {
        None => BTreeMap::new(),
        Some(Field::Map(entries)) => entries.clone(),
        Some(other) => return Err(wrong_type(name, other.field_type(), FieldType::Map)),
    };
    let entry = self::change(entries.get(key), &format!("{name}/{key}"), rest, change)?;
    entries.insert(key.clone(), entry);
    Ok(Field::Map(entries))
}

/// Answers a question about what is at `path` of the field `name`.
pub fn read(
    field: Option<&Field>,
    name: &str,
    path: &[String],
    read: Read<'_>,
) -> Result<FieldValue, HostError> {
    if let Some((key, rest)) = path.split_first() {
        let entry = match field {
            None => None,
            Some(Field::Map(entries)) => entries.get(key),
            Some(other) => return Err(wrong_type(name, other.field_type(), FieldType::Map)),
        };
        return self::read(entry, &format!("{name}/{key}"), rest, read);
    }
    let empty = Field::empty(read.field_type());
    let field = field.unwrap_or(&empty);
    if field.field_type() != read.field_type() {
        return Err(wrong_type(name, field.field_type(), read.field_type()));
    }
    Ok(match (read, field) {
        (Read::Contains { element, .. }, Field::GSet(elements) | Field::Set(elements)) => {
            FieldValue::Flag(elements.contains(element))
        }
        (Read::MapKeys, Field::Map(entries)) => {
            FieldValue::Keys(entries.iter().map(|(key, entry)| (key.clone(), entry.field_type())).collect())
        }
        (Read::Share, Field::BoundedCounter(value)) => {
            FieldValue::Unsigned(u64::try_from(*value).unwrap_or(0))
        }
        (_, field) => field.value(),
    })
}

impl Field {
    fn empty(field_type: FieldType) -> Self {
        match field_type {
            FieldType::Counter => Self::Counter(0),
            FieldType::Register => Self::Register(None),
            FieldType::GCounter => Self::GCounter(0),
            FieldType::BoundedCounter => Self::BoundedCounter(0),
            FieldType::MvRegister => Self::MvRegister(None),
            FieldType::GSet => Self::GSet(BTreeSet::new()),
            FieldType::Set => Self::Set(BTreeSet::new()),
            FieldType::Map => Self::Map(BTreeMap::new()),
            FieldType::EwFlag => Self::EwFlag(false),
            FieldType::DwFlag => Self::DwFlag(false),
            FieldType::List => Self::List(Vec::new()),
            FieldType::Text => Self::Text(String::new()),
            FieldType::Json => Self::Json(Value::Null),
        }
    }

    fn field_type(&self) -> FieldType {
        match self {
            Self::Counter(_) => FieldType::Counter,
            Self::Register(_) => FieldType::Register,
            Self::GCounter(_) => FieldType::GCounter,
            Self::BoundedCounter(_) => FieldType::BoundedCounter,
            Self::MvRegister(_) => FieldType::MvRegister,
            Self::GSet(_) => FieldType::GSet,
            Self::Set(_) => FieldType::Set,
            Self::Map(_) => FieldType::Map,
            Self::EwFlag(_) => FieldType::EwFlag,
            Self::DwFlag(_) => FieldType::DwFlag,
            Self::List(_) => FieldType::List,
            Self::Text(_) => FieldType::Text,
            Self::Json(_) => FieldType::Json,
        }
    }

    fn value(&self) -> FieldValue {
        match self {
            Self::Counter(value) | Self::BoundedCounter(value) => FieldValue::Integer(*value),
            Self::GCounter(value) => FieldValue::Unsigned(*value),
            Self::Register(value) => FieldValue::Register(value.clone()),
            Self::MvRegister(value) => FieldValue::Values(value.iter().cloned().collect()),
            Self::GSet(elements) | Self::Set(elements) => {
                FieldValue::Values(elements.iter().cloned().collect())
            }
            Self::EwFlag(value) | Self::DwFlag(value) => FieldValue::Flag(*value),
            Self::List(values) => FieldValue::Values(values.clone()),
            Self::Text(text) => FieldValue::Text(text.clone()),
            Self::Map(_) | Self::Json(_) => FieldValue::Json(self.json().to_string()),
        }
    }

    /// The field as it appears in the JSON of a map.
    fn json(&self) -> Value {
        let parse = |bytes: &Vec<u8>| serde_json::from_slice(bytes).unwrap_or(Value::Null);
        match self {
            Self::Counter(value) | Self::BoundedCounter(value) => json!(value),
            Self::GCounter(value) => json!(value),
            Self::Register(value) => value.as_ref().map_or(Value::Null, parse),
            Self::MvRegister(value) => value.iter().map(parse).collect(),
            Self::GSet(elements) | Self::Set(elements) => elements.iter().map(parse).collect(),
            Self::EwFlag(value) | Self::DwFlag(value) => json!(value),
            Self::List(values) => values.iter().map(parse).collect(),
            Self::Text(text) => json!(text),
            Self::Map(entries) => entries.iter().map(|(key, entry)| (key.clone(), entry.json())).collect(),
            Self::Json(value) => value.clone(),
        }
    }

    /// Carries out a change of this very type; the reason if it can't.
    fn apply(&mut self, change: Change<'_>) -> Result<(), String> {
        match (self, change) {
            (Self::Counter(value), Change::CounterAdd(amount)) => {
                *value = value.checked_add(amount).ok_or("the counter is full")?;
            }
            (Self::GCounter(value), Change::GCounterAdd(amount)) => {
                *value = value.checked_add(amount).ok_or("the counter is full")?;
            }
            (Self::BoundedCounter(value), Change::BoundedCounterAdd(amount)) => {
                let sum = value.checked_add(amount).ok_or("the counter is full")?;
                if sum < 0 {
                    return Err(format!("{} can't be taken, there are {value}", amount.unsigned_abs()));
                }
                *value = sum;
            }
            (Self::Register(value), Change::RegisterSet(json))
            | (Self::MvRegister(value), Change::MvRegisterSet(json)) => *value = Some(json.to_owned()),
            (Self::GSet(elements), Change::GSetAdd(element))
            | (Self::Set(elements), Change::SetAdd(element)) => {
                elements.insert(element.to_owned());
            }
            (Self::Set(elements), Change::SetRemove(element)) => {
                elements.remove(element);
            }
            (Self::Set(elements), Change::SetClear) => elements.clear(),
            (Self::Map(entries), Change::MapRemove(key)) => {
                entries.remove(key);
            }
            (Self::Map(entries), Change::MapClear) => entries.clear(),
            (Self::EwFlag(value), Change::EwFlagSet(enabled))
            | (Self::DwFlag(value), Change::DwFlagSet(enabled)) => *value = enabled,
            (Self::List(values), change) => return change_list(values, change),
            (Self::Text(text), Change::TextSplice { at, delete, insert }) => {
                *text = spliced(text, at, delete, insert)?;
            }
            (Self::Json(document), Change::JsonSet { pointer, value }) => {
                let value = serde_json::from_str(value).map_err(|error| error.to_string())?;
                set_part(document, pointer, value)?;
            }
            (Self::Json(document), Change::JsonRemove(pointer)) => remove_part(document, pointer)?,
            (field, _) => return Err(format!("a {} can't be changed so", field.field_type())),
        }
        Ok(())
    }
}

fn change_list(values: &mut Vec<Vec<u8>>, change: Change<'_>) -> Result<(), String> {
    let len = values.len();
    let beyond = |index: u32| format!("there is no index {index}, the list has {len} values");
    match change {
        Change::ListPush(value) => values.push(value.to_owned()),
        Change::ListInsert { index, value } => {
            if index as usize > len {
                return Err(beyond(index));
            }
            values.insert(index as usize, value.to_owned());
        }
        Change::ListSet { index, value } => {
            *values.get_mut(index as usize).ok_or_else(|| beyond(index))? = value.to_owned();
        }
        Change::ListRemove(index) => {
            if index as usize >= len {
                return Err(beyond(index));
            }
            values.remove(index as usize);
        }
        _ => return Err("a list can't be changed so".to_owned()),
    }
    Ok(())
}

fn spliced(text: &str, at: u32, delete: u32, insert: &str) -> Result<String, String> {
    let (at, delete) = (at as usize, delete as usize);
    let count = text.chars().count();
    if at.saturating_add(delete) > count {
        return Err(format!("{delete} code points from {at} on are not there, the text has {count}"));
    }
    let mut chars = text.chars();
    let mut spliced: String = chars.by_ref().take(at).collect();
    spliced.push_str(insert);
    spliced.extend(chars.skip(delete));
    Ok(spliced)
}

fn set_part(document: &mut Value, pointer: &str, value: Value) -> Result<(), String> {
    let Some((parent, key)) = parent_of(document, pointer)? else {
        *document = value;
        return Ok(());
    };
    match parent {
        Some(Value::Object(members)) => drop(members.insert(key, value)),
        // The first part of a document makes it an object.
        Some(empty @ Value::Null) if !pointer[1..].contains('/') => *empty = json!({ key: value }),
        Some(Value::Array(values)) => {
            let len = values.len();
            let index = if key == "-" { Some(len) } else { key.parse().ok() };
            match index {
                Some(index) if index == len => values.push(value),
                Some(index) if index < len => values[index] = value,
                _ => return Err(format!("`{pointer}` leads nowhere: the array has {len} values")),
            }
        }
        _ => {
            return Err(format!(
                "`{pointer}` leads nowhere: what is before its end is not an object or array"
            ));
        }
    }
    Ok(())
}

fn remove_part(document: &mut Value, pointer: &str) -> Result<(), String> {
    let Some((parent, key)) = parent_of(document, pointer)? else {
        *document = Value::Null;
        return Ok(());
    };
    match parent {
        Some(Value::Object(members)) => drop(members.remove(&key)),
        Some(Value::Array(values)) => {
            if let Some(index) = key.parse().ok().filter(|index| *index < values.len()) {
                values.remove(index);
            }
        }
        _ => {}
    }
    Ok(())
}

/// The parent of the part that a pointer leads to, if it exists, and the part's key; none for the whole document.
#[allow(clippy::type_complexity)]
fn parent_of<'a>(
    document: &'a mut Value,
    pointer: &str,
) -> Result<Option<(Option<&'a mut Value>, String)>, String> {
    if pointer.is_empty() {
        return Ok(None);
    }
    if !pointer.starts_with('/') {
        return Err(format!("`{pointer}` is not a pointer: it begins with `/` or is empty (RFC 6901)"));
    }
    let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
    let key = key.replace("~1", "/").replace("~0", "~");
    Ok(Some((document.pointer_mut(parent), key)))
}

fn field_type(change: &Change<'_>) -> FieldType {
    match change {
        Change::CounterAdd(_) => FieldType::Counter,
        Change::RegisterSet(_) => FieldType::Register,
        Change::GCounterAdd(_) => FieldType::GCounter,
        Change::BoundedCounterAdd(_) => FieldType::BoundedCounter,
        Change::MvRegisterSet(_) => FieldType::MvRegister,
        Change::GSetAdd(_) => FieldType::GSet,
        Change::SetAdd(_) | Change::SetRemove(_) | Change::SetClear => FieldType::Set,
        Change::MapRemove(_) | Change::MapClear => FieldType::Map,
        Change::EwFlagSet(_) => FieldType::EwFlag,
        Change::DwFlagSet(_) => FieldType::DwFlag,
        Change::ListInsert { .. }
        | Change::ListPush(_)
        | Change::ListSet { .. }
        | Change::ListRemove(_) => FieldType::List,
        Change::TextSplice { .. } => FieldType::Text,
        Change::JsonSet { .. } | Change::JsonRemove(_) => FieldType::Json,
    }
}

fn wrong_type(field: &str, actual: FieldType, wanted: FieldType) -> HostError {
    HostError::Invalid(format!("field `{field}` is a {actual}, not a {wanted}"))
}
