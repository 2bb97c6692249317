//! `POST /workflows/NAME` and `POST /fn/NAME` of a workflow: runs a workflow over HTTP.

use std::sync::Arc;

use edgefaas_coordinator::{KeptCall, Start, declared_input_of};
use edgefaas_functions::durable::{Claim, Keep, digest};
use edgefaas_functions::invocation::{InvocationError, Outcome};
use edgefaas_functions::problem::Problem;
use edgefaas_functions::trace::Entry;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::{Method, Request};
use hyper::body::Incoming;

use super::Gateway;
use super::auth::Authorised;
use super::durable::{
    self, DurableRequest, Patience, Recipient, accepted_reply, auth_code, caller_digest, key_conflict,
    store_problem,
};
use super::http::header_list;
use super::response::{HttpReply, body_problem, header_text, no_reply_memory, problem_reply, result_reply};
use super::websocket::WebSocketUpgrade;
use super::write_progress::WriteProgress;

/// Maximum size of the input.
const MAX_INPUT_BYTES: usize = 1 << 20;
/// Assumed size of the output, which is unknown before the workflow ends.
const ASSUMED_OUTPUT_BYTES: usize = 16 << 10;

/// Runs a workflow with the request's body as its input; the reply is its output. The workflow continues if the client
/// disconnects.
pub(super) async fn run(
    gateway: &Gateway,
    upgrade: &WebSocketUpgrade,
    progress: &Arc<WriteProgress>,
    name: &str,
    request: Request<Incoming>,
) -> HttpReply {
    let authorised = match gateway.auth.check_default(request.headers()) {
        Ok(authorised) => authorised,
        Err(refused) => return gateway.auth.refuse(refused, upgrade.address()).await,
    };
    let routes = gateway.registry.routes();
    let Some(workflow) = routes.workflow(name).cloned() else {
        let near = routes.near_workflows(name);
        let error = InvocationError::UnknownWorkflow { name: name.to_owned(), near };
        return problem_reply(&Problem::of(&error, None));
    };
    drop(routes);
    if request.method() != Method::POST {
        let detail = format!("/workflows/{name} takes POST");
        let mut reply = problem_reply(&Problem::new(405, "Method not allowed", detail));
        reply.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return reply;
    }
    if let Err(problem) = authorised.check_page(upgrade, request.headers()) {
        return problem_reply(&problem);
    }
    let (head, body) = request.into_parts();
    let durable_request = match durable::parse_headers(&head.headers) {
        Ok(durable_request) => durable_request,
        Err(problem) => return problem_reply(&problem),
    };
    let read = gateway.bodies.read(&head.headers, body, upgrade.address(), MAX_INPUT_BYTES).await;
    let body = match read.map_err(|error| body_problem(name, MAX_INPUT_BYTES, error)) {
        Ok(body) => body,
        Err(problem) => return problem_reply(&problem),
    };
    // A workflow may run for days, so it reserves no memory for its output. It starts only if a reservation is possible now.
    if let Err(error) = gateway.replies.reserve_bytes(progress, ASSUMED_OUTPUT_BYTES) {
        return problem_reply(&no_reply_memory(&error));
    }
    let reservation = gateway.replies.unreserved(progress);
    let declared = header_text(&head.headers, CONTENT_TYPE.as_str());
    let input = match declared_input_of(&body, declared.as_deref()) {
        Ok(input) => input,
        Err(error) => {
            let error = InvocationError::Workflow { workflow: name.to_owned(), error: Box::new(error) };
            return problem_reply(&Problem::of(&error, None).shown_to(authorised.audience));
        }
    };
    let mut start = Start::new(workflow, input, body.len());
    start.trace_parent = header_text(&head.headers, "traceparent");
    start.entry = Entry::Http;
    if let Some(durable_request) = durable_request {
        let headers = header_list(&head.headers);
        return accept(gateway, start, &body, &headers, durable_request, &authorised, progress).await;
    }
    let Outcome { id, result, timing, .. } = gateway.coordinator.run_workflow(start).await;
    let result = result.map_err(|error| Problem::of(&error, Some(&id)));
    result_reply(reservation, &id, result, timing, authorised.audience)
}

/// Accepts a call whose outcome is kept. Its instance is durable, whatever its definition says, as an invocation of a
/// function is.
async fn accept(
    gateway: &Gateway,
    mut start: Start,
    body: &[u8],
    headers: &[(String, String)],
    request: DurableRequest,
    authorised: &Authorised,
    progress: &Arc<WriteProgress>,
) -> HttpReply {
    let recipient = Recipient { progress, audience: authorised.audience };
    let DurableRequest { respond_async, idempotency_key } = request;
    let reply = |id| accepted_reply(gateway, id, respond_async, Patience::Unlimited, recipient);
    let id = start.id;
    let mut keep = Keep { key: None, auth: Some(auth_code(authorised.required)) };
    let mut claim = None;
    if let Some(key) = &idempotency_key {
        let caller = caller_digest(&authorised.caller, headers);
        let key = digest(&[b"http workflow", start.workflow.name.as_bytes(), &caller, key]);
        keep.key = Some(key);
        // A workflow sees the body only: the path and the query make no difference.
        claim = match gateway.durable.claim(key, digest(&[body]), id) {
            Ok(Claim::New(claim)) => Some(claim),
            Ok(Claim::Known(id)) => return reply(id).await,
            Ok(Claim::Conflict) => return key_conflict(),
            Err(error) => return store_problem(&error),
        };
    }
    let key = idempotency_key.as_deref().map(String::from_utf8_lossy);
    start.kept_call = Some(KeptCall::new(keep, key.as_deref()));
    match gateway.coordinator.accept(start, claim).await {
        Ok(()) => reply(id).await,
        Err(error) => {
            problem_reply(&Problem::of(&error, Some(&id.to_string())).shown_to(recipient.audience))
        }
    }
}
