//! Events, replies and errors between this crate's types and those of the engine's border.

use bytes::Bytes;
use edgefaas_js_abi as abi;

use crate::{
    Event, FieldValue, HostError, HttpResponse, InvocationMeta, LogLevel, OutgoingRequest, PublishRequest,
    Redirect, Reply, StreamedResponse, Trigger,
};

/// An invocation as the engine takes it.
pub fn invocation<'a>(meta: &'a InvocationMeta, event: &'a Event, seed: u64) -> abi::Invocation<'a> {
    abi::Invocation {
        id: &meta.id,
        function: &meta.function,
        deadline_unix_ms: meta.deadline_unix_ms,
        seed,
        trigger: trigger(&event.trigger),
        body: &event.body,
    }
}

fn trigger(trigger: &Trigger) -> abi::Trigger<'_> {
    match trigger {
        Trigger::Http(http) => abi::Trigger::Http {
            method: &http.method,
            path: &http.path,
            query: &http.query,
            headers: pairs(&http.headers),
        },
        Trigger::Mqtt(mqtt) => abi::Trigger::Mqtt {
            topic: &mqtt.topic,
            qos: mqtt.qos,
            retain: mqtt.retain,
            content_type: mqtt.content_type.as_deref(),
            response_topic: mqtt.response_topic.as_deref(),
            correlation_data: mqtt.correlation_data.as_deref(),
            user_properties: pairs(&mqtt.user_properties),
        },
        Trigger::Cron(cron) => {
            abi::Trigger::Cron { schedule: &cron.schedule, scheduled_unix_ms: cron.scheduled_unix_ms }
        }
        Trigger::Object(change) => abi::Trigger::Object { object: &change.object, field: &change.field },
        Trigger::Call(call) => abi::Trigger::Call { caller: call.caller.as_deref() },
        Trigger::Workflow(step) => {
            abi::Trigger::Workflow { workflow: &step.workflow, instance: &step.instance, task: &step.task }
        }
    }
}

/// A function's reply.
pub fn reply(reply: abi::Reply<'_>) -> Reply {
    match reply {
        abi::Reply::None => Reply::None,
        abi::Reply::Json(json) => Reply::Json(json.to_owned()),
        abi::Reply::Text(text) => Reply::Text(text.to_owned()),
        abi::Reply::Bytes(bytes) => Reply::Bytes(Bytes::copy_from_slice(bytes)),
        abi::Reply::Http { status, headers, body } => Reply::Http(HttpResponse {
            status,
            headers: owned_pairs(&headers),
            body: Bytes::copy_from_slice(body),
        }),
    }
}

/// The encoded answer for a call of another function.
pub fn call_answer(result: &Result<Reply, HostError>) -> Vec<u8> {
    let answer = match result {
        Ok(reply) => abi::Answer::Reply(match reply {
            Reply::None => abi::Reply::None,
            Reply::Json(json) => abi::Reply::Json(json),
            Reply::Text(text) => abi::Reply::Text(text),
            Reply::Bytes(bytes) => abi::Reply::Bytes(bytes),
            Reply::Http(http) => {
                abi::Reply::Http { status: http.status, headers: pairs(&http.headers), body: &http.body }
            }
        }),
        Err(error) => return refusal(error),
    };
    encode(&answer)
}

/// A request to another server, without its body.
pub fn outgoing_request(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    redirect: abi::Redirect,
) -> OutgoingRequest {
    OutgoingRequest {
        method: method.to_owned(),
        url: url.to_owned(),
        headers: owned_pairs(headers),
        body: Bytes::new(),
        redirect: match redirect {
            abi::Redirect::Follow => Redirect::Follow,
            abi::Redirect::Error => Redirect::Error,
            abi::Redirect::Manual => Redirect::Manual,
        },
    }
}

/// The encoded answer for a request to another server, with the last bytes of its body.
pub fn fetch_answer(response: &StreamedResponse, body: &[u8]) -> Vec<u8> {
    encode(&abi::Answer::Fetched {
        status: response.status,
        headers: pairs(&response.headers),
        body,
        url: &response.url,
        redirected: response.redirected,
    })
}

/// The encoded answer for a field of an object.
pub fn field_answer(value: &FieldValue) -> Vec<u8> {
    encode(&abi::Answer::Field(match value {
        FieldValue::Integer(value) => abi::FieldValue::Integer(*value),
        FieldValue::Unsigned(value) => abi::FieldValue::Unsigned(*value),
        FieldValue::Register(value) => abi::FieldValue::Register(value.as_deref()),
        FieldValue::Values(values) => {
            abi::FieldValue::Values(values.iter().map(|value| &value[..]).collect())
        }
        FieldValue::Flag(value) => abi::FieldValue::Flag(*value),
        FieldValue::Text(text) => abi::FieldValue::Text(text),
        FieldValue::Json(json) => abi::FieldValue::Json(json),
        FieldValue::Keys(keys) => {
            abi::FieldValue::Keys(keys.iter().map(|(key, field_type)| (&key[..], *field_type)).collect())
        }
    }))
}

/// The encoded answer for a host call that was refused or failed.
pub fn refusal(error: &HostError) -> Vec<u8> {
    let code = match error {
        HostError::NotPermitted(_) => abi::Code::NotPermitted,
        HostError::NotFound(_) => abi::Code::NotFound,
        HostError::Invalid(_) => abi::Code::Invalid,
        HostError::Overloaded(_) => abi::Code::Overloaded,
        HostError::Failed(_) => abi::Code::Failed,
    };
    encode(&abi::Answer::Refused { code, message: &error.to_string() })
}

/// Encodes a message; ours always can be.
pub fn encode<T: serde::Serialize>(message: &T) -> Vec<u8> {
    abi::encode(message).unwrap_or_default()
}

/// A message to be published.
pub fn publish_request(message: &abi::Message<'_>) -> PublishRequest {
    PublishRequest {
        topic: message.topic.to_owned(),
        payload: Bytes::copy_from_slice(message.payload),
        qos: message.qos,
        retain: message.retain,
        content_type: message.content_type.map(str::to_owned),
        response_topic: message.response_topic.map(str::to_owned),
        correlation_data: message.correlation_data.map(Bytes::copy_from_slice),
        user_properties: owned_pairs(&message.user_properties),
    }
}

/// The severity of a log line.
pub fn level(level: abi::Level) -> LogLevel {
    match level {
        abi::Level::Trace => LogLevel::Trace,
        abi::Level::Debug => LogLevel::Debug,
        abi::Level::Info => LogLevel::Info,
        abi::Level::Warn => LogLevel::Warn,
        abi::Level::Error => LogLevel::Error,
    }
}

fn pairs(pairs: &[(String, String)]) -> abi::Pairs<'_> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

fn owned_pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
