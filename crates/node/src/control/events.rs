//! Events of functions that a client of the control API makes, in place of those of the doors.

use bytes::Bytes;
use edgefaas_api::control::invoke_request::Event as Wanted;
use edgefaas_api::control::{CronEvent, Header, HttpEvent, MqttEvent, ObjectEvent};
use edgefaas_broker::{TopicName, TopicNameError};
use edgefaas_crdt::FieldType;
use edgefaas_functions::registry::LiveFunction;
use edgefaas_isolates::{CronTick, Event, HttpRequest, MqttMessage, ObjectChange, Trigger};
use edgefaas_manifest::{self as manifest, CronError, parse_cron};
use edgefaas_state::objects::{FieldKey, Objects, json_of_value, name_error};
use edgefaas_state::store::StoreError;
use http::{HeaderName, HeaderValue, Method};
use serde_json::{Value, json};

/// An event that no door would make.
#[derive(Debug, thiserror::Error)]
pub(super) enum EventError {
    /// A workflow has no such events.
    #[error(
        "`{name}` is a workflow, which takes calls only; leave --http, --mqtt, --cron and --object out"
    )]
    Workflow {
        /// Name of the workflow.
        name: String,
    },
    #[error("`{method}` is not a method of HTTP")]
    Method { method: String },
    #[error("the path {path:?} does not begin with `/`, or has a control character")]
    Path { path: String },
    #[error("{name:?} with the value {value:?} is not a header of HTTP")]
    Header { name: String, value: String },
    #[error("{topic:?} is not a topic: {error}")]
    Topic { topic: String, error: TopicNameError },
    #[error("{qos} is not a quality of service; it is 0, 1 or 2")]
    Qos { qos: u32 },
    #[error("`{function}` has no cron trigger; name a schedule: --cron '*/5 * * * *'")]
    NoSchedule { function: String },
    #[error(
        "{schedule:?} is not a schedule: {error}; for example, --cron '*/5 * * * *' is every 5 minutes"
    )]
    Schedule { schedule: String, error: CronError },
    #[error("{problem}")]
    Name { problem: String },
    #[error("the new value of the field is not JSON: {0}")]
    Value(serde_json::Error),
    #[error(
        "the field `{field}` of the object `{object}` is a {field_type}, whose value is {expected}, and not {found}"
    )]
    ValueType {
        object: String,
        field: String,
        field_type: FieldType,
        expected: &'static str,
        found: &'static str,
    },
    #[error("the value of the field before the event cannot be read: {0}")]
    Store(#[from] StoreError),
}

/// The event that a client wants for a function, as its door would make it.
pub(super) fn event(
    wanted: Wanted,
    body: Bytes,
    function: &LiveFunction,
    objects: &Objects,
) -> Result<Event, EventError> {
    let trigger = match wanted {
        Wanted::Http(request) => Trigger::Http(http(request)?),
        Wanted::Mqtt(message) => Trigger::Mqtt(mqtt(message)?),
        Wanted::Cron(tick) => Trigger::Cron(cron(tick, function)?),
        Wanted::Object(change) => return object(change, &body, function, objects),
    };
    Ok(Event { trigger, body })
}

fn http(request: HttpEvent) -> Result<HttpRequest, EventError> {
    let HttpEvent { method, path, query, headers } = request;
    if Method::from_bytes(method.as_bytes()).is_err() {
        return Err(EventError::Method { method });
    }
    if !path.starts_with('/') || path.chars().any(char::is_control) {
        return Err(EventError::Path { path });
    }
    for header in &headers {
        let Header { name, value } = header;
        if HeaderName::from_bytes(name.as_bytes()).is_err() || HeaderValue::from_str(value).is_err() {
            return Err(EventError::Header { name: name.clone(), value: value.clone() });
        }
    }
    let headers = headers.into_iter().map(|header| (header.name.to_ascii_lowercase(), header.value));
    Ok(HttpRequest { method: method.to_ascii_uppercase(), path, query, headers: headers.collect() })
}

fn mqtt(message: MqttEvent) -> Result<MqttMessage, EventError> {
    let MqttEvent { topic, qos, retain, content_type } = message;
    if let Err(error) = TopicName::new(topic.clone()) {
        return Err(EventError::Topic { topic, error });
    }
    let qos = u8::try_from(qos).ok().filter(|qos| *qos <= 2).ok_or(EventError::Qos { qos })?;
    let content_type = (!content_type.is_empty()).then_some(content_type);
    Ok(MqttMessage { topic, qos, retain, content_type, ..MqttMessage::default() })
}

fn cron(tick: CronEvent, function: &LiveFunction) -> Result<CronTick, EventError> {
    let CronEvent { schedule, scheduled_unix_ms } = tick;
    if !schedule.is_empty() {
        return match parse_cron(&schedule) {
            Ok(_) => Ok(CronTick { schedule, scheduled_unix_ms }),
            Err(error) => Err(EventError::Schedule { schedule, error }),
        };
    }
    let first = function.spec.triggers.iter().find_map(|trigger| match trigger {
        manifest::Trigger::Cron { schedule } => Some(schedule.clone()),
        _ => None,
    });
    match first {
        Some(schedule) => Ok(CronTick { schedule, scheduled_unix_ms }),
        None => Err(EventError::NoSchedule { function: function.name.to_string() }),
    }
}

/// The change of a field of the function's app to the JSON in `body`, or its deletion if there is none.
fn object(
    change: ObjectEvent,
    body: &[u8],
    function: &LiveFunction,
    objects: &Objects,
) -> Result<Event, EventError> {
    let ObjectEvent { object, field } = change;
    let problem = name_error("object", &object).or_else(|| name_error("field", &field));
    if let Some(problem) = problem {
        return Err(EventError::Name { problem });
    }
    let key = FieldKey::new(&function.app, &object, &field);
    let stored = objects
        .read(&key, |field| field.map(|field| (field.field_type(), json_of_value(&field.value()))))?;
    let (field_type, previous) = stored.unwrap_or((FieldType::Register, Value::Null));
    let value: Option<Value> = match body {
        [] => None,
        text => Some(serde_json::from_slice(text).map_err(EventError::Value)?),
    };
    if let Some(value) = &value
        && let Err(expected) = check_type(field_type, value)
    {
        let found = name_of(value);
        return Err(EventError::ValueType { object, field, field_type, expected, found });
    }
    let body = json!({
        "object": object,
        "field": field,
        "type": field_type.to_string(),
        "previous": previous,
        "value": value,
        "deleted": value.is_none(),
        "origin": "local",
    });
    Ok(Event { trigger: Trigger::Object(ObjectChange { object, field }), body: body.to_string().into() })
}

/// Checks that a field of the type can have this value in JSON; the error names such values.
fn check_type(field_type: FieldType, value: &Value) -> Result<(), &'static str> {
    let (fits, expected) = match field_type {
        FieldType::Counter | FieldType::BoundedCounter => (value.is_i64(), "a whole number"),
        FieldType::GCounter => (value.is_u64(), "a whole number from 0"),
        FieldType::EwFlag | FieldType::DwFlag => (value.is_boolean(), "true or false"),
        FieldType::Text => (value.is_string(), "a string"),
        FieldType::Map => (value.is_object(), "an object"),
        FieldType::MvRegister | FieldType::GSet | FieldType::Set | FieldType::List => {
            (value.is_array(), "an array")
        }
        FieldType::Register | FieldType::Json => (true, ""),
    };
    if fits { Ok(()) } else { Err(expected) }
}

fn name_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(number) if number.is_u64() && !number.is_i64() => "a number of more than 63 bits",
        Value::Number(number) if number.as_i64().is_some_and(|number| number < 0) => "a negative number",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
