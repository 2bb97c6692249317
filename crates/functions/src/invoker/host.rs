//! Host calls of one invocation.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{Message, Properties, QoS};
use edgefaas_crdt::Operation;
use edgefaas_isolates::{
    Change, DirectCall, Event, FetchError, FieldValue, Host, HostError, HostFuture, IncomingResponse,
    LogLevel, NODE_KEY, OutgoingRequest, PublishRequest, Read, Reply, SocketPermit, StreamedResponse,
    TcpPermission, Trigger,
};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::Invoker;
use super::effects::{Effects, EffectsFull};
use super::object_values::{UsedKeys, at_path, operation};
use super::sent_spans::{NextSpan, SentSpans};
use super::workflow_call::{OpenCalls, WorkflowCall};
use crate::invocation::{Invocation, InvocationError, Lineage, Principal};
use crate::outgoing;
use crate::registry::LiveFunction;
use crate::topics::{call_topic, functions_may_publish};
use crate::trace::{SpanKind, context_of, with_context};

/// Minimum number of bytes that a log line counts.
const LINE_BYTES: usize = 16;

/// Answers the host calls of a function while it runs. Collects its effects for the commit.
pub struct InvocationHost {
    pub(super) invoker: Arc<Invoker>,
    pub(super) function: Arc<LiveFunction>,
    invocation: String,
    /// The `traceparent` of what the invocation sends.
    trace_parent: Option<String>,
    sent_spans: SentSpans,
    depth: u8,
    lineage: Option<Lineage>,
    /// Set by the first call of a workflow.
    workflow_calls: Option<Arc<OpenCalls>>,
    pub(super) effects: Arc<Mutex<Effects>>,
    calls_left: u32,
    log_bytes_left: usize,
    log_is_full: bool,
    pub(super) used_keys: UsedKeys,
}

impl InvocationHost {
    /// The host of `invocation`. It adds the effects of the function to `effects`.
    pub fn new(
        invoker: Arc<Invoker>,
        function: Arc<LiveFunction>,
        invocation: &Invocation,
        effects: Arc<Mutex<Effects>>,
    ) -> Self {
        let limits = function.spec.limits;
        // The node that placed the invocation here records it.
        let own = match invocation.placed_by {
            Some(_) => {
                invocation.trace_parent.as_deref().and_then(|parent| context_of(parent, &invocation.id))
            }
            None => invoker.traces.context(invocation.trace_parent.as_deref(), &invocation.id),
        };
        Self {
            invoker,
            function,
            invocation: invocation.id.clone(),
            trace_parent: own,
            sent_spans: SentSpans::default(),
            depth: invocation.depth,
            lineage: invocation.lineage.clone(),
            workflow_calls: None,
            effects,
            calls_left: limits.calls,
            log_bytes_left: limits.log_bytes,
            log_is_full: false,
            used_keys: UsedKeys::default(),
        }
    }

    /// Counts a call of a function, a request or a lookup of a name.
    ///
    /// # Errors
    /// `Overloaded` over `limits.calls`.
    fn count_call(&mut self) -> Result<(), HostError> {
        let max_calls = self.function.spec.limits.calls;
        let left = self.calls_left.checked_sub(1);
        self.calls_left = left.ok_or_else(|| {
            HostError::Overloaded(format!(
                "an invocation of `{}` may make at most {max_calls} calls and requests (limits.calls)",
                self.function.name
            ))
        })?;
        Ok(())
    }

    /// The span of what is sent next; `None` if it is not exported.
    fn next_span(&mut self, kind: SpanKind) -> Option<NextSpan> {
        self.sent_spans.next(&self.invoker, &self.invocation, self.trace_parent.as_deref(), kind)
    }

    /// The `traceparent` of what is sent: that of its span, or of the invocation.
    fn context<'a>(&'a self, span: Option<&'a NextSpan>) -> Option<&'a str> {
        span.map(|span| &*span.context).or(self.trace_parent.as_deref())
    }

    pub(super) fn not_permitted(&self, kind: &str, name: &str, key: &str) -> HostError {
        HostError::NotPermitted(format!(
            "function `{}` may not use {kind} `{name}`: its permissions.{key} in the manifest do not name it",
            self.function.name
        ))
    }
}

impl Host for InvocationHost {
    fn publish(&mut self, request: PublishRequest) -> Result<(), HostError> {
        let invalid = |reason: String| HostError::Invalid(reason);
        let topic = TopicName::new(request.topic).map_err(|error| invalid(error.to_string()))?;
        if !self.function.spec.permissions.allows_publish(topic.as_str()) {
            return Err(self.not_permitted("topic", topic.as_str(), "publish"));
        }
        // Subscribers trust dead letters and events, so functions must not publish them.
        if !functions_may_publish(topic.as_str()) {
            return Err(HostError::NotPermitted(format!(
                "function `{}` may not publish to `{}`: of topics that start with `$`, functions may publish calls only ({})",
                self.function.name,
                topic.as_str(),
                call_topic("NAME")
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
        // The answer is published there on behalf of this function.
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
            return Err(invalid(problem.to_string()));
        }
        let message = Message::new(topic, request.payload)
            .with_qos(qos)
            .with_retain(request.retain)
            .with_properties(properties);
        let (bytes, max_bytes) = (message.weight(), self.invoker.publisher.max_message_bytes());
        if bytes > max_bytes {
            return Err(invalid(format!(
                "the message has {bytes} bytes; the broker takes at most {max_bytes} (broker.max_packet)"
            )));
        }
        let span = self.next_span(SpanKind::Publish);
        let sent = span.as_ref().map(|_| (message.topic().as_str().to_owned(), message.payload().len()));
        let message = with_context(message, self.context(span.as_ref()), max_bytes);
        self.effects.lock().publish(message).map_err(full)?;
        if let (Some(span), Some((topic, bytes))) = (span, sent) {
            span.publish(&self.invoker, &self.function, &topic, bytes);
        }
        Ok(())
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
        call.lineage.clone_from(&self.lineage);
        let invoker = self.invoker.clone();
        let routes = invoker.registry.routes();
        // A function calls a workflow like a function.
        if routes.function(&call.function).is_none()
            && let Some(workflow) = routes.workflow(&call.function).cloned()
        {
            drop(routes);
            let Invocation { event, depth, trace_parent, lineage, .. } = call;
            let call = WorkflowCall { workflow, body: event.body, depth, trace_parent, lineage };
            let Some(runner) = invoker.workflow_runner() else {
                return Err(call_error(InvocationError::Draining));
            };
            let in_workflows = &invoker.in_workflows;
            let opened = || Arc::new(OpenCalls::new(in_workflows.clone()));
            let calls = self.workflow_calls.get_or_insert_with(opened);
            let open = calls.clone().open();
            return Ok(Box::pin(async move {
                let _open = open;
                runner.call_workflow(call).await.map_err(call_error)
            }));
        }
        drop(routes);
        let admitted = invoker.admit(call).map_err(call_error)?;
        // A task of its own. The caller's task does not poll it while the caller waits for the lane of the thread (the right
        // to compute), which the called function may hold.
        Ok(Box::pin(async move {
            let call = tokio::spawn(async move { invoker.run(admitted).await.result });
            match AbortOnDropHandle::new(call).await {
                Ok(result) => result.map_err(call_error),
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => Err(HostError::Overloaded("the node is stopping".to_owned())),
                },
            }
        }))
    }

    fn fetch(
        &mut self,
        request: OutgoingRequest,
    ) -> Result<HostFuture<Result<IncomingResponse, HostError>>, HostError> {
        let span = self.next_span(SpanKind::Request);
        let request = outgoing::check(request, &self.function.caller, self.context(span.as_ref()))?;
        self.count_call()?;
        let (invoker, function) = (self.invoker.clone(), self.function.clone());
        let span = span.map(|span| span.request(&invoker, &function, (request.method(), request.url())));
        Ok(Box::pin(async move {
            let answer = invoker.http.fetch(&function.caller, request).await.map_err(FetchError::from);
            if let Some(span) = span {
                span.answered(&answer, |answer| answer.status);
            }
            answer.map_err(|error| error.error)
        }))
    }

    fn fetch_streamed(
        &mut self,
        request: OutgoingRequest,
        body: HostFuture<Result<Bytes, HostError>>,
    ) -> Result<HostFuture<Result<StreamedResponse, FetchError>>, HostError> {
        let span = self.next_span(SpanKind::Request);
        let request = outgoing::check(request, &self.function.caller, self.context(span.as_ref()))?;
        self.count_call()?;
        let (invoker, function) = (self.invoker.clone(), self.function.clone());
        let span = span.map(|span| span.request(&invoker, &function, (request.method(), request.url())));
        Ok(Box::pin(async move {
            let request = request.with_body(body.await?);
            let answer = invoker.http.open(&function.caller, request).await.map_err(FetchError::from);
            if let Some(span) = span {
                span.answered(&answer, |answer| answer.status);
            }
            answer
        }))
    }

    fn tcp(&mut self) -> Option<TcpPermission> {
        if self.function.spec.permissions.tcp.is_empty() {
            return None;
        }
        let function = self.function.clone();
        Some(Box::new(move |address| function.spec.permissions.allows_tcp(address)))
    }

    fn socket(&mut self) -> Result<SocketPermit, HostError> {
        Ok(Box::new(self.invoker.http.socket(&self.function.caller)?))
    }

    fn resolve(&mut self, name: &str) -> Result<HostFuture<Result<Vec<SocketAddr>, HostError>>, HostError> {
        let ports = self.function.spec.permissions.tcp_ports(name);
        if ports.is_empty() {
            return Err(self.not_permitted("server", name, "tcp"));
        }
        self.count_call()?;
        let (invoker, function, name) = (self.invoker.clone(), self.function.clone(), name.to_owned());
        Ok(Box::pin(async move {
            let LiveFunction { caller, spec, .. } = &*function;
            invoker.http.resolve(caller, &spec.permissions, &name, &ports).await
        }))
    }

    fn counter_add(&mut self, object: &str, field: &str, amount: i64) -> Result<(), HostError> {
        self.operate(object, field, Operation::CounterAdd(amount))
    }

    fn counter_value(&mut self, object: &str, field: &str) -> Result<i64, HostError> {
        self.counter(object, field)
    }

    fn register_set(&mut self, object: &str, field: &str, value: Bytes) -> Result<(), HostError> {
        self.operate(object, field, Operation::RegisterSet(value))
    }

    fn register_get(&mut self, object: &str, field: &str) -> Result<Option<Bytes>, HostError> {
        self.register(object, field)
    }

    fn object_change(
        &mut self,
        object: &str,
        field: &str,
        path: &[&str],
        change: Change<'_>,
    ) -> Result<(), HostError> {
        self.operate(object, field, at_path(path, operation(change))?)
    }

    fn object_read(
        &mut self,
        object: &str,
        field: &str,
        path: &[&str],
        read: Read<'_>,
    ) -> Result<FieldValue, HostError> {
        self.read(object, field, path, read)
    }

    fn object_delete(&mut self, object: &str, field: Option<&str>) -> Result<(), HostError> {
        self.delete(object, field)
    }

    fn log(&mut self, level: LogLevel, message: String) {
        // Empty lines count too.
        let bytes = message.len().max(LINE_BYTES);
        if bytes > self.log_bytes_left {
            // All later lines are dropped too, so that the log has no gaps.
            self.log_bytes_left = 0;
            if !std::mem::replace(&mut self.log_is_full, true) {
                let max_bytes = self.function.spec.limits.log_bytes;
                let message = format!(
                    "the log of this invocation is over {max_bytes} bytes (limits.log); the rest is dropped"
                );
                self.invoker.logs.add(&self.function.name, &self.invocation, LogLevel::Warn, message);
            }
            return;
        }
        self.log_bytes_left -= bytes;
        let message = self.invoker.secrets.mask(&self.function.app, message);
        self.invoker.logs.add(&self.function.name, &self.invocation, level, message);
    }

    fn config(&mut self, key: &str) -> Option<String> {
        if key == NODE_KEY {
            return self.invoker.this_node().map(|node| {
                serde_json::json!({ "name": &*node.name, "zone": node.zone, "labels": node.labels })
                    .to_string()
            });
        }
        self.function.spec.config.get(key).map(|value| value.to_string())
    }

    fn config_keys(&mut self) -> Vec<String> {
        self.function.spec.config.keys().cloned().collect()
    }

    fn secret(&mut self, name: &str) -> Option<String> {
        let is_permitted = self.function.spec.secrets.iter().any(|secret| secret == name);
        is_permitted.then(|| self.invoker.secrets.get(&self.function.app, name)).flatten()
    }

    fn secret_names(&mut self) -> Vec<String> {
        let names = self.function.spec.secrets.iter();
        let is_set = |name: &&String| self.invoker.secrets.get(&self.function.app, name).is_some();
        names.filter(is_set).cloned().collect()
    }
}

pub(super) fn full(error: EffectsFull) -> HostError {
    HostError::Overloaded(error.to_string())
}

fn call_error(error: InvocationError) -> HostError {
    let text = error.detail();
    match error {
        InvocationError::UnknownFunction { .. } | InvocationError::UnknownWorkflow { .. } => {
            HostError::NotFound(text)
        }
        InvocationError::PayloadTooLarge { .. } => HostError::Invalid(text),
        InvocationError::QueueFull { .. }
        | InvocationError::DroppedFromQueue { .. }
        | InvocationError::NoIsolate { .. }
        | InvocationError::NoMemory { .. }
        | InvocationError::NoGuestMemory { .. }
        | InvocationError::Cancelled { .. }
        | InvocationError::OverBudget { .. }
        | InvocationError::Draining => HostError::Overloaded(text),
        _ => HostError::Failed(text),
    }
}
