//! Events in the JSON form of CloudEvents 1.0.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::data::kind_of;
use crate::program::Read;

/// The type of an event that was created from an MQTT message.
pub const MQTT_TYPE: &str = "mqtt.publish";

/// The beginning of the types of all lifecycle events (specification, section "Lifecycle Events").
pub const LIFECYCLE_TYPES: &str = "io.serverlessworkflow.";

/// Creates a CloudEvent from an MQTT message that is not a CloudEvent. `subject` is the topic. [`set_data`] adds the payload.
pub fn of_message(id: &str, source: &str, topic: &str, payload: &[u8], time: &str) -> Value {
    let mut event = Map::new();
    for (name, value) in [
        ("specversion", "1.0"),
        ("id", id),
        ("source", source),
        ("type", MQTT_TYPE),
        ("subject", topic),
        ("time", time),
    ] {
        event.insert(name.to_owned(), Value::from(value));
    }
    set_data(&mut event, payload);
    Value::Object(event)
}

/// Adds a payload to an event: JSON as `data`, other UTF-8 text as a string in `data`, any other payload in `data_base64`.
/// An empty payload adds nothing.
pub fn set_data(event: &mut Map<String, Value>, payload: &[u8]) {
    if payload.is_empty() {
        return;
    }
    if let Ok(data) = serde_json::from_slice(payload) {
        event.insert("datacontenttype".to_owned(), Value::from("application/json"));
        event.insert("data".to_owned(), data);
    } else if let Ok(text) = std::str::from_utf8(payload) {
        event.insert("datacontenttype".to_owned(), Value::from("text/plain"));
        event.insert("data".to_owned(), Value::from(text));
    } else {
        event.insert("data_base64".to_owned(), Value::from(STANDARD.encode(payload)));
    }
}

/// True if a value is a CloudEvent in structured mode: it has the required attributes (specification, section 3.1).
pub fn is_cloud_event(value: &Value) -> bool {
    ["specversion", "id", "source", "type"].iter().all(|name| value.get(name).is_some_and(Value::is_string))
}

/// An attribute of a CloudEvent with a value that it cannot have (specification, sections 2 and 3.1).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// The value is not text.
    #[error("the event's `{name}` is text, not {found}")]
    NotText {
        /// The attribute.
        name: &'static str,
        /// The kind of the value.
        found: &'static str,
    },
    /// The text is empty.
    #[error("the event's `{name}` is empty")]
    Empty {
        /// The attribute.
        name: &'static str,
    },
    /// The text has a control character, such as a line break.
    #[error("the event's `{name}` has a control character: {}", text.escape_debug())]
    ControlCharacter {
        /// The attribute.
        name: &'static str,
        /// Its value.
        text: String,
    },
}

/// Attributes that are texts and not empty.
pub(crate) const TEXTS: [&str; 4] = ["type", "source", "id", "subject"];

/// Checks the type, source, id and subject of an event, those that are there.
///
/// # Errors
/// The first attribute with a value that it cannot have.
pub fn check_attributes(event: &Value) -> Result<(), AttributeError> {
    let given = TEXTS.into_iter().filter_map(|name| Some((name, event.get(name)?)));
    given.into_iter().try_for_each(|(name, value)| check_attribute(name, value))
}

/// Checks one of [`TEXTS`].
pub(crate) fn check_attribute(name: &'static str, value: &Value) -> Result<(), AttributeError> {
    match value {
        Value::String(text) if text.is_empty() => Err(AttributeError::Empty { name }),
        Value::String(text) if text.chars().any(char::is_control) => {
            Err(AttributeError::ControlCharacter { name, text: text.clone() })
        }
        Value::String(_) => Ok(()),
        other => Err(AttributeError::NotText { name, found: kind_of(other) }),
    }
}

/// True if a value has more than 2,000 parts or more than 64 KiB of text, so that encoding or decoding it takes long.
pub fn is_large(value: &Value) -> bool {
    const PARTS: usize = 2_000;
    const TEXT_BYTES: usize = 64 << 10;
    let (mut parts, mut text_bytes) = (0, 0);
    let mut left = vec![value];
    while let Some(next) = left.pop() {
        parts += 1;
        match next {
            Value::String(text) => text_bytes += text.len(),
            Value::Array(items) if items.len() > PARTS => return true,
            Value::Array(items) => left.extend(items),
            Value::Object(fields) if fields.len() > PARTS => return true,
            Value::Object(fields) => left.extend(fields.values()),
            _ => {}
        }
        if parts > PARTS || text_bytes > TEXT_BYTES {
            return true;
        }
    }
    false
}

/// The part of an event that a `listen` task reads.
pub fn read(event: &Value, how: Read) -> Value {
    match how {
        Read::Envelope => event.clone(),
        Read::Message => {
            let mut message = Map::new();
            for (name, from) in
                [("payload", None), ("headers", Some("headers")), ("correlationId", Some("correlationid"))]
            {
                let value = match from {
                    None => Some(read(event, Read::Data)),
                    Some(attribute) => event.get(attribute).cloned(),
                };
                message.extend(value.map(|value| (name.to_owned(), value)));
            }
            Value::Object(message)
        }
        Read::Data | Read::Raw => match (event.get("data"), event.get("data_base64")) {
            (Some(data), _) => data.clone(),
            (None, Some(data)) => data.clone(),
            (None, None) => Value::Null,
        },
    }
}

/// True if `value` contains `wanted`. An object contains another one if it has all of its keys, with values that contain the
/// other values. All other values must be equal.
pub fn subset(wanted: &Value, value: &Value) -> bool {
    match (wanted, value) {
        (Value::Object(wanted), Value::Object(value)) => {
            wanted.iter().all(|(key, wanted)| value.get(key).is_some_and(|value| subset(wanted, value)))
        }
        (wanted, value) => wanted == value,
    }
}

/// True if an MQTT topic filter matches a topic (MQTT 5, section 4.7).
pub fn topic_matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let (mut filter, mut topic) = (filter.split('/'), topic.split('/'));
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) => return true,
            (Some("+"), Some(_)) => {}
            (Some(wanted), Some(level)) if wanted == level => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

/// The lifecycle event of a workflow or one of its tasks (specification, section "Lifecycle Events").
pub fn lifecycle(id: &str, kind: &str, subject: &str, time: &str, data: Value) -> Value {
    json!({
        "specversion": "1.0",
        "id": id,
        "source": "/workflows",
        "type": format!("{LIFECYCLE_TYPES}{kind}.v1"),
        "subject": subject,
        "time": time,
        "datacontenttype": "application/json",
        "data": data,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics() {
        for (filter, topic, matches) in [
            ("a/+/c", "a/b/c", true),
            ("a/#", "a", true),
            ("a/#", "a/b/c", true),
            ("#", "$SYS/x", false),
            ("+/x", "$SYS/x", false),
            ("a/+", "a/b/c", false),
            ("a", "a/", false),
        ] {
            assert_eq!(topic_matches(filter, topic), matches, "{filter} {topic}");
        }
    }

    #[test]
    fn any_payload_becomes_data() {
        let of = |payload: &[u8]| of_message("1", "/s", "t", payload, "now");
        assert_eq!(of(b"{\"a\":1}")["data"], json!({"a": 1}));
        assert_eq!(of(b"21.5")["data"], json!(21.5));
        assert_eq!(of(b"on")["data"], json!("on"));
        assert_eq!(of(&[0xff, 0])["data_base64"], json!("/wA="));
        assert!(of(b"").get("data").is_none());
        assert!(is_cloud_event(&of(b"")));
    }
}
