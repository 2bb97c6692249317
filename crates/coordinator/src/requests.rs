//! HTTP requests of tasks: `call: http`, and what other calls fetch.

use std::sync::Arc;

use bytes::Bytes;
use edgefaas_functions::outgoing;
use edgefaas_isolates::{HostError, IncomingResponse, OutgoingRequest, Redirect};
use edgefaas_workflow::instance::{Credentials, RequestParts, SentRequest, read_answer};
use edgefaas_workflow::program::{HttpOutput, NodeId};
use edgefaas_workflow::{ErrorKind, WorkflowError};

use super::coordinator::Coordinator;
use super::instance::Running;
use super::run_state::WorkflowResult;
use super::tokens::Token;

/// The status of a server that does not accept the credentials of a request.
const UNAUTHORIZED: u16 = 401;

impl Coordinator {
    /// Sends the request of a task.
    pub(super) async fn request_step(
        self: &Arc<Self>,
        running: &Running,
        node: NodeId,
        request: RequestParts,
        output: HttpOutput,
        redirect: bool,
    ) -> WorkflowResult {
        let sent = SentRequest::from(&request);
        let IncomingResponse { status, headers, body, .. } =
            self.send_authorized(running, node, request).await?;
        read_answer(output, redirect, &sent, status, &headers, &body).map(Arc::new)
    }

    /// Sends a request with its credentials.
    ///
    /// # Errors
    /// The token is refused or the server cannot be reached: the error of the task. Any status is an answer.
    pub(super) async fn send_authorized(
        self: &Arc<Self>,
        running: &Running,
        node: NodeId,
        mut request: RequestParts,
    ) -> Result<IncomingResponse, WorkflowError> {
        let token_request = match request.credentials.take() {
            None => None,
            Some(Credentials::Known { scheme, parameter }) => {
                request.headers.push(("authorization".to_owned(), format!("{scheme} {parameter}")));
                None
            }
            Some(Credentials::Token(token_request)) => {
                let Token { kind, text } = self.token(running, node, &token_request).await?;
                request.headers.push(("authorization".to_owned(), format!("{kind} {text}")));
                Some(token_request)
            }
        };
        let answer = self.send(running, node, request).await?;
        if let Some(token_request) = token_request.filter(|_| answer.status == UNAUTHORIZED) {
            // It may have been revoked: the next request gets another one.
            self.tokens.forget(&running.workflow.app, &token_request);
        }
        Ok(answer)
    }

    /// Sends a request as it is.
    ///
    /// # Errors
    /// The workflow may not call the server, or it cannot be reached: the error of the task. Any status is an answer.
    pub(super) async fn send(
        self: &Arc<Self>,
        running: &Running,
        node: NodeId,
        request: RequestParts,
    ) -> Result<IncomingResponse, WorkflowError> {
        let caller = &running.workflow.caller;
        let request = OutgoingRequest {
            method: request.method,
            url: request.url,
            headers: request.headers,
            body: Bytes::from(request.body),
            redirect: Redirect::Manual,
        };
        let checked = outgoing::check(request, caller, self.context_of(running, node).as_deref());
        let checked = checked.map_err(|error| match HostError::from(error) {
            HostError::NotPermitted(reason) => WorkflowError::new(ErrorKind::Authorization, reason),
            other => WorkflowError::new(ErrorKind::Configuration, other.to_string()),
        })?;
        let answer = self.http.fetch(caller, checked).await;
        answer.map_err(|error| WorkflowError::new(ErrorKind::Communication, error.to_string()))
    }
}
