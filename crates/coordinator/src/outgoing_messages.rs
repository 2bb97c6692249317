//! Messages of workflows: events, publishes, answers and dead letters.

use std::sync::Arc;

use bytes::Bytes;
use edgefaas_broker::topic::{TopicName, TopicNameError};
use edgefaas_broker::{Message, Properties, PropertyError, QoS};
use edgefaas_functions::answer::Answer;
use edgefaas_functions::dead_letter::DeadLetter;
use edgefaas_functions::durable::AnswerTo;
use edgefaas_functions::invocation::InvocationError;
use edgefaas_functions::problem::Problem;
use edgefaas_functions::topics::{event_topic, functions_may_publish};
use edgefaas_isolates::Reply;
use edgefaas_manifest::Permissions;
use edgefaas_workflow::event::{AttributeError, check_attributes};
use edgefaas_workflow::instance::{Content, Outgoing};
use edgefaas_workflow::{ErrorKind, WorkflowError};
use serde_json::Value;

use super::coordinator::Coordinator;
use super::instance::Running;
use super::run_state::WorkflowResult;

/// Content type of CloudEvents in their JSON form (CloudEvents MQTT binding, section 3.2).
pub(crate) const CLOUD_EVENT: &str = "application/cloudevents+json";

/// A message of a workflow that cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    /// The topic is invalid.
    #[error("`{topic}`: {error}")]
    Topic { topic: String, error: TopicNameError },
    /// An attribute of an event is invalid.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// The type of an event gives no valid topic.
    #[error("the event's type `{kind}` is the last level of its topic, and is invalid there: {error}")]
    EventType { kind: String, error: TopicNameError },
    /// The message has neither a topic nor the type of an event.
    #[error("the message has no topic")]
    NoTopic,
    /// The workflow has no permission to publish to the topic.
    #[error(
        "the workflow may not publish to `{topic}`: its permissions.publish in the manifest do not name it"
    )]
    Forbidden { topic: String },
    /// The topic belongs to the node.
    #[error("only the node publishes to `{topic}`")]
    Reserved { topic: String },
    /// A property has no form in MQTT.
    #[error(transparent)]
    Properties(#[from] PropertyError),
    /// The message is larger than the broker allows.
    #[error("the message has {bytes} bytes; the broker takes at most {max_bytes} (broker.max_packet)")]
    TooLarge { bytes: usize, max_bytes: usize },
}

impl From<MessageError> for WorkflowError {
    /// The error of the task that sends the message.
    fn from(error: MessageError) -> Self {
        let kind = match &error {
            MessageError::Forbidden { .. } | MessageError::Reserved { .. } => ErrorKind::Authorization,
            MessageError::Topic { .. }
            | MessageError::EventType { .. }
            | MessageError::Attribute(_)
            | MessageError::NoTopic
            | MessageError::Properties(_)
            | MessageError::TooLarge { .. } => ErrorKind::Validation,
        };
        Self::new(kind, error.to_string())
    }
}

/// The most bytes of JSON that a byte of a value's weight can become: a control character is written as `\u0000`.
const JSON_BYTES: usize = 6;
/// More than what a message has beside its topic, headers and payload.
const FRAME_BYTES: usize = 256;

/// Whether a workflow may send a message, of at most `max_bytes` with its properties.
///
/// # Errors
/// The error of the task, see [`MessageError`].
pub(super) fn may_send(
    outgoing: &Outgoing,
    permissions: &Permissions,
    max_bytes: usize,
) -> Result<(), WorkflowError> {
    let topic = topic_of(outgoing, permissions)?;
    // Small messages, nearly all, are written as text once only, when they are sent.
    let most_bytes = outgoing.content_bytes.saturating_mul(JSON_BYTES);
    let is_small = most_bytes.saturating_add(topic.as_str().len() + FRAME_BYTES) <= max_bytes;
    if !is_small || !outgoing.headers.is_empty() {
        of(outgoing, permissions, max_bytes)?;
    }
    Ok(())
}

/// The message that a workflow sends, of at most `max_bytes` with its properties.
///
/// # Errors
/// See [`MessageError`].
pub(super) fn of(
    outgoing: &Outgoing,
    permissions: &Permissions,
    max_bytes: usize,
) -> Result<Message, MessageError> {
    let topic = topic_of(outgoing, permissions)?;
    let (payload, content_type) = match &outgoing.content {
        Content::CloudEvent(event) => (event.to_string(), Some(CLOUD_EVENT)),
        Content::Payload(Value::String(text)) => (text.clone(), None),
        Content::Payload(Value::Null) => (String::new(), None),
        Content::Payload(other) => (other.to_string(), Some("application/json")),
    };
    let properties = Properties {
        content_type: content_type.map(Into::into),
        user: outgoing.headers.iter().map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect(),
        ..Properties::default()
    };
    if let Some(error) = properties.problem() {
        return Err(error.into());
    }
    let qos = match outgoing.qos {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    };
    let message = Message::new(topic, Bytes::from(payload))
        .with_qos(qos)
        .with_retain(outgoing.retain)
        .with_properties(properties);
    let bytes = message.weight();
    match bytes > max_bytes {
        true => Err(MessageError::TooLarge { bytes, max_bytes }),
        false => Ok(message),
    }
}

fn topic_of(outgoing: &Outgoing, permissions: &Permissions) -> Result<TopicName, MessageError> {
    if let Content::CloudEvent(event) = &outgoing.content {
        check_attributes(event)?;
    }
    match (&outgoing.topic, &outgoing.content) {
        (Some(topic), _) => {
            let name = TopicName::new(topic.as_str())
                .map_err(|error| MessageError::Topic { topic: topic.clone(), error })?;
            if !permissions.allows_publish(topic) {
                return Err(MessageError::Forbidden { topic: topic.clone() });
            }
            if !functions_may_publish(topic) {
                return Err(MessageError::Reserved { topic: topic.clone() });
            }
            Ok(name)
        }
        (None, Content::CloudEvent(event)) => {
            let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
            event_topic(kind).map_err(|error| MessageError::EventType { kind: kind.to_owned(), error })
        }
        (None, Content::Payload(_)) => Err(MessageError::NoTopic),
    }
}

impl Coordinator {
    /// Publishes the answer to an MQTT caller. Without a caller or another receiver of the result, a failure becomes a
    /// dead letter.
    pub(super) fn answer_workflow(
        self: &Arc<Self>,
        running: &Running,
        result: &WorkflowResult,
        is_reported: bool,
    ) {
        let name = &running.workflow.name;
        let problem = |error: &edgefaas_workflow::WorkflowError| {
            let error =
                InvocationError::Workflow { workflow: name.to_string(), error: Box::new(error.clone()) };
            Problem::of(&error, Some(&running.id.to_string()))
        };
        if let Some(to) = &running.answer {
            let result = match result {
                Ok(output) => Ok(Reply::Json(output.to_string())),
                Err(error) => Err(problem(error)),
            };
            if let Some(message) = self.workflow_answer(running, to, result) {
                self.publisher.answer(
                    name,
                    running.depth.saturating_add(1),
                    to.requester.as_ref().map(|r| r.client()),
                    message,
                );
            }
            return;
        }
        let Err(error) = result else { return };
        if is_reported || running.parent.is_some() || running.is_durable() {
            return;
        }
        let problem = problem(error);
        let reason = self.mask(running, problem.detail.clone());
        let letter = DeadLetter {
            name: name.to_string(),
            title: problem.title.to_string(),
            detail: reason,
            status: problem.status,
            about: vec![("instance", running.id.to_string())],
            content_type: Some("application/json".to_owned()),
            payload: Bytes::from(running.input_text()),
        };
        if let Some(letter) = letter.message(self.publisher.max_message_bytes()) {
            self.publisher.publish(name, running.depth.saturating_add(1), letter);
        }
    }

    fn workflow_answer(
        &self,
        running: &Running,
        to: &AnswerTo,
        result: Result<Reply, Problem>,
    ) -> Option<Message> {
        let answer = Answer {
            topic: TopicName::new(to.topic.as_str()).ok()?,
            correlation_data: to.correlation_data.clone(),
            depth: running.depth,
            requester: to.requester.as_ref().map(|requester| requester.client()),
        };
        // Its steps may have run on several nodes.
        answer.message(result, None, self.publisher.max_message_bytes())
    }
}
