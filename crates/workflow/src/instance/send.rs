//! Events and messages that an instance sends: `emit` tasks and `publish`.

use std::sync::Arc;

use serde_json::Value;

use super::action::{Action, Content, Outgoing};
use super::depth::taken_in;
use super::event::FrameId;
use super::run::Run;
use super::scope::{rfc3339, text};
use crate::data::Data;
use crate::error::{ErrorKind, WorkflowError};
use crate::program::{Channel, Emit, NodeId, Publish};
use crate::weight::weight;

impl Run<'_> {
    pub(super) fn emit(
        &mut self,
        parent: FrameId,
        id: NodeId,
        emit: &Emit,
        raw: &Data,
        input: &Data,
    ) -> Result<Data, WorkflowError> {
        let node = self.program.node(id);
        let mut scope = self.scope(Some(parent), Some(node), Some(input), None);
        scope.raw_input = Some(raw);
        let topic = emit.topic.as_ref().map(|topic| scope.json(topic, input)).transpose()?;
        let event = scope.json(&emit.event, input)?;
        let topic = topic.map(|topic| self.topic(topic)).transpose()?;
        let Value::Object(mut event) = event else {
            return Err(WorkflowError::new(ErrorKind::Expression, "the event is not an object"));
        };
        if !event.get("type").is_some_and(Value::is_string) {
            return Err(WorkflowError::new(ErrorKind::Expression, "the event's type is not text"));
        }
        // The default id depends only on the instance and the step: it stays the same if a restart repeats the step.
        let unique = format!("{}-{}", self.instance.id, self.instance.steps);
        let source = format!("/workflows/{}", self.program.name);
        let time = rfc3339(self.environment.unix_ms);
        for (key, value) in [("specversion", "1.0"), ("id", &unique), ("source", &source), ("time", &time)]
        {
            event.entry(key).or_insert_with(|| Value::from(value));
        }
        if event.contains_key("data") {
            event.entry("datacontenttype").or_insert_with(|| Value::from("application/json"));
        }
        let event = Value::Object(event);
        let output = taken_in(&event)?;
        let content_bytes = weight(&event);
        self.send(Outgoing {
            node: id,
            topic,
            content: Content::CloudEvent(Arc::new(event)),
            qos: emit.qos,
            retain: false,
            headers: Vec::new(),
            content_bytes,
        })?;
        Ok(output)
    }

    pub(super) fn publish(
        &mut self,
        parent: FrameId,
        id: NodeId,
        publish: &Publish,
        found_topic: Option<String>,
        raw: &Data,
        input: &Data,
    ) -> Result<(), WorkflowError> {
        let mut scope = self.scope(Some(parent), Some(self.program.node(id)), Some(input), None);
        scope.raw_input = Some(raw);
        let headers = publish.headers.as_ref().map(|headers| scope.json(headers, input)).transpose()?;
        let headers = match headers {
            Some(Value::Object(headers)) => {
                headers.into_iter().map(|(key, value)| (key, text(value))).collect()
            }
            _ => Vec::new(),
        };
        let payload = scope.json(&publish.payload, input)?;
        let topic = match (found_topic, &publish.channel) {
            (None, Channel::Topic(topic)) => {
                let topic = scope.json(topic, input)?;
                Some(self.topic(topic)?)
            }
            (topic, _) => topic,
        };
        let content_bytes = weight(&payload);
        let content = Content::Payload(payload);
        let (qos, retain) = (publish.qos, publish.retain);
        self.send(Outgoing { node: id, topic, content, qos, retain, headers, content_bytes })
    }

    fn send(&mut self, outgoing: Outgoing) -> Result<(), WorkflowError> {
        self.instance.turn.message_bytes += outgoing.content_bytes as u64;
        self.may_send(&outgoing)?;
        self.actions.push(Action::Publish(outgoing));
        Ok(())
    }
}
