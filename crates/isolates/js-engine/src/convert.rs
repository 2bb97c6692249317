//! Values of JavaScript as messages and back.

use edgefaas_js_abi::{self as abi, Outcome, Reply, Thrown, ThrownKind};
use rquickjs::{ArrayBuffer, CaughtError, Coerced, Ctx, Error, Exception, Object, Value};

use crate::{boundary, natives};

/// How long the message of an error may be when it leaves the isolate.
const MAX_MESSAGE_BYTES: usize = 8 * 1024;

/// How long its stack may be.
const MAX_STACK_BYTES: usize = 64 * 1024;

/// What becomes of a handler's answer.
pub enum Sent<'js> {
    /// The encoded [`Outcome`].
    Now(Vec<u8>),
    /// A promise of an answer to be sent in its place: a body is a stream.
    Later(Value<'js>),
}

/// The encoded [`Outcome`] for what a handler returned.
pub fn outcome<'js>(ctx: &Ctx<'js>, value: Value<'js>) -> rquickjs::Result<Sent<'js>> {
    let encode = |reply: Reply<'_>| {
        Ok(Sent::Now(abi::encode(&Outcome::Done(reply)).expect("replies can be encoded")))
    };
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
        let parts = natives::response_parts(ctx, object)?;
        if parts.is_string() {
            return Ok(invalid(text(ctx, &parts)?));
        }
        if parts.is_promise() {
            return Ok(Sent::Later(parts));
        }
        if let Some(parts) = parts.as_object() {
            return http_outcome(ctx, parts);
        }
    }
    let type_name = value.type_name();
    let json = match ctx.json_stringify(value.clone()) {
        Err(Error::Exception) => {
            let thrown = ctx.catch();
            match natives::unfit(ctx, &value) {
                Ok(Some(part)) => return Ok(invalid(format!("it can't be JSON: {part}"))),
                Ok(None) => {}
                Err(_) => drop(ctx.catch()),
            }
            // The user's own toJSON or getter, or a limit.
            return Err(ctx.throw(thrown));
        }
        json => json?,
    };
    match json {
        Some(json) => encode(Reply::Json(&text(ctx, json.as_value())?)),
        None => {
            let reason = format!(
                "the handler returned a {type_name}; return an object, a string, bytes, a Response or nothing"
            );
            Ok(invalid(reason))
        }
    }
}

fn invalid<'js>(reason: String) -> Sent<'js> {
    let reason = cut(&reason, MAX_MESSAGE_BYTES);
    Sent::Now(abi::encode(&Outcome::InvalidReply(reason)).expect("replies can be encoded"))
}

/// `parts` is `[status, [name, value, …], body]`.
fn http_outcome<'js>(ctx: &Ctx<'js>, parts: &Object<'js>) -> rquickjs::Result<Sent<'js>> {
    let status: u16 = parts.get(0_u32)?;
    let flat: Vec<String> = parts.get(1_u32)?;
    let body: Value<'js> = parts.get(2_u32)?;
    let body = payload(ctx, &body)?;
    let headers = flat.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    let outcome = Outcome::Done(Reply::Http { status, headers, body: &body });
    Ok(Sent::Now(abi::encode(&outcome).expect("replies can be encoded")))
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
    if !boundary::is_array_buffer(object) {
        return None;
    }
    ArrayBuffer::from_object(object.clone()).map(|buffer| boundary::copy_buffer(&buffer))
}

/// What was thrown, as the node reports it. Getters of the value may run; nothing they throw gets out.
pub fn thrown(error: CaughtError<'_>) -> Thrown {
    let plain = |kind, message: String| Thrown { kind, message, stack: String::new() };
    match error {
        CaughtError::Exception(exception) => match natives::describe(exception.as_object().as_value()) {
            Some(parts) => described(parts, true),
            None => undescribed(&exception),
        },
        CaughtError::Value(value) => match natives::describe(&value) {
            Some(parts) => described(parts, false),
            None => plain(ThrownKind::Error, format!("the function threw a {}", value.type_name())),
        },
        CaughtError::Error(Error::Allocation) => plain(ThrownKind::OutOfMemory, "out of memory".to_owned()),
        CaughtError::Error(error) => plain(ThrownKind::Error, cut(&error.to_string(), MAX_MESSAGE_BYTES)),
    }
}

fn described(parts: [rquickjs::String<'_>; 3], is_error: bool) -> Thrown {
    // As C strings, which need no copy: a message may be as large as half of the memory.
    let [name, text, stack] = parts.map(rquickjs::String::to_cstring);
    let (Ok(name), Ok(text), Ok(stack)) = (name, text, stack) else {
        let message = "out of memory".to_owned();
        return Thrown { kind: ThrownKind::OutOfMemory, message, stack: String::new() };
    };
    let kind = if is_error { kind_of(&name, &text) } else { ThrownKind::Error };
    Thrown { kind, message: message_of(&name, &text), stack: cut_stack(&stack) }
}

/// An error in the engine's own words, when there is no memory or stack left for more.
fn undescribed(exception: &Exception<'_>) -> Thrown {
    let object = exception.as_object();
    let property = |key: &str| {
        let value = object.get::<_, Option<Coerced<String>>>(key);
        if value.is_err() {
            drop(object.ctx().catch());
        }
        value.ok().flatten().map_or_else(String::new, |text| text.0)
    };
    let (name, text) = (property("name"), property("message"));
    Thrown {
        kind: kind_of(&name, &text),
        message: message_of(&name, &text),
        stack: cut_stack(&property("stack")),
    }
}

fn kind_of(name: &str, text: &str) -> ThrownKind {
    match (name, text) {
        ("InternalError", "out of memory") => ThrownKind::OutOfMemory,
        ("RangeError", "Maximum call stack size exceeded") => ThrownKind::StackOverflow,
        _ => ThrownKind::Error,
    }
}

fn message_of(name: &str, text: &str) -> String {
    match (name, text) {
        ("", "") => "Error".to_owned(),
        (name, "") => cut(name, MAX_MESSAGE_BYTES),
        ("", text) => cut(text, MAX_MESSAGE_BYTES),
        (name, text) => {
            let mut name = cut(name, MAX_MESSAGE_BYTES / 2);
            name.push_str(": ");
            let room = MAX_MESSAGE_BYTES - name.len();
            name + &cut(text, room)
        }
    }
}

/// The start of `text`, and how much is missing: at most `limit` bytes together.
fn cut(text: &str, limit: usize) -> String {
    const ROOM_FOR_NOTE: usize = 40;
    if text.len() <= limit {
        return text.to_owned();
    }
    let kept = &text[..text.floor_char_boundary(limit - ROOM_FOR_NOTE)];
    format!("{kept}… ({} bytes cut)", text.len() - kept.len())
}

/// The innermost frames that there is room for.
fn cut_stack(stack: &str) -> String {
    if stack.len() <= MAX_STACK_BYTES {
        return stack.to_owned();
    }
    let kept = &stack[..stack.floor_char_boundary(MAX_STACK_BYTES)];
    kept.rsplit_once('\n').map_or(kept, |(frames, _)| frames).to_owned()
}
