//! What the prelude may ask of Rust: the event, host calls, tickets, text and URLs.
//!
//! The natives object is handed to the prelude's files only; user code never sees it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use base64::Engine as _;
use edgefaas_js_abi::{
    Answer, Code, Invocation, Level, Message, Redirect, Reply, Request, Start, Thrown, Trigger,
};
use rquickjs::prelude::{Opt, Rest};
use rquickjs::{
    Array, CaughtError, Ctx, Function, IntoJs, Object, Persistent, Promise, String as JsString, TypedArray,
    Value, promise::PromiseState,
};

use crate::boundary::Utf8;
use crate::{boundary, compression, convert, crypto, engine, fields, groups, request, web};

thread_local! {
    static CURRENT: RefCell<Option<Invocation<'static>>> = const { RefCell::new(None) };
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
    /// Promises given to `waitUntil`.
    static HELD: RefCell<Vec<Persistent<Value<'static>>>> = const { RefCell::new(Vec::new()) };
    /// Promises that were rejected while nobody listened.
    static REJECTED: RefCell<Vec<(Persistent<Value<'static>>, Thrown)>> = const { RefCell::new(Vec::new()) };
    /// Bodies of answers that are not complete, by ticket.
    static BODIES: RefCell<HashMap<u32, Vec<u8>>> = RefCell::new(HashMap::new());
    static RANDOM_STATE: Cell<u64> = const { Cell::new(1) };
}

/// Functions of the prelude that Rust calls.
struct Kept {
    settle: Persistent<Function<'static>>,
    response_parts: Persistent<Function<'static>>,
    make_error: Persistent<Function<'static>>,
    well_formed: Persistent<Function<'static>>,
    describe: Persistent<Function<'static>>,
    unfit: Persistent<Function<'static>>,
    demand: Persistent<Function<'static>>,
    reset: Persistent<Function<'static>>,
}

/// Starts an invocation.
pub fn begin(invocation: Invocation<'static>) {
    seed(invocation.seed);
    CURRENT.set(Some(invocation));
}

/// Ends it: host calls are refused again.
pub fn end() {
    CURRENT.set(None);
}

/// Forgets the invocation, where another one follows.
pub fn reset(ctx: &Ctx<'_>) {
    end();
    HELD.with_borrow_mut(Vec::clear);
    REJECTED.with_borrow_mut(Vec::clear);
    BODIES.with_borrow_mut(HashMap::clear);
    compression::reset();
    // Only memory can be short here, which the next invocation finds out as well.
    if kept(ctx, |kept| &kept.reset).and_then(|reset| reset.call::<_, ()>(())).is_err() {
        drop(ctx.catch());
    }
}

/// Whether there is an invocation.
pub fn is_running() -> bool {
    current(|_| ()).is_some()
}

/// Seeds `Math.random`.
pub fn seed(seed: u64) {
    RANDOM_STATE.set(seed | 1);
}

/// The object that the prelude gets.
pub fn object<'js>(ctx: &Ctx<'js>) -> rquickjs::Result<Object<'js>> {
    let natives = Object::new(ctx.clone())?;
    macro_rules! define {
        ($($name:literal => $function:expr),* $(,)?) => {
            $( natives.set($name, Function::new(ctx.clone(), $function)?)?; )*
        };
    }
    define! {
        "kind" => || current(kind).unwrap_or_default(),
        "fields" => fields,
        "meta" => meta,
        "bodyText" => || current(|now| String::from_utf8_lossy(now.body).into_owned()).unwrap_or_default(),
        "bodyBytes" => |ctx: Ctx<'js>| TypedArray::new_copy(ctx, current(|now| now.body).unwrap_or_default()),
        "bodyJson" => |ctx: Ctx<'js>| ctx.json_parse(current(|now| now.body).unwrap_or_default()),
        "log" => log,
        "promiseState" => promise_state,
        "publish" => publish,
        "counterAdd" => |ctx: Ctx<'js>, object: JsString<'js>, field: JsString<'js>, amount: f64| {
            let (object, field) = (Utf8::of(object)?, Utf8::of(field)?);
            ask(&ctx, &Request::CounterAdd { object: &object, field: &field, amount: amount as i64 })
        },
        "counterValue" => |ctx: Ctx<'js>, object: JsString<'js>, field: JsString<'js>| {
            let (object, field) = (Utf8::of(object)?, Utf8::of(field)?);
            let value = ask(&ctx, &Request::CounterValue { object: &object, field: &field })?;
            boundary::fulfilled(&ctx, &value)
        },
        "registerSet" => |ctx: Ctx<'js>, object: JsString<'js>, field: JsString<'js>, json: JsString<'js>| {
            let (object, field, json) = (Utf8::of(object)?, Utf8::of(field)?, Utf8::of(json)?);
            ask(&ctx, &Request::RegisterSet { object: &object, field: &field, value: json.as_bytes() })
        },
        "registerGet" => register_get,
        "objectChange" => fields::change,
        "objectRead" => fields::read,
        "objectDelete" => fields::delete,
        "zone" => |ctx: Ctx<'js>, name: String| {
            boundary::with_answer(&Request::Zone { name: &name }, |answer| match answer {
                Answer::Text(json) => ctx.json_parse(json),
                _ => Ok(Value::new_undefined(ctx.clone())),
            })
        },
        "zoneNames" => |ctx: Ctx<'js>| {
            boundary::with_answer(&Request::ZoneNames, |answer| value_of(&ctx, &answer))
        },
        "asset" => |ctx: Ctx<'js>, name: String| ask(&ctx, &Request::Asset { name: &name }),
        "config" => |ctx: Ctx<'js>| match answer(&ctx, &Request::Config)? {
            Answer::Text(json) => ctx.json_parse(json),
            other => value_of(&ctx, &other),
        },
        "node" => |ctx: Ctx<'js>| match answer(&ctx, &Request::Node)? {
            Answer::Text(json) => ctx.json_parse(json),
            other => value_of(&ctx, &other),
        },
        "secretNames" => |ctx: Ctx<'js>| ask(&ctx, &Request::SecretNames),
        "secret" => |ctx: Ctx<'js>, name: String| ask(&ctx, &Request::Secret { name: &name }),
        "call" => start_call,
        "fetch" => start_fetch,
        "sleep" => |ctx: Ctx<'js>, ms: f64| started(&ctx, &Start::Sleep { duration_ms: ms.max(0.0) as u64 }),
        "cancel" => |ctx: Ctx<'js>, ticket: u32| {
            BODIES.with_borrow_mut(|bodies| bodies.remove(&ticket));
            ask(&ctx, &Request::Cancel { ticket })
        },
        "hold" => |ctx: Ctx<'js>, promise: Value<'js>| {
            HELD.with_borrow_mut(|held| held.push(Persistent::save(&ctx, promise)));
        },
        "random" => random,
        "randomBytes" => random_bytes,
        "encode" => |ctx: Ctx<'js>, text: Value<'js>| {
            convert::text(&ctx, &text).and_then(|text| TypedArray::new_copy(ctx, text))
        },
        "decode" => decode,
        "toBase64" => |bytes: TypedArray<'js, u8>| {
            base64::engine::general_purpose::STANDARD.encode(boundary::copy_view(&bytes))
        },
        "fromBase64" => from_base64,
        "parseUrl" => web::parse_url,
        "setUrl" => web::set_url,
        "urlOrigin" => web::url_origin,
        "parseQuery" => web::parse_query,
        "formatQuery" => web::format_query,
        "headerName" => web::header_name,
        "headerValue" => web::header_value,
        "eventMethod" => request::method,
        "eventUrl" => request::url,
        "eventHeader" => request::header,
        "eventHeaders" => request::headers,
        "bodyIsEmpty" => || current(|now| now.body.is_empty()).unwrap_or(true),
        "fulfilled" => |ctx: Ctx<'js>, value: Value<'js>| boundary::fulfilled(&ctx, &value),
        "splitForm" => web::split_form,
        "codecOpen" => compression::open,
        "codecPush" => compression::push,
        "codecEnd" => compression::end,
        "codecClose" => compression::close,
        "groups" => || groups::names(),
        "evaluate" => |ctx: Ctx<'js>, natives: Object<'js>, group: String| {
            engine::evaluate_group(&ctx, &natives, &group)
        },
    }
    crypto::define(ctx, &natives)?;
    Ok(natives)
}

/// Takes note of what the prelude defined for Rust.
pub fn keep<'js>(ctx: &Ctx<'js>, natives: &Object<'js>) -> rquickjs::Result<()> {
    let function = |name: &str| -> rquickjs::Result<Persistent<Function<'static>>> {
        Ok(Persistent::save(ctx, natives.get::<_, Function<'js>>(name)?))
    };
    let kept = Kept {
        settle: function("settle")?,
        response_parts: function("responseParts")?,
        make_error: function("makeError")?,
        well_formed: function("wellFormed")?,
        describe: function("describe")?,
        unfit: function("unfit")?,
        demand: function("demand")?,
        reset: function("reset")?,
    };
    KEPT.set(Some(kept));
    Ok(())
}

fn kept<'js>(
    ctx: &Ctx<'js>,
    choose: impl FnOnce(&Kept) -> &Persistent<Function<'static>>,
) -> rquickjs::Result<Function<'js>> {
    KEPT.with_borrow(|kept| choose(kept.as_ref().expect("the prelude is there")).clone()).restore(ctx)
}

/// Settles the promise behind a ticket, or keeps a piece of its answer.
pub fn settle<'js>(ctx: &Ctx<'js>, ticket: u32, answer: &Answer<'_>) -> rquickjs::Result<()> {
    let value = match answer {
        Answer::Piece { body, total_bytes } => match keep_piece(ticket, body, *total_bytes) {
            Ok(()) => return Ok(()),
            Err(NoRoom { bytes }) => {
                boundary::call(&Request::Cancel { ticket });
                let message = format!(
                    "the function's memory has no room for the {bytes} bytes of the answer's body; raise limits.memory"
                );
                Err(refused(ctx, Code::Failed, &message))
            }
        },
        answer => {
            let earlier = BODIES.with_borrow_mut(|bodies| bodies.remove(&ticket));
            match (answer, earlier) {
                (Answer::Fetched { .. }, Some(earlier)) => fetched(ctx, answer, earlier),
                _ => value_of(ctx, answer),
            }
        }
    };
    let settle = kept(ctx, |kept| &kept.settle)?;
    match value {
        Ok(value) => settle.call((ticket, true, value)),
        Err(error) => match CaughtError::from_error(ctx, error) {
            CaughtError::Exception(error) => settle.call((ticket, false, error.into_object())),
            CaughtError::Value(value) => settle.call((ticket, false, value)),
            CaughtError::Error(error) => settle.call((ticket, false, error.to_string())),
        },
    }
}

/// The memory of the function has no room for a body.
struct NoRoom {
    /// The size of the body, as far as it is known.
    bytes: u64,
}

/// Keeps a piece of a body until the rest is there.
fn keep_piece(ticket: u32, piece: &[u8], total_bytes: Option<u64>) -> Result<(), NoRoom> {
    BODIES.with_borrow_mut(|bodies| {
        let body = bodies.entry(ticket).or_default();
        let known = total_bytes.unwrap_or(0).max((body.len() + piece.len()) as u64);
        let has_room = match (total_bytes, body.is_empty()) {
            (Some(total), true) => {
                usize::try_from(total).is_ok_and(|total| body.try_reserve_exact(total).is_ok())
            }
            _ => body.try_reserve(piece.len()).is_ok(),
        };
        if !has_room {
            bodies.remove(&ticket);
            return Err(NoRoom { bytes: known });
        }
        body.extend_from_slice(piece);
        Ok(())
    })
}

/// Defines the globals of a group now.
pub fn demand(ctx: &Ctx<'_>, group: &str) -> rquickjs::Result<()> {
    kept(ctx, |kept| &kept.demand)?.call((group,))
}

/// `[status, headers, body]` if `object` is a Response, a text if it cannot be sent, a promise of the same
/// Response if its body is a stream that has to be read first, else null.
pub fn response_parts<'js>(ctx: &Ctx<'js>, object: &Object<'js>) -> rquickjs::Result<Value<'js>> {
    kept(ctx, |kept| &kept.response_parts)?.call((object.clone(),))
}

/// Name, message and stack of what was thrown. None if it cannot be told, for want of memory or stack.
pub fn describe<'js>(value: &Value<'js>) -> Option<[rquickjs::String<'js>; 3]> {
    let ctx = value.ctx();
    let parts = kept(ctx, |kept| &kept.describe)
        .and_then(|describe| describe.call::<_, Vec<rquickjs::String<'js>>>((value.clone(),)));
    if parts.is_err() {
        drop(ctx.catch());
    }
    parts.ok()?.try_into().ok()
}

/// What in `value` cannot be JSON, if it is that.
pub fn unfit<'js>(ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<Option<String>> {
    kept(ctx, |kept| &kept.unfit)?.call((value.clone(),))
}

/// The text of a string with its lone surrogates replaced.
pub fn well_formed<'js>(ctx: &Ctx<'js>, string: &rquickjs::String<'js>) -> rquickjs::Result<String> {
    kept(ctx, |kept| &kept.well_formed)?.call((string.clone(),))
}

/// Whether a promise given to `waitUntil` is still pending.
pub fn holds(ctx: &Ctx<'_>) -> bool {
    HELD.with_borrow(|held| {
        held.iter().any(|promise| {
            let promise = promise.clone().restore(ctx);
            promise
                .is_ok_and(|value| value.as_promise().is_some_and(|p| p.state() == PromiseState::Pending))
        })
    })
}

/// Follows which rejections nobody handles.
pub fn track_rejection<'js>(ctx: Ctx<'js>, promise: Value<'js>, reason: Value<'js>, handled: bool) {
    let promise = Persistent::save(&ctx, promise);
    if handled {
        REJECTED.with_borrow_mut(|rejected| rejected.retain(|(known, _)| *known != promise));
        return;
    }
    let error = match reason.as_object().cloned().and_then(rquickjs::Exception::from_object) {
        Some(exception) => CaughtError::Exception(exception),
        None => CaughtError::Value(reason),
    };
    // May run getters of the user's, which may reject promises.
    let thrown = convert::thrown(error);
    REJECTED.with_borrow_mut(|rejected| rejected.push((promise, thrown)));
}

/// Logs the rejections that nobody handled, but for the handler's own.
pub fn report_rejections<'js>(ctx: &Ctx<'js>, handler: &Value<'js>) {
    let handler = Persistent::save(ctx, handler.clone());
    for (promise, thrown) in REJECTED.take() {
        if promise != handler {
            let message = format!("unhandled rejection: {}\n{}", thrown.message, thrown.stack);
            boundary::call(&Request::Log { level: Level::Error, message: message.trim_end() });
        }
    }
}

/// Reads the invocation, if there is one.
pub fn current<R>(read: impl FnOnce(&Invocation<'static>) -> R) -> Option<R> {
    CURRENT.with_borrow(|now| now.as_ref().map(read))
}

fn kind(now: &Invocation<'_>) -> u32 {
    match now.trigger {
        Trigger::Http { .. } => 0,
        Trigger::Mqtt { .. } => 1,
        Trigger::Cron { .. } => 2,
        Trigger::Object { .. } => 3,
        Trigger::Call { .. } => 4,
        Trigger::Workflow { .. } => 5,
    }
}

/// What the event's kind brings, in the order of the `Trigger`'s fields.
fn fields<'js>(ctx: Ctx<'js>) -> rquickjs::Result<Array<'js>> {
    let fields = Array::new(ctx.clone())?;
    let mut index = 0;
    let mut push = |value: rquickjs::Result<Value<'js>>| {
        fields.set(index, value?)?;
        index += 1;
        rquickjs::Result::Ok(())
    };
    CURRENT.with_borrow(|now| {
        let Some(now) = now.as_ref() else { return Ok(()) };
        match &now.trigger {
            // The headers are read one by one.
            Trigger::Http { method, path, query, headers: _ } => {
                push(method.into_js(&ctx))?;
                push(path.into_js(&ctx))?;
                push(query.into_js(&ctx))
            }
            Trigger::Mqtt {
                topic,
                qos,
                retain,
                content_type,
                response_topic,
                correlation_data,
                user_properties,
            } => {
                push(topic.into_js(&ctx))?;
                push(qos.into_js(&ctx))?;
                push(retain.into_js(&ctx))?;
                push(content_type.into_js(&ctx))?;
                push(response_topic.into_js(&ctx))?;
                push(match correlation_data {
                    Some(bytes) => TypedArray::new_copy(ctx.clone(), bytes).map(TypedArray::into_value),
                    None => Ok(Value::new_undefined(ctx.clone())),
                })?;
                push(flat(&ctx, user_properties))
            }
            Trigger::Cron { schedule, scheduled_unix_ms } => {
                push(schedule.into_js(&ctx))?;
                push((*scheduled_unix_ms as f64).into_js(&ctx))
            }
            Trigger::Object { object, field } => {
                push(object.into_js(&ctx))?;
                push(field.into_js(&ctx))
            }
            Trigger::Call { caller } => push(caller.into_js(&ctx)),
            Trigger::Workflow { workflow, instance, task } => {
                push(workflow.into_js(&ctx))?;
                push(instance.into_js(&ctx))?;
                push(task.into_js(&ctx))
            }
        }
    })?;
    Ok(fields)
}

/// `[name, value, name, value, …]`.
pub fn flat<'js>(ctx: &Ctx<'js>, pairs: &[(&str, &str)]) -> rquickjs::Result<Value<'js>> {
    pairs.iter().flat_map(|(name, value)| [*name, *value]).collect::<Vec<_>>().into_js(ctx)
}

/// `[id, function, deadline in milliseconds since the Unix epoch]`.
fn meta<'js>(ctx: Ctx<'js>) -> rquickjs::Result<Value<'js>> {
    CURRENT.with_borrow(|now| match now {
        Some(now) => {
            let meta = Array::new(ctx.clone())?;
            meta.set(0, now.id)?;
            meta.set(1, now.function)?;
            meta.set(2, now.deadline_unix_ms as f64)?;
            Ok(meta.into_value())
        }
        None => Ok(Value::new_undefined(ctx.clone())),
    })
}

/// `[state, result]`, where the state is 0 while it is pending, 1 for a value and 2 for a rejection.
fn promise_state<'js>(ctx: Ctx<'js>, promise: Promise<'js>) -> rquickjs::Result<Array<'js>> {
    let parts = Array::new(ctx.clone())?;
    let (state, result) = match promise.result::<Value<'js>>() {
        None => (0, Value::new_undefined(ctx.clone())),
        Some(Ok(value)) => (1, value),
        Some(Err(_)) => (2, ctx.catch()),
    };
    parts.set(0, state)?;
    parts.set(1, result)?;
    Ok(parts)
}

fn log<'js>(ctx: Ctx<'js>, level: u32, message: Value<'js>) -> rquickjs::Result<()> {
    let level = match level {
        0 => Level::Trace,
        1 => Level::Debug,
        2 => Level::Info,
        3 => Level::Warn,
        _ => Level::Error,
    };
    let message = convert::text(&ctx, &message)?;
    boundary::call(&Request::Log { level, message: &message });
    Ok(())
}

/// `(topic, payload, qos, retain, contentType, responseTopic, correlationData, userProperties)`.
fn publish<'js>(ctx: Ctx<'js>, arguments: Rest<Value<'js>>) -> rquickjs::Result<Value<'js>> {
    let argument =
        |index: usize| arguments.get(index).filter(|value| !value.is_undefined() && !value.is_null());
    let text = |index: usize| argument(index).map(|value| convert::text(&ctx, value)).transpose();
    let topic = text(0)?.unwrap_or_default();
    let payload = argument(1).map_or(Ok(Vec::new()), |value| convert::payload(&ctx, value))?;
    let qos = argument(2).and_then(Value::as_int).unwrap_or(0);
    let retain = argument(3).and_then(Value::as_bool).unwrap_or(false);
    let (content_type, response_topic) = (text(4)?, text(5)?);
    let correlation_data = argument(6).map(|value| convert::payload(&ctx, value)).transpose()?;
    let user_properties: Vec<String> = argument(7).map_or(Ok(Vec::new()), Value::get)?;
    let message = Message {
        topic: &topic,
        payload: &payload,
        qos: u8::try_from(qos).unwrap_or(u8::MAX),
        retain,
        content_type: content_type.as_deref(),
        response_topic: response_topic.as_deref(),
        correlation_data: correlation_data.as_deref(),
        user_properties: user_properties
            .chunks_exact(2)
            .map(|pair| (pair[0].as_str(), pair[1].as_str()))
            .collect(),
    };
    ask(&ctx, &Request::Publish(message))
}

/// A promise of the value.
fn register_get<'js>(
    ctx: Ctx<'js>,
    object: JsString<'js>,
    field: JsString<'js>,
) -> rquickjs::Result<Value<'js>> {
    let (object, field) = (Utf8::of(object)?, Utf8::of(field)?);
    let value = match answer(&ctx, &Request::RegisterGet { object: &object, field: &field })? {
        Answer::Bytes(json) => stored_json(&ctx, json)?,
        other => value_of(&ctx, &other)?,
    };
    // What JSON can say has no `then` that could be called.
    boundary::fulfilled(&ctx, &value)
}

/// What JSON in a field says. Other programs may have written something else there.
pub fn stored_json<'js>(ctx: &Ctx<'js>, json: &[u8]) -> rquickjs::Result<Value<'js>> {
    ctx.json_parse(json).map_err(|_| {
        drop(ctx.catch());
        refused(ctx, Code::Invalid, "what is stored there is no JSON text; another program wrote it")
    })
}

fn start_call<'js>(ctx: Ctx<'js>, function: String, data: Value<'js>) -> rquickjs::Result<u32> {
    let data = convert::payload(&ctx, &data)?;
    started(&ctx, &Start::Call { function: &function, data: &data })
}

/// `(method, url, [name, value, …], body, redirect)`.
fn start_fetch<'js>(
    ctx: Ctx<'js>,
    method: String,
    url: String,
    headers: Vec<String>,
    body: Value<'js>,
    redirect: String,
) -> rquickjs::Result<u32> {
    let body = convert::payload(&ctx, &body)?;
    let redirect = match redirect.as_str() {
        "error" => Redirect::Error,
        "manual" => Redirect::Manual,
        _ => Redirect::Follow,
    };
    let headers = headers.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    started(&ctx, &Start::Fetch { method: &method, url: &url, headers, body: &body, redirect })
}

fn started(ctx: &Ctx<'_>, start: &Start<'_>) -> rquickjs::Result<u32> {
    boundary::start(start).map_err(|refusal| match value_of(ctx, &refusal) {
        Err(error) => error,
        Ok(_) => rquickjs::Exception::throw_message(ctx, "the call could not be started"),
    })
}

/// The value of the answer to `request`; throws if it is a refusal.
pub fn ask<'js>(ctx: &Ctx<'js>, request: &Request<'_>) -> rquickjs::Result<Value<'js>> {
    value_of(ctx, &boundary::call(request))
}

/// The answer to `request`; throws if it is a refusal.
fn answer(ctx: &Ctx<'_>, request: &Request<'_>) -> rquickjs::Result<Answer<'static>> {
    match boundary::call(request) {
        Answer::Refused { code, message } => Err(refused(ctx, code, message)),
        answer => Ok(answer),
    }
}

fn refused(ctx: &Ctx<'_>, code: Code, message: &str) -> rquickjs::Error {
    let error = kept(ctx, |kept| &kept.make_error)
        .and_then(|make_error| make_error.call::<_, Value<'_>>((code.as_str(), message)));
    match error {
        Ok(error) => ctx.throw(error),
        Err(error) => error,
    }
}

fn value_of<'js>(ctx: &Ctx<'js>, answer: &Answer<'_>) -> rquickjs::Result<Value<'js>> {
    match answer {
        Answer::Nothing => Ok(Value::new_undefined(ctx.clone())),
        Answer::Integer(value) => (*value as f64).into_js(ctx),
        Answer::Text(text) => text.into_js(ctx),
        Answer::Bytes(bytes) => TypedArray::new_copy(ctx.clone(), bytes).map(TypedArray::into_value),
        Answer::Names(names) => names.clone().into_js(ctx),
        Answer::Field(value) => fields::value_of(ctx, value),
        Answer::Place { address, bytes } => boundary::view(ctx, *address, *bytes),
        Answer::Refused { code, message } => Err(refused(ctx, *code, message)),
        Answer::Reply(reply) => reply_value(ctx, reply),
        Answer::Fetched { .. } => fetched(ctx, answer, Vec::new()),
        // Only `settle` gets it.
        Answer::Piece { .. } => Ok(Value::new_undefined(ctx.clone())),
    }
}

/// The parts of an answer whose body begins with `body`.
fn fetched<'js>(ctx: &Ctx<'js>, answer: &Answer<'_>, mut body: Vec<u8>) -> rquickjs::Result<Value<'js>> {
    let Answer::Fetched { status, headers, body: rest, url, redirected } = answer else {
        return value_of(ctx, answer);
    };
    let parts = Array::new(ctx.clone())?;
    parts.set(0, *status)?;
    parts.set(1, flat(ctx, headers)?)?;
    match body.is_empty() {
        true => parts.set(2, TypedArray::new_copy(ctx.clone(), rest)?)?,
        false => {
            body.extend_from_slice(rest);
            parts.set(2, TypedArray::new(ctx.clone(), body)?)?;
        }
    }
    parts.set(3, *url)?;
    parts.set(4, *redirected)?;
    Ok(parts.into_value())
}

fn reply_value<'js>(ctx: &Ctx<'js>, reply: &Reply<'_>) -> rquickjs::Result<Value<'js>> {
    match reply {
        Reply::None => Ok(Value::new_undefined(ctx.clone())),
        Reply::Json(json) => ctx.json_parse(*json),
        Reply::Text(text) => text.into_js(ctx),
        Reply::Bytes(bytes) => TypedArray::new_copy(ctx.clone(), bytes).map(TypedArray::into_value),
        Reply::Http { status, headers, body } => {
            let response: Function<'js> = ctx.globals().get("Response")?;
            let init = Object::new(ctx.clone())?;
            let pairs = Array::new(ctx.clone())?;
            for (index, pair) in headers.iter().enumerate() {
                pairs.set(index, vec![pair.0, pair.1])?;
            }
            init.set("status", *status)?;
            init.set("headers", pairs)?;
            let body = match status {
                101 | 204 | 205 | 304 => Value::new_null(ctx.clone()),
                _ => TypedArray::new_copy(ctx.clone(), body)?.into_value(),
            };
            response.as_constructor().map_or_else(
                || Err(rquickjs::Exception::throw_type(ctx, "Response is not a constructor")),
                |constructor| constructor.construct((body, init)),
            )
        }
    }
}

/// xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators", 2016).
fn random() -> f64 {
    let mut state = RANDOM_STATE.get();
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    RANDOM_STATE.set(state);
    let bits = state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

fn random_bytes<'js>(ctx: Ctx<'js>, len: u32) -> rquickjs::Result<TypedArray<'js, u8>> {
    if !is_running() {
        let message = "random bytes are not available while top-level code runs at deploy, they would be \
                       the same in every invocation; ask for them in the handler";
        return Err(refused(&ctx, Code::Deploying, message));
    }
    TypedArray::new(ctx, boundary::random(len as usize))
}

/// UTF-8 to text; undefined if `fatal` and malformed.
fn decode(bytes: TypedArray<'_, u8>, fatal: Opt<bool>) -> Option<String> {
    match String::from_utf8(boundary::copy_view(&bytes)) {
        Ok(text) => Some(text),
        Err(_) if fatal.0.unwrap_or(false) => None,
        Err(error) => Some(String::from_utf8_lossy(error.as_bytes()).into_owned()),
    }
}

/// The bytes of base64 text whose white space is gone; undefined if it is malformed.
fn from_base64<'js>(ctx: Ctx<'js>, text: String) -> rquickjs::Result<Option<TypedArray<'js, u8>>> {
    let config = base64::engine::GeneralPurposeConfig::new()
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let engine = base64::engine::GeneralPurpose::new(&base64::alphabet::STANDARD, config);
    engine.decode(text).ok().map(|bytes| TypedArray::new(ctx, bytes)).transpose()
}
