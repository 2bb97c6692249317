//! The generated bindings of the function world, and conversions between their types and ours.

use crate::event::{Event, HttpResponse, IncomingResponse, OutgoingRequest, Redirect, Reply, Trigger};
use crate::host::HostError;
use crate::outcome::InvocationMeta;

mod generated {
    #![allow(missing_docs)]
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "function",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "wasi:io": wasmtime_wasi::p2::bindings::io,
            "edgefaas:function/calls.pending-call": crate::component::pending::PendingCall,
            "edgefaas:function/requests.pending-response": crate::component::pending::PendingResponse,
        },
    });
}

pub use generated::edgefaas::function::{assets, calls, context, messaging, objects, requests, types};
pub use generated::{Function, FunctionPre};

/// The run as the guest sees it.
pub fn invocation(meta: &InvocationMeta) -> types::Invocation {
    types::Invocation {
        id: meta.id.clone(),
        function: meta.function.clone(),
        deadline_unix_ms: meta.deadline_unix_ms,
    }
}

/// The event as the guest sees it.
pub fn event(event: Event) -> types::Event {
    let trigger = match event.trigger {
        Trigger::Http(request) => types::Trigger::Http(types::HttpRequest {
            method: request.method,
            path: request.path,
            query: request.query,
            headers: request.headers,
        }),
        Trigger::Mqtt(message) => types::Trigger::Mqtt(types::MqttMessage {
            topic: message.topic,
            qos: message.qos,
            retain: message.retain,
            content_type: message.content_type,
            response_topic: message.response_topic,
            correlation_data: message.correlation_data.map(|data| data.to_vec()),
            user_properties: message.user_properties,
        }),
        Trigger::Cron(tick) => types::Trigger::Cron(types::CronTick {
            schedule: tick.schedule,
            scheduled_unix_ms: tick.scheduled_unix_ms,
        }),
        Trigger::Object(change) => {
            types::Trigger::Object(types::ObjectChange { object: change.object, field: change.field })
        }
        Trigger::Call(call) => types::Trigger::Call(types::DirectCall { caller: call.caller }),
        Trigger::Workflow(step) => types::Trigger::Workflow(types::WorkflowStep {
            workflow: step.workflow,
            instance: step.instance,
            task: step.task,
        }),
    };
    types::Event { trigger, body: event.body.into() }
}

/// The guest's reply as we pass it on.
pub fn reply(reply: types::Reply) -> Reply {
    match reply {
        types::Reply::None => Reply::None,
        types::Reply::Json(text) => Reply::Json(text),
        types::Reply::Text(text) => Reply::Text(text),
        types::Reply::Bytes(bytes) => Reply::Bytes(bytes.into()),
        types::Reply::Http(response) => Reply::Http(HttpResponse {
            status: response.status,
            headers: response.headers,
            body: response.body.into(),
        }),
    }
}

/// The reply of a called function as the caller sees it.
pub fn guest_reply(reply: Reply) -> types::Reply {
    match reply {
        Reply::None => types::Reply::None,
        Reply::Json(text) => types::Reply::Json(text),
        Reply::Text(text) => types::Reply::Text(text),
        Reply::Bytes(bytes) => types::Reply::Bytes(bytes.into()),
        Reply::Http(response) => types::Reply::Http(types::HttpResponse {
            status: response.status,
            headers: response.headers,
            body: response.body.into(),
        }),
    }
}

/// A request of the guest to another server.
pub fn outgoing_request(request: requests::Request) -> OutgoingRequest {
    OutgoingRequest {
        method: request.method,
        url: request.url,
        headers: request.headers,
        body: request.body.into(),
        redirect: match request.redirect {
            requests::Redirect::Follow => Redirect::Follow,
            requests::Redirect::Error => Redirect::Error,
            requests::Redirect::Manual => Redirect::Manual,
        },
    }
}

/// The other server's answer as the guest sees it.
pub fn guest_response(response: IncomingResponse) -> requests::Response {
    let IncomingResponse { status, headers, body, url, redirected } = response;
    requests::Response { status, headers, body: body.into(), url, redirected }
}

impl From<HostError> for types::HostError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::NotPermitted(text) => Self::NotPermitted(text),
            HostError::NotFound(text) => Self::NotFound(text),
            HostError::Invalid(text) => Self::Invalid(text),
            HostError::Overloaded(text) => Self::Overloaded(text),
            HostError::Failed(text) => Self::Failed(text),
        }
    }
}
