//! Calls of functions, HTTP requests, scripts and child workflows: their starts and their results.

use std::sync::Arc;

use serde_json::{Value, json};

use super::action::{Action, DocumentSource};
use super::authorization::{Credentials, credentials};
use super::depth::taken_in;
use super::event::FrameId;
use super::frame::State;
use super::request::{RequestParts, fill, fill_address, request};
use super::run::Run;
use super::scope::{Scope, text};
use super::work::Work;
use crate::api_document::Address;
use crate::data::Data;
use crate::error::WorkflowError;
use crate::expression::Template;
use crate::program::{Channel, Kind, Listen, Publish, Resource, ResourcePlace};
use crate::weight::weight;

impl Run<'_> {
    /// Starts the call of a task: adds the action that carries it out.
    pub(super) fn start_call(&mut self, id: FrameId) -> Result<(), WorkflowError> {
        let Some(frame) = self.frame(id) else { return Ok(()) };
        let Some(node_id) = frame.node else { return Ok(()) };
        let node = self.program.node(node_id);
        let input = &frame.input;
        let mut scope = self.frame_scope(frame);
        let credentials = match node.kind.authentication() {
            Some(authentication) => Some(credentials(authentication, &scope, input)?),
            None => None,
        };
        let authorization = credentials.as_ref().map(Credentials::descriptor);
        scope.authorization = authorization.as_ref();
        let or_input = |template: &Option<Template>| match template {
            None => Ok(Arc::new(input.to_json())),
            Some(template) => scope.json(template, input).map(Arc::new),
        };
        let mut goes_on = None;
        let action = match &node.kind {
            Kind::Call(call) => Action::Call {
                frame: id,
                node: node_id,
                function: Arc::from(call.function.as_str()),
                body: match &call.with {
                    None => input.clone(),
                    Some(template) => scope.template(template, input)?,
                },
            },
            Kind::Http(http) => Action::Request {
                frame: id,
                node: node_id,
                request: Box::new(request(http, credentials, &scope, input)?),
                output: http.output,
            },
            Kind::OpenApi(call) => Action::Document {
                frame: id,
                node: node_id,
                document: Box::new(document_source(&call.document, &scope, input)?),
                parameters: match &call.parameters {
                    None => Arc::new(Value::Null),
                    Some(parameters) => Arc::new(scope.json(parameters, input)?),
                },
                credentials: credentials.map(Box::new),
            },
            Kind::Publish(Publish { channel: Channel::Operation(document, _), .. })
            | Kind::Listen(Listen { operation: Some((document, _)), .. }) => Action::Document {
                frame: id,
                node: node_id,
                document: Box::new(document_source(document, &scope, input)?),
                parameters: Arc::new(Value::Null),
                credentials: None,
            },
            Kind::RunScript(script) => {
                if !script.wait {
                    goes_on = Some(input.clone());
                }
                let part = |template: &Option<Template>| match template {
                    None => Ok(json!({})),
                    Some(template) => scope.json(template, input),
                };
                let given = json!({"arguments": part(&script.arguments)?, "environment": part(&script.environment)?});
                Action::Script {
                    frame: id,
                    node: node_id,
                    code: script.code.clone(),
                    input: Arc::new(given),
                    wait: script.wait,
                }
            }
            Kind::RunWorkflow(run) => {
                if !run.wait {
                    goes_on = Some(input.clone());
                }
                Action::Workflow {
                    frame: id,
                    node: node_id,
                    name: Arc::from(run.name.as_str()),
                    input: or_input(&run.input)?,
                    wait: run.wait,
                }
            }
            _ => return Ok(()),
        };
        // Until the call has ended.
        let body_bytes = match &action {
            // The input of the task is in the frame already.
            Action::Call { body, .. } if body.is_shared_with(input) => 0,
            Action::Call { body, .. } => body.bytes(),
            Action::Workflow { input: body, .. } | Action::Script { input: body, .. } => {
                weight(body) as u64
            }
            Action::Document { parameters: body, .. } => weight(body) as u64,
            Action::Request { request, .. } => request.bytes(),
            _ => 0,
        };
        self.instance.hold(id, body_bytes);
        self.actions.push(action);
        if let Some(output) = goes_on {
            self.finish_frame(id, output, None);
        }
        Ok(())
    }

    /// A call has ended.
    pub(super) fn ended(&mut self, id: FrameId, result: Result<Arc<Value>, WorkflowError>) {
        let Some(frame) = self.frame(id).filter(|frame| matches!(frame.state, State::Call)) else { return };
        let (Some(parent), Some(node)) = (frame.parent, frame.node) else { return };
        let (slot, raw) = (frame.slot, frame.raw.clone());
        let input = frame.input.clone();
        let ended = match (result, &self.program.node(node).kind) {
            (Ok(output), Kind::Publish(publish)) => {
                let topic = fill_address(&address_of(&output), &input);
                let sent =
                    topic.and_then(|topic| self.publish(parent, node, publish, Some(topic), &raw, &input));
                sent.map(|()| Some(input))
            }
            (Ok(output), Kind::Listen(_)) => fill_address(&address_of(&output), &input).and_then(|topic| {
                self.instance.wait_for_events(id);
                self.begin_listening(id, Some(topic)).map(|()| None)
            }),
            (result, _) => result.and_then(|output| taken_in(&output)).map(Some),
        };
        match ended {
            Ok(None) => {}
            Ok(Some(output)) => self.finish_frame(id, output, None),
            Err(error) => {
                self.instance.take_frame(id);
                self.push(Work::Fail { parent, slot, node, raw, error });
            }
        }
    }
}

/// The address that the host has found.
fn address_of(value: &Value) -> Address {
    serde_json::from_value(value.clone()).unwrap_or_else(|_| Address { address: String::new() })
}

fn document_source(
    document: &Resource,
    scope: &Scope<'_>,
    input: &Data,
) -> Result<DocumentSource, WorkflowError> {
    let template = match &document.place {
        ResourcePlace::File(file) => return Ok(DocumentSource::File(Arc::from(file.as_str()))),
        ResourcePlace::Url(template) => template,
    };
    let url = fill(&text(scope.json(template, input)?), input);
    let credentials = match &document.authentication {
        Some(authentication) => Some(credentials(authentication, scope, input)?),
        None => None,
    };
    Ok(DocumentSource::Request(RequestParts {
        method: "GET".to_owned(),
        url,
        credentials,
        ..RequestParts::default()
    }))
}
