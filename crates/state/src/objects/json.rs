//! JSON view of a whole object.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use edgefaas_crdt::Value;
use serde_json::{Value as Json, json};

/// Key of the JSON object that encodes bytes that are not JSON text.
const BYTES_KEY: &str = "base64";

/// The value of a field as JSON. A map is an object of its entries' values; sets, lists and the values of a multi-value
/// register are arrays.
pub fn json_of_value(value: &Value) -> Json {
    match value {
        Value::Integer(number) => json!(number),
        Value::Unsigned(number) => json!(number),
        Value::Register(None) => Json::Null,
        Value::Register(Some(bytes)) => json_of_bytes(bytes),
        Value::Values(values) | Value::List(values) => {
            values.iter().map(|bytes| json_of_bytes(bytes)).collect()
        }
        Value::Flag(flag) => json!(flag),
        Value::Map(entries) => Json::Object(
            entries.iter().map(|(key, (_, value))| (key.clone(), json_of_value(value))).collect(),
        ),
        Value::Text(text) => json!(text),
        Value::Json(text) => serde_json::from_str(text).unwrap_or_default(),
    }
}

/// Decodes JSON text, which functions keep in registers, sets and lists; other bytes become `{"base64": "…"}`.
pub fn json_of_bytes(bytes: &[u8]) -> Json {
    serde_json::from_slice(bytes).unwrap_or_else(|_| json!({ BYTES_KEY: STANDARD.encode(bytes) }))
}

/// Encodes a JSON value as canonical text (RFC 8785), so that equal values are equal elements of a set. Integers of
/// more than 53 bits keep all digits.
pub fn bytes_of_json(value: &Json) -> Bytes {
    if let Json::Object(entries) = value
        && entries.len() == 1
        && let Some(Json::String(text)) = entries.get(BYTES_KEY)
        && let Ok(bytes) = STANDARD.decode(text)
        && serde_json::from_slice::<Json>(&bytes).is_err()
    {
        return bytes.into();
    }
    let mut text = String::new();
    write_canonical(value, &mut text);
    text.into()
}

fn write_canonical(value: &Json, text: &mut String) {
    match value {
        Json::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or_default();
            text.push_str(ryu_js::Buffer::new().format(number));
        }
        Json::Array(values) => {
            text.push('[');
            for (index, value) in values.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "," });
                write_canonical(value, text);
            }
            text.push(']');
        }
        Json::Object(entries) => {
            let mut entries: Vec<_> = entries.iter().collect();
            entries.sort_by(|(one, _), (next, _)| one.encode_utf16().cmp(next.encode_utf16()));
            text.push('{');
            for (index, (key, value)) in entries.into_iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "," });
                text.push_str(&Json::from(key.as_str()).to_string());
                text.push(':');
                write_canonical(value, text);
            }
            text.push('}');
        }
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => text.push_str(&value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_json_are_one_another() {
        for value in [
            json!(1.5),
            json!({"b": [1, {"d": 1, "c": 2}], "a": null}),
            json!("x"),
            json!({"base64": "bm8"}),
        ] {
            assert_eq!(json_of_bytes(&bytes_of_json(&value)), value);
        }
        let raw = [0xff, 0x00, 0x7b];
        assert_eq!(json_of_bytes(&raw), json!({"base64": "/wB7"}));
        assert_eq!(bytes_of_json(&json_of_bytes(&raw)), raw[..]);
        for (text, canonical) in [
            ("1.0", "1"),
            ("-0.0", "0"),
            ("1e21", "1e+21"),
            ("1e-7", "1e-7"),
            ("100000000000000000000", "100000000000000000000"),
            ("9007199254740993", "9007199254740993"),
            ("[2.50, {\"b\": 1.0, \"a\": []}]", "[2.5,{\"a\":[],\"b\":1}]"),
            ("{\"\\ufb33\": 1, \"\\ud83d\\ude00\": 2}", "{\"\u{1f600}\":2,\"\u{fb33}\":1}"),
        ] {
            let value: Json = serde_json::from_str(text).unwrap();
            assert_eq!(bytes_of_json(&value), canonical.as_bytes(), "{text}");
        }
        assert_eq!(bytes_of_json(&json!({"b": 1, "a": {"d": 1, "c": 2}})), r#"{"a":{"c":2,"d":1},"b":1}"#);
    }
}
