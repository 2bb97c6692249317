//! `POST /workflows/NAME`: a workflow over HTTP.

use std::sync::Arc;

use http::header::{ALLOW, HeaderValue};
use http::{Method, Request};
use hyper::body::Incoming;

use super::gateway_auth::{Caller, GatewayAuth};
use super::http::{HttpReply, body_problem, header_text, not_run, problem_reply, result_reply};
use super::outflow::Outflow;
use super::websocket::Upgrading;
use crate::dispatch::Dispatcher;
use crate::invocation::{InvocationError, Outcome};
use crate::problem::Problem;
use crate::workflow::{Start, input_of};

/// The largest input.
const INPUT_BYTES: usize = 1 << 20;
/// Room that an output is expected to need, whose size nobody knows before.
const OUTPUT_BYTES: usize = 16 << 10;

/// Starts a workflow with the request's body as its input, and answers with its output. A client that goes away does not end
/// it.
pub(super) async fn run(
    dispatcher: &Arc<Dispatcher>,
    auth: &GatewayAuth,
    upgrading: &Upgrading,
    outflow: &Arc<Outflow>,
    name: &str,
    request: Request<Incoming>,
) -> HttpReply {
    let caller = match auth.check_default(request.headers()) {
        Ok(caller) => caller,
        Err(refused) => return auth.refuse(refused, upgrading.address()).await,
    };
    let routes = dispatcher.registry().routes();
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
    // What only this machine can send needs nothing; but pages from anywhere are read on this machine.
    if caller == Caller::Unknown
        && let Err(problem) = upgrading.check_page(request.headers())
    {
        return problem_reply(&problem);
    }
    let (head, body) = request.into_parts();
    let read = dispatcher.bodies().read(&head.headers, body, upgrading.address(), INPUT_BYTES).await;
    let body = match read.map_err(|error| body_problem(name, INPUT_BYTES, error)) {
        Ok(body) => body,
        Err(problem) => return problem_reply(&problem),
    };
    // A workflow may run for days: it begins only while an output would find room, but does not hold that room.
    if let Err(error) = dispatcher.replies().reserve_now(outflow, OUTPUT_BYTES) {
        return problem_reply(&not_run(&error));
    }
    let room = dispatcher.replies().unreserved(outflow);
    let mut start = Start::new(workflow, input_of(&body), body.len());
    start.trace_parent = header_text(&head.headers, "traceparent");
    let Outcome { id, result, timing } = dispatcher.run_workflow(start).await;
    let result = result.map_err(|error| Problem::of(&error, Some(&id)));
    result_reply(room, &id, result, timing, auth.audience(&caller))
}
