//! Messages of clients for people and for programs.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use edgefaas_api::messages as proto;
use serde_json::{Value, json};

use crate::output;

/// A payload on one line. The caller escapes control characters, unless it is a cell of a table.
pub fn text(message: &proto::Message) -> String {
    let cut = message.payload_bytes > message.payload.len() as u64;
    match shown(message) {
        Some(text) if cut => format!("{text}… ({})", output::size(message.payload_bytes)),
        Some(text) => text.to_owned(),
        None => format!("({}, not text)", output::size(message.payload_bytes)),
    }
}

/// A message as JSON: its payload under `text`, or under `base64` if it is not text.
pub fn as_json(message: &proto::Message) -> Value {
    let mut value = json!({
        "topic": message.topic,
        "bytes": message.payload_bytes,
        "qos": message.qos,
        "retain": message.retain,
        "time_unix_ms": message.unix_ms,
    });
    match shown(message) {
        Some(text) => value["text"] = text.into(),
        None => value["base64"] = STANDARD.encode(&message.payload).into(),
    }
    if !message.content_type.is_empty() {
        value["content_type"] = message.content_type.as_str().into();
    }
    if !message.user_properties.is_empty() {
        let properties = message.user_properties.iter();
        value["user_properties"] =
            properties.map(|property| json!([property.name, property.value])).collect();
    }
    if message.lost_before > 0 {
        value["lost_before"] = message.lost_before.into();
    }
    value
}

/// The payload as text, without the part of a character at which it was cut.
fn shown(message: &proto::Message) -> Option<&str> {
    match std::str::from_utf8(&message.payload) {
        Ok(text) => Some(text),
        Err(error) => {
            let is_cut = message.payload_bytes > message.payload.len() as u64;
            let whole = message.payload.get(..error.valid_up_to()).filter(|_| is_cut);
            // Only an end without the rest of its character is a cut.
            whole.filter(|_| error.error_len().is_none()).and_then(|whole| std::str::from_utf8(whole).ok())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(payload: &[u8], bytes: u64) -> proto::Message {
        proto::Message { payload: payload.to_vec(), payload_bytes: bytes, ..Default::default() }
    }

    #[test]
    fn payloads_are_text_where_they_can_be() {
        for (payload, bytes, expected) in [
            (&b"21.5"[..], 4, "21.5"),
            (b"", 0, ""),
            ("grö".as_bytes(), 9, "grö… (9 B)"),
            (b"gr\xc3", 9, "gr… (9 B)"),
            (b"gr\xc3", 3, "(3 B, not text)"),
            (b"\xff\xfe", 9, "(9 B, not text)"),
        ] {
            assert_eq!(text(&message(payload, bytes)), expected);
        }
        assert_eq!(as_json(&message(b"\x00\xff", 2))["base64"], "AP8=");
        assert_eq!(as_json(&message(b"x", 1))["text"], "x");
    }
}
