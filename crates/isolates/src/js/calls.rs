//! What the engine imports: host calls at once, host calls with a ticket, clock and randomness.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use edgefaas_js_abi::{self as abi, Answer, Request, Start};
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use wasmtime::{Caller, Linker, Memory, ResourceLimiter};

use super::messages;
use super::stack::Files;
use crate::assets::AssetTable;
use crate::guest_memory::Reservation;
use crate::host::read_object;
use crate::{Host, HostError, LogLevel};

/// How many tickets an invocation may have open at once.
const MAX_TICKETS: usize = 1024;

/// How many lines top-level code may log.
const MAX_DEPLOY_LINES: usize = 100;

/// What the store of an isolate holds.
pub struct State {
    /// Who answers.
    pub stage: Stage,
    /// The isolate's memory, once it is there.
    pub memory: Option<Memory>,
    /// Its limit.
    pub limit: MemoryLimit,
    /// Host calls under way.
    pub tickets: Tickets,
    /// For stacks in log lines.
    pub files: Arc<Files>,
    /// What lies in its memory beside its own.
    pub assets: Arc<AssetTable>,
    /// The time as the invocation sees it.
    pub time: RunTime,
    /// The last answer, until it is taken.
    answer: Vec<u8>,
}

/// The time of one invocation: that of the wall clock when it began, and what has passed since on a clock that never
/// jumps. The engine has one clock for `Date` and `performance`, which must not go backwards.
#[derive(Debug, Clone, Copy)]
pub struct RunTime {
    began_unix_us: f64,
    began: Instant,
}

impl RunTime {
    /// An invocation begins, at this time of the wall clock.
    pub fn begin(wall: SystemTime) -> Self {
        let began_unix_us = wall.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as f64;
        Self { began_unix_us, began: Instant::now() }
    }

    fn now_unix_us(&self) -> f64 {
        self.began_unix_us + self.began.elapsed().as_micros() as f64
    }
}

/// What the engine is doing.
pub enum Stage {
    /// It evaluates top-level code; there is nobody to call. Holds what was logged.
    Deploy(Vec<(LogLevel, String)>),
    /// It runs a handler.
    Run(Box<dyn Host>),
}

impl State {
    /// The state of a new isolate.
    pub fn new(
        stage: Stage,
        memory_bytes: usize,
        files: Arc<Files>,
        assets: Arc<AssetTable>,
        reservation: Reservation,
    ) -> Self {
        Self {
            stage,
            memory: None,
            limit: MemoryLimit {
                bytes: memory_bytes,
                exceeded: false,
                shared_bytes: assets.memory_bytes,
                reservation,
            },
            tickets: Tickets::default(),
            files,
            assets,
            time: RunTime::begin(SystemTime::now()),
            answer: Vec::new(),
        }
    }
}

/// How much linear memory an isolate may have.
pub struct MemoryLimit {
    /// The limit.
    pub bytes: usize,
    /// Whether it asked for more.
    pub exceeded: bool,
    /// Assets, which are mapped from a file that all instances share.
    pub shared_bytes: usize,
    /// Its part of the memory of all isolates.
    pub(crate) reservation: Reservation,
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let allowed = desired <= self.bytes;
        self.exceeded |= !allowed;
        Ok(allowed && self.reservation.cover(desired.saturating_sub(self.shared_bytes)))
    }

    fn table_growing(&mut self, current: usize, _: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(current == 0)
    }
}

type Ticketed = Pin<Box<dyn Future<Output = (u32, Vec<u8>)> + Send>>;

/// Host calls under way, each with the number the engine knows it by.
#[derive(Default)]
pub struct Tickets {
    last: u32,
    pending: FuturesUnordered<Abortable<Ticketed>>,
    handles: HashMap<u32, AbortHandle>,
    /// Answered, but not yet handed out.
    ready: Vec<(u32, Vec<u8>)>,
}

impl Tickets {
    /// Waits until some are answered; none if no ticket is open.
    pub async fn next(&mut self) -> Option<Vec<(u32, Vec<u8>)>> {
        let mut ready = std::mem::take(&mut self.ready);
        while ready.is_empty() {
            if self.handles.is_empty() {
                return None;
            }
            // A cancelled ticket ends here as well, as nothing.
            ready.extend(self.pending.next().await?.ok());
        }
        while let Some(Some(more)) = self.pending.next().now_or_never() {
            ready.extend(more.ok());
        }
        for (ticket, _) in &ready {
            self.handles.remove(ticket);
        }
        Some(ready)
    }

    /// Whether no ticket is open, answered ones included.
    pub fn is_idle(&self) -> bool {
        self.handles.is_empty() && self.ready.is_empty()
    }

    /// Whether another ticket may be opened.
    fn has_room(&mut self) -> bool {
        // A cancelled ticket stays among the pending until it is polled.
        if self.pending.len() >= MAX_TICKETS {
            while let Some(Some(ended)) = self.pending.next().now_or_never() {
                self.ready.extend(ended.ok());
            }
        }
        self.pending.len() < MAX_TICKETS && self.handles.len() < MAX_TICKETS
    }

    fn open(&mut self, answer: impl Future<Output = Vec<u8>> + Send + 'static) -> i32 {
        self.last += 1;
        let ticket = self.last;
        let (handle, registration) = AbortHandle::new_pair();
        let future: Ticketed = Box::pin(answer.map(move |answer| (ticket, answer)));
        self.pending.push(Abortable::new(future, registration));
        self.handles.insert(ticket, handle);
        ticket.cast_signed()
    }

    fn cancel(&mut self, ticket: u32) {
        if let Some(handle) = self.handles.remove(&ticket) {
            handle.abort();
            self.ready.retain(|(answered, _)| *answered != ticket);
        }
    }
}

/// Defines everything the engine imports but its memory.
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

/// Nothing is the empty answer.
const NOTHING: Vec<u8> = Vec::new();

/// What is said to a request.
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
    let State { stage, assets, .. } = state;
    let Stage::Run(host) = stage else {
        return Answered::Message(deploying(name(request)));
    };
    let done = |result: Result<(), HostError>| result.map(|()| NOTHING);
    let result = match request {
        Request::Log { .. } | Request::Cancel { .. } => Ok(NOTHING),
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
        Request::Asset { name } => asset(assets, name),
        Request::Config => Ok(config(&mut **host)),
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
            let fetch = host.fetch(messages::outgoing_request(method, url, headers, body, *redirect));
            let fetch = fetch.map_err(|error| messages::refusal(&error))?;
            Ok(tickets.open(fetch.map(|result| messages::fetch_answer(&result))))
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

fn name(request: &Request<'_>) -> &'static str {
    match request {
        Request::Log { .. } => "log",
        Request::Publish(_) => "publish",
        Request::CounterAdd { .. } => "counter.add",
        Request::CounterValue { .. } => "counter.value",
        Request::RegisterSet { .. } => "register.set",
        Request::RegisterGet { .. } => "register.get",
        Request::ObjectChange { change, .. } => change.field_type().as_str(),
        Request::ObjectRead { read, .. } => read.field_type().as_str(),
        Request::Asset { .. } => "asset",
        Request::Config => "config",
        Request::SecretNames | Request::Secret { .. } => "secrets",
        Request::Cancel { .. } => "clearTimeout",
    }
}

fn deploying(call: &str) -> Vec<u8> {
    let message = format!(
        "{call} is not available while top-level code runs at deploy; use it inside of the handler"
    );
    messages::encode(&Answer::Refused { code: abi::Code::Deploying, message: &message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_invocation_begins_with_the_wall_clock_and_never_goes_back() {
        // Whatever the wall clock says later.
        for wall in [
            SystemTime::now() + Duration::from_secs(86_400),
            UNIX_EPOCH,
            UNIX_EPOCH - Duration::from_secs(1),
        ] {
            let began = wall.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as f64;
            let time = RunTime::begin(wall);
            let mut last = began;
            for _ in 0..1000 {
                let now = time.now_unix_us();
                assert!(now >= last && now < began + 6e7, "{last} {now}");
                last = now;
            }
        }
    }

    #[tokio::test]
    async fn cancelled_tickets_leave() {
        let mut tickets = Tickets::default();
        for _ in 0..10 * MAX_TICKETS {
            assert!(tickets.has_room());
            let ticket = tickets.open(std::future::pending());
            tickets.cancel(ticket.cast_unsigned());
            assert!(tickets.pending.len() <= MAX_TICKETS);
        }
        assert_eq!(tickets.next().await, None);
    }

    #[tokio::test]
    async fn answers_that_making_room_finds_are_not_lost() {
        let mut tickets = Tickets::default();
        let answered = tickets.open(std::future::ready(vec![7])).cast_unsigned();
        let cancelled = tickets.open(std::future::ready(vec![8])).cast_unsigned();
        while tickets.pending.len() < MAX_TICKETS {
            tickets.open(std::future::pending());
        }
        assert!(!tickets.has_room(), "the answered still count until they are taken");
        tickets.cancel(cancelled);
        assert!(tickets.has_room());
        assert_eq!(tickets.next().await, Some(vec![(answered, vec![7])]));
    }
}
