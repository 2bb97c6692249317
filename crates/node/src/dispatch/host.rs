//! The host calls of one invocation.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{Message, Properties, QoS};
use edgefaas_crdt::FieldType;
use edgefaas_isolates::{
    Change, DirectCall, Event, FetchError, FieldValue, Host, HostError, HostFuture, IncomingResponse,
    LogLevel, OutgoingRequest, PublishRequest, Read, Reply, Trigger,
};
use parking_lot::Mutex;

use super::Dispatcher;
use super::effects::{Effects, EffectsFull, Pending};
use crate::ingress::mqtt::takes_from_functions;
use crate::invocation::{Invocation, InvocationError, Principal};
use crate::objects::{FieldKey, MAX_VALUE_BYTES, name_error, read_field};
use crate::outgoing;
use crate::registry::LiveFunction;
use crate::workflow::{Start, input_of};

/// What a line of the log counts at least.
const LINE_BYTES: usize = 16;

/// Answers a function while it runs, and holds back what it does.
pub struct InvocationHost {
    dispatcher: Arc<Dispatcher>,
    function: Arc<LiveFunction>,
    invocation: String,
    trace_parent: Option<String>,
    depth: u8,
    effects: Arc<Mutex<Effects>>,
    calls_left: u32,
    log_bytes_left: usize,
    log_is_full: bool,
}

impl InvocationHost {
    /// The host of `invocation`, which leaves its effects in `effects`.
    pub fn new(
        dispatcher: Arc<Dispatcher>,
        function: Arc<LiveFunction>,
        invocation: &Invocation,
        effects: Arc<Mutex<Effects>>,
    ) -> Self {
        let limits = function.spec.limits;
        Self {
            dispatcher,
            function,
            invocation: invocation.id.clone(),
            trace_parent: invocation.trace_parent.clone(),
            depth: invocation.depth,
            effects,
            calls_left: limits.calls,
            log_bytes_left: limits.log_bytes,
            log_is_full: false,
        }
    }

    /// Counts a call of a function, or a request.
    fn count_call(&mut self) -> Result<(), HostError> {
        let most = self.function.spec.limits.calls;
        let left = self.calls_left.checked_sub(1);
        self.calls_left = left.ok_or_else(|| {
            HostError::Overloaded(format!(
                "an invocation of `{}` may make at most {most} calls and requests (limits.calls)",
                self.function.name
            ))
        })?;
        Ok(())
    }

    fn key(&self, object: &str, field: &str) -> Result<FieldKey, HostError> {
        if let Some(reason) = name_error("object", object).or_else(|| name_error("field", field)) {
            return Err(HostError::Invalid(reason));
        }
        if !self.function.spec.permissions.allows_object(object) {
            return Err(self.not_permitted("object", object, "objects"));
        }
        let app = self.function.app.to_string();
        Ok(FieldKey { app, object: object.to_owned(), field: field.to_owned() })
    }

    fn not_permitted(&self, kind: &str, name: &str, key: &str) -> HostError {
        HostError::NotPermitted(format!(
            "function `{}` may not use {kind} `{name}`: its permissions.{key} in the manifest do not name it",
            self.function.name
        ))
    }

    /// The field on disk, if it is of the wanted type.
    fn stored(&self, key: &FieldKey, wanted: FieldType) -> Result<Option<edgefaas_crdt::Field>, HostError> {
        let stored = read_field(&self.dispatcher.store.spaces().fields, key)
            .map_err(|error| HostError::Failed(error.to_string()))?;
        if let Some(field) = &stored {
            let fits = match wanted {
                FieldType::Counter => field.counter(&key.field).map(drop),
                FieldType::Register => field.register(&key.field).map(drop),
            };
            fits.map_err(|error| HostError::Invalid(format!("object `{}`: {error}", key.object)))?;
        }
        Ok(stored)
    }
}

impl Host for InvocationHost {
    fn publish(&mut self, request: PublishRequest) -> Result<(), HostError> {
        let invalid = |reason: String| HostError::Invalid(reason);
        let topic = TopicName::new(request.topic).map_err(|error| invalid(error.to_string()))?;
        if !self.function.spec.permissions.allows_publish(topic.as_str()) {
            return Err(self.not_permitted("topic", topic.as_str(), "publish"));
        }
        // Dead letters and events are believed, since they are the node's.
        if !takes_from_functions(topic.as_str()) {
            return Err(HostError::NotPermitted(format!(
                "function `{}` may not publish to `{}`: under $faas/ functions publish calls alone \
                 ($faas/fn/NAME/invoke)",
                self.function.name,
                topic.as_str()
            )));
        }
        let qos = match request.qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            2 => QoS::ExactlyOnce,
            other => return Err(invalid(format!("qos {other} is not 0, 1 or 2"))),
        };
        let response_topic = request
            .response_topic
            .map(TopicName::new)
            .transpose()
            .map_err(|error| invalid(format!("response topic: {error}")))?;
        // Whoever answers publishes there for us.
        if let Some(topic) = &response_topic
            && !self.function.spec.permissions.allows_publish(topic.as_str())
        {
            return Err(self.not_permitted("response topic", topic.as_str(), "publish"));
        }
        let properties = Properties {
            content_type: request.content_type.map(Into::into),
            response_topic,
            correlation_data: request.correlation_data,
            user: request.user_properties.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
            ..Properties::default()
        };
        if let Some(problem) = properties.problem() {
            return Err(invalid(problem));
        }
        let message = Message::new(topic, request.payload)
            .with_qos(qos)
            .with_retain(request.retain)
            .with_properties(properties);
        let (bytes, max_bytes) = (message.weight(), self.dispatcher.max_message_bytes);
        if bytes > max_bytes {
            return Err(invalid(format!(
                "the message has {bytes} bytes; the broker takes at most {max_bytes} (broker.max_packet)"
            )));
        }
        self.effects.lock().publish(message).map_err(full)
    }

    fn call(
        &mut self,
        function: String,
        data: Bytes,
    ) -> Result<HostFuture<Result<Reply, HostError>>, HostError> {
        if !self.function.spec.permissions.allows_call(&function) {
            return Err(self.not_permitted("function", &function, "call"));
        }
        self.count_call()?;
        let caller = self.function.name.to_string();
        let event =
            Event { trigger: Trigger::Call(DirectCall { caller: Some(caller.clone()) }), body: data };
        let mut call = Invocation::new(function, Principal::Function { name: caller }, event);
        call.parent = Some(self.invocation.clone());
        call.trace_parent = self.trace_parent.clone();
        call.depth = self.depth.saturating_add(1);
        let dispatcher = self.dispatcher.clone();
        let routes = dispatcher.registry.routes();
        // A composition is a function.
        if routes.function(&call.function).is_none()
            && let Some(workflow) = routes.workflow(&call.function).cloned()
        {
            drop(routes);
            let body = &call.event.body;
            let mut start = Start::new(workflow, input_of(body), body.len());
            (start.depth, start.trace_parent) = (call.depth, call.trace_parent);
            return Ok(Box::pin(
                async move { dispatcher.run_workflow(start).await.result.map_err(call_error) },
            ));
        }
        drop(routes);
        let admitted = dispatcher.admit(call).map_err(call_error)?;
        Ok(Box::pin(async move { dispatcher.run(admitted).await.result.map_err(call_error) }))
    }

    fn fetch(
        &mut self,
        request: OutgoingRequest,
    ) -> Result<HostFuture<Result<IncomingResponse, HostError>>, HostError> {
        let allowed = self.function.spec.permissions.http.clone();
        let request = outgoing::check(request, &allowed, self.trace_parent.as_deref())?;
        self.count_call()?;
        let dispatcher = self.dispatcher.clone();
        Ok(Box::pin(async move { Ok(dispatcher.http.fetch(request, allowed).await?) }))
    }

    fn fetch_later(
        &mut self,
        request: OutgoingRequest,
        body: HostFuture<Result<Bytes, HostError>>,
    ) -> Result<HostFuture<Result<IncomingResponse, FetchError>>, HostError> {
        let allowed = self.function.spec.permissions.http.clone();
        let request = outgoing::check(request, &allowed, self.trace_parent.as_deref())?;
        self.count_call()?;
        let dispatcher = self.dispatcher.clone();
        Ok(Box::pin(async move {
            let request = request.with_body(body.await?);
            Ok(dispatcher.http.fetch(request, allowed).await?)
        }))
    }

    fn tcp(&mut self) -> Option<Vec<SocketAddr>> {
        self.function.spec.permissions.tcp_addresses()
    }

    fn resolve(&mut self, name: &str) -> Result<HostFuture<Result<Vec<SocketAddr>, HostError>>, HostError> {
        let ports = self.function.spec.permissions.tcp_ports(name);
        if ports.is_empty() {
            return Err(self.not_permitted("server", name, "tcp"));
        }
        self.count_call()?;
        let name = name.to_owned();
        Ok(Box::pin(async move {
            let found =
                outgoing::resolve(&name, 0).await.map_err(|error| HostError::Failed(error.to_string()))?;
            let with = |port: u16| found.iter().map(move |address| SocketAddr::new(address.ip(), port));
            Ok(ports.into_iter().flat_map(with).collect())
        }))
    }

    fn counter_add(&mut self, object: &str, field: &str, amount: i64) -> Result<(), HostError> {
        let key = self.key(object, field)?;
        let mut effects = self.effects.lock();
        let pending = match effects.pending(&key) {
            Some(Pending::Added(before)) => *before,
            Some(Pending::Set(_)) => return Err(wrong_pending(&key, "register", "counter")),
            None => {
                self.stored(&key, FieldType::Counter)?;
                0
            }
        };
        let sum = pending.checked_add(amount).ok_or_else(|| {
            HostError::Invalid(format!("field `{field}`: {pending} and {amount} more do not fit 64 bits"))
        })?;
        effects.write(key, Pending::Added(sum)).map_err(full)
    }

    fn counter_value(&mut self, object: &str, field: &str) -> Result<i64, HostError> {
        let key = self.key(object, field)?;
        let pending = match self.effects.lock().pending(&key) {
            Some(Pending::Added(amount)) => *amount,
            Some(Pending::Set(_)) => return Err(wrong_pending(&key, "register", "counter")),
            None => 0,
        };
        let stored = self.stored(&key, FieldType::Counter)?;
        let value = stored.and_then(|field| field.counter(&key.field).map(|c| c.value()).ok()).unwrap_or(0);
        Ok(value.saturating_add(pending))
    }

    fn register_set(&mut self, object: &str, field: &str, value: Bytes) -> Result<(), HostError> {
        let key = self.key(object, field)?;
        if value.len() > MAX_VALUE_BYTES {
            return Err(HostError::Invalid(format!(
                "field `{field}`: the value has {} bytes; at most {MAX_VALUE_BYTES} are allowed",
                value.len()
            )));
        }
        let mut effects = self.effects.lock();
        match effects.pending(&key) {
            Some(Pending::Set(_)) => {}
            Some(Pending::Added(_)) => return Err(wrong_pending(&key, "counter", "register")),
            None => drop(self.stored(&key, FieldType::Register)?),
        }
        effects.write(key, Pending::Set(value)).map_err(full)
    }

    fn register_get(&mut self, object: &str, field: &str) -> Result<Option<Bytes>, HostError> {
        let key = self.key(object, field)?;
        match self.effects.lock().pending(&key) {
            Some(Pending::Set(value)) => return Ok(Some(value.clone())),
            Some(Pending::Added(_)) => return Err(wrong_pending(&key, "counter", "register")),
            None => {}
        }
        let stored = self.stored(&key, FieldType::Register)?;
        let value = stored.and_then(|field| {
            field.register(&key.field).ok().and_then(|r| r.get().map(|value| value.to_vec()))
        });
        Ok(value.map(Bytes::from))
    }

    fn object_change(&mut self, _: &str, _: &str, _: &[&str], _: Change<'_>) -> Result<(), HostError> {
        Err(HostError::Failed("fields of this type are not supported by this node yet".to_owned()))
    }

    fn object_read(&mut self, _: &str, _: &str, _: &[&str], _: Read<'_>) -> Result<FieldValue, HostError> {
        Err(HostError::Failed("fields of this type are not supported by this node yet".to_owned()))
    }

    fn log(&mut self, level: LogLevel, message: String) {
        // Lines without text cost something as well.
        let bytes = message.len().max(LINE_BYTES);
        if bytes > self.log_bytes_left {
            // Whatever else comes is left out too, so that what is there has no gaps.
            self.log_bytes_left = 0;
            if !std::mem::replace(&mut self.log_is_full, true) {
                let most = self.function.spec.limits.log_bytes;
                let message = format!(
                    "the log of this invocation is over {most} bytes (limits.log); the rest is left out"
                );
                self.dispatcher.logs.add(&self.function.name, &self.invocation, LogLevel::Warn, message);
            }
            return;
        }
        self.log_bytes_left -= bytes;
        let message = self.dispatcher.secrets.mask(&self.function.spec.secrets, message);
        self.dispatcher.logs.add(&self.function.name, &self.invocation, level, message);
    }

    fn config(&mut self, key: &str) -> Option<String> {
        self.function.spec.config.get(key).map(|value| value.to_string())
    }

    fn config_keys(&mut self) -> Vec<String> {
        self.function.spec.config.keys().cloned().collect()
    }

    fn secret(&mut self, name: &str) -> Option<String> {
        let named = self.function.spec.secrets.iter().any(|secret| secret == name);
        named.then(|| self.dispatcher.secrets.get(name)).flatten()
    }

    fn secret_names(&mut self) -> Vec<String> {
        let names = self.function.spec.secrets.iter();
        names.filter(|name| self.dispatcher.secrets.get(name).is_some()).cloned().collect()
    }
}

fn full(error: EffectsFull) -> HostError {
    HostError::Overloaded(error.to_string())
}

fn wrong_pending(key: &FieldKey, actual: &str, wanted: &str) -> HostError {
    HostError::Invalid(format!(
        "object `{}`: field `{}` is a {actual}, not a {wanted}",
        key.object, key.field
    ))
}

fn call_error(error: InvocationError) -> HostError {
    let text = error.detail();
    match error {
        InvocationError::UnknownFunction { .. } => HostError::NotFound(text),
        InvocationError::PayloadTooLarge { .. } => HostError::Invalid(text),
        InvocationError::QueueFull { .. }
        | InvocationError::DroppedFromQueue { .. }
        | InvocationError::NoIsolate { .. }
        | InvocationError::NoMemory { .. }
        | InvocationError::Draining => HostError::Overloaded(text),
        _ => HostError::Failed(text),
    }
}
