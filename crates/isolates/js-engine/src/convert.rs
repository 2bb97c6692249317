//! Values of JavaScript as messages and back.

use edgefaas_js_abi::{self as abi, Outcome, Reply, Thrown, ThrownKind};
use rquickjs::{ArrayBuffer, CaughtError, Coerced, Ctx, Object, Value};

use crate::{boundary, natives};

/// The encoded [`Outcome`] for what a handler returned.
pub fn outcome<'js>(ctx: &Ctx<'js>, value: Value<'js>) -> rquickjs::Result<Vec<u8>> {
    let encode = |reply: Reply<'_>| Ok(abi::encode(&Outcome::Done(reply)).expect("replies can be encoded"));
    if value.is_undefined() || value.is_null() {
        return encode(Reply::None);
    }
    if value.is_string() {
        return encode(Reply::Text(&text(ctx, &value)?));
    }
    if let Some(object) = value.as_object() {
        if let Some(bytes) = bytes_of(object) {
            return encode(Reply::Bytes(&bytes));
        }
        if let Some(parts) = natives::response_parts(ctx, object)? {
            return http_outcome(ctx, &parts);
        }
    }
    let type_name = value.type_name();
    match ctx.json_stringify(value)? {
        Some(json) => encode(Reply::Json(&text(ctx, json.as_value())?)),
        None => {
            let reason = format!(
                "the handler returned a {type_name}; return an object, a string, bytes, a Response or nothing"
            );
            Ok(abi::encode(&Outcome::InvalidReply(reason)).expect("replies can be encoded"))
        }
    }
}

/// `parts` is `[status, [name, value, …], body]`.
fn http_outcome<'js>(ctx: &Ctx<'js>, parts: &Object<'js>) -> rquickjs::Result<Vec<u8>> {
    let status: u16 = parts.get(0_u32)?;
    let flat: Vec<String> = parts.get(1_u32)?;
    let body: Value<'js> = parts.get(2_u32)?;
    let body = payload(ctx, &body)?;
    let headers = flat.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    let outcome = Outcome::Done(Reply::Http { status, headers, body: &body });
    Ok(abi::encode(&outcome).expect("replies can be encoded"))
}

/// UTF-8 of a string; lone surrogates become U+FFFD.
pub fn text<'js>(ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<String> {
    let Some(string) = value.as_string() else { return Ok(value.get::<Coerced<String>>()?.0) };
    match string.to_string() {
        Ok(text) => Ok(text),
        Err(_) => natives::well_formed(ctx, string),
    }
}

/// The bytes of a string, of a view or of a buffer; nothing for null and undefined.
pub fn payload<'js>(ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<Vec<u8>> {
    if value.is_undefined() || value.is_null() {
        return Ok(Vec::new());
    }
    if let Some(bytes) = value.as_object().and_then(bytes_of) {
        return Ok(bytes);
    }
    Ok(text(ctx, value)?.into_bytes())
}

/// The bytes of a `Uint8Array` or an `ArrayBuffer`.
pub fn bytes_of(object: &Object<'_>) -> Option<Vec<u8>> {
    if let Some(view) = object.as_typed_array::<u8>() {
        return Some(boundary::copy_view(view));
    }
    ArrayBuffer::from_object(object.clone()).map(|buffer| boundary::copy_buffer(&buffer))
}

/// What was thrown, as the node reports it.
pub fn thrown(error: CaughtError<'_>) -> Thrown {
    match error {
        CaughtError::Exception(exception) => {
            let name = exception
                .as_object()
                .get::<_, Option<Coerced<String>>>("name")
                .ok()
                .flatten()
                .map_or_else(|| "Error".to_owned(), |name| name.0);
            let text = exception.message().unwrap_or_default();
            let stack = exception.stack().unwrap_or_default();
            let kind = match (name.as_str(), text.as_str()) {
                ("InternalError", "out of memory") => ThrownKind::OutOfMemory,
                ("RangeError", "Maximum call stack size exceeded") => ThrownKind::StackOverflow,
                _ => ThrownKind::Error,
            };
            let message = if text.is_empty() { name } else { format!("{name}: {text}") };
            Thrown { kind, message, stack }
        }
        CaughtError::Value(value) => {
            let message = match value.get::<Coerced<String>>() {
                Ok(text) if value.is_string() => text.0,
                Ok(text) => format!("{} was thrown: {}", value.type_name(), text.0),
                Err(_) => format!("{} was thrown", value.type_name()),
            };
            Thrown { kind: ThrownKind::Error, message, stack: String::new() }
        }
        CaughtError::Error(rquickjs::Error::Allocation) => {
            Thrown { kind: ThrownKind::OutOfMemory, message: "out of memory".to_owned(), stack: String::new() }
        }
        CaughtError::Error(error) => {
            Thrown { kind: ThrownKind::Error, message: error.to_string(), stack: String::new() }
        }
    }
}
