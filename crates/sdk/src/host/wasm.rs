use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Poll, Waker};

use log::Level;

use self::bindings::edgefaas::function as node;
use self::bindings::wasi::io::poll::{self, Pollable};
#[cfg(feature = "arena-allocator")]
use crate::arena::{receiving, running};
use crate::context::{Context, Invocation, PublishOptions};
use crate::event::{
    CronTick, DirectCall, Event, HttpRequest, MqttMessage, ObjectChange, Trigger, WorkflowStep, unix_ms,
};
use crate::object::{Change, FieldValue, Read};
use crate::{Fetched, HostError, Redirect, Reply, Request, Response};

/// What wit-bindgen makes of the function world. Generated once and not by its macro, which would cost every
/// user the build of a WIT toolchain; `tests/world.rs` keeps it up to date.
#[rustfmt::skip]
#[allow(missing_docs, unsafe_code, unused_qualifications, elided_lifetimes_in_paths, clippy::all)]
#[path = "bindings.rs"]
pub mod bindings;
mod fields;

/// Without the arena, the C library serves all.
#[cfg(not(feature = "arena-allocator"))]
fn receiving<T>(call: impl FnOnce() -> T) -> T {
    call()
}

#[cfg(not(feature = "arena-allocator"))]
fn running<T>(function: impl FnOnce() -> T) -> T {
    function()
}

/// The node, as far as this instance may reach it.
#[derive(Debug, Clone)]
pub(crate) struct Host;

impl Host {
    pub fn log(&self, level: Level, message: &str) {
        let level = match level {
            Level::Trace => node::context::LogLevel::Trace,
            Level::Debug => node::context::LogLevel::Debug,
            Level::Info => node::context::LogLevel::Info,
            Level::Warn => node::context::LogLevel::Warn,
            Level::Error => node::context::LogLevel::Error,
        };
        node::context::log(level, message);
    }

    pub fn config(&self, key: &str) -> Option<String> {
        receiving(|| node::context::config(key))
    }

    #[allow(unsafe_code)]
    pub fn asset(&self, name: &str) -> Option<&'static [u8]> {
        let region = node::assets::locate(name)?;
        // SAFETY: the node has put the file there, behind the memory that this module was linked with; nothing else knows
        // of that place, and it stays for as long as the instance does. A length of zero has an address as well.
        Some(unsafe { std::slice::from_raw_parts(region.address as *const u8, region.length as usize) })
    }

    pub fn secret(&self, name: &str) -> Option<String> {
        receiving(|| node::context::secret(name))
    }

    pub fn publish(&self, topic: &str, payload: &[u8], options: &PublishOptions) -> Result<(), HostError> {
        let PublishOptions { qos, retain, content_type, response_topic, correlation_data, user_properties } =
            options.clone();
        let options = node::messaging::PublishOptions {
            qos,
            retain,
            content_type,
            response_topic,
            correlation_data,
            user_properties,
        };
        Ok(receiving(|| node::messaging::publish(topic, payload, &options))?)
    }

    pub fn call(&self, function: &str, data: &[u8]) -> Result<Call, HostError> {
        Ok(Pending { pollable: None, answer: receiving(|| node::calls::call(function, data))? })
    }

    pub fn fetch(&self, request: Request) -> Result<Fetch, HostError> {
        let Request { method, url, headers, body, redirect } = request;
        let redirect = match redirect {
            Redirect::Follow => node::requests::Redirect::Follow,
            Redirect::Error => node::requests::Redirect::Error,
            Redirect::Manual => node::requests::Redirect::Manual,
        };
        let request = node::requests::Request { method, url, headers, body, redirect };
        Ok(Pending { pollable: None, answer: receiving(|| node::requests::fetch(&request))? })
    }

    pub fn counter_add(&self, object: &str, field: &str, amount: i64) -> Result<(), HostError> {
        Ok(receiving(|| node::objects::counter_add(object, field, amount))?)
    }

    pub fn counter_value(&self, object: &str, field: &str) -> Result<i64, HostError> {
        Ok(receiving(|| node::objects::counter_value(object, field))?)
    }

    pub fn register_set(&self, object: &str, field: &str, value: &[u8]) -> Result<(), HostError> {
        Ok(receiving(|| node::objects::register_set(object, field, value))?)
    }

    pub fn register_get(&self, object: &str, field: &str) -> Result<Option<Vec<u8>>, HostError> {
        Ok(receiving(|| node::objects::register_get(object, field))?)
    }

    pub fn object_change(
        &self,
        object: &str,
        field: &str,
        path: &[String],
        change: Change<'_>,
    ) -> Result<(), HostError> {
        let change = change.into();
        Ok(receiving(|| node::objects::change(object, field, path, &change))?)
    }

    pub fn object_read(
        &self,
        object: &str,
        field: &str,
        path: &[String],
        read: Read<'_>,
    ) -> Result<FieldValue, HostError> {
        Ok(receiving(|| match read {
            Read::Value(field_type) => {
                node::objects::read(object, field, path, field_type.into()).map(FieldValue::from)
            }
            Read::Contains { field_type, element } => {
                let wanted = field_type.into();
                node::objects::contains(object, field, path, wanted, element).map(FieldValue::Flag)
            }
            Read::MapKeys => node::objects::map_keys(object, field, path).map(|keys| {
                FieldValue::Keys(keys.into_iter().map(|(key, known)| (key, known.into())).collect())
            }),
            Read::Share => {
                node::objects::bounded_counter_share(object, field, path).map(FieldValue::Unsigned)
            }
        })?)
    }

    pub fn object_delete(&self, object: &str, field: Option<&str>) -> Result<(), HostError> {
        Ok(receiving(|| match field {
            Some(field) => node::objects::delete_field(object, field),
            None => node::objects::delete_object(object),
        })?)
    }
}

/// A call under way.
pub(crate) type Call = Pending<node::calls::PendingCall>;
/// A request under way.
pub(crate) type Fetch = Pending<node::requests::PendingResponse>;

/// An answer that the node will have.
pub(crate) trait Awaited {
    /// The answer.
    type Answer;
    /// The answer, once; none while it is not there.
    fn take(&self) -> Option<Result<Self::Answer, node::types::HostError>>;
    /// Ready when `take` has an answer.
    fn subscribe(&self) -> Pollable;
}

impl Awaited for node::calls::PendingCall {
    type Answer = Reply;

    fn take(&self) -> Option<Result<Reply, node::types::HostError>> {
        Some(self.take()?.map(Into::into))
    }

    fn subscribe(&self) -> Pollable {
        self.subscribe()
    }
}

impl Awaited for node::requests::PendingResponse {
    type Answer = Fetched;

    fn take(&self) -> Option<Result<Fetched, node::types::HostError>> {
        Some(self.take()?.map(|it| {
            let node::requests::Response { status, headers, body, url, redirected } = it;
            Fetched { status, headers, body, url, redirected }
        }))
    }

    fn subscribe(&self) -> Pollable {
        self.subscribe()
    }
}

/// Something that takes its time.
#[derive(Debug)]
pub(crate) struct Pending<A> {
    /// The pollable that the executor waits for, made at the first wait. Dropped before `answer`, its parent.
    pollable: Option<Rc<Pollable>>,
    answer: A,
}

impl<A: Awaited> Pending<A> {
    pub fn poll(&mut self, waker: &Waker) -> Poll<Result<A::Answer, HostError>> {
        if let Some(answer) = receiving(|| self.answer.take()) {
            return Poll::Ready(Ok(answer?));
        }
        let pollable = self.pollable.get_or_insert_with(|| Rc::new(self.answer.subscribe()));
        stop_waiting(pollable);
        let waiter = Waiter { pollable: pollable.clone(), waker: waker.clone() };
        WAITERS.with_borrow_mut(|waiters| waiters.push(waiter));
        Poll::Pending
    }

    pub fn wait(self) -> Result<A::Answer, HostError> {
        loop {
            if let Some(answer) = receiving(|| self.answer.take()) {
                return Ok(answer?);
            }
            self.answer.subscribe().block();
        }
    }
}

impl<A> Drop for Pending<A> {
    fn drop(&mut self) {
        if let Some(pollable) = &self.pollable {
            stop_waiting(pollable);
        }
    }
}

struct Waiter {
    pollable: Rc<Pollable>,
    waker: Waker,
}

thread_local! {
    /// Pollables that the executor's future waits for.
    static WAITERS: RefCell<Vec<Waiter>> = const { RefCell::new(Vec::new()) };
}

/// Sleeps until something is ready that a future waits for, and wakes that future. False if there is
/// nothing to wait for.
pub(crate) fn wait_any() -> bool {
    let waiting = WAITERS.take();
    if waiting.is_empty() {
        return false;
    }
    let pollables: Vec<&Pollable> = waiting.iter().map(|waiter| &*waiter.pollable).collect();
    let ready = receiving(|| poll::poll(&pollables));
    drop(pollables);

    let mut still_waiting = Vec::with_capacity(waiting.len());
    for (index, waiter) in waiting.into_iter().enumerate() {
        if ready.contains(&(index as u32)) {
            waiter.waker.wake();
        } else {
            still_waiting.push(waiter);
        }
    }
    WAITERS.set(still_waiting);
    true
}

fn stop_waiting(pollable: &Rc<Pollable>) {
    WAITERS.with_borrow_mut(|waiters| waiters.retain(|waiter| !Rc::ptr_eq(&waiter.pollable, pollable)));
}

/// Handles one event: the body of the component's export.
pub fn run(
    invocation: bindings::Invocation,
    event: bindings::Event,
    handler: crate::__private::Handler,
) -> Result<bindings::Reply, bindings::Failure> {
    // A fresh instance has no logger yet; an instance that is reused keeps the one it has.
    if log::set_logger(&LogToHost).is_ok() {
        log::set_max_level(log::LevelFilter::Trace);
    }
    let invocation = Invocation {
        id: invocation.id,
        function: invocation.function,
        deadline: unix_ms(invocation.deadline_unix_ms),
    };
    match running(|| handler(event.into(), Context { host: Host, invocation })) {
        Ok(reply) => Ok(reply.into()),
        Err(error) => Err(bindings::Failure { message: error.message().to_owned() }),
    }
}

struct LogToHost;

impl log::Log for LogToHost {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        Host.log(record.level(), &record.args().to_string());
    }

    fn flush(&self) {}
}

impl From<bindings::Event> for Event {
    fn from(event: bindings::Event) -> Self {
        let trigger = match event.trigger {
            node::types::Trigger::Http(it) => Trigger::Http(HttpRequest {
                method: it.method,
                path: it.path,
                query: it.query,
                headers: it.headers,
            }),
            node::types::Trigger::Mqtt(it) => Trigger::Mqtt(MqttMessage {
                topic: it.topic,
                qos: it.qos,
                retain: it.retain,
                content_type: it.content_type,
                response_topic: it.response_topic,
                correlation_data: it.correlation_data,
                user_properties: it.user_properties,
            }),
            node::types::Trigger::Cron(it) => {
                Trigger::Cron(CronTick { schedule: it.schedule, scheduled: unix_ms(it.scheduled_unix_ms) })
            }
            node::types::Trigger::Object(it) => {
                Trigger::Object(ObjectChange { object: it.object, field: it.field })
            }
            node::types::Trigger::Call(it) => Trigger::Call(DirectCall { caller: it.caller }),
            node::types::Trigger::Workflow(it) => Trigger::Workflow(WorkflowStep {
                workflow: it.workflow,
                instance: it.instance,
                task: it.task,
            }),
        };
        Event::new(trigger, event.body)
    }
}

impl From<bindings::Reply> for Reply {
    fn from(reply: bindings::Reply) -> Self {
        match reply {
            bindings::Reply::None => Self::None,
            bindings::Reply::Json(text) => Self::Json(text),
            bindings::Reply::Text(text) => Self::Text(text),
            bindings::Reply::Bytes(bytes) => Self::Bytes(bytes),
            bindings::Reply::Http(it) => {
                Self::Http(Response { status: it.status, headers: it.headers, body: it.body })
            }
        }
    }
}

impl From<Reply> for bindings::Reply {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::None => Self::None,
            Reply::Json(text) => Self::Json(text),
            Reply::Text(text) => Self::Text(text),
            Reply::Bytes(bytes) => Self::Bytes(bytes),
            Reply::Http(it) => Self::Http(node::types::HttpResponse {
                status: it.status,
                headers: it.headers,
                body: it.body,
            }),
        }
    }
}

impl From<node::types::HostError> for HostError {
    fn from(error: node::types::HostError) -> Self {
        match error {
            node::types::HostError::NotPermitted(text) => Self::NotPermitted(text),
            node::types::HostError::NotFound(text) => Self::NotFound(text),
            node::types::HostError::Invalid(text) => Self::Invalid(text),
            node::types::HostError::Overloaded(text) => Self::Overloaded(text),
            node::types::HostError::Failed(text) => Self::Failed(text),
        }
    }
}
