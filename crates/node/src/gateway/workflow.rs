//! `POST /workflows/NAME`: a workflow over HTTP.

use std::sync::Arc;

use edgefaas_coordinator::{Start, input_of};
use edgefaas_functions::invocation::{InvocationError, Outcome};
use edgefaas_functions::problem::Problem;
use http::header::{ALLOW, HeaderValue};
use http::{Method, Request};
use hyper::body::Incoming;

use super::outflow::Outflow;
use super::parts::Gateway;
use super::reply::{HttpReply, body_problem, header_text, not_run, problem_reply, result_reply};
use super::websocket::Upgrading;

/// The largest input.
const INPUT_BYTES: usize = 1 << 20;
/// Room that an output is expected to need, whose size nobody knows before.
const OUTPUT_BYTES: usize = 16 << 10;

/// Starts a workflow with the request's body as its input, and answers with its output. A client that goes away does not end
/// it.
pub(super) async fn run(
    gateway: &Gateway,
    upgrading: &Upgrading,
    outflow: &Arc<Outflow>,
    name: &str,
    request: Request<Incoming>,
) -> HttpReply {
    let authorised = match gateway.auth.check_default(request.headers()) {
        Ok(authorised) => authorised,
        Err(refused) => return gateway.auth.refuse(refused, upgrading.address()).await,
    };
    let routes = gateway.registry.routes();
    let Some(workflow) = routes.workflow(name).cloned() else {
        let near = routes.near_workflows(name);
        let error = InvocationError::UnknownFunction { name: name.to_owned(), near };
        return problem_reply(&Problem { title: "Unknown workflow".into(), ..Problem::of(&error, None) });
    };
    drop(routes);
    if request.method() != Method::POST {
        let detail = format!("/workflows/{name} takes POST");
        let mut reply = problem_reply(&Problem::new(405, "Method not allowed", detail));
        reply.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return reply;
    }
    if let Err(problem) = authorised.check_page(upgrading, request.headers()) {
        return problem_reply(&problem);
    }
    let (head, body) = request.into_parts();
    let read = gateway.bodies.read(&head.headers, body, upgrading.address(), INPUT_BYTES).await;
    let body = match read.map_err(|error| body_problem(name, INPUT_BYTES, error)) {
        Ok(body) => body,
        Err(problem) => return problem_reply(&problem),
    };
    // A workflow may run for days: it begins only while an output would find room, but does not hold that room.
    if let Err(error) = gateway.replies.reserve_now(outflow, OUTPUT_BYTES) {
        return problem_reply(&not_run(&error));
    }
    let room = gateway.replies.unreserved(outflow);
    let mut start = Start::new(workflow, input_of(&body), body.len());
    start.trace_parent = header_text(&head.headers, "traceparent");
    let Outcome { id, result, timing } = gateway.coordinator.run_workflow(start).await;
    let result = result.map_err(|error| Problem::of(&error, Some(&id)));
    result_reply(room, &id, result, timing, authorised.audience)
}
