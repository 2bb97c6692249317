//! Conversion from and to JSON.

use std::fmt;
use std::sync::Arc;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{Data, Fields, Limited, MAX_DEPTH, Num, TooDeep};

impl Data {
    /// Converts a JSON value.
    ///
    /// # Errors
    /// `TooDeep` if it nests more than 256 levels deep.
    pub fn from_json(value: &Value) -> Result<Self, TooDeep> {
        from_json_at(value, 0)
    }

    /// Converts to a JSON value.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Num(number) => number.json(),
            Self::Str(text) => Value::String(text.to_string()),
            Self::Arr(array) => Value::Array(array.items.iter().map(Self::to_json).collect()),
            Self::Obj(object) => Value::Object(
                object.fields.iter().map(|(key, value)| (key.to_string(), value.to_json())).collect(),
            ),
        }
    }

    /// The first `max_bytes` bytes of the value as JSON text.
    pub fn start_of_json(&self, max_bytes: usize) -> String {
        let mut text = Limited::new(max_bytes);
        let _ = self.write(&mut text);
        text.text
    }

    /// Writes the value as JSON text in jq's format.
    pub(crate) fn write(&self, out: &mut impl fmt::Write) -> fmt::Result {
        match self {
            Self::Null => out.write_str("null"),
            Self::Bool(value) => write!(out, "{value}"),
            Self::Num(number) => write!(out, "{number}"),
            Self::Str(text) => write_string(out, text),
            Self::Arr(array) => {
                out.write_char('[')?;
                for (at, item) in array.items.iter().enumerate() {
                    if at > 0 {
                        out.write_char(',')?;
                    }
                    item.write(out)?;
                }
                out.write_char(']')
            }
            Self::Obj(object) => {
                out.write_char('{')?;
                for (at, (key, value)) in object.fields.iter().enumerate() {
                    if at > 0 {
                        out.write_char(',')?;
                    }
                    write_string(out, key)?;
                    out.write_char(':')?;
                    value.write(out)?;
                }
                out.write_char('}')
            }
        }
    }
}

fn from_json_at(value: &Value, depth: u32) -> Result<Data, TooDeep> {
    if depth > MAX_DEPTH {
        return Err(TooDeep);
    }
    Ok(match value {
        Value::Null => Data::Null,
        Value::Bool(value) => Data::Bool(*value),
        Value::Number(number) => Data::Num(Num::of(number)),
        Value::String(text) => Data::from(text.as_str()),
        Value::Array(items) => {
            Data::list(items.iter().map(|item| from_json_at(item, depth + 1)).collect::<Result<_, _>>()?)
        }
        Value::Object(fields) => {
            let mut all = Fields::with_capacity(fields.len());
            for (key, value) in fields {
                all.insert(Arc::from(key.as_str()), from_json_at(value, depth + 1)?);
            }
            Data::object_of(all)
        }
    })
}

/// Writes `text` as a JSON string.
pub(crate) fn write_string(out: &mut impl fmt::Write, text: &str) -> fmt::Result {
    out.write_char('"')?;
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c < ' ' || matches!(c, '"' | '\\' | '\x7f')) {
        let (plain, special) = rest.split_at(at);
        out.write_str(plain)?;
        let mut chars = special.chars();
        match chars.next() {
            Some('\x08') => out.write_str("\\b")?,
            Some('\x0c') => out.write_str("\\f")?,
            Some('\n') => out.write_str("\\n")?,
            Some('\r') => out.write_str("\\r")?,
            Some('\t') => out.write_str("\\t")?,
            Some(c @ ('"' | '\\')) => write!(out, "\\{c}")?,
            Some(c) => write!(out, "\\u{:04x}", u32::from(c))?,
            None => {}
        }
        rest = chars.as_str();
    }
    out.write_str(rest)?;
    out.write_char('"')
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => to.serialize_unit(),
            Self::Bool(value) => to.serialize_bool(*value),
            Self::Num(number) => number.json().serialize(to),
            Self::Str(text) => to.serialize_str(text),
            Self::Arr(array) => {
                let mut all = to.serialize_seq(Some(array.items.len()))?;
                for item in array.items.iter() {
                    all.serialize_element(item)?;
                }
                all.end()
            }
            Self::Obj(object) => {
                let mut all = to.serialize_map(Some(object.fields.len()))?;
                for (key, value) in object.fields.iter() {
                    all.serialize_entry(&**key, value)?;
                }
                all.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Data;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Data, E> {
        Ok(Data::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Data, E> {
        Ok(Data::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Data, E> {
        Ok(Data::Num(Num::Int(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Data, E> {
        Ok(Data::Num(Num::Int(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Data, E> {
        Ok(Data::Num(Num::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Data, E> {
        Ok(Data::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Data, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element()? {
            items.push(item);
        }
        Ok(Data::list(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Data, A::Error> {
        let mut fields = Fields::default();
        while let Some((key, value)) = from.next_entry::<String, Data>()? {
            fields.insert(key.into(), value);
        }
        Ok(Data::object_of(fields))
    }
}
