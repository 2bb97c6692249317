//! The engine's imports: host calls, calls with a ticket, clock and randomness.

use std::time::Duration;

use bytes::Bytes;
use edgefaas_js_abi::{self as abi, Answer, Request, Start};
use futures_util::FutureExt;
use wasmtime::{Caller, Linker};

use super::state::{Stage, State};
use super::tickets::MAX_TICKETS;
use super::{fetched, libraries, messages, zones};
use crate::assets::AssetTable;
use crate::host::{NODE_KEY, read_object};
use crate::{Host, HostError};

/// The maximum of log lines of top-level code.
const MAX_DEPLOY_LINES: usize = 100;

/// Defines all imports of the engine but its memory.
pub fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.func_wrap(
        "edgefaas",
        "call",
        |mut caller: Caller<'_, State>, at: u32, len: u32, number: u32| {
            let (data, state) = memory(&mut caller)?;
            let request = abi::decode(message(data, at, len)?)?;
            match answer(state, &request) {
                Answered::Number(value) => {
                    room(data, number, size_of::<i64>() as u32)?.copy_from_slice(&value.to_le_bytes());
                    wasmtime::Result::Ok(abi::NUMBER)
                }
                Answered::Message(answer) => {
                    state.answer = answer;
                    Ok(state.answer.len() as u32)
                }
            }
        },
    )?;
    linker.func_wrap("edgefaas", "start", |mut caller: Caller<'_, State>, at: u32, len: u32| {
        let (data, state) = memory(&mut caller)?;
        let request = abi::decode(message(data, at, len)?)?;
        wasmtime::Result::Ok(match start(state, &request) {
            Ok(ticket) => ticket,
            Err(refusal) => {
                state.answer = refusal;
                -(state.answer.len() as i32)
            }
        })
    })?;
    linker.func_wrap("edgefaas", "take", |mut caller: Caller<'_, State>, at: u32| {
        let (data, state) = memory(&mut caller)?;
        let answer = std::mem::take(&mut state.answer);
        room(data, at, answer.len() as u32)?.copy_from_slice(&answer);
        wasmtime::Result::Ok(())
    })?;
    linker.func_wrap("edgefaas", "random", |mut caller: Caller<'_, State>, at: u32, len: u32| {
        let (data, _) = memory(&mut caller)?;
        rand::fill(room(data, at, len)?);
        wasmtime::Result::Ok(())
    })?;
    linker.func_wrap("env", "__rquickjs_host_now_us", |caller: Caller<'_, State>| -> f64 {
        caller.data().time.now_unix_us()
    })?;
    Ok(())
}

/// The engine broke the rules of its border.
#[derive(Debug, thiserror::Error)]
#[error("the engine named memory it does not have: {len} bytes at {at}")]
struct BadMessage {
    at: u32,
    len: u32,
}

fn memory<'a>(caller: &'a mut Caller<'_, State>) -> wasmtime::Result<(&'a mut [u8], &'a mut State)> {
    match caller.data().memory {
        Some(memory) => Ok(memory.data_and_store_mut(caller)),
        None => Err(BadMessage { at: 0, len: 0 }.into()),
    }
}

/// `len` bytes at `at` of an isolate's memory.
pub fn message(data: &[u8], at: u32, len: u32) -> wasmtime::Result<&[u8]> {
    let bytes = data.get(at as usize..).and_then(|rest| rest.get(..len as usize));
    bytes.ok_or_else(|| BadMessage { at, len }.into())
}

fn room(data: &mut [u8], at: u32, len: u32) -> wasmtime::Result<&mut [u8]> {
    let bytes = data.get_mut(at as usize..).and_then(|rest| rest.get_mut(..len as usize));
    bytes.ok_or_else(|| BadMessage { at, len }.into())
}

/// The empty answer.
const NOTHING: Vec<u8> = Vec::new();

/// The answer to a request.
enum Answered {
    /// An [`Answer::Integer`], which needs no message.
    Number(i64),
    /// An encoded [`Answer`].
    Message(Vec<u8>),
}

impl Answered {
    const NOTHING: Self = Self::Message(NOTHING);
}

fn answer(state: &mut State, request: &Request<'_>) -> Answered {
    if let Request::Log { level, message } = request {
        let message = state.files.show_text(message);
        match &mut state.stage {
            Stage::Run(host) => host.log(messages::level(*level), message.into_owned()),
            Stage::Deploy(lines) if lines.len() < MAX_DEPLOY_LINES => {
                lines.push((messages::level(*level), message.into_owned()));
            }
            Stage::Deploy(_) => {}
        }
        return Answered::NOTHING;
    }
    if let Request::Cancel { ticket } = request {
        state.tickets.cancel(*ticket);
        return Answered::NOTHING;
    }
    match request {
        Request::Library { name } => {
            let text = libraries::text(name);
            return Answered::Message(text.map_or(NOTHING, |text| messages::encode(&Answer::Text(text))));
        }
        Request::Zone { name } => {
            let zone = zones::zone(name);
            return Answered::Message(zone.map_or(NOTHING, |json| messages::encode(&Answer::Text(&json))));
        }
        Request::ZoneNames => {
            return Answered::Message(messages::encode(&Answer::Names(zones::names().collect())));
        }
        _ => {}
    }
    let State { stage, assets, .. } = state;
    let Stage::Run(host) = stage else {
        return Answered::Message(deploying(name(request)));
    };
    let done = |result: Result<(), HostError>| result.map(|()| NOTHING);
    let result = match request {
        Request::Log { .. }
        | Request::Cancel { .. }
        | Request::Library { .. }
        | Request::Zone { .. }
        | Request::ZoneNames => Ok(NOTHING),
        Request::Publish(message) => done(host.publish(messages::publish_request(message))),
        Request::CounterAdd { object, field, amount } => done(host.counter_add(object, field, *amount)),
        Request::CounterValue { object, field } => match host.counter_value(object, field) {
            Ok(value) => return Answered::Number(value),
            Err(error) => Err(error),
        },
        Request::RegisterSet { object, field, value } => {
            done(host.register_set(object, field, Bytes::copy_from_slice(value)))
        }
        Request::RegisterGet { object, field } => host
            .register_get(object, field)
            .map(|value| value.map_or(NOTHING, |value| messages::encode(&Answer::Bytes(&value)))),
        Request::ObjectChange { object, field, path, change } => {
            done(host.object_change(object, field, path, *change))
        }
        Request::ObjectRead { object, field, path, read } => {
            read_object(&mut **host, object, field, path, *read).map(|value| messages::field_answer(&value))
        }
        Request::ObjectDelete { object, field } => done(host.object_delete(object, *field)),
        Request::Asset { name } => asset(assets, name),
        Request::Config => Ok(config(&mut **host)),
        Request::Node => {
            Ok(host.config(NODE_KEY).map_or(NOTHING, |node| messages::encode(&Answer::Text(&node))))
        }
        Request::SecretNames => {
            let names = host.secret_names();
            Ok(messages::encode(&Answer::Names(names.iter().map(String::as_str).collect())))
        }
        Request::Secret { name } => {
            Ok(host.secret(name).map_or(NOTHING, |secret| messages::encode(&Answer::Text(&secret))))
        }
    };
    Answered::Message(result.unwrap_or_else(|error| messages::refusal(&error)))
}

fn asset(assets: &AssetTable, name: &str) -> Result<Vec<u8>, HostError> {
    match assets.find(name) {
        Some((address, bytes)) => Ok(messages::encode(&Answer::Place { address, bytes })),
        None => Err(HostError::NotFound(assets.describe_missing(name))),
    }
}

/// All `config` values as one JSON object.
fn config(host: &mut dyn Host) -> Vec<u8> {
    let mut json = String::from("{");
    for key in host.config_keys() {
        let Some(value) = host.config(&key) else { continue };
        if json.len() > 1 {
            json.push(',');
        }
        json.push_str(&serde_json::Value::from(key).to_string());
        json.push(':');
        json.push_str(&value);
    }
    json.push('}');
    messages::encode(&Answer::Text(&json))
}

fn start(state: &mut State, request: &Start<'_>) -> Result<i32, Vec<u8>> {
    let State { stage, tickets, .. } = state;
    let Stage::Run(host) = stage else {
        return Err(deploying(match request {
            Start::Call { .. } => "call",
            Start::Sleep { .. } => "setTimeout",
            Start::Fetch { .. } => "fetch",
        }));
    };
    if !tickets.has_room() {
        let message =
            format!("{MAX_TICKETS} calls and timers are under way already; await some of them first");
        return Err(messages::refusal(&HostError::Overloaded(message)));
    }
    match request {
        Start::Call { function, data } => {
            let call = host.call((*function).to_owned(), Bytes::copy_from_slice(data));
            let call = call.map_err(|error| messages::refusal(&error))?;
            Ok(tickets.open(call.map(|result| messages::call_answer(&result))))
        }
        Start::Fetch { method, url, headers, body, redirect } => {
            let request = messages::outgoing_request(method, url, headers, *redirect);
            let body = std::future::ready(Ok(Bytes::copy_from_slice(body)));
            let fetch = host.fetch_streamed(request, Box::pin(body));
            let fetch = fetch.map_err(|error| messages::refusal(&error))?;
            Ok(tickets.open_in_pieces(fetched::pieces(fetch)))
        }
        Start::Sleep { duration_ms } => {
            let duration = Duration::from_millis(*duration_ms);
            Ok(tickets.open(async move {
                tokio::time::sleep(duration).await;
                messages::encode(&Answer::Nothing)
            }))
        }
    }
}

fn name<'a>(request: &Request<'a>) -> &'a str {
    match request {
        Request::Log { .. } => "log",
        Request::Publish(_) => "publish",
        Request::CounterAdd { .. } => "counter.add",
        Request::CounterValue { .. } => "counter.value",
        Request::RegisterSet { .. } => "register.set",
        Request::RegisterGet { .. } => "register.get",
        Request::ObjectChange { change, .. } => change.field_type().as_str(),
        Request::ObjectRead { read, .. } => read.field_type().as_str(),
        Request::ObjectDelete { .. } => "object.delete",
        Request::Asset { .. } => "asset",
        Request::Config => "config",
        Request::Node => "node",
        Request::SecretNames | Request::Secret { .. } => "secrets",
        Request::Cancel { .. } => "clearTimeout",
        Request::Library { name } => name,
        Request::Zone { .. } | Request::ZoneNames => "time zones",
    }
}

fn deploying(call: &str) -> Vec<u8> {
    let message = format!(
        "{call} is not available while top-level code runs at deploy; use it inside of the handler"
    );
    messages::encode(&Answer::Refused { code: abi::Code::Deploying, message: &message })
}
